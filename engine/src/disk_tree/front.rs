//! Defines the front of a tree: the changes that are not in LMDB yet, in the order of their keys.
//!
//! ```text
//! front = chunks in order
//! chunk = at most 128 entries in order, and for each the first 8 bytes of its key after the prefix
//! prefix = the common beginning of all keys, up to a limit
//! entry = a record or a removal with its key, in one allocation; long values by reference
//! ```
//!
//! The front has two flat levels instead of the levels of a deeper tree. Ten thousand changes are a
//! hundred chunks, and the first bytes of the keys are adjacent, so that a search touches few cache
//! lines. Without the prefix, the first 8 bytes of keys such as `user:17` and `user:18` would be
//! equal, and a search would read the keys themselves, each in its own cache line.

use super::record;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;
use todana_core::{LONG_VALUE_LEN, Record, SharedBytes};

/// A change of one record: the new state of the record, or its removal. Cloning a change copies no
/// data.
#[derive(Clone)]
pub(super) enum FrontEntry {
    /// A removal, or a record with a short value: `key length (4) | 1 for a removal (1) | key |
    /// record`.
    Short(Arc<[u8]>),
    /// A record with a long value.
    Long(Arc<LongFrontEntry>),
}

pub(super) struct LongFrontEntry {
    key: Box<[u8]>,
    /// The record without its value.
    header: Box<[u8]>,
    value: SharedBytes,
}

const SHORT_HEADER_LEN: usize = 5;
/// The memory that an entry uses besides its bytes: its slot in a chunk, reference counts, and the
/// overhead of the allocator.
const ENTRY_OVERHEAD_BYTES: usize = 64;

impl FrontEntry {
    /// Creates the entry of a record. `scratch` is memory in which the entry is built.
    pub(super) fn put(key: &[u8], record: Record<'_>, scratch: &mut Vec<u8>) -> FrontEntry {
        scratch.clear();
        if record.value.len() >= LONG_VALUE_LEN {
            record::encode_header(&record.attributes, scratch);
            let whole = record.shared.filter(|shared| is_whole(shared, record.value));
            let value = whole.cloned().unwrap_or_else(|| Arc::new(Vec::from(record.value)));
            let (key, header) = (key.into(), scratch[..].into());
            return FrontEntry::Long(Arc::new(LongFrontEntry { key, header, value }));
        }
        FrontEntry::begin(key, false, scratch);
        record::encode_header(&record.attributes, scratch);
        scratch.extend_from_slice(record.value);
        FrontEntry::Short(scratch[..].into())
    }

    pub(super) fn removal(key: &[u8], scratch: &mut Vec<u8>) -> FrontEntry {
        scratch.clear();
        FrontEntry::begin(key, true, scratch);
        FrontEntry::Short(scratch[..].into())
    }

    fn begin(key: &[u8], removes: bool, scratch: &mut Vec<u8>) {
        let key_len = u32::try_from(key.len()).expect("keys are bounded");
        scratch.extend_from_slice(&key_len.to_le_bytes());
        scratch.push(u8::from(removes));
        scratch.extend_from_slice(key);
    }

    #[inline]
    fn short(bytes: &[u8]) -> (bool, &[u8], &[u8]) {
        let key_len = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")) as usize;
        let (key, record) = bytes[SHORT_HEADER_LEN..].split_at(key_len);
        (bytes[4] != 0, key, record)
    }

    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        match self {
            FrontEntry::Short(bytes) => FrontEntry::short(bytes).1,
            FrontEntry::Long(long) => &long.key,
        }
    }

    /// Returns the record, or `None` if the entry is a removal.
    #[inline]
    pub(super) fn record(&self) -> Option<Record<'_>> {
        match self {
            FrontEntry::Short(bytes) => match FrontEntry::short(bytes) {
                (true, ..) => None,
                (false, _, stored) => Some(record::decode(stored).expect("it was encoded here")),
            },
            FrontEntry::Long(long) => {
                let (attributes, _) = record::decode_header(&long.header).expect("it was encoded here");
                let value = long.value.plain().unwrap_or_default();
                Some(Record { shared: Some(&long.value), ..Record::new(value, attributes) })
            }
        }
    }

    /// Returns the record as it is stored, in two parts. Returns `None` if the entry is a removal.
    pub(super) fn parts(&self) -> Option<[&[u8]; 2]> {
        match self {
            FrontEntry::Short(bytes) => match FrontEntry::short(bytes) {
                (true, ..) => None,
                (false, _, stored) => Some([stored, &[]]),
            },
            FrontEntry::Long(long) => Some([&long.header, long.value.plain().unwrap_or_default()]),
        }
    }

    /// Returns the length of the stored record, or 0 if the entry is a removal.
    pub(super) fn stored_len(&self) -> usize {
        self.parts().map_or(0, |parts| parts[0].len() + parts[1].len())
    }

    fn memory_bytes(&self) -> u64 {
        (self.key().len() + self.stored_len() + ENTRY_OVERHEAD_BYTES) as u64
    }
}

