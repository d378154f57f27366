//! Holds a value that is replaced while other threads use it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A value that is replaced from time to time, such as the content of a file.
pub(crate) struct ReloadableFile<T> {
    place: RwLock<Arc<T>>,
    generation: AtomicU64,
}

impl<T> ReloadableFile<T> {
    pub(super) fn new(first: T) -> ReloadableFile<T> {
        ReloadableFile { place: RwLock::new(Arc::new(first)), generation: AtomicU64::new(0) }
    }

    /// Returns the current value.
    pub(super) fn get(&self) -> Arc<T> {
        Arc::clone(&self.place.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of replacements so far. If this number is the same before a call of
    /// [`get`](ReloadableFile::get) and later, a result that was derived from the value is still
    /// valid.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn replace(&self, new: T) {
        *self.place.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        // The generation is increased after the replacement, so a reader of the new generation gets
        // the new value.
        self.generation.fetch_add(1, Ordering::Release);
    }
}
