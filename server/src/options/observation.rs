//! Defines the options of logs, statistics and monitoring.

pub use crate::observation::slow_requests::SlowRequestOptions;
pub use crate::observation::spans::collector::{CollectorAddress, CollectorAddressError};
use std::path::PathBuf;

/// Options of logs, statistics and monitoring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservationOptions {
    /// The verbosity of the log: 0 for errors and warnings, 1 also for notices, 2 also for
    /// connections.
    pub verbosity: u8,
    /// True if requests and replies are logged on standard error in memcached's format, from
    /// verbosity 2 on. They replace the log lines about connections.
    pub logs_requests: bool,
    /// The path of the file that holds the process ID.
    pub pid_file: Option<PathBuf>,
    /// The maximum number of bytes of events that wait for a slow watcher. Further events are
    /// skipped.
    pub watcher_buffer_bytes: usize,
    /// The byte that ends the prefix of a key for `stats detail`. If it is set, these statistics
    /// are enabled from the start. `None` stands for a colon, with the statistics disabled.
    pub prefix_delimiter: Option<u8>,
    /// True if `stats sizes` is enabled.
    pub track_sizes: bool,
    /// True if the crawler is enabled, which serves the lists of `lru_crawler`.
    pub crawler_enabled: bool,
    /// The requests that are in the log of slow requests.
    pub slow_requests: SlowRequestOptions,
    /// Where spans of requests go; `None` means that no request has one.
    pub traces: Option<TraceOptions>,
    /// The options of the admin pages; `None` means that there are no pages.
    pub admin: Option<AdminOptions>,
}

impl Default for ObservationOptions {
    fn default() -> Self {
        ObservationOptions {
            verbosity: 0,
            logs_requests: false,
            pid_file: None,
            watcher_buffer_bytes: 256 << 10,
            prefix_delimiter: None,
            track_sizes: false,
            crawler_enabled: true,
            slow_requests: SlowRequestOptions::default(),
            traces: None,
            admin: None,
        }
    }
}

/// The options of spans for OpenTelemetry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// The collector that receives the spans.
    pub collector: CollectorAddress,
    /// True if spans contain the keys of their requests.
    pub with_keys: bool,
}

/// The options of the admin pages over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminOptions {
    /// The addresses to listen on, in the form of
    /// [`ListenOptions::addresses`](super::ListenOptions::addresses). An empty list stands for
    /// 127.0.0.1.
    pub listen: Vec<String>,
    /// The port of addresses without a port; 0 lets the system choose one.
    pub port: u16,
    /// A file whose first line is the token that requests for `/api/` must have. Without one, these
    /// requests are answered only on loopback, and only if clients need no login.
    pub token_file: Option<PathBuf>,
    /// True if requests for `/api/` may change records.
    pub may_write: bool,
    /// The directory to which the page may write backups, each in a folder of its own.
    pub backups: Option<PathBuf>,
    /// True if the server does not start when the address cannot be bound. False logs a warning and
    /// starts without the pages.
    pub is_required: bool,
}
