-- The other cases of a release: the lock has or had waiters, or its key is to be kept.

-- Returns true if a lock that has waiters is to be left free for a while, so that clients that only
-- poll for it get a turn. Records until when.
local function leave_free(queue, how)
  local pause, every, have_waited = string.match(how, '^(%d+):(%d+):([01])$')
  if not pause or have_waited == '0' and not first_in(queue) then
    return false
  end
  -- pcall: a user without permission for TIME can still release the lock.
  local time = redis.pcall('TIME')
  if time.err then
    return false
  end
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local ends = free_until(queue, now)
  if ends and now < ends + every then
    return false
  end
  -- If no earlier time is recorded, the interval counts from now.
  local is_due = ends ~= nil or have_waited == '1'
  local added = redis.pcall('ZADD', queue, (is_due and now + pause or now) / FREE_UNIT, FREE)
  if type(added) == 'table' then
    return false
  end
  redis.call('PEXPIRE', queue, KEPT_FOR)
  return is_due
end

local function release(lock, queue, value, keep, member, how)
  leave(queue, member)
  -- pcall: a key of another type must not stop the release of the other locks.
  local holder = redis.pcall('GET', lock)
  if type(holder) == 'table' then
    return holder
  end
  -- A key that is kept gets its token backwards. A renewal in flight then does not find its value,
  -- and cannot end the minimum hold early or late.
  local kept = string.reverse(string.sub(value, 1, 32)) .. string.sub(value, 33)
  -- An empty value holds nothing: only a place in the queue is given up.
  if value ~= '' and holder == value then
    if keep == '0' then
      if leave_free(queue, how) then
        redis.call('DEL', lock)
        return 2
      end
      hand_over(lock, queue, ARGV[1])
    elseif redis.pcall('SET', lock, kept, 'PX', keep).err then
      -- A server before 7.0 that is out of memory still changes an expiry.
      redis.call('PEXPIRE', lock, keep)
    end
    return 1
  end
  if holder == kept and keep ~= '0' then
    return 1
  end
  return holder and -1 or 0
end

for i = 1, #KEYS / 2 do
  if not answers[i] then
    answers[i] = release(KEYS[2 * i - 1], KEYS[2 * i], terms_of(i))
  end
end
return #ARGV == 2 and answers[1] or answers
