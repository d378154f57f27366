//! What is logged, counted and shown of the server.

use std::path::PathBuf;

/// What is logged, counted and shown of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservationOptions {
    /// 0 errors and warnings, 1 notices too, 2 connections too.
    pub verbosity: u8,
    /// From verbosity 2 on, tell each request and its reply on standard error, in memcached's words, in place of what logs
    /// have to say of connections.
    pub logs_requests: bool,
    /// Write the process id here.
    pub pid_file: Option<PathBuf>,
    /// Bytes of events that wait for a watcher that is slow to read them; what is more is skipped.
    pub watcher_buffer_bytes: usize,
    /// What ends the prefix of a key in `stats detail`, which it also switches on; `None` is a colon, and off.
    pub prefix_delimiter: Option<u8>,
    /// `stats sizes` counts.
    pub track_sizes: bool,
    /// The crawler is there, which serves `lru_crawler`'s lists.
    pub crawler_enabled: bool,
    /// Where the pages for monitoring are; `None` is nowhere.
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

/// Where `/metrics`, `/healthz` and `/readyz` are served, over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminOptions {
    /// Addresses to listen on, written as in [`ListenOptions::addresses`](super::ListenOptions::addresses). Empty: 127.0.0.1.
    pub listen: Vec<String>,
    /// The port for addresses that name none; 0 lets the system choose.
    pub port: u16,
    /// False: where the address cannot be had, the server does without them and says so.
    pub is_required: bool,
}
