//! The front: changes that are not in LMDB yet, in the order of their keys.
//!
//! ```text
//! front = chunks in order; chunk = at most 128 entries in order, and beside them 8 bytes of each key: the first ones behind the prefix
//! prefix = what all keys begin with, as far as it is of use
//! entry = a record or a removal with its key, in one allocation; long values by reference
//! ```
//!
//! Two flat levels rather than a tree of many: some ten thousand changes are some hundred chunks, and the first bytes of the keys lie
//! side by side, so that a search touches few cache lines. Without the prefix the first 8 bytes of `user:17` and `user:18` are the same,
//! and a search looks at the keys themselves, each in a cache line of its own.

use super::record;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;
use todana_core::{LONG_VALUE_LEN, Record, SharedBytes};

/// A change of one record: what it is now, or that it is gone. Cloning it copies nothing.
#[derive(Clone)]
pub(super) enum Entry {
    /// `key length (4) | 1 for a removal (1) | key | record`
    Short(Arc<[u8]>),
    /// A record with a long value.
    Long(Arc<LongEntry>),
}

pub(super) struct LongEntry {
    key: Box<[u8]>,
    /// The record but for the value.
    header: Box<[u8]>,
    value: SharedBytes,
}

const SHORT_HEADER_LEN: usize = 5;
/// What an entry takes besides its bytes: its place in a chunk, counters, and what the allocator adds.
const ENTRY_OVERHEAD_BYTES: usize = 64;

impl Entry {
    /// `scratch` is some memory to build it in.
    pub(super) fn put(key: &[u8], record: Record<'_>, scratch: &mut Vec<u8>) -> Entry {
        scratch.clear();
        if record.value.len() >= LONG_VALUE_LEN {
            record::encode_header(&record.attributes, scratch);
            let whole = record.shared.filter(|shared| is_whole(shared, record.value));
            let value = whole.cloned().unwrap_or_else(|| Arc::new(Vec::from(record.value)));
            let (key, header) = (key.into(), scratch[..].into());
            return Entry::Long(Arc::new(LongEntry { key, header, value }));
        }
        Entry::begin(key, false, scratch);
        record::encode_header(&record.attributes, scratch);
        scratch.extend_from_slice(record.value);
        Entry::Short(scratch[..].into())
    }

    pub(super) fn removal(key: &[u8], scratch: &mut Vec<u8>) -> Entry {
        scratch.clear();
        Entry::begin(key, true, scratch);
        Entry::Short(scratch[..].into())
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
            Entry::Short(bytes) => Entry::short(bytes).1,
            Entry::Long(long) => &long.key,
        }
    }

    /// The record; `None` for a removal.
    #[inline]
    pub(super) fn record(&self) -> Option<Record<'_>> {
        match self {
            Entry::Short(bytes) => match Entry::short(bytes) {
                (true, ..) => None,
                (false, _, stored) => Some(record::decode(stored).expect("it was encoded here")),
            },
            Entry::Long(long) => {
                let (attributes, _) = record::decode_header(&long.header).expect("it was encoded here");
                let value = (*long.value).as_ref();
                Some(Record { shared: Some(&long.value), ..Record::new(value, attributes) })
            }
        }
    }

    /// The record as it is stored, in two parts; `None` for a removal.
    pub(super) fn parts(&self) -> Option<[&[u8]; 2]> {
        match self {
            Entry::Short(bytes) => match Entry::short(bytes) {
                (true, ..) => None,
                (false, _, stored) => Some([stored, &[]]),
            },
            Entry::Long(long) => Some([&long.header, (*long.value).as_ref()]),
        }
    }

    /// Bytes of the record as it is stored; 0 for a removal.
    pub(super) fn stored_len(&self) -> usize {
        self.parts().map_or(0, |parts| parts[0].len() + parts[1].len())
    }

    fn memory_bytes(&self) -> u64 {
        (self.key().len() + self.stored_len() + ENTRY_OVERHEAD_BYTES) as u64
    }
}

/// True if a value is all of what is shared, and not a part of it.
fn is_whole(shared: &SharedBytes, value: &[u8]) -> bool {
    std::ptr::eq((**shared).as_ref(), value)
}

