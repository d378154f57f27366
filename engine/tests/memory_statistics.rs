//! Statistics of engines in memory about departed records and existing ones.

#[macro_use]
mod in_memory;
mod listener;
#[allow(dead_code, reason = "each test file uses its part")]
mod visitor;

use listener::Listener;
use std::sync::Arc;
use todana_core::{
    Action, Attributes, Engine, Expiry, MemoryLimit, Record, SweepAim, UnixSeconds, Visitor, WhenFull,
};
use todana_engine::{Departure, DepartureCause, MemHash, MemHashOptions, MemTree, MemTreeOptions};
use visitor::Remove;

/// Creates an engine with this number of parts and this observer.
type Make = fn(usize, &Arc<Listener>) -> Box<dyn Engine>;

engines_in_memory! {
    |parts, listener| Box::new(new_hash(MemHashOptions {
        shards: Some(parts),
        observer: listener.observer(),
        ..Default::default()
    })),
    |parts, listener| Box::new(new_tree(MemTreeOptions {
        partitions: Some(parts),
        observer: listener.observer(),
        ..Default::default()
    })),
    class_age_is_the_longest_idle_time
    expired_records_count_as_unread_unless_read
    a_large_engine_is_known_by_a_sample
}

struct Set(usize, Expiry);

impl Visitor for Set {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        static VALUE: [u8; 200_000] = [b'v'; 200_000];
        Action::Put(Record::new(&VALUE[..self.0], Attributes { expiry: self.1, ..Attributes::default() }))
    }
}

fn new_hash(options: MemHashOptions) -> MemHash {
    MemHash::new(MemHashOptions { seed: Some(3), class_bounds: vec![100, 10_000], ..options }).unwrap()
}

fn new_tree(options: MemTreeOptions) -> MemTree {
    MemTree::new(MemTreeOptions { class_bounds: vec![100, 10_000], ..options }).unwrap()
}

fn told(engine: &dyn Engine, now: u64) {
    engine.bounded().unwrap().set_time(UnixSeconds(now));
}

fn set(engine: &dyn Engine, key: &str, len: usize, expiry: Expiry) {
    engine.visit(key.as_bytes(), &mut Set(len, expiry)).unwrap();
}

fn read(engine: &dyn Engine, key: &str) -> bool {
    engine.view(key.as_bytes(), &mut |_| {}).unwrap()
}

fn at(seconds: u64) -> Expiry {
    Expiry::At(UnixSeconds(seconds))
}

fn sweep(engine: &dyn Engine, now: u64) {
    let mut place = None;
    loop {
        let over = &mut |expiry: Expiry| !expiry.is_live(UnixSeconds(now));
        place = engine.sweepable().unwrap().sweep(place, 1000, SweepAim::Tidiness, over).unwrap().next;
        if place.is_none() {
            return;
        }
    }
}

/// Values among others, in a block, and in a mapping.
const LENGTHS: [usize; 3] = [10, 5_000, 150_000];

/// Returns the index in `LENGTHS` of a record of this size.
fn class(plain_size: u64) -> usize {
    LENGTHS.iter().rposition(|&len| len as u64 <= plain_size).unwrap()
}

/// Returns, for each length, the number of sampled records and the longest time without a use.
fn surveyed(engine: &dyn Engine) -> [(u64, u64); 3] {
    let mut classes = [(0, 0); 3];
    for record in engine.sample_records().records {
        let (records, idle_s) = &mut classes[class(record.plain_size)];
        (*records, *idle_s) = (*records + 1, record.idle_s.max(*idle_s));
    }
    classes
}

/// Returns the number of departures that satisfy a condition.
fn count(departures: &[Departure], is_such: impl Fn(&Departure) -> bool) -> u64 {
    departures.iter().filter(|departure| is_such(departure)).count() as u64
}

fn class_age_is_the_longest_idle_time(make: Make) {
    let listener = Arc::default();
    let engine = make(2, &listener);
    told(&*engine, 1000);
    for (class, len) in LENGTHS.into_iter().enumerate() {
        for n in 0..10 {
            set(&*engine, &format!("{class}:{n}"), len, Expiry::Never);
        }
    }
    told(&*engine, 1060);
    assert_eq!(surveyed(&*engine), [(10, 60); 3]);
    // Read, peeked at, overwritten, removed: only a peek is not a use.
    (1..10).for_each(|n| assert!(read(&*engine, &format!("0:{n}"))));
    assert!(engine.peek(b"0:0", &mut |_| {}).unwrap());
    (0..10).for_each(|n| set(&*engine, &format!("1:{n}"), 5_000, Expiry::Never));
    told(&*engine, 1070);
    let ages = || surveyed(&*engine).map(|(_, age_s)| age_s);
    assert_eq!(ages(), [70, 10, 70]);
    engine.visit(b"0:0", &mut Remove).unwrap();
    assert_eq!(ages(), [10, 10, 70]);
    engine.clear(&mut || {}).unwrap();
    assert_eq!(engine.sample_records().records, []);
    assert_eq!((engine.status().cleared, listener.cleared()), (29, 29));
}

