//! Damaged records that were met since the opening: each counts once, however often it is asked for.

use parking_lot::Mutex;
use std::collections::HashSet;
use todana_core::Error;

/// More are not told apart.
const TOLD_APART_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct DamagedRecords(Mutex<Option<Met>>);

struct Met {
    hashes: HashSet<u64>,
    last: Error,
}

impl DamagedRecords {
    /// Takes note of the record of a key, and returns the error.
    pub(super) fn note(&self, key: &[u8], error: Error) -> Error {
        let mut met = self.0.lock();
        let met = met.get_or_insert_with(|| Met { hashes: HashSet::new(), last: error.clone() });
        if met.hashes.len() < TOLD_APART_MAX && met.hashes.insert(rapidhash::v3::rapidhash_v3(key)) {
            met.last = error.clone();
        }
        error
    }

    /// How many there were, and what was wrong with the last one.
    pub(super) fn get(&self) -> Option<(u64, Error)> {
        self.0.lock().as_ref().map(|met| (met.hashes.len() as u64, met.last.clone()))
    }
}