/// The first bytes of what is left of a key, filled up with zeros: where those of two keys differ, the keys do in the same way.
#[inline]
fn first_of(rest: &[u8]) -> u64 {
    match rest.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut first = [0; 8];
            first[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(first)
        }
    }
}

/// What all keys begin with. Keys are compared by the eight bytes behind it first.
#[derive(Default)]
struct Prefix {
    bytes: [u8; PREFIX_MAX],
    len: usize,
}

/// It only becomes shorter, and each time all entries are gone through: so often at the most.
const PREFIX_MAX: usize = 32;

impl Prefix {
    /// As much as there is of a key.
    fn of(key: &[u8]) -> Prefix {
        let mut prefix = Prefix { bytes: [0; PREFIX_MAX], len: key.len().min(PREFIX_MAX) };
        prefix.bytes[..prefix.len].copy_from_slice(&key[..prefix.len]);
        prefix
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The eight bytes of a key by which it is looked for. One that does not begin as all the others do is before or behind them all: the
    /// lowest number or the highest, which others may have, too; then the keys themselves tell.
    #[inline]
    fn first_of(&self, key: &[u8]) -> u64 {
        match key.strip_prefix(self.bytes()) {
            Some(rest) => first_of(rest),
            None if key < self.bytes() => 0,
            None => u64::MAX,
        }
    }

    /// How much of it a key has.
    fn shared_with(&self, key: &[u8]) -> usize {
        self.bytes().iter().zip(key).take_while(|(one, other)| one == other).count()
    }
}

/// Two of half the size come of a chunk that has become so large.
const CHUNK_LEN: usize = 128;

struct Chunk {
    firsts: Vec<u64>,
    entries: Vec<Entry>,
}

impl Chunk {
    fn with_capacity() -> Chunk {
        Chunk { firsts: Vec::with_capacity(CHUNK_LEN), entries: Vec::with_capacity(CHUNK_LEN) }
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    /// How an entry's key compares with one of which these are the first bytes.
    #[inline]
    fn compare(&self, at: usize, first: u64, key: &[u8]) -> Ordering {
        self.firsts[at].cmp(&first).then_with(|| self.entries[at].key().cmp(key))
    }

    /// Where a key is, or would be.
    #[inline]
    fn search(&self, first: u64, key: &[u8]) -> Result<usize, usize> {
        let mut at = self.firsts.partition_point(|&other| other < first);
        // Mostly there is one at most; where many keys begin alike, they are halved again.
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

    fn insert(&mut self, at: usize, first: u64, entry: Entry) {
        self.firsts.insert(at, first);
        self.entries.insert(at, entry);
    }

    /// Takes everything from here on to a chunk of its own.
    fn split_off(&mut self, at: usize) -> Chunk {
        let mut new = Chunk::with_capacity();
        new.firsts.extend(self.firsts.drain(at..));
        new.entries.extend(self.entries.drain(at..));
        new
    }
}

/// Changes by key.
#[derive(Default)]
pub(super) struct Front {
    /// None is empty.
    chunks: Vec<Chunk>,
    /// The first bytes of the first key of each.
    firsts: Vec<u64>,
    prefix: Prefix,
    bytes: u64,
}

impl Front {
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Bytes of memory that it holds, about.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The chunk in which a key is or would be.
    #[inline]
    fn chunk_of(&self, first: u64, key: &[u8]) -> usize {
        let mut behind = self.firsts.partition_point(|&other| other < first);
        // Chunks that begin with the same bytes have to be asked themselves.
        if self.firsts.get(behind) == Some(&first) {
            let alike = self.firsts[behind..].partition_point(|&other| other == first);
            behind += self.chunks[behind..behind + alike]
                .partition_point(|chunk| chunk.compare(0, first, key) != Ordering::Greater);
        }
        behind.saturating_sub(1)
    }

    #[inline]
    pub(super) fn get(&self, key: &[u8]) -> Option<&Entry> {
        if self.chunks.is_empty() {
            return None;
        }
        let first = self.prefix.first_of(key);
        let chunk = &self.chunks[self.chunk_of(first, key)];
        Some(&chunk.entries[chunk.search(first, key).ok()?])
    }

    /// Enters a change, and gives back the one that it takes the place of.
    pub(super) fn put(&mut self, entry: Entry) -> Option<Entry> {
        self.bytes += entry.memory_bytes();
        if self.chunks.is_empty() {
            self.prefix = Prefix::of(entry.key());
            let first = self.prefix.first_of(entry.key());
            let mut chunk = Chunk::with_capacity();
            chunk.insert(0, first, entry);
            self.chunks.push(chunk);
            self.firsts.push(first);
            return None;
        }
        self.have_prefix_of(entry.key());
        let first = self.prefix.first_of(entry.key());
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
            // What comes in order leaves full chunks behind it.
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

    /// Makes the prefix so short that a key has it.
    #[inline]
    fn have_prefix_of(&mut self, key: &[u8]) {
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
                *first = self.prefix.first_of(entry.key());
            }
            *chunk_first = chunk.firsts[0];
        }
    }

    /// All changes in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.iter().flat_map(|chunk| &chunk.entries)
    }

