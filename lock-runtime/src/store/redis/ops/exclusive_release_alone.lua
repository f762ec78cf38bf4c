-- Releases an exclusive lock whose queue is on another node of the cluster at the moment.
-- KEYS: the lock. ARGV: the holder's value; the time to keep the key in ms, or 0 to release it.
-- Returns 1 (released or kept), 0 (the key is gone) or -1 (it holds another value).
local holder = redis.call('GET', KEYS[1])
-- See `exclusive_release_waiting.lua`.
local kept = string.reverse(string.sub(ARGV[1], 1, 32)) .. string.sub(ARGV[1], 33)
if holder == ARGV[1] then
  if ARGV[2] == '0' then
    redis.call('DEL', KEYS[1])
  elseif redis.pcall('SET', KEYS[1], kept, 'PX', ARGV[2]).err then
    -- A server before 7.0 that is out of memory still changes an expiry.
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 1
end
if holder == kept and ARGV[2] ~= '0' then
  return 1
end
return holder and -1 or 0
