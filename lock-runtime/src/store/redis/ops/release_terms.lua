
-- Returns the arguments of lock i: the holder's value, the time to keep it, the member to take out of its queue, and
-- whether it may be left free.
local function terms_of(i)
  local at = each * (i - 1) + 2
  if each == 1 then
    return ARGV[at], '0', '', ''
  end
  return ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
end
