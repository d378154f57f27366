//! A capacity in records, for simulations: the records held, evicted and refused.

mod visitor;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::{Engine, ErrorKind, Record};
use todana_engine::{EvictionGoal, MemHash, MemHashOptions};
use visitor::{Remove, Set};

fn hash(shards: usize, capacity: u64) -> MemHash {
    let options = MemHashOptions {
        seed: Some(1),
        shards: Some(shards),
        capacity_records: Some(capacity),
        ..Default::default()
    };
    MemHash::new(options).unwrap()
}

/// Values in a bucket, in a block of their own, and in a mapping of their own.
const LENGTHS: [usize; 3] = [10, 5_000, 100_000];

#[test]
fn newcomer_evicts_one_record_of_any_length() {
    for (shards, capacity) in [(1, 1), (1, 13), (4, 102)] {
        let hash = hash(shards, capacity);
        let mut set = 0;
        for n in 0..1000usize {
            let value = vec![b'v'; LENGTHS[n % 3]];
            hash.visit(format!("key {n}").as_bytes(), &mut Set(&value)).unwrap();
            set += 1;
            let status = hash.status();
            assert!(status.records <= capacity, "{} of {capacity}", status.records);
            assert_eq!(status.records + status.evictions, set);
            let mut found = 0;
            assert!(
                hash.view(format!("key {n}").as_bytes(), &mut |record| found = record.value.len()).unwrap()
            );
            assert_eq!(found, value.len(), "the newcomer itself stays");
        }
        assert_eq!(hash.status().records, capacity);
    }
}

#[test]
fn replacing_a_record_evicts_nothing() {
    let hash = hash(1, 20);
    for round in 0..5usize {
        for n in 0..20usize {
            let value = vec![b'v'; LENGTHS[(n + round) % 3]];
            hash.visit(format!("key {n}").as_bytes(), &mut Set(&value)).unwrap();
        }
    }
    assert_eq!((hash.status().records, hash.status().evictions), (20, 0));
}

#[test]
fn every_shard_needs_room_for_a_record() {
    let make = |capacity| {
        MemHash::new(MemHashOptions {
            shards: Some(8),
            capacity_records: Some(capacity),
            ..Default::default()
        })
    };
    assert!(make(8).is_ok());
    let error = make(7).err().expect("too few");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.to_string(), "a capacity below 8 records, one a shard");
}

#[test]
fn read_records_outlast_unread_ones() {
    let hash = hash(1, 100);
    let set = |n: usize| hash.visit(format!("key {n}").as_bytes(), &mut Set(b"value")).unwrap();
    let is_there = |n: usize| hash.view(format!("key {n}").as_bytes(), &mut |_| ()).unwrap();
    (0..100).for_each(set);
    // More uses than the notes hold until the next change.
    for _ in 0..3 {
        assert!((0..20).all(is_there));
    }
    (100..180).for_each(set);
    assert!((0..20).all(is_there));
    let others = (20..100).filter(|&n| is_there(n)).count();
    assert!(others < 40, "{others} of the others are left");
}

/// Records of another shape have a group of their own in each bucket, so that their age is only
/// estimated. They were once evicted while others were much older.
#[test]
fn newest_records_of_another_shape_stay() {
    for seed in 0..20 {
        let options = MemHashOptions {
            seed: Some(seed),
            shards: Some(1),
            capacity_records: Some(100),
            ..Default::default()
        };
        let hash = MemHash::new(options).unwrap();
        for number in 0..1000u32 {
            hash.visit(&number.to_be_bytes(), &mut Set(b"v")).unwrap();
        }
        for number in 0..300u32 {
            let keys = [0u8, 1, 2].map(|part| [&number.to_be_bytes()[..], &[part]].concat());
            keys.iter().for_each(|key| hash.visit(key, &mut Set(b"v")).unwrap());
            assert!(keys.iter().all(|key| hash.view(key, &mut |_| ()).unwrap()), "{seed} {number}");
        }
        assert_eq!(hash.status().records, 100);
    }
}

/// A use directly after the arrival says little about later ones.
#[test]
fn uses_of_newest_records_do_not_count() {
    let hash = hash(1, 100);
    let set = |n: usize| hash.visit(format!("key {n:03}").as_bytes(), &mut Set(b"value")).unwrap();
    let is_there = |n: usize| hash.view(format!("key {n:03}").as_bytes(), &mut |_| ()).unwrap();
    (0..100).for_each(set);
    // No writer holds a lock, so each read is noted.
    assert!((0..10).chain(90..100).all(is_there));
    (100..400).for_each(set);
    let count = |keys: std::ops::Range<usize>| keys.filter(|&n| is_there(n)).count();
    let (old, new) = (count(0..10), count(90..100));
    assert!(old >= 8 && new <= 4, "{old} of 10 that were read later, {new} of 10 that were read at once");
}

