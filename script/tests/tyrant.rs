//! Procedures with Tokyo Tyrant's functions, and the example scripts.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use todana::{Db, Records};
use todana_script::tyrant::{MiscBounds, SharedScriptState, TyrantHost, TyrantPlace};
use todana_script::{Interpreter, Program, ScriptOptions};

/// The functions of a server with one function of `misc`.
struct PlainHost;

impl TyrantHost for PlainHost {
    fn restart_iterator(&self) -> bool {
        true
    }

    fn next_key(&self, _is_over: &dyn Fn() -> bool) -> Option<Vec<u8>> {
        None
    }

    fn misc(&self, name: &[u8], arguments: &[Vec<u8>], bounds: &MiscBounds) -> Option<Vec<Vec<u8>>> {
        // A search that ends only if it is cancelled.
        while name == b"search" && !bounds.is_cancelled.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        (name == b"echo").then(|| arguments.to_vec())
    }

    fn size(&self) -> u64 {
        4096
    }
}

fn load(program: &Program, db: &Db, shared: &Arc<SharedScriptState>, options: &ScriptOptions) -> Interpreter {
    let place = TyrantPlace {
        database: Arc::new(db.clone()),
        host: Arc::new(PlainHost),
        shared: Arc::clone(shared),
        thread: 2,
        threads: 4,
        server_id: 7,
    };
    Interpreter::of_tyrant(program, place, options).unwrap()
}

struct Machine {
    interpreter: Interpreter,
    db: Db,
}

impl Machine {
    fn new(text: &str) -> Machine {
        Machine::with(&Program::new("test", text.as_bytes()).unwrap(), "mem:tree", &ScriptOptions::default())
    }

    fn with(program: &Program, database: &str, options: &ScriptOptions) -> Machine {
        let db = Db::open(database).unwrap();
        Machine { interpreter: load(program, &db, &Arc::default(), options), db }
    }

    fn call(&mut self, name: &str, key: &str, value: &str) -> Option<String> {
        let result = self.interpreter.call_with_key(name.as_bytes(), key.as_bytes(), value.as_bytes(), None);
        result.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the value of an expression.
    fn value(expression: &str) -> Option<String> {
        Machine::new(&format!("function f(key, value) return {expression} end")).call("f", "k", "v")
    }
}

fn example(name: &str, database: &str) -> Machine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/lua/tyrant").join(name);
    Machine::with(&Program::load(path).unwrap(), database, &ScriptOptions::default())
}

#[test]
fn results_become_text() {
    for (expression, text) in [
        ("key .. value", Some("kv")),
        ("5", Some("5")),
        ("1/4", Some("0.25")),
        ("true", Some("true")),
        ("{'a', 'b'}", Some("a")),
        ("{7}", Some("7")),
        ("''", Some("")),
        ("nil", None),
        ("false", None),
        ("{}", None),
        ("{{1}}", None),
        ("error('x')", None),
        ("missing()", None),
    ] {
        assert_eq!(Machine::value(expression).as_deref(), text, "{expression}");
    }
    assert_eq!(Machine::new("x = 1").call("x", "", ""), None);
    assert_eq!(Machine::new("").call("_get", "k", ""), None);
}

/// Lua shares the strings of an array, but each element was copied outside of the bounded memory.
#[test]
fn copies_of_arrays_count_as_memory() {
    let text = "function misc(key, count)
            local value, array = string.rep('x', 500000), {}
            for place = 1, count do array[place] = value end
            _misc('none', array)
            return 'done'
         end
         function union(key, count)
            local value, array = string.rep('x', 500000), {}
            for place = 1, count do array[place] = value .. place end
            return #_union(array)
         end";
    let program = Program::new("test", text.as_bytes()).unwrap();
    let options = ScriptOptions { memory_max: 8 << 20, ..ScriptOptions::default() };
    let mut machine = Machine::with(&program, "mem:tree", &options);
    assert_eq!(machine.call("misc", "", "2").as_deref(), Some("done"));
    assert_eq!(machine.call("misc", "", "100"), None);
    assert_eq!(machine.call("union", "", "2").as_deref(), Some("2"));
    assert_eq!(machine.call("union", "", "6"), None);
    // Nothing stays counted after a call.
    assert_eq!(machine.call("misc", "", "2").as_deref(), Some("done"));
}

/// Searches of a script ran without its deadline.
#[test]
fn searches_end_with_the_time_of_the_call() {
    let program = Program::new("test", b"function f() _misc('search') return 'late' end").unwrap();
    let options = ScriptOptions { time_max: Duration::from_millis(50), ..ScriptOptions::default() };
    assert_eq!(Machine::with(&program, "mem:tree", &options).call("f", "", ""), None);
}

