-- Takes an exclusive lock.
-- KEYS: the lock; with fencing also the counter.  ARGV: the holder's value, lease in ms.
-- Returns {1, fence or ''} when granted, {0, the holder's value, rest of its lease in ms} when busy.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {0, holder, redis.call('PTTL', KEYS[1])}
end
-- The fence comes first: if it fails, no lock is left behind.
local fence = ''
if KEYS[2] then
  fence = next_fence(KEYS[2])
end
if holder then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
end
return {1, fence}
