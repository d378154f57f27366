-- Words of Lua's that would let a script get round its bounds, replaced.
local in_time, plain = ...
local type, error = type, error

-- Who catches errors shall not catch that the time is over; and errors of ours are text, as Lua's are.
local function passed(is_fine, ...)
  in_time()
  if is_fine then
    return true, ...
  end
  return false, plain((...))
end

local caught = pcall
function pcall(...)
  return passed(caught(...))
end

local handled = xpcall
function xpcall(call, handle)
  local function handle_plain(trouble)
    in_time()
    return handle(plain(trouble))
  end
  return passed(handled(call, handle_plain))
end

local resumed = coroutine.resume
function coroutine.resume(...)
  return passed(resumed(...))
end

-- Compiled chunks are trusted by the machine: only text is taken.
local compiled = loadstring
function loadstring(text, name)
  if type(text) == "string" and text:byte(1) == 27 then
    return nil, "compiled chunks are not taken"
  end
  return compiled(text, name)
end

local concat = table.concat
function load(piece, name)
  if type(piece) ~= "function" then
    error("bad argument #1 to 'load' (function expected)", 2)
  end
  local pieces = {}
  for text in piece do
    if type(text) ~= "string" or text == "" then
      break
    end
    pieces[#pieces + 1] = text
  end
  return loadstring(concat(pieces), name or "=(load)")
end
