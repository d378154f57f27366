//! Tests snapshots and copies: their contents, and the files that a script can access.

use std::path::Path;
use std::sync::Arc;
use todana::kyoto::KyotoRecords;
use todana::{Db, Records};
use todana_script::{Interpreter, ProcedureOutcome, Program, ScriptOptions};

/// Runs the body of a procedure on databases, with a folder for its files.
fn run(databases: &[&Db], options: &ScriptOptions, text: &str) -> ProcedureOutcome {
    let text = format!(
        "kt = __kyototycoon__ db = kt.db
        function e(db) local e = db:error() return e:code() .. ' ' .. e:message() end
        function go(input, output) {text} return 0 end"
    );
    let program = Program::new("test.lua", text.as_bytes()).unwrap();
    let databases =
        databases.iter().map(|db| Arc::new((*db).clone()) as Arc<dyn todana_script::ScriptDatabase>);
    let outcome =
        Interpreter::new(&program, databases.collect(), 0, options).unwrap().call(b"go", []).unwrap();
    assert_eq!(outcome.error, None);
    outcome
}

fn output_of(outcome: &ProcedureOutcome, name: &str) -> String {
    String::from_utf8(outcome.output[name.as_bytes()].clone()).unwrap()
}

fn within(folder: &Path) -> ScriptOptions {
    ScriptOptions { files: Some(folder.to_owned()), ..ScriptOptions::default() }
}

#[test]
fn snapshot_round_trips_as_kyoto_cabinet_dump() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["mem:hash", "mem:tree"] {
        let db = Db::open(name).unwrap();
        let outcome = run(
            &[&db],
            &within(folder.path()),
            "db:set('japan', 'tokyo')
            output.dumped = tostring(db:dump_snapshot('s'))
            db:set('japan', 'kyoto') db:set('k2', 'v', -2000000000) db:clear() db:set('other', 'stays')
            output.loaded = tostring(db:load_snapshot('s'))
            output.all = db:get('japan') .. db:get('other') .. db:count()",
        );
        assert_eq!((&*output_of(&outcome, "dumped"), &*output_of(&outcome, "loaded")), ("true", "true"));
        assert_eq!(output_of(&outcome, "all"), "tokyostays2");
        let dump = b"KCSS\n\0\0\x05\x0Ajapan\xFF\xFF\xFF\xFF\xFFtokyo\xFF";
        assert_eq!(std::fs::read(folder.path().join("s")).unwrap(), dump);
    }
}

#[test]
fn snapshot_keeps_expiry_unless_the_database_is_persistent() {
    let folder = tempfile::tempdir().unwrap();
    let (mortal, persistent) = (Db::open("%").unwrap(), Db::open("%#ktopts=p").unwrap());
    run(
        &[&mortal, &persistent],
        &within(folder.path()),
        "for number, db in ipairs(kt.dbs) do
          db:set('k', 'v', -2000000000) db:dump_snapshot(number) db:clear() db:load_snapshot(number)
        end",
    );
    let mut time = None;
    assert!(KyotoRecords::new(&mortal, false).view(b"k", &mut |_, at| time = at).unwrap());
    assert_eq!(time, Some(2_000_000_000));
    assert_eq!(std::fs::read(folder.path().join("2")).unwrap(), b"KCSS\n\0\0\x01\x01kv\xFF");
    assert_eq!(persistent.get(b"k").unwrap().unwrap(), b"v");
}

