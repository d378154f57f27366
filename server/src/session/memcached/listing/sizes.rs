//! Counts records by size for `stats sizes`.
//!
//! memcached maintains these counts with each change of a record. Here a walk counts the records
//! when a client asks, so that other requests take no time for this.

use std::collections::BTreeMap;
use todana_core::{RecordDetails, Reply};
use todana_protocol::memcached::item_size;

/// The unit to whose multiples sizes are rounded up.
const STEP: u64 = 32;

/// The number of records of each size.
///
/// There is one entry for each different size. The list stays short, because records of n different
/// sizes take at least 16 n^2 bytes.
#[derive(Debug, Default)]
pub(crate) struct SizeHistogram(BTreeMap<u64, u64>);

impl SizeHistogram {
    pub(crate) fn add(&mut self, record: &RecordDetails) {
        let size = item_size(record.key_len, record.value_len, record.flags);
        *self.0.entry(size.next_multiple_of(STEP)).or_default() += 1;
    }

    pub(crate) fn report(&self, out: &mut dyn FnMut(Reply<'_>)) {
        for (size, count) in &self.0 {
            out(Reply::Statistic { name: &size.to_string(), value: &count.to_string() });
        }
    }
}
