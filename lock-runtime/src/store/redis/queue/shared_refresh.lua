-- Records that a process with waiters is alive, hands locks to waiters that may hold them by now,
-- and returns the state of the locks.
-- KEYS: for each lock the lock and its queue.
-- ARGV: the channels' prefix, the process, whether messages reach it as in `heard_of`, then for each
-- lock the number of members that the process asks about, and these members.
-- Returns for each lock {a holder's value or '', the rest of the lease that ends first in ms, then
-- for each member 2 (it holds the lock), 1 (it is in the queue) or 0, also if the key is another
-- program's}.
local now = now_ms()
local answers = {}
local at = 4
for i = 1, #KEYS, 2 do
  local lock, queue = KEYS[i], KEYS[i + 1]
  local members = tonumber(ARGV[at])
  local stood = {}
  local standing = {}
  for j = 1, members do
    -- pcall: a key of another type must not stop the look at the other locks.
    stood[j] = type(redis.pcall('ZSCORE', queue, ARGV[at + j])) == 'string'
    if stood[j] then
      standing[#standing + 1] = ARGV[at + j]
    end
  end
  if #standing > 0 then
    heard_of(queue, ARGV[2], now, ARGV[3])
  end
  local answer = {'', -1}
  local is_other = type(redis.pcall('ZSCORE', lock, '')) == 'table'
  local held = not is_other and look(lock, now)
  if held then
    serve(held, queue, ARGV[1], standing)
    answer = {first_to_end(held)}
  end
  for j = 1, members do
    local member = ARGV[at + j]
    -- One of the members asked about may have got the lock.
    -- pcall: the queue is gone if all of them have.
    if stood[j] and held and type(redis.pcall('ZSCORE', queue, member)) == 'string' then
      answer[j + 2] = 1
    else
      local holds = held and redis.call('ZSCORE', lock, string.match(member, '^%d+:%d:%x+:(.*)$'))
      answer[j + 2] = holds and 2 or 0
    end
  end
  if held then
    settle(held)
  end
  at = at + members + 1
  answers[#answers + 1] = answer
end
return answers
