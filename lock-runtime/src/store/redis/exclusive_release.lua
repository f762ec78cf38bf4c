-- Gives exclusive locks back: to the first in their queues, or to nobody. Or keeps them for the rest of their minimum hold.
-- KEYS: the fencing counter, then for each lock the lock and its queue.
-- ARGV: the channels' prefix, then for each lock the holder's value, time to keep the key in ms, 0 not to, and the member to take out of the
-- queue or ''.
-- Returns for each lock 1 (done), 0 (the key is gone), -1 (it holds something else) or an error.

-- First the common case, before any function is made: nobody waits.
local answers = {}
local others = false
for i = 1, (#KEYS - 1) / 2 do
  local lock, value = KEYS[2 * i], ARGV[3 * i - 1]
  if ARGV[3 * i] == '0' and ARGV[3 * i + 1] == '' then
    -- pcall: a key of another type must not keep the others from being released.
    local holder = redis.pcall('GET', lock)
    if holder ~= value then
      answers[i] = type(holder) == 'table' and holder or holder and -1 or 0
    elseif redis.pcall('EXISTS', KEYS[2 * i + 1]) == 0 then
      redis.call('DEL', lock)
      answers[i] = 1
    end
  end
  others = others or not answers[i]
end
if not others then
  return answers
end
