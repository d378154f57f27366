//! Counts the requests to a server and its failures.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of a server. All workers add to them.
#[derive(Default)]
pub(crate) struct ServerCounters {
    requests: AtomicU64,
    failures: AtomicU64,
    downs: AtomicU64,
}

impl ServerCounters {
    /// Counts a request that is sent to the server.
    #[inline]
    pub(super) fn note_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure, and whether the server is down since then.
    pub(super) fn note_failure(&self, is_down: bool) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.downs.fetch_add(u64::from(is_down), Ordering::Relaxed);
    }

    /// Returns the numbers of requests, of failures, and of times at which the server went down.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.requests, &self.failures, &self.downs].map(|count| count.load(Ordering::Relaxed))
    }
}
