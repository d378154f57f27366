-- The class of visitors. Each method does nothing until a script replaces it.
local Visitor = {}

function Visitor:new()
  return setmetatable({}, { __index = self })
end

function Visitor:visit_full(key, value, xt)
  return self.NOP
end

function Visitor:visit_empty(key)
  return self.NOP
end

function Visitor:visit_before()
end

function Visitor:visit_after()
end

return Visitor
