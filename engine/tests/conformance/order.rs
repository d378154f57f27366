//! Ordered engines: walks in both directions from every kind of bound.

use crate::model::{Map, owned};
use crate::subject::{StopOnDrop, Subject, cases, put, remove};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::{Attributes, Engine};

/// Returns keys that are easily ordered wrongly: prefixes of each other, the highest and lowest
/// bytes, long keys.
fn keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> =
        ["", "a", "aa", "ab", "b", "\u{7f}", "z", "za", "zz"].map(|key| key.into()).into();
    keys.extend([vec![0], vec![0, 0], vec![0, 255], vec![255], vec![255, 255], vec![255, 0], vec![128]]);
    for len in [200, 510, 511, 512, 513, 600, 3000] {
        keys.push(vec![b'l'; len]);
        keys.push([vec![b'l'; len], vec![0]].concat());
        keys.push([vec![b'l'; len - 1], vec![b'm']].concat());
    }
    keys.extend((0..300u32).map(|n| format!("number {n}").into_bytes()));
    keys
}

fn ascending(engine: &dyn Engine, from: Bound<&[u8]>) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let ordered = engine.ordered().expect("it has an order");
    let walked = ordered.ascend(from, &mut |key, record| {
        assert_eq!(owned(record).0, [key, b"'s"].concat(), "the record of this key");
        found.push(key.to_vec());
        ControlFlow::Continue(())
    });
    walked.unwrap();
    found
}

fn descending(engine: &dyn Engine, from: Bound<&[u8]>) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let ordered = engine.ordered().expect("it has an order");
    let walked = ordered.descend(from, &mut |key, record| {
        assert_eq!(owned(record).0, [key, b"'s"].concat(), "the record of this key");
        found.push(key.to_vec());
        ControlFlow::Continue(())
    });
    walked.unwrap();
    found
}

pub(crate) fn walks_start_at_every_kind_of_bound(subject: &Subject) {
    let mut engine = subject.fresh();
    if engine.ordered().is_none() {
        return;
    }
    let mut model = Map::new();
    // The second half is written after reopening, and some of the first half is removed, so that
    // old and new records must be merged.
    let keys = keys();
    for (n, key) in keys.iter().enumerate().filter(|(n, _)| n % 2 == 0) {
        put(
            &*engine,
            key,
            &[key, &b"'s"[..]].concat(),
            Attributes { flags: n as u32, ..Attributes::default() },
        );
        model.insert(key.clone(), Default::default());
    }
    for turn in 0..3 {
        for from in keys.iter().map(|key| &key[..]).chain([&b"number"[..], b"number 1x", b"lll", &[254]]) {
            for bound in [Bound::Included(from), Bound::Excluded(from), Bound::Unbounded] {
                let above: Vec<_> =
                    model.range::<[u8], _>((bound, Bound::Unbounded)).map(|(key, _)| key.clone()).collect();
                let below: Vec<_> = model
                    .range::<[u8], _>((Bound::Unbounded, bound))
                    .rev()
                    .map(|(key, _)| key.clone())
                    .collect();
                assert!(ascending(&*engine, bound) == above, "{bound:?} upwards, turn {turn}");
                assert!(descending(&*engine, bound) == below, "{bound:?} downwards, turn {turn}");
            }
        }
        engine.reopen();
        if turn == 0 {
            for (_, key) in keys.iter().enumerate().filter(|(n, _)| n % 3 == 0) {
                assert_eq!(remove(&*engine, key), model.remove(key).is_some());
            }
            for (_, key) in keys.iter().enumerate().filter(|(n, _)| n % 4 == 1) {
                put(&*engine, key, &[key, &b"'s"[..]].concat(), Attributes::default());
                model.insert(key.clone(), Default::default());
            }
        }
    }
}

pub(crate) fn a_walk_ends_where_it_is_told_to(subject: &Subject) {
    let engine = subject.fresh();
    let Some(ordered) = engine.ordered() else { return };
    for n in 0..1000 {
        put(&*engine, format!("{n:03}").as_bytes(), b"", Attributes::default());
    }
    for len in [1, 2, 99, 1000] {
        for upwards in [true, false] {
            let mut found = Vec::new();
            let mut see = |key: &[u8], _: todana_core::Record<'_>| {
                found.push(String::from_utf8(key.to_vec()).unwrap());
                if found.len() == len { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            match upwards {
                true => ordered.ascend(Bound::Unbounded, &mut see).unwrap(),
                false => ordered.descend(Bound::Unbounded, &mut see).unwrap(),
            }
            let expected: Vec<_> =
                (0..len).map(|n| format!("{:03}", if upwards { n } else { 999 - n })).collect();
            assert_eq!(found, expected);
        }
    }
}

pub(crate) fn walk_shows_stable_records_once_during_writes(subject: &Subject) {
    let engine = subject.fresh();
    let Some(ordered) = engine.ordered() else { return };
    let stays: Vec<Vec<u8>> = (0..1000).map(|n| format!("{n:05} stays").into_bytes()).collect();
    for key in &stays {
        put(&*engine, key, b"", Attributes::default());
    }
    let done = AtomicBool::new(false);
    let rounds = cases(30);
    std::thread::scope(|scope| {
        let _ends = StopOnDrop(&done);
        for seed in 0..2 {
            let (engine, stays, done) = (&*engine, &stays, &done);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                while !done.load(Ordering::Relaxed) {
                    let key = format!("{:05} goes {}", random.u32(0..1000), random.u32(0..8)).into_bytes();
                    if random.bool() {
                        put(engine, &key, &vec![b'v'; random.usize(0..200)], Attributes::default());
                    } else {
                        remove(engine, &key);
                    }
                    // Records that stay are replaced too, which must not make them absent.
                    let again = &stays[random.usize(0..stays.len())];
                    put(engine, again, &vec![b'w'; random.usize(0..2000)], Attributes::default());
                    if random.u32(0..500) == 0 {
                        engine.maintain();
                    }
                }
            });
        }
        for round in 0..rounds {
            let mut found: Vec<Vec<u8>> = Vec::new();
            let mut see = |key: &[u8], _: todana_core::Record<'_>| {
                found.push(key.to_vec());
                ControlFlow::Continue(())
            };
            match round % 2 {
                0 => ordered.ascend(Bound::Unbounded, &mut see).unwrap(),
                _ => ordered.descend(Bound::Unbounded, &mut see).unwrap(),
            }
            if round % 2 == 1 {
                found.reverse();
            }
            assert!(found.is_sorted_by(|a, b| a < b), "in order, and none twice");
            found.retain(|key| key.ends_with(b" stays"));
            assert!(found == stays, "all that stay are shown");
        }
    });
}
