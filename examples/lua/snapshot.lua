-- Writes all records to a file and reads them again. The name of the file is fixed, so that clients
-- cannot choose it.
local kt = __kyototycoon__
local file = "records.kcss"

local function done(db, is_done)
  if is_done then
    return kt.RVSUCCESS
  end
  kt.log("error", file .. ": " .. tostring(db:error()))
  return kt.RVEINTERNAL
end

function keep()
  return done(kt.db, kt.db:dump_snapshot(file))
end

-- The snapshot shows one moment, because no other client writes during the transaction.
function keepnow()
  local is_done = kt.db:transaction(function() return kt.db:dump_snapshot(file) end)
  return done(kt.db, is_done)
end

function restore()
  return done(kt.db, kt.db:load_snapshot(file))
end
