//! Values above 64 KiB are compressed in chunks while no one uses them. Readers and writers must
//! find the same bytes in each form, and the memory of each form must be accounted for exactly.

#[path = "../../tests/held_engine/mod.rs"]
mod held_engine;

use held_engine::HeldEngine;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use todana_core::{
    Action, Attributes, Engine, EngineStatus, ErrorKind, Expiry, LONG_VALUE_LEN, MemoryLimit, Record,
    SharedBytes, UnixSeconds, Visitor, WhenFull,
};
use todana_engine::{FixedLayout, FixedTree, MemHash, MemHashOptions, MemTree, MemTreeOptions, TableEngine};

const CHUNK_LEN: usize = 64 << 10;

/// An engine in memory, and its compression without rests.
trait Subject: Engine {
    fn compress(&self);
    fn engine(&self) -> &dyn Engine;
}

impl Subject for MemHash {
    fn compress(&self) {
        self.compress_long_values();
    }

    fn engine(&self) -> &dyn Engine {
        self
    }
}

impl Subject for MemTree {
    fn compress(&self) {
        self.compress_long_values();
    }

    fn engine(&self) -> &dyn Engine {
        self
    }
}

/// Creates the engines with this limit.
fn subjects(limit: MemoryLimit) -> [Box<dyn Subject>; 2] {
    let hash = MemHashOptions { seed: Some(5), shards: Some(2), limit, ..MemHashOptions::default() };
    let tree = MemTreeOptions { partitions: Some(2), limit, ..MemTreeOptions::default() };
    [Box::new(MemHash::new(hash).unwrap()), Box::new(MemTree::new(tree).unwrap())]
}

const UNLIMITED: MemoryLimit = MemoryLimit { bytes: None, when_full: WhenFull::Evict };

/// Performs an action, or changes the value that it is shown.
enum Change<'v> {
    Do(Action<'v>),
    /// Appends these bytes to the value.
    Append(&'v [u8], Vec<u8>),
    /// Keeps the record and copies its value.
    Copy(Vec<u8>),
}

impl Visitor for Change<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        match (self, old) {
            (Change::Do(action), _) => *action,
            (Change::Append(more, joined), Some(old)) => {
                *joined = [old.value, more].concat();
                Action::Put(Record::new(joined, old.attributes))
            }
            (Change::Copy(copy), Some(old)) => {
                *copy = old.value.to_vec();
                Action::Keep
            }
            (_, None) => Action::Keep,
        }
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        if let (Change::Do(Action::Retag(_)), Some(now)) = (self, now) {
            assert!(now.value.iter().any(|&byte| byte != 0), "the value is shown, not a stand-in");
        }
    }
}

/// Sets new attributes and reads the value only in shared form.
struct RetagShared(Attributes, Option<SharedBytes>);

impl Visitor for RetagShared {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.1 = old.and_then(|old| old.shared.cloned());
        Action::Retag(self.0)
    }

    fn reads_shared(&self) -> bool {
        true
    }
}

fn put(engine: &dyn Engine, key: &[u8], value: &[u8]) -> todana_core::Result<()> {
    let record = Record::new(value, Attributes::default());
    engine.visit(key, &mut Change::Do(Action::Put(record)))
}

fn get(engine: &dyn Engine, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = None;
    let found = engine.view(key, &mut |record| value = Some(record.value.to_vec())).unwrap();
    assert_eq!(found, value.is_some());
    value
}

/// Reads the value chunk by chunk, as connections do.
fn read_chunks(value: &SharedBytes) -> Vec<u8> {
    let (mut bytes, mut chunk) = (Vec::new(), Vec::new());
    while bytes.len() < value.len() {
        value.copy_chunk(bytes.len(), &mut chunk);
        assert!(!chunk.is_empty() && chunk.len() <= CHUNK_LEN, "{} {}", chunk.len(), value.len());
        bytes.extend_from_slice(&chunk);
    }
    value.copy_chunk(bytes.len(), &mut chunk);
    assert!(chunk.is_empty());
    bytes
}

fn shared(engine: &dyn Engine, key: &[u8]) -> SharedBytes {
    let mut shared = None;
    engine.view_shared(key, true, &mut |record| shared = record.shared.cloned()).unwrap();
    shared.expect("the value is long")
}

fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut text = Vec::with_capacity(len + 100);
    while text.len() < len {
        let line = format!(r#"{{"id":{},"name":"user {}","active":true}},"#, random.u32(..), random.u8(..));
        text.extend_from_slice(line.as_bytes());
    }
    text.truncate(len);
    text
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Text with noise in the middle half.
fn half_noise(len: usize, seed: u64) -> Vec<u8> {
    [text(len / 4, seed), noise(len / 2, seed), text(len - len / 4 - len / 2, seed)].concat()
}

fn compressed(status: &EngineStatus) -> (u64, u64) {
    (status.encoding.compressed_values, status.encoding.compressed_plain_bytes)
}

#[test]
fn values_of_every_kind_stay_byte_exact() {
    for subject in subjects(UNLIMITED) {
        let engine = subject.engine();
        let lens = [CHUNK_LEN - 1, CHUNK_LEN, CHUNK_LEN + 1, 100_000, 2 * CHUNK_LEN, 1 << 20, 1 << 20 | 1];
        let mut model = BTreeMap::new();
        for (n, len) in lens.into_iter().enumerate() {
            let seed = n as u64;
            model.insert(format!("text {len}"), text(len, seed));
            model.insert(format!("half {len}"), half_noise(len, seed));
            model.insert(format!("noise {len}"), noise(len, seed));
            model.insert(format!("zeros {len}"), vec![0; len]);
        }
        // The last chunk is about as long as a frame of it.
        for len in 2 * CHUNK_LEN + 1..2 * CHUNK_LEN + 20 {
            model.insert(format!("zeros {len}"), vec![0; len]);
        }
        for (key, value) in &model {
            put(engine, key.as_bytes(), value).unwrap();
        }
        let plain = engine.status();
        assert_eq!(compressed(&plain), (0, 0));
        subject.compress();
        let status = engine.status();
        // A record has memory of its own if key and value together exceed 64 KiB.
        let is_long = |key: &str, value: &Vec<u8>| key.len() + value.len() >= LONG_VALUE_LEN;
        let is_compressed = |key: &str, value: &Vec<u8>| {
            (LONG_VALUE_LEN..=1 << 20).contains(&value.len()) && !key.starts_with("noise")
        };
        let (mut values, mut bytes) = (0, 0);
        for (_, value) in model.iter().filter(|(key, value)| is_compressed(key, value)) {
            values += 1;
            bytes += value.len() as u64;
        }
        assert_eq!(compressed(&status), (values, bytes));
        let stored = status.encoding.compressed_stored_bytes;
        assert!(stored < bytes / 2, "{stored} of {bytes}");
        assert_eq!(plain.live_bytes - status.live_bytes, bytes - stored);
        assert!(status.committed_bytes < plain.committed_bytes - (bytes - stored) + 8192 * values);
        for (key, value) in &model {
            if is_long(key, value) {
                let form = shared(engine, key.as_bytes());
                assert_eq!(form.plain().is_none(), is_compressed(key, value), "{key}");
                assert!(read_chunks(&form) == *value, "{key} in chunks");
            }
            assert!(get(engine, key.as_bytes()).as_ref() == Some(value), "{key}");
        }
        let mut scanned = BTreeMap::new();
        engine
            .scan(None, &mut |key, record| {
                scanned.insert(String::from_utf8(key.to_vec()).unwrap(), record.value.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(scanned == model, "a scan shows plain values");
        if let Some(ordered) = engine.ordered() {
            let mut down = BTreeMap::new();
            let mut see = |key: &[u8], record: Record<'_>| {
                down.insert(String::from_utf8(key.to_vec()).unwrap(), record.value.to_vec());
                ControlFlow::Continue(())
            };
            ordered.descend(Bound::Unbounded, &mut see).unwrap();
            assert!(down == model, "a walk down shows plain values");
        }
    }
}

#[test]
fn random_operations_between_rounds_agree_with_the_model() {
    for subject in subjects(UNLIMITED) {
        let engine = subject.engine();
        let empty = engine.status().committed_bytes;
        let mut model: BTreeMap<Vec<u8>, (Vec<u8>, u32)> = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(11);
        for step in 0..1500 {
            let key = format!("key {}", random.u32(..12)).into_bytes();
            let len = random.usize(CHUNK_LEN - 10..3 * CHUNK_LEN);
            match random.u32(..12) {
                0..3 => {
                    let value = match random.u32(..4) {
                        0 => noise(len, step),
                        1 => half_noise(len, step),
                        2 => text(random.usize(..100), step),
                        _ => text(len, step),
                    };
                    put(engine, &key, &value).unwrap();
                    model.insert(key, (value, 0));
                }
                3 => {
                    engine.visit(&key, &mut Change::Do(Action::Remove)).unwrap();
                    model.remove(&key);
                }
                4 => {
                    engine.visit(&key, &mut Change::Append(b"more", Vec::new())).unwrap();
                    model.entry(key).and_modify(|(value, _)| value.extend_from_slice(b"more"));
                }
                5 => {
                    let mut copy = Change::Copy(Vec::new());
                    engine.visit(&key, &mut copy).unwrap();
                    let Change::Copy(copy) = copy else { unreachable!() };
                    assert!(copy == model.get(&key).map(|(value, _)| value.clone()).unwrap_or_default());
                }
                6 => {
                    let flags = random.u32(1..);
                    let attributes = Attributes { flags, ..Attributes::default() };
                    engine.visit(&key, &mut Change::Do(Action::Retag(attributes))).unwrap();
                    model.entry(key).and_modify(|(_, old)| *old = flags);
                }
                7 => {
                    let flags = random.u32(1..);
                    let mut retag = RetagShared(Attributes { flags, ..Attributes::default() }, None);
                    engine.visit(&key, &mut retag).unwrap();
                    if let Some(shared) = retag.1 {
                        assert!(read_chunks(&shared) == model[&key].0);
                    }
                    model.entry(key).and_modify(|(_, old)| *old = flags);
                }
                8 => subject.compress(),
                _ => assert!(get(engine, &key) == model.get(&key).map(|(value, _)| value.clone())),
            }
        }
        subject.compress();
        assert!(engine.status().encoding.compressed_values > 0);
        let mut scanned = BTreeMap::new();
        engine
            .scan(None, &mut |key, record| {
                scanned.insert(key.to_vec(), (record.value.to_vec(), record.attributes.flags));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(scanned == model);
        engine.clear(&mut || ()).unwrap();
        while engine.maintain() {}
        let status = engine.status();
        assert_eq!((status.records, status.live_bytes, compressed(&status)), (0, 0, (0, 0)));
        assert!(status.committed_bytes <= empty, "{} {empty}", status.committed_bytes);
    }
}

#[test]
fn value_that_is_read_often_becomes_plain() {
    for subject in subjects(UNLIMITED) {
        let engine = subject.engine();
        let value = text(300_000, 1);
        put(engine, b"hot", &value).unwrap();
        put(engine, b"cold", &value).unwrap();
        subject.compress();
        assert_eq!(engine.status().encoding.compressed_values, 2);
        // One read is no reason to take memory.
        assert!(get(engine, b"cold") == Some(value.clone()));
        (0..2).for_each(|_| assert!(read_chunks(&shared(engine, b"hot")) == value));
        // `compress` includes the rounds after which the value is compressed again, so the first
        // round is recognised by a reader that holds what it found.
        let before = shared(engine, b"hot");
        subject.compress();
        assert!(!SharedBytes::ptr_eq(&before, &shared(engine, b"hot")), "it has been plain meanwhile");
        assert!(read_chunks(&before) == value);
        assert!(get(engine, b"hot") == Some(value));
    }
}

#[test]
fn compressed_bytes_are_stored_under_another_key() {
    let [one, other] = subjects(UNLIMITED);
    let value = text(200_000, 1);
    for (from, to) in [(&one, &one), (&one, &other), (&other, &one), (&other, &other)] {
        put(from.engine(), b"from", &value).unwrap();
        from.compress();
        let stored = shared(from.engine(), b"from");
        assert!(stored.plain().is_none());
        // A reader of shared bytes is shown a value without meaning.
        let zeros = vec![0; value.len()];
        let record = Record { shared: Some(&stored), ..Record::new(&zeros, Attributes::default()) };
        to.engine().visit(b"to", &mut Change::Do(Action::Put(record))).unwrap();
        assert!(get(to.engine(), b"to").as_ref() == Some(&value));
    }
}

#[test]
fn requests_without_the_value_decompress_nothing() {
    for subject in subjects(UNLIMITED) {
        let engine = subject.engine();
        put(engine, b"key", &text(200_000, 1)).unwrap();
        subject.compress();
        let stored = shared(engine, b"key");
        assert!(stored.plain().is_none());
        assert_eq!(stored.take_decompressions(), 0);
        let mut lens = Vec::new();
        engine.view_shared(b"key", false, &mut |record| lens.push(record.value.len())).unwrap();
        engine
            .visit(b"key", &mut RetagShared(Attributes { flags: 1, ..Attributes::default() }, None))
            .unwrap();
        engine
            .scan_shared(None, &mut |_, record| {
                lens.push(record.value.len());
                ControlFlow::Continue(())
            })
            .unwrap();
        engine.sample_records();
        engine
            .sweepable()
            .unwrap()
            .sweep(None, 100, todana_core::SweepAim::Tidiness, &mut |_| false)
            .unwrap();
        assert_eq!(lens, [200_000, 200_000]);
        assert_eq!(stored.take_decompressions(), 0);
        let expiry = Expiry::At(UnixSeconds(9));
        engine.visit(b"key", &mut RetagShared(Attributes { expiry, ..Attributes::default() }, None)).unwrap();
        let swept = engine
            .sweepable()
            .unwrap()
            .sweep(None, 100, todana_core::SweepAim::Tidiness, &mut |_| true)
            .unwrap();
        assert_eq!((swept.removed, stored.take_decompressions()), (1, 0));
    }
}

/// A reader keeps the form of the value that it has found, whatever happens to the record.
#[test]
fn slow_reader_keeps_its_bytes_and_their_memory() {
    for subject in subjects(UNLIMITED) {
        let engine = subject.engine();
        let (old, new) = (text(500_000, 1), text(500_000, 2));
        put(engine, b"key", &old).unwrap();
        let empty = engine.status().committed_bytes;
        subject.compress();
        let reader = shared(engine, b"key");
        let mut chunk = Vec::new();
        reader.copy_chunk(0, &mut chunk);
        assert!(chunk == old[..CHUNK_LEN]);
        put(engine, b"key", &new).unwrap();
        subject.compress();
        engine.visit(b"key", &mut Change::Do(Action::Remove)).unwrap();
        assert!(read_chunks(&reader) == old);
        let held = engine.status().committed_bytes;
        let stored = reader.stored_len() as u64;
        drop(reader);
        let freed = held - engine.status().committed_bytes;
        assert!((stored..stored + 8192).contains(&freed), "{freed} {stored} {empty}");
    }
}

#[test]
fn full_memory_holds_and_gains_room() {
    for when_full in [WhenFull::Refuse, WhenFull::Evict] {
        let limit_bytes = 16 << 20;
        for subject in subjects(MemoryLimit { bytes: Some(limit_bytes), when_full }) {
            let engine = subject.engine();
            let mut model = BTreeMap::new();
            let mut fill = |from: u64, to: u64| {
                for n in from..to {
                    let (key, value) = (format!("key {n}").into_bytes(), text(200_000, n));
                    match put(engine, &key, &value) {
                        Ok(()) => drop(model.insert(key, value)),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Full),
                    }
                }
                model.clone()
            };
            fill(0, 100);
            let full = engine.status();
            assert!(full.records < 90, "{}", full.records);
            subject.compress();
            let status = engine.status();
            assert!(compressed(&status).0 >= full.records / 2, "{status:?}");
            assert!(status.committed_bytes <= limit_bytes + limit_bytes / 64);
            let model = fill(100, 140);
            let found: u64 = model
                .iter()
                .map(|(key, value)| {
                    let found = get(engine, key);
                    assert!(found.as_ref().is_none_or(|found| found == value));
                    u64::from(found.is_some())
                })
                .sum();
            assert!(found > full.records + 20, "{found} {}", full.records);
            while engine.maintain() {}
            assert!(engine.status().committed_bytes <= limit_bytes + limit_bytes / 64);
        }
    }
}

/// A compressed value once stayed compressed in full memory, however often it was read. A few reads
/// are not worth the eviction of others.
#[test]
fn value_in_use_becomes_plain_in_full_memory() {
    let limit = 16 << 20;
    for subject in subjects(MemoryLimit { bytes: Some(limit), when_full: WhenFull::Evict }) {
        let engine = subject.engine();
        put(engine, b"used", &text(200_000, 0)).unwrap();
        subject.compress();
        // Memory stays scarce, because noise is not compressed.
        let (mut random, mut noise) = (fastrand::Rng::with_seed(1), vec![0; 200_000]);
        while engine.status().committed_bytes <= limit - limit / 64 {
            random.fill(&mut noise);
            put(engine, &noise[..16], &noise).unwrap();
        }
        assert_eq!(engine.status().evictions, 0);
        // Nobody reads it in the next round, so it is then compressed again.
        for (reads, becomes_plain) in [(2, false), (20, true)] {
            (0..reads).for_each(|_| drop(get(engine, b"used")));
            let before = shared(engine, b"used");
            subject.compress();
            assert_eq!(!Arc::ptr_eq(&before, &shared(engine, b"used")), becomes_plain, "{reads}");
        }
        while engine.maintain() {}
        assert!(engine.status().committed_bytes <= limit + limit / 64, "{:?}", engine.status());
        assert!(get(engine, b"used").is_none_or(|value| value == text(200_000, 0)));
    }
}

/// The sweep of a table and a checkpoint read no values.
#[test]
fn engines_over_a_tree_decompress_as_little() {
    let layout = FixedLayout { width: 1 << 20, number_max: 1000 };
    for is_table in [true, false] {
        let tree = Arc::new(MemTree::new(MemTreeOptions::default()).unwrap());
        let inner = Box::new(HeldEngine(Arc::clone(&tree) as Arc<dyn Engine>));
        let engine: Box<dyn Engine> = match is_table {
            true => Box::new(TableEngine::new(inner).unwrap()),
            false => Box::new(FixedTree::new(inner, layout).unwrap()),
        };
        let expiry = Expiry::At(UnixSeconds(9));
        let value = text(200_000, 1);
        let record = Record::new(&value, Attributes { expiry, ..Attributes::default() });
        engine.visit(b"7", &mut Change::Do(Action::Put(record))).unwrap();
        tree.compress_long_values();
        let stored = shared(&*engine, b"7");
        assert!(stored.plain().is_none());
        let mut lens = Vec::new();
        let scanned = engine.scan_shared(None, &mut |_, record| {
            lens.push(record.value.len());
            ControlFlow::Continue(())
        });
        scanned.unwrap();
        let sweepable = engine.sweepable().unwrap();
        sweepable.sweep(None, 100, todana_core::SweepAim::Tidiness, &mut |_| false).unwrap();
        assert_eq!((lens, stored.take_decompressions()), (vec![200_000], 0));
        let swept = sweepable.sweep(None, 100, todana_core::SweepAim::Tidiness, &mut |_| true).unwrap();
        assert_eq!(swept.removed, 1);
    }
}

#[test]
fn short_value_of_a_long_key_stays_plain() {
    for subject in subjects(UNLIMITED) {
        let engine = subject.engine();
        let key = text(100_000, 1);
        for value in [&b""[..], b"short"] {
            put(engine, &key, value).unwrap();
            subject.compress();
            assert_eq!(compressed(&engine.status()), (0, 0));
            assert_eq!(get(engine, &key).as_deref(), Some(value));
        }
    }
}

#[test]
fn nothing_is_compressed_if_that_is_off() {
    let hash = MemHash::new(MemHashOptions { compresses: false, ..MemHashOptions::default() }).unwrap();
    let options = MemTreeOptions { compresses_long_values: false, ..MemTreeOptions::default() };
    let tree = MemTree::new(options).unwrap();
    for subject in [&hash as &dyn Subject, &tree] {
        put(subject.engine(), b"key", &text(200_000, 1)).unwrap();
        subject.compress();
        assert_eq!(compressed(&subject.engine().status()), (0, 0));
        assert!(shared(subject.engine(), b"key").plain().is_some());
    }
}
