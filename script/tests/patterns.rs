//! Compares `string.find`, `match`, `gmatch` and `gsub` with Lua's own functions on random
//! patterns.

use mlua::Lua;
use std::fmt::Write as _;
use todana_script::{Interpreter, Program, ScriptOptions};

const TEXT: &str = r#"
local function shown(...)
  local out = {}
  for at = 1, select('#', ...) do out[at] = type((select(at, ...))) .. ' ' .. tostring((select(at, ...))) end
  return table.concat(out, ',') .. ';'
end
function try(s, p, r, from)
  local out = {}
  local function add(...) out[#out + 1] = shown(...) end
  add(pcall(string.find, s, p))
  add(pcall(string.find, s, p, from))
  add(pcall(string.find, s, p, from, true))
  add(pcall(string.match, s, p))
  add(pcall(string.match, s, p, from))
  add(pcall(function() return s:find(p) end))
  add(pcall(function() return (s:gsub(p, r)) end))
  add(pcall(string.gsub, s, p, r, 2))
  add(pcall(string.gsub, s, p, function(...) return select('#', ...) > 1 and select(2, ...) or nil end))
  add(pcall(string.gsub, s, p, { a = 'x', b = false, ab = 12.5, [1] = 'one' }))
  add(pcall(function()
    local count = 0
    for a, b, c in s:gmatch(p) do
      add(a, b, c)
      count = count + 1
      if count > 20 then break end
    end
  end))
  return table.concat(out)
end
function go(input, output) output.told = try(input.s, input.p, input.r, tonumber(input.from)) return 0 end
"#;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn text(&mut self, pieces: &[&[u8]], len_max: usize) -> Vec<u8> {
        (0..self.below(len_max + 1)).flat_map(|_| pieces[self.below(pieces.len())].iter().copied()).collect()
    }
}

fn interpreter() -> Interpreter {
    let program = Program::new("test.lua", TEXT.as_bytes()).unwrap();
    Interpreter::new(&program, Vec::new(), 0, &ScriptOptions::default()).unwrap()
}

#[test]
fn patterns_agree_with_luas_own() {
    let pieces: [&[u8]; 44] = [
        b"a",
        b"b",
        b"c",
        b"A",
        b"1",
        b" ",
        b".",
        b"%a",
        b"%d",
        b"%D",
        b"%s",
        b"%w",
        b"%W",
        b"%p",
        b"%z",
        b"%x",
        b"%u",
        b"%c",
        b"*",
        b"+",
        b"-",
        b"?",
        b"(",
        b")",
        b"()",
        b"[",
        b"]",
        b"[^",
        b"[a-c]",
        b"[^a]",
        b"[%a_]",
        b"[]]",
        b"[a-",
        b"^",
        b"$",
        b"%",
        b"%1",
        b"%2",
        b"%b()",
        b"%f[a]",
        b"%f",
        b"%%",
        b"\0",
        b"(a*(.)%w(%s*))",
    ];
    let texts: [&[u8]; 12] = [b"a", b"b", b"c", b"A", b"1", b" ", b"(", b")", b"_", b"\0", b"\xE9", b"\t"];
    let others: [&[u8]; 8] = [b"x", b"%0", b"%1", b"%2", b"%%", b"%", b"%a", b""];
    let mut random = Random(0x2545_F491_4F6C_DD1D);
    let lua = Lua::new();
    lua.load(TEXT).set_name("@test.lua").exec().unwrap();
    let own: mlua::Function = lua.globals().get("try").unwrap();
    let mut interpreter = interpreter();
    let mut wrong = String::new();
    for _ in 0..5_000 {
        let (s, p) = (random.text(&texts, 12), random.text(&pieces, 6));
        let (r, from) = (random.text(&others, 3), random.below(30) as i64 - 15);
        let of = |bytes: &[u8]| lua.create_string(bytes).unwrap();
        let expected: mlua::LuaString = own.call((of(&s), of(&p), of(&r), from)).unwrap();
        let from = from.to_string();
        let input = [(&b"s"[..], &s[..]), (b"p", &p), (b"r", &r), (b"from", from.as_bytes())];
        let outcome = interpreter.call(b"go", input).unwrap();
        let told = outcome.output.get(&b"told"[..]).cloned().unwrap_or_default();
        if told[..] != expected.as_bytes()[..] {
            let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
            let (s, p, r, expected) = (shown(&s), shown(&p), shown(&r), shown(&expected.as_bytes()));
            writeln!(wrong, "{s:?} {p:?} {r:?} {from}\n  {expected}\n  {} {:?}", shown(&told), outcome.error)
                .unwrap();
        }
    }
    let count = wrong.lines().count() / 3;
    assert!(wrong.is_empty(), "{count} differ:\n{}", wrong.lines().take(30).collect::<Vec<_>>().join("\n"));
}

