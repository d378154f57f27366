//! Defines a leaf, which holds records in the order of their keys in one movable block.
//!
//! ```text
//! leaf   = groups (u8) | prefix_len (u8) | len (u16) | head (u32) ... | start (u16) ...
//!          | prefix | record ...
//! record = as in `crate::record`, its key without the prefix; forms 0 to 13 of a key are its length
//! stub   = 0xF8 | 0x40 or 0x80, plus 0x01 if cut | key_len (varint) | key | reference (u32)
//! ```
//!
//! `len` is the length of the complete leaf. A stub refers to a record that is stored elsewhere,
//! because it is too long for a leaf. The records are divided into groups of about 160 bytes. For
//! each group, `head` contains the first four bytes of its first key (big-endian, padded with
//! zeros) and `start` contains the offset of that key's record from the first record. A search
//! reads one or two cache lines to choose a group, and then walks through that group.
//!
//! Invariants: keys ascend strictly, and all begin with the prefix. If a key is longer than
//! [`STORED_KEY_MAX`], the leaf contains only that number of its bytes (the key is "cut"); the
//! complete key is stored elsewhere with the record. The first byte is never 0xF0, by which `arena`
//! recognises free blocks. At least eight bytes are readable after a leaf, because each chunk of an
//! arena has eight additional bytes.

use crate::record::{
    HAS_MORE, KEY_VARIABLE, MORE_BLOCK, MORE_HUGE, PREFIX, RecordParts, RecordReference, fixed_lens,
    put_varint, u32_at, varint,
};
use std::cmp::Ordering;
use std::ops::Range;
use todana_core::Attributes;

/// The maximum number of bytes of a key that a leaf contains.
pub(super) const STORED_KEY_MAX: usize = 500;
/// A leaf with fewer records than this is not split.
const LEAF_RECORDS: usize = 8;
const PREFIX_MAX: usize = 255;
const GROUP_BYTES: usize = 160;
/// The groups of a leaf are rebuilt when they are shorter than this on average.
const GROUP_LEAST: usize = 48;
const HEADER: usize = 4;
/// The number of bytes of the header for each group.
const PER_GROUP: usize = 6;
const MORE_CUT: u8 = 0x01;

pub(super) const KEY_LENS: [u8; 15] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0];
const LENS: [u8; 256] = fixed_lens(&KEY_LENS);

/// Masks for the first n of eight bytes in big-endian order, indexed by n.
const MASKS: [u64; 9] = {
    let mut masks = [0; 9];
    let mut len = 1;
    while len <= 8 {
        masks[len] = u64::MAX << (64 - 8 * len);
        len += 1;
    }
    masks
};

/// Returns the first eight bytes of a text, padded with zeros, as a number. The numbers have the
/// order of the texts.
#[inline]
pub(super) fn key_head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(eight)
        }
    }
}

/// Returns the length of the common prefix of two texts.
pub(super) fn common_len(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Returns the part of a key that a leaf contains.
#[inline]
pub(super) fn stored(key: &[u8]) -> &[u8] {
    &key[..key.len().min(STORED_KEY_MAX)]
}

/// A record in a leaf.
#[derive(Clone, Debug)]
pub(super) struct LeafEntry {
    pub(super) at: usize,
    pub(super) len: usize,
    /// The range of the key without the prefix of the leaf.
    pub(super) key: Range<usize>,
    pub(super) body: LeafEntryBody,
}

/// The contents of an entry.
#[derive(Clone, Debug)]
pub(super) enum LeafEntryBody {
    /// The complete record is in the leaf.
    Inline(RecordParts),
    /// A stub is in the leaf. `is_cut` states that the leaf does not contain the complete key.
    Stub { reference: RecordReference, is_cut: bool },
}

/// The position of a key in a leaf, or the position at which it would be inserted.
#[derive(Clone, Debug)]
pub(super) struct LeafPosition {
    group: usize,
    pub(super) at: usize,
    pub(super) found: Option<LeafEntry>,
    /// True if the key begins with the prefix of the leaf.
    pub(super) shares_prefix: bool,
}

impl LeafPosition {
    /// The position in a leaf that does not exist.
    pub(super) const ABSENT: LeafPosition =
        LeafPosition { group: 0, at: 0, found: None, shares_prefix: false };
}

/// A reference to the bytes of a leaf, which are followed by at least eight readable bytes.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    bytes: &'a [u8],
}

