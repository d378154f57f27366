//! Observes a running server: counters, connections, watched events, logs and metrics.

pub(crate) mod admin;
pub(crate) mod class_events;
pub(crate) mod connection_table;
pub(crate) mod counters;
pub(crate) mod hot_keys;
pub(crate) mod log_file;
pub(crate) mod logging;
pub(crate) mod measurements;
pub(crate) mod nutcracker_port;
pub(crate) mod observers;
pub(crate) mod prefixes;
pub(crate) mod request_log;
pub(crate) mod slow_requests;
pub(crate) mod spans;
pub(crate) mod statistics;
pub(crate) mod turn_times;
pub(crate) mod watchers;
pub(crate) mod worker_counter;

use crate::observation::connection_table::ConnectionTable;
use crate::observation::counters::{ConnectionCounters, CounterSums, WorkerCounter, WorkerCounters};
use crate::observation::observers::EventObservers;
use crate::observation::prefixes::PrefixStatistics;
use crate::observation::request_log::{RequestLog, RequestLogEntry};
use crate::observation::slow_requests::SlowRequests;
use crate::observation::spans::exporter::SpanExporter;
use crate::observation::turn_times::TurnTimes;
use crate::observation::watchers::WatcherTable;
use crate::options::ServerOptions;
use crate::session::memcached::crawler::CrawlerState;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use todana::{CachedClock, Clock};

/// The figures and events of the server, except those of its databases. Most parts have one writer,
/// a worker.
pub(crate) struct ServerObservation {
    pub(crate) started: Instant,
    /// The time when the server started, in Unix seconds.
    pub(crate) started_at: u64,
    pub(crate) connections: ConnectionCounters,
    pub(crate) workers: Vec<WorkerCounters>,
    /// The times of each worker.
    pub(crate) turn_times: Vec<TurnTimes>,
    pub(crate) slow_requests: SlowRequests,
    /// Sends the spans of requests, if there are any.
    pub(crate) spans: Option<Arc<SpanExporter>>,
    /// The sums of the counters at the last `stats reset`.
    at_reset: Mutex<CounterSums>,
    pub(crate) verbosity: AtomicU32,
    /// The log of requests and replies, if it may be enabled.
    pub(crate) request_log: Option<RequestLog>,
    pub(crate) connection_table: ConnectionTable,
    pub(crate) crawler: Arc<CrawlerState>,
    /// The number of rounds of the background thread.
    pub(crate) maintenance_rounds: AtomicU64,
    pub(crate) observers: Arc<EventObservers>,
}

impl ServerObservation {
    pub(crate) fn new(
        options: &ServerOptions,
        clock: &Arc<CachedClock>,
        observers: Arc<EventObservers>,
        connection_table: ConnectionTable,
    ) -> ServerObservation {
        ServerObservation {
            started: Instant::now(),
            started_at: clock.now().0,
            connections: ConnectionCounters::default(),
            // There are counters for each worker, and for the UDP thread.
            workers: (0..=options.limits.threads).map(|_| WorkerCounters::default()).collect(),
            turn_times: (0..options.limits.threads).map(|_| TurnTimes::default()).collect(),
            slow_requests: SlowRequests::new(
                options.observation.slow_requests,
                options.databases.data.as_ref().map(|data| &*data.directory),
            ),
            spans: options.observation.traces.clone().map(|traces| Arc::new(SpanExporter::new(traces))),
            at_reset: Mutex::default(),
            verbosity: AtomicU32::new(options.observation.verbosity.into()),
            request_log: options.observation.logs_requests.then(RequestLog::new),
            connection_table,
            crawler: Arc::new(CrawlerState::new(options.observation.crawler_enabled)),
            maintenance_rounds: AtomicU64::new(0),
            observers,
        }
    }

    /// Creates the observers of requests, as the options describe them.
    pub(crate) fn observers(options: &ServerOptions, clock: &Arc<CachedClock>) -> Arc<EventObservers> {
        let observers = EventObservers::new(
            WatcherTable::new(options.observation.watcher_buffer_bytes),
            PrefixStatistics::new(options.observation.prefix_delimiter.unwrap_or(b':')),
            Arc::clone(clock),
        );
        observers.count_prefixes(options.observation.prefix_delimiter.is_some());
        Arc::new(observers)
    }

    /// Returns true if requests are logged.
    #[inline]
    pub(crate) fn logs_requests(&self) -> bool {
        self.request_log.is_some() && self.verbosity.load(Ordering::Relaxed) > 1
    }

    /// Writes an entry of the request log.
    #[cold]
    pub(crate) fn log_request(&self, write: impl FnOnce(&mut RequestLogEntry<'_>)) {
        if let Some(log) = &self.request_log {
            log.log(write);
        }
    }

    /// Returns the verbosity of all logs except the request log. If the request log writes requests
    /// and connections, the other logs omit them.
    pub(crate) fn log_verbosity(&self) -> u32 {
        let verbosity = self.verbosity.load(Ordering::Relaxed);
        if self.request_log.is_some() { verbosity.min(1) } else { verbosity }
    }

    /// Returns the sums of the counters since the last reset.
    pub(crate) fn sums(&self) -> CounterSums {
        // The sums are read under the lock, so that no reset happens in between.
        let at_reset = self.at_reset.lock().unwrap_or_else(PoisonError::into_inner);
        self.sums_since_start().since(*at_reset)
    }

    pub(crate) fn reset_sums(&self) {
        let mut at_reset = self.at_reset.lock().unwrap_or_else(PoisonError::into_inner);
        *at_reset = self.sums_since_start();
    }

    fn sums_since_start(&self) -> CounterSums {
        let (connections, lines) = (&self.connections, self.observers.watchers.counts());
        let mut sums = CounterSums {
            connections: connections.total.load(Ordering::Relaxed),
            connections_rejected: connections.rejected.load(Ordering::Relaxed),
            accept_pauses: connections.accept_pauses.load(Ordering::Relaxed),
            accept_paused_us: connections.accept_paused_us.load(Ordering::Relaxed),
            maintenance_rounds: self.maintenance_rounds.load(Ordering::Relaxed),
            lines_written: lines.written,
            lines_skipped: lines.skipped,
            lines_sent: lines.sent,
            ..CounterSums::default()
        };
        self.workers.iter().for_each(|worker| sums.add(worker));
        sums
    }

    /// Returns the sum over all workers of a counter that can also decrease.
    pub(crate) fn sum(&self, of: fn(&WorkerCounters) -> &WorkerCounter) -> u64 {
        self.workers.iter().fold(0, |sum: u64, worker| sum.wrapping_add(of(worker).get()))
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.current.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the bytes of all incomplete requests, large values included.
    pub(crate) fn unfinished_bytes(&self) -> u64 {
        self.sum(|worker| &worker.partial_bytes)
    }
}
