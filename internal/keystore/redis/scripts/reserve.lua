-- SPDX-License-Identifier: Apache-2.0
-- Store.Reserve. A script is alone on its server: look and write are one.
--
-- The epoch says that the bucket's data are whole: it names the runs of servers that are known to have them, and, after a loss, until when a key that
-- is not here may be one that got lost. Nothing is granted without it. A server that has started anew is trusted when it keeps an append-only file,
-- which had everything that was ever acknowledged when only the process ended. To ask a server for its run takes longer than all the rest, so the
-- answer is good for 10 ms: no server ends, starts, loads an older copy and is reached again in that time.
local entry, lease, epoch = KEYS[1], KEYS[2], KEYS[3]
local client, key, fingerprint, token, holder = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease_time, window, route, take_over, seed = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9] == '1', ARGV[10]
local leases = ARGV[11] -- what every lease in this bucket begins with
local keep = tonumber(ARGV[12]) -- how long an unfinished entry stays in memory after its window, since its holder may still be alive

local at = now()
local e = redis.call('HMGET', entry, 'state', 'fingerprint', 'token', 'holder', 'seed', 'attempts', 'reserved_at', 'expires_at')
local state = e[1]
local alive
if state == 'reserved' then
    alive = alive_until(leases .. e[4], at)
    if not alive and not named(leases .. e[4]) then
        return {DECLARE, e[4]}
    end
end
local live = state and (tonumber(e[8]) > at or alive)

-- Makes sure that the holder counts as alive for half of its lease at least; says whether the lease was renewed.
local function hold()
    local ends = alive_until(lease, at)
    if ends and ends > at + lease_time / 2 then
        return 0
    end
    renew(lease, math.max(ends or 0, at + lease_time))
    return 1
end

local doubtful_since
if live then
    if e[2] ~= fingerprint then
        return {MISMATCH}
    end
    if state == 'completed' then
        local answer = redis.call('HMGET', entry, 'tombstone', 'status', 'header', 'body')
        return {COMPLETED, answer[1], answer[2], answer[3], answer[4]}
    end
    if state == 'reserved' and e[3] == token then
        -- The answer to this very call was lost. The write makes a caller that waits for replicas wait for the first call's writes, too.
        expire(entry, math.max(tonumber(e[8]), at) + keep)
        local renewed = hold()
        return {e[6] == '1' and NEW or TAKEN_OVER, e[5], renewed}
    end
    if alive then
        return {IN_FLIGHT, text(alive - at), text(at - e[7])}
    end
    if not take_over or e[3] == token then
        -- With its own token it is a call that was late: the attempt that it asks for has ended.
        return {UNKNOWN, text(at - e[7])}
    end
end
local doubt = whole(epoch, at)
if doubt.error then
    return redis.error_reply(doubt.error)
end
if not state and doubt.ends > at then
    if not take_over then
        return {UNKNOWN, text(at - doubt.since)}
    end
    live = true -- with what is lost of it made up
end

local attempts = '1'
if live then
    attempts, seed = text(tonumber(e[6] or '1') + 1), e[5] or seed
elseif state then
    redis.call('DEL', entry)
end
redis.call('HSET', entry, 'state', 'reserved', 'client', client, 'key', key, 'route', route, 'fingerprint', fingerprint, 'token', token,
    'holder', holder, 'seed', seed, 'attempts', attempts, 'window', text(window), 'reserved_at', text(at), 'expires_at', text(at + window))
expire(entry, at + window + keep)
return {live and TAKEN_OVER or NEW, seed, hold()}
