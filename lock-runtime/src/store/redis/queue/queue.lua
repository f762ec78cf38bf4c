-- The queue of a lock is a sorted set:
-- - A waiter's member is <claim in ms>:<1 to take a fencing token, or 0>:<process>:<value>, and its
-- score its number: 1, 2, … The waiter itself takes the token, when it takes the lock that was
-- handed to it.
-- - A process with waiters is the member <process>, and its score is minus the time of its last
-- sign of life, in ms of the server's clock. Half a millisecond is added if messages do not reach
-- the process, which then looks by itself, and often. In a cluster they do, but it may not listen yet
-- at the node to which the slot has moved: a quarter is added if it listens to its one channel, which
-- each node hears, and an eighth if it does to the sharded channel <queue>:<process>.
-- While a slot moves, the node that it leaves refuses a script, in the middle, for a key that the
-- script has deleted or emptied. So a lock is deleted once, and last, and of a queue that has no
-- member left nothing more is expected than an error.
-- - The score of the member FREE is the time until which the lock is, or last was, left free for
-- clients that are not in the queue, in ms of the server's clock / FREE_UNIT. It is therefore below
-- the waiters' numbers.
local FREE = 'free'
local FREE_UNIT = 1e13
-- The maximum time in ms for which a lock is left free, whatever the score of that member is.
local LONGEST_FREE = 1000
local HEARD_WITHIN = 1500
-- The age in ms up to which the sign of life of a process of a cluster counts though nobody listens.
-- A shorter time than any claim, and a longer one than that between two looks of a process.
local SURELY_ALIVE = 500
local KEPT_FOR = 5000
-- The maximum claim in ms for a lock that is handed over, whatever a member says: a user that can
-- write the queue may not be allowed to write the lock.
local LONGEST_CLAIM = 1500
-- The number of waiters below which each departure looks at all of them.
local FEW = 8
-- The maximum number of waiters that one run of a script takes out of queues, so that a crowd does
-- not hold up the server's other clients. A later run looks at the rest: see `is_spent`.
local TURNS = 60
-- The maximum number of signs of life that are taken out of a queue without waiters. Others grow old.
local MOST_SIGNS = 1000
-- No waiter has a longer value: an owner's name, which takes three times its length when encoded,
-- is far shorter.
local LONGEST_VALUE = 8192

local turns_left = TURNS

-- Returns true if this run has reached its limit, and another one is to go on.
local function is_spent()
  return turns_left <= 0
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local DEAF, IN_CLUSTER, IN_SHARD = 0.5, 0.25, 0.125
local MARKS = {['0'] = DEAF, ['2'] = IN_CLUSTER, ['3'] = IN_SHARD}

-- Records a sign of life of a process with waiters. `wakes` is '0' if messages do not reach it, or '1'
-- if they do; in a cluster '2' if they do on its one channel, and '3' on the queue's.
local function heard_of(queue, process, now, wakes)
  redis.call('ZADD', queue, (MARKS[wakes] or 0) - now, process)
  redis.call('PEXPIRE', queue, KEPT_FOR)
end

-- Returns the score of the newest sign of life in the queue, which the other processes are compared
-- with. The present time would be wrong: while the server itself stood still, it heard no process.
-- A sign from the future is from before the server's clock was set back. Such signs get the present
-- time, so that a dead process ages from now on, and a living one loses nothing.
local function newest_sign(queue)
  local newest = tonumber(redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2])
  local present = -now_ms()
  if newest >= present then
    return newest
  end
  local ahead = redis.call('ZRANGEBYSCORE', queue, '-inf', string.format('(%.0f', present), 'WITHSCORES', 'LIMIT', 0, 1000)
  for i = 1, #ahead, 2 do
    local mark = ahead[i + 1] % 1
    -- The rest of an endless score is no number, not even equal to itself. No process has such a score.
    redis.call('ZADD', queue, present + (mark == mark and mark or 0), ahead[i])
  end
  return present
end

-- Returns the time in ms until which the lock is, or last was, left free for clients that are not
-- in the queue, or nil if that is not known.
local function free_until(queue, now)
  -- pcall: a user without permission for the queue can still use the lock.
  local ends = redis.pcall('ZSCORE', queue, FREE)
  ends = type(ends) == 'string' and math.floor(ends * FREE_UNIT + 0.5)
  -- A time so far ahead is from before the server's clock was set back.
  return ends and ends <= now + LONGEST_FREE and ends or nil
end

-- Returns the time in ms for which the lock is still left free.
local function free_for(queue)
  local now = now_ms()
  return math.max((free_until(queue, now) or 0) - now, 0)
end

