//! Expired records that nobody reads are removed, and their memory is freed.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock, Weak};
use todana::{Clock, Database, ManualClock, WorkerCounters};
use todana_core::{
    Arithmetic, Engine, EngineStatus, Get, MemoryLimit, Operation, Record, RefusalReason, Reply, Result,
    ScanPosition, Store, SweepableEngine, Touch, Ttl, UnixSeconds, ValueBuffer, Visitor, WhenFull,
};
use todana_engine::{DiskHash, DiskHashOptions, DiskTree, DiskTreeOptions, MemHash, MemHashOptions};

const START: u64 = 1_700_000_000;

struct SweptDatabase {
    database: Database,
    worker_counters: Arc<WorkerCounters>,
    clock: Arc<ManualClock>,
}

fn database(bytes: Option<u64>) -> SweptDatabase {
    let limit = MemoryLimit { bytes, when_full: WhenFull::Refuse };
    over(Box::new(MemHash::new(MemHashOptions { shards: Some(2), limit, ..Default::default() }).unwrap()))
}

fn over(engine: Box<dyn Engine>) -> SweptDatabase {
    let clock = Arc::new(ManualClock::new(UnixSeconds(START)));
    let database = Database::new(engine, Arc::clone(&clock) as Arc<dyn Clock>);
    SweptDatabase { worker_counters: database.worker_counters(), database, clock }
}

impl SweptDatabase {
    /// Executes an operation. Returns false if there was no memory for it.
    fn run(&self, command: Operation<'_>) -> bool {
        let mut done = true;
        self.database.execute(&self.worker_counters, &command, &mut |reply| {
            done = !matches!(reply, Reply::Refused(RefusalReason::OutOfMemory));
        });
        done
    }

    fn set(&self, key: &str, value: &[u8], ttl: Ttl) -> bool {
        self.run(Operation::Store(Store { key: key.as_bytes(), value, ttl, ..Store::default() }))
    }

    fn records(&self) -> u64 {
        self.database.engine().status().records
    }
}

#[test]
fn sweep_removes_expired_records_only() {
    let under = database(None);
    for n in 0..3000 {
        under.set(&format!("never:{n}"), b"1", Ttl::Never);
        under.set(&format!("later:{n}"), b"1", Ttl::Seconds(1000));
        under.set(&format!("soon:{n}"), b"1", Ttl::Seconds(10));
        under.set(&format!("idle:{n}"), b"1", Ttl::Sliding(10));
    }
    // The records get their time to live in every possible way.
    let key = |n: &'static str| n.as_bytes();
    under.run(Operation::Touch(Touch { key: key("never:0"), ttl: Ttl::Seconds(9) }));
    let get = Get { key: key("never:1"), touch: Some(Ttl::Seconds(9)), ..Get::default() };
    under.run(Operation::Get(get));
    let count = Arithmetic { key: key("never:2"), touch: Some(Ttl::Sliding(9)), ..Arithmetic::default() };
    under.run(Operation::Arithmetic(count));
    while under.database.maintain() {}
    assert_eq!(under.records(), 12_000);
    under.clock.advance(10);
    while under.database.maintain() {}
    assert_eq!(under.records(), 2 * 3000 - 3);
    let sweeps = under.database.sweeps();
    assert_eq!((sweeps.removed, sweeps.is_running), (6003, false));
    assert_eq!(under.database.counters().reclaimed, 0, "no command has come upon any");
}

#[test]
fn sweep_continues_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let hash =
        || Box::new(DiskHash::open(&folder.path().join("x.hash"), DiskHashOptions::default()).unwrap());
    let tree =
        || Box::new(DiskTree::open(&folder.path().join("x.tree"), DiskTreeOptions::default()).unwrap());
    let open_hash = || over(hash());
    let open_tree = || over(tree());
    let kinds: [&dyn Fn() -> SweptDatabase; 2] = [&open_hash, &open_tree];
    for open in kinds {
        let under = open();
        for n in 0..100 {
            under.set(&format!("never:{n}"), b"1", Ttl::Never);
            under.set(&format!("soon:{n}"), b"1", Ttl::Seconds(10));
        }
        if let Some(tree) = under.database.engine().checkpointed() {
            tree.checkpoint(1).unwrap();
        }
        if let Some(hash) = under.database.engine().durable() {
            hash.close().unwrap();
        }
        drop(under);

        let under = open();
        assert_eq!(under.records(), 200);
        under.clock.advance(10);
        while under.database.maintain() {}
        assert_eq!((under.records(), under.database.sweeps().removed), (100, 100));
    }
}

