//! Sizes by which some things are counted: key + value + 4 if there are flags, as in [`SizeClass`](todana_core::SizeClass).

use todana_core::Record;

/// The size of a record by which it is classed.
#[inline]
pub(crate) fn plain_size(key: &[u8], record: &Record<'_>) -> usize {
    size_of(key, record.value, record.attributes.flags)
}

#[inline]
pub(crate) fn size_of(key: &[u8], value: &[u8], flags: u32) -> usize {
    key.len() + value.len() + if flags != 0 { 4 } else { 0 }
}
