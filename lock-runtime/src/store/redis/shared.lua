-- A lock that several may hold is one sorted set.
-- A holder's member is its value, <class>:<token>:…, and its score the end of its lease, in ms of the server's clock.
-- A class's tally is the member #<class>, and its score the number of its holders: 1, 2, …
-- The member fence:<token>, scored 0, is the fencing token that all holders of an owner's lock share until the key is free.
-- Without a holder there is no key, and it expires with the last lease.

-- What each mode adds, by the first letter of its classes. May one of this class hold the lock beside those who do?
local admits = {}
-- Does one of this class pass those in the queue?
local passes = {}
-- Do all holders of this class have one fencing token?
local shares_token = {}

local function class_of(value)
  return string.match(value, '^([^:]*):') or ''
end

local function is_admitted(held, class)
  local admit = admits[string.sub(class, 1, 1)]
  return admit and admit(held.counts, class)
end

local function may_pass(held, class)
  local pass = passes[string.sub(class, 1, 1)]
  return pass and pass(held.counts, class)
end

-- Notes how many holders of a class there are after one or several have gone.
local function count_down(held, class)
  local count = held.counts[class]
  if count and count > 0 then
    redis.call('ZADD', held.lock, count, '#' .. class)
    return
  end
  held.counts[class] = nil
  if next(held.counts) then
    redis.call('ZREM', held.lock, '#' .. class)
  else
    redis.call('DEL', held.lock)
    held.token = nil
  end
end

-- Takes out those whose lease is over, and returns how the lock is held: how many holders there are of each class, and their token.
local function look(lock, now)
  local held = {lock = lock, now = now, counts = {}}
  local late = {}
  local found = redis.call('ZRANGEBYSCORE', lock, '-inf', now, 'WITHSCORES')
  for i = 1, #found, 2 do
    local member, score = found[i], tonumber(found[i + 1])
    if string.sub(member, 1, 1) == '#' then
      held.counts[string.sub(member, 2)] = score
    elseif score == 0 then
      held.token = string.match(member, '^fence:(.*)$')
    else
      late[#late + 1] = member
    end
  end
  local changed = {}
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

-- A fencing token for a holder of this class.
local function token_for(held, class, counter)
  local shares = shares_token[string.sub(class, 1, 1)]
  return shares and held.token or next_fence(counter)
end

-- Enters a holder, and with it the token that others of its class are to share.
local function put(held, value, ends, token)
  local class = class_of(value)
  local count = (held.counts[class] or 0) + 1
  if token ~= '' and shares_token[string.sub(class, 1, 1)] then
    redis.call('ZADD', held.lock, ends, value, count, '#' .. class, 0, 'fence:' .. token)
    held.token = token
  else
    redis.call('ZADD', held.lock, ends, value, count, '#' .. class)
  end
  held.counts[class] = count
end

local function take_out(held, value)
  local class = class_of(value)
  redis.call('ZREM', held.lock, value)
  held.counts[class] = (held.counts[class] or 0) - 1
  count_down(held, class)
end

-- Has the key expire with the last lease.
local function expire_with_last(held)
  local last = redis.call('ZRANGE', held.lock, -1, -1, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIRE', held.lock, math.max(last - held.now, 1))
  end
end

-- Hands the lock to those in front of the queue, as many as may hold it together, and then to those further back whom the ones in front
-- do not keep waiting.
local function serve(held, queue, counter, channels)
  local first = first_in(queue)
  if not first then
    return
  end
  local newest = newest_sign(queue)
  local some_pass, any = false, false
  local mode = {
    admits = function(value)
      return is_admitted(held, class_of(value))
    end,
    put = function(value, claim, fencing)
      local fence = ''
      if fencing then
        -- A counter that fails is for the waiter to find out, who asks for a token when it is handed none.
        local taken, token = pcall(token_for, held, class_of(value), counter)
        fence = taken and token or ''
      end
      put(held, value, held.now + claim, fence)
      some_pass = some_pass or may_pass(held, class_of(value))
      any = true
      return fence
    end,
    take_back = function(value)
      take_out(held, value)
    end,
  }
  while first do
    if hand_to(first, queue, channels, newest, mode) == false then
      break
    end
    first = first_in(queue)
  end
  if first and some_pass then
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue, 1, '+inf')) do
      if may_pass(held, string.match(member, '^%d+:%d:%x+:([^:]*):') or '') then
        hand_to(member, queue, channels, newest, mode)
      end
    end
    first = first_in(queue)
  end
  if not first then
    redis.call('DEL', queue)
  end
  if any then
    expire_with_last(held)
  end
end

-- Tries to take the lock for a value. Returns the fencing token or '' when it is taken, and nothing when it is not.
local function enter(held, queue, counter, value, lease, fencing)
  local lock, class = held.lock, class_of(value)
  -- Its own value is there when the request was delivered twice.
  local again = redis.call('ZSCORE', lock, value)
  if not again and not may_pass(held, class) and (first_in(queue) or not is_admitted(held, class)) then
    return nil
  end
  -- Who may not take itself out again is to learn it before it is in. The fence comes first as well: if it fails, no lock is left behind.
  redis.call('ZREM', lock, '')
  local last = redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2] or 0
  local fence = fencing and token_for(held, class, counter) or ''
  local ends = held.now + lease
  if again then
    if fence ~= '' and fence ~= held.token and shares_token[string.sub(class, 1, 1)] then
      redis.call('ZADD', lock, 0, 'fence:' .. fence)
    end
    redis.call('ZADD', lock, ends, value)
    expire_with_last(held)
  else
    put(held, value, ends, fence)
    redis.call('PEXPIRE', lock, math.max(last, ends) - held.now)
  end
  return fence
end

-- The holder whose lease ends first, and how many ms that is away.
local function first_to_end(held)
  local found = redis.call('ZRANGEBYSCORE', held.lock, '(' .. held.now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return found[1] or '', found[2] and found[2] - held.now or -1
end

-- What a released holder that is kept for its minimum hold is called: a renewal that is still on its way does not find it.
local function kept_name(value)
  local class, token, rest = string.match(value, '^([^:]*:)(%x+)(.*)$')
  return class and class .. string.reverse(token) .. rest or value
end
