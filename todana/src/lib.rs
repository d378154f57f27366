//! The embeddable database: commands as visitors, expiry, statistics. No sockets, no wire formats.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Command, Engine, Reply, UnixSeconds};

/// Where the time comes from.
pub trait Clock: Send + Sync {
    /// The current second.
    fn now(&self) -> UnixSeconds;
}

/// A clock that stands still until it is set, for tests.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that reads this second.
    pub fn new(now: UnixSeconds) -> Self {
        ManualClock(AtomicU64::new(now.0))
    }
    /// Moves it on.
    pub fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(self.0.load(Ordering::Relaxed))
    }
}

/// The machine's clock.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixSeconds {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        UnixSeconds(since.map_or(0, |d| d.as_secs()))
    }
}

/// The counters of one worker: no other thread adds to them, so adding costs no contention.
#[derive(Debug, Default)]
pub struct Lane {}

/// A database: an engine with the meaning of commands around it.
pub struct Database {
    engine: Box<dyn Engine>,
    clock: Arc<dyn Clock>,
}

impl Database {
    /// A database over this engine.
    pub fn new(engine: Box<dyn Engine>, clock: Arc<dyn Clock>) -> Database {
        Database { engine, clock }
    }
    /// A new lane, registered with the database; one for each worker thread.
    pub fn lane(&self) -> Arc<Lane> {
        Arc::default()
    }
    /// Runs a command; `reply` is called once or more, perhaps under a lock of the engine.
    pub fn execute(&self, lane: &Lane, command: &Command<'_>, reply: &mut dyn FnMut(Reply<'_>)) {
        let _ = (lane, command, reply, self.clock.now());
    }
    /// The engine underneath.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }
    /// A bounded piece of housekeeping; true when there is more to do at once.
    pub fn maintain(&self) -> bool {
        self.engine.maintain()
    }
}
