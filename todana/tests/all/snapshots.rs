//! Snapshots on each kind of database, under concurrent writes.

use crate::kinds;

use kinds::on_each_kind;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use todana::{ErrorKind, Records, UpdateAction};

fn all(records: &impl Records) -> BTreeMap<Vec<u8>, Vec<u8>> {
    records.iter().map(Result::unwrap).collect()
}

#[test]
fn snapshot_shows_old_records_in_every_way() {
    on_each_kind(|db| {
        for number in 0..3000u32 {
            db.set(&number.to_be_bytes(), &number.to_le_bytes()).unwrap();
        }
        let before = all(&db);
        let snapshot = db.snapshot().unwrap();
        for number in 0..4000u32 {
            let key = number.to_be_bytes();
            match number % 4 {
                0 => drop(db.remove(&key).unwrap()),
                1 => db.set(&key, b"new").unwrap(),
                2 => db.append(&key, b"more").unwrap(),
                _ => {}
            }
        }
        let transaction = db.begin().unwrap();
        for number in (3..4000u32).step_by(8) {
            transaction.set(&number.to_be_bytes(), b"committed").unwrap();
        }
        transaction.commit().unwrap();
        assert_eq!(all(&snapshot), before);
        for number in 0..4000u32 {
            let key = number.to_be_bytes();
            assert_eq!(snapshot.get(&key).unwrap().as_ref(), before.get(&key[..]), "{number}");
        }
        let (mut cursor, mut seen) = (snapshot.cursor(), BTreeSet::new());
        let mut is_there = cursor.first().unwrap();
        while is_there {
            seen.insert(cursor.key().unwrap().to_vec());
            is_there = cursor.step().unwrap();
        }
        assert!(seen.iter().eq(before.keys()));
        if db.is_ordered() {
            let back: Vec<_> = snapshot.iter().rev().map(Result::unwrap).collect();
            assert!(back.into_iter().rev().eq(before.clone()));
            assert_eq!(snapshot.range(7u32.to_be_bytes()..19u32.to_be_bytes()).unwrap().count(), 12);
        }
        // A later snapshot contains the present state.
        assert_eq!(all(&db.snapshot().unwrap()), all(&db));
    });
}

/// `Snapshot::scan` once continued at the same key if that record had changed. A caller that
/// stopped after each record of an ordered database received the changed record again and again,
/// without end.
#[test]
fn ordered_snapshot_scan_resumes_after_each_record() {
    on_each_kind(|db| {
        db.set_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")]).unwrap();
        let snapshot = db.snapshot().unwrap();
        db.set(b"b", b"20").unwrap();
        db.remove(b"d").unwrap();
        db.set(b"e", b"50").unwrap();
        let (mut seen, mut place) = (Vec::new(), None);
        for _ in 0..5 {
            let mut has_broken = false;
            place = snapshot
                .scan(place, &mut |key, record| {
                    // A record that was passed after the break is not passed again.
                    seen.push((key.to_vec(), record.value.to_vec()));
                    has_broken = true;
                    ControlFlow::Break(())
                })
                .unwrap();
            if place.is_none() {
                break;
            }
            assert!(has_broken);
        }
        assert!(place.is_none(), "goes on without end: {seen:?}");
        if !db.is_ordered() {
            seen.sort();
        }
        let expected = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")];
        assert_eq!(seen, expected.map(|(key, value)| (key.to_vec(), value.to_vec())));
    });
}

#[test]
fn snapshot_is_consistent_under_writes() {
    on_each_kind(|db| {
        // The left record is always written first.
        db.set_many(&[(b"left", b"0"), (b"right", b"0")]).unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in (1u32..).take_while(|_| !ends.load(Ordering::Relaxed)) {
                    db.set(b"left", round.to_string().as_bytes()).unwrap();
                    db.set(b"right", round.to_string().as_bytes()).unwrap();
                }
            });
            for _ in 0..200 {
                let snapshot = db.snapshot().unwrap();
                let number = |key: &[u8]| -> u32 {
                    String::from_utf8(snapshot.get(key).unwrap().unwrap()).unwrap().parse().unwrap()
                };
                let (right, left) = (number(b"right"), number(b"left"));
                assert!(left == right || left == right + 1, "{left} and {right}");
                assert_eq!((number(b"right"), number(b"left")), (right, left));
            }
            ends.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn snapshot_is_read_only_and_ends_by_clear() {
    on_each_kind(|db| {
        db.set(b"a", b"1").unwrap();
        let snapshot = db.snapshot().unwrap();
        for error in [
            snapshot.set(b"a", b"2").unwrap_err(),
            snapshot.remove(b"a").unwrap_err(),
            snapshot.update(b"a", &mut |_| UpdateAction::Remove).unwrap_err(),
        ] {
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (ErrorKind::Invalid, "snapshot: is read-only")
            );
        }
        snapshot
            .update(b"a", &mut |record| {
                assert_eq!(record.unwrap().value, b"1");
                UpdateAction::Keep
            })
            .unwrap();
        let transaction = db.begin().unwrap();
        assert_eq!(db.snapshot().unwrap_err().kind(), ErrorKind::Busy);
        transaction.abort();
        db.clear().unwrap();
        assert_eq!(snapshot.get(b"a").unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(snapshot.iter().next().unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(db.snapshot().unwrap().get(b"a").unwrap(), None);
    });
}
