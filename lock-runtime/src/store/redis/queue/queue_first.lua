-- Returns the first waiter in a queue.
local function first_in(queue)
  -- pcall: a user without permission for the queue can still use the lock.
  local found = redis.pcall('ZRANGEBYSCORE', queue, 1, '+inf', 'LIMIT', 0, 1)
  return not found.err and found[1]
end
