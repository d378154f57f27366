-- The class of file processors, which are called with the path of a database. Scripts replace
-- `process`.
local FileProcessor = {}

function FileProcessor:new()
  return setmetatable({}, { __index = self })
end

function FileProcessor:process(path, count, size)
  return true
end

return FileProcessor
