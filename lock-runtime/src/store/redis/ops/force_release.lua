-- Takes a lock away from all its holders, and hands it to the first waiter in its queue.
-- KEYS: the lock, its queue, the fencing counter. ARGV: the channels' prefix.
-- Returns 1 (done), 0 (the lock had no holder), or an error if the key does not hold a lock.
local lock = KEYS[1]
local holder = redis.pcall('GET', lock)
if not holder then
  return 0
end
if type(holder) == 'string' then
  hand_over(lock, KEYS[2], ARGV[1])
  return 1
end
-- In a shared mode each class of holders has a tally. A sorted set of another program has none.
local members = redis.pcall('ZRANGE', lock, 0, -1)
for i = 1, #members do
  if string.match(members[i], '^#[rwso]') then
    redis.call('DEL', lock)
    -- Waiters in the queue of the shared modes enter when their processes next look, within 250 ms.
    return 1
  end
end
return holder
