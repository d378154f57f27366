//! Moving records from one database to another, on each kind.

use crate::kinds;

use kinds::{names, on_each_kind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use todana::{Db, ErrorKind, Expiry, LoadSummary, MergePolicy, OwnedRecord, Records, Ttl};

fn all(db: &Db) -> BTreeMap<Vec<u8>, OwnedRecord> {
    db.iter().records().map(Result::unwrap).collect()
}

fn text(db: &Db, key: &[u8]) -> Option<String> {
    db.get(key).unwrap().map(|value| String::from_utf8(value).unwrap())
}

#[test]
fn merged_records_set_add_replace_or_append() {
    for (mode, expected, count) in [
        (MergePolicy::Set, ["new", "b2", "c2"], 3),
        (MergePolicy::Add, ["old", "b1", "c2"], 1),
        (MergePolicy::Replace, ["new", "b2", ""], 2),
        (MergePolicy::Append, ["oldnew", "b1b2", "c2"], 3),
    ] {
        on_each_kind(|db| {
            let (one, other) = (Db::open("mem:hash").unwrap(), Db::open("mem:tree").unwrap());
            db.set_with(b"a", b"old", Ttl::Never, 1).unwrap();
            db.set(b"b", b"b1").unwrap();
            one.set_with(b"a", b"new", Ttl::Seconds(1000), 2).unwrap();
            other.set_many(&[(b"b", b"b2"), (b"c", b"c2")]).unwrap();
            assert_eq!(db.merge(&[&one, &other], mode).unwrap(), count);
            let values = [b"a", b"b", b"c"].map(|key| text(&db, key).unwrap_or_default());
            assert_eq!(values, expected, "{mode:?}");
            let flags = db.get_record(b"a").unwrap().unwrap().flags;
            assert_eq!(flags, if matches!(mode, MergePolicy::Set | MergePolicy::Replace) { 2 } else { 1 });
            assert_eq!(db.merge(&[&db.clone()], mode).unwrap_err().kind(), ErrorKind::Invalid);
        });
    }
}

#[test]
fn dump_round_trips_records_and_attributes() {
    on_each_kind(|db| {
        for number in 0..2500u32 {
            db.set_with(&number.to_be_bytes(), &[number as u8, b'\t', b'\n'], Ttl::Never, number % 3)
                .unwrap();
        }
        db.set_with(b"timed", b"t", Ttl::Seconds(5000), 0).unwrap();
        db.set_with(b"sliding", b"s", Ttl::Sliding(900), 9).unwrap();
        let mut dumped = Vec::new();
        assert_eq!(db.dump(&mut dumped).unwrap(), 2502);
        let again = Db::open("mem:tree").unwrap();
        assert_eq!(again.load(&mut dumped.as_slice()).unwrap(), LoadSummary { stored: 2502, expired: 0 });
        let (mut one, mut other) = (all(&db), all(&again));
        // The span of the sliding expiry has started again.
        let spans =
            [&mut one, &mut other].map(|records| records.remove(&b"sliding"[..]).unwrap().expiry.span_s());
        assert_eq!(spans, [Some(900), Some(900)]);
        assert!(one == other);
    });
}

#[test]
fn invalid_dump_line_is_named() {
    on_each_kind(|db| {
        let error = db.load(&mut &b"a\t1\nno tab\nc\t3\n"[..]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), "line 2: no tab between key and value");
        assert_eq!((text(&db, b"a").as_deref(), text(&db, b"c")), (Some("1"), None));
        let loaded = db.load(&mut &b"dead\t1\t0\t5\nd\t4\t\t0\nlast\tx"[..]).unwrap();
        assert_eq!(loaded, LoadSummary { stored: 2, expired: 1 });
        assert_eq!(db.get_record(b"d").unwrap().unwrap().expiry, Expiry::Never);
        assert_eq!(text(&db, b"last").as_deref(), Some("x"));
    });
}

/// Stops the other threads when it is dropped, even after a failed check.
struct StopOnDrop<'e>(&'e AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn copy_is_consistent_under_writes() {
    for (folder, name) in names() {
        let db = Db::open(&name).unwrap();
        let pair =
            |number: u32| [format!("left {number}").into_bytes(), format!("right {number}").into_bytes()];
        for number in 0..1000 {
            pair(number).iter().for_each(|key| db.set(key, b"0").unwrap());
        }
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ends = StopOnDrop(&ends);
            scope.spawn(|| {
                for round in (1u32..).take_while(|_| !ends.load(Ordering::Relaxed)) {
                    let transaction = db.begin().unwrap();
                    for key in pair(round % 1000) {
                        transaction.set(&key, round.to_string().as_bytes()).unwrap();
                    }
                    transaction.commit().unwrap();
                }
            });
            for kind in ["hash", "tree"] {
                let place = folder.path().join(format!("copy.{kind}"));
                let place = place.to_str().unwrap();
                assert_eq!(db.copy(place).unwrap(), 2000);
                let copy = Db::open(place).unwrap();
                for number in 0..1000 {
                    let [left, right] = pair(number).map(|key| text(&copy, &key).unwrap());
                    assert_eq!(left, right, "{name} to {kind}");
                }
                assert_eq!(db.copy(place).unwrap_err().kind(), ErrorKind::Invalid);
            }
        });
        assert!(db.copy("mem:hash").unwrap_err().to_string().contains("a copy in memory would be lost"));
    }
}
