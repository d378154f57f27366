//! Records that fit into the memory limit only in their compressed form come back after a restart,
//! and reach a replica.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use todana::checkpoint::{CheckpointDecoder, CheckpointForm, CheckpointOptions, send_checkpoint};
use todana::disk::SystemDisk;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{Clock, DataDirectory, DataOptions, Database, ManualClock, seed_of};
use todana_core::{
    Engine, EngineStatus, ErrorKind, MemoryLimit, Operation, Reply, Result, Store, UnixSeconds, WhenFull,
};
use todana_engine::{MemHash, MemHashOptions, MemTree, MemTreeOptions};

/// The lowest limit with which encodings are trained.
const LIMIT: u64 = 8 << 20;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct OpenedDirectory {
    database: Arc<Database>,
    // This is dropped last, because the lock must outlive the log.
    directory: DataDirectory,
}

/// An engine without data. The first argument is the seed of a directory.
type NewEngine = fn(Option<u64>, MemoryLimit) -> Box<dyn Engine>;

fn hash(seed: Option<u64>, limit: MemoryLimit) -> Box<dyn Engine> {
    // As many shards as a server has with such a limit.
    let options = MemHashOptions { limit, seed, shards: Some(4), ..MemHashOptions::default() };
    Box::new(MemHash::new(options).unwrap())
}

fn tree(_: Option<u64>, limit: MemoryLimit) -> Box<dyn Engine> {
    Box::new(MemTree::new(MemTreeOptions { limit, ..MemTreeOptions::default() }).unwrap())
}

fn limit(when_full: WhenFull) -> MemoryLimit {
    MemoryLimit { bytes: Some(LIMIT), when_full }
}

const UNLIMITED: MemoryLimit = MemoryLimit { bytes: None, when_full: WhenFull::Refuse };

fn open(path: &Path, engine: NewEngine, limit: MemoryLimit, form: CheckpointForm) -> OpenedDirectory {
    try_open(path, engine, limit, form).unwrap()
}

fn try_open(
    path: &Path,
    engine: NewEngine,
    limit: MemoryLimit,
    form: CheckpointForm,
) -> Result<OpenedDirectory> {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(UnixSeconds(1_000)));
    let engine = engine(seed_of(Arc::new(SystemDisk), path), limit);
    let database = Database::new(engine, Arc::clone(&clock));
    let options = DataOptions {
        log: LogOptions { sync: SyncPolicy::Never, ..LogOptions::default() },
        checkpoints: CheckpointOptions { form, ..CheckpointOptions::default() },
    };
    let directory = DataDirectory::open(Arc::new(SystemDisk), path)?;
    directory.restore(&database, clock, &options, &mut |_| ())?;
    Ok(OpenedDirectory { database: Arc::new(database), directory })
}

fn set_all(database: &Database, model: &Model) {
    let worker_counters = database.worker_counters();
    for (key, value) in model {
        let store = Operation::Store(Store { key, value, ..Store::default() });
        database.execute(&worker_counters, &store, &mut |reply| assert!(matches!(reply, Reply::Stored(_))));
    }
}

fn records(engine: &dyn Engine) -> Model {
    let mut records = Model::new();
    let end = engine.scan(None, &mut |key, record| {
        records.insert(key.to_vec(), record.value.to_vec());
        ControlFlow::Continue(())
    });
    assert!(end.unwrap().is_none());
    records
}

/// Checks that all records are there, within the limit.
fn check(engine: &dyn Engine, model: &Model) -> EngineStatus {
    assert!(records(engine) == *model);
    let status = engine.status();
    assert_eq!((status.records, status.evictions), (model.len() as u64, 0));
    assert!(status.committed_bytes <= LIMIT, "{status:?}");
    assert_eq!(engine.bounded().unwrap().limit().bytes, Some(LIMIT));
    status
}

/// Returns records of 2.5 times the limit: most fit into buckets, and some need blocks.
fn profiles() -> Model {
    let profile = |n: u64| {
        let mut random = fastrand::Rng::with_seed(n);
        let name = ["Amara", "Olga", "Pedro", "Li"][random.usize(..4)];
        let country = ["Kenya", "Norway", "Peru", "China"][random.usize(..4)];
        let order = |random: &mut fastrand::Rng| {
            let (item, price) = (random.u16(..), random.u8(..));
            format!(r#"{{"item":{item},"currency":"EUR","price":{price},"status":"delivered"}}"#)
        };
        let orders = if n.is_multiple_of(50) { 30 } else { 3 };
        let orders: Vec<String> = (0..orders).map(|_| order(&mut random)).collect();
        format!(
            r#"{{"id":{n},"name":"{name}","country":"{country}","language":"en","orders":[{}]}}"#,
            orders.join(",")
        )
    };
    (0..66_000).map(|n| (format!("user:{n}:profile").into_bytes(), profile(n).into_bytes())).collect()
}

/// Returns values above 64 KiB, of 2.5 times the limit. One of them is noise.
fn long_values() -> Model {
    let text = |n: usize| {
        let len = [70_000, 200_000, 500_000, 1_000_000][n % 4];
        let line = |row: usize| format!("{{\"id\":{},\"name\":\"user {row}\"}}\n", row * n).into_bytes();
        (0..).flat_map(line).take(len).collect()
    };
    let mut model: Model = (1..48).map(|n| (format!("page:{n}").into_bytes(), text(n))).collect();
    let mut random = fastrand::Rng::with_seed(1);
    model.insert(b"noise".to_vec(), (0..300_000).map(|_| random.u8(..)).collect());
    model
}

fn plain_len(model: &Model) -> u64 {
    model.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()
}

/// Writes records without a limit, and opens them with one, from a checkpoint of each form and from
/// the log alone.
fn restart(engine: NewEngine, model: &Model, see: impl Fn(&EngineStatus)) {
    assert!(plain_len(model) > LIMIT * 12 / 5, "{}", plain_len(model));
    for form in [Some(CheckpointForm::Image), Some(CheckpointForm::Portable), None] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint_form = form.unwrap_or(CheckpointForm::Image);
        let before = open(folder.path(), engine, UNLIMITED, checkpoint_form);
        set_all(&before.database, model);
        if form.is_some() {
            before.directory.checkpoint(&before.database).unwrap();
        }
        drop(before);
        for when_full in [WhenFull::Refuse, WhenFull::Evict] {
            let after = open(folder.path(), engine, limit(when_full), checkpoint_form);
            see(&check(after.database.engine(), model));
        }
    }
}

