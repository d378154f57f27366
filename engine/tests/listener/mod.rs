//! Whoever observes evictions, and what it was told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use todana_core::Record;
use todana_engine::EvictionObserver;

/// Key, value, flags, and whether it had been read.
pub(crate) type Told = (Vec<u8>, Vec<u8>, u32, bool);

#[derive(Debug, Default)]
pub(crate) struct Listener {
    listens: AtomicBool,
    told: Mutex<Vec<Told>>,
}

impl Listener {
    /// The same, as an engine knows it.
    pub(crate) fn observer(self: &Arc<Listener>) -> Option<Arc<dyn EvictionObserver>> {
        Some(Arc::clone(self) as Arc<dyn EvictionObserver>)
    }

    pub(crate) fn listen(&self) {
        self.listens.store(true, Ordering::Relaxed);
    }

    /// What it has been told since the last time.
    pub(crate) fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

impl EvictionObserver for Listener {
    fn is_listening(&self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }

    fn evicted(&self, key: &[u8], record: Record<'_>, is_read: bool) {
        let told = (key.to_vec(), record.value.to_vec(), record.attributes.flags, is_read);
        self.told.lock().unwrap().push(told);
    }
}
