-- Tells that a process is alive and waits, lets those in who may hold a lock by now, and tells how things stand.
-- KEYS: the fencing counter, then for each lock the lock and its queue.
-- ARGV: the channels' prefix, the process, then for each lock the number of members asked about, and these.
-- Returns for each lock {a holder's value or '', rest of the lease that ends first in ms, then for each member 2 (it holds the lock), 1 (it
-- stands in the queue) or 0}.
local now = now_ms()
local answers = {}
local at = 3
for i = 2, #KEYS, 2 do
  local lock, queue = KEYS[i], KEYS[i + 1]
  local members = tonumber(ARGV[at])
  local stood = {}
  for j = 1, members do
    -- pcall: a key of another type must not keep the others from being looked at.
    stood[j] = type(redis.pcall('ZSCORE', queue, ARGV[at + j])) == 'string'
    stood.any = stood.any or stood[j]
  end
  if stood.any then
    redis.call('ZADD', queue, -now, ARGV[2])
    redis.call('PEXPIRE', queue, KEPT_FOR)
  end
  local answer = {'', -1}
  local is_other = type(redis.pcall('ZSCORE', lock, '')) == 'table'
  if not is_other then
    local held = look(lock, now)
    serve(held, queue, KEYS[1], ARGV[1])
    answer = {first_to_end(held)}
  end
  for j = 1, members do
    local member = ARGV[at + j]
    -- One of those asked about may have got it.
    if stood[j] and (is_other or redis.call('ZSCORE', queue, member)) then
      answer[j + 2] = 1
    else
      local holds = not is_other and redis.call('ZSCORE', lock, string.match(member, '^%d+:%d:%x+:(.*)$'))
      answer[j + 2] = holds and 2 or 0
    end
  end
  at = at + members + 1
  answers[#answers + 1] = answer
end
return answers