-- Removes the signs of life of those of `processes` that have no waiter left. With the last waiter,
-- removes the queue except for the member FREE. Returns the first waiter left.
-- In a long queue the signs stay and grow old: a search for other waiters of their processes would
-- cost more.
local function first_left(queue, processes)
  -- pcall: the last member may have been removed.
  local left = redis.pcall('ZRANGEBYSCORE', queue, 1, '+inf', 'LIMIT', 0, FEW)
  if left.err then
    return nil
  end
  if not left[1] then
    if redis.call('ZSCORE', queue, FREE) then
      for _, process in ipairs(redis.call('ZRANGEBYSCORE', queue, '-inf', 0, 'LIMIT', 0, MOST_SIGNS)) do
        redis.call('ZREM', queue, process)
      end
      redis.call('PEXPIRE', queue, KEPT_FOR)
    else
      redis.call('DEL', queue)
    end
  elseif #left < FEW then
    for _, member in ipairs(left) do
      processes[string.match(member, '^%d+:%d:(%x+):') or ''] = nil
    end
    for process in pairs(processes) do
      redis.call('ZREM', queue, process)
    end
  end
  return left[1]
end

-- Removes a waiter that has left.
local function leave(queue, member)
  -- pcall: a user without permission for the queue can still use the lock.
  if member ~= '' and redis.pcall('ZREM', queue, member) == 1 then
    first_left(queue, {[string.match(member, '^%d+:%d:(%x+):') or ''] = true})
  end
end

-- Returns the claim, the process and the value of a waiter's member, or nil for a member that no
-- waiter writes.
local function parts_of(member)
  local claim, process, value = string.match(member, '^([1-9]%d*):[01]:(%x+):(.+)$')
  if not claim or #claim > 15 or #process > 32 or #value > LONGEST_VALUE then
    return nil
  end
  return math.min(tonumber(claim), LONGEST_CLAIM), process, value
end

-- Hands the lock to the waiter `member` by the functions of `mode`, for the short time in which the
-- waiter is to take it for its whole lease. Returns:
-- - the waiter's value, if the lock was handed over;
-- - nil if the waiter's process is dead; the waiter is then no longer in the queue;
-- - false if the waiter has to wait for the present holders.
-- Adds the process to `served` if the waiter is no longer in the queue.
local function hand_to(member, queue, channels, newest, mode, served)
  local claim, process, value = parts_of(member)
  -- A member of another shape or mode is not a waiter's, and is removed like a dead one.
  local heard = process and mode.is_possible(value) and redis.call('ZSCORE', queue, process)
  local alive = heard and heard - newest <= HEARD_WITHIN
  if alive and not mode.admits(value) then
    return false
  end
  turns_left = turns_left - 1
  redis.call('ZREM', queue, member)
  served[process or ''] = true
  if alive then
    mode.put(value, claim)
    -- Both return the number of receivers at this node, which is 0 if the process is gone, or an
    -- error if this user may not send it. The message is not replicated: a replica may have receivers
    -- that count as dead here. It is only a hint to look, since other users may be able to send it too.
    local mark = heard % 1
    redis.set_repl(redis.REPL_NONE)
    local told
    if mark == IN_SHARD then
      told = redis.pcall('SPUBLISH', queue .. ':' .. process, ':' .. value)
    else
      told = redis.pcall('PUBLISH', channels .. process, ':' .. value)
    end
    redis.set_repl(redis.REPL_ALL)
    local is_of_cluster = mark == IN_CLUSTER or mark == IN_SHARD
    local may_listen_soon = is_of_cluster and heard + now_ms() <= SURELY_ALIVE
    if mark == DEAF or may_listen_soon or told ~= 0 then
      return value
    end
    mode.take_back(value)
  end
  if heard then
    redis.call('ZREM', queue, process)
  end
  return nil
end

-- Hands an exclusive lock to the first waiter in the queue whose process is alive. Returns its
-- value. Returns nil, and deletes the lock, if there is no such waiter, or if the run has reached its
-- limit before it found one.
local function hand_over(lock, queue, channels)
  local first = first_in(queue)
  local newest = first and newest_sign(queue)
  local mode = {
    is_possible = function()
      return true
    end,
    admits = function()
      return true
    end,
    put = function(value, claim)
      redis.call('SET', lock, value, 'PX', claim)
    end,
    -- The next one gets it, or it is deleted below.
    take_back = function()
    end,
  }
  local served = {}
  while first and not is_spent() do
    local value = hand_to(first, queue, channels, newest, mode, served)
    first = first_left(queue, served)
    if value then
      return value
    end
  end
  redis.call('DEL', lock)
  return nil
end
