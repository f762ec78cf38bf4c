-- Takes a lock away from whoever holds it.
-- KEYS: the lock, what tells its holder.
-- Returns 1 (done) or 0 (nobody held it), or an error when the key holds no lock.
local ends = redis.call('GET', KEYS[1])
if not ends then
  return 0
end
if not is_time(ends) then
  return redis.error_reply('WRONGTYPE what is kept under the key is no time in milliseconds')
end
redis.call('DEL', KEYS[1], KEYS[2])
return tonumber(ends) >= now_ms() and 1 or 0
