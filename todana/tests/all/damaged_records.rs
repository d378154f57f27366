//! If a record is damaged on disk, it does not count as missing, and the damage does not count as a
//! lack of space.

use std::path::Path;
use todana::{Db, ErrorKind, Records, Ttl};
use todana_core::{Arithmetic, Operation, RefusalReason, RefusedStore, Reply, StoreMode};

/// Flips a bit of the only occurrence of `bytes` in the files of a folder.
fn damage(folder: &Path, bytes: &[u8]) {
    let mut spoiled = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "segment") {
            continue;
        }
        let mut contents = std::fs::read(&path).unwrap();
        if let Some(at) = contents.windows(bytes.len()).position(|window| window == bytes) {
            contents[at] ^= 1;
            std::fs::write(&path, contents).unwrap();
            spoiled += 1;
        }
    }
    assert_eq!(spoiled, 1);
}

#[test]
fn damaged_record_is_reported_by_every_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.hash");
    let name = path.to_str().unwrap();
    let db = Db::open(name).unwrap();
    db.set(b"crane", b"one whose bytes will change").unwrap();
    db.set(b"heron", b"whole").unwrap();
    drop(db);
    damage(&path, b"one whose bytes");

    let db = Db::open(name).unwrap();
    let damaged = |outcome: todana::Result<bool>| {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Corrupt);
    };
    damaged(db.get(b"crane").map(|value| value.is_some()));
    damaged(db.view(b"crane", &mut |_| ()));
    damaged(db.contains(b"crane"));
    damaged(db.get_record(b"crane").map(|record| record.is_some()));
    damaged(db.add(b"crane", b"new"));
    damaged(db.touch(b"crane", Ttl::Seconds(9)));
    damaged(db.seize(b"crane").map(|value| value.is_some()));
    let error = db.get_many(&[b"heron", b"crane"]).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().contains("record \"crane\":")),
        (ErrorKind::Corrupt, true),
        "{error}"
    );
    let each = db.get_each(&[b"heron", b"crane", b"egret"]);
    assert_eq!(each[0].as_ref().unwrap().as_deref(), Some(&b"whole"[..]));
    assert_eq!(each[1].as_ref().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!((each.len(), each[2].as_ref().unwrap()), (3, &None));
    let before = db.database().counters();
    damaged(db.get(b"crane").map(|value| value.is_some()));
    let after = db.database().counters();
    assert_eq!(after.cmd_get, before.cmd_get + 1);
    assert_eq!((after.get_hits, after.get_misses), (before.get_hits, before.get_misses), "it is neither");
    let mut reported = Vec::new();
    let sum = Operation::Arithmetic(Arithmetic { key: b"crane", delta: 1, ..Arithmetic::default() });
    db.execute(&sum, &mut |reply| reported.push(matches!(reply, Reply::Refused(RefusalReason::Damaged))))
        .unwrap();
    assert_eq!(reported, [true]);
    assert_eq!(db.get(b"heron").unwrap().as_deref(), Some(&b"whole"[..]));
    assert_eq!(db.get(b"egret").unwrap(), None);
}

#[test]
fn damaged_record_can_be_overwritten_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.hash");
    let name = path.to_str().unwrap();
    let db = Db::open(name).unwrap();
    db.set(b"crane", b"one whose bytes will change").unwrap();
    db.set(b"heron", b"whole").unwrap();
    db.set(b"egret", b"another, as bad as the first").unwrap();
    drop(db);
    damage(&path, b"one whose bytes");
    damage(&path, b"another, as bad");

    let db = Db::open(name).unwrap();
    assert_eq!(db.get(b"crane").unwrap_err().kind(), ErrorKind::Corrupt);
    db.set(b"crane", b"new").unwrap();
    assert!(db.remove(b"egret").unwrap());
    assert!(!db.remove(b"egret").unwrap());
    let is_as_it_should = |db: &Db| {
        assert_eq!(db.get(b"crane").unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(db.get(b"heron").unwrap().as_deref(), Some(&b"whole"[..]));
        assert_eq!(db.get(b"egret").unwrap(), None);
        assert_eq!(db.count(), 2);
    };
    is_as_it_should(&db);
    drop(db);
    is_as_it_should(&Db::open(name).unwrap());
}

