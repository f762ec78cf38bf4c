-- Releases locks in shared modes, and hands them to waiters. Keeps a place for the rest of the
-- minimum hold instead, if told to.
-- KEYS: for each lock the lock and its queue.
-- ARGV: the channels' prefix, then for each lock the holder's value, and if one of them is released in
-- another way than at once, each value with three more: the time to keep its place in ms, or 0 to
-- release it; the member to take out of the queue, or ''; and one that only exclusive locks use.
-- Returns for each lock nil (the value does not hold it), 0 (released or kept, and it has other
-- holders), 1 (released, and it is free) or an error.

-- The common case first, before any function is created: the lock has no waiters, and all its holders are of one
-- class, with leases that are not over and no token that they share.
local now
local answers, released = {}, {}
local others = false
local each = 2 * (#ARGV - 1) / #KEYS
local none_waits = false
if #KEYS > 2 then
  local queues = {}
  for i = 1, #KEYS / 2 do
    queues[i] = KEYS[2 * i]
  end
  -- Refused, or if there is a queue, each is looked at below.
  none_waits = redis.pcall('EXISTS', unpack(queues)) == 0
end
for i = 1, #KEYS / 2 do
  local lock, at = KEYS[2 * i - 1], each * (i - 1) + 2
  local value = ARGV[at]
  local class = string.match(value, '^([^:]*):')
  if class and (each == 1 or ARGV[at + 1] == '0' and ARGV[at + 2] == '') then
    -- The only tally, and the holder whose lease ends first.
    -- pcall: a key of another type must not stop the release of the other locks.
    local found = redis.pcall('ZRANGE', lock, 0, 1, 'WITHSCORES')
    if found[1] == '#' .. class and found[4] and (none_waits or redis.pcall('PTTL', KEYS[2 * i]) == -2) then
      if found[2] == '1' then
        -- The key ends with the lease of its last holder, so that this one is not over.
        if found[3] == value then
          released[#released + 1] = lock
          answers[i] = 1
        end
      else
        if not now then
          local time = redis.call('TIME')
          now = time[1] * 1000 + math.floor(time[2] / 1000)
        end
        if tonumber(found[4]) > now then
          answers[i] = false
          if redis.call('ZREM', lock, value) == 1 then
            redis.call('ZADD', lock, found[2] - 1, '#' .. class)
            local last = redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2]
            -- pcall: it fails for a score that no holder has, and the key keeps its expiry.
            redis.pcall('PEXPIRE', lock, math.max(last - now, 1))
            answers[i] = 0
          end
        end
      end
    end
  end
  others = others or answers[i] == nil
end
if released[1] then
  redis.call('DEL', unpack(released))
end
if not others then
  return answers
end