#[test]
fn functions_on_records_have_the_results_of_original() {
    let mut machine = Machine::new(
        "local function text(value) return tostring(value) end
         function f()
            return text(_put('a', 1)) .. text(_putkeep('a', 2)) .. text(_putcat('a', 'x')) .. text(_get('a'))
               .. text(_vsiz('a')) .. text(_vsiz('b')) .. text(_out('b')) .. text(_get('b'))
               .. text(_addint('n', 5)) .. text(_addint('n', -7)) .. text(_addint('a', 1))
               .. text(_adddouble('d', 1.5)) .. text(_rnum()) .. text(_size())
         end
         function list()
            _put('b1', 'v') _put('b2', 'w')
            local seen = {}
            _foreach(function(key, value) seen[#seen + 1] = key .. value return #seen < 2 end)
            return table.concat(_fwmkeys('b'), ',') .. ' ' .. table.concat(_fwmkeys('b', 1), ',') .. ' '
               .. #_fwmkeys('b', 0) .. ' ' .. table.concat(seen, ',')
         end
         function vanish() _vanish() return _rnum() end",
    );
    let expected = "truefalsetrue1x2-1falsenil5-2nil1.534096";
    assert_eq!(machine.call("f", "", "").as_deref(), Some(expected));
    assert_eq!(machine.db.get(b"n").unwrap().unwrap(), (-2_i32).to_le_bytes());
    machine.call("vanish", "", "");
    assert_eq!(machine.call("list", "", "").as_deref(), Some("b1,b2 b1 0 b1v,b2w"));
    assert_eq!(machine.call("vanish", "", "").as_deref(), Some("0"));
}

#[test]
fn texts_are_coded_hashed_and_combined() {
    for (expression, text) in [
        ("_hash('md5', 'abc')", "900150983cd24fb0d6963f7d28e17f72"),
        ("#_hash('md5raw', 'abc')", "16"),
        ("_hash('crc32', 'abc')", "891568578"),
        ("_codec('url', 'a b')", "a%20b"),
        ("_codec('~url', 'a+b%41')", "a bA"),
        ("_codec('~base', _codec('base', 'abc'))", "abc"),
        ("_codec('hex', 'az')", "617a"),
        ("_codec('~deflate', _codec('deflate', 'abcabc'))", "abcabc"),
        ("_codec('~gzip', _codec('gzip', 'abcabc'))", "abcabc"),
        ("_codec('~pack', _codec('pack', 'aaaab'))", "aaaab"),
        ("_codec('xml', '<a>')", "&lt;a&gt;"),
        ("tostring(_codec('tcbs', 'a'))", "nil"),
        ("table.concat(_split('a,b;c', ',;'), '|')", "a|b|c"),
        ("#_split('a\\0b')", "2"),
        ("_strstr('abcb', 'b')", "2"),
        ("_strstr('abcb', 'b', 'x')", "axcx"),
        ("_regex('abc', '^a')", "true"),
        ("_regex('abc', '[bc]', 'x')", "axx"),
        ("_dist('kitten', 'sitting')", "3"),
        ("table.concat(_ucs('a\u{e9}'), ',')", "97,233"),
        ("_ucs({97, 233})", "a\u{e9}"),
        ("_bit('and', 12, 10) .. ',' .. _bit('left', 1, 4)", "8,16"),
        ("table.concat(_unpack('CnNw', _pack('CnNw', 1, 2, 3, 300)), ',')", "1,2,3,300"),
        ("table.concat(_isect({1, 2, 3}, {3, 1, 4}), ',')", "1,3"),
        ("table.concat(_union({1, 2, 1}, {'x', 2}), ',')", "1,2,x"),
        ("table.concat(_misc('echo', {1, 2}, 'x', 2.5), ',')", "1,2,x,2.5"),
        ("_misc('$echo', 'y')[1]", "y"),
        ("tostring(_misc('unknown'))", "nil"),
        ("_version .. _sid .. _thnum .. _thid", "1.1.41742"),
    ] {
        assert_eq!(Machine::value(expression).as_deref(), Some(text), "{expression}");
    }
}

#[test]
fn stash_is_bounded_and_shared() {
    let program = Program::new(
        "test",
        b"function put(key, value) return _stashput(key, value) end
          function keep(key, value) return _stashputkeep(key, value) end
          function cat(key, value) return _stashputcat(key, value) end
          function get(key) return _stashget(key) end
          function out(key) return _stashout(key) end
          function fill(_, value) for number = 1, 1000 do if not _stashput(number, value) then return number end end end
          function all() local s = '' _stashforeach(function(k, v) s = s .. k .. v return true end) return s end
          function vanish() return _stashvanish() end",
    )
    .unwrap();
    let (db, shared) = (Db::open("mem:hash").unwrap(), Arc::default());
    let options = ScriptOptions { memory_max: 1 << 20, ..ScriptOptions::default() };
    let mut one = Machine { interpreter: load(&program, &db, &shared, &options), db: db.clone() };
    let mut other = Machine { interpreter: load(&program, &db, &shared, &options), db };
    assert_eq!(one.call("put", "a", "1").as_deref(), Some("true"));
    assert_eq!(other.call("get", "a", "").as_deref(), Some("1"));
    assert_eq!(other.call("keep", "a", "2"), None);
    assert_eq!(other.call("cat", "a", "2").as_deref(), Some("true"));
    other.call("cat", "b", "3");
    assert_eq!(one.call("all", "", "").as_deref(), Some("a12b3"));
    assert_eq!(one.call("out", "a", "").as_deref(), Some("true"));
    assert_eq!(one.call("out", "a", ""), None);
    let refused: u32 = one.call("fill", "", &"x".repeat(10_000)).unwrap().parse().unwrap();
    assert!((50..110).contains(&refused), "{refused}");
    assert_eq!(other.call("vanish", "", "").as_deref(), Some("true"));
    assert_eq!(one.call("all", "", "").as_deref(), Some(""));
}

/// Only the number of names and the length of each chunk were limited.
#[test]
fn locked_names_and_chunks_are_bounded() {
    let text = "function names(_, len)
            for number = 1, 100 do
               if not _lock(number .. string.rep('x', len)) then return number end
            end
         end
         function chunks(_, len)
            for number = 1, 100 do
               if not _eval('--' .. string.rep('x', len)) then return number end
            end
         end";
    let program = Program::new("test", text.as_bytes()).unwrap();
    let options = ScriptOptions { memory_max: 4 << 20, ..ScriptOptions::default() };
    let mut machine = Machine::with(&program, "mem:hash", &options);
    // The names of a call are unlocked at its end.
    for _ in 0..2 {
        assert_eq!(machine.call("names", "", "400000").as_deref(), Some("6"));
    }
    assert_eq!(machine.call("chunks", "", "400000").as_deref(), Some("11"));
}

#[test]
fn evaluated_code_reaches_each_interpreter() {
    let program = Program::new(
        "test",
        b"function set() return _eval('n = (n or 0) + 1') end function get() return n end",
    )
    .unwrap();
    let (db, shared) = (Db::open("mem:hash").unwrap(), Arc::default());
    let machine =
        || Machine { interpreter: load(&program, &db, &shared, &ScriptOptions::default()), db: db.clone() };
    let (mut one, mut other) = (machine(), machine());
    one.call("set", "", "");
    assert_eq!(one.call("get", "", "").as_deref(), Some("1"));
    assert_eq!(other.call("get", "", "").as_deref(), Some("1"));
    other.call("set", "", "");
    assert_eq!(one.call("get", "", "").as_deref(), Some("2"));
    assert_eq!(machine().call("get", "", "").as_deref(), Some("2"));
}

/// A counter in the stash, which each call reads and writes under a lock.
#[test]
fn named_locks_exclude_other_calls() {
    const CALLS: usize = 200;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/lua/tyrant/counters.lua");
    let program = Program::load(path).unwrap();
    let (db, shared) = (Db::open("mem:hash").unwrap(), Arc::default());
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut machine = Machine {
                interpreter: load(&program, &db, &shared, &ScriptOptions::default()),
                db: db.clone(),
            };
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                (0..CALLS).for_each(|_| drop(machine.call("count_in_stash", "n", "1")));
            });
        }
    });
    let mut machine = Machine { interpreter: load(&program, &db, &shared, &ScriptOptions::default()), db };
    assert_eq!(machine.call("count_in_stash", "n", "0"), Some((2 * CALLS).to_string()));
}

