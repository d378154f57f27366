//! Record sizes for the counters by size class: key + value, and 4 more if the record has flags, as
//! in [`SizeClass`](todana_core::SizeClass).

use todana_core::Record;

/// Returns the size of a record for its size class.
#[inline]
pub(crate) fn plain_size(key: &[u8], record: &Record<'_>) -> usize {
    size_of(key, record.value, record.attributes.flags)
}

#[inline]
pub(crate) fn size_of(key: &[u8], value: &[u8], flags: u32) -> usize {
    key.len() + value.len() + if flags != 0 { 4 } else { 0 }
}
