//! An observer of evictions that records its calls.

// No test file uses all of it.
#![allow(dead_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use todana_core::{Record, SizeClass};
use todana_engine::{Departure, EvictionObserver};

/// Key, value, flags, and true if the record had been read.
pub(crate) type EvictionReport = (Vec<u8>, Vec<u8>, u32, bool);

#[derive(Debug, Default)]
pub(crate) struct Listener {
    listens: AtomicBool,
    told: Mutex<Vec<EvictionReport>>,
    departures: Mutex<Vec<Departure>>,
    /// The number of records that were passed over: for the first time, and again.
    passed: Mutex<[u64; 2]>,
    cleared: Mutex<u64>,
}

impl Listener {
    /// Returns the observer in the form that engines take.
    pub(crate) fn observer(self: &Arc<Listener>) -> Option<Arc<dyn EvictionObserver>> {
        Some(Arc::clone(self) as Arc<dyn EvictionObserver>)
    }

    pub(crate) fn listen(&self) {
        self.listens.store(true, Ordering::Relaxed);
    }

    /// Returns the evictions since the last call.
    pub(crate) fn take(&self) -> Vec<EvictionReport> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    /// Returns the departures since the last call.
    pub(crate) fn departures(&self) -> Vec<Departure> {
        std::mem::take(&mut *self.departures.lock().unwrap())
    }

    pub(crate) fn passed(&self) -> [u64; 2] {
        *self.passed.lock().unwrap()
    }

    pub(crate) fn cleared(&self) -> u64 {
        *self.cleared.lock().unwrap()
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

    fn departed(&self, departure: &Departure) {
        self.departures.lock().unwrap().push(*departure);
    }

    fn passed_over(&self, _: usize, is_first: bool) {
        self.passed.lock().unwrap()[usize::from(!is_first)] += 1;
    }

    fn cleared(&self, classes: &[SizeClass]) {
        *self.cleared.lock().unwrap() += classes.iter().map(|class| class.records).sum::<u64>();
    }
}
