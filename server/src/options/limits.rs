//! Defines the limits on clients and their requests.

use super::OptionsError;

/// Limits on clients and their requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitOptions {
    /// The number of worker threads.
    pub threads: usize,
    /// The maximum number of connections at one time.
    pub connections_max: usize,
    /// True if connections beyond that number are refused. False leaves them in the backlog.
    pub connections_refused: bool,
    /// The number of seconds after which an idle TCP connection is closed; 0 means never.
    pub idle_timeout_s: u32,
    /// True if a connection may be idle for any time between requests. Only the rest of an
    /// incomplete request must then arrive in time.
    pub idle_between_requests: bool,
    /// The maximum size of an item in bytes, as memcached counts it.
    pub item_size_max: u64,
    /// The number of requests that a connection may execute before other connections are served.
    /// The keys of one `get` line count as one request. A turn also ends when the output buffer is
    /// full.
    pub requests_per_event: u32,
    /// False refuses `flush_all`.
    pub flush_allowed: bool,
    /// True allows the `shutdown` command.
    pub shutdown_allowed: bool,
    /// False refuses lists of keys: `lru_crawler metadump` and `mgdump`, `stats cachedump`, `stats
    /// detail`.
    pub dump_allowed: bool,
    /// False refuses `watch`.
    pub watch_allowed: bool,
}

impl Default for LimitOptions {
    fn default() -> Self {
        LimitOptions {
            threads: 4,
            connections_max: 1024,
            connections_refused: true,
            idle_timeout_s: 0,
            idle_between_requests: false,
            item_size_max: 1 << 20,
            requests_per_event: 20,
            flush_allowed: true,
            shutdown_allowed: false,
            dump_allowed: true,
            watch_allowed: true,
        }
    }
}

impl LimitOptions {
    pub(super) fn validate(&self) -> Result<(), OptionsError> {
        let wrong = |text: &str| Err(OptionsError(text.to_string()));
        if self.threads == 0 || self.threads > 512 {
            return wrong("threads must be 1 to 512 (-t)");
        }
        if self.connections_max == 0 {
            return wrong("connections must be at least 1 (-c)");
        }
        if self.item_size_max < 1024 || self.item_size_max > 1 << 30 {
            return wrong("the item size must be 1k to 1g (-I)");
        }
        if self.requests_per_event == 0 {
            return wrong("requests per event must be at least 1 (-R)");
        }
        Ok(())
    }
}
