//! A checkpoint and the log after it restore the last state. A damaged checkpoint is never used.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use todana::checkpoint::{CheckpointCompression, CheckpointKeeper, CheckpointOptions, KeeperOutcome};
use todana::disk::SystemDisk;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{
    Clock, DataDirectory, DataOptions, Database, ManualClock, OpeningReport, WorkerCounters, seed_of, verify,
};
use todana_core::{
    Attributes, Delete, ErrorKind, Get, MemoryLimit, Operation, ReplyNeeds, Result, Store, StoreMode, Touch,
    Ttl, UnixSeconds, WhenFull,
};
use todana_engine::{MemHash, MemHashOptions};

type StoredRecords = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

struct OpenedDirectory {
    database: Arc<Database>,
    worker_counters: Arc<WorkerCounters>,
    clock: Arc<ManualClock>,
    opened: OpeningReport,
    // This is dropped last, because the lock must outlive the log.
    directory: Arc<DataDirectory>,
}

fn options(compression: CheckpointCompression) -> DataOptions {
    DataOptions {
        log: LogOptions { sync: SyncPolicy::Never, ..LogOptions::default() },
        checkpoints: CheckpointOptions { compression, ..CheckpointOptions::default() },
    }
}

fn try_open(path: &Path, now: u64, options: &DataOptions, limit: MemoryLimit) -> Result<OpenedDirectory> {
    let clock = Arc::new(ManualClock::new(UnixSeconds(now)));
    let seed = seed_of(Arc::new(SystemDisk), path);
    let engine = MemHash::new(MemHashOptions { limit, seed, ..MemHashOptions::default() }).unwrap();
    let database = Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>);
    let directory = DataDirectory::open(Arc::new(SystemDisk), path)?;
    let opened = directory.restore(&database, Arc::clone(&clock) as Arc<dyn Clock>, options, &mut |_| ())?;
    let worker_counters = database.worker_counters();
    Ok(OpenedDirectory {
        database: Arc::new(database),
        worker_counters,
        clock,
        opened,
        directory: Arc::new(directory),
    })
}

fn open_at(path: &Path, now: u64) -> OpenedDirectory {
    let limit = MemHashOptions::default().limit;
    try_open(path, now, &options(CheckpointCompression::Zstd(1)), limit).unwrap()
}

fn open(path: &Path) -> OpenedDirectory {
    open_at(path, 1_000)
}

impl OpenedDirectory {
    fn run(&self, command: Operation<'_>) -> String {
        let mut answer = String::new();
        self.database.execute(&self.worker_counters, &command, &mut |reply| answer = format!("{reply:?}"));
        answer
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        let answer = self.run(Operation::Store(Store { key, value, ..Store::default() }));
        assert!(answer.starts_with("Stored"), "{answer}");
    }

    fn checkpoint(&self) -> todana::checkpoint::CheckpointInfo {
        self.directory.checkpoint(&self.database).unwrap()
    }

    fn records(&self) -> StoredRecords {
        let mut records = StoredRecords::new();
        let mut place = None;
        loop {
            let scan = self.database.engine().scan(place, &mut |key, record| {
                records.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
                ControlFlow::Continue(())
            });
            place = scan.unwrap();
            if place.is_none() {
                return records;
            }
        }
    }
}

fn files(folder: &Path, directory: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join(directory)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    files(folder, "checkpoints")
}

