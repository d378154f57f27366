//! Sweeps of engines in memory: expired records are removed and all others stay unchanged, whatever
//! their layout and whatever happens meanwhile.

#[macro_use]
mod in_memory;

use std::collections::BTreeMap;
use todana_core::{
    Action, Attributes, Engine, Expiry, Record, ScanPosition, SweepAim, SweepableEngine, UnixSeconds, Visitor,
};
use todana_engine::{MemHash, MemHashOptions, MemTree, MemTreeOptions};

/// Creates an engine.
type Make = fn() -> Box<dyn Engine>;

engines_in_memory! {
    || {
        let options = MemHashOptions { seed: Some(7), shards: Some(4), ..Default::default() };
        Box::new(MemHash::new(options).unwrap())
    },
    || Box::new(MemTree::new(MemTreeOptions { partitions: Some(4), ..Default::default() }).unwrap()),
    complete_sweep_removes_exactly_the_expired_records
    swept_records_release_their_memory
    records_of_one_second_expire_in_one_sweep
    records_missed_during_growth_are_swept_next
    sweep_step_respects_its_record_limit
    an_unknown_place_is_the_end
}

struct Set<'a>(&'a [u8], Expiry);

impl Visitor for Set<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, Attributes { expiry: self.1, ..Attributes::default() }))
    }
}

fn sweeper(engine: &dyn Engine) -> &dyn SweepableEngine {
    engine.sweepable().expect("it can be swept")
}

/// Does a complete sweep. Returns the number of records seen and removed.
fn round(engine: &dyn Engine, now: u64) -> (u64, u64) {
    let (mut place, mut seen, mut removed) = (None, 0, 0);
    loop {
        let swept = sweeper(engine)
            .sweep(place, 100, SweepAim::Tidiness, &mut |expiry| !expiry.is_live(UnixSeconds(now)))
            .unwrap();
        (seen, removed) = (seen + swept.seen, removed + swept.removed);
        place = swept.next;
        if place.is_none() {
            return (seen, removed);
        }
    }
}

fn at(seconds: u64) -> Expiry {
    Expiry::At(UnixSeconds(seconds))
}

/// Returns keys and values of all forms and places: packed, plain, in blocks, in mappings.
fn records(count: usize) -> BTreeMap<Vec<u8>, (Vec<u8>, Expiry)> {
    let record = |n: usize| {
        let key = if n.is_multiple_of(3) { format!("{n}") } else { format!("key:{n}") };
        let len = match n {
            _ if n.is_multiple_of(397) => 70_000,
            _ if n.is_multiple_of(41) => 1500,
            _ => n % 60,
        };
        let value = if n.is_multiple_of(4) { n.to_string().into_bytes() } else { vec![n as u8; len] };
        let expiry = match n % 5 {
            0 | 1 => Expiry::Never,
            2 => at(1000),
            3 => at(2000),
            _ => at(u64::from(u32::MAX) + 5),
        };
        (key.into_bytes(), (value, expiry))
    };
    (0..count).map(record).collect()
}

fn fill(engine: &dyn Engine, records: &BTreeMap<Vec<u8>, (Vec<u8>, Expiry)>) {
    for (key, (value, expiry)) in records {
        engine.visit(key, &mut Set(value, *expiry)).unwrap();
    }
}

fn content(engine: &dyn Engine) -> BTreeMap<Vec<u8>, (Vec<u8>, Expiry)> {
    let mut all = BTreeMap::new();
    let end = engine.scan(None, &mut |key, record| {
        all.insert(key.to_vec(), (record.value.to_vec(), record.attributes.expiry));
        std::ops::ControlFlow::Continue(())
    });
    assert_eq!(end.unwrap(), None);
    all
}