impl<'a> Leaf<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8]) -> Leaf<'a> {
        Leaf { bytes }
    }

    #[inline]
    fn u16_at(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    #[inline]
    fn groups(&self) -> usize {
        usize::from(self.bytes[0])
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.u16_at(2)
    }

    #[inline]
    pub(super) fn prefix(&self) -> &'a [u8] {
        let at = HEADER + self.groups() * PER_GROUP;
        &self.bytes[at..at + usize::from(self.bytes[1])]
    }

    /// Returns the offset of the first record.
    #[inline]
    pub(super) fn records_at(&self) -> usize {
        HEADER + self.groups() * PER_GROUP + usize::from(self.bytes[1])
    }

    /// Returns the bytes of the leaf without the bytes that follow it.
    #[inline]
    pub(super) fn image(&self) -> &'a [u8] {
        &self.bytes[..self.len()]
    }

    #[inline]
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    fn head(&self, group: usize) -> u32 {
        u32_at(self.bytes, HEADER + 4 * group)
    }

    #[inline]
    fn start(&self, group: usize) -> usize {
        self.u16_at(HEADER + 4 * self.groups() + 2 * group)
    }

    /// Decodes the record at `at`.
    #[inline]
    pub(super) fn entry(&self, at: usize) -> LeafEntry {
        entry(self.bytes, at)
    }

    /// Returns true for most of the records without attributes, and for no other record.
    #[inline]
    pub(super) fn is_plain(&self, at: usize) -> bool {
        LENS[usize::from(self.bytes[at])] != 0
    }

    /// Returns the offset of the record that follows the record at `at`.
    #[inline]
    fn next(&self, at: usize) -> usize {
        match usize::from(LENS[usize::from(self.bytes[at])]) {
            0 => at + self.entry(at).len,
            len => at + len,
        }
    }

    /// Returns the offsets of the records, in order.
    pub(super) fn places(self) -> impl Iterator<Item = usize> + use<'a> {
        let end = self.len();
        let mut at = self.records_at();
        std::iter::from_fn(move || {
            let here = at;
            (here < end).then(|| {
                at = self.next(here);
                here
            })
        })
    }

    /// Returns the records, in order.
    pub(super) fn entries(self) -> impl Iterator<Item = LeafEntry> + use<'a> {
        self.places().map(move |at| self.entry(at))
    }

    /// Compares the key of the record at `at` with another key, which begins with the prefix of
    /// this leaf. The other key is given three times: `suffix` is its stored part after the prefix,
    /// `head` is the number of the first eight bytes of `suffix`, and `full` is the complete key.
    /// `text_of` returns the complete text of a cut key.
    #[inline]
    fn compare(
        &self,
        at: usize,
        head: u64,
        suffix: &[u8],
        full: &[u8],
        text_of: &impl Fn(RecordReference) -> &'a [u8],
    ) -> Ordering {
        let header = self.bytes[at];
        let (key_at, key_len, entry) = if LENS[usize::from(header)] != 0 {
            (at + 1, usize::from(header >> 4), None)
        } else {
            let entry = self.entry(at);
            (entry.key.start, entry.key.len(), Some(entry))
        };
        let eight = self.bytes[key_at..key_at + 8].try_into().expect("eight bytes");
        let own = u64::from_be_bytes(eight) & MASKS[key_len.min(8)];
        if own != head {
            return own.cmp(&head);
        }
        if key_len <= 8 || suffix.len() <= 8 {
            return key_len.cmp(&suffix.len());
        }
        let order = self.bytes[key_at + 8..key_at + key_len].cmp(&suffix[8..]);
        let Some(LeafEntry { body: LeafEntryBody::Stub { reference, is_cut: true }, .. }) = entry else {
            // The keys are equal as far as they are stored. The key of this record is not cut, so
            // the other key is at least as long.
            return order.then(STORED_KEY_MAX.cmp(&full.len().max(STORED_KEY_MAX)));
        };
        order.then_with(|| text_of(reference).cmp(full))
    }

    /// Finds a key. `text_of` returns the complete text of a cut key.
    #[inline]
    pub(super) fn find(&self, key: &[u8], text_of: impl Fn(RecordReference) -> &'a [u8]) -> LeafPosition {
        let (stored, prefix) = (stored(key), self.prefix());
        let Some(suffix) = stored.strip_prefix(prefix) else {
            let is_before = stored < prefix;
            let (group, at) =
                if is_before { (0, self.records_at()) } else { (self.groups() - 1, self.len()) };
            return LeafPosition { group, at, found: None, shares_prefix: false };
        };
        let (groups, records_at) = (self.groups(), self.records_at());
        let head = key_head(suffix);
        let group_head = (head >> 32) as u32;
        let compare = |at| self.compare(at, head, suffix, key, &text_of);
        let below = (0..groups).take_while(|&group| self.head(group) < group_head).count();
        let mut group = below.saturating_sub(1);
        while group + 1 < groups
            && self.head(group + 1) == group_head
            && compare(records_at + self.start(group + 1)).is_le()
        {
            group += 1;
        }
        let mut at = records_at + self.start(group);
        let end = if group + 1 < groups { records_at + self.start(group + 1) } else { self.len() };
        while at < end {
            match compare(at) {
                Ordering::Less => at = self.next(at),
                Ordering::Equal => {
                    return LeafPosition { group, at, found: Some(self.entry(at)), shares_prefix: true };
                }
                Ordering::Greater => break,
            }
        }
        LeafPosition { group, at, found: None, shares_prefix: true }
    }

    /// Tries to change only the header when `remove` bytes at the position are replaced by
    /// `insert`. If the change affects only the size of one group, writes the new header to
    /// `header` and returns true.
    #[inline]
    pub(super) fn adjust(
        &self,
        position: &LeafPosition,
        remove: usize,
        insert: &[u8],
        header: &mut Vec<u8>,
    ) -> bool {
        let (groups, records_at) = (self.groups(), self.records_at());
        let start = self.start(position.group);
        let end = if position.group + 1 < groups {
            self.start(position.group + 1)
        } else {
            self.len() - records_at
        };
        let size = end - start + insert.len() - remove;
        let is_first = position.at == records_at + start;
        let is_first_removed = is_first && insert.is_empty();
        if (size > GROUP_BYTES && insert.len() > remove) || is_first_removed {
            return false;
        }
        header.clear();
        header.extend_from_slice(&self.bytes[..HEADER + PER_GROUP * groups]);
        let len = self.len() + insert.len() - remove;
        header[2..4].copy_from_slice(&(len as u16).to_le_bytes());
        if is_first {
            let key = entry(insert, 0).key;
            let head = (key_head(&insert[key]) >> 32) as u32;
            header[HEADER + 4 * position.group..][..4].copy_from_slice(&head.to_le_bytes());
        }
        for group in position.group + 1..groups {
            let start = self.start(group) + insert.len() - remove;
            header[HEADER + 4 * groups + 2 * group..][..2].copy_from_slice(&(start as u16).to_le_bytes());
        }
        true
    }

    /// Builds this leaf with one record added, removed or replaced: `insert` replaces `remove`
    /// bytes at the position. The key of the record must begin with the prefix of the leaf, and at
    /// least one record must remain.
    pub(super) fn splice(
        &self,
        position: &LeafPosition,
        remove: usize,
        insert: &[u8],
        new: &mut LeafBuilder,
    ) {
        let records_at = self.records_at();
        let at = position.at - records_at;
        new.clear();
        new.records.extend_from_slice(&self.bytes[records_at..position.at]);
        new.records.extend_from_slice(insert);
        new.records.extend_from_slice(&self.bytes[position.at + remove..self.len()]);
        let shift = |start: usize| start + insert.len() - remove;
        let groups = self.groups();
        for group in 0..groups {
            let start = self.start(group);
            if group < position.group {
                new.groups.push((self.head(group), start));
            } else if group > position.group {
                new.groups.push((self.head(group), shift(start)));
            } else {
                let old_end =
                    if group + 1 < groups { self.start(group + 1) } else { self.len() - records_at };
                let end = shift(old_end);
                if start == end {
                    continue;
                }
                let head = if start == at { new.head_at(start) } else { self.head(group) };
                new.groups.push((head, start));
                if end - start > GROUP_BYTES {
                    // If keys arrive in ascending order, one group after another is filled.
                    let is_appended = remove == 0 && at + insert.len() == end && end == new.records.len();
                    let boundary = if is_appended { Some(at) } else { new.middle(start..end) };
                    if let Some(boundary) = boundary.filter(|&boundary| boundary > start) {
                        new.groups.push((new.head_at(boundary), boundary));
                    }
                }
            }
        }
        // Small groups, which removals cause, cost more than they help. Besides, the number of
        // groups must fit into a byte.
        if new.groups.len() * GROUP_LEAST > new.records.len() + 4 * GROUP_BYTES {
            new.regroup();
        }
        new.finish(self.prefix());
    }
}

