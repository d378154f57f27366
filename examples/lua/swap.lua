-- Compare-and-swap by value: a list of tags that several clients extend, and a lock that expires.
local kt = __kyototycoon__
local db = kt.db

-- Adds a tag to a list unless the list has it. Input: key, tag.
function tag(input, output)
  while true do
    local old = db:get(input.key)
    local tags = old and kt.split(old, ",") or {}
    for _, tag in ipairs(tags) do
      if tag == input.tag then
        output.tags = old
        return kt.RVSUCCESS
      end
    end
    tags[#tags + 1] = input.tag
    table.sort(tags)
    local new = table.concat(tags, ",")
    if db:cas(input.key, old, new) then
      output.tags = new
      return kt.RVSUCCESS
    end
    if db:error():code() ~= kt.Error.LOGIC then
      return kt.RVEINTERNAL
    end
  end
end

-- Takes a lock for a minute, or extends it if this owner has it. Input: name, owner.
function lock(input, output)
  if db:add("lock:" .. input.name, input.owner, 60) then
    return kt.RVSUCCESS
  end
  output.owner = db:get("lock:" .. input.name)
  return db:cas("lock:" .. input.name, input.owner, input.owner, 60) and kt.RVSUCCESS or kt.RVELOGIC
end

-- Releases a lock if this owner has it. Input: name, owner.
function unlock(input)
  return db:cas("lock:" .. input.name, input.owner, nil) and kt.RVSUCCESS or kt.RVELOGIC
end
