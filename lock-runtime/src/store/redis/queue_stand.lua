-- Puts a waiter behind the others in a queue, unless it is there already, and notes that its process is alive.
local function stand(queue, member, process)
  if not redis.call('ZSCORE', queue, member) then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    redis.call('ZADD', queue, math.max(last or 0, 0) + 1, member)
  end
  redis.call('ZADD', queue, -now_ms(), process)
  redis.call('PEXPIRE', queue, KEPT_FOR)
end