#[test]
fn records_of_every_size_and_attribute_come_back() {
    for compression in [CheckpointCompression::None, CheckpointCompression::Zstd(1)] {
        let folder = tempfile::tempdir().unwrap();
        let limit = MemHashOptions::default().limit;
        let before = try_open(folder.path(), 1_000, &options(compression), limit).unwrap();
        for (index, len) in [0, 1, 7, 8, 1023, 1025, 65_535, 65_536, 65_537, 262_144, 300_001, 5_000_000]
            .into_iter()
            .enumerate()
        {
            let value: Vec<u8> = (0..len).map(|n: usize| ((n * n) >> 3) as u8).collect();
            before.set(format!("size:{len}").as_bytes(), &value);
            before.set(&vec![b'k'; 60 + index], &value);
        }
        before.set(b"", b"");
        before.set(&vec![b'K'; 70_000], b"short");
        before.set(&vec![b'L'; 300_000], &vec![b'l'; 300_000]);
        for n in 0..2_000u32 {
            before.set(format!("{n}").as_bytes(), format!("{:08}", n * 7_919).as_bytes());
            before.set(format!("{n:019}").as_bytes(), &n.to_le_bytes());
        }
        let needs = ReplyNeeds { version: true, ..ReplyNeeds::default() };
        for (n, ttl) in
            [Ttl::Never, Ttl::Seconds(100), Ttl::At(1 << 33), Ttl::Sliding(60)].into_iter().enumerate()
        {
            for flags in [0, 1, u32::MAX] {
                for needs in [ReplyNeeds::default(), needs] {
                    let key = format!("{n}:{flags}:{}", needs.version);
                    let key = key.as_bytes();
                    before.run(Operation::Store(Store {
                        key,
                        value: b"tagged",
                        flags,
                        ttl,
                        needs,
                        ..Store::default()
                    }));
                }
            }
        }
        before.run(Operation::Store(Store {
            key: b"long and tagged",
            value: &vec![b't'; 100_000],
            flags: 5,
            ttl: Ttl::Sliding(300),
            needs,
            ..Store::default()
        }));
        let records = before.records();
        let made = before.checkpoint();
        assert_eq!(made.records, records.len() as u64);
        assert_eq!(made.len, std::fs::metadata(&made.path).unwrap().len());
        drop(before);

        let after = open_at(folder.path(), 1_010);
        // Since the checkpoint, only the final mark was written.
        assert_eq!(after.opened.entries, 1);
        let brought = after.opened.checkpoint.as_ref().unwrap();
        assert_eq!((brought.records, brought.start, brought.len), (made.records, made.start, made.len));
        assert_eq!(after.records(), records);
    }
}

#[test]
fn checkpoint_and_later_log_give_the_final_state() {
    let folder = tempfile::tempdir().unwrap();
    let before = open(folder.path());
    for n in 0..100u32 {
        before.set(format!("key:{n}").as_bytes(), b"old");
    }
    before.checkpoint();
    before.set(b"key:1", b"new");
    before.run(Operation::Delete(Delete { key: b"key:2", ..Delete::default() }));
    before.run(Operation::Touch(Touch { key: b"key:3", ttl: Ttl::Seconds(500) }));
    before.run(Operation::Store(Store {
        key: b"key:4",
        value: b"+",
        mode: StoreMode::Append,
        ..Store::default()
    }));
    let records = before.records();
    drop(before);
    let after = open(folder.path());
    assert_eq!(after.opened.checkpoint.as_ref().unwrap().records, 100);
    assert!(after.opened.entries >= 4 && after.opened.entries < 20, "{:?}", after.opened);
    assert_eq!(after.records(), records);
}

#[test]
fn records_load_into_other_seeds_and_shards() {
    let folder = tempfile::tempdir().unwrap();
    let before = open(folder.path());
    for n in 0..30_000u32 {
        before.set(n.to_string().as_bytes(), &n.to_le_bytes());
    }
    before.checkpoint();
    let records = before.records();
    drop(before);
    let own = seed_of(Arc::new(SystemDisk), folder.path()).unwrap();
    for (seed, shards) in [(own, 16), (own, 1), (own, 64), (!own, 16), (!own, 2)] {
        let (seed, shards) = (Some(seed), Some(shards));
        let engine = MemHash::new(MemHashOptions { seed, shards, ..MemHashOptions::default() }).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(UnixSeconds(1_000)));
        let database = Database::new(Box::new(engine), Arc::clone(&clock));
        let directory = DataDirectory::open(Arc::new(SystemDisk), folder.path()).unwrap();
        directory.restore(&database, clock, &DataOptions::default(), &mut |_| ()).unwrap();
        let mut now = StoredRecords::new();
        let scan = database.engine().scan(None, &mut |key, record| {
            now.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
            ControlFlow::Continue(())
        });
        assert_eq!(scan.unwrap(), None);
        assert!(now == records);
    }
}