/// Returns true if a value is the complete shared memory rather than a part of it.
fn is_whole(shared: &SharedBytes, value: &[u8]) -> bool {
    shared.plain().is_some_and(|bytes| std::ptr::eq(bytes, value))
}

/// Returns the first bytes of the remainder of a key, padded with zeros, as a number. If the
/// numbers of two keys differ, their order is the order of the keys.
#[inline]
fn key_head(rest: &[u8]) -> u64 {
    match rest.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut first = [0; 8];
            first[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(first)
        }
    }
}

/// The common beginning of all keys. Keys are first compared by the eight bytes that follow the
/// prefix.
#[derive(Default)]
struct KeyPrefix {
    bytes: [u8; PREFIX_MAX],
    len: usize,
}

/// The maximum length of the prefix. The prefix only becomes shorter, and each time all entries are
/// updated, so this limit also bounds the number of updates.
const PREFIX_MAX: usize = 32;

impl KeyPrefix {
    /// Returns the longest prefix that a key allows.
    fn of(key: &[u8]) -> KeyPrefix {
        let mut prefix = KeyPrefix { bytes: [0; PREFIX_MAX], len: key.len().min(PREFIX_MAX) };
        prefix.bytes[..prefix.len].copy_from_slice(&key[..prefix.len]);
        prefix
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the eight bytes of a key by which it is searched for. A key without the prefix lies
    /// before or after all keys with the prefix, so its result is the lowest or the highest number.
    /// If several keys have the same number, the keys themselves are compared.
    #[inline]
    fn key_head(&self, key: &[u8]) -> u64 {
        match key.strip_prefix(self.bytes()) {
            Some(rest) => key_head(rest),
            None if key < self.bytes() => 0,
            None => u64::MAX,
        }
    }

    /// Returns the length of the part of the prefix with which a key begins.
    fn shared_with(&self, key: &[u8]) -> usize {
        self.bytes().iter().zip(key).take_while(|(one, other)| one == other).count()
    }
}

/// The maximum number of entries in a chunk. A chunk with more entries is split in two.
const CHUNK_LEN: usize = 128;

struct FrontChunk {
    firsts: Vec<u64>,
    entries: Vec<FrontEntry>,
}

impl FrontChunk {
    fn with_capacity() -> FrontChunk {
        FrontChunk { firsts: Vec::with_capacity(CHUNK_LEN), entries: Vec::with_capacity(CHUNK_LEN) }
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    /// Compares the key of an entry with `key`. `first` is the number of the first bytes of `key`.
    #[inline]
    fn compare(&self, at: usize, first: u64, key: &[u8]) -> Ordering {
        self.firsts[at].cmp(&first).then_with(|| self.entries[at].key().cmp(key))
    }

    /// Returns the index of a key, or the index at which the key would be inserted.
    #[inline]
    fn search(&self, first: u64, key: &[u8]) -> Result<usize, usize> {
        let mut at = self.firsts.partition_point(|&other| other < first);
        // Usually there is at most one candidate. If many keys have equal first bytes, search among
        // these keys by bisection.
        if self.firsts.get(at) != Some(&first) {
            return Err(at);
        }
        let mut end = at + self.firsts[at..].partition_point(|&other| other == first);
        while at < end {
            let middle = at.midpoint(end);
            match self.entries[middle].key().cmp(key) {
                Ordering::Less => at = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => end = middle,
            }
        }
        Err(at)
    }

    fn insert(&mut self, at: usize, first: u64, entry: FrontEntry) {
        self.firsts.insert(at, first);
        self.entries.insert(at, entry);
    }

    /// Moves the entries from `at` on to a new chunk.
    fn split_off(&mut self, at: usize) -> FrontChunk {
        let mut new = FrontChunk::with_capacity();
        new.firsts.extend(self.firsts.drain(at..));
        new.entries.extend(self.entries.drain(at..));
        new
    }
}

/// A set of changes, one for each key.
#[derive(Default)]
pub(super) struct ChangeFront {
    /// The chunks in order. No chunk is empty.
    chunks: Vec<FrontChunk>,
    /// The first bytes of the first key of each chunk.
    firsts: Vec<u64>,
    prefix: KeyPrefix,
    bytes: u64,
}

impl ChangeFront {
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the approximate memory that the changes use.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the index of the chunk that contains a key or would contain it.
    #[inline]
    fn chunk_of(&self, first: u64, key: &[u8]) -> usize {
        let mut position_after = self.firsts.partition_point(|&other| other < first);
        // Chunks that begin with equal bytes are compared by their keys.
        if self.firsts.get(position_after) == Some(&first) {
            let alike = self.firsts[position_after..].partition_point(|&other| other == first);
            position_after += self.chunks[position_after..position_after + alike]
                .partition_point(|chunk| chunk.compare(0, first, key) != Ordering::Greater);
        }
        position_after.saturating_sub(1)
    }

