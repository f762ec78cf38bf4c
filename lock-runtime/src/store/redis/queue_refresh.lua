-- Tells that a process is alive and waits, hands locks that have become free to the first in their queues, and tells how things stand.
-- KEYS: the fencing counter, then for each lock the lock and its queue.
-- ARGV: the channels' prefix, the process, then for each lock the number of members asked about, and these.
-- Returns for each lock {the holder's value or '', rest of its lease in ms, then for each member 1 (it stands in the queue) or 0}.
local now = now_ms()
local answers = {}
local at = 3
for i = 2, #KEYS, 2 do
  local lock, queue = KEYS[i], KEYS[i + 1]
  local members = tonumber(ARGV[at])
  local answer = {}
  local stands = false
  for j = 1, members do
    -- pcall: a key of another type must not keep the others from being looked at.
    answer[j + 2] = type(redis.pcall('ZSCORE', queue, ARGV[at + j])) == 'string' and 1 or 0
    stands = stands or answer[j + 2] == 1
  end
  at = at + members + 1
  if stands then
    redis.call('ZADD', queue, -now, ARGV[2])
    redis.call('PEXPIRE', queue, KEPT_FOR)
  end
  local holder = redis.pcall('GET', lock)
  if not holder then
    -- One of those asked about may get it.
    holder = hand_over(lock, queue, KEYS[1], ARGV[1])
  end
  answer[1] = type(holder) == 'string' and holder or ''
  answer[2] = redis.call('PTTL', lock)
  answers[#answers + 1] = answer
end
return answers
