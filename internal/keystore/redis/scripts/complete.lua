-- SPDX-License-Identifier: Apache-2.0
-- Store.Complete; 0: not the owner. An entry that is unknown by its holder's end takes the answer from its owner all the same.
local entry, token, leases = KEYS[1], ARGV[1], ARGV[2]
local at = now()
local e = redis.call('HMGET', entry, 'state', 'token', 'holder', 'window', 'expires_at')
if e[2] ~= token then
    return 0
end
local ends = tonumber(e[5])
if e[1] == 'completed' then
    if ends <= at then
        return 0
    end
    expire(entry, ends) -- repeated; see reserve for the write
    return 1
end
if ends <= at then
    if e[1] ~= 'reserved' then
        return 0
    end
    if not alive_until(leases .. e[3], at) then
        return named(leases .. e[3]) and 0 or {DECLARE, e[3]}
    end
end
ends = at + e[4]
redis.call('HSET', entry, 'state', 'completed', 'expires_at', text(ends), 'tombstone', ARGV[3], 'status', ARGV[4], 'header', ARGV[5], 'body', ARGV[6])
expire(entry, ends)
return 1
