-- Returns a snapshot of each lock.
-- KEYS: the fencing counter, then for each lock the lock and the key that names its holder.
-- Returns the last fencing token or '', then for each lock 0 (the key does not hold a lock), or
-- {'', 0} if it is free, or {'', 0, the holder's value or else the time of the lock's end, the rest
-- of its lease in ms}.
local now = now_ms()
-- pcall: a counter that cannot be read, or a key of another type, must not hide the other locks.
local last = redis.pcall('GET', KEYS[1])
local answers = {type(last) == 'string' and last or ''}
for i = 2, #KEYS, 2 do
  local answer = {'', 0}
  local ends = redis.pcall('GET', KEYS[i])
  if ends and (type(ends) ~= 'string' or not is_time(ends)) then
    answer = 0
  elseif ends and tonumber(ends) >= now then
    answer[3] = holder_of(ends, KEYS[i + 1]) or ends
    answer[4] = ends - now
  end
  answers[#answers + 1] = answer
end
return answers
