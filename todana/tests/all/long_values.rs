//! Values above 64 KiB that the engine has compressed behave as plain ones do: in commands, in the
//! update log, in checkpoints, and in transactions.

use crate::held_engine::HeldEngine;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use todana::checkpoint::{CheckpointCompression, CheckpointOptions};
use todana::disk::SystemDisk;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{Clock, DataDirectory, DataOptions, Database, ManualClock, Records, WorkerCounters, seed_of};
use todana_core::{
    Arithmetic, Delete, Engine, Get, Operation, OwnedReply, RefusalReason, Reply, ReplyNeeds, SharedBytes,
    Store, StoreMode, Touch, Ttl, UnixSeconds,
};
use todana_engine::{MemHash, MemHashOptions};

/// Returns lines that resemble each other.
fn text_of_len(len: usize, seed: u8) -> Vec<u8> {
    let line =
        |n: usize| format!("{{\"id\":{},\"name\":\"user {n}\"}}\n", n * usize::from(seed)).into_bytes();
    (0..).flat_map(line).take(len).collect()
}

struct OpenedDirectory {
    hash: Arc<MemHash>,
    database: Arc<Database>,
    worker_counters: Arc<WorkerCounters>,
    // This is dropped last, because the lock must outlive the log.
    directory: Arc<DataDirectory>,
}

fn open(path: &Path, compression: CheckpointCompression) -> OpenedDirectory {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(UnixSeconds(1_000)));
    let seed = seed_of(Arc::new(SystemDisk), path);
    let hash = Arc::new(MemHash::new(MemHashOptions { seed, ..MemHashOptions::default() }).unwrap());
    let database =
        Database::new(Box::new(HeldEngine(Arc::clone(&hash) as Arc<dyn Engine>)), Arc::clone(&clock));
    let options = DataOptions {
        log: LogOptions { sync: SyncPolicy::Never, ..LogOptions::default() },
        checkpoints: CheckpointOptions { compression, ..CheckpointOptions::default() },
    };
    let directory = DataDirectory::open(Arc::new(SystemDisk), path).unwrap();
    directory.restore(&database, clock, &options, &mut |_| ()).unwrap();
    let worker_counters = database.worker_counters();
    OpenedDirectory { hash, database: Arc::new(database), worker_counters, directory: Arc::new(directory) }
}

impl OpenedDirectory {
    fn run(&self, operation: Operation<'_>) -> OwnedReply {
        let mut answer = None;
        self.database.execute(&self.worker_counters, &operation, &mut |reply| {
            answer = Some(OwnedReply::new(reply));
        });
        answer.expect("each operation has a reply")
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        let reply = self.run(Operation::Store(Store { key, value, ..Store::default() }));
        assert!(matches!(reply.borrowed(), Reply::Stored(_)));
    }

    fn get(&self, get: Get<'_>) -> Option<Vec<u8>> {
        match self.run(Operation::Get(get)).borrowed() {
            Reply::Hit(hit) => Some(hit.record.value.to_vec()),
            _ => None,
        }
    }

    /// Compresses all values, and returns the number of compressed ones.
    fn compress(&self) -> u64 {
        self.hash.compress_long_values();
        self.hash.status().encoding.compressed_values
    }

    fn stored(&self, key: &[u8]) -> SharedBytes {
        let mut stored = None;
        self.hash.view_shared(key, false, &mut |record| stored = record.shared.cloned()).unwrap();
        stored.expect("the value is long")
    }

    fn records(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut records = BTreeMap::new();
        let scan = self.database.engine().scan(None, &mut |key, record| {
            records.insert(key.to_vec(), record.value.to_vec());
            ControlFlow::Continue(())
        });
        assert!(scan.unwrap().is_none());
        records
    }
}

