-- Gives an exclusive lock back, or keeps it for the rest of its minimum hold.
-- KEYS: the lock.  ARGV: the holder's value, time to keep the key in ms, 0 to delete it.
-- Returns 1 (done), 0 (the key is gone) or -1 (it holds something else).
local holder = redis.call('GET', KEYS[1])
-- A kept key gets its token backwards: a renewal that is still on its way then finds it is not its own, and
-- cannot end the minimum hold early or late.
local kept = string.reverse(string.sub(ARGV[1], 1, 32)) .. string.sub(ARGV[1], 33)
if holder == ARGV[1] then
  if ARGV[2] == '0' then
    redis.call('DEL', KEYS[1])
  elseif redis.pcall('SET', KEYS[1], kept, 'PX', ARGV[2]).err then
    -- An old server that is out of memory still changes an expiry.
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 1
end
if holder == kept and ARGV[2] ~= '0' then
  return 1
end
return holder and -1 or 0
