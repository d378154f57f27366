//! Forks: a child process has its parent's objects, but none of its threads.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks above this process. Objects that were opened before the last one have lost
/// their threads, and their locks may be held by threads that no longer exist.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called in the child of a fork.
#[pyfunction]
pub(crate) fn _after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of forks above this process.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}
