-- The other cases of a release: somebody waits, or has waited, or the key is to be kept.
local function release(lock, queue, value, keep, member)
  -- pcall: who may not use the queue can use the lock all the same.
  if member ~= '' and redis.pcall('ZREM', queue, member) == 1 and not first_in(queue) then
    redis.call('DEL', queue)
  end
  -- pcall: a key of another type must not keep the others from being released.
  local holder = redis.pcall('GET', lock)
  if type(holder) == 'table' then
    return holder
  end
  -- A kept key gets its token backwards: a renewal that is still on its way then finds it is not its own, and
  -- cannot end the minimum hold early or late.
  local kept = string.reverse(string.sub(value, 1, 32)) .. string.sub(value, 33)
  if holder == value then
    if keep == '0' then
      if not hand_over(lock, queue, KEYS[1], ARGV[1]) then
        redis.call('DEL', lock)
      end
    elseif redis.pcall('SET', lock, kept, 'PX', keep).err then
      -- An old server that is out of memory still changes an expiry.
      redis.call('PEXPIRE', lock, keep)
    end
    return 1
  end
  if holder == kept and keep ~= '0' then
    return 1
  end
  return holder and -1 or 0
end

for i = 1, (#KEYS - 1) / 2 do
  answers[i] = answers[i] or release(KEYS[2 * i], KEYS[2 * i + 1], ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1])
end
return answers
