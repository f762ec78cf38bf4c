-- Takes a lock in a shared mode, or joins its queue.
-- KEYS: the lock, its queue, and the fencing counter if a token is taken.
-- ARGV: the holder's value, the lease in ms, the channels' prefix, the process, whether messages reach
-- it as in `heard_of`, the member.
-- Returns the token, or 1 without one, if granted, {0, a holder's value, the rest of the lease that
-- ends first in ms} if queued.
local held = look(KEYS[1], now_ms())
if not held then
  return NO_LOCK
end
serve(held, KEYS[2], ARGV[3])
local granted = enter(held, KEYS[2], KEYS[3], ARGV[1], ARGV[2], string.match(ARGV[6], '^%d+:1:') ~= nil)
local answer = granted or {0, first_to_end(held)}
settle(held)
if not granted then
  stand(KEYS[2], ARGV[6], ARGV[4], ARGV[5])
end
return answer
