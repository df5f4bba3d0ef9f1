-- SPDX-License-Identifier: Apache-2.0
-- Store.Check in one bucket: it fails when reserve would, on a replica and without memory as well.
local at = now()
local doubt = whole(KEYS[1], at)
if doubt.error then
    return redis.error_reply(doubt.error)
end
redis.call('HSET', KEYS[1], 'checked', text(at))
return 1
