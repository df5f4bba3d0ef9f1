-- SPDX-License-Identifier: Apache-2.0
-- Store.KeepAlive in one bucket.
local at = now()
renew(KEYS[1], math.max(alive_until(KEYS[1], at) or 0, at + ARGV[1]))
return 1