#[test]
fn encoded_records_fit_again_after_restart() {
    restart(hash, &profiles(), |status| {
        assert!(status.encoding.dictionaries > 0 && status.encoding.key_shapes > 0);
    });
}

#[test]
fn long_values_fit_again_after_restart() {
    for engine in [hash, tree] {
        restart(engine, &long_values(), |status| assert!(status.encoding.compressed_values > 30));
    }
}

#[test]
fn copied_records_fit_into_a_replica() {
    let mut model = profiles();
    model.retain(|key, _| !key.ends_with(b"7:profile"));
    model.extend(long_values().into_iter().take(10));
    let folder = tempfile::tempdir().unwrap();
    let master = open(folder.path(), hash, UNLIMITED, CheckpointForm::Image);
    set_all(&master.database, &model);
    for form in [CheckpointForm::Image, CheckpointForm::Portable] {
        let mut bytes = Vec::new();
        send_checkpoint(&master.directory, &master.database, form, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
        for when_full in [WhenFull::Refuse, WhenFull::Evict] {
            let clock = Arc::new(ManualClock::new(UnixSeconds(1_000)));
            let replica = Database::new(hash(None, limit(when_full)), clock);
            let worker_counters = replica.worker_counters();
            let mut decoder = CheckpointDecoder::default();
            let mut end = None;
            for piece in bytes.chunks(64 << 10) {
                decoder.push(piece);
                let mut target = replica.copy_from(1, &worker_counters, decoder.is_image());
                end = decoder.read_records(&mut target).unwrap();
            }
            replica.adopt_checkpoint(1, &worker_counters, &end.unwrap()).unwrap();
            check(replica.engine(), &model);
        }
    }
}

/// A replica once compressed long values only when memory was nearly full, and then all of them,
/// for longer than its master waits.
#[test]
fn long_values_are_compressed_as_they_come() {
    let model = long_values();
    let folder = tempfile::tempdir().unwrap();
    let master = open(folder.path(), hash, UNLIMITED, CheckpointForm::Portable);
    set_all(&master.database, &model);
    let mut bytes = Vec::new();
    send_checkpoint(&master.directory, &master.database, CheckpointForm::Portable, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })
    .unwrap();
    for engine in [hash, tree] {
        let replica = Database::new(
            engine(None, limit(WhenFull::Evict)),
            Arc::new(ManualClock::new(UnixSeconds(1_000))),
        );
        let worker_counters = replica.worker_counters();
        let mut decoder = CheckpointDecoder::default();
        for piece in bytes.chunks(64 << 10) {
            decoder.push(piece);
            decoder.read_records(&mut replica.copy_from(1, &worker_counters, false)).unwrap();
            let status = replica.engine().status();
            assert!(status.committed_bytes < LIMIT / 2, "{status:?}");
        }
        check(replica.engine(), &model);
    }
}

/// Compression does not help here, and must not hang.
#[test]
fn noise_beyond_the_limit_is_refused_or_evicted() {
    let noise = |n: u64| {
        let mut random = fastrand::Rng::with_seed(n);
        (0..random.usize(100..500)).map(|_| random.u8(..)).collect()
    };
    let model: Model = (0..60_000).map(|n| (n.to_string().into_bytes(), noise(n))).collect();
    assert!(plain_len(&model) > 2 * LIMIT);
    for checkpoints in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let before = open(folder.path(), hash, UNLIMITED, CheckpointForm::Image);
        set_all(&before.database, &model);
        if checkpoints {
            before.directory.checkpoint(&before.database).unwrap();
        }
        drop(before);
        let refused = try_open(folder.path(), hash, limit(WhenFull::Refuse), CheckpointForm::Image);
        assert_eq!(refused.err().unwrap().kind(), ErrorKind::Full);
        let after = open(folder.path(), hash, limit(WhenFull::Evict), CheckpointForm::Image);
        let status = after.database.engine().status();
        assert!(status.committed_bytes <= LIMIT + (64 << 10), "{status:?}");
        let left = records(after.database.engine());
        assert!(left.len() > 15_000 && left.iter().all(|(key, value)| model[key] == *value));
    }
}
