//! Progress bars on standard error, shown only at a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};

/// Creates a progress bar. It is hidden unless standard error is a terminal.
pub(crate) fn progress(len: Option<u64>, template: &str) -> ProgressBar {
    let bar = match len {
        _ if !io::stderr().is_terminal() => ProgressBar::hidden(),
        Some(len) => ProgressBar::new(len),
        None => ProgressBar::new_spinner(),
    };
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Creates a progress bar for the number of bytes that are read.
pub(crate) fn bytes_read(len: Option<u64>) -> ProgressBar {
    progress(len, "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}")
}

/// Creates a progress bar for a number of records.
pub(crate) fn records(total: u64) -> ProgressBar {
    progress(Some(total), "{wide_bar} {pos}/{len} records {per_sec} eta {eta}")
}