#[test]
fn checkpoint_keeps_versions_and_the_planned_flush() {
    let folder = tempfile::tempdir().unwrap();
    let needs = ReplyNeeds { version: true, ..ReplyNeeds::default() };
    let store = Operation::Store(Store { key: b"k", value: b"v", needs, ..Store::default() });
    let version_of = |answer: String| -> u64 {
        answer.split("version: ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
    };
    let before = open(folder.path());
    let shown = version_of(before.run(store));
    // Now no record has this version, and the log after the checkpoint does not contain it.
    before.run(Operation::Delete(Delete { key: b"k", ..Delete::default() }));
    before.run(Operation::Flush { at: Ttl::Seconds(60) });
    before.set(b"stays", b"until then");
    before.checkpoint();
    drop(before);
    let after = open_at(folder.path(), 1_059);
    assert_eq!(after.opened.entries, 1);
    assert!(version_of(after.run(store)) > shown);
    assert_ne!(after.run(Operation::Get(Get { key: b"stays", ..Get::default() })), "Miss");
    after.clock.advance(1);
    assert_eq!(after.run(Operation::Get(Get { key: b"stays", ..Get::default() })), "Miss");
    // A flush that was executed is no longer planned.
    after.set(b"later", b"stays");
    after.checkpoint();
    drop(after);
    let last = open_at(folder.path(), 5_000);
    assert_ne!(last.run(Operation::Get(Get { key: b"later", ..Get::default() })), "Miss");
}

#[test]
fn expired_records_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let before = open(folder.path());
    before.set(b"stays", b"1");
    before.run(Operation::Store(Store {
        key: b"dies",
        value: b"2",
        ttl: Ttl::Seconds(10),
        ..Store::default()
    }));
    // A touch that read the clock before the expiry may still be in progress.
    before.clock.advance(69);
    assert_eq!(before.checkpoint().records, 2);
    before.clock.advance(1);
    assert_eq!(before.checkpoint().records, 1);
    drop(before);
    assert_eq!(open_at(folder.path(), 1_070).records().into_keys().collect::<Vec<_>>(), [b"stays"]);
}

/// Each writer uses its own keys, so that it knows the final state. The number of records rises and
/// falls, so that buckets split and merge during the scan.
#[test]
fn checkpoint_under_writes_loads_the_last_state() {
    const WRITERS: u64 = 3;
    const KEYS: u64 = 6_000;
    let folder = tempfile::tempdir().unwrap();
    let opening = open(folder.path());
    let stops = AtomicBool::new(false);
    let expected: StoredRecords = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (opening, stops) = (&opening, &stops);
                scope.spawn(move || {
                    let worker_counters = opening.database.worker_counters();
                    let mut model = BTreeMap::new();
                    let mut seed = writer + 1;
                    let mut round = 0u64;
                    while !stops.load(Ordering::Relaxed) || round < 50_000 {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        // Most operations are stores for some time, and then removals.
                        let removes = (seed >> 60) < if (round / 10_000).is_multiple_of(2) { 2 } else { 14 };
                        let key = format!("{writer}:{}", (seed >> 33) % KEYS).into_bytes();
                        let value = match seed >> 40 & 63 {
                            0 => vec![seed as u8; 70_000],
                            1..8 => vec![seed as u8; 2_000],
                            _ => round.to_string().into_bytes(),
                        };
                        let command = if removes {
                            Operation::Delete(Delete { key: &key, ..Delete::default() })
                        } else {
                            Operation::Store(Store {
                                key: &key,
                                value: &value,
                                flags: round as u32,
                                ..Store::default()
                            })
                        };
                        opening.database.execute(&worker_counters, &command, &mut |_| ());
                        if removes {
                            model.remove(&key);
                        } else {
                            let attributes = Attributes { flags: round as u32, ..Attributes::default() };
                            model.insert(key, (value, attributes));
                        }
                        round += 1;
                    }
                    model
                })
            })
            .collect();
        for _ in 0..4 {
            opening.checkpoint();
        }
        stops.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    assert!(opening.records() == expected);
    drop(opening);
    let after = open(folder.path());
    assert!(after.opened.checkpoint.is_some() && after.opened.refused.is_empty(), "{:?}", after.opened);
    assert!(after.records() == expected);
    assert_eq!(verify(Arc::new(SystemDisk), folder.path(), &mut |_| ()).unwrap().damages, [""; 0]);
}

/// Creates a directory with two checkpoints of few records, the second with a long record, and
/// later log. Returns its records.
fn two_checkpoints(folder: &Path, compression: CheckpointCompression) -> StoredRecords {
    let limit = MemHashOptions::default().limit;
    let opening = try_open(folder, 1_000, &options(compression), limit).unwrap();
    opening.set(b"first", b"one");
    opening.set(b"12345678", b"87654321");
    opening.checkpoint();
    opening.set(b"second", b"two");
    opening.set(&vec![b'k'; 66_000], b"a long key");
    opening.run(Operation::Store(Store {
        key: b"tag",
        value: b"v",
        flags: 7,
        ttl: Ttl::Seconds(99),
        ..Store::default()
    }));
    opening.checkpoint();
    opening.set(b"third", b"three");
    opening.records()
}

