-- A lock in a shared mode (any but exclusive) is one sorted set:
-- - A holder's member is its value, <class>:<token>:…, and its score the end of its lease, in ms of
-- the server's clock.
-- - A class's tally is the member #<class>, and its score the number of its holders: 1, 2, …
-- - The member fence:<token>, scored 0, is the fencing token that all holders of an owner's lock
-- share until the key is free.
-- Without a holder there is no key. The key expires with the last lease.
-- While there is a key, one tally at least is in it. A sorted set without any is another program's.

local function class_of(value)
  return string.match(value, '^([^:]*):') or ''
end

-- Returns true if a holder of this class can share the lock with the present holders: with those of its
-- class, and semaphores with other sizes up to the smallest one.
local function is_admitted(held, class)
  local most, taken = most_of(class), 0
  if not most then
    return false
  end
  local is_semaphore = string.sub(class, 1, 1) == 's'
  for other, count in pairs(held.counts) do
    if other ~= class and not (is_semaphore and string.sub(other, 1, 1) == 's') then
      return false
    end
    most = math.min(most, most_of(other) or 1)
    taken = taken + count
  end
  return taken < most
end

-- Returns true if a holder of this class may pass the waiters in the queue: one of the owner that has the
-- lock. Otherwise a workflow could wait for itself.
local function may_pass(held, class)
  return shares_token(class) and held.counts[class] ~= nil and is_admitted(held, class)
end

-- Records the tally of a class after holders of it have left. The last tally stays until the next
-- holder is there, or until `settle`: while a slot of a cluster moves, a script may not touch a key
-- again that it has deleted.
local function count_down(held, class)
  local count = held.counts[class]
  if count and count > 0 then
    redis.call('ZADD', held.lock, count, '#' .. class)
    return
  end
  held.counts[class] = nil
  if next(held.counts) or held.rest then
    redis.call('ZREM', held.lock, '#' .. class)
  else
    held.rest = {'#' .. class, held.token and 'fence:' .. held.token}
    held.token = nil
  end
end

-- Deletes the lock if nobody holds it. The last that a script does with a lock.
local function settle(held)
  if held.rest then
    redis.call('DEL', held.lock)
    held.rest = nil
  end
end

-- The maximum number of expired holders that one look removes. There are many if a crowd has died.
local MOST_LATE = 100
-- A score below this is a tally, and not a time in ms.
local FIRST_TIME = 1e10

-- The answer for a lock whose key is another program's.
local NO_LOCK = {err = 'WRONGTYPE the key is a sorted set of another program'}