#[test]
fn forgotten_lock_ends_with_its_call() {
    let program = Program::new(
        "test",
        b"function take(name) return _lock(name) end function twice(name) _lock(name) return _lock(name) end
          function free(name) return _unlock(name) end",
    )
    .unwrap();
    let (db, shared) = (Db::open("mem:hash").unwrap(), Arc::default());
    let options = ScriptOptions { time_max: Duration::from_secs(60), ..ScriptOptions::default() };
    let machine = || Machine { interpreter: load(&program, &db, &shared, &options), db: db.clone() };
    let (mut one, mut other) = (machine(), machine());
    for _ in 0..3 {
        assert_eq!(one.call("take", "n", "").as_deref(), Some("true"));
        assert_eq!(other.call("take", "n", "").as_deref(), Some("true"));
    }
    assert_eq!(one.call("twice", "n", ""), None);
    assert_eq!(one.call("free", "n", ""), None);
}

#[test]
fn endless_call_is_ended() {
    let program =
        Program::new("test", b"function f() while true do end end function g() return 1 end").unwrap();
    let options = ScriptOptions { time_max: Duration::from_millis(20), ..ScriptOptions::default() };
    let mut machine = Machine::with(&program, "mem:hash", &options);
    assert_eq!(machine.call("f", "", ""), None);
    assert_eq!(machine.call("g", "", "").as_deref(), Some("1"));
}

