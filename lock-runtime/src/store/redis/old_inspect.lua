-- Tells who holds locks, of each lock what is true at one moment.
-- KEYS: the fencing counter, then for each lock the lock and what tells its holder.
-- Returns the last fencing token or '', then for each lock 0 (the key holds no lock), or {'', 0, the holder's value or else when it ends, the
-- rest of its lease in ms}, without a holder when it is free.
local now = now_ms()
-- pcall: of a counter that cannot be read, or a key of another type, the others know nothing.
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
