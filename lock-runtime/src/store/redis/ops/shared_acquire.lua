-- Takes a lock in a shared mode, unless it has waiters.
-- KEYS: the lock, its queue, and the fencing counter if a token is taken.
-- ARGV: the holder's value, the lease in ms, 1 to take a fencing token, the channels' prefix.
-- Returns {1, token or ''} if granted, {0, a holder's value or '', the rest of the lease that ends
-- first in ms} if busy.
local held = look(KEYS[1], now_ms())
serve(held, KEYS[2], ARGV[4])
local fence = enter(held, KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3] == '1')
local answer = fence and {1, fence} or {0, first_to_end(held)}
settle(held)
return answer
