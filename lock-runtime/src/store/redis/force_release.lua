-- Takes a lock away from whoever holds it, and hands it to the first in its queue.
-- KEYS: the lock, its queue, the fencing counter.  ARGV: the channels' prefix.
-- Returns 1 (done) or 0 (nobody held it), or an error when the key holds no lock.
local lock = KEYS[1]
local holder = redis.pcall('GET', lock)
if not holder then
  return 0
end
if type(holder) == 'string' then
  if not hand_over(lock, KEYS[2], KEYS[3], ARGV[1]) then
    redis.call('DEL', lock)
  end
  return 1
end
-- In a shared mode each class of holders is counted: one who asks for another's sorted set finds no such count.
local members = redis.pcall('ZRANGE', lock, 0, -1)
for i = 1, #members do
  if string.match(members[i], '^#[rwso]') then
    redis.call('DEL', lock)
    -- Those in the queue of the shared modes come in when their processes next look, within 250 ms.
    return 1
  end
end
return holder
