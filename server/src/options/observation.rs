//! Options of logs, statistics and monitoring.

use std::path::PathBuf;

/// Options of logs, statistics and monitoring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservationOptions {
    /// 0 logs errors and warnings, 1 also notices, 2 also connections.
    pub verbosity: u8,
    /// From verbosity 2 on, logs each request and its reply on standard error in memcached's
    /// format, instead of the log lines about connections.
    pub logs_requests: bool,
    /// The path of the file that holds the process ID.
    pub pid_file: Option<PathBuf>,
    /// The most bytes of events that wait for a slow watcher; further events are skipped.
    pub watcher_buffer_bytes: usize,
    /// The byte that ends the prefix of a key in `stats detail`. Setting it also enables those
    /// statistics. `None` stands for a colon, with the statistics disabled.
    pub prefix_delimiter: Option<u8>,
    /// True enables `stats sizes`.
    pub track_sizes: bool,
    /// True enables the crawler, which serves the lists of `lru_crawler`.
    pub crawler_enabled: bool,
    /// The address of the admin pages; `None` for no pages.
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
            admin: None,
        }
    }
}

/// The address of the admin pages: `/metrics`, `/healthz` and `/readyz` over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminOptions {
    /// Addresses to listen on, in the form of
    /// [`ListenOptions::addresses`](super::ListenOptions::addresses). Empty stands for 127.0.0.1.
    pub listen: Vec<String>,
    /// The port for addresses that name none; 0 lets the system choose.
    pub port: u16,
    /// True fails the start if the address cannot be bound. False logs a warning and starts without
    /// the pages.
    pub is_required: bool,
}
