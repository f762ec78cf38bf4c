-- A class o<owner> holds the lock beside its like.
admits.o = admits.r

-- Where an owner has the lock, its next holder waits for nobody: else a workflow would wait for itself.
passes.o = function(counts, class)
  return counts[class] ~= nil and admits.o(counts, class)
end

shares_token.o = true
