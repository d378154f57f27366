-- Keeps all records in a file and brings them back: what the file is called is for this program to say, not for its clients.
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

-- As of one moment: while the transaction is open nobody else writes.
function keepnow()
  local is_done = kt.db:transaction(function() return kt.db:dump_snapshot(file) end)
  return done(kt.db, is_done)
end

function restore()
  return done(kt.db, kt.db:load_snapshot(file))
end
