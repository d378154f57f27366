//! Defines the stage of a server: loading its data, serving or stopping.

use crate::handle::{ServerHandle, StopStage};
use std::sync::atomic::{AtomicBool, Ordering};

/// The stage of a server: loading, serving or stopping.
pub(crate) struct ServerLifecycle {
    pub(crate) handle: ServerHandle,
    is_loading: AtomicBool,
    has_not_loaded: AtomicBool,
}

impl ServerLifecycle {
    pub(crate) fn new(handle: ServerHandle) -> ServerLifecycle {
        ServerLifecycle { handle, is_loading: AtomicBool::new(false), has_not_loaded: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn stopping(&self) -> StopStage {
        self.handle.stopping()
    }

    /// Returns true while the data directories are loaded.
    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading.load(Ordering::Relaxed)
    }

    /// Returns true if loading the data directories has failed.
    pub(crate) fn has_not_loaded(&self) -> bool {
        self.has_not_loaded.load(Ordering::Relaxed)
    }

    pub(crate) fn set_loading(&self, loads: bool) {
        self.is_loading.store(loads, Ordering::Relaxed);
    }

    /// Notes that loading has ended, and whether it succeeded.
    pub(crate) fn set_loaded(&self, is_loaded: bool) {
        self.has_not_loaded.store(!is_loaded, Ordering::Relaxed);
        self.set_loading(false);
    }
}