#[test]
fn flipped_checkpoint_bit_is_never_served() {
    let folder = tempfile::tempdir().unwrap();
    let records = two_checkpoints(folder.path(), CheckpointCompression::Zstd(1));
    let newest = checkpoints(folder.path()).pop().unwrap();
    let whole = std::fs::read(&newest).unwrap();
    assert!(whole.len() < 1_000, "{}", whole.len());
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&newest, &damaged).unwrap();
        let verified = verify(Arc::new(SystemDisk), folder.path(), &mut |_| ()).unwrap();
        let name = newest.display().to_string();
        let is_located = |damage: &String| damage.starts_with(&name) && damage.contains(" at offset ");
        assert!(verified.damages.len() == 1 && is_located(&verified.damages[0]), "{at}: {verified:?}");
        // Not every place is tested, because an opening takes time. The verification above reads
        // every byte with the same reader.
        if at % 5 == 0 {
            let after = open(folder.path());
            // If a flip makes two blocks of one, the threads of a reader may find either first.
            let refused = &after.opened.refused;
            assert!(refused.len() == 1 && is_located(&refused[0]), "{at}: {refused:?}");
            assert!(after.opened.checkpoint.as_ref().unwrap().path != newest);
            assert!(after.records() == records, "{at}");
        }
    }
}

#[test]
fn truncated_or_longer_checkpoint_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let records = two_checkpoints(folder.path(), CheckpointCompression::None);
    let newest = checkpoints(folder.path()).pop().unwrap();
    let whole = std::fs::read(&newest).unwrap();
    let edges = (0..200).chain(whole.len() - 200..whole.len()).chain([whole.len() / 2]);
    for len in edges {
        std::fs::write(&newest, &whole[..len]).unwrap();
        let verified = verify(Arc::new(SystemDisk), folder.path(), &mut |_| ()).unwrap();
        assert_eq!((verified.damages.len(), verified.checkpoints), (1, 1), "{len}: {verified:?}");
    }
    let after = open(folder.path());
    assert_eq!(after.opened.refused.len(), 1);
    assert!(after.records() == records);
    drop(after);
    std::fs::write(&newest, [&whole[..], b"\0"].concat()).unwrap();
    assert_eq!(open(folder.path()).opened.refused.len(), 1);
}

#[test]
fn damaged_older_checkpoint_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let records = two_checkpoints(folder.path(), CheckpointCompression::None);
    let [older, newest] = checkpoints(folder.path()).try_into().unwrap();
    std::fs::write(&older, b"TODANA").unwrap();
    let after = open(folder.path());
    assert_eq!(after.opened.refused, [""; 0]);
    assert!(after.opened.spare.len() == 1 && after.opened.spare[0].starts_with(older.to_str().unwrap()));
    assert_eq!(after.opened.checkpoint.as_ref().unwrap().path, newest);
    assert!(after.records() == records);
}

#[test]
fn blocks_that_are_exchanged_or_missing_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let limit = MemHashOptions::default().limit;
    let opening = try_open(folder.path(), 1_000, &options(CheckpointCompression::None), limit).unwrap();
    for n in 0..3u8 {
        opening.set(&[b'k', n], &[n; 70_000]);
    }
    drop((opening.checkpoint(), opening));
    let path = checkpoints(folder.path()).pop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    // Each record has a head, a piece with its key, and a piece with its value.
    let len = (whole.len() - 96 - 56) / 3;
    let (head, body, foot) = (&whole[..96], &whole[96..whole.len() - 56], &whole[whole.len() - 56..]);
    let exchanged = [head, &body[len..2 * len], &body[..len], &body[2 * len..], foot].concat();
    let twice = [head, &body[..len], &body[..len], &body[2 * len..], foot].concat();
    let missing = [head, &body[..2 * len], foot].concat();
    for changed in [exchanged, twice, missing] {
        std::fs::write(&path, &changed).unwrap();
        let verified = verify(Arc::new(SystemDisk), folder.path(), &mut |_| ()).unwrap();
        assert_eq!((verified.damages.len(), verified.checkpoints), (1, 0), "{verified:?}");
    }
    std::fs::write(&path, &whole).unwrap();
    let verified = verify(Arc::new(SystemDisk), folder.path(), &mut |_| ()).unwrap();
    assert_eq!(verified.newest.map(|newest| (newest.path, newest.records)), Some((path, 3)));
}

