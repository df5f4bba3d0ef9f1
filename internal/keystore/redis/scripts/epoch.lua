-- SPDX-License-Identifier: Apache-2.0
-- Prelude of the scripts that need a bucket's data to be whole. Its epoch is a hash:
--   id          of the keyspace, as it was made once; claim: the one who may use it
--   making      while the keyspace is made for the first time, until every bucket has its epoch
--   run:<id>    runs of servers that are known to have the data; seen: when the server last said that it is one of them
--   lost, doubt when a loss was found, and until when a key that is absent may be one that got lost
-- whole returns {error = ...}, or since and until when what is absent may have been lost.
local function run_of_this_server()
    return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

local function appends()
    return string.find(redis.call('INFO', 'persistence'), 'aof_enabled:1', 1, true) ~= nil
end

local function whole(epoch, at)
    local e = redis.call('HMGET', epoch, 'id', 'seen', 'lost', 'doubt', 'making')
    if not e[1] or e[5] then
        return {error = 'NOEPOCH the keyspace is not here, or not any more'}
    end
    local since = at - (tonumber(e[2] or '0'))
    if since < 0 or since >= 10000 then
        local run = run_of_this_server()
        if redis.call('HEXISTS', epoch, 'run:' .. run) == 0 then
            if not appends() then
                return {error = 'LOSTWRITES the server has started anew and may have lost what it had acknowledged'}
            end
            redis.call('HSET', epoch, 'run:' .. run, text(at))
        end
        redis.call('HSET', epoch, 'seen', text(at))
        expire(epoch, at + EPOCH_TIME)
    end
    return {since = tonumber(e[3] or '0'), ends = tonumber(e[4] or '0')}
end
