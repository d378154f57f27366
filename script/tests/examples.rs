//! Runs the example scripts on ordered and unordered databases.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use todana::{Db, Records};
use todana_script::{Interpreter, Program, ScriptOptions, codes};

struct Shop {
    interpreter: Interpreter,
    db: Db,
}

impl Shop {
    fn call(&mut self, name: &str, input: &[(&str, &str)]) -> (u32, BTreeMap<String, String>) {
        let input = input.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let outcome = self.interpreter.call(name.as_bytes(), input).unwrap();
        assert_eq!((outcome.error.as_deref(), name), (None, name));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let output = outcome.output.into_iter().map(|(name, value)| (text(name), text(value)));
        (outcome.code, output.collect())
    }

    /// Returns the code and the output of a procedure. The output is a list of words `name=value`.
    fn call_to_text(&mut self, name: &str, input: &[(&str, &str)]) -> (u32, String) {
        let (code, output) = self.call(name, input);
        let words: Vec<_> = output.iter().map(|(name, value)| format!("{name}={value}")).collect();
        (code, words.join(" "))
    }
}

fn on_each(example: &str, try_out: impl Fn(&mut Shop)) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/lua").join(example);
    let program = Program::load(path).unwrap();
    for name in ["mem:hash", "mem:tree"] {
        let db = Db::open(name).unwrap();
        let databases: Vec<Arc<dyn todana_script::ScriptDatabase>> = vec![Arc::new(db.clone())];
        let interpreter = Interpreter::new(&program, databases, 3, &ScriptOptions::default()).unwrap();
        try_out(&mut Shop { interpreter, db });
    }
}

#[test]
fn echo_returns_its_input() {
    on_each("echo.lua", |shop| {
        assert_eq!(shop.call_to_text("echo", &[("a", "1"), ("bb", ""), ("", "x")]), (0, "=x a=1 bb=".into()));
        assert_eq!(shop.call_to_text("echo", &[]), (0, String::new()));
    });
}

#[test]
fn snapshot_restores_the_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/lua/snapshot.lua");
    let options = ScriptOptions { files: Some(folder.path().to_owned()), ..ScriptOptions::default() };
    let db = Db::open("mem:hash").unwrap();
    let program = Program::load(path).unwrap();
    let mut interpreter = Interpreter::new(&program, vec![Arc::new(db.clone())], 0, &options).unwrap();
    for keep in [&b"keep"[..], b"keepnow"] {
        db.set(b"a", keep).unwrap();
        assert_eq!(interpreter.call(keep, []).unwrap().code, codes::SUCCESS);
        db.remove(b"a").unwrap();
        assert_eq!(interpreter.call(b"restore", []).unwrap().code, codes::SUCCESS);
        assert_eq!(db.get(b"a").unwrap().unwrap(), keep);
    }
    std::fs::remove_file(folder.path().join("records.kcss")).unwrap();
    assert_eq!(interpreter.call(b"restore", []).unwrap().code, codes::INTERNAL);
}

#[test]
fn counters_count() {
    on_each("counters.lua", |shop| {
        assert_eq!(shop.call_to_text("visit", &[("page", "/a")]), (0, "visits=1".into()));
        assert_eq!(shop.call_to_text("visit", &[("page", "/a")]), (0, "visits=2".into()));
        assert_eq!(shop.call_to_text("visit", &[("page", "/b")]), (0, "visits=1".into()));
        assert_eq!(shop.call_to_text("visit", &[]), (codes::INVALID, String::new()));
        assert_eq!(shop.call_to_text("report", &[]), (0, "/a=2 /b=1".into()));
        assert_eq!(
            shop.call_to_text("pay", &[("account", "ada"), ("amount", "10.25")]),
            (0, "balance=10.25".into())
        );
        assert_eq!(
            shop.call_to_text("pay", &[("account", "ada"), ("amount", "-3.5")]),
            (0, "balance=6.75".into())
        );
        assert_eq!(shop.call_to_text("pay", &[("account", "ada"), ("amount", "-7")]).0, codes::LOGIC);
        assert_eq!(shop.db.get(b"visits:/a").unwrap().unwrap(), 2i64.to_be_bytes());
    });
}

#[test]
fn a_queue_gives_jobs_in_their_order() {
    on_each("queue.lua", |shop| {
        for (number, job) in ["wash", "dry", "fold"].iter().enumerate() {
            let call_to_text = shop.call_to_text("push", &[("queue", "q"), ("job", job)]);
            assert_eq!(call_to_text, (0, format!("number={}", number + 1)));
        }
        assert_eq!(shop.call_to_text("pop", &[("queue", "q")]), (0, "job=wash".into()));
        assert_eq!(shop.call_to_text("length", &[("queue", "q")]), (0, "length=2".into()));
        assert_eq!(shop.call_to_text("pop", &[("queue", "q")]), (0, "job=dry".into()));
        assert_eq!(shop.call_to_text("pop", &[("queue", "q")]), (0, "job=fold".into()));
        assert_eq!(shop.call_to_text("pop", &[("queue", "q")]).0, codes::LOGIC);
    });
}

#[test]
fn a_leaderboard_keeps_the_best() {
    on_each("leaderboard.lua", |shop| {
        for (player, points, best) in
            [("ada", "7", "7"), ("bob", "9", "9"), ("ada", "3", "7"), ("eve", "7", "7")]
        {
            let call_to_text =
                shop.call_to_text("score", &[("board", "b"), ("player", player), ("points", points)]);
            assert_eq!(call_to_text, (0, format!("best={best}")));
        }
        let top = shop.call_to_text("top", &[("board", "b"), ("count", "2")]);
        assert_eq!(top, (0, "1=bob 9 2=ada 7".into()));
        assert_eq!(shop.call_to_text("reset", &[("board", "b")]).0, 0);
        assert_eq!(shop.call_to_text("top", &[("board", "b"), ("count", "2")]), (0, String::new()));
        assert_eq!(shop.db.count(), 0);
    });
}

