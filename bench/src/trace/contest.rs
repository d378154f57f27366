//! Replays the same requests on the reference caches and on the real engine, with the same capacity
//! in objects or in bytes.
//!
//! The engine is called through a [`Database`] in this process, with the same operations as in the
//! server: a get, and a set after a miss. Its capacity is a number of records, or the sum of the
//! lengths of all keys and values. The engine has one shard, as in a server whose memory limit
//! allows only a few records.

use super::gdsf::GdsfCache;
use super::lru::LruCache;
use super::policy::{CachePolicy, equal_sizes};
use super::requests::TraceRequests;
use super::s3_fifo::S3FifoCache;
use super::sieve::SieveCache;
use crate::workload::ValueSize;
use std::io::Write;
use std::sync::Arc;
use todana::{Database, EvictionGoal, ManualClock, WorkerCounters};
use todana_core::{EngineStatus, Get, Operation, Reply, Store, UnixSeconds};
use todana_engine::{MemHash, MemHashOptions};

/// The number of requests between two progress reports, and between two counts of the engine's
/// records.
const STEP: usize = 1024;

/// The reference caches, in the order of the report.
pub(crate) const REFERENCES: [&str; 4] = ["LRU", "S3-FIFO", "SIEVE", "GDSF"];

/// Returns the reference cache with this name.
fn reference(name: &str, capacity: u64, sizes: &Arc<[u32]>) -> Box<dyn CachePolicy> {
    match name {
        "LRU" => Box::new(LruCache::new(capacity, sizes)),
        "S3-FIFO" => Box::new(S3FifoCache::new(capacity, sizes)),
        "SIEVE" => Box::new(SieveCache::new(capacity, sizes)),
        "GDSF" => Box::new(GdsfCache::new(capacity, sizes)),
        other => unreachable!("{other} is not in REFERENCES"),
    }
}

/// The parts of all requests, and of all bytes requested, that missed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MissRatios {
    pub(crate) objects: f64,
    pub(crate) bytes: f64,
}

/// The requests and bytes so far.
#[derive(Default)]
struct RequestCounter {
    requests: u64,
    misses: u64,
    bytes: u64,
    missed_bytes: u64,
}

impl RequestCounter {
    fn count(&mut self, size: u32, hit: bool) {
        self.requests += 1;
        self.bytes += u64::from(size);
        if !hit {
            self.misses += 1;
            self.missed_bytes += u64::from(size);
        }
    }

    fn ratios(&self) -> MissRatios {
        MissRatios {
            objects: self.misses as f64 / self.requests.max(1) as f64,
            bytes: self.missed_bytes as f64 / self.bytes.max(1) as f64,
        }
    }
}

/// Replays the requests on a reference cache. Calls `report` regularly with the number of requests
/// since the last call.
pub(crate) fn replay(
    name: &str,
    requests: &TraceRequests,
    objects: &TracedObjects,
    capacity: u64,
    report: &dyn Fn(u64),
) -> MissRatios {
    let mut policy = reference(name, capacity, &objects.sizes);
    let mut counter = RequestCounter::default();
    for step in requests.ids.chunks(STEP) {
        step.iter().for_each(|&id| counter.count(objects.bytes[id as usize], policy.request(id)));
        report(step.len() as u64);
    }
    counter.ratios()
}

/// The objects of a trace.
pub(crate) struct TracedObjects {
    key_size: usize,
    /// The lengths of the key and the value of each object together.
    bytes: Arc<[u32]>,
    /// The sizes by which objects count against the capacity: these lengths, or 1.
    sizes: Arc<[u32]>,
    /// True if the capacity is in bytes.
    pub(crate) is_sized: bool,
}

impl TracedObjects {
    /// Chooses the sizes of this many objects. Their keys are numbers of at least `key_size`
    /// digits. The capacity is in bytes if the sizes of values differ.
    pub(crate) fn new(objects: usize, key_size: usize, value_size: &ValueSize) -> TracedObjects {
        let key_len = |id: usize| (id.checked_ilog10().unwrap_or(0) as usize + 1).max(key_size);
        let bytes: Arc<[u32]> =
            (0..objects).map(|id| (key_len(id) + value_size.of_object(id as u64)) as u32).collect();
        let is_sized = !matches!(value_size, ValueSize::Fixed(_));
        let sizes = if is_sized { Arc::clone(&bytes) } else { equal_sizes(objects) };
        TracedObjects { key_size, bytes, sizes, is_sized }
    }

