//! What engines in memory tell of records that have gone and of those that are there.

#[macro_use]
mod in_memory;
#[allow(dead_code, reason = "each test file uses its part")]
mod visitor;

use todana_core::{
    Action, Attributes, Engine, Expiry, MemoryLimit, Record, SizeClass, SweepAim, UnixSeconds, Visitor,
    WhenFull,
};
use todana_engine::{MemHash, MemHashOptions, MemTree, MemTreeOptions};
use visitor::Remove;

/// How an engine of so many parts is made.
type Make = fn(usize) -> Box<dyn Engine>;

engines_in_memory! {
    |parts| Box::new(new_hash(MemHashOptions { shards: Some(parts), ..Default::default() })),
    |parts| Box::new(new_tree(MemTreeOptions { partitions: Some(parts), ..Default::default() })),
    the_age_of_a_class_is_that_of_the_record_left_alone_for_longest
    expired_records_count_as_unread_only_if_nobody_has_read_them_in_time
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
        place = engine.perishable().unwrap().sweep(place, 1000, SweepAim::Tidiness, over).unwrap().next;
        if place.is_none() {
            return;
        }
    }
}

/// Among others, in a block, on a mapping.
const LENGTHS: [usize; 3] = [10, 5_000, 150_000];

fn the_age_of_a_class_is_that_of_the_record_left_alone_for_longest(make: Make) {
    let engine = make(2);
    told(&*engine, 1000);
    for (class, len) in LENGTHS.into_iter().enumerate() {
        for n in 0..10 {
            set(&*engine, &format!("{class}:{n}"), len, Expiry::Never);
        }
    }
    told(&*engine, 1060);
    let survey = engine.survey();
    assert_eq!(survey.classes.iter().map(|class| class.records).collect::<Vec<_>>(), [10, 10, 10]);
    assert_eq!(survey.classes.iter().map(|class| class.age_s).collect::<Vec<_>>(), [60, 60, 60]);
    // Read, looked at, overwritten, removed: only a look is no use.
    (1..10).for_each(|n| assert!(read(&*engine, &format!("0:{n}"))));
    assert!(engine.peek(b"0:0", &mut |_| {}).unwrap());
    (0..10).for_each(|n| set(&*engine, &format!("1:{n}"), 5_000, Expiry::Never));
    told(&*engine, 1070);
    let ages = || engine.survey().classes.iter().map(|class| class.age_s).collect::<Vec<_>>();
    assert_eq!(ages(), [70, 10, 70]);
    engine.visit(b"0:0", &mut Remove).unwrap();
    assert_eq!(ages(), [10, 10, 70]);
    engine.clear(&mut || {}).unwrap();
    assert!(engine.survey().classes.iter().all(|class| class.records == 0));
}

fn expired_records_count_as_unread_only_if_nobody_has_read_them_in_time(make: Make) {
    let engine = make(2);
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
        // Ended by a client: one over with, one not.
        engine.visit(format!("{class}:4").as_bytes(), &mut Remove).unwrap();
        set(&*engine, &format!("{class}:6"), len, at(3000));
        engine.visit(format!("{class}:1").as_bytes(), &mut Remove).unwrap();
    }
    let unread = || {
        engine.status().classes.iter().map(|class| (class.expired_unfetched, class.swept)).collect::<Vec<_>>()
    };
    assert_eq!(unread(), [(2, 0); 3]);
    sweep(&*engine, 1010);
    // Eight of the ten were left for the sweep, and one of those had been read.
    assert_eq!(unread(), [(2 + 7, 8); 3]);
    assert_eq!(engine.status().classes.iter().map(|class| class.records).collect::<Vec<_>>(), [10; 3]);
}

fn a_large_engine_is_known_by_a_sample(make: Make) {
    let engine = make(4);
    told(&*engine, 1000);
    let key = |n: u32| format!("key:{n}");
    for n in 0..50_000 {
        set(&*engine, &key(n), 10, at(2000));
    }
    // One of four is read, and a tenth was stored long ago.
    told(&*engine, 1500);
    (0..50_000).step_by(4).for_each(|n| assert!(read(&*engine, &key(n))));
    (5_000..50_000).filter(|n| n % 4 != 0).for_each(|n| set(&*engine, &key(n), 10, at(2000)));
    told(&*engine, 2000);
    let survey = engine.survey().classes[0];
    assert!((100..=8 * 112).contains(&survey.records), "{survey:?}");
    assert_eq!(survey.age_s, 1000);
    sweep(&*engine, 2000);
    let SizeClass { swept, expired_unfetched, records, .. } = engine.status().classes[0];
    assert_eq!((swept, records), (50_000, 0));
    assert!((33_000..42_000).contains(&expired_unfetched), "{expired_unfetched} of 37500");
    // Once it is empty, all that comes is known again.
    while engine.maintain() {}
    (0..100).for_each(|n| set(&*engine, &key(n), 10, Expiry::Never));
    assert_eq!(engine.survey().classes[0].records, 100);
}

