//! Tests that no script exceeds its limits of time and memory, or uses forbidden functions.

use std::sync::Arc;
use std::time::Duration;
use todana::{Db, Records};
use todana_script::{Interpreter, ProcedureOutcome, Program, ScriptOptions, codes};

/// The time limit. It is so short that most of these scripts soon exceed it. The other scripts run
/// out of memory before.
const BRIEF: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(120);

fn interpreter(db: &Db, text: &str, time_max: Duration) -> Interpreter {
    let options = ScriptOptions { time_max, memory_max: 8 << 20, ..ScriptOptions::default() };
    let program = Program::new("test.lua", text.as_bytes()).unwrap();
    Interpreter::new(&program, vec![Arc::new(db.clone())], 0, &options).unwrap()
}

/// Runs the body of a procedure.
fn run(text: &str, time_max: Duration) -> ProcedureOutcome {
    let db = Db::open("mem:hash").unwrap();
    let text = format!("kt = __kyototycoon__ function go(input, output) {text} end");
    interpreter(&db, &text, time_max).call(b"go", []).unwrap()
}

fn fails_with(text: &str, error: &str) {
    let outcome = run(text, if error == "memory" { LONG } else { BRIEF });
    assert_eq!(outcome.code, codes::INTERNAL, "{text}: {outcome:?}");
    let told = outcome.error.unwrap();
    assert!(told.contains(error), "{text}: {told}");
}

#[test]
fn an_endless_loop_is_ended() {
    fails_with("while true do end", "too long");
    fails_with("repeat kt.time() until false", "too long");
    fails_with("kt.sleep(100)", "too long");
    fails_with("local function f() return f() end f()", "too long");
}

/// A Lua pattern was matched by a C function in which no hook checks the deadline. The call, its
/// worker and a shutdown hung for minutes.
#[test]
fn pattern_is_ended_at_the_deadline() {
    let bomb = "local s, p = ('a'):rep(3000), ('a-'):rep(8) .. 'b'";
    for call in [
        "s:find(p)",
        "s:match(p)",
        "s:gsub(p, '')",
        "(function() for _ in s:gmatch(p) do end end)()",
        "('('):rep(1e6):gsub('%b()', '')",
        "('a'):rep(1e6):find(('.-'):rep(3) .. 'b')",
    ] {
        fails_with(&format!("{bomb} return {call}"), "too long");
        fails_with(&format!("{bomb} while true do pcall(function() return {call} end) end"), "too long");
    }
}

/// Each position of the text costs time in proportion to the set, but counted as one step. A set of
/// a megabyte ran for more than a minute before the first check of the deadline.
#[test]
fn long_set_is_ended_at_the_deadline() {
    let long = "local s, set = ('a'):rep(1000), '[' .. ('b'):rep(1e6) .. ']'";
    for call in [
        "s:find(set)",
        "s:match(set .. '?' .. set)",
        "s:gsub('%f' .. set, '')",
        "s:find('[^' .. set:sub(2) .. '*c')",
        "s:find('[^' .. set:sub(2) .. '-c')",
    ] {
        fails_with(&format!("{long} return {call}"), "too long");
        fails_with(&format!("{long} while true do pcall(function() return {call} end) end"), "too long");
    }
}

/// Plain text is found in linear time.
#[test]
fn plain_search_does_not_try_each_place() {
    for call in ["s:find(p, 1, true)", "kt.strstr(s, p)", "#kt.split(('b'):rep(1e5), p:sub(1, 1e5))"] {
        let text = format!(
            "local s, p = ('a'):rep(1e6), ('a'):rep(5e5) .. 'b' output.is = tostring({call}) return 0"
        );
        let outcome = run(&text, LONG);
        assert_eq!(outcome.code, codes::SUCCESS, "{call}: {outcome:?}");
    }
}

#[test]
fn called_off_script_ends_soon() {
    let db = Db::open("mem:hash").unwrap();
    let called_off = Arc::new(std::sync::atomic::AtomicBool::new(true));
    for text in ["while true do end", "kt.sleep(1000)", "('a'):rep(3000):find(('a-'):rep(8) .. 'b')"] {
        let text = format!("kt = __kyototycoon__ function go() {text} end");
        let outcome = interpreter(&db, &text, LONG).call_unless(b"go", [], &called_off).unwrap();
        assert!(outcome.error.unwrap().contains("the server is stopping"), "{text}");
    }
}

