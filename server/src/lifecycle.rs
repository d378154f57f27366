//! Where the server stands between its start and its end.

use crate::handle::{ServerHandle, Stopping};
use std::sync::atomic::{AtomicBool, Ordering};

/// How far the server has come: loading, serving, stopping.
pub(crate) struct Lifecycle {
    pub(crate) handle: ServerHandle,
    is_loading: AtomicBool,
    has_not_loaded: AtomicBool,
}

impl Lifecycle {
    pub(crate) fn new(handle: ServerHandle) -> Lifecycle {
        Lifecycle { handle, is_loading: AtomicBool::new(false), has_not_loaded: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn stopping(&self) -> Stopping {
        self.handle.stopping()
    }

    /// Returns true while the contents of data directories are read back.
    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading.load(Ordering::Relaxed)
    }

    /// Returns true if they could not be read back.
    pub(crate) fn has_not_loaded(&self) -> bool {
        self.has_not_loaded.load(Ordering::Relaxed)
    }

    pub(crate) fn set_loading(&self, loads: bool) {
        self.is_loading.store(loads, Ordering::Relaxed);
    }

    /// Notes how loading has ended.
    pub(crate) fn set_loaded(&self, is_loaded: bool) {
        self.has_not_loaded.store(!is_loaded, Ordering::Relaxed);
        self.set_loading(false);
    }
}