#[test]
fn a_sweep_of_a_hash_tells_what_it_has_passed_over() {
    let hash = new_hash(MemHashOptions { shards: Some(2), ..Default::default() });
    for (class, len) in LENGTHS.into_iter().enumerate() {
        (0..20).for_each(|n| set(&hash, &format!("{class}:{n}"), len, at(1010 + n % 2 * 10)));
    }
    sweep(&hash, 1010);
    let over: Vec<u64> = hash.status().classes.iter().map(|class| class.swept_over).collect();
    assert!(over.iter().all(|&seen| (10..=20).contains(&seen)), "{over:?}");
}

#[test]
fn evictions_of_a_hash_tell_who_made_them_what_went_and_how_long_it_had_been_idle() {
    let hash = new_hash(MemHashOptions { shards: Some(1), capacity_records: Some(50), ..Default::default() });
    told(&hash, 1000);
    for n in 0..50 {
        set(&hash, &format!("old:{n}"), 10, if n % 2 == 0 { at(9000) } else { Expiry::Never });
    }
    // All are read but ten.
    (10..50).for_each(|n| assert!(read(&hash, &format!("old:{n}"))));
    told(&hash, 1030);
    for n in 0..200 {
        set(&hash, &format!("new:{n}"), 10, Expiry::Never);
        assert!(read(&hash, &format!("new:{n}")));
    }
    let status = hash.status();
    let class = status.classes[0];
    assert_eq!((class.evictions, class.evictions_by_writes), (200, 200));
    assert_eq!(class.evictions, status.evictions);
    assert_eq!(class.evictions_with_expiry, status.evictions_with_expiry);
    assert!(class.evictions_with_expiry > 0 && class.evictions_with_expiry <= 25, "{class:?}");
    assert!(class.evicted_unfetched > 0 && class.evicted_unfetched <= 10, "{class:?}");
    assert!([0, 30].contains(&class.evicted_idle_s), "{class:?}");
    assert!(class.promotions > 0, "what was read has been passed over: {class:?}");
    let survey = hash.survey().classes[0];
    assert_eq!(survey.records, 50);
    assert!(survey.kept > 0 && survey.kept <= 50, "{survey:?}");
}

#[test]
fn housekeeping_that_evicts_is_told_from_writes() {
    let limit = |bytes| MemoryLimit { bytes: Some(bytes), when_full: WhenFull::Evict };
    let hash = new_hash(MemHashOptions { shards: Some(2), limit: limit(8 << 20), ..Default::default() });
    (0..40_000).for_each(|n| set(&hash, &format!("key:{n}"), 90, Expiry::Never));
    assert_eq!(hash.status().evictions, 0);
    hash.bounded().unwrap().set_limit(limit(3 << 20));
    while hash.maintain() {}
    let status = hash.status();
    assert!(status.evictions > 10_000, "{status:?}");
    assert_eq!(status.classes.iter().map(|class| class.evictions_by_writes).sum::<u64>(), 0);
    assert_eq!(status.classes.iter().map(|class| class.evictions).sum::<u64>(), status.evictions);
    assert!(status.pages_emptied > 0 && status.blocks_moved > 0, "{status:?}");
}

#[test]
fn the_index_of_a_hash_tells_its_size_and_that_it_grows() {
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
fn evictions_of_a_tree_tell_who_made_them_what_went_and_how_long_it_had_been_idle() {
    let limit = |bytes| MemoryLimit { bytes: Some(bytes), when_full: WhenFull::Evict };
    let tree = new_tree(MemTreeOptions { partitions: Some(1), limit: limit(4 << 20), ..Default::default() });
    told(&tree, 1000);
    (0..300).for_each(|n| set(&tree, &format!("old:{n}"), 5_000, Expiry::Never));
    told(&tree, 1030);
    assert_eq!(tree.status().evictions, 0);
    for n in 0..3000 {
        set(&tree, &format!("new:{n}"), 5_000, Expiry::Never);
    }
    let status = tree.status();
    let class = status.classes[1];
    assert!(class.evictions > 2000 && class.evictions == status.evictions, "{class:?}");
    // Nothing has ever been read.
    let unread = class.evictions * 9 / 10..=class.evictions;
    assert!(unread.contains(&class.evicted_unfetched), "{class:?}");
    assert!([0, 30].contains(&class.evicted_idle_s), "{class:?}");

    // Housekeeping that evicts, of records of which all have been read.
    let tree = new_tree(MemTreeOptions { partitions: Some(1), limit: limit(8 << 20), ..Default::default() });
    told(&tree, 2000);
    (0..500).for_each(|n| set(&tree, &format!("key:{n}"), 5_000, Expiry::Never));
    (0..500).for_each(|n| assert!(read(&tree, &format!("key:{n}"))));
    told(&tree, 2060);
    tree.bounded().unwrap().set_limit(limit(1 << 20));
    while tree.maintain() {}
    let class = tree.status().classes[1];
    assert!(class.evictions > 200, "{class:?}");
    assert_eq!((class.evictions_by_writes, class.evicted_idle_s), (0, 60));
    assert!(class.evicted_unfetched <= class.evictions / 50, "{class:?}");
}

#[test]
fn who_gives_no_classes_is_told_nothing() {
    let tree = MemTree::new(MemTreeOptions::default()).unwrap();
    set(&tree, "key", 10, Expiry::Never);
    assert_eq!(tree.survey().classes.iter().map(|class| class.records).sum::<u64>(), 0);
}