    /// Returns `percent` of the sum of all sizes, at least 1.
    pub(crate) fn capacity(&self, percent: f64) -> u64 {
        let all: u64 = self.sizes.iter().map(|&size| u64::from(size)).sum();
        ((all as f64 * percent / 100.0).round() as u64).max(1)
    }
}

/// The results of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineResult {
    pub(crate) missed: MissRatios,
    /// The mean number of stored records or bytes, counted every 1024 requests after the capacity
    /// was reached; 0 if it was never reached.
    pub(crate) held_mean: f64,
    /// The highest number of stored records or bytes.
    pub(crate) held_max: u64,
    pub(crate) evictions: u64,
}

/// Replays the requests on the engine, whose hash has this seed.
pub(crate) fn replay_engine(
    requests: &TraceRequests,
    objects: &TracedObjects,
    capacity: u64,
    (seed, evict_for): (u64, EvictionGoal),
    report: &dyn Fn(u64),
) -> Result<EngineResult, String> {
    let mut contestant =
        EngineUnderTest::new(objects, capacity, seed, evict_for).map_err(|error| error.to_string())?;
    let (mut held_sum, mut held_times) = (0u64, 0u64);
    let (mut outcome, mut counter) = (EngineResult::default(), RequestCounter::default());
    for step in requests.ids.chunks(STEP) {
        step.iter().for_each(|&id| counter.count(objects.bytes[id as usize], contestant.request(id)));
        if let Some(error) = contestant.error.take() {
            return Err(error);
        }
        let status = contestant.database.engine().status();
        let held = if objects.is_sized { plain_bytes(&status) } else { status.records };
        outcome.held_max = outcome.held_max.max(held);
        if status.evictions > 0 || held == capacity {
            held_sum += held;
            held_times += 1;
        }
        report(step.len() as u64);
    }
    outcome.missed = counter.ratios();
    outcome.held_mean = held_sum as f64 / held_times.max(1) as f64;
    outcome.evictions = contestant.database.engine().status().evictions;
    Ok(outcome)
}

/// Returns the lengths of all keys and values together.
fn plain_bytes(status: &EngineStatus) -> u64 {
    status.classes.iter().map(|class| class.plain_bytes).sum()
}

/// The engine, called through a database.
struct EngineUnderTest<'o> {
    objects: &'o TracedObjects,
    capacity: u64,
    database: Database,
    worker_counters: Arc<WorkerCounters>,
    key: Vec<u8>,
    /// The beginning of it is the value of each object.
    value: Vec<u8>,
    /// The reason of the last refused set.
    error: Option<String>,
}

impl EngineUnderTest<'_> {
    fn new(
        objects: &TracedObjects,
        capacity: u64,
        seed: u64,
        evict_for: EvictionGoal,
    ) -> todana_core::Result<EngineUnderTest<'_>> {
        let options = MemHashOptions {
            seed: Some(seed),
            shards: Some(1),
            capacity_records: (!objects.is_sized).then_some(capacity),
            capacity_bytes: objects.is_sized.then_some(capacity),
            // The engine chooses its policy by how much the sizes of these classes differ.
            class_bounds: (4..40)
                .map(|half_octaves| 2f64.powf(f64::from(half_octaves) / 2.0) as u32)
                .collect(),
            evict_for,
            compresses: false,
            ..MemHashOptions::default()
        };
        let clock = Arc::new(ManualClock::new(UnixSeconds(1_000_000_000)));
        let database = Database::new(Box::new(MemHash::new(options)?), clock);
        let worker_counters = database.worker_counters();
        let longest = objects.bytes.iter().max().map_or(0, |&len| len as usize);
        Ok(EngineUnderTest {
            objects,
            capacity,
            database,
            worker_counters,
            key: Vec::new(),
            // Unlike a decimal number, this value is stored with exactly this number of bytes.
            value: vec![b'v'; longest],
            error: None,
        })
    }
}

