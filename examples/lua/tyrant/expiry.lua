-- Removes expired rows of a table. The column "x" of a row is the Unix time of its expiry.
-- Start the server with: ttserver -ext expiry.lua -extpc expire 1 sessions.tct#idx=x:dec
--
-- The periodic function removes the expired rows. Rows without the column stay.

function expire()
   _misc("search", "addcond\0x\0NUMGT\0" .. "0", "addcond\0x\0NUMLE\0" .. math.floor(_time()), "out")
end

-- Stores a row with a time to live: tcrmgr ext HOST put_for KEY 'SECONDS name value ...'
function put_for(key, value)
   local words = _split(value, " ")
   local seconds = tonumber(table.remove(words, 1))
   if not seconds then return nil end
   words[#words + 1] = "x"
   words[#words + 1] = math.floor(_time() + seconds)
   return _misc("put", key, words) and "ok" or nil
end