/// Decodes the record at `at`.
#[inline]
pub(super) fn entry(bytes: &[u8], at: usize) -> LeafEntry {
    let mut next = at + 1;
    let mut header = bytes[at];
    let (mut prefix, mut more) = (0, 0);
    if header >= PREFIX {
        prefix = header;
        if prefix & HAS_MORE != 0 {
            more = bytes[next];
            next += 1;
            if more & (MORE_BLOCK | MORE_HUGE) != 0 {
                let key_len = varint(bytes, &mut next) as usize;
                let key = next..next + key_len;
                let reference = u32_at(bytes, key.end);
                let reference = if more & MORE_BLOCK != 0 {
                    RecordReference::Block(reference)
                } else {
                    RecordReference::Huge(reference)
                };
                let body = LeafEntryBody::Stub { reference, is_cut: more & MORE_CUT != 0 };
                return LeafEntry { at, len: key.end + 4 - at, key, body };
            }
        }
        header = bytes[next];
        next += 1;
    }
    let parts = RecordParts::read(bytes, prefix, more, header, next, &KEY_LENS);
    LeafEntry { at, len: parts.value.end - at, key: parts.key.clone(), body: LeafEntryBody::Inline(parts) }
}

#[inline]
fn form_of(key_len: usize) -> u8 {
    if key_len < usize::from(KEY_VARIABLE) { key_len as u8 } else { KEY_VARIABLE }
}

