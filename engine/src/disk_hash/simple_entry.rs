//! Finds and reads put entries without attributes, which are the most frequent, with few
//! instructions.
//!
//! A random read waits for memory twice: for the slot and for the entry. During a wait, the
//! processor executes up to a few hundred instructions that follow. If a lookup takes fewer
//! instructions than that, the waits of the next record overlap with those of this record. This
//! path therefore handles only the common layout. A result of `None` means that the general path is
//! needed.

use super::entry::{PUT, is_intact, padded};
use super::page::{IndexPage, IndexSlot, class_of};
use super::segment::{PREFETCHED_MAX, SegmentTable};
use std::sync::atomic::Ordering;

/// The largest size class whose entries fit into one cache line. Longer entries are prefetched
/// before their beginning is read.
const LINE_CLASS: u32 = 2;

/// A put entry without attributes.
#[derive(Clone, Copy)]
pub(crate) struct SimpleEntry<'b> {
    key: &'b [u8],
    pub(crate) value: &'b [u8],
    /// The bytes of the entry, and the initial value of its CRC.
    entry: &'b [u8],
    seed: u32,
}

impl SimpleEntry<'_> {
    /// Returns the length of the entry.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entry.len()
    }

    #[inline]
    pub(crate) fn is_intact(&self) -> bool {
        is_intact(self.entry, self.seed)
    }
}

/// Decodes the put entry at the beginning of `bytes` without checking its CRC.
#[inline]
fn read(bytes: &[u8], seed: u32) -> Option<SimpleEntry<'_>> {
    let first = bytes.first_chunk::<8>()?;
    let (tag, key_len) = (first[4], usize::from(first[5]));
    let (low, high) = (usize::from(first[6]), usize::from(first[7]));
    let (value_len, at) = if low < 0x80 { (low, 7) } else { (low & 0x7f | high << 7, 8) };
    if tag != PUT || key_len >= 0x80 || at == 8 && high >= 0x80 {
        return None;
    }
    let (key_end, end) = (at + key_len, at + key_len + value_len);
    let entry = bytes.get(..padded(end))?;
    Some(SimpleEntry { key: &entry[at..key_end], value: &entry[key_end..end], entry, seed })
}

/// Encodes a put entry without its CRC. Returns false if the key or the value is too long for this
/// layout.
#[inline]
pub(crate) fn put(into: &mut Vec<u8>, key: &[u8], value: &[u8]) -> bool {
    if key.len() >= 0x80 || value.len() >= 0x4000 {
        return false;
    }
    let low = value.len() as u8;
    let (head, at) = match value.len() {
        0..0x80 => ([0, 0, 0, 0, PUT, key.len() as u8, low, 0], 7),
        len => ([0, 0, 0, 0, PUT, key.len() as u8, low | 0x80, (len >> 7) as u8], 8),
    };
    let end = at + key.len() + value.len();
    into.clear();
    into.reserve(end + 16);
    // Eight bytes are appended and then truncated, because a copy of constant length needs no
    // function call.
    into.extend_from_slice(&head);
    into.truncate(at);
    into.extend_from_slice(key);
    into.extend_from_slice(value);
    into.extend_from_slice(&[0; 8]);
    into.truncate(padded(end));
    true
}

/// Returns the offset of the value in the entry.
#[inline]
pub(crate) fn value_at(key_len: usize, value_len: usize) -> usize {
    key_len + if value_len < 0x80 { 7 } else { 8 }
}

/// Returns true if two keys are equal. Short keys are compared without a function call.
#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    match (one.first_chunk::<8>(), other.first_chunk::<8>(), one.last_chunk::<8>(), other.last_chunk::<8>()) {
        (Some(a), Some(b), Some(c), Some(d)) if one.len() <= 16 => {
            (u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b))
                | (u64::from_ne_bytes(*c) ^ u64::from_ne_bytes(*d))
                == 0
        }
        _ => one == other,
    }
}

