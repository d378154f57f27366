//! Replays the same requests on the reference caches and on the real engine, with the same capacity
//! in objects.
//!
//! The engine is called through a [`Database`] in this process, with the same operations as in the
//! server: a get, and a set after a miss. Its capacity is a number of records (`capcnt`). The
//! engine has one shard, as in a server whose memory limit allows only so few records.

use super::lru::LruCache;
use super::policy::CachePolicy;
use super::requests::TraceRequests;
use super::s3_fifo::S3FifoCache;
use super::sieve::SieveCache;
use std::io::Write;
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::{Database, DatabaseName, EngineOptions, ManualClock, WorkerCounters};
use todana_core::{Get, Operation, Reply, Store, UnixSeconds};

/// The number of requests between two progress reports, and between two counts of the engine's
/// records.
const STEP: usize = 1024;

/// The reference caches, in the order of the report.
pub(crate) const REFERENCES: [&str; 3] = ["LRU", "S3-FIFO", "SIEVE"];

/// Returns the reference cache with this name.
fn reference(name: &str, capacity: usize, keys: usize) -> Box<dyn CachePolicy> {
    match name {
        "LRU" => Box::new(LruCache::new(capacity, keys)),
        "S3-FIFO" => Box::new(S3FifoCache::new(capacity, keys)),
        "SIEVE" => Box::new(SieveCache::new(capacity, keys)),
        other => unreachable!("{other} is not in REFERENCES"),
    }
}

/// Replays the requests on a reference cache and returns the miss ratio. Calls `report` regularly
/// with the number of requests since the last call.
pub(crate) fn replay(name: &str, requests: &TraceRequests, capacity: usize, report: &dyn Fn(u64)) -> f64 {
    let mut policy = reference(name, capacity, requests.keys);
    let mut misses = 0;
    for step in requests.ids.chunks(STEP) {
        misses += step.iter().filter(|&&id| !policy.request(id)).count();
        report(step.len() as u64);
    }
    misses as f64 / requests.ids.len() as f64
}

/// The sizes of the engine's records, and the seed of its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedRecordShape {
    /// The number of digits of a key, which has leading zeros.
    pub(crate) key_size: usize,
    /// The number of bytes of a value.
    pub(crate) value_size: usize,
    /// The seed of the hash.
    pub(crate) seed: u64,
}

/// The results of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineResult {
    pub(crate) miss_ratio: f64,
    /// The mean number of stored records, counted every 1024 requests after the capacity was
    /// reached; 0 if it was never reached.
    pub(crate) held_mean: f64,
    /// The highest number of stored records.
    pub(crate) held_max: u64,
    pub(crate) evictions: u64,
}

/// Replays the requests on the engine.
pub(crate) fn replay_engine(
    requests: &TraceRequests,
    capacity: usize,
    shape: TracedRecordShape,
    report: &dyn Fn(u64),
) -> Result<EngineResult, String> {
    let mut contestant = EngineUnderTest::new(capacity, shape).map_err(|error| error.to_string())?;
    let (mut misses, mut held_sum, mut held_times) = (0u64, 0u64, 0u64);
    let mut outcome = EngineResult::default();
    for step in requests.ids.chunks(STEP) {
        for &id in step {
            misses += u64::from(!contestant.request(id));
        }
        if let Some(error) = contestant.error.take() {
            return Err(error);
        }
        let records = contestant.database.engine().status().records;
        outcome.held_max = outcome.held_max.max(records);
        if misses >= capacity as u64 {
            held_sum += records;
            held_times += 1;
        }
        report(step.len() as u64);
    }
    outcome.miss_ratio = misses as f64 / requests.ids.len() as f64;
    outcome.held_mean = held_sum as f64 / held_times.max(1) as f64;
    outcome.evictions = contestant.database.engine().status().evictions;
    Ok(outcome)
}

/// The engine, called through a database.
struct EngineUnderTest {
    database: Database,
    worker_counters: Arc<WorkerCounters>,
    key: Vec<u8>,
    key_size: usize,
    value: Vec<u8>,
    /// The reason of the last refused set.
    error: Option<String>,
}

impl EngineUnderTest {
    fn new(capacity: usize, shape: TracedRecordShape) -> todana_core::Result<EngineUnderTest> {
        let options = EngineOptions { seed: Some(shape.seed), shards: Some(1), ..EngineOptions::default() };
        let name = DatabaseName::parse(&format!("mem:hash#capcnt={capacity}"))?;
        let engine = name.open_engine(Arc::new(SystemDisk), options)?;
        let database = Database::new(engine, Arc::new(ManualClock::new(UnixSeconds(1_000_000_000))));
        let worker_counters = database.worker_counters();
        Ok(EngineUnderTest {
            database,
            worker_counters,
            key: Vec::new(),
            key_size: shape.key_size,
            // Unlike a decimal number, this value is stored with exactly this number of bytes.
            value: vec![b'v'; shape.value_size],
            error: None,
        })
    }
}

impl CachePolicy for EngineUnderTest {
    fn request(&mut self, id: u32) -> bool {
        self.key.clear();
        // Writing to a Vec cannot fail.
        let _ = write!(self.key, "{id:0width$}", width = self.key_size);
        let mut hit = false;
        let get = Operation::Get(Get { key: &self.key, ..Get::default() });
        self.database.execute(&self.worker_counters, &get, &mut |reply| hit = matches!(reply, Reply::Hit(_)));
        if !hit {
            let set = Operation::Store(Store { key: &self.key, value: &self.value, ..Store::default() });
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
        let shape = TracedRecordShape { key_size: 0, value_size: 8, seed: 1 };
        let all = replay_engine(&requests, 100, shape, &|_| {}).unwrap();
        assert_eq!((all.miss_ratio, all.held_max, all.evictions), (100.0 / 5200.0, 100, 0));
        let half = replay_engine(&requests, 50, shape, &|_| {}).unwrap();
        assert_eq!((half.held_mean, half.held_max), (50.0, 50));
        assert_eq!(half.evictions + 50, (half.miss_ratio * 5200.0).round() as u64);
    }

    #[test]
    fn progress_reports_every_request() {
        let requests = TraceRequests { ids: (0..3000).map(|n| n % 7).collect(), keys: 7 };
        let told = std::cell::Cell::new(0);
        for name in REFERENCES {
            assert_eq!(replay(name, &requests, 7, &|more| told.set(told.get() + more)), 7.0 / 3000.0);
        }
        assert_eq!(told.get(), 9000);
    }
}
