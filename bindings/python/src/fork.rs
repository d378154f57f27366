//! Detects forks. A child process has the objects of its parent, but none of its threads.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the first process and this process. Objects that were opened before
/// the last fork have lost their threads, and their locks may be held by threads that do not exist
/// any more.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Counts a fork. Python calls this in the child.
#[pyfunction]
pub(crate) fn _after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of forks between the first process and this process.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}
