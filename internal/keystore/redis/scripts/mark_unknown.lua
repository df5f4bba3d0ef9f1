-- SPDX-License-Identifier: Apache-2.0
-- Store.MarkUnknown; 0: not the owner. The window starts anew: the effect, if any, is not older than this.
local entry, token, leases = KEYS[1], ARGV[1], ARGV[2]
local at = now()
local e = redis.call('HMGET', entry, 'state', 'token', 'holder', 'window', 'expires_at')
if e[2] ~= token then
    return 0
end
local ends = tonumber(e[5])
if e[1] == 'unknown' and ends > at then
    expire(entry, ends) -- repeated; see reserve for the write
    return 1
end
if e[1] ~= 'reserved' then
    return 0
end
if ends <= at and not alive_until(leases .. e[3], at) then
    return named(leases .. e[3]) and 0 or {DECLARE, e[3]}
end
redis.call('HSET', entry, 'state', 'unknown', 'expires_at', text(at + e[4]))
expire(entry, at + e[4])
return 1
