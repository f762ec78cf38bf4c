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

-- The newest sign of life of anybody in the queue, and not the present time, is what the others are late against: while the
-- server itself stood still, nobody was heard of.
local function newest_sign(queue)
  return redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2]
end

-- Hands the lock to one in the queue, as `mode` says, for a short time in which it is to renew the lease. Returns its value; nil when its
-- process is dead, and it is then out of the queue; false when it has to wait for those who hold the lock.
local function hand_to(member, queue, channels, newest, mode)
  local claim, fencing, process, value = string.match(member, '^(%d+):(%d):(%x+):(.*)$')
  -- A member of another shape is another version's, and nobody's here.
  local heard = process and redis.call('ZSCORE', queue, process)
  local alive = heard and heard - newest <= HEARD_WITHIN
  if alive and not mode.admits(value) then
    return false
  end
  redis.call('ZREM', queue, member)
  if alive then
    local fence = mode.put(value, claim, fencing == '1')
    -- The number of those who heard it: nobody does when the process is gone. It must not be heard from a replica, where those may listen
    -- who are passed over here.
    redis.set_repl(redis.REPL_NONE)
    local told = redis.pcall('PUBLISH', channels .. process, fence .. ':' .. value)
    redis.set_repl(redis.REPL_ALL)
    if type(told) == 'number' and told > 0 then
      return value
    end
    mode.take_back(value)
  end
  if process then
    redis.call('ZREM', queue, process)
  end
  return nil
end

-- Hands an exclusive lock to the first in the queue whose process is alive. Returns its value, or nothing when there is nobody; the lock is
-- then free.
local function hand_over(lock, queue, counter, channels)
  local first = first_in(queue)
  if not first then
    return nil
  end
  local newest = newest_sign(queue)
  local mode = {
    admits = function()
      return true
    end,
    put = function(value, claim, fencing)
      local fence = ''
      if fencing then
        -- A counter that fails is for the waiter to find out, who asks for a token when it is handed none.
        local taken, token = pcall(next_fence, counter)
        fence = taken and token or ''
      end
      redis.call('SET', lock, value, 'PX', claim)
      return fence
    end,
    take_back = function()
      redis.call('DEL', lock)
    end,
  }
  while first do
    local value = hand_to(first, queue, channels, newest, mode)
    first = first_in(queue)
    if value then
      if not first then
        redis.call('DEL', queue)
      end
      return value
    end
  end
  redis.call('DEL', lock, queue)
  return nil
end