impl CachePolicy for EngineUnderTest<'_> {
    fn request(&mut self, id: u32) -> bool {
        self.key.clear();
        // Writing to a Vec cannot fail.
        let _ = write!(self.key, "{id:0width$}", width = self.objects.key_size);
        let mut hit = false;
        let get = Operation::Get(Get { key: &self.key, ..Get::default() });
        self.database.execute(&self.worker_counters, &get, &mut |reply| hit = matches!(reply, Reply::Hit(_)));
        if !hit && u64::from(self.objects.sizes[id as usize]) <= self.capacity {
            let value = &self.value[..self.objects.bytes[id as usize] as usize - self.key.len()];
            let set = Operation::Store(Store { key: &self.key, value, ..Store::default() });
            let error = &mut self.error;
            self.database.execute(&self.worker_counters, &set, &mut |reply| {
                if !matches!(reply, Reply::Stored(_)) {
                    *error = Some(format!("the engine refused a set: {reply:?}"));
                }
            });
        }
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_holds_as_many_records_as_the_references() {
        let ids: Vec<u32> = (0..100u32).chain((0..40).cycle().take(5000)).chain(0..100).collect();
        let requests = TraceRequests { ids, keys: 100 };
        let objects = TracedObjects::new(100, 0, &ValueSize::Fixed(8));
        assert_eq!([1.0, 49.6, 0.1].map(|percent| objects.capacity(percent)), [1, 50, 1]);
        let replay = |capacity| {
            replay_engine(&requests, &objects, capacity, (1, EvictionGoal::Objects), &|_| {}).unwrap()
        };
        let (all, half) = (replay(100), replay(50));
        assert_eq!((all.missed.objects, all.held_max, all.evictions), (100.0 / 5200.0, 100, 0));
        assert_eq!((half.held_mean, half.held_max), (50.0, 50));
        assert_eq!(half.evictions + 50, (half.missed.objects * 5200.0).round() as u64);
    }

    #[test]
    fn engine_holds_as_many_bytes_as_the_references() {
        let requests = TraceRequests { ids: (0..300u32).cycle().take(3000).collect(), keys: 300 };
        let objects = TracedObjects::new(300, 0, &ValueSize::Lognormal(159.0, 1.3));
        let all: u64 = objects.bytes.iter().map(|&len| u64::from(len)).sum();
        assert!(objects.is_sized && all > 300 * 160 && objects.capacity(100.0) == all);
        let replay_at = |capacity| {
            replay_engine(&requests, &objects, capacity, (1, EvictionGoal::Objects), &|_| {}).unwrap()
        };
        let complete = replay_at(all);
        assert_eq!((complete.held_max, complete.evictions), (all, 0));
        assert_eq!(complete.missed, MissRatios { objects: 0.1, bytes: 0.1 });
        let half = replay_at(all / 2);
        assert!(half.held_max <= all / 2 && half.held_mean > all as f64 / 3.0, "{half:?}");
        // A loop that does not fit defeats LRU. Small objects stay, so fewer objects are missed.
        let lru = replay("LRU", &requests, &objects, all / 2, &|_| {});
        assert_eq!(lru, MissRatios { objects: 1.0, bytes: 1.0 });
        assert!(half.missed.objects < 0.7 && half.missed.objects < half.missed.bytes, "{half:?}");
    }

    #[test]
    fn progress_reports_every_request() {
        let requests = TraceRequests { ids: (0..3000).map(|n| n % 7).collect(), keys: 7 };
        let objects = TracedObjects::new(7, 0, &ValueSize::Fixed(8));
        let reported = std::cell::Cell::new(0);
        for name in REFERENCES {
            let missed = replay(name, &requests, &objects, 7, &|more| reported.set(reported.get() + more));
            assert_eq!(missed.objects, 7.0 / 3000.0);
        }
        assert_eq!(reported.get(), 12_000);
    }
}
