//! What a `MemTree` tells of records that have gone and of those that are there.

use todana_core::{
    Action, Attributes, Engine, Expiry, MemoryLimit, Record, SizeClass, SweepAim, UnixSeconds, Visitor,
    WhenFull,
};
use todana_engine::{MemTree, MemTreeOptions};

struct Set(usize, Expiry);

impl Visitor for Set {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        static VALUE: [u8; 200_000] = [b'v'; 200_000];
        Action::Put(Record::new(&VALUE[..self.0], Attributes { expiry: self.1, ..Attributes::default() }))
    }
}

struct Remove;

impl Visitor for Remove {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Remove
    }
}

fn made(options: MemTreeOptions) -> MemTree {
    MemTree::new(MemTreeOptions { class_bounds: vec![100, 10_000], ..options }).unwrap()
}

fn told(tree: &MemTree, now: u64) {
    tree.bounded().unwrap().set_time(UnixSeconds(now));
}

fn set(tree: &MemTree, key: &str, len: usize, expiry: Expiry) {
    tree.visit(key.as_bytes(), &mut Set(len, expiry)).unwrap();
}

fn read(tree: &MemTree, key: &str) -> bool {
    tree.view(key.as_bytes(), &mut |_| {}).unwrap()
}

fn at(seconds: u64) -> Expiry {
    Expiry::At(UnixSeconds(seconds))
}

fn sweep(tree: &MemTree, now: u64) {
    let mut place = None;
    loop {
        let over = &mut |expiry: Expiry| !expiry.is_live(UnixSeconds(now));
        place = tree.perishable().unwrap().sweep(place, 1000, SweepAim::Tidiness, over).unwrap().next;
        if place.is_none() {
            return;
        }
    }
}

/// In a leaf, in a block, on a mapping.
const LENGTHS: [usize; 3] = [10, 5_000, 150_000];

#[test]
fn the_age_of_a_class_is_that_of_the_record_left_alone_for_longest() {
    let tree = made(MemTreeOptions { partitions: Some(2), ..Default::default() });
    told(&tree, 1000);
    for (class, len) in LENGTHS.into_iter().enumerate() {
        for n in 0..10 {
            set(&tree, &format!("{class}:{n}"), len, Expiry::Never);
        }
    }
    told(&tree, 1060);
    let survey = tree.survey();
    assert_eq!(survey.classes.iter().map(|class| class.records).collect::<Vec<_>>(), [10, 10, 10]);
    assert_eq!(survey.classes.iter().map(|class| class.age_s).collect::<Vec<_>>(), [60, 60, 60]);
    // Read, looked at, overwritten, removed: only a look is no use.
    (1..10).for_each(|n| assert!(read(&tree, &format!("0:{n}"))));
    assert!(tree.peek(b"0:0", &mut |_| {}).unwrap());
    (0..10).for_each(|n| set(&tree, &format!("1:{n}"), 5_000, Expiry::Never));
    told(&tree, 1070);
    let ages = || tree.survey().classes.iter().map(|class| class.age_s).collect::<Vec<_>>();
    assert_eq!(ages(), [70, 10, 70]);
    tree.visit(b"0:0", &mut Remove).unwrap();
    assert_eq!(ages(), [10, 10, 70]);
    tree.clear(&mut || {}).unwrap();
    assert!(tree.survey().classes.iter().all(|class| class.records == 0));
}

#[test]
fn expired_records_count_as_unread_only_if_nobody_has_read_them_in_time() {
    let tree = made(MemTreeOptions { partitions: Some(2), ..Default::default() });
    told(&tree, 1000);
    for (class, len) in LENGTHS.into_iter().enumerate() {
        for n in 0..20 {
            set(&tree, &format!("{class}:{n}"), len, at(1010 + n % 2 * 10));
        }
        assert!(read(&tree, &format!("{class}:0")), "read in time");
    }
    told(&tree, 1010);
    for (class, len) in LENGTHS.into_iter().enumerate() {
        assert!(read(&tree, &format!("{class}:2")), "its expiry is for others to see");
        // Ended by a client: one over with, one not.
        tree.visit(format!("{class}:4").as_bytes(), &mut Remove).unwrap();
        set(&tree, &format!("{class}:6"), len, at(3000));
        tree.visit(format!("{class}:1").as_bytes(), &mut Remove).unwrap();
    }
    let unread = |tree: &MemTree| {
        tree.status().classes.iter().map(|class| (class.expired_unfetched, class.swept)).collect::<Vec<_>>()
    };
    assert_eq!(unread(&tree), [(2, 0); 3]);
    sweep(&tree, 1010);
    // Eight of the ten were left for the sweep, and one of those had been read.
    assert_eq!(unread(&tree), [(2 + 7, 8); 3]);
    assert_eq!(tree.status().classes.iter().map(|class| class.records).collect::<Vec<_>>(), [10; 3]);
}

#[test]
fn a_large_tree_is_known_by_a_sample() {
    let tree = made(MemTreeOptions { partitions: Some(4), ..Default::default() });
    told(&tree, 1000);
    let key = |n: u32| format!("key:{n}");
    for n in 0..50_000 {
        set(&tree, &key(n), 10, at(2000));
    }
    // One of four is read, and a tenth was stored long ago.
    told(&tree, 1500);
    (0..50_000).step_by(4).for_each(|n| assert!(read(&tree, &key(n))));
    (5_000..50_000).filter(|n| n % 4 != 0).for_each(|n| set(&tree, &key(n), 10, at(2000)));
    told(&tree, 2000);
    let survey = tree.survey().classes[0];
    assert!((100..=8 * 112).contains(&survey.records), "{survey:?}");
    assert_eq!(survey.age_s, 1000);
    sweep(&tree, 2000);
    let SizeClass { swept, expired_unfetched, records, .. } = tree.status().classes[0];
    assert_eq!((swept, records), (50_000, 0));
    assert!((33_000..42_000).contains(&expired_unfetched), "{expired_unfetched} of 37500");
    // Once it is empty, all that comes is known again.
    while tree.maintain() {}
    (0..100).for_each(|n| set(&tree, &key(n), 10, Expiry::Never));
    assert_eq!(tree.survey().classes[0].records, 100);
}

#[test]
fn evictions_tell_who_made_them_what_went_and_how_long_it_had_been_idle() {
    let limit = |bytes| MemoryLimit { bytes: Some(bytes), when_full: WhenFull::Evict };
    let tree = made(MemTreeOptions { partitions: Some(1), limit: limit(4 << 20), ..Default::default() });
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
    let tree = made(MemTreeOptions { partitions: Some(1), limit: limit(8 << 20), ..Default::default() });
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
