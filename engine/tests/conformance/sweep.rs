//! Sweepable engines: expired records are removed and all others stay unchanged.

use crate::model::{Map, assert_same, scan};
use crate::subject::{Subject, put};
use std::collections::BTreeSet;
use todana_core::{Attributes, Engine, Expiry, SweepAim, UnixSeconds};

/// Does a complete sweep. Returns the number of records seen and removed.
fn round(engine: &dyn Engine, is_over: &mut dyn FnMut(Expiry) -> bool) -> (u64, u64) {
    let perishable = engine.sweepable().expect("it can be swept");
    let (mut place, mut seen, mut removed) = (None, 0, 0);
    loop {
        let swept = perishable.sweep(place, 100, SweepAim::Tidiness, is_over).unwrap();
        (seen, removed) = (seen + swept.seen, removed + swept.removed);
        place = swept.next;
        if place.is_none() {
            return (seen, removed);
        }
    }
}

fn expiry(n: usize) -> Expiry {
    match n % 5 {
        0 | 1 => Expiry::Never,
        2 => Expiry::At(UnixSeconds(1000)),
        3 => Expiry::Sliding { at: UnixSeconds(2000), span_s: 7 },
        _ => Expiry::At(UnixSeconds(u64::from(u32::MAX) + 5)),
    }
}

fn fill(engine: &dyn Engine) -> Map {
    let mut model = Map::new();
    for n in 0..5000 {
        let key = if n % 3 == 0 { format!("{n}") } else { format!("key:{n}") };
        let len = match n {
            _ if n % 397 == 0 => 70_000,
            _ if n % 41 == 0 => 1500,
            _ => n % 60,
        };
        let attributes = Attributes { expiry: expiry(n), flags: n as u32 % 2, ..Attributes::default() };
        put(engine, key.as_bytes(), &vec![n as u8; len], attributes);
        model.insert(key.into(), (vec![n as u8; len], attributes));
    }
    model
}

pub(crate) fn sweep_removes_exactly_the_expired_records(subject: &Subject) {
    let mut engine = subject.fresh();
    if engine.sweepable().is_none() {
        return;
    }
    let mut model = fill(&*engine);
    for now in [999, 1000, 1999, 2000, u64::from(u32::MAX) + 5] {
        let before = model.len();
        model.retain(|_, (_, attributes)| attributes.expiry.is_live(UnixSeconds(now)));
        let (_, removed) = round(&*engine, &mut |expiry| !expiry.is_live(UnixSeconds(now)));
        assert_eq!(removed, (before - model.len()) as u64, "at {now}");
        assert_eq!(engine.status().records, model.len() as u64);
        assert_same(&scan(&*engine, usize::MAX), &model, "after the sweep");
        engine.reopen();
        assert_same(&scan(&*engine, usize::MAX), &model, "reopened after the sweep");
    }
    assert_eq!(model.len(), 2000);
}

pub(crate) fn a_sweep_that_removes_nothing_changes_nothing(subject: &Subject) {
    let mut engine = subject.fresh();
    if engine.sweepable().is_none() {
        return;
    }
    let model = fill(&*engine);
    for _ in 0..2 {
        let mut seen = BTreeSet::new();
        let (_, removed) = round(&*engine, &mut |expiry| {
            seen.insert(format!("{expiry:?}"));
            false
        });
        assert_eq!(removed, 0);
        // An engine that finds records by expiry may stop at the first one that has not expired.
        let kinds: BTreeSet<_> = [2, 3, 4].map(|n| format!("{:?}", expiry(n))).into();
        assert!(seen.is_subset(&kinds) && seen.contains(&format!("{:?}", expiry(2))), "{seen:?}");
        assert_same(&scan(&*engine, usize::MAX), &model, "nothing has gone");
        engine.reopen();
    }
}
