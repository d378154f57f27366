-- Atomic counters, as decimal text that every client can read. Call them with the option for record
-- locking (-xlr), so that calls with the same key run one after another:
--
--   tcrmgr ext -xlr HOST count visits 1      adds 1 and returns the new number
--   tcrmgr ext -xlr HOST count_to visits 10  adds 1 up to 10 and returns the new number

local function add(key, delta, max)
   local number = (tonumber(_get(key)) or 0) + delta
   if max and number > max then number = max end
   if not _put(key, number) then return nil end
   return number
end

function count(key, delta) return add(key, tonumber(delta) or 1) end

function count_to(key, max) return add(key, 1, tonumber(max)) end

-- Adds to a counter of 4 bytes. It needs no lock, because _addint is atomic.
function count_binary(key, delta) return _addint(key, tonumber(delta) or 1) end

-- Counts in the server's memory, for numbers that may be lost when the server stops.
function count_in_stash(key, delta)
   _lock(key)
   local number = (tonumber(_stashget(key)) or 0) + (tonumber(delta) or 1)
   _stashput(key, number)
   _unlock(key)
   return number
end
