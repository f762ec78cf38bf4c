-- The queue of those who wait for a lock is a sorted set.
-- A waiter's member is <claim in ms>:<1 to take a fencing token, or 0>:<process>:<value>, and its score its number: 1, 2, …
-- The member of a process that waits is <process>, and its score the time it was last heard of, in ms of the server's clock, negative.
local HEARD_WITHIN = 1500
local KEPT_FOR = 5000

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function first_in(queue)
  -- pcall: who may not use the queue can use the lock all the same.
  local found = redis.pcall('ZRANGEBYSCORE', queue, 1, '+inf', 'LIMIT', 0, 1)
  return not found.err and found[1]
end

-- Hands the lock to the first in the queue whose process is alive, for a short time in which it is to renew the lease. Returns its value, or
-- nothing when there is nobody; the lock is then free.
local function hand_over(lock, queue, counter, channels)
  local first = first_in(queue)
  if not first then
    return nil
  end
  -- The newest sign of life of anybody in the queue, and not the present time, is what the others are late against: while the
  -- server itself stood still, nobody was heard of.
  local newest = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2]
  while first do
    redis.call('ZREM', queue, first)
    local claim, fencing, process, value = string.match(first, '^(%d+):(%d):(%x+):(.*)$')
    -- A member of another shape is another version's, and nobody's here.
    local heard = process and redis.call('ZSCORE', queue, process)
    if heard and heard - newest <= HEARD_WITHIN then
      local fence = ''
      if fencing == '1' then
        -- A counter that fails is for the waiter to find out, who asks for a token when it is handed none.
        local taken, token = pcall(next_fence, counter)
        fence = taken and token or ''
      end
      redis.call('SET', lock, value, 'PX', claim)
      -- The number of those who heard it: nobody does when the process is gone. It must not be heard from a replica, where those may listen
      -- who are passed over here.
      redis.set_repl(redis.REPL_NONE)
      local told = redis.pcall('PUBLISH', channels .. process, fence .. ':' .. value)
      redis.set_repl(redis.REPL_ALL)
      if type(told) == 'number' and told > 0 then
        if not first_in(queue) then
          redis.call('DEL', queue)
        end
        return value
      end
    end
    if process then
      redis.call('ZREM', queue, process)
    end
    first = first_in(queue)
  end
  redis.call('DEL', lock, queue)
  return nil
end
