-- Readers hold the lock beside readers.
admits.r = function(counts, class)
  for other in pairs(counts) do
    if other ~= class then
      return false
    end
  end
  return true
end

-- A writer holds it alone.
admits.w = function(counts)
  return next(counts) == nil
end
