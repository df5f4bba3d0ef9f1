-- SPDX-License-Identifier: Apache-2.0
-- What every script begins with. Times and durations are microseconds, by the clock of the server that runs the script: numbers up to 2^53, so exact.
--
-- An entry is a hash:
--   state       reserved, completed or unknown; reserved by a holder without a live lease is unknown, too
--   client, key, route, fingerprint, token, holder, seed
--   attempts    1, and one more for each take-over
--   window      how long it is honoured, from reservation and again from completion
--   reserved_at, expires_at
--   tombstone, status, header, body     the answer
-- A lease is a string: until when its holder is alive. The epoch of a bucket is a hash, see reserve.lua and admin.lua.
-- Scripts decide by what is written in there. The keys' own expiry only frees memory, and never before that: it is in whole milliseconds.

local function now()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

local function text(number)
    return string.format('%.0f', number)
end

-- No key is ever without it.
local function expire(key, at)
    redis.call('PEXPIREAT', key, text(math.floor(at / 1000) + 1))
end

-- Until when the lease lets its holder live; nil: it is over.
local function alive_until(lease, at)
    local ends = tonumber(redis.call('GET', lease) or '0')
    if ends > at then
        return ends
    end
end

local function renew(lease, ends)
    redis.call('SET', lease, text(ends), 'PXAT', text(math.floor(ends / 1000) + 1))
end

-- Only KEYS are sure to be here while the slot moves to another server: a lease that is not among them, and seems to be over, may just not be here.
-- The caller then has to name it.
local function named(lease)
    for _, key in ipairs(KEYS) do
        if key == lease then
            return true
        end
    end
    return false
end