#[test]
fn script_cannot_leave_its_folder() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let away = outside.path().join("s");
    std::fs::write(&away, b"KCSS\n\0\xFF").unwrap();
    std::os::unix::fs::symlink(&away, folder.path().join("link")).unwrap();
    std::os::unix::fs::symlink(outside.path(), folder.path().join("door")).unwrap();
    std::fs::write(folder.path().join("script.lua"), b"-- not a dump").unwrap();
    std::fs::create_dir(folder.path().join("in")).unwrap();
    let db = Db::open("mem:hash").unwrap();
    db.set(b"a", b"1").unwrap();
    for path in
        ["../s", "in/../../s", "link", "door/s", "door/new", &away.display().to_string(), "/s", ".", ".."]
    {
        let text = format!(
            "for _, what in ipairs {{ 'dump_snapshot', 'load_snapshot' }} do
              output[what] = tostring(db[what](db, [[{path}]])) .. ' ' .. e(db)
            end"
        );
        let outcome = run(&[&db], &within(folder.path()), &text);
        for what in ["dump_snapshot", "load_snapshot"] {
            assert_eq!(output_of(&outcome, what), "false 4 permission denied", "{what} {path}");
        }
    }
    assert_eq!(std::fs::read(&away).unwrap(), b"KCSS\n\0\xFF");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    // An existing file that is not a dump is kept.
    let outcome = run(&[&db], &within(folder.path()), "output.is = tostring(db:dump_snapshot('script.lua'))");
    assert_eq!(output_of(&outcome, "is"), "false");
    assert_eq!(std::fs::read(folder.path().join("script.lua")).unwrap(), b"-- not a dump");
    let outcome = run(
        &[&db],
        &within(folder.path()),
        "output.is = tostring(db:dump_snapshot('in/s') and db:load_snapshot('./in/s'))",
    );
    assert_eq!(output_of(&outcome, "is"), "true");
    // Without a folder, a script cannot use any file.
    let outcome =
        run(&[&db], &ScriptOptions::default(), "output.is = tostring(db:dump_snapshot('s')) .. ' ' .. e(db)");
    assert_eq!(output_of(&outcome, "is"), "false 4 permission denied");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4, "no draft stays");
}

#[test]
fn invalid_snapshots_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open("mem:hash").unwrap();
    let cases: [(&str, &[u8], &str); 5] = [
        ("junk", b"junkjunk", "2 invalid magic data of input stream"),
        ("empty", b"", "9 stream input error"),
        ("cut", b"KCSS\n\0\0\x05\x0Ajapan", "9 stream input error"),
        ("long", b"KCSS\n\0\0\x05\xAF\xFF\xFF\x7Fjapan", ""),
        ("short", b"KCSS\n\0\0\x01\x02kvv\xFF", "5 a record without its time"),
    ];
    for (name, bytes, trouble) in cases {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let text = format!(
            "output.fine = tostring(select(2, pcall(db.load_snapshot, db, '{name}'))) output.e = e(db)"
        );
        let outcome = run(&[&db], &within(folder.path()), &text);
        if trouble.is_empty() {
            assert!(output_of(&outcome, "fine").contains("does not fit into memory"), "{outcome:?}");
        } else {
            assert_eq!(
                (&*output_of(&outcome, "fine"), &*output_of(&outcome, "e")),
                ("false", trouble),
                "{name}"
            );
        }
    }
    for what in ["dump_snapshot", "load_snapshot"] {
        let text = format!("output.is = tostring(db:{what}('nowhere/s')) .. ' ' .. e(db)");
        assert_eq!(output_of(&run(&[&db], &within(folder.path()), &text), "is"), "false 3 open failed");
    }
    assert_eq!(db.count(), 0);
}

#[test]
fn copy_is_an_identical_database() {
    let folder = tempfile::tempdir().unwrap();
    for suffix in ["hash", "kct"] {
        let path = folder.path().join(format!("own.{suffix}"));
        let db = Db::open(path.to_str().unwrap()).unwrap();
        db.set(b"a", b"1").unwrap();
        let text = format!(
            "output.first = tostring(db:copy('copy.{suffix}'))
            output.again = tostring(db:copy('copy.{suffix}')) .. ' ' .. e(db)
            output.odd = tostring(db:copy('copy')) .. ' ' .. e(db)"
        );
        let outcome = run(&[&db], &within(folder.path()), &text);
        assert_eq!(output_of(&outcome, "first"), "true");
        assert_eq!(output_of(&outcome, "again"), "false 8 postprocessing failed");
        assert_eq!(output_of(&outcome, "odd"), "false 2 unknown database type");
        let copy = Db::open(folder.path().join(format!("copy.{suffix}")).to_str().unwrap()).unwrap();
        assert_eq!((copy.count(), copy.get(b"a").unwrap()), (1, Some(b"1".to_vec())));
    }
    // This is as in the original.
    let db = Db::open("mem:hash").unwrap();
    let outcome =
        run(&[&db], &within(folder.path()), "output.is = tostring(db:copy('c.hash')) .. ' ' .. e(db)");
    assert_eq!(output_of(&outcome, "is"), "false 8 postprocessing failed");
}
