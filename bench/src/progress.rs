//! How far a round has come.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Returns a bar on standard error; a hidden one where that is no terminal.
pub(crate) fn progress(len: u64, template: &str) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(len) } else { ProgressBar::hidden() };
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}
