//! An observer of evictions from an engine in memory is notified of each evicted record and of no
//! other.

mod listener;
#[allow(dead_code, reason = "each test file uses its part")]
mod model;

use listener::Listener;
use model::{Decided, Decision};
use std::collections::BTreeMap;
use std::sync::Arc;
use todana_core::{Attributes, Engine, Expiry, MemoryLimit, UnixSeconds, WhenFull};
use todana_engine::{Compression, MemHash, MemHashOptions, MemTree, MemTreeOptions};

const LIMIT: MemoryLimit = MemoryLimit { bytes: Some(8 << 20), when_full: WhenFull::Evict };

/// Returns the engines, each with its listener, which is not listening yet.
fn engines() -> Vec<(Box<dyn Engine>, Arc<Listener>)> {
    let hash = {
        let listener = Arc::new(Listener::default());
        let (limit, observer) = (LIMIT, listener.observer());
        let options =
            MemHashOptions { shards: Some(2), seed: Some(1), limit, observer, ..Default::default() };
        (Box::new(MemHash::new(options).unwrap()) as Box<dyn Engine>, listener)
    };
    let tree = |compression| {
        let listener = Arc::new(Listener::default());
        let (limit, observer) = (LIMIT, listener.observer());
        let options =
            MemTreeOptions { partitions: Some(2), limit, compression, observer, ..Default::default() };
        (Box::new(MemTree::new(options).unwrap()) as Box<dyn Engine>, listener)
    };
    vec![hash, tree(None), tree(Some(Compression { open_bytes: 256 << 10 }))]
}

fn put(engine: &dyn Engine, key: &[u8], value: &[u8], attributes: Attributes) {
    engine.visit(key, &mut Decided::new(Decision::Put(value.to_vec(), attributes))).unwrap();
}

/// Values among the others, in a block of their own, and in a mapping.
#[test]
fn evicted_records_are_reported_as_stored() {
    for (engine, listener) in engines() {
        listener.listen();
        let mut stored = BTreeMap::new();
        for n in 0..20_000_u32 {
            let key = format!("key:{n}").into_bytes();
            let len = match n {
                _ if n % 500 == 0 => 100_000,
                _ if n % 7 == 0 => 3000,
                _ => n as usize % 300,
            };
            let value: Vec<u8> = (0..len).map(|at| (n as usize * 31 + at * at) as u8).collect();
            put(&*engine, &key, &value, Attributes { flags: n % 3, ..Attributes::default() });
            stored.insert(key, (value, n % 3));
        }
        let told = listener.take();
        assert!(told.iter().any(|(_, value, ..)| value.len() == 100_000));
        assert_eq!(told.len() as u64, engine.status().evictions);
        for (key, value, flags, is_read) in &told {
            let name = key.escape_ascii();
            // Removed from the map, so that no record is reported twice.
            assert!(stored.remove(key) == Some((value.clone(), *flags)), "{name}");
            assert!(!engine.view(key, &mut |_| {}).unwrap() && !is_read, "{name}");
        }
        assert_eq!(engine.status().records, stored.len() as u64);
    }
}

#[test]
fn expired_records_are_not_reported_as_evicted() {
    // Compressed, all of this would fit.
    for (engine, listener) in engines().into_iter().take(2) {
        let fill = |attributes: Attributes| {
            (0..60_000_u32).for_each(|n| put(&*engine, &n.to_be_bytes(), &[7; 200], attributes));
        };
        fill(Attributes::default());
        let before = engine.status();
        assert!(before.evictions > 0 && listener.take().is_empty());
        engine.clear(&mut || ()).unwrap();
        engine.bounded().unwrap().set_time(UnixSeconds(100));
        listener.listen();
        fill(Attributes { expiry: Expiry::At(UnixSeconds(100)), ..Attributes::default() });
        let after = engine.status();
        assert!(after.reclaimed > before.reclaimed);
        assert_eq!((after.evictions, listener.take().len()), (before.evictions, 0));
    }
}

/// Returns a hash with a listener.
fn hash_of_400() -> (MemHash, Arc<Listener>) {
    let listener = Arc::new(Listener::default());
    listener.listen();
    let options = MemHashOptions { shards: Some(2), seed: Some(1), ..Default::default() };
    let options = MemHashOptions { capacity_records: Some(400), observer: listener.observer(), ..options };
    (MemHash::new(options).unwrap(), listener)
}

#[test]
fn evicted_record_is_reported_as_read() {
    let (hash, listener) = hash_of_400();
    let read = |n: u32| hash.view(&n.to_be_bytes(), &mut |_| {}).unwrap();
    for n in 0..4000_u32 {
        put(&hash, &n.to_be_bytes(), b"x", Attributes::default());
        // Only those below 2000: they fill the main queue, so that some of them must be evicted
        // from it.
        assert!(n >= 2000 || read(n));
    }
    let told = listener.take();
    let (mut read, mut unread) = (0, 0);
    for (key, _, _, is_read) in &told {
        let n = u32::from_be_bytes(key[..].try_into().unwrap());
        // The first ones arrive before memory is scarce.
        assert!(*is_read == (n < 2000) || n < 400, "{n}");
        *if *is_read { &mut read } else { &mut unread } += 1;
    }
    assert!(read > 1000 && unread > 1000, "{read} read, {unread} not");
}

/// A record is worth keeping if its key returns soon after an eviction, or if its value is
/// replaced. Neither is a read.
#[test]
fn returning_keys_and_replaced_values_count_as_unread() {
    let (hash, listener) = hash_of_400();
    let read = |n: u32| hash.view(&n.to_be_bytes(), &mut |_| {}).unwrap();
    for round in 0..20_u32 {
        for n in 0..600 {
            let key = (round * 300 + n).to_be_bytes();
            put(&hash, &key, b"x", Attributes::default());
            read(round * 300 + n);
            put(&hash, &key, b"y", Attributes::default());
        }
    }
    let told = listener.take();
    assert!(told.len() > 5000, "{}", told.len());
    for (key, value, _, is_read) in &told {
        assert_eq!((value.as_slice(), is_read), (&b"y"[..], &false), "{key:?}");
    }
}

/// A read of a record with the maximum number of uses changed no mark. After a new value, the
/// record was therefore reported as never read.
#[test]
fn reads_of_a_replaced_value_are_noted() {
    let (hash, listener) = hash_of_400();
    let set = |n: u32, value: &[u8]| put(&hash, &n.to_be_bytes(), value, Attributes::default());
    let read = |n: u32| assert!(hash.view(&n.to_be_bytes(), &mut |_| {}).unwrap());
    (0..50).for_each(|n| set(n, b"x"));
    for n in 50..1000 {
        set(n, b"x");
        (0..50).for_each(read);
    }
    (0..50).for_each(|n| set(n, b"y"));
    (0..50).for_each(read);
    (1000..4000).for_each(|n| set(n, b"x"));
    let told = listener.take();
    let replaced: Vec<bool> =
        told.iter().filter(|(_, value, ..)| value == b"y").map(|(.., is_read)| *is_read).collect();
    assert!(!replaced.is_empty() && replaced.iter().all(|&is_read| is_read), "{replaced:?}");
}
