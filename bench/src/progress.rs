//! Creates the progress bar of a round.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Returns a bar on standard error. The bar is hidden if standard error is not a terminal.
pub(crate) fn progress(len: u64, template: &str) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(len) } else { ProgressBar::hidden() };
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}
