-- SPDX-License-Identifier: Apache-2.0
-- Makes or mends the epoch of one bucket, see epoch.lua. ARGV: id, claim, how long absent keys are doubtful after a loss, what a missing epoch
-- means (making: the keyspace is new; lost: it is not), and further runs of servers that have the data.
-- Returns what it found: made, kept, lost or taken; and until when absent keys are doubtful, if that is still to come.
local epoch, id, claim, window, missing = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local at = now()
local e = redis.call('HMGET', epoch, 'id', 'claim')
local run = run_of_this_server()
local found = 'kept'
if not e[1] then
    found = missing == 'lost' and 'lost' or 'made'
    redis.call('HSET', epoch, 'id', id, 'claim', claim)
    if found == 'made' then
        redis.call('HSET', epoch, 'making', '1')
    end
elseif e[2] ~= claim then
    return {'taken', '0'}
elseif redis.call('HEXISTS', epoch, 'run:' .. run) == 0 and not appends() then
    found = 'lost'
end
if found == 'lost' then
    redis.call('HSET', epoch, 'lost', text(at), 'doubt', text(at + window))
end
redis.call('HSET', epoch, 'run:' .. run, text(at), 'seen', text(at))
for i = 5, #ARGV do
    redis.call('HSETNX', epoch, 'run:' .. ARGV[i], text(at))
end
expire(epoch, at + EPOCH_TIME)
local doubt = redis.call('HGET', epoch, 'doubt') or '0'
return {found, tonumber(doubt) > at and doubt or '0'}
