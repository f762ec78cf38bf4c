-- Records that a process with waiters is alive, hands locks that have become free to the first
-- waiters in their queues, and returns the state of the locks.
-- KEYS: for each lock the lock and its queue.
-- ARGV: the channels' prefix, the process, whether messages reach it as in `heard_of`, then for each
-- lock the number of members that the process asks about, and these members.
-- Returns for each lock {the holder's value or '', the rest of its lease in ms, then for each
-- member 1 (it is in the queue) or 0, also if the key is of another type}.
local now = now_ms()
local answers = {}
local at = 4
for i = 1, #KEYS, 2 do
  local lock, queue = KEYS[i], KEYS[i + 1]
  local members = tonumber(ARGV[at])
  local answer = {}
  local stands = false
  for j = 1, members do
    -- pcall: a key of another type must not stop the look at the other locks.
    answer[j + 2] = type(redis.pcall('ZSCORE', queue, ARGV[at + j])) == 'string' and 1 or 0
    stands = stands or answer[j + 2] == 1
  end
  at = at + members + 1
  if stands then
    heard_of(queue, ARGV[2], now, ARGV[3])
  end
  local holder = redis.pcall('GET', lock)
  local free = not holder and free_for(queue) or 0
  if not holder and free == 0 then
    -- One of the members asked about may get the lock.
    holder = hand_over(lock, queue, ARGV[1])
  end
  if type(holder) == 'table' then
    -- The calls ask for the lock themselves, and get the error.
    for j = 1, members do
      answer[j + 2] = 0
    end
  end
  answer[1] = type(holder) == 'string' and holder or ''
  -- The time in ms until the next look: 0 if the run has reached its limit, or the rest of the time
  -- for which the lock is left free, or the rest of the lease.
  answer[2] = is_spent() and 0 or free > 0 and free or redis.call('PTTL', lock)
  answers[#answers + 1] = answer
end
return answers