#[test]
fn two_checkpoints_and_their_log_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let opening = open(folder.path());
    let mut made = Vec::new();
    for n in 0..5u32 {
        opening.set(b"n", n.to_string().as_bytes());
        made.push(opening.checkpoint());
        let kept: Vec<PathBuf> = made.iter().rev().take(2).rev().map(|made| made.path.clone()).collect();
        assert_eq!(checkpoints(folder.path()), kept);
    }
    let first = files(folder.path(), "log").remove(0);
    assert_eq!(first.file_stem().unwrap().to_str().unwrap(), format!("{:020}", made[3].start.0));
    // This hold keeps the log of the older checkpoints.
    let hold = opening.directory.hold(made[3].start);
    for _ in 0..3 {
        opening.set(b"n", b"more");
        opening.checkpoint();
    }
    assert_eq!(files(folder.path(), "log")[0], first);
    hold.advance(made[4].start);
    opening.set(b"n", b"more");
    opening.checkpoint();
    assert_ne!(files(folder.path(), "log")[0], first);
    drop(hold);
    opening.set(b"n", b"last");
    let last = opening.checkpoint();
    assert!(files(folder.path(), "log").len() <= 3);
    drop(opening);
    let after = open(folder.path());
    assert_eq!(after.opened.checkpoint.unwrap().start, last.start);
}

#[test]
fn missing_log_for_a_checkpoint_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let opening = open(folder.path());
    opening.set(b"k", &[b'v'; 3_000]);
    opening.checkpoint();
    drop(opening);
    let limit = MemHashOptions::default().limit;
    let logs = files(folder.path(), "log");
    for log in &logs[1..] {
        std::fs::remove_file(log).unwrap();
    }
    // The complete log was on disk when the checkpoint got its name.
    let log = std::fs::OpenOptions::new().write(true).open(&logs[0]).unwrap();
    log.set_len(100).unwrap();
    let error = try_open(folder.path(), 1_000, &DataOptions::default(), limit).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    std::fs::remove_file(&logs[0]).unwrap();
    let error = try_open(folder.path(), 1_000, &DataOptions::default(), limit).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn checkpoint_exceeding_memory_is_refused_without_eviction() {
    let folder = tempfile::tempdir().unwrap();
    let opening = open(folder.path());
    for n in 0..40_000u32 {
        opening.set(&n.to_le_bytes(), &[b'v'; 200]);
    }
    opening.checkpoint();
    drop(opening);
    let limit = |when_full| MemoryLimit { bytes: Some(4 << 20), when_full };
    let options = DataOptions::default();
    let error = try_open(folder.path(), 1_000, &options, limit(WhenFull::Refuse)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    let opening = try_open(folder.path(), 1_000, &options, limit(WhenFull::Evict)).unwrap();
    let status = opening.database.engine().status();
    // Threads that load at the same time may each take one page beyond the limit.
    let most = (4 << 20) + (64 << 10);
    assert!(status.records > 1_000 && status.committed_bytes <= most, "{status:?}");
}

#[test]
fn partial_files_go_and_foreign_checkpoints_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    for folder in [&folder, &other] {
        let opening = open(folder.path());
        opening.set(b"of", folder.path().to_str().unwrap().as_bytes());
        opening.checkpoint();
    }
    let own = checkpoints(folder.path()).pop().unwrap();
    std::fs::copy(
        checkpoints(other.path()).pop().unwrap(),
        own.with_file_name(format!("{:020}.checkpoint", 1u64 << 40)),
    )
    .unwrap();
    std::fs::copy(&own, own.with_file_name("new.checkpoint.partial")).unwrap();
    let after = open(folder.path());
    assert_eq!(after.opened.checkpoint.as_ref().unwrap().path, own);
    assert!(after.opened.refused[0].ends_with("belongs to another database"), "{:?}", after.opened);
    assert_eq!(checkpoints(folder.path()).len(), 2);
}