#[test]
fn commands_find_the_bytes_of_compressed_values() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path(), CheckpointCompression::None);
    let mut model = BTreeMap::new();
    for n in 0..12u8 {
        let (key, value) = (vec![b'a' + n], text_of_len(100_000 + 50_000 * usize::from(n), n));
        opened.set(&key, &value);
        model.insert(key, value);
    }
    assert_eq!(opened.compress(), 12);
    let store = |key, mode| Operation::Store(Store { key, value: b"more", mode, ..Store::default() });
    assert!(
        matches!(opened.run(store(b"a", StoreMode::Append)).borrowed(), Reply::Stored(stored) if stored.value_len == 100_004)
    );
    model.get_mut(&b"a"[..]).unwrap().extend_from_slice(b"more");
    opened.run(store(b"b", StoreMode::Prepend));
    model.get_mut(&b"b"[..]).unwrap().splice(..0, *b"more");
    assert_eq!(opened.run(store(b"c", StoreMode::Add)).borrowed(), Reply::NotStored);
    assert!(matches!(opened.run(store(b"d", StoreMode::Replace)).borrowed(), Reply::Stored(_)));
    model.insert(b"d".to_vec(), b"more".to_vec());
    assert_eq!(
        opened.run(Operation::Delete(Delete { key: b"e", ..Delete::default() })).borrowed(),
        Reply::Deleted
    );
    model.remove(&b"e"[..]);
    let needs = ReplyNeeds { version: true, ..ReplyNeeds::default() };
    let ttl = Ttl::Seconds(500);
    for reads_shared in [false, true] {
        for (key, needs, touch) in [
            (b"f", ReplyNeeds::default(), None),
            (b"g", needs, None),
            (b"h", ReplyNeeds::default(), Some(ttl)),
            (b"i", needs, Some(ttl)),
        ] {
            let get = Get { key, needs, touch, reads_shared, ..Get::default() };
            assert!(opened.get(get).as_ref() == model.get(&key[..]), "{key:?} {reads_shared}");
        }
    }
    let sum = Operation::Arithmetic(Arithmetic { key: b"j", delta: 1, ..Arithmetic::default() });
    assert_eq!(opened.run(sum).borrowed(), Reply::Refused(RefusalReason::NonNumeric));
    // None of these needs the value.
    let stored = opened.stored(b"k");
    let touch = Touch { key: b"k", ttl };
    assert_eq!(opened.run(Operation::Touch(touch)).borrowed(), Reply::Touched);
    let stale = Delete { key: b"k", mark_stale: true, ..Delete::default() };
    assert_eq!(opened.run(Operation::Delete(stale)).borrowed(), Reply::Deleted);
    opened.run(store(b"k", StoreMode::Add));
    let get =
        Operation::Get(Get { key: b"k", touch: Some(ttl), needs, reads_shared: true, ..Get::default() });
    let mut len = 0;
    opened.database.execute(&opened.worker_counters, &get, &mut |reply| {
        len = if let Reply::Hit(hit) = reply { hit.record.value.len() } else { 0 };
    });
    opened.database.list(None, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!((len, stored.take_decompressions()), (600_000, 0));
    assert!(opened.records() == model);
    drop(opened);
    // The update log has the same bytes.
    assert!(open(folder.path(), CheckpointCompression::None).records() == model);
}

#[test]
fn values_grow_around_the_length_of_long_ones() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path(), CheckpointCompression::None);
    // Each record has memory of its own, because of the length of its key.
    for (n, (key_len, value_len)) in [(200, 65_400), (200, 65_536), (20_000, 50_000)].into_iter().enumerate()
    {
        let (key, value) = (vec![b'a' + n as u8; key_len], text_of_len(value_len, 7));
        for (mode, grown) in [
            (StoreMode::Append, [&value[..], b"more"].concat()),
            (StoreMode::Prepend, [b"more", &value[..]].concat()),
        ] {
            opened.set(&key, &value);
            opened.compress();
            let store = Store { key: &key, value: b"more", mode, ..Store::default() };
            assert!(matches!(opened.run(Operation::Store(store)).borrowed(), Reply::Stored(_)));
            opened.compress();
            assert!(opened.get(Get { key: &key, ..Get::default() }) == Some(grown), "{value_len}");
        }
    }
}

#[test]
fn checkpoint_contains_compressed_values_in_plain_form() {
    for compression in [CheckpointCompression::None, CheckpointCompression::Zstd(1)] {
        let folder = tempfile::tempdir().unwrap();
        let opened = open(folder.path(), compression);
        let mut model = BTreeMap::new();
        for (n, len) in
            [65_536, 65_537, 131_072, 262_144, 262_145, 524_288, 1_000_003].into_iter().enumerate()
        {
            let (key, value) = (len.to_string().into_bytes(), text_of_len(len, n as u8));
            opened.set(&key, &value);
            model.insert(key, value);
        }
        // The first value is short enough for a block.
        assert_eq!(opened.compress(), 6);
        let stored = opened.stored(b"1000003");
        opened.directory.checkpoint(&opened.database).unwrap();
        assert_eq!(opened.hash.status().encoding.compressed_values, 6);
        assert_eq!(stored.take_decompressions(), 1, "in chunks");
        drop(opened);
        assert!(open(folder.path(), compression).records() == model, "{compression:?}");
    }
}

#[test]
fn transaction_reads_and_replaces_compressed_values() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path(), CheckpointCompression::None);
    let (old, new) = (text_of_len(200_000, 1), text_of_len(200_000, 2));
    opened.set(b"read", &old);
    opened.set(b"replaced", &old);
    assert_eq!(opened.compress(), 2);
    let transaction = opened.database.begin(&opened.worker_counters).unwrap();
    let within = |operation: Operation<'_>| {
        let mut value = None;
        let executed = transaction.execute(&operation, &mut |reply| {
            value = match OwnedReply::new(reply).borrowed() {
                Reply::Hit(hit) => Some(hit.record.value.to_vec()),
                _ => None,
            };
        });
        executed.unwrap();
        value
    };
    for reads_shared in [false, true] {
        let get = |key| Operation::Get(Get { key, reads_shared, ..Get::default() });
        assert!(within(get(b"read")).as_ref() == Some(&old));
        within(Operation::Touch(Touch { key: b"read", ttl: Ttl::Seconds(9) }));
        assert!(within(get(b"read")).as_ref() == Some(&old));
        within(Operation::Store(Store { key: b"replaced", value: &new, ..Store::default() }));
        assert!(within(get(b"replaced")).as_ref() == Some(&new));
        let get = Get { key: b"replaced", reads_shared, ..Get::default() };
        assert!(opened.get(get).as_ref() == Some(&old));
    }
    transaction.commit().unwrap();
    assert!(opened.get(Get { key: b"replaced", ..Get::default() }).as_ref() == Some(&new));
    assert!(opened.get(Get { key: b"read", ..Get::default() }).as_ref() == Some(&old));
}