fn expired_records_count_as_unread_unless_read(make: Make) {
    let listener = Arc::default();
    let engine = make(2, &listener);
    told(&*engine, 1000);
    for (class, len) in LENGTHS.into_iter().enumerate() {
        for n in 0..20 {
            set(&*engine, &format!("{class}:{n}"), len, at(1010 + n % 2 * 10));
        }
        assert!(read(&*engine, &format!("{class}:0")), "read in time");
    }
    told(&*engine, 1010);
    for (class, len) in LENGTHS.into_iter().enumerate() {
        assert!(read(&*engine, &format!("{class}:2")), "its expiry is for others to see");
        // Removed by a client: one expired, one not.
        engine.visit(format!("{class}:4").as_bytes(), &mut Remove).unwrap();
        set(&*engine, &format!("{class}:6"), len, at(3000));
        engine.visit(format!("{class}:1").as_bytes(), &mut Remove).unwrap();
    }
    // Unread records of each length that had expired or were removed by a sweep.
    let unread = |departures: &[Departure]| {
        [0, 1, 2].map(|number| {
            let is_of = |departure: &Departure| class(departure.plain_size as u64) == number;
            let unread = count(departures, |departure| is_of(departure) && departure.is_unread);
            (
                unread,
                count(departures, |departure| is_of(departure) && departure.cause == DepartureCause::Swept),
            )
        })
    };
    assert_eq!((unread(&listener.departures()), engine.status().expired_unfetched), ([(2, 0); 3], 3 * 2));
    sweep(&*engine, 1010);
    // Eight of the ten were left for the sweep, and one of those had been read.
    let departures = listener.departures();
    assert_eq!((unread(&departures), engine.status().expired_unfetched), ([(7, 8); 3], 3 * (2 + 7)));
    assert!(departures.iter().all(|departure| departure.expires && departure.idle_s.is_some()));
    assert_eq!(engine.status().classes.iter().map(|class| class.records).collect::<Vec<_>>(), [10; 3]);
}

fn a_large_engine_is_known_by_a_sample(make: Make) {
    let listener = Arc::default();
    let engine = make(4, &listener);
    told(&*engine, 1000);
    let key = |n: u32| format!("key:{n}");
    for n in 0..50_000 {
        set(&*engine, &key(n), 10, at(2000));
    }
    // One in four is read, and one in ten was stored long ago.
    told(&*engine, 1500);
    (0..50_000).step_by(4).for_each(|n| assert!(read(&*engine, &key(n))));
    (5_000..50_000).filter(|n| n % 4 != 0).for_each(|n| set(&*engine, &key(n), 10, at(2000)));
    told(&*engine, 2000);
    let (records, age_s) = surveyed(&*engine)[0];
    assert!((100..=8 * 112).contains(&records), "{records}");
    assert_eq!(age_s, 1000);
    sweep(&*engine, 2000);
    assert_eq!((listener.departures().len(), engine.status().records), (50_000, 0));
    let unread = engine.status().expired_unfetched;
    assert!((33_000..42_000).contains(&unread), "{unread} of 37500");
    // When the engine is empty, all new records are sampled again.
    while engine.maintain() {}
    (0..100).for_each(|n| set(&*engine, &key(n), 10, Expiry::Never));
    assert_eq!(engine.sample_records().records.len(), 100);
}

#[test]
fn hash_reports_cause_and_idle_time_of_evictions() {
    let listener: Arc<Listener> = Arc::default();
    let hash = new_hash(MemHashOptions {
        shards: Some(1),
        capacity_records: Some(50),
        observer: listener.observer(),
        ..Default::default()
    });
    told(&hash, 1000);
    for n in 0..50 {
        set(&hash, &format!("old:{n}"), 10, if n % 2 == 0 { at(9000) } else { Expiry::Never });
    }
    // All except ten are read.
    (10..50).for_each(|n| assert!(read(&hash, &format!("old:{n}"))));
    told(&hash, 1030);
    for n in 0..200 {
        set(&hash, &format!("new:{n}"), 10, Expiry::Never);
        assert!(read(&hash, &format!("new:{n}")));
    }
    let status = hash.status();
    assert_eq!((status.evictions, status.evictions_by_writes), (200, 200));
    assert!(status.evictions_with_expiry > 0 && status.evictions_with_expiry <= 25, "{status:?}");
    assert!(status.evicted_unfetched > 0 && status.evicted_unfetched <= 10, "{status:?}");
    assert!(status.promotions > 0, "what was read has been passed over: {status:?}");
    assert_eq!(listener.passed(), [status.promotions, status.second_chances]);
    let departures = listener.departures();
    assert_eq!(count(&departures, |left| left.cause == DepartureCause::Evicted { by_write: true }), 200);
    assert_eq!(count(&departures, |left| left.expires), status.evictions_with_expiry);
    assert_eq!(count(&departures, |left| left.is_unread), status.evicted_unfetched);
    assert!(departures.iter().all(|left| [0, 30].contains(&left.idle_s.unwrap())), "{departures:?}");
    let records = hash.sample_records().records;
    assert_eq!(records.len(), 50);
    assert!(records.iter().any(|record| record.is_kept));
}

