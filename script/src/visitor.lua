-- The class of visitors: each method does nothing until a script puts its own in its place.
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
