//! Operations on many records, on each kind of database.

use crate::kinds;

use kinds::on_each_kind;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use todana::{Error, ErrorKind, Records, UpdateAction};

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

#[test]
fn bulk_change_is_atomic() {
    on_each_kind(|db| {
        db.set_many(&[(b"left", b"0"), (b"right", b"0")]).unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let reader = {
            let (db, ends) = (db.clone(), Arc::clone(&ends));
            thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    // The right record is written together with the left one and read later, so it
                    // is never older.
                    let left = number(&db.get(b"left").unwrap().unwrap());
                    let right = number(&db.get(b"right").unwrap().unwrap());
                    assert!(right >= left, "{right} beside {left}");
                }
            })
        };
        for _ in 0..200 {
            db.visit_many(&[b"left", b"right", b"absent"], &mut |key, record| match record {
                Some(record) => UpdateAction::Value((number(record.value) + 1).to_string().into_bytes()),
                None => {
                    assert_eq!(key, b"absent");
                    UpdateAction::Keep
                }
            })
            .unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        assert_eq!(db.get(b"left").unwrap(), db.get(b"right").unwrap());
        assert_eq!(db.get(b"right").unwrap(), Some(b"200".to_vec()));
        // The same record is named twice.
        let mut grow = |_: &[u8], record: Option<todana::Record<'_>>| {
            UpdateAction::Value([record.map_or(&b""[..], |record| record.value), b"x"].concat())
        };
        db.visit_many(&[b"twice", b"twice"], &mut grow).unwrap();
        assert_eq!(db.get(b"twice").unwrap(), Some(b"xx".to_vec()));
    });
}

#[test]
fn update_walk_visits_every_record() {
    on_each_kind(|db| {
        for number in 0..3000u32 {
            db.set(number.to_string().as_bytes(), b"0").unwrap();
        }
        let changed = db.update_each(&mut |key, _| match number(key) % 3 {
            0 => UpdateAction::Remove,
            1 => UpdateAction::Value(key.to_vec()),
            _ => UpdateAction::Keep,
        });
        assert_eq!(changed.unwrap(), 2000);
        assert_eq!(db.count(), 2000);
        for item in db.iter() {
            let (key, value) = item.unwrap();
            match number(&key) % 3 {
                0 => panic!("{key:?} is still there"),
                1 => assert_eq!(key, value),
                _ => assert_eq!(value, b"0"),
            }
        }
    });
}

#[test]
fn parallel_scan_sees_every_record_under_writes() {
    on_each_kind(|db| {
        for number in 0..5000u32 {
            db.set(number.to_string().as_bytes(), b"v").unwrap();
        }
        let seen = Mutex::new(BTreeMap::new());
        db.scan_parallel(Some(3), &|key, record| {
            assert_eq!(record.value, b"v");
            *seen.lock().entry(key.to_vec()).or_insert(0) += 1;
            db.remove(key).map(|_| ())
        })
        .unwrap();
        let seen = seen.into_inner();
        assert_eq!(seen.len(), 5000);
        assert!(seen.values().all(|&count| count == 1));
        assert_eq!(db.count(), 0);
    });
}

#[test]
fn first_error_ends_a_parallel_scan() {
    on_each_kind(|db| {
        for number in 0..5000u32 {
            db.set(number.to_string().as_bytes(), b"v").unwrap();
        }
        let failing = |_: &[u8], _: todana::Record<'_>| Err(Error::new(ErrorKind::Full, "enough"));
        let error = db.scan_parallel(Some(2), &failing).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Full, "enough"));
        // The transaction is not open any longer.
        db.set(b"a", b"b").unwrap();
    });
}

/// As in Kyoto Cabinet's `accept_bulk`: if the visitor fails, the changes of earlier keys are
/// undone.
#[test]
fn visit_of_many_that_panics_changes_nothing() {
    on_each_kind(|db| {
        db.set_many(&[(b"a", b"1"), (b"b", b"2")]).unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            db.visit_many(&[b"a", b"new", b"b"], &mut |key, record| match (key, record) {
                (b"b", _) => panic!("on purpose"),
                (_, Some(_)) => UpdateAction::Remove,
                (_, None) => UpdateAction::Value(b"made".to_vec()),
            })
        }));
        assert!(outcome.is_err());
        let records: Vec<_> = db.iter().map(Result::unwrap).collect();
        assert_eq!((records.len(), db.get(b"new").unwrap()), (2, None));
        assert_eq!(db.get(b"a").unwrap().unwrap(), b"1");
        // The transaction has ended, so other threads may write.
        db.set(b"c", b"3").unwrap();
    });
}