#[test]
fn evicting_maintenance_is_counted_apart_from_writes() {
    let limit = |bytes| MemoryLimit { bytes: Some(bytes), when_full: WhenFull::Evict };
    let hash = new_hash(MemHashOptions { shards: Some(2), limit: limit(8 << 20), ..Default::default() });
    (0..40_000).for_each(|n| set(&hash, &format!("key:{n}"), 90, Expiry::Never));
    assert_eq!(hash.status().evictions, 0);
    hash.bounded().unwrap().set_limit(limit(3 << 20));
    while hash.maintain() {}
    let status = hash.status();
    assert!(status.evictions > 10_000, "{status:?}");
    assert_eq!(status.evictions_by_writes, 0);
    assert!(status.pages_emptied > 0 && status.blocks_moved > 0, "{status:?}");
}

#[test]
fn hash_status_reports_index_size_and_growth() {
    let hash = new_hash(MemHashOptions { shards: Some(2), ..Default::default() });
    told(&hash, 1000);
    let empty = hash.status().index;
    assert_eq!((empty.buckets, empty.bytes, empty.is_growing), (2, 2 * 4096, false));
    (0..40_000).for_each(|n| set(&hash, &format!("key:{n}"), 30, Expiry::Never));
    let full = hash.status().index;
    assert!(full.buckets > 5_000 && full.buckets < 40_000 && full.bytes >= 4 * full.buckets, "{full:?}");
    assert!(full.is_growing);
    told(&hash, 1002);
    assert!(!hash.status().index.is_growing);
}

#[test]
fn tree_reports_cause_and_idle_time_of_evictions() {
    let limit = |bytes| MemoryLimit { bytes: Some(bytes), when_full: WhenFull::Evict };
    let listener: Arc<Listener> = Arc::default();
    let observer = listener.observer();
    let options =
        MemTreeOptions { partitions: Some(1), limit: limit(4 << 20), observer, ..Default::default() };
    let tree = new_tree(options);
    told(&tree, 1000);
    (0..300).for_each(|n| set(&tree, &format!("old:{n}"), 5_000, Expiry::Never));
    told(&tree, 1030);
    assert_eq!(tree.status().evictions, 0);
    for n in 0..3000 {
        set(&tree, &format!("new:{n}"), 5_000, Expiry::Never);
    }
    let status = tree.status();
    assert!(status.evictions > 2000, "{status:?}");
    // No record has ever been read.
    let unread = status.evictions * 9 / 10..=status.evictions;
    assert!(unread.contains(&status.evicted_unfetched), "{status:?}");
    let departures = listener.departures();
    assert_eq!(departures.len() as u64, status.evictions);
    assert_eq!(count(&departures, |left| left.is_unread), status.evicted_unfetched);
    assert!(departures.iter().all(|left| [0, 30].contains(&left.idle_s.unwrap_or(0))), "{departures:?}");

    // Maintenance that evicts; all records have been read.
    let observer = listener.observer();
    let options =
        MemTreeOptions { partitions: Some(1), limit: limit(8 << 20), observer, ..Default::default() };
    let tree = new_tree(options);
    told(&tree, 2000);
    (0..500).for_each(|n| set(&tree, &format!("key:{n}"), 5_000, Expiry::Never));
    (0..500).for_each(|n| assert!(read(&tree, &format!("key:{n}"))));
    told(&tree, 2060);
    tree.bounded().unwrap().set_limit(limit(1 << 20));
    while tree.maintain() {}
    let status = tree.status();
    assert!(status.evictions > 200, "{status:?}");
    assert_eq!(status.evictions_by_writes, 0);
    assert!(listener.departures().iter().all(|left| left.idle_s.unwrap_or(60) == 60));
    assert!(status.evicted_unfetched <= status.evictions / 50, "{status:?}");
}

#[test]
fn engine_without_classes_has_no_sample() {
    let tree = MemTree::new(MemTreeOptions::default()).unwrap();
    set(&tree, "key", 10, Expiry::Never);
    assert_eq!(tree.sample_records().records, []);
}

#[test]
fn uses_before_the_first_eviction_are_noted() {
    // Records in a bucket, and in blocks of their own.
    for len in [10, 1_500] {
        let options = MemHashOptions { shards: Some(1), capacity_records: Some(100), ..Default::default() };
        let hash = new_hash(options);
        let key = |n: usize| format!("key:{n}");
        (0..100).for_each(|n| set(&hash, &key(n), len, Expiry::Never));
        (0..20).for_each(|n| assert!(read(&hash, &key(n))));
        (100..130).for_each(|n| set(&hash, &key(n), len, Expiry::Never));
        let kept = (0..20).filter(|&n| read(&hash, &key(n))).count();
        assert_eq!(kept, 20, "{len}");
    }
}