fn complete_sweep_removes_exactly_the_expired_records(make: Make) {
    let engine = make();
    let mut expected = records(20_000);
    fill(&*engine, &expected);
    assert_eq!(round(&*engine, 999), (20_000, 0));
    assert_eq!(content(&*engine), expected);
    for now in [1000, 2000, 1 << 40] {
        let before = expected.len();
        expected.retain(|_, (_, expiry)| expiry.is_live(UnixSeconds(now)));
        assert_eq!(round(&*engine, now).1 as usize, before - expected.len(), "at {now}");
        assert!(content(&*engine) == expected, "at {now}");
        let status = engine.status();
        assert_eq!(status.records as usize, expected.len());
        assert_eq!(status.classes.iter().map(|class| class.records).sum::<u64>(), status.records);
        // The structure is intact: removed records can be written again and found.
        let returning: BTreeMap<_, _> = records(50);
        fill(&*engine, &returning);
        expected.extend(returning);
        assert!(content(&*engine) == expected, "at {now}");
    }
}

fn swept_records_release_their_memory(make: Make) {
    let engine = make();
    for n in 0..200_000u32 {
        let expiry = if n.is_multiple_of(2) { at(10) } else { Expiry::Never };
        engine.visit(format!("key:{n}").as_bytes(), &mut Set(b"value", expiry)).unwrap();
    }
    let before = engine.status();
    assert_eq!(round(&*engine, 10).1, 100_000);
    while engine.maintain() {}
    let after = engine.status();
    assert_eq!(after.records, 100_000);
    assert!(after.live_bytes * 2 < before.live_bytes, "{after:?}");
    assert!(after.committed_bytes < before.committed_bytes * 6 / 10, "{before:?} {after:?}");
    assert!(after.committed_bytes < after.live_bytes * 11 / 10 + (1 << 20), "{after:?}");
}

fn records_of_one_second_expire_in_one_sweep(make: Make) {
    // Removals merge buckets that the sweep has passed; the records moved by that must lie ahead of
    // it.
    let engine = make();
    for n in 0..50_000u32 {
        engine.visit(&n.to_le_bytes(), &mut Set(b"", at(5))).unwrap();
    }
    assert_eq!(round(&*engine, 5), (50_000, 50_000));
    assert_eq!(engine.status().records, 0);
}

fn records_missed_during_growth_are_swept_next(make: Make) {
    let engine = make();
    for n in 0..2000u32 {
        engine.visit(&n.to_le_bytes(), &mut Set(b"old", at(5))).unwrap();
    }
    let mut place: Option<ScanPosition> = None;
    let (mut written, mut removed) = (2000u32, 0);
    loop {
        let swept =
            sweeper(&*engine).sweep(place, 100, SweepAim::Tidiness, &mut |expiry| expiry == at(5)).unwrap();
        removed += swept.removed;
        place = swept.next;
        if place.is_none() {
            break;
        }
        for _ in 0..200 {
            engine.visit(&written.to_le_bytes(), &mut Set(b"new", at(9))).unwrap();
            written += 1;
        }
    }
    removed += round(&*engine, 5).1;
    assert_eq!(removed, 2000);
    assert_eq!(content(&*engine).len(), written as usize - 2000);
    assert!(content(&*engine).values().all(|(value, expiry)| value == b"new" && *expiry == at(9)));
}

fn sweep_step_respects_its_record_limit(make: Make) {
    let engine = make();
    fill(&*engine, &records(20_000));
    let first = sweeper(&*engine).sweep(None, 1, SweepAim::Tidiness, &mut |_| false).unwrap();
    assert!(first.next.is_some() && first.seen < 1000, "{first:?}");
    // A directory that was emptied must not make a sweep endless.
    engine.clear(&mut || ()).unwrap();
    let next = sweeper(&*engine).sweep(first.next, 1, SweepAim::Tidiness, &mut |_| false).unwrap();
    assert!(next.seen == 0 && next.removed == 0, "{next:?}");
    assert_eq!(round(&*engine, 1 << 50), (0, 0));
}

fn an_unknown_place_is_the_end(make: Make) {
    let swept = sweeper(&*make())
        .sweep(Some(ScanPosition::Number(u64::MAX)), 1000, SweepAim::Tidiness, &mut |_| true)
        .unwrap();
    assert_eq!((swept.next, swept.seen), (None, 0));
}
