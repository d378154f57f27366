//! `stats sizes`: the number of records by size.
//!
//! memcached counts records as they come and go. Here they are counted on request, so that other
//! requests pay nothing.

use std::collections::BTreeMap;
use todana_core::{RecordDetails, Reply};
use todana_protocol::memcached::item_size;

/// Sizes are rounded up to a multiple of this.
const STEP: u64 = 32;

/// Records counted by size.
///
/// It is as long as there are different sizes, and n different sizes need 16 n^2 bytes of records.
#[derive(Debug, Default)]
pub(crate) struct SizeHistogram(BTreeMap<u64, u64>);

impl SizeHistogram {
    pub(crate) fn add(&mut self, record: &RecordDetails) {
        let size = item_size(record.key_len, record.value_len, record.flags);
        *self.0.entry(size.next_multiple_of(STEP)).or_default() += 1;
    }

    pub(crate) fn tell(&self, out: &mut dyn FnMut(Reply<'_>)) {
        for (size, count) in &self.0 {
            out(Reply::Statistic { name: &size.to_string(), value: &count.to_string() });
        }
    }
}
