-- Takes a lock away from its holder.
-- KEYS: the lock, the key that names its holder.
-- Returns 1 (done), 0 (the lock had no holder), or an error if the key does not hold a lock.
local ends = redis.call('GET', KEYS[1])
if not ends then
  return 0
end
if not is_time(ends) then
  return redis.error_reply('WRONGTYPE what is kept under the key is no time in milliseconds')
end
redis.call('DEL', KEYS[1], KEYS[2])
return tonumber(ends) >= now_ms() and 1 or 0