#[test]
fn checkpoint_is_due_after_enough_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(CheckpointCompression::Zstd(1));
    options.checkpoints.log_len_min = 10_000;
    let opening = try_open(folder.path(), 1_000, &options, MemHashOptions::default().limit).unwrap();
    assert!(!opening.directory.is_checkpoint_due(&opening.database));
    opening.set(b"k", &[b'v'; 10_000]);
    assert!(opening.directory.is_checkpoint_due(&opening.database));
    let (sender, receiver) = std::sync::mpsc::channel();
    let keeper =
        CheckpointKeeper::start(Arc::clone(&opening.directory), Arc::clone(&opening.database), move |made| {
            sender.send(made).unwrap()
        });
    let outcome = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    drop(keeper);
    let KeeperOutcome::Checkpoint(Ok(made)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(made.records, 1);
    assert!(!opening.directory.is_checkpoint_due(&opening.database));
}

/// Evictions are not logged. A record that a client has deleted after its eviction must still stay
/// deleted.
#[test]
fn record_deleted_after_eviction_stays_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let tight = MemoryLimit { bytes: Some(4 << 20), when_full: WhenFull::Evict };
    let opening = try_open(folder.path(), 1_000, &DataOptions::default(), tight).unwrap();
    let value = [b'v'; 200];
    for n in 0..40_000u32 {
        opening.set(&n.to_le_bytes(), &value);
    }
    assert!(opening.records().len() < 30_000);
    for n in 0..39_999u32 {
        opening.run(Operation::Delete(Delete { key: &n.to_le_bytes(), ..Delete::default() }));
    }
    drop(opening);
    let records = open(folder.path()).records();
    assert_eq!(records.into_keys().collect::<Vec<_>>(), [39_999u32.to_le_bytes()]);
}

/// Runs random writes on shared keys in three threads. Returns after each has made `commands`
/// writes.
fn write_at_random(opening: &OpenedDirectory, seed: u64, commands: u64, mut each: impl FnMut(u64)) {
    let worker_counters = opening.database.worker_counters();
    let mut dice = seed;
    for n in 0..commands {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let roll = dice >> 33;
        // The database grows for some time, and then shrinks.
        let removes = roll % 16 < if (n / 4_000).is_multiple_of(2) { 3 } else { 13 };
        let key = (roll % 5_003).to_string().into_bytes();
        let value = match dice >> 50 & 127 {
            0 => vec![n as u8; 70_000],
            1..16 => vec![n as u8; 1_500],
            _ => (dice >> 40).to_string().into_bytes(),
        };
        let ttl = match roll >> 20 & 3 {
            0 => Ttl::Seconds(1 + (n % 20) as u32),
            1 => Ttl::Sliding(5),
            _ => Ttl::Never,
        };
        let store = Store { key: &key, value: &value, ttl, flags: n as u32, ..Store::default() };
        let command = match roll >> 24 & 15 {
            _ if removes => Operation::Delete(Delete { key: &key, ..Delete::default() }),
            0 => Operation::Touch(Touch { key: &key, ttl }),
            1 => Operation::Store(Store { mode: StoreMode::Append, value: b"+", ..store }),
            2 => Operation::Get(Get {
                key: &key,
                needs: ReplyNeeds { version: true, ..ReplyNeeds::default() },
                ..Get::default()
            }),
            _ => Operation::Store(store),
        };
        opening.database.execute(&worker_counters, &command, &mut |_| ());
        each(n);
    }
}

/// Opens one directory repeatedly. In each round, checkpoints, expiry, flushes and the sweep run
/// beside the writers.
#[test]
fn checkpoints_do_not_change_the_restored_state() {
    const WRITERS: u64 = 3;
    let folder = tempfile::tempdir().unwrap();
    let mut now = 1_000;
    for round in 0..6u64 {
        let opening = open_at(folder.path(), now);
        let stops = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let opening = &opening;
                    scope.spawn(move || {
                        write_at_random(opening, round * WRITERS + writer, 16_000, |n| match n % 4_000 {
                            500 if writer == 0 => opening.clock.advance(1),
                            2_500 if writer == 0 && n > 8_000 => {
                                opening.run(Operation::Flush { at: Ttl::Expired });
                            }
                            3_500 if writer == 1 => {
                                opening.run(Operation::Flush { at: Ttl::Seconds(2) });
                            }
                            _ => {}
                        });
                    })
                })
                .collect();
            let (opening, stops) = (&opening, &stops);
            scope.spawn(move || {
                while !stops.load(Ordering::Relaxed) {
                    opening.database.maintain();
                    std::thread::yield_now();
                }
            });
            while !writers.iter().all(|writer| writer.is_finished()) {
                opening.checkpoint();
            }
            stops.store(true, Ordering::Relaxed);
        });
        opening.run(Operation::Noop);
        now = opening.database.now().0;
        let live = |opening: &OpenedDirectory| {
            let mut records = opening.records();
            records.retain(|_, (_, attributes)| attributes.expiry.is_live(UnixSeconds(now)));
            for (_, attributes) in records.values_mut() {
                attributes.access = None;
            }
            records
        };
        let records = live(&opening);
        drop(opening);
        let after = open_at(folder.path(), now);
        assert!(after.opened.checkpoint.is_some() && after.opened.refused.is_empty(), "{:?}", after.opened);
        assert!(live(&after) == records, "round {round}");
    }
}

