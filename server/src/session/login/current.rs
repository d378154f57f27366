//! What is read again while others look at it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Something of which there is a new one now and then.
pub(crate) struct ReloadableFile<T> {
    place: RwLock<Arc<T>>,
    generation: AtomicU64,
}

impl<T> ReloadableFile<T> {
    pub(super) fn new(first: T) -> ReloadableFile<T> {
        ReloadableFile { place: RwLock::new(Arc::new(first)), generation: AtomicU64::new(0) }
    }

    /// The one that there is now.
    pub(super) fn get(&self) -> Arc<T> {
        Arc::clone(&self.place.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often it has been replaced: what was found out by the one of an earlier [`get`](ReloadableFile::get) still holds if this has
    /// been the same before that and is so now.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn replace(&self, new: T) {
        *self.place.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        // Behind it: who sees the new number gets the new one.
        self.generation.fetch_add(1, Ordering::Release);
    }
}
