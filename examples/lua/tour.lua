-- Shows the functions that the other examples do not use.
local kt = __kyototycoon__
local db = kt.db

function words(input, output)
  kt.log("info", "a tour for thread " .. kt.thid)
  output.number = kt.atoi(" 42 apples") + kt.atoix("1.5K") + kt.atof("0.25")
  output.bits = kt.bit("xor", kt.bit("left", 1, 4), kt.bit("and", 7, kt.bit("not", 2)))
  output.pack = table.concat(kt.unpack("Cnw*", kt.pack("Cnw*", { 200, 65535, 1, 300, 70000 })), " ")
  output.url = kt.codec("url", "a b&c") .. " " .. kt.codec("~url", "a%20b+c")
  output.base = kt.codec("base", "todana") .. " " .. kt.codec("~base", "dG9kYW5h")
  output.hex = kt.codec("hex", "\1\254") .. " " .. kt.codec("~hex", "4c7561")
  for _, mode in ipairs({ "zlib", "deflate", "gzip" }) do
    output[mode] = kt.codec("~" .. mode, kt.codec(mode, "round and round"))
  end
  output.place = kt.strstr("needle in hay", "hay")
  output.replaced = kt.strstr("a.b.c", ".", "%")
  output.regex = kt.regex("2026-11-22", "([0-9]+)-([0-9]+)-([0-9]+)", "$3.$2.$1")
  output.ends = tostring(kt.strfwm("todana", "to") and kt.strbwm("todana", "na"))
  output.distance = kt.levdist("kitten", "sitting") .. " " .. kt.levdist("é", "e") .. " " .. kt.levdist("é", "e", true)
  output.array = table.concat(kt.arrayload(kt.arraydump({ "a", 2, "" })), "|")
  output.hash = kt.hash_murmur("abc") .. " " .. kt.hash_fnv("abc")
  output.clock = tostring(kt.time() > 1.7e9 and kt.sleep(0.001) == nil)
  output.version = kt.VERSION
  return kt.RVSUCCESS
end

function databases(input, output)
  db["by index"] = "x"
  output.index = db["by index"]
  db["by index"] = nil
  output.gone = tostring(db["by index"])

  output.stored = db:set_bulk({ one = 1, two = 2, three = 3 }, 1000)
  local found = db:get_bulk({ "one", "two", "four" })
  output.found = found.one + found.two
  output.removed = db:remove_bulk({ "one", "four" })
  output.size = db:check("three") .. " " .. db:check("one")
  db:append("three", "33")
  db:replace("two", "22")
  output.values = db:get("two") .. " " .. db:get("three")
  output.similar = table.concat(db:match_similar("threw", 1), " ")
  output.regex = table.concat(db:match_regex("^t.o$"), " ")

  local visitor = kt.Visitor:new()
  local seen = {}
  function visitor:visit_before() seen[#seen + 1] = "before" end
  function visitor:visit_after() seen[#seen + 1] = "after" end
  function visitor:visit_full(key, value, xt) seen[#seen + 1] = key return value .. "!", -2000000000 end
  function visitor:visit_empty(key) seen[#seen + 1] = "no " .. key return "new" end
  db:accept_bulk({ "two", "six" }, visitor)
  output.seen = table.concat(seen, ",")
  local value, xt = db:get("two")
  output.two = value .. " " .. xt
  output.six = table.concat({ db:seize("six") }, " ")

  local other = kt.DB:new()
  assert(other:open("%"))
  other:set("far", "away")
  output.merged = tostring(db:merge({ other }, kt.DB.MADD)) .. " " .. db:get("far")
  other:close()
  output.closed = tostring(other:get("far")) .. " " .. tostring(other:error())
  output.process = tostring(kt.DB:process(function(it) it:set("a", "b") output.inner = it:count() end, "*"))

  local processor = kt.FileProcessor:new()
  function processor:process(path, count, size) output.count = count return true end
  output.synchronized = tostring(db:synchronize(true, processor))
  output.occupied = tostring(db:occupy(true, function() return false end)) .. " " .. db:error():message()
  output.error = tostring(kt.Error:new(kt.Error.NOREC, "none"))
  output.cleared = tostring(db:clear()) .. " " .. db:count() .. " " .. db:status().count
  return kt.RVSUCCESS
end