/// Returns the entry that a slot points to if it belongs to the key. `checks` requests a check of
/// its CRC. Without this check, a long entry is accepted if its key and its size class match,
/// because that needs only its first cache line. If its segment contains damage, the CRC is always
/// checked.
#[inline]
fn find_in_slot<'t>(
    table: &'t SegmentTable,
    slot: IndexSlot,
    key: &[u8],
    checks: bool,
) -> Option<SimpleEntry<'t>> {
    let at = slot.location();
    let segment = table.get(at.slot)?;
    let offset = u64::from(at.unit) * 8;
    let is_long = slot.class() > LINE_CLASS;
    // Compaction has met damage in this segment and cannot compact it until the damaged record is
    // overwritten, so this read must find the damage.
    let checks = checks || !is_long || segment.has_damage.load(Ordering::Relaxed);
    if checks && is_long {
        segment.prefetch(offset, slot.class(), PREFETCHED_MAX);
    }
    let simple_entry = read(segment.mapped(offset)?, segment.seed_at(offset))?;
    let is_right = if checks {
        simple_entry.is_intact()
    } else {
        if !segment.is_live_estimated.load(Ordering::Relaxed) {
            segment.is_live_estimated.store(true, Ordering::Relaxed);
        }
        class_of(simple_entry.len()) == slot.class()
    };
    (is_right && is_same(simple_entry.key, key)).then_some(simple_entry)
}

/// Finds a key in a page. Returns the index and the entry of the key, or `Some(None)` if the page
/// does not contain the key.
#[inline]
pub(crate) fn find_in_page<'t>(
    page: &IndexPage,
    tag: u32,
    table: &'t SegmentTable,
    key: &[u8],
    checks: bool,
) -> Option<Option<(usize, SimpleEntry<'t>)>> {
    let Some(index) = page.first(tag) else { return Some(None) };
    if table.exceeds_memory {
        // This thread may have read the entry already, and the mapping would read it again.
        return None;
    }
    find_in_slot(table, page.get(index), key, checks).map(|simple_entry| Some((index, simple_entry)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_hash::entry::{decode, put_head, seal};
    use todana_core::Attributes;

    #[test]
    fn simple_entries_decode_like_general_ones() {
        for (key_len, value_len) in (0..200).flat_map(|len| [(len, 8), (8, len), (16, len * 100)]) {
            for flags in [0, 9] {
                let mut bytes = Vec::new();
                let attributes = Attributes { flags, ..Attributes::default() };
                put_head(&mut bytes, key_len, value_len, &attributes, None);
                bytes.resize(bytes.len() + key_len, b'k');
                bytes.resize(bytes.len() + value_len, b'v');
                seal(&mut bytes, 0, 77);
                let len = bytes.len();
                bytes.extend_from_slice(b"behind it");
                let is_bare = flags == 0 && key_len < 0x80 && value_len < 0x4000;
                let simple_entry = read(&bytes, 77);
                assert_eq!(simple_entry.is_some(), is_bare, "{key_len}, {value_len}");
                if let Some(simple_entry) = simple_entry {
                    let (head, entry) = decode(&bytes, 77).unwrap();
                    assert_eq!((simple_entry.key, simple_entry.value), (head.key(entry), head.value(entry)));
                    assert_eq!((simple_entry.len(), head.len), (len, len));
                    assert!(simple_entry.is_intact());
                    assert!(read(&bytes[..len - 1], 77).is_none());
                    assert!(!read(&bytes, 78).unwrap().is_intact());
                    bytes[len - 1] ^= 1;
                    assert!(!read(&bytes, 77).unwrap().is_intact());
                }
            }
        }
    }

    #[test]
    fn a_bare_entry_is_written_as_any_other() {
        for (key_len, value_len) in (0..140).flat_map(|len| [(len, 8), (8, len), (16, len * 120)]) {
            let (key, value) = (vec![b'k'; key_len], vec![b'v'; value_len]);
            let (mut bytes, mut plain) = (b"before".to_vec(), Vec::new());
            let is_bare = put(&mut bytes, &key, &value);
            assert_eq!(is_bare, key_len < 0x80 && value_len < 0x4000, "{key_len}, {value_len}");
            put_head(&mut plain, key_len, value_len, &Attributes::default(), None);
            plain.extend_from_slice(&key);
            plain.extend_from_slice(&value);
            seal(&mut plain, 0, 77);
            plain[..4].fill(0);
            assert!(!is_bare || bytes == plain, "{key_len}, {value_len}");
        }
    }

    #[test]
    fn key_comparison_covers_all_bytes() {
        for len in 0..40 {
            let key: Vec<u8> = (0..len).collect();
            assert!(is_same(&key, &key.clone()));
            for at in 0..key.len() {
                let mut other = key.clone();
                other[at] ^= 0x80;
                assert!(!is_same(&key, &other));
            }
            assert!(!is_same(&key, &[&key[..], &[0]].concat()));
        }
    }
}
