-- Takes an exclusive lock whose queue is on another node of the cluster at the moment.
-- KEYS: the lock. ARGV: the holder's value, the lease in ms.
-- Returns {1, ''} if granted, {0, the holder's value, the rest of its lease in ms} if busy.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {0, holder, redis.call('PTTL', KEYS[1])}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, ''}
