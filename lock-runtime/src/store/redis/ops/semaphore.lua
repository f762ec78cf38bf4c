forms.s = '^s%d+$'

-- A holder of class s<N> can share the lock with fewer than N others, and only up to the smallest N
-- among all holders.
local function permits_of(class)
  return math.max(tonumber(string.sub(class, 2)) or 1, 1)
end

admits.s = function(counts, class)
  local permits, taken = permits_of(class), 0
  for other, count in pairs(counts) do
    if string.sub(other, 1, 1) ~= 's' then
      return false
    end
    permits = math.min(permits, permits_of(other))
    taken = taken + count
  end
  return taken < permits
end