#[test]
fn write_past_own_transaction_is_busy() {
    let db = Db::open("mem:hash").unwrap();
    db.set(b"crane", b"1").unwrap();
    let transaction = db.begin().unwrap();
    transaction.set(b"crane", b"2").unwrap();
    assert_eq!(db.set(b"crane", b"3").unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(db.remove(b"crane").unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(db.touch(b"crane", Ttl::Seconds(9)).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(db.get(b"crane").unwrap().as_deref(), Some(&b"1"[..]));
    transaction.commit().unwrap();
    assert_eq!(db.get(b"crane").unwrap().as_deref(), Some(&b"2"[..]));
}

/// Returns a reopened database with the records "crane0" to "crane9", all of them damaged.
fn damaged_cranes(path: &Path) {
    let db = Db::open(path.to_str().unwrap()).unwrap();
    let value = |n: u32| format!("number {n} of those whose bytes will change");
    (0..10).for_each(|n| db.set(format!("crane{n}").as_bytes(), value(n).as_bytes()).unwrap());
    drop(db);
    (0..10).for_each(|n| damage(path, value(n).as_bytes()));
}

#[test]
fn transaction_overwrites_and_removes_damaged_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.hash");
    damaged_cranes(&path);
    let db = Db::open(path.to_str().unwrap()).unwrap();
    // A snapshot must keep the old state of replaced records.
    let snapshot = db.snapshot().unwrap();
    let transaction = db.begin().unwrap();
    assert_eq!(transaction.touch(b"crane1", Ttl::Seconds(9)).unwrap_err().kind(), ErrorKind::Corrupt);
    transaction.set(b"crane1", b"new").unwrap();
    assert!(transaction.remove(b"crane2").unwrap());
    assert_eq!(transaction.get(b"crane2").unwrap(), None);
    transaction.commit().unwrap();
    db.set_many(&[(b"crane3", b"new"), (b"heron", b"new")]).unwrap();
    assert_eq!(db.remove_many(&[b"crane4", b"egret"]).unwrap(), 1);
    drop(snapshot);
    let is_as_it_should = |db: &Db| {
        for key in [&b"crane1"[..], b"crane3", b"heron"] {
            assert_eq!(db.get(key).unwrap().as_deref(), Some(&b"new"[..]));
        }
        assert_eq!(db.get(b"crane2").unwrap(), None);
        assert_eq!(db.get(b"crane4").unwrap(), None);
        assert_eq!(db.get(b"crane5").unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(db.count(), 9);
    };
    is_as_it_should(&db);
    drop(db);
    is_as_it_should(&Db::open(path.to_str().unwrap()).unwrap());
}

#[test]
fn damaged_records_count_against_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.hash");
    damaged_cranes(&path);
    let db = Db::open(&format!("{}#capcnt=100", path.display())).unwrap();
    for n in 0..2000 {
        db.set(format!("heron{n}").as_bytes(), b"whole").unwrap();
        assert!(db.count() <= 100, "{} records after {n} writes", db.count());
    }
    assert!(db.count() >= 90);
    // Damaged records are evicted like others.
    assert_eq!(db.get(b"crane0").unwrap(), None);
    assert_eq!(db.get(b"heron1999").unwrap().as_deref(), Some(&b"whole"[..]));
}

#[test]
fn refused_store_leaves_a_damaged_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.hash");
    damaged_cranes(&path);
    let db = Db::open(path.to_str().unwrap()).unwrap();
    let refused = RefusedStore {
        key: b"crane0",
        value_len: 1 << 31,
        flags: 0,
        mode: StoreMode::Set,
        compares: false,
        discards: true,
        refusal: RefusalReason::TooLarge,
    };
    db.execute(&Operation::RefusedStore(refused), &mut |_| ()).unwrap();
    assert_eq!(db.get(b"crane0").unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn damaged_records_leave_room_for_others() {
    for limit in ["capcnt=10", "capcnt=3", "capsiz=1000"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words.hash");
        damaged_cranes(&path);
        let name = format!("{}#{limit}", path.display());
        let db = Db::open(&name).unwrap();
        for n in 0..100 {
            let key = format!("heron{n}");
            db.set(key.as_bytes(), b"whole").unwrap();
            assert_eq!(db.get(key.as_bytes()).unwrap().as_deref(), Some(&b"whole"[..]), "{limit}");
        }
        let is_within = |db: &Db| {
            let of_records = db.count() <= 10 || limit == "capsiz=1000";
            of_records && (0..10).all(|n| db.get(format!("crane{n}").as_bytes()).is_ok_and(|it| it.is_none()))
        };
        assert!(is_within(&db), "{limit}: {}", db.count());
        assert!(db.status().live_bytes <= 1500, "{limit}: {}", db.status().live_bytes);
        // Upkeep removes damaged records beyond the limit, but no intact one.
        assert_eq!(db.get(b"heron99").unwrap().as_deref(), Some(&b"whole"[..]));
        drop(db);
        assert!(is_within(&Db::open(&name).unwrap()), "{limit}");
    }
}

#[test]
fn skipped_parts_are_noted_at_opening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.hash");
    damaged_cranes(&path);
    let db = Db::open(path.to_str().unwrap()).unwrap();
    assert_eq!(db.notes(), [""; 0]);
    db.set(b"crane1", b"new").unwrap();
    db.set(b"crane2", b"new").unwrap();
    db.sync().unwrap();
    // A killed process leaves the directory in this state: the index is older than the segments.
    let killed = folder.path().join("killed.hash");
    std::fs::create_dir(&killed).unwrap();
    for entry in std::fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), killed.join(entry.file_name())).unwrap();
    }
    let again = Db::open(killed.to_str().unwrap()).unwrap();
    assert!(again.notes()[0].contains("2 damaged entries were ignored"), "{:?}", again.notes());
    assert_eq!(again.notes().len(), 1);
    assert_eq!(again.get(b"crane1").unwrap().as_deref(), Some(&b"new"[..]));
    drop(again);
    let whole = folder.path().join("whole.hash");
    Db::open(whole.to_str().unwrap()).unwrap().set(b"heron", b"1").unwrap();
    std::fs::remove_file(whole.join("index")).unwrap();
    let without = Db::open(whole.to_str().unwrap()).unwrap();
    assert!(without.notes()[0].contains(": no index, "), "{:?}", without.notes());
    assert_eq!(without.count(), 1);
}
