-- Replaces the functions of Lua that would let a script exceed its limits.
local in_time, plain = ...
local type, error = type, error

-- Returns the results of a protected call. If the script has exceeded its time, `in_time` raises
-- that error again, so that scripts cannot catch it. `plain` converts errors of Todana to text,
-- because errors of Lua are text.
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

-- Lua does not verify compiled chunks, so only text is accepted.
local compiled = loadstring
function loadstring(text, name)
  if type(text) == "string" and text:byte(1) == 27 then
    return nil, "compiled chunks are not accepted"
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
