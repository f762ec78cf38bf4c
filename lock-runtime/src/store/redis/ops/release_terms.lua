
-- Returns how lock i is released: the time to keep it, the member to take out of its queue, and whether it may be
-- left free.
local function terms_of(i)
  if each == 1 then
    return '0', '', ''
  end
  local at = each * (i - 1) + 2
  return ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
end
