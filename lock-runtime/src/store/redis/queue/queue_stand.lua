-- Puts a waiter at the end of a queue, unless it is there already, and records a sign of life of
-- its process.
local function stand(queue, member, process, listens)
  if not redis.call('ZSCORE', queue, member) then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    redis.call('ZADD', queue, math.max(math.floor(last or 0), 0) + 1, member)
  end
  heard_of(queue, process, now_ms(), listens)
end
