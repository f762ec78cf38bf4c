-- One step of the judge at the door. ARGV: verb, holder, class, token or "-", until when its lock is valid, in microseconds, and the locks.
-- Under door:in:<lock> are those inside, each with "<class> <token> <until>". Whoever is beyond that moment counts as gone.
local verb, holder, class, token, valid = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function violation(text) redis.call('RPUSH', 'door:violations', string.format('%.0f ', now) .. text) end
-- Tokens may exceed 2^53, where Lua's numbers become inexact: compare as digits.
local function less(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
end

-- What is known of a lock without `holder`, and those who are inside.
local function inside(lock)
    local others = {}
    local entries = redis.call('HGETALL', 'door:in:' .. lock)
    for i = 1, #entries, 2 do
        local its_class, its_token, its_end = string.match(entries[i + 1], '^(%S+) (%S+) (%d+)$')
        if tonumber(its_end) <= now then
            redis.call('HDEL', 'door:in:' .. lock, entries[i])
        elseif entries[i] ~= holder then
            others[#others + 1] = {name = entries[i], class = its_class, token = its_token}
        end
    end
    return others
end

local function look_at_admission(lock, others)
    local permits = tonumber(string.match(class, '^s(%d+)$'))
    local fewest = permits
    for _, other in ipairs(others) do
        local its_permits = tonumber(string.match(other.class, '^s(%d+)$'))
        local together = class == other.class and (class == 'r' or string.sub(class, 1, 1) == 'o')
        if permits and its_permits then
            fewest = math.min(fewest, its_permits)
        elseif not together then
            violation(holder .. ' (' .. class .. ') is in ' .. lock .. ' beside ' .. other.name .. ' (' .. other.class .. ')')
        end
        if together and token ~= '-' and other.token ~= '-' and token ~= other.token then
            violation(holder .. ' has token ' .. token .. ' in ' .. lock .. ' beside ' .. other.name .. ' with ' .. other.token)
        end
    end
    if permits and #others + 1 > fewest then
        violation(holder .. ' is number ' .. (#others + 1) .. ' of ' .. fewest .. ' in ' .. lock)
    end
end

local function look_at_token(lock)
    if token == '-' then return end
    -- Those of one owner share it, and nobody else does.
    local whose = string.sub(class, 1, 1) == 'o' and class or holder
    local highest, its_owner = unpack(redis.call('HMGET', 'door:tokens:' .. lock, 'highest', 'whose'))
    if highest and (less(token, highest) or (token == highest and whose ~= its_owner)) then
        violation(holder .. ' is in ' .. lock .. ' with token ' .. token .. ' after ' .. highest .. ' of ' .. its_owner)
    end
    if not highest or less(highest, token) then
        redis.call('HSET', 'door:tokens:' .. lock, 'highest', token, 'whose', whose)
    end
end

if verb == 'leave' then
    for i = 6, #ARGV do redis.call('HDEL', 'door:in:' .. ARGV[i], holder) end
    return 0
end
-- A poll that the system stopped half-way for longer than the lock was valid says nothing about the lock.
if valid <= now then
    return redis.call('INCR', 'door:late')
end
local shared = false
for i = 6, #ARGV do
    local others = inside(ARGV[i])
    look_at_admission(ARGV[i], others)
    look_at_token(ARGV[i])
    shared = shared or #others > 0
    redis.call('HSET', 'door:in:' .. ARGV[i], holder, string.format('%s %s %.0f', class, token, valid))
end
if verb == 'enter' then
    redis.call('INCR', 'door:entries')
    if shared then redis.call('INCR', 'door:shared') end
end
return 0