#[test]
fn swaps_lose_nothing() {
    on_each("swap.lua", |shop| {
        assert_eq!(shop.call_to_text("tag", &[("key", "k"), ("tag", "red")]), (0, "tags=red".into()));
        assert_eq!(shop.call_to_text("tag", &[("key", "k"), ("tag", "blue")]), (0, "tags=blue,red".into()));
        assert_eq!(shop.call_to_text("tag", &[("key", "k"), ("tag", "red")]), (0, "tags=blue,red".into()));
        assert_eq!(shop.call_to_text("lock", &[("name", "n"), ("owner", "ada")]), (0, String::new()));
        assert_eq!(shop.call("lock", &[("name", "n"), ("owner", "bob")]).0, codes::LOGIC);
        assert_eq!(shop.call_to_text("lock", &[("name", "n"), ("owner", "ada")]), (0, "owner=ada".into()));
        assert_eq!(shop.call("unlock", &[("name", "n"), ("owner", "bob")]).0, codes::LOGIC);
        assert_eq!(shop.call("unlock", &[("name", "n"), ("owner", "ada")]).0, codes::SUCCESS);
    });
}

#[test]
fn words_are_counted() {
    on_each("word_count.lua", |shop| {
        shop.db.set_many(&[(b"1", b"The cat and the dog"), (b"2", b"the end")]).unwrap();
        assert_eq!(shop.call_to_text("count", &[]), (0, "and=1 cat=1 dog=1 end=1 the=3".into()));
    });
}

#[test]
fn a_sweep_meets_every_record() {
    on_each("sweep.lua", |shop| {
        for number in 0..300 {
            let key = format!("{}{number}", if number % 3 == 0 { "tmp:" } else { "key:" });
            shop.db.set(key.as_bytes(), b"value").unwrap();
        }
        assert_eq!(shop.call_to_text("sweep", &[("prefix", "tmp:")]), (0, "left=200 removed=100".into()));
        let (code, output) = shop.call("dump", &[]);
        assert_eq!((code, output.len()), (0, 200));
        assert!(output.values().all(|value| value == "val") && output.contains_key("key:298"));
        let around = shop.call_to_text("around", &[("from", "key:100a")]);
        if shop.db.is_ordered() {
            assert_eq!(around, (0, "before=key:100 behind=key:101".into()));
        } else {
            assert_eq!(around, (codes::NOT_IMPLEMENTED, String::new()));
        }
    });
}

#[test]
fn a_transfer_is_made_or_not() {
    on_each("transfer.lua", |shop| {
        assert_eq!(shop.call_to_text("open", &[("ada", "100"), ("bob", "5")]), (0, String::new()));
        assert_eq!(shop.call_to_text("open", &[("ada", "7"), ("eve", "7")]).0, codes::LOGIC);
        let go = |shop: &mut Shop, amount| {
            shop.call_to_text("transfer", &[("from", "ada"), ("to", "bob"), ("amount", amount)])
        };
        assert_eq!(go(shop, "70"), (0, "left=30".into()));
        assert_eq!(go(shop, "31").0, codes::LOGIC);
        let outcome = shop.interpreter.call(b"forget", []).unwrap();
        assert_eq!(outcome.code, codes::INTERNAL);
        assert!(outcome.error.unwrap().contains("something came in between"));
        let has = |name: &[u8]| shop.db.get(name).unwrap().unwrap();
        assert_eq!((has(b"ada"), has(b"bob")), (30i64.to_be_bytes().to_vec(), 75i64.to_be_bytes().to_vec()));
        assert_eq!(shop.db.count(), 2);
    });
}

#[test]
fn the_tour_sees_every_word() {
    on_each("tour.lua", |shop| {
        let (code, output) = shop.call("words", &[]);
        let expected = [
            ("array", "a|2|"),
            ("base", "dG9kYW5h todana"),
            ("bits", "21"),
            ("clock", "true"),
            ("deflate", "round and round"),
            ("distance", "3 2 1"),
            ("ends", "true"),
            ("gzip", "round and round"),
            // Lua writes large numbers with fourteen digits.
            ("hash", "1.1484942931485e+14 1.0181334862778e+14"),
            ("hex", "01fe Lua"),
            ("number", "1578.25"),
            ("pack", "200 65535 1 300 70000"),
            ("place", "11"),
            ("regex", "22.11.2026"),
            ("replaced", "a%b%c"),
            ("url", "a%20b%26c a b c"),
            ("version", "0.9.56"),
            ("zlib", "round and round"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!((code, output), (0, BTreeMap::from(expected)));
        let (code, output) = shop.call("databases", &[]);
        let expected = [
            ("cleared", "true 0 0"),
            ("closed", "nil invalid operation: not opened"),
            ("count", "3"),
            ("error", "no record: none"),
            ("found", "3"),
            ("gone", "nil"),
            ("index", "x"),
            ("inner", "1"),
            ("merged", "true away"),
            ("occupied", "false processing failed"),
            ("process", "nil"),
            ("regex", "two"),
            ("removed", "1"),
            ("seen", "before,two,no six,after"),
            ("similar", "three"),
            ("six", "new 1099511627775"),
            ("size", "1 -1"),
            ("stored", "3"),
            ("synchronized", "true"),
            ("two", "22! 2000000000"),
            ("values", "22 333"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!((code, output), (0, BTreeMap::from(expected)));
    });
}
