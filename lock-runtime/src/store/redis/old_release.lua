-- Gives a lock back that is one's own and has not ended, or keeps it for the rest of its minimum hold.
-- KEYS: the lock, what tells its holder.  ARGV: the holder's value, time to keep the lock in ms, 0 not to.
-- Returns 1 (done), 0 (the key is gone) or -1 (it holds something else).
local lock, side, value, keep = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local now = now_ms()
local ends = redis.call('GET', lock)
-- As in exclusive_release_waiting.lua: a late renewal must not find a lock that is kept.
local kept = string.reverse(string.sub(value, 1, 32)) .. string.sub(value, 33)
local found = verdict(ends, side, value, now)
if found == 1 then
  if keep == '0' then
    redis.call('DEL', lock, side)
  else
    put(lock, side, kept, now + keep)
  end
elseif keep ~= '0' and verdict(ends, side, kept, now) == 1 then
  -- The same release once more.
  return 1
end
return found
