-- Returns a snapshot of each lock.
-- KEYS: the fencing counter, then for each lock the lock, its queue, and the queue of its shared
-- modes.
-- Returns the last fencing token or '', then for each lock 0 (the key does not hold a lock), or
-- {the fencing token of an owner's holders or '', the number of waiters, then for each holder its
-- value and the rest of its lease in ms, or -1 without expiry}.
local HEARD_WITHIN = 1500
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Returns the number of waiters in a queue whose process does not count as dead.
local function waiters(queue)
  local heard = redis.pcall('ZRANGEBYSCORE', queue, '-inf', '(0', 'WITHSCORES')
  if heard.err then
    return 0
  end
  local alive = {}
  -- The first sign is the newest. Signs from the future are from before the server's clock was set
  -- back, and count as present.
  local newest = math.max(tonumber(heard[2]) or 0, -now)
  for i = 1, #heard, 2 do
    alive[heard[i]] = heard[i + 1] - newest <= HEARD_WITHIN
  end
  local count = 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue, 1, '+inf')) do
    if alive[string.match(member, '^%d+:%d:(%x+):') or ''] then
      count = count + 1
    end
  end
  return count
end

-- Adds the holders of a lock in a shared mode. A member is a holder if its class has a tally.
local function add_shared(lock, answer)
  local members = redis.pcall('ZRANGEBYSCORE', lock, '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES')
  if members.err then
    return false
  end
  for i = 1, #members, 2 do
    local class = string.match(members[i], '^([rwso][^:]*):')
    if class and redis.call('ZSCORE', lock, '#' .. class) then
      answer[#answer + 1] = members[i]
      answer[#answer + 1] = members[i + 1] - now
    end
  end
  local tenure = redis.call('ZRANGEBYSCORE', lock, 0, 0)[1]
  answer[1] = tenure and string.match(tenure, '^fence:(%d+)$') or ''
  return true
end

-- pcall: a counter that cannot be read, or a key of another type, must not hide the other locks.
local last = redis.pcall('GET', KEYS[1])
local answers = {type(last) == 'string' and last or ''}
for i = 2, #KEYS, 3 do
  local lock = KEYS[i]
  local answer = {'', waiters(KEYS[i + 1]) + waiters(KEYS[i + 2])}
  local holder = redis.pcall('GET', lock)
  local is_lock = true
  if type(holder) == 'string' then
    answer[3] = holder
    answer[4] = redis.call('PTTL', lock)
  elseif holder then
    is_lock = add_shared(lock, answer)
  end
  answers[#answers + 1] = is_lock and answer or 0
end
return answers
