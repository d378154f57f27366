//! Counts the damaged records that were found since the opening. Each record counts once, even if
//! it is read often.

use parking_lot::Mutex;
use std::collections::HashSet;
use todana_core::Error;

/// The maximum number of distinct records that are counted.
const HASHES_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct DamagedRecords(Mutex<Option<DamageSeen>>);

struct DamageSeen {
    hashes: HashSet<u64>,
    last: Error,
}

impl DamagedRecords {
    /// Notes a damaged record and returns the given error.
    pub(super) fn note(&self, key: &[u8], error: Error) -> Error {
        let mut met = self.0.lock();
        let met = met.get_or_insert_with(|| DamageSeen { hashes: HashSet::new(), last: error.clone() });
        if met.hashes.len() < HASHES_MAX && met.hashes.insert(rapidhash::v3::rapidhash_v3(key)) {
            met.last = error.clone();
        }
        error
    }

    /// Returns the number of damaged records and the error of the last of them, or `None` if there
    /// are none.
    pub(super) fn get(&self) -> Option<(u64, Error)> {
        self.0.lock().as_ref().map(|met| (met.hashes.len() as u64, met.last.clone()))
    }
}