#[test]
fn wrong_arguments_are_refused_as_by_luas_own() {
    let calls = [
        "string.find()",
        "string.find('a')",
        "string.find({}, 'a')",
        "string.find('a', 'a', 'x')",
        "string.find(12, 2)",
        "string.match('a', nil)",
        "string.gmatch('a')",
        "string.gsub('a', 'b')",
        "string.gsub('a', 'b', true)",
        "string.gsub('abc', 'b', function() return {} end)",
        "string.gsub('abc', 'b', 7)",
        "string.gsub('abc', '', '-')",
        "string.gsub('a', 'a', 'x', 'y')",
        "string.find('abc', 'b', '2')",
        "string.find('', '')",
        "string.find('a', '', 10)",
        "string.gsub('hello world', '%w+', '%0 %0', 1)",
        "string.gsub('abc', '%w', '%1')",
        "string.gsub('abc', '%w', '%2')",
        "string.find(('('):rep(40), ('(a'):rep(33))",
        "string.gfind == string.gmatch",
        "string.gsub('abc', '^a', 'x')",
        "string.find('a\\0b', '\\0b', 1, true)",
        "string.match('2026-11-22', '^(%d+)-(%d+)-(%d+)$')",
    ];
    let text: String =
        calls.iter().map(|call| format!("show(pcall(function() return {call} end))\n")).collect();
    let text = format!(
        "local all = {{}} local function show(...) for at = 1, select('#', ...) do all[#all + 1] = tostring((select(at, ...))) end all[#all + 1] = '\\n' end
        function try()\n{text}return table.concat(all, ' ') end function go(_, output) output.told = try() return 0 end"
    );
    let lua = Lua::new();
    lua.load(&*text).set_name("@test.lua").exec().unwrap();
    let expected: String = lua.load("return try()").eval().unwrap();
    let program = Program::new("test.lua", text.as_bytes()).unwrap();
    let mut interpreter = Interpreter::new(&program, Vec::new(), 0, &ScriptOptions::default()).unwrap();
    let outcome = interpreter.call(b"go", []).unwrap();
    let told = String::from_utf8(outcome.output[&b"told"[..]].clone()).unwrap();
    for ((call, expected), told) in calls.iter().zip(expected.lines()).zip(told.lines()) {
        assert_eq!(told, expected, "{call}");
    }
}

#[test]
fn patterns_may_be_long_but_are_bounded() {
    let text = "function go(input, output) local is_fine, error = pcall(string.find, ('a'):rep(5000), ('a?'):rep(5000)) output.told = tostring(is_fine) .. '\\t' .. error return 0 end";
    let program = Program::new("test.lua", text.as_bytes()).unwrap();
    let mut interpreter = Interpreter::new(&program, Vec::new(), 0, &ScriptOptions::default()).unwrap();
    assert_eq!(interpreter.call(b"go", []).unwrap().output[&b"told"[..]], b"false\tpattern too complex");
}
