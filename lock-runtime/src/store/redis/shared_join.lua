-- Takes a lock that several may hold, or stands in its queue.
-- KEYS: the lock, its queue, the fencing counter.
-- ARGV: the holder's value, lease in ms, the channels' prefix, the process, the member.
-- Returns {1, fence or ''} when granted, {0, a holder's value, rest of the lease that ends first in ms} when queued.
local held = look(KEYS[1], now_ms())
serve(held, KEYS[2], KEYS[3], ARGV[3])
local fence = enter(held, KEYS[2], KEYS[3], ARGV[1], ARGV[2], string.match(ARGV[5], '^%d+:1:') ~= nil)
if fence then
  return {1, fence}
end
stand(KEYS[2], ARGV[5], ARGV[4])
return {0, first_to_end(held)}
