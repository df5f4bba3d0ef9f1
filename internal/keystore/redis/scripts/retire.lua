-- SPDX-License-Identifier: Apache-2.0
-- Store.Retire in one bucket.
redis.call('DEL', KEYS[1])
return 1