/// Returns a hash with a capacity that knows the sizes of its records.
fn sized_hash(capacity: u64, evict_for: EvictionGoal) -> MemHash {
    let class_bounds = (4..12).map(|octave| 1 << octave).collect();
    let options = MemHashOptions {
        seed: Some(1),
        shards: Some(1),
        capacity_records: Some(capacity),
        class_bounds,
        evict_for,
        ..Default::default()
    };
    MemHash::new(options).unwrap()
}

#[test]
fn larger_records_leave_earlier_unless_bytes_count() {
    for (goal, small_min, small_max) in [(EvictionGoal::Objects, 150, 200), (EvictionGoal::Bytes, 80, 120)] {
        let hash = sized_hash(200, goal);
        for n in 0..1000usize {
            let value = vec![b'v'; [10, 700, 10, 5_000][n % 4]];
            hash.visit(format!("key {n}").as_bytes(), &mut Set(&value)).unwrap();
        }
        let is_there = |n: &usize| hash.view(format!("key {n}").as_bytes(), &mut |_| ()).unwrap();
        let small = (0..1000).step_by(2).filter(is_there).count();
        let all = (0..1000).filter(is_there).count();
        assert_eq!(all, 200);
        assert!((small_min..=small_max).contains(&small), "{goal:?}: {small} small ones");
    }
}

#[test]
fn used_records_outlast_others_of_their_size() {
    let hash = sized_hash(200, EvictionGoal::Objects);
    let set = |n: usize| {
        let value = vec![b'v'; [10, 100, 800][n % 3]];
        hash.visit(format!("key {n}").as_bytes(), &mut Set(&value)).unwrap();
    };
    let is_there = |n: usize| hash.view(format!("key {n}").as_bytes(), &mut |_| ()).unwrap();
    let used = || (1..91).step_by(3);
    for n in 0..600 {
        set(n);
        if n % 10 == 0 {
            used().for_each(|n| _ = is_there(n));
        }
    }
    let unused = (91..181).step_by(3).filter(|&n| is_there(n)).count();
    let used = used().filter(|&n| is_there(n)).count();
    assert!(used >= 25 && unused <= 10, "{used} of 30 used ones, {unused} of 30 others");
}

/// A record keeps its number of uses when its value is replaced, but its size is that of the new
/// value.
#[test]
fn enlarged_records_lose_their_credit() {
    let hash = sized_hash(200, EvictionGoal::Objects);
    let set =
        |n: usize, len: usize| hash.visit(format!("key {n}").as_bytes(), &mut Set(&vec![7; len])).unwrap();
    let is_there = |n: usize| hash.view(format!("key {n}").as_bytes(), &mut |_| ()).unwrap();
    // These sizes differ so much that credits decide.
    (100..1000).for_each(|n| set(n, [10, 700, 10, 5_000][n % 4]));
    (0..20).for_each(|n| set(n, 20));
    (0..2000).for_each(|n| assert!(is_there(n % 20)));
    (0..20).for_each(|n| set(n, 60_000));
    (1000..1100).for_each(|n| set(n, 20));
    let left = (0..20).filter(|&n| is_there(n)).count();
    assert!(left < 5, "{left}");
}

#[test]
fn uses_are_noted_during_concurrent_changes() {
    let hash = hash(1, 64);
    let value_of = |n: usize| vec![b'a' + (n % 26) as u8; 1 + n % 40];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (hash, is_over) = (&hash, &is_over);
            scope.spawn(move || {
                for n in (thread..).map(|n| n * 7 % 128) {
                    let expected = value_of(n);
                    hash.view(n.to_string().as_bytes(), &mut |record| assert_eq!(record.value, expected))
                        .unwrap();
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        for round in 0..200 {
            for n in 0..128 {
                let key = n.to_string();
                if n % 16 == round % 16 {
                    hash.visit(key.as_bytes(), &mut Remove).unwrap();
                } else {
                    hash.visit(key.as_bytes(), &mut Set(&value_of(n))).unwrap();
                }
                assert!(hash.status().records <= 64);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let mut seen = 0;
    let see = &mut |key: &[u8], record: Record<'_>| {
        let n: usize = std::str::from_utf8(key).unwrap().parse().unwrap();
        assert_eq!(record.value, value_of(n));
        seen += 1;
        ControlFlow::Continue(())
    };
    assert_eq!(hash.scan(None, see).unwrap(), None);
    assert_eq!(seen, hash.status().records);
}