-- Removes the holders whose lease is over. Returns the state of the lock: the number of holders of
-- each class, and their token. Returns nil, and changes nothing, if the key is another program's.
local function look(lock, now)
  local held = {lock = lock, now = now, counts = {}}
  local late = {}
  -- The tallies come first in the set, and all of them are needed. An expired holder that is not
  -- removed yet still counts.
  local found = redis.call('ZRANGEBYSCORE', lock, '-inf', now, 'WITHSCORES', 'LIMIT', 0, MOST_LATE)
  held.more = #found == 2 * MOST_LATE
  if held.more and tonumber(found[#found]) < FIRST_TIME then
    found = redis.call('ZRANGEBYSCORE', lock, '-inf', now, 'WITHSCORES')
  end
  local is_lock = false
  for i = 1, #found, 2 do
    local member, score = found[i], tonumber(found[i + 1])
    if string.sub(member, 1, 1) == '#' then
      local class = string.sub(member, 2)
      held.counts[class] = score
      is_lock = is_lock or most_of(class) ~= nil
    elseif score == 0 then
      held.token = string.match(member, '^fence:(.*)$')
    else
      late[#late + 1] = member
    end
  end
  if not is_lock and (found[1] or redis.call('ZRANGE', lock, 0, 0)[1]) then
    return nil
  end
  local changed = {}
  -- Counts towards the limit of one run, which may look at many locks.
  turns_left = turns_left - #late
  for _, value in ipairs(late) do
    local class = class_of(value)
    redis.call('ZREM', lock, value)
    held.counts[class] = (held.counts[class] or 0) - 1
    changed[class] = true
  end
  for class in pairs(changed) do
    count_down(held, class)
  end
  return held
end

-- Returns a fencing token for a holder of this class.
local function token_for(held, class, counter)
  return shares_token(class) and held.token or next_fence(counter)
end

-- The number of waiters at the front of the queue that `serve` searches for those that may pass the
-- others. Those further back are found when their process asks about them.
local MOST_PASSED = 500

-- Adds a holder, and with it the token that all holders of its class share.
local function put(held, value, ends, token)
  local class = class_of(value)
  local count = (held.counts[class] or 0) + 1
  if token and shares_token(class) then
    redis.call('ZADD', held.lock, ends, value, count, '#' .. class, 0, 'fence:' .. token)
    held.token = token
  else
    redis.call('ZADD', held.lock, ends, value, count, '#' .. class)
  end
  held.counts[class] = count
  -- What the last holder has left, unless it was written anew.
  for _, member in ipairs(held.rest or {}) do
    if member ~= '#' .. class and member ~= 'fence:' .. (held.token or '') then
      redis.call('ZREM', held.lock, member)
    end
  end
  held.rest = nil
end

local function take_out(held, value)
  local class = class_of(value)
  redis.call('ZREM', held.lock, value)
  held.counts[class] = (held.counts[class] or 0) - 1
  count_down(held, class)
end

-- Makes the key expire with the last lease. Does not touch the key if it is gone: where a cluster
-- moves the slot to another node, the script would fail.
local function expire_with_last(held)
  if held.counts and not next(held.counts) then
    return
  end
  local last = redis.call('ZRANGE', held.lock, -1, -1, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIRE', held.lock, life_until(last, held.now))
  end
end

-- Hands the lock to as many waiters at the front of the queue as can share it, and then to waiters
-- further back that may pass those in front: some of the queue's, and those in `asked`. Sets
-- `held.more` if there may be more to do.
local function serve(held, queue, channels, asked)
  local first = first_in(queue)
  if not first or is_spent() then
    held.more = held.more or first
    return
  end
  local newest = newest_sign(queue)
  local some_pass, any, waits = false, false, false
  local served = {}
  local mode = {
    is_possible = function(value)
      -- A waiter of no class would never be admitted, and those behind it would wait for ever. A value that
      -- holds the lock already would be counted twice.
      return most_of(class_of(value)) and not redis.call('ZSCORE', held.lock, value)
    end,
    admits = function(value)
      return is_admitted(held, class_of(value))
    end,
    put = function(value, claim)
      put(held, value, held.now + claim)
      some_pass = some_pass or may_pass(held, class_of(value))
      any = true
    end,
    take_back = function(value)
      take_out(held, value)
    end,
  }
  while first and not waits and not is_spent() do
    waits = hand_to(first, queue, channels, newest, mode, served) == false
    first = first_in(queue)
  end
  held.more = held.more or first and not waits
  local function let_pass(members)
    for _, member in ipairs(members) do
      if is_spent() then
        held.more = true
        return
      end
      if may_pass(held, string.match(member, '^%d+:%d:%x+:([^:]*):') or '') and redis.call('ZSCORE', queue, member) then
        hand_to(member, queue, channels, newest, mode, served)
      end
    end
  end
  if first then
    let_pass(asked or {})
  end
  if first and some_pass then
    let_pass(redis.call('ZRANGEBYSCORE', queue, 1, '+inf', 'LIMIT', 0, MOST_PASSED))
  end
  if next(served) then
    first_left(queue, served)
  end
  if any then
    expire_with_last(held)
  end
end

-- Tries to take the lock for a value. Returns the fencing token, or 1 without one, if it was taken, and
-- nil if not.
local function enter(held, queue, counter, value, lease, fencing)
  local lock, class = held.lock, class_of(value)
  -- Its own value is there if the request was delivered twice.
  local again = redis.call('ZSCORE', lock, value)
  if not again and not may_pass(held, class) and (first_in(queue) or not is_admitted(held, class)) then
    return nil
  end
  -- Checks the permission to remove members before it adds one. Takes the token before that as
  -- well: if it fails, no lock is left behind.
  redis.call('ZREM', lock, '')
  local last = redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2] or 0
  local token = fencing and token_for(held, class, counter)
  local ends = held.now + lease
  if again then
    if token and token ~= held.token and shares_token(class) then
      redis.call('ZADD', lock, 0, 'fence:' .. token)
    end
    redis.call('ZADD', lock, ends, value)
    expire_with_last(held)
  else
    put(held, value, ends, token)
    redis.call('PEXPIRE', lock, life_until(math.max(last, ends), held.now))
  end
  return token or 1
end

-- Returns the holder whose lease ends first, and the time in ms until the next look is due: at the
-- end of that lease, or at once if there is more to do.
local function first_to_end(held)
  local found = redis.call('ZRANGEBYSCORE', held.lock, '(' .. held.now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return found[1] or '', held.more and 0 or found[2] and found[2] - held.now or -1
end

-- Returns the value under which a released holder is kept for its minimum hold: a renewal in flight
-- does not find it.
local function kept_name(value)
  local class, token, rest = string.match(value, '^([^:]*:)(%x+)(.*)$')
  return class and class .. string.reverse(token) .. rest or value
end