/// The procedures of this test spread a transaction over several calls. The first call succeeded,
/// and the changes of the following calls were stored immediately.
#[test]
fn procedure_that_leaves_a_transaction_open_fails() {
    let db = Db::open("mem:hash").unwrap();
    let text = "kt = __kyototycoon__
        function begin() if not kt.db:begin_transaction() then return kt.RVEINTERNAL end kt.db:set('half', 'done') return kt.RVSUCCESS end
        function commit() return kt.db:end_transaction(true) and kt.RVSUCCESS or kt.RVEINTERNAL end";
    let mut interpreter = interpreter(&db, text, LONG);
    let outcome = interpreter.call(b"begin", []).unwrap();
    assert_eq!(outcome.code, codes::INTERNAL);
    assert!(outcome.error.unwrap().contains("transaction"));
    assert_eq!(db.get(b"half").unwrap(), None);
    assert_eq!(interpreter.call(b"commit", []).unwrap().code, codes::INTERNAL);
}

#[test]
fn script_that_catches_errors_is_still_ended() {
    fails_with("while true do pcall(function() while true do end end) end", "too long");
    fails_with("while true do pcall(pcall, function() while true do end end) end", "too long");
    fails_with("while true do xpcall(function() while true do end end, function() end) end", "too long");
    fails_with("xpcall(function() while true do end end, function() while true do end end)", "");
    fails_with(
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "too long",
    );
    fails_with("coroutine.wrap(function() while true do end end)()", "too long");
    fails_with(
        "kt.db:set('a', 1) while true do kt.db:accept('a', function() while true do end end) end",
        "too long",
    );
}

#[test]
fn memory_is_bounded() {
    fails_with("local t = {} while true do t[#t + 1] = ('x'):rep(1000) .. #t end", "memory");
    fails_with("return #('x'):rep(1e9)", "memory");
    fails_with("local s = ('x'):rep(1e6) return #(s:gsub('x', s))", "memory");
    fails_with("local s = ('x'):rep(1e6) return #kt.strstr(s, 'x', s)", "memory");
    fails_with("local s = ('x'):rep(1e6) return #kt.regex(s, 'x', s)", "memory");
    fails_with(
        "kt.db:set('k', 1) return kt.db:mapreduce(function(k, v, emit) while true do emit(k, v) end end, print)",
        "memory",
    );
}

/// Each call of `gsub` had the entire limit for its result, even within a function of another call.
/// Twenty nested calls used twelve times the limit.
#[test]
fn nested_results_of_gsub_are_bounded_together() {
    let nest = "local piece = ('x'):rep(1e6)
        local function nest(depth)
          local count = 0
          return (('x'):rep(5):gsub('x', function()
            count = count + 1
            if count < 5 then return piece end
            if depth == 0 then error('all of them fit') end
            return nest(depth - 1)
          end))
        end
        return nest(10)";
    fails_with(nest, "memory");
}

/// Each `mapreduce` had the entire limit for its emitted values, even within a function of another
/// `mapreduce`.
#[test]
fn nested_results_of_mapreduce_are_bounded_together() {
    let nest = "kt.db:set('k', 1)
        local piece = ('x'):rep(1e6)
        local function nest(depth)
          kt.db:mapreduce(function(k, v, emit)
            for _ = 1, 4 do emit(k, piece) end
            if depth == 0 then error('all of them fit') end
            nest(depth - 1)
          end, print)
        end
        return nest(10)";
    fails_with(nest, "memory");
}

