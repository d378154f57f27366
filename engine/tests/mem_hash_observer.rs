//! Whoever observes evictions is told of each record that goes, and of no other.

#[allow(dead_code, reason = "each test file uses its part")]
mod model;

use model::{Decided, Decision};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use todana_core::{Attributes, Bounded, Engine, Expiry, MemoryLimit, Record, UnixSeconds, WhenFull};
use todana_engine::{EvictionObserver, MemHash, MemHashOptions};

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

fn hash(options: MemHashOptions) -> (MemHash, Arc<Listener>) {
    let listener = Arc::new(Listener::default());
    let observer = Some(Arc::clone(&listener) as Arc<dyn EvictionObserver>);
    let options = MemHashOptions { shards: Some(2), seed: Some(1), observer, ..options };
    (MemHash::new(options).unwrap(), listener)
}

fn put(hash: &MemHash, key: &[u8], value: &[u8], attributes: Attributes) {
    hash.visit(key, &mut Decided::new(Decision::Put(value.to_vec(), attributes))).unwrap();
}

/// In the bucket, in a block of its own, and in a mapping.
#[test]
fn each_record_that_goes_is_told_as_it_was_stored() {
    let limit = MemoryLimit { bytes: Some(8 << 20), when_full: WhenFull::Evict };
    let (hash, listener) = hash(MemHashOptions { limit, ..Default::default() });
    listener.listens.store(true, Ordering::Relaxed);
    let mut stored = BTreeMap::new();
    for n in 0..20_000_u32 {
        let key = format!("key:{n}").into_bytes();
        let len = if n % 500 == 0 {
            100_000
        } else if n % 7 == 0 {
            3000
        } else {
            n as usize % 300
        };
        let value = vec![n as u8; len];
        put(&hash, &key, &value, Attributes { flags: n % 3, ..Attributes::default() });
        stored.insert(key, (value, n % 3));
    }
    let told = std::mem::take(&mut *listener.told.lock().unwrap());
    assert!(told.iter().any(|(_, value, ..)| value.len() == 100_000));
    assert_eq!(told.len() as u64, hash.status().evictions);
    for (key, value, flags, _) in &told {
        let name = key.escape_ascii();
        // Out of the map: none is told twice.
        assert!(stored.remove(key) == Some((value.clone(), *flags)), "{name}");
        assert!(!hash.view(key, &mut |_| {}).unwrap(), "{name}");
    }
    assert_eq!(hash.status().records, stored.len() as u64);
}

#[test]
fn a_record_that_has_been_read_is_told_so() {
    let (hash, listener) = hash(MemHashOptions { capacity_records: Some(400), ..Default::default() });
    listener.listens.store(true, Ordering::Relaxed);
    let read = |n: u32| hash.view(&n.to_be_bytes(), &mut |_| {}).unwrap();
    for n in 0..4000_u32 {
        put(&hash, &n.to_be_bytes(), b"x", Attributes::default());
        // Only those below 2000: they fill the main queue, so that some of them have to go from there.
        assert!(n >= 2000 || read(n));
    }
    let told = listener.told.lock().unwrap();
    let (mut read, mut unread) = (0, 0);
    for (key, _, _, is_read) in told.iter() {
        let n = u32::from_be_bytes(key[..].try_into().unwrap());
        // The first come while memory is not scarce yet.
        assert!(*is_read == (n < 2000) || n < 400, "{n}");
        *if *is_read { &mut read } else { &mut unread } += 1;
    }
    assert!(read > 1000 && unread > 1000, "{read} read, {unread} not");
}

/// That its key comes back soon after it has gone makes a record worth keeping; that its value is replaced, too. Neither is a read.
#[test]
fn a_key_that_comes_back_and_a_value_that_is_replaced_are_not_read() {
    let (hash, listener) = hash(MemHashOptions { capacity_records: Some(400), ..Default::default() });
    listener.listens.store(true, Ordering::Relaxed);
    let read = |n: u32| hash.view(&n.to_be_bytes(), &mut |_| {}).unwrap();
    for round in 0..20_u32 {
        for n in 0..600 {
            let key = (round * 300 + n).to_be_bytes();
            put(&hash, &key, b"x", Attributes::default());
            read(round * 300 + n);
            put(&hash, &key, b"y", Attributes::default());
        }
    }
    let told = listener.told.lock().unwrap();
    assert!(told.len() > 5000, "{}", told.len());
    for (key, value, _, is_read) in told.iter() {
        assert_eq!((value.as_slice(), is_read), (&b"y"[..], &false), "{key:?}");
    }
}

#[test]
fn what_has_expired_is_not_evicted_and_without_a_listener_nothing_is_told() {
    let (hash, listener) = hash(MemHashOptions { capacity_records: Some(100), ..Default::default() });
    for n in 0..500_u32 {
        put(&hash, &n.to_be_bytes(), b"x", Attributes::default());
    }
    let before = hash.status();
    assert!(before.evictions > 0 && listener.told.lock().unwrap().is_empty());
    hash.clear(&mut || ()).unwrap();
    hash.set_time(UnixSeconds(100));
    listener.listens.store(true, Ordering::Relaxed);
    let expiry = Expiry::At(UnixSeconds(100));
    for n in 0..500_u32 {
        put(&hash, &n.to_be_bytes(), b"x", Attributes { expiry, ..Attributes::default() });
    }
    assert!(hash.status().reclaimed > before.reclaimed);
    assert_eq!(listener.told.lock().unwrap().len() as u64, hash.status().evictions - before.evictions);
    assert_eq!(hash.status().evictions, before.evictions);
}
