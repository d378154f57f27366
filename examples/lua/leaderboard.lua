-- A leaderboard: points by player, kept as a packed map in one record.
local kt = __kyototycoon__
local db = kt.db

-- Stores a player's best result. Input: board, player, points. If another client changes the record
-- at the same time, the visitor runs again.
function score(input, output)
  local points = kt.atoi(input.points)
  local best
  db:accept("board:" .. input.board, function(key, value)
    local players = value and kt.mapload(value) or {}
    best = math.max(points, kt.atoi(players[input.player] or "0"))
    if best > points then
      return kt.Visitor.NOP
    end
    players[input.player] = best
    return kt.mapdump(players)
  end)
  output.best = best
  return kt.RVSUCCESS
end

-- Returns the best players by rank, from "1". Input: board, count.
function top(input, output)
  local players = kt.mapload(db:get("board:" .. input.board) or "")
  local names = {}
  for name in pairs(players) do
    names[#names + 1] = name
  end
  table.sort(names, function(one, other)
    local first, second = tonumber(players[one]), tonumber(players[other])
    return first > second or (first == second and one < other)
  end)
  for place = 1, math.min(#names, kt.atoi(input.count)) do
    output[place] = names[place] .. " " .. players[names[place]]
  end
  return kt.RVSUCCESS
end

-- Removes a board, if it exists. Input: board.
function reset(input)
  return db:accept("board:" .. input.board, function() return kt.Visitor.REMOVE end) and kt.RVSUCCESS
end
