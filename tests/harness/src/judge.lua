-- One step of the judge, ARGV: verb, holder, token or "-". Everything it knows is under judge:*.
local verb, holder, token = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local micros = string.format('%.0f', time[1] * 1000000 + time[2])
local function violation(text) redis.call('RPUSH', 'judge:violations', micros .. ' ' .. text) end
-- Tokens may exceed 2^53, where Lua's numbers become inexact: compare as digits.
local function less(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
end
local highest = redis.call('GET', 'judge:highest') or '0'

if verb == 'enter' then
    local others = redis.call('SMEMBERS', 'judge:inside')
    if #others > 0 then violation(holder .. ' entered while inside: ' .. table.concat(others, ', ')) end
    if token ~= '-' then
        if not less(highest, token) then violation(holder .. ' entered with token ' .. token .. ' after ' .. highest) end
        if less(highest, token) then redis.call('MSET', 'judge:highest', token, 'judge:owner', holder) end
    end
    redis.call('SADD', 'judge:inside', holder)
    redis.call('INCR', 'judge:entries')
    redis.call('RPUSH', 'judge:events', 'enter ' .. micros .. ' ' .. holder)
    return 1
elseif verb == 'leave' then
    if redis.call('SREM', 'judge:inside', holder) == 0 then violation(holder .. ' left without being inside') end
    redis.call('RPUSH', 'judge:events', 'leave ' .. micros .. ' ' .. holder)
    return 1
elseif verb == 'abandon' then
    return redis.call('SREM', 'judge:inside', holder)
elseif verb == 'write' then
    local owner = redis.call('GET', 'judge:owner') or holder
    if less(token, highest) or (token == highest and owner ~= holder) then
        redis.call('INCR', 'judge:refused')
        return 0
    end
    redis.call('MSET', 'judge:highest', token, 'judge:owner', holder)
    redis.call('INCR', 'judge:writes')
    return 1
end
return redis.error_reply('ERR the judge does not know ' .. verb)
