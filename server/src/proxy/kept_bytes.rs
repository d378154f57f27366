//! Counts the bytes of requests that a worker of the proxy keeps until their servers have answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of bytes of requests that a worker keeps.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptBytes(Arc<AtomicUsize>);

impl KeptBytes {
    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes that `before` bytes have become `now` bytes.
    #[inline]
    pub(super) fn change(&self, before: usize, now: usize) {
        // The sum wraps around if the number has decreased.
        self.0.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Counts `len` bytes until the result is dropped.
    pub(crate) fn count(&self, len: usize) -> CountedBytes {
        self.change(0, len);
        CountedBytes { all: self.clone(), len }
    }
}

/// Bytes that are counted as long as this value lives.
#[derive(Debug)]
pub(crate) struct CountedBytes {
    all: KeptBytes,
    len: usize,
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.all.change(self.len, 0);
    }
}
