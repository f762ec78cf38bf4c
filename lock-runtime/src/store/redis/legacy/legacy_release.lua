-- Releases a lock that the caller holds and that has not ended, or keeps it for the rest of its
-- minimum hold.
-- KEYS: the lock, the key that names its holder. ARGV: the holder's value, the time to keep the
-- lock in ms, or 0 to release it.
-- Returns 1 (done), 0 (the key is gone) or -1 (the caller does not hold it).
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
  -- The same release was delivered twice.
  return 1
end
return found