    #[inline]
    pub(super) fn get(&self, key: &[u8]) -> Option<&FrontEntry> {
        if self.chunks.is_empty() {
            return None;
        }
        let first = self.prefix.key_head(key);
        let chunk = &self.chunks[self.chunk_of(first, key)];
        Some(&chunk.entries[chunk.search(first, key).ok()?])
    }

    /// Adds a change and returns the change that it replaces.
    pub(super) fn put(&mut self, entry: FrontEntry) -> Option<FrontEntry> {
        self.bytes += entry.memory_bytes();
        if self.chunks.is_empty() {
            self.prefix = KeyPrefix::of(entry.key());
            let first = self.prefix.key_head(entry.key());
            let mut chunk = FrontChunk::with_capacity();
            chunk.insert(0, first, entry);
            self.chunks.push(chunk);
            self.firsts.push(first);
            return None;
        }
        self.ensure_prefix_of(entry.key());
        let first = self.prefix.key_head(entry.key());
        let mut index = self.chunk_of(first, entry.key());
        let mut at = match self.chunks[index].search(first, entry.key()) {
            Ok(at) => {
                let old = std::mem::replace(&mut self.chunks[index].entries[at], entry);
                self.bytes -= old.memory_bytes();
                return Some(old);
            }
            Err(at) => at,
        };
        if self.chunks[index].len() >= CHUNK_LEN {
            // Keys that arrive in ascending order leave full chunks.
            let is_next = at == CHUNK_LEN && index + 1 == self.chunks.len();
            let kept = if is_next { at } else { CHUNK_LEN / 2 };
            let new = self.chunks[index].split_off(kept);
            self.firsts.insert(index + 1, new.firsts.first().copied().unwrap_or(first));
            self.chunks.insert(index + 1, new);
            if at > kept || is_next {
                (index, at) = (index + 1, at - kept);
            }
        }
        self.chunks[index].insert(at, first, entry);
        self.firsts[index] = self.chunks[index].firsts[0];
        None
    }

    /// Shortens the prefix until the key begins with it.
    #[inline]
    fn ensure_prefix_of(&mut self, key: &[u8]) {
        let shared = self.prefix.shared_with(key);
        if shared < self.prefix.len {
            self.shorten_prefix(shared);
        }
    }

    #[cold]
    fn shorten_prefix(&mut self, len: usize) {
        self.prefix.len = len;
        for (chunk, chunk_first) in self.chunks.iter_mut().zip(&mut self.firsts) {
            for (entry, first) in chunk.entries.iter().zip(&mut chunk.firsts) {
                *first = self.prefix.key_head(entry.key());
            }
            *chunk_first = chunk.firsts[0];
        }
    }

    /// Returns all changes in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &FrontEntry> {
        self.chunks.iter().flat_map(|chunk| &chunk.entries)
    }

    /// Appends up to `count` changes to `into`: the next ones from a bound on, upwards or
    /// downwards.
    pub(super) fn next(&self, from: Bound<&[u8]>, upwards: bool, count: usize, into: &mut Vec<FrontEntry>) {
        // This is the position of the first change after the bound, or of the change at the bound
        // if the bound is included.
        let (mut chunk, mut at) = match from {
            Bound::Unbounded if upwards => (0, 0),
            Bound::Unbounded => (self.chunks.len(), 0),
            Bound::Included(key) => self.position_of(key, upwards),
            Bound::Excluded(key) => self.position_of(key, !upwards),
        };
        for _ in 0..count {
            if upwards {
                let Some(entries) = self.chunks.get(chunk).map(|chunk| &chunk.entries) else { return };
                into.push(entries[at].clone());
                at += 1;
                if at == entries.len() {
                    (chunk, at) = (chunk + 1, 0);
                }
            } else {
                if at == 0 {
                    if chunk == 0 {
                        return;
                    }
                    chunk -= 1;
                    at = self.chunks[chunk].len();
                }
                at -= 1;
                into.push(self.chunks[chunk].entries[at].clone());
            }
        }
    }