/// Appends a complete record.
#[inline]
pub(super) fn put_record(out: &mut Vec<u8>, key: &[u8], value: &[u8], attributes: &Attributes) {
    let put_key = |out: &mut Vec<u8>| out.extend_from_slice(key);
    crate::record::put_record(out, form_of(key.len()), key.len(), put_key, value, attributes);
}

/// Appends the stub of a record. The first `omitted` bytes of the key are left out, because they
/// are the prefix of the leaf.
pub(super) fn put_stub(out: &mut Vec<u8>, key: &[u8], omitted: usize, reference: RecordReference) {
    let is_cut = key.len() > STORED_KEY_MAX;
    put_stub_of(out, [&stored(key)[omitted..], &[]], is_cut, reference);
}

fn put_stub_of(out: &mut Vec<u8>, key: [&[u8]; 2], is_cut: bool, reference: RecordReference) {
    let (more, reference) = match reference {
        RecordReference::Block(handle) => (MORE_BLOCK, handle),
        RecordReference::Huge(index) => (MORE_HUGE, index),
    };
    out.extend_from_slice(&[PREFIX | HAS_MORE, more | if is_cut { MORE_CUT } else { 0 }]);
    put_varint(out, (key[0].len() + key[1].len()) as u64);
    out.extend_from_slice(key[0]);
    out.extend_from_slice(key[1]);
    out.extend_from_slice(&reference.to_le_bytes());
}

/// A record for a new leaf. It is taken from an old leaf, or it is new.
#[derive(Clone)]
pub(super) struct LeafItem<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) entry: LeafEntry,
    /// The beginning of the record's key that `bytes` does not contain.
    pub(super) prefix: &'a [u8],
}

impl LeafItem<'_> {
    /// Returns the part of the key that a leaf stores.
    pub(super) fn key(&self) -> Vec<u8> {
        [self.prefix, &self.bytes[self.entry.key.clone()]].concat()
    }

    /// Appends the record without the first `omitted` bytes of its key.
    fn put(&self, out: &mut Vec<u8>, omitted: usize) {
        let own = &self.bytes[self.entry.key.clone()];
        let key = match omitted.checked_sub(self.prefix.len()) {
            Some(more) => [&own[more..], &[]],
            None => [&self.prefix[omitted..], own],
        };
        match &self.entry.body {
            LeafEntryBody::Stub { reference, is_cut } => put_stub_of(out, key, *is_cut, *reference),
            LeafEntryBody::Inline(parts) => {
                if parts.prefix != 0 {
                    out.push(parts.prefix);
                    if parts.prefix & HAS_MORE != 0 {
                        out.push(parts.more);
                    }
                }
                let key_len = key[0].len() + key[1].len();
                let form = form_of(key_len);
                out.push(form << 4 | parts.value_form);
                if form == KEY_VARIABLE {
                    put_varint(out, key_len as u64);
                }
                parts.put_value_len(out);
                out.extend_from_slice(&self.bytes[parts.attributes_at..parts.key.start]);
                out.extend_from_slice(key[0]);
                out.extend_from_slice(key[1]);
                out.extend_from_slice(&self.bytes[parts.value.clone()]);
            }
        }
    }
}

