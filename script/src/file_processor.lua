-- The class of those who are shown the files of a database.
local FileProcessor = {}

function FileProcessor:new()
  return setmetatable({}, { __index = self })
end

function FileProcessor:process(path, count, size)
  return true
end

return FileProcessor