#[test]
fn files_stay_within_their_directory() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "12345").unwrap();
    let text = b"function size(path) local found = _stat(path) return found and found.size end
        function make(path) return _mkdir(path) end function remove(path) return _remove(path) end
        function list(pattern) return table.concat(_glob(pattern), ',') end
        function hidden() return io == nil and os.execute == nil and require == nil end";
    let program = Program::new("test", text).unwrap();
    let options = ScriptOptions { files: Some(folder.path().into()), ..ScriptOptions::default() };
    let mut machine = Machine::with(&program, "mem:hash", &options);
    assert_eq!(machine.call("size", "a.txt", "").as_deref(), Some("5"));
    assert_eq!(machine.call("make", "sub", "").as_deref(), Some("true"));
    assert_eq!(machine.call("make", "sub/x.txt", "").as_deref(), Some("true"));
    assert_eq!(machine.call("list", "*.txt", "").as_deref(), Some("a.txt"));
    assert_eq!(machine.call("list", "sub/*", "").as_deref(), Some("sub/x.txt"));
    assert_eq!(machine.call("remove", "sub", "").as_deref(), Some("true"));
    assert_eq!(machine.call("list", "*", "").as_deref(), Some("a.txt"));
    for path in ["../x", "/etc/passwd", "", "."] {
        assert_eq!(machine.call("size", path, ""), None, "{path}");
        assert_eq!(machine.call("remove", path, ""), None, "{path}");
        assert_eq!(machine.call("make", path, ""), None, "{path}");
    }
    assert_eq!(machine.call("hidden", "", "").as_deref(), Some("true"));
    let mut without = Machine::with(&program, "mem:hash", &ScriptOptions::default());
    assert_eq!(without.call("size", "a.txt", ""), None);
}

#[test]
fn queue_example_is_first_in_first_out() {
    for database in ["mem:hash", "mem:tree"] {
        let mut machine = example("queue.lua", database);
        for (number, value) in ["a", "b", "c"].iter().enumerate() {
            assert_eq!(machine.call("push", "q", value), Some((number + 1).to_string()));
        }
        assert_eq!(machine.call("length", "q", "").as_deref(), Some("3"));
        assert_eq!(machine.call("pop", "q", "2").as_deref(), Some("a\nb"));
        assert_eq!(machine.call("pop", "q", "").as_deref(), Some("c"));
        assert_eq!(machine.call("pop", "q", "").as_deref(), Some(""));
        assert_eq!(machine.call("push", "", "x"), None);
    }
}

#[test]
fn index_example_finds_documents() {
    let mut machine = example("inverted_index.lua", "mem:hash");
    machine.call("add", "1", "The quick brown fox");
    machine.call("add", "300", "The quick dog, the QUICK dog");
    assert_eq!(machine.call("find", "quick the", "").as_deref(), Some("1 300"));
    assert_eq!(machine.call("find", "quick fox", "").as_deref(), Some("1"));
    assert_eq!(machine.call("find_any", "fox dog cat", "").as_deref(), Some("1 300"));
    machine.call("add", "1", "A cat");
    assert_eq!(machine.call("find", "fox", "").as_deref(), Some(""));
    assert_eq!(machine.call("forget", "300", "").as_deref(), Some("ok"));
    assert_eq!(machine.call("find_any", "dog cat", "").as_deref(), Some("1"));
    assert_eq!(machine.call("forget", "300", ""), None);
}

#[test]
fn word_count_example_counts_all_or_some() {
    let mut machine = example("word_count.lua", "mem:hash");
    machine.db.set(b"k1", b"a b a").unwrap();
    machine.db.set(b"k2", b"B c").unwrap();
    assert_eq!(machine.call("word_count", "", "").as_deref(), Some("a\t2\nb\t2\nc\t1"));
    assert_eq!(machine.call("word_count", "k2 missing", "").as_deref(), Some("b\t1\nc\t1"));
}

#[test]
fn counter_example_counts_in_each_form() {
    let mut machine = example("counters.lua", "mem:hash");
    assert_eq!(machine.call("count", "n", "5").as_deref(), Some("5"));
    assert_eq!(machine.call("count", "n", "-7").as_deref(), Some("-2"));
    assert_eq!(machine.db.get(b"n").unwrap().unwrap(), b"-2");
    assert_eq!(machine.call("count_to", "n", "-1").as_deref(), Some("-1"));
    assert_eq!(machine.call("count_to", "n", "-1").as_deref(), Some("-1"));
    assert_eq!(machine.call("count_binary", "b", "3").as_deref(), Some("3"));
}
