-- Gives an exclusive lock back, or keeps it for the rest of its minimum hold.
-- KEYS: the lock.  ARGV: the holder's value, time to keep the key in ms, 0 to delete it.
-- Returns 1 (done), 0 (the key is gone) or -1 (it holds something else).
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  if ARGV[2] == '0' then
    redis.call('DEL', KEYS[1])
  else
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 1
end
return holder and -1 or 0