    /// The first changes from a bound on upwards, or downwards, up to `count` of them.
    pub(super) fn next(&self, from: Bound<&[u8]>, upwards: bool, count: usize, into: &mut Vec<Entry>) {
        // Where the changes begin that are above the bound, or at it where that belongs to them.
        let (mut chunk, mut at) = match from {
            Bound::Unbounded if upwards => (0, 0),
            Bound::Unbounded => (self.chunks.len(), 0),
            Bound::Included(key) => self.seek(key, upwards),
            Bound::Excluded(key) => self.seek(key, !upwards),
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

    /// The place of the first change at a key, if `at_key`, or behind it.
    fn seek(&self, key: &[u8], at_key: bool) -> (usize, usize) {
        if self.chunks.is_empty() {
            return (0, 0);
        }
        let first = self.prefix.first_of(key);
        let chunk = self.chunk_of(first, key);
        let at = match self.chunks[chunk].search(first, key) {
            Ok(at) if !at_key => at + 1,
            Ok(at) | Err(at) => at,
        };
        // Behind the last entry of a chunk is the first one of the next.
        if at == self.chunks[chunk].len() { (chunk + 1, 0) } else { (chunk, at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use todana_core::Attributes;

    fn entry(key: &[u8], value: &[u8]) -> Entry {
        Entry::put(key, Record::new(value, Attributes::default()), &mut Vec::new())
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
            let (mut front, mut model) = (Front::default(), BTreeMap::new());
            for (n, key) in keys.iter().enumerate() {
                let value = n.to_string().into_bytes();
                let old = front.put(entry(key, &value)).map(|old| old.record().unwrap().value.to_vec());
                prop_assert_eq!(old, model.insert(key.clone(), value));
            }
            prop_assert!(front.iter().map(|entry| entry.key()).eq(model.keys().map(|key| &key[..])));
            let bytes: u64 = front.iter().map(Entry::memory_bytes).sum();
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
    fn what_comes_in_order_fills_its_chunks() {
        let mut front = Front::default();
        for n in 0..1280u32 {
            front.put(entry(&n.to_be_bytes(), b""));
        }
        assert_eq!(front.chunks.len(), 10);
    }

    #[test]
    fn a_long_value_is_kept_by_reference() {
        let shared: SharedBytes = Arc::new(vec![7u8; LONG_VALUE_LEN]);
        let value = (*shared).as_ref();
        let record = Record { shared: Some(&shared), ..Record::new(value, Attributes::default()) };
        let entry = Entry::put(b"key", record, &mut Vec::new());
        assert_eq!(entry.record().unwrap().value.as_ptr(), value.as_ptr());
        // A part of what is shared is copied.
        let larger: SharedBytes = Arc::new(vec![7u8; LONG_VALUE_LEN + 1]);
        let record = Record { shared: Some(&larger), ..Record::new(value, Attributes::default()) };
        assert_eq!(Entry::put(b"key", record, &mut Vec::new()).record().unwrap().value, value);
    }
}