#[test]
fn store_without_memory_reuses_expired_records() {
    let under = database(Some(4 << 20));
    let value = [b'v'; 100_000];
    let mut held = 0u32;
    while under.set(&format!("old:{held}"), &value, Ttl::Seconds(50 + held % 2 * 50)) {
        held += 1;
    }
    assert!(held > 20, "{held} records");
    under.clock.advance(50);
    // This happens without a sweep. The freed records make room for the same number of new ones,
    // and not more.
    let mut fresh = 0u32;
    while under.set(&format!("new:{fresh}"), &value, Ttl::Never) {
        fresh += 1;
    }
    assert!(fresh.abs_diff(held / 2) <= 1, "{fresh} for half of {held}");
    assert_eq!(under.records(), u64::from(fresh) + u64::from(held / 2));
    // The records were removed to make room, so they count as reclaimed and not as swept.
    let status = under.database.status();
    assert_eq!(status.reclaimed, u64::from(held - held / 2));
    assert_eq!((under.database.counters().reclaimed, under.database.sweeps().removed), (0, 0));
}

/// An engine that is swept by another thread right after it has refused a store.
struct SweptEngine {
    inner: MemHash,
    database: Arc<OnceLock<Weak<Database>>>,
}

impl SweptEngine {
    fn or_sweep<T>(&self, outcome: Result<T>) -> Result<T> {
        if outcome.is_err()
            && let Some(database) = self.database.get().and_then(Weak::upgrade)
        {
            while database.maintain() {}
        }
        outcome
    }
}

impl Engine for SweptEngine {
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.inner.view(key, see)
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.or_sweep(self.inner.visit(key, visitor))
    }

    fn wait_for_visits(&self) {
        self.inner.wait_for_visits();
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.inner.scan(from, see)
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        self.inner.clear(cleared)
    }

    fn status(&self) -> EngineStatus {
        self.inner.status()
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        self.or_sweep(self.inner.buffer(len))
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        self.inner.room(buffer, len)
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        Some(&self.inner)
    }
}

/// A store was once refused although memory was free: the background sweep had just removed the
/// records that the store itself then searched for.
#[test]
fn concurrent_sweep_makes_room_for_a_store() {
    let limit = MemoryLimit { bytes: Some(4 << 20), when_full: WhenFull::Refuse };
    let value = [b'v'; 100_000];
    let full = || {
        let inner = MemHash::new(MemHashOptions { shards: Some(2), limit, ..Default::default() }).unwrap();
        let sweeper = Arc::new(OnceLock::new());
        let engine = SweptEngine { inner, database: Arc::clone(&sweeper) };
        let clock = Arc::new(ManualClock::new(UnixSeconds(START)));
        let database = Arc::new(Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>));
        let worker_counters = database.worker_counters();
        let set = {
            let (database, worker_counters) = (Arc::clone(&database), Arc::clone(&worker_counters));
            move |key: &str| {
                let (key, mut done) = (key.as_bytes(), false);
                let ttl = Ttl::Seconds(50);
                let store = Operation::Store(Store { key, value: &value, ttl, ..Store::default() });
                database
                    .execute(&worker_counters, &store, &mut |reply| done = matches!(reply, Reply::Stored(_)));
                done
            }
        };
        assert!((0..100).any(|n| !set(&n.to_string())), "it fills up");
        clock.advance(50);
        assert!(sweeper.set(Arc::downgrade(&database)).is_ok());
        (database, worker_counters, set)
    };
    let (_database, _lane, set) = full();
    assert!(set("new"));
    let (database, _lane, _set) = full();
    assert!(database.buffer(200_000).is_ok());
}

#[test]
fn expired_records_are_evicted_first() {
    let limit = MemoryLimit { bytes: Some(8 << 20), when_full: WhenFull::Evict };
    let engine = MemHash::new(MemHashOptions { shards: Some(2), limit, ..Default::default() }).unwrap();
    let clock = Arc::new(ManualClock::new(UnixSeconds(START)));
    let database = Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>);
    let under = SweptDatabase { worker_counters: database.worker_counters(), database, clock };
    let set = |n: u32, ttl| assert!(under.set(&format!("key:{n}"), b"some value of some length", ttl));
    // Memory is almost full, and two of three records expire soon.
    let mut held = 0;
    while !under.database.engine().bounded().unwrap().is_near_limit() {
        set(held, if held.is_multiple_of(3) { Ttl::Never } else { Ttl::Seconds(10) });
        held += 1;
    }
    under.clock.advance(10);
    // This reports the time to the engine and sweeps for a moment. The store below needs far more
    // memory than that frees.
    under.database.maintain();
    let before = under.database.engine().status();
    (held..held + held / 2).for_each(|n| set(n, Ttl::Never));
    let after = under.database.engine().status();
    let (reclaimed, evicted) = (after.reclaimed - before.reclaimed, after.evictions - before.evictions);
    assert!(reclaimed > 4 * evicted, "{reclaimed} expired ones went, {evicted} others, of {held}");
}
