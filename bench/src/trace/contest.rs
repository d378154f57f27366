//! The contest: the same requests for the references and for the real engine, at the same number of objects.
//!
//! The engine runs in process under a database, as behind the server: a get, and on a miss a set. It is held to the
//! capacity by count (`capcnt`), in one shard, as a server with so little memory would be.

use super::lru::Lru;
use super::policy::Policy;
use super::requests::Requests;
use super::s3_fifo::S3Fifo;
use super::sieve::Sieve;
use std::io::Write;
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::{Database, EngineOptions, ManualClock, Name, WorkerCounters};
use todana_core::{Get, Operation, Reply, Store, UnixSeconds};

/// How often progress is told and the engine's records are counted, in requests.
const STEP: usize = 1024;

/// The references, in the order of the report.
pub(crate) const REFERENCES: [&str; 3] = ["LRU", "S3-FIFO", "SIEVE"];

/// A reference of this name.
fn reference(name: &str, capacity: usize, keys: usize) -> Box<dyn Policy> {
    match name {
        "LRU" => Box::new(Lru::new(capacity, keys)),
        "S3-FIFO" => Box::new(S3Fifo::new(capacity, keys)),
        "SIEVE" => Box::new(Sieve::new(capacity, keys)),
        other => unreachable!("{other} is not in REFERENCES"),
    }
}

/// Replays the requests on a reference; returns the miss ratio. `tell` hears how many more are done, now and then.
pub(crate) fn replay(name: &str, requests: &Requests, capacity: usize, tell: &dyn Fn(u64)) -> f64 {
    let mut policy = reference(name, capacity, requests.keys);
    let mut misses = 0;
    for step in requests.ids.chunks(STEP) {
        misses += step.iter().filter(|&&id| !policy.request(id)).count();
        tell(step.len() as u64);
    }
    misses as f64 / requests.ids.len() as f64
}

/// What records look like to the engine, and where they fall.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Digits of a key, with leading zeros.
    pub(crate) key_size: usize,
    /// Bytes of a value.
    pub(crate) value_size: usize,
    /// The seed of the hash.
    pub(crate) seed: u64,
}

/// How the engine did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) miss_ratio: f64,
    /// The mean number of records held once as many as the capacity were there, counted every 1024 requests; 0 if
    /// that never came.
    pub(crate) held_mean: f64,
    /// The most.
    pub(crate) held_max: u64,
    pub(crate) evictions: u64,
}

/// Replays the requests on the engine.
pub(crate) fn replay_engine(
    requests: &Requests,
    capacity: usize,
    shape: Shape,
    tell: &dyn Fn(u64),
) -> Result<Outcome, String> {
    let mut contestant = Contestant::new(capacity, shape).map_err(|error| error.to_string())?;
    let (mut misses, mut held_sum, mut held_times) = (0u64, 0u64, 0u64);
    let mut outcome = Outcome::default();
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
        tell(step.len() as u64);
    }
    outcome.miss_ratio = misses as f64 / requests.ids.len() as f64;
    outcome.held_mean = held_sum as f64 / held_times.max(1) as f64;
    outcome.evictions = contestant.database.engine().status().evictions;
    Ok(outcome)
}

/// The engine under a database.
struct Contestant {
    database: Database,
    worker_counters: Arc<WorkerCounters>,
    key: Vec<u8>,
    key_size: usize,
    value: Vec<u8>,
    /// Why a set was refused.
    error: Option<String>,
}

impl Contestant {
    fn new(capacity: usize, shape: Shape) -> todana_core::Result<Contestant> {
        let options = EngineOptions { seed: Some(shape.seed), shards: Some(1), ..EngineOptions::default() };
        let name = Name::parse(&format!("mem:hash#capcnt={capacity}"))?;
        let engine = name.open_engine(Arc::new(SystemDisk), options)?;
        let database = Database::new(engine, Arc::new(ManualClock::new(UnixSeconds(1_000_000_000))));
        let worker_counters = database.worker_counters();
        Ok(Contestant {
            database,
            worker_counters,
            key: Vec::new(),
            key_size: shape.key_size,
            // No decimal number, so it is stored in so many bytes.
            value: vec![b'v'; shape.value_size],
            error: None,
        })
    }
}

impl Policy for Contestant {
    fn request(&mut self, id: u32) -> bool {
        self.key.clear();
        // A Vec takes whatever is written.
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
    fn the_engine_holds_as_many_records_as_the_references_and_what_fits_is_never_evicted() {
        let ids: Vec<u32> = (0..100u32).chain((0..40).cycle().take(5000)).chain(0..100).collect();
        let requests = Requests { ids, keys: 100 };
        let shape = Shape { key_size: 0, value_size: 8, seed: 1 };
        let all = replay_engine(&requests, 100, shape, &|_| {}).unwrap();
        assert_eq!((all.miss_ratio, all.held_max, all.evictions), (100.0 / 5200.0, 100, 0));
        let half = replay_engine(&requests, 50, shape, &|_| {}).unwrap();
        assert_eq!((half.held_mean, half.held_max), (50.0, 50));
        assert_eq!(half.evictions + 50, (half.miss_ratio * 5200.0).round() as u64);
    }

    #[test]
    fn all_requests_are_told_of() {
        let requests = Requests { ids: (0..3000).map(|n| n % 7).collect(), keys: 7 };
        let told = std::cell::Cell::new(0);
        for name in REFERENCES {
            assert_eq!(replay(name, &requests, 7, &|more| told.set(told.get() + more)), 7.0 / 3000.0);
        }
        assert_eq!(told.get(), 9000);
    }
}