/// Memory in which leaves are built.
#[derive(Default)]
pub(super) struct LeafBuilder {
    /// The complete leaf, once it has been built.
    pub(super) image: Vec<u8>,
    /// The header that [`Leaf::adjust`] has written.
    pub(super) header: Vec<u8>,
    records: Vec<u8>,
    groups: Vec<(u32, usize)>,
}

impl LeafBuilder {
    fn clear(&mut self) {
        self.image.clear();
        self.records.clear();
        self.groups.clear();
    }

    fn head_at(&self, at: usize) -> u32 {
        let key = entry(&self.records, at).key;
        (key_head(&self.records[key]) >> 32) as u32
    }

    /// Returns the first record that begins in the second half of a range.
    fn middle(&self, range: Range<usize>) -> Option<usize> {
        let mut at = range.start;
        while at < range.end {
            if at >= range.start + range.len() / 2 {
                return Some(at);
            }
            at += entry(&self.records, at).len;
        }
        None
    }

    fn regroup(&mut self) {
        self.groups.clear();
        let (mut at, mut group_at) = (0, 0);
        while at < self.records.len() {
            let next = at + entry(&self.records, at).len;
            if self.groups.is_empty() || next - group_at > GROUP_BYTES {
                let head = self.head_at(at);
                self.groups.push((head, at));
                group_at = at;
            }
            at = next;
        }
    }

    fn finish(&mut self, prefix: &[u8]) {
        let len = HEADER + PER_GROUP * self.groups.len() + prefix.len() + self.records.len();
        self.image.extend_from_slice(&[self.groups.len() as u8, prefix.len() as u8]);
        self.image.extend_from_slice(&(len as u16).to_le_bytes());
        for (head, _) in &self.groups {
            self.image.extend_from_slice(&head.to_le_bytes());
        }
        for (_, start) in &self.groups {
            self.image.extend_from_slice(&(*start as u16).to_le_bytes());
        }
        self.image.extend_from_slice(prefix);
        self.image.extend_from_slice(&self.records);
    }

    /// Builds a leaf of these records. There must be at least one.
    pub(super) fn build(&mut self, items: &[LeafItem<'_>]) {
        self.clear();
        let first = items[0].key();
        let shared = match items {
            [_] => first.len(),
            [.., last] => common_len(&first, &last.key()),
            [] => 0,
        };
        let shared = shared.min(PREFIX_MAX);
        for item in items {
            item.put(&mut self.records, shared);
        }
        self.regroup();
        self.finish(&first[..shared]);
    }

    /// Returns true if the built leaf is not too long, or if it has too few records to be split.
    pub(super) fn fits(&self, records: usize, len_max: usize) -> bool {
        self.image.len() <= len_max || records < LEAF_RECORDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_groups_after_removals_are_rebuilt() {
        let keys: Vec<String> = (0..600).map(|n| format!("key:{n:04}")).collect();
        let mut records = Vec::new();
        for key in &keys {
            let mut bytes = Vec::new();
            put_record(&mut bytes, key.as_bytes(), b"value", &Attributes::default());
            records.push(bytes);
        }
        let items: Vec<LeafItem<'_>> =
            records.iter().map(|bytes| LeafItem { bytes, entry: entry(bytes, 0), prefix: &[] }).collect();
        let mut new = LeafBuilder::default();
        new.build(&items);
        let find = |leaf: &Leaf<'_>, key: &str| leaf.find(key.as_bytes(), |_| unreachable!("none is cut"));
        for key in keys.iter().enumerate().filter(|(n, _)| n % 8 != 0).map(|(_, key)| key) {
            let mut image = new.image.clone();
            image.resize(image.len() + 8, 0);
            let leaf = Leaf::new(&image);
            let position = find(&leaf, key);
            let len = position.found.as_ref().expect("it is there").len;
            leaf.splice(&position, len, &[], &mut new);
        }
        let mut image = new.image.clone();
        image.resize(image.len() + 8, 0);
        let leaf = Leaf::new(&image);
        assert!(leaf.groups() <= 34, "{} groups of 75 records", leaf.groups());
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(find(&leaf, key).found.is_some(), n % 8 == 0, "{key}");
        }
    }
}
