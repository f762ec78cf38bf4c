-- Takes a lock in a shared mode, or joins its queue.
-- KEYS: the lock, its queue, the fencing counter.
-- ARGV: the holder's value, the lease in ms, the channels' prefix, the process, 1 if messages reach
-- it or 0, the member.
-- Returns {1, token or ''} if granted, {0, a holder's value, the rest of the lease that ends first
-- in ms} if queued.
local held = look(KEYS[1], now_ms())
serve(held, KEYS[2], ARGV[3])
local fence = enter(held, KEYS[2], KEYS[3], ARGV[1], ARGV[2], string.match(ARGV[6], '^%d+:1:') ~= nil)
if fence then
  return {1, fence}
end
stand(KEYS[2], ARGV[6], ARGV[4], ARGV[5])
return {0, first_to_end(held)}