/// Does the same with evictions. All remaining records are restored, and no record that was
/// replaced or deleted.
#[test]
fn records_left_by_evictions_are_restored() {
    let folder = tempfile::tempdir().unwrap();
    let tight = MemoryLimit { bytes: Some(4 << 20), when_full: WhenFull::Evict };
    for round in 0..3u32 {
        let opening =
            try_open(folder.path(), 1_000, &options(CheckpointCompression::Zstd(1)), tight).unwrap();
        let written: StoredRecords = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u32)
                .map(|writer| {
                    let opening = &opening;
                    scope.spawn(move || {
                        let worker_counters = opening.database.worker_counters();
                        let mut model = StoredRecords::new();
                        for n in 0..40_000u32 {
                            let key =
                                format!("{writer}:{}", n.wrapping_mul(2_654_435_761) % 30_011).into_bytes();
                            if n % 5 == 4 {
                                let delete = Delete { key: &key, ..Delete::default() };
                                opening.database.execute(
                                    &worker_counters,
                                    &Operation::Delete(delete),
                                    &mut |_| (),
                                );
                                model.remove(&key);
                            } else {
                                let (value, flags) = (vec![b'v'; 150 + n as usize % 50], round * 100_000 + n);
                                let store = Store { key: &key, value: &value, flags, ..Store::default() };
                                opening.database.execute(
                                    &worker_counters,
                                    &Operation::Store(store),
                                    &mut |_| (),
                                );
                                model.insert(key, (value, Attributes { flags, ..Attributes::default() }));
                            }
                        }
                        model
                    })
                })
                .collect();
            while !writers.iter().all(|writer| writer.is_finished()) {
                opening.checkpoint();
            }
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        let plain = |opening: &OpenedDirectory| {
            let mut records = opening.records();
            records.values_mut().for_each(|(_, attributes)| attributes.access = None);
            records
        };
        let left = plain(&opening);
        assert!(left.len() > 1_000 && left.len() < written.len());
        drop(opening);
        let after = plain(&open(folder.path()));
        for (key, record) in &left {
            assert_eq!(after.get(key), Some(record), "{}", key.escape_ascii());
        }
        // Every round writes all keys again.
        for (key, record) in &after {
            assert_eq!(written.get(key), Some(record), "{}", key.escape_ascii());
        }
    }
}

#[test]
fn expired_records_do_not_prevent_opening() {
    let folder = tempfile::tempdir().unwrap();
    let limit = MemoryLimit { bytes: Some(4 << 20), when_full: WhenFull::Refuse };
    let options = DataOptions::default();
    let opening = try_open(folder.path(), 1_000, &options, limit).unwrap();
    for round in 0..8u64 {
        opening.clock.advance(100);
        for n in 0..8_000u32 {
            let key = [&round.to_le_bytes()[..], &n.to_le_bytes()].concat();
            let ttl = Ttl::Seconds(50);
            let answer = opening.run(Operation::Store(Store {
                key: &key,
                value: &[b'v'; 200],
                ttl,
                ..Store::default()
            }));
            assert!(answer.starts_with("Stored"), "round {round}, {n}: {answer}");
        }
    }
    drop(opening);
    let opening = try_open(folder.path(), 1_810, &options, limit).unwrap();
    assert!(opening.opened.entries >= 64_000);
    assert_eq!(opening.database.engine().bounded().unwrap().limit(), limit);
    let key = [&7u64.to_le_bytes()[..], &5u32.to_le_bytes()].concat();
    assert_eq!(opening.records()[&key].0, [b'v'; 200]);
}