    /// Returns a position of the first change whose key is not less than `key`. With `at_key`
    /// false, a change at `key` itself is skipped.
    fn position_of(&self, key: &[u8], at_key: bool) -> (usize, usize) {
        if self.chunks.is_empty() {
            return (0, 0);
        }
        let first = self.prefix.key_head(key);
        let chunk = self.chunk_of(first, key);
        let at = match self.chunks[chunk].search(first, key) {
            Ok(at) if !at_key => at + 1,
            Ok(at) | Err(at) => at,
        };
        // The position after the last entry of a chunk is given as the first entry of the next
        // chunk.
        if at == self.chunks[chunk].len() { (chunk + 1, 0) } else { (chunk, at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use todana_core::Attributes;

    fn entry(key: &[u8], value: &[u8]) -> FrontEntry {
        FrontEntry::put(key, Record::new(value, Attributes::default()), &mut Vec::new())
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            (0u32..500).prop_map(|n| format!("{n}").into_bytes()),
            (0u32..500).prop_map(|n| format!("with the same beginning {n}").into_bytes()),
            proptest::collection::vec(0u8..2, 0..12),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn agrees_with_a_map(
            keys in proptest::collection::vec(key(), 0..1500),
            asked in proptest::collection::vec((key(), 0..3, any::<bool>()), 40),
        ) {
            let (mut front, mut model) = (ChangeFront::default(), BTreeMap::new());
            for (n, key) in keys.iter().enumerate() {
                let value = n.to_string().into_bytes();
                let old = front.put(entry(key, &value)).map(|old| old.record().unwrap().value.to_vec());
                prop_assert_eq!(old, model.insert(key.clone(), value));
            }
            prop_assert!(front.iter().map(|entry| entry.key()).eq(model.keys().map(|key| &key[..])));
            let bytes: u64 = front.iter().map(FrontEntry::memory_bytes).sum();
            prop_assert_eq!(front.bytes(), bytes);
            for (key, bound, upwards) in &asked {
                let found = front.get(key).map(|entry| entry.record().unwrap().value.to_vec());
                prop_assert_eq!(found.as_ref(), model.get(key));
                let bound = match bound {
                    0 => Bound::Included(&key[..]),
                    1 => Bound::Excluded(&key[..]),
                    _ => Bound::Unbounded,
                };
                let mut found = Vec::new();
                front.next(bound, *upwards, 300, &mut found);
                let found: Vec<_> = found.iter().map(|entry| entry.key().to_vec()).collect();
                let expected: Vec<_> = match upwards {
                    true => model.range::<[u8], _>((bound, Bound::Unbounded)).take(300).map(|at| at.0.clone()).collect(),
                    false => model.range::<[u8], _>((Bound::Unbounded, bound)).rev().take(300).map(|at| at.0.clone()).collect(),
                };
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn ascending_keys_fill_their_chunks() {
        let mut front = ChangeFront::default();
        for n in 0..1280u32 {
            front.put(entry(&n.to_be_bytes(), b""));
        }
        assert_eq!(front.chunks.len(), 10);
    }

    #[test]
    fn a_long_value_is_kept_by_reference() {
        let shared: SharedBytes = Arc::new(vec![7u8; LONG_VALUE_LEN]);
        let value = shared.plain().unwrap();
        let record = Record { shared: Some(&shared), ..Record::new(value, Attributes::default()) };
        let entry = FrontEntry::put(b"key", record, &mut Vec::new());
        assert_eq!(entry.record().unwrap().value.as_ptr(), value.as_ptr());
        // A value that is only a part of the shared memory is copied.
        let larger: SharedBytes = Arc::new(vec![7u8; LONG_VALUE_LEN + 1]);
        let record = Record { shared: Some(&larger), ..Record::new(value, Attributes::default()) };
        assert_eq!(FrontEntry::put(b"key", record, &mut Vec::new()).record().unwrap().value, value);
    }
}
