-- An inverted index for Tokyo Tyrant's clients: it finds documents by their words.
-- The record "word WORD" has the numbers of the documents with this word, in BER form.
--
--   tcrmgr ext HOST add 1 'The quick brown fox'
--   tcrmgr ext HOST find 'quick fox' ''     the numbers of the documents with all words
--   tcrmgr ext HOST find_any 'fox dog' ''   the numbers of the documents with any of the words
--   tcrmgr ext HOST forget 1 ''

-- Returns each word of a text once, in lower case.
local function words_of(text)
   local seen, words = {}, {}
   for word in string.gmatch(string.lower(text), "%w+") do
      if not seen[word] then
         seen[word] = true
         words[#words + 1] = word
      end
   end
   return words
end

local function documents_with(word)
   local packed = _get("word " .. word)
   return packed and _unpack("w*", packed) or {}
end

-- Adds a document, or replaces it.
function add(id, text)
   local number = tonumber(id)
   if not number or number < 1 then return nil end
   forget(id)
   if not _put("document " .. number, text) then return nil end
   for _, word in ipairs(words_of(text)) do
      _lock(word)
      _putcat("word " .. word, _pack("w", number))
      _unlock(word)
   end
   return "ok"
end

-- Removes a document.
function forget(id)
   local number = tonumber(id)
   local text = number and _get("document " .. number)
   if not text then return nil end
   for _, word in ipairs(words_of(text)) do
      _lock(word)
      local rest = {}
      for _, other in ipairs(documents_with(word)) do
         if other ~= number then rest[#rest + 1] = other end
      end
      if #rest > 0 then
         _put("word " .. word, _pack("w*", rest))
      else
         _out("word " .. word)
      end
      _unlock(word)
   end
   _out("document " .. number)
   return "ok"
end

local function search(query, combine)
   local lists = {}
   for _, word in ipairs(words_of(query)) do lists[#lists + 1] = documents_with(word) end
   if #lists == 0 then return "" end
   local found = combine(unpack(lists))
   table.sort(found, function(one, other) return tonumber(one) < tonumber(other) end)
   return table.concat(found, " ")
end

function find(query) return search(query, _isect) end

function find_any(query) return search(query, _union) end
