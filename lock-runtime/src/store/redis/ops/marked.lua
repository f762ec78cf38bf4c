-- Stands in front of a script that takes a lock, for a server that keeps a mark: without the
-- expected one, it has forgotten locks since, and the script changes nothing.
-- KEYS: those of the script, and the mark. ARGV: those of the script, and the expected mark.
-- pcall: a key of another type is no mark.
if redis.pcall('GET', table.remove(KEYS)) ~= table.remove(ARGV) then
  return redis.error_reply('UNMARKED the server does not have the mark of this connection')
end