/// A `mapreduce` must release the memory of its emitted values however it ends, even if the script
/// keeps the function `emit`.
#[test]
fn results_of_mapreduce_one_after_the_other_fit() {
    let text = "kt.db:set('k', 1)
        local piece, kept = ('x'):rep(1e6), {}
        local function map(k, v, emit) emit(k, piece) emit(k, piece) kept[#kept + 1] = emit return true end
        for number = 1, 50 do
          local count = 0
          pcall(function() kt.db:mapreduce(map, function(key, next)
            while next() do count = count + 1 end
            if number % 2 == 0 then error('no') end
            return true
          end) end)
          assert(count == 2)
        end
        return 0";
    let outcome = run(text, LONG);
    assert_eq!((outcome.code, outcome.error), (codes::SUCCESS, None));
}

/// A `gsub` must release the memory of its result however it ends.
#[test]
fn results_of_gsub_one_after_the_other_fit() {
    let text = "local piece = ('x'):rep(1e6)
        for _ = 1, 50 do
          assert(#(('x'):gsub('x', piece)) == 1e6)
          pcall(function() ('xy'):gsub('.', function(c) return c == 'x' and piece or error('no') end) end)
        end
        return 0";
    let outcome = run(text, LONG);
    assert_eq!((outcome.code, outcome.error), (codes::SUCCESS, None));
}

/// Functions that call back can be nested as deep as Lua permits. The stack of a thread overflowed
/// at a lower depth, which ended the server.
#[test]
fn nested_calls_fail_before_the_stack_overflows() {
    let fails = [
        "local function f() return (('x'):gsub('x', function() return f() end)) end f()",
        "local function f() return (('x'):gsub('(x)', f)) end f()",
        "local function f() coroutine.wrap(function() local _ = ('x'):gsub('x', f) end)() end f()",
        "local meta = {} local t = setmetatable({}, meta) meta.__index = function() return (('x'):gsub('x', t)) end
         return t.x",
    ];
    // Errors of a function that a database calls are ignored.
    let ends = [
        "local function f() return kt.db:accept('k', f) end f()",
        "local function f() return kt.db:accept_bulk({ 'k' }, f, false) end f()",
        "kt.db:set('k', 'v') local function f() return kt.db:iterate(f) end f()",
        "kt.db:set('k', 'v') local function f() return kt.db:mapreduce(f, f) end f()",
    ];
    for (call, error) in fails.map(|call| (call, true)).into_iter().chain(ends.map(|call| (call, false))) {
        let thread = std::thread::Builder::new().stack_size(todana_script::STACK_SIZE);
        let outcome = thread.spawn(move || run(call, LONG)).unwrap().join().unwrap();
        let is_told = outcome.error.as_ref().is_some_and(|told| told.contains("stack overflow"));
        assert_eq!((is_told, outcome.error.is_some()), (error, error), "{call}: {outcome:?}");
    }
}

#[test]
fn decompression_bomb_is_refused() {
    let bomb =
        "local s = ('x'):rep(4e6) local z = kt.codec('gzip', s) s = nil return #kt.codec('~gzip', z .. '')";
    let db = Db::open("mem:hash").unwrap();
    let text = format!("kt = __kyototycoon__ function go() {bomb} end function after() return 0 end");
    let mut interpreter = interpreter(&db, &text, LONG);
    interpreter.call(b"go", []).unwrap();
    assert_eq!(interpreter.call(b"after", []).unwrap().code, codes::SUCCESS);
}

#[test]
fn a_machine_goes_on_after_a_failure() {
    let db = Db::open("mem:hash").unwrap();
    let text = "function eat() local t = {} while true do t[#t + 1] = ('x'):rep(1000) .. #t end end
        function spin() while true do end end
        function fine(_, output) output.a = 'b' return 3 end";
    let mut interpreter = interpreter(&db, text, Duration::from_secs(3));
    for name in [&b"eat"[..], b"spin", b"eat"] {
        assert_eq!(interpreter.call(name, []).unwrap().code, codes::INTERNAL);
        let outcome = interpreter.call(b"fine", []).unwrap();
        assert_eq!((outcome.code, &outcome.output[&b"a"[..]]), (3, &b"b".to_vec()));
    }
}

#[test]
fn forbidden_functions_do_not_exist() {
    for word in [
        "os.execute",
        "os.exit",
        "os.getenv",
        "os.remove",
        "os.rename",
        "os.tmpname",
        "os.setlocale",
        "io",
        "package",
        "debug",
        "dofile",
        "loadfile",
        "require",
        "module",
        "newproxy",
        "string.dump",
    ] {
        let outcome = run(&format!("output.is = tostring({word})"), LONG);
        assert_eq!(outcome.output[&b"is"[..]], b"nil", "{word}");
    }
    let outcome = run(r#"output.is = tostring((loadstring("\27Lua")))"#, LONG);
    assert_eq!(outcome.output[&b"is"[..]], b"nil");
    let outcome = run(
        r#"local sent = false output.is = tostring((load(function() if not sent then sent = true return "\27Lua" end end)))"#,
        LONG,
    );
    assert_eq!(outcome.output[&b"is"[..]], b"nil");
}

#[test]
fn script_may_ask_for_the_time() {
    let text =
        "local t = os.time({ year = 2026, month = 11, day = 22, hour = 12 }) output.date = os.date('!%Y', t)
        output.apart = tostring(os.difftime(t + 5, t)) output.clock = type(os.clock()) return 0";
    let outcome = run(text, LONG);
    let told = |name: &str| String::from_utf8(outcome.output[name.as_bytes()].clone()).unwrap();
    assert_eq!((told("date"), told("apart"), told("clock")), ("2026".into(), "5".into(), "number".into()));
}

#[test]
fn an_unsafe_script_has_files() {
    let options = ScriptOptions { is_unsafe: true, ..ScriptOptions::default() };
    let program =
        Program::new("t", b"function go(_, o) o.a = type(os.time()) o.b = type(io.open) end").unwrap();
    let outcome = Interpreter::new(&program, Vec::new(), 0, &options).unwrap().call(b"go", []).unwrap();
    assert_eq!(
        (&*outcome.output[&b"a"[..]], &*outcome.output[&b"b"[..]]),
        (&b"number"[..], &b"function"[..])
    );
}

#[test]
fn syntax_errors_are_reported_with_their_line() {
    let error = Program::new("shop.lua", b"x = 1\nfunction (").unwrap_err().to_string();
    assert!(error.starts_with("shop.lua:2:"), "{error}");
    assert!(Program::new("shop.lua", b"\x1bLua").unwrap_err().to_string().contains("compiled"));
    assert!(
        Program::load("/nonexistent/shop.lua").unwrap_err().to_string().contains("/nonexistent/shop.lua")
    );
    let program = Program::new("shop.lua", b"\n\nlocal x = nil + 1").unwrap();
    let error = Interpreter::new(&program, Vec::new(), 0, &ScriptOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("shop.lua:3:"), "{error}");
    let program = Program::new("shop.lua", b"#!/usr/bin/lua\nx = 1").unwrap();
    assert!(Interpreter::new(&program, Vec::new(), 0, &ScriptOptions::default()).is_ok());
}

#[test]
fn runtime_errors_are_reported_with_line_and_text() {
    let db = Db::open("mem:hash").unwrap();
    let mut interpreter = interpreter(&db, "function bad()\n  local x = nil\n  return x.y\nend", BRIEF);
    let error = interpreter.call(b"bad", []).unwrap().error.unwrap();
    assert!(error.starts_with("test.lua:3:"), "{error}");
    let outcome = run(
        "local fine, error = pcall(kt.db.set, kt.db, {}) output.is = type(error) .. tostring(fine)",
        LONG,
    );
    assert_eq!(outcome.output[&b"is"[..]], b"stringfalse");
}

#[test]
fn only_functions_of_the_program_are_procedures() {
    let db = Db::open("mem:hash").unwrap();
    let mut interpreter = interpreter(&db, "x = 5 function own() end", BRIEF);
    for name in [&b"print"[..], b"x", b"nosuch", b"__kyototycoon__", b"pcall", b""] {
        assert_eq!(interpreter.call(name, []), None, "{}", name.escape_ascii());
    }
    assert_eq!(interpreter.call(b"own", []).unwrap().code, codes::SUCCESS);
}

#[test]
fn a_transaction_that_is_left_open_is_aborted() {
    let db = Db::open("mem:hash").unwrap();
    let text = "db = __kyototycoon__.db
        function leave() db:begin_transaction() db:set('a', '1') return 0 end
        function fail() db:begin_transaction() db:set('a', '1') error('no') end
        function spin() db:begin_transaction() db:set('a', '1') while true do end end";
    let mut interpreter = interpreter(&db, text, BRIEF);
    for name in [&b"leave"[..], b"fail", b"spin"] {
        interpreter.call(name, []).unwrap();
        assert_eq!(db.get(b"a").unwrap(), None);
        // No other client waits for the end of this transaction.
        db.set(b"b", b"2").unwrap();
        drop(db.try_begin_owned().unwrap().unwrap());
    }
}

#[test]
fn transactions_in_several_databases_do_not_deadlock() {
    let (one, other) = (Db::open("mem:hash").unwrap(), Db::open("mem:tree").unwrap());
    let text = b"dbs = __kyototycoon__.dbs
        function go(input)
          for _ = 1, 50 do
            dbs[1]:begin_transaction()
            dbs[2]:begin_transaction()
            for _, db in ipairs(dbs) do db:increment('n', 1) end
            dbs[2]:end_transaction()
            dbs[1]:end_transaction()
          end
          return 0
        end";
    let program = Program::new("t", text).unwrap();
    let options = ScriptOptions { time_max: Duration::from_secs(60), ..ScriptOptions::default() };
    std::thread::scope(|scope| {
        for turned in [false, true, false, true] {
            let (program, options, mut dbs) = (&program, &options, [one.clone(), other.clone()]);
            if turned {
                dbs.reverse();
            }
            scope.spawn(move || {
                let dbs = dbs.map(|db| Arc::new(db) as Arc<dyn todana_script::ScriptDatabase>);
                let mut interpreter = Interpreter::new(program, dbs.to_vec(), 0, options).unwrap();
                assert_eq!(interpreter.call(b"go", []).unwrap().error, None);
            });
        }
    });
    for db in [one, other] {
        assert_eq!(db.get(b"n").unwrap().unwrap(), 200i64.to_be_bytes());
    }
}

#[test]
fn visitor_decides_again_after_concurrent_changes() {
    let db = Db::open("mem:hash").unwrap();
    let text = b"db = __kyototycoon__.db
        function go() for _ = 1, 500 do
          db:accept('n', function(_, value) return (tonumber(value) or 0) + 1 end)
        end return 0 end";
    let program = Program::new("t", text).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (program, db) = (&program, db.clone());
            scope.spawn(move || {
                let options = ScriptOptions { time_max: Duration::from_secs(60), ..ScriptOptions::default() };
                let mut interpreter = Interpreter::new(program, vec![Arc::new(db)], 0, &options).unwrap();
                assert_eq!(interpreter.call(b"go", []).unwrap().error, None);
            });
        }
    });
    assert_eq!(db.get(b"n").unwrap().unwrap(), b"1500");
}
