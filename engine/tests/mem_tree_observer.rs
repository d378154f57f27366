//! Whoever observes the evictions of a tree is told of each record that goes, and of no other; what compressing takes counts as the
//! tree's memory.

#[allow(dead_code, reason = "each test file uses its part")]
mod model;

use model::{Decided, Decision};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use todana_core::{Attributes, Bounded, Engine, Expiry, MemoryLimit, Record, UnixSeconds, WhenFull};
use todana_engine::{Compression, EvictionObserver, MemTree, MemTreeOptions};

type Told = (Vec<u8>, Vec<u8>, u32, bool);

#[derive(Debug, Default)]
struct Listener {
    listens: AtomicBool,
    told: Mutex<Vec<Told>>,
}

impl EvictionObserver for Listener {
    fn is_listening(&self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }

    fn evicted(&self, key: &[u8], record: Record<'_>, is_read: bool) {
        let told = (key.to_vec(), record.value.to_vec(), record.attributes.flags, is_read);
        self.told.lock().unwrap().push(told);
    }
}

fn tree(compression: Option<Compression>) -> (MemTree, Arc<Listener>) {
    let listener = Arc::new(Listener::default());
    let observer = Some(Arc::clone(&listener) as Arc<dyn EvictionObserver>);
    let limit = MemoryLimit { bytes: Some(8 << 20), when_full: WhenFull::Evict };
    let options = MemTreeOptions { partitions: Some(2), limit, compression, observer, ..Default::default() };
    (MemTree::new(options).unwrap(), listener)
}

fn put(tree: &MemTree, key: &[u8], value: &[u8], attributes: Attributes) {
    tree.visit(key, &mut Decided::new(Decision::Put(value.to_vec(), attributes))).unwrap();
}

/// In the leaf, in a block of its own, and in a mapping; in leaves that are compressed, too.
#[test]
fn each_record_that_goes_is_told_as_it_was_stored() {
    for compression in [None, Some(Compression { open_bytes: 256 << 10 })] {
        let (tree, listener) = tree(compression);
        listener.listens.store(true, Ordering::Relaxed);
        let mut stored = BTreeMap::new();
        for n in 0..20_000_u32 {
            let key = format!("key:{n}").into_bytes();
            let len = match n {
                _ if n % 500 == 0 => 100_000,
                _ if n % 7 == 0 => 3000,
                _ => n as usize % 300,
            };
            let value: Vec<u8> = (0..len).map(|at| (n as usize * 31 + at * at) as u8).collect();
            put(&tree, &key, &value, Attributes { flags: n % 3, ..Attributes::default() });
            stored.insert(key, (value, n % 3));
        }
        let told = std::mem::take(&mut *listener.told.lock().unwrap());
        assert!(told.iter().any(|(_, value, ..)| value.len() == 100_000));
        assert_eq!(told.len() as u64, tree.status().evictions);
        for (key, value, flags, is_read) in &told {
            let name = key.escape_ascii();
            // Out of the map: none is told twice.
            assert!(stored.remove(key) == Some((value.clone(), *flags)), "{name}");
            assert!(!tree.view(key, &mut |_| {}).unwrap() && !is_read, "{name}");
        }
        assert_eq!(tree.status().records, stored.len() as u64);
    }
}

#[test]
fn what_has_expired_is_not_evicted_and_without_a_listener_nothing_is_told() {
    let (tree, listener) = tree(None);
    let fill = |attributes: Attributes| {
        (0..60_000_u32).for_each(|n| put(&tree, &n.to_be_bytes(), &[7; 200], attributes));
    };
    fill(Attributes::default());
    let before = tree.status();
    assert!(before.evictions > 0 && listener.told.lock().unwrap().is_empty());
    tree.clear(&mut || ()).unwrap();
    tree.set_time(UnixSeconds(100));
    listener.listens.store(true, Ordering::Relaxed);
    fill(Attributes { expiry: Expiry::At(UnixSeconds(100)), ..Attributes::default() });
    let after = tree.status();
    assert!(after.reclaimed > before.reclaimed);
    assert_eq!(listener.told.lock().unwrap().len() as u64, after.evictions - before.evictions);
}

#[test]
fn what_compressing_takes_counts_until_it_is_given_back() {
    let limit = MemoryLimit { bytes: None, when_full: WhenFull::Evict };
    let compression = Some(Compression { open_bytes: 64 << 10 });
    let options = MemTreeOptions { partitions: Some(1), limit, compression, ..Default::default() };
    let tree = MemTree::new(options).unwrap();
    let empty = tree.status().committed_bytes;
    for n in 0..20_000_u32 {
        put(&tree, format!("user:{n:08}").as_bytes(), b"a value like all others", Attributes::default());
    }
    let held = || tree.status().committed_bytes;
    // Where room is wanted all leaves are compressed, and then what that took goes, too.
    tree.set_limit(MemoryLimit { bytes: Some(held() + (1 << 20)), when_full: WhenFull::Refuse });
    let large = Decision::Put(vec![1; 4 << 20], Attributes::default());
    assert!(tree.visit(b"k", &mut Decided::new(large)).is_err());
    let packed = held();
    // A leaf that is read needs a decompressor, some 94 KiB, and stays open in a copy of 8.
    assert!(tree.view(b"user:00001000", &mut |_| {}).unwrap());
    let takes = held() - packed;
    assert!((64 << 10..2 << 20).contains(&takes), "{takes}");
    tree.clear(&mut || ()).unwrap();
    assert_eq!(held(), empty);
}
