//! Forks: the child of one has its parent's objects, and none of its threads.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often this process has come out of a fork. What was opened before has lost its threads, and its locks may be held by nobody.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called in the child of a fork.
#[pyfunction]
pub(crate) fn _after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How often this process has come out of a fork.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}
