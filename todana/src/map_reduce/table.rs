//! Pairs in memory, their values grouped by key.
//!
//! ```text
//! slots:   a hash of open addressing; each 0, or the number of an entry + 1 and some bits of the key's hash
//! entries: where the key lies, and the first and last of its values
//! bytes:   key_len(4) key                  each key once
//!          next(4) value_len(4) value      each value, chained in the order in which they came
//! ```

use super::Combine;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::hash::{BuildHasher, RandomState};
use todana_core::Result;

const NONE: u32 = u32::MAX;
const HEAD: usize = 8;
/// Values and keys are found by 32 bits.
const BYTES_MAX: usize = (u32::MAX >> 1) as usize;

pub(super) struct Table {
    slots: Vec<u64>,
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    bytes_max: usize,
    entries_max: usize,
    secrets: RapidSecrets,
    /// Used again and again.
    combined: Vec<u8>,
}

/// Is shown a key and its values.
type SeeGroup<'s> = dyn FnMut(&[u8], &mut dyn Iterator<Item = &[u8]>) -> Result<()> + 's;

#[derive(Clone, Copy)]
struct Entry {
    key_at: u32,
    key_len: u32,
    first: u32,
    last: u32,
}

impl Table {
    /// Takes so much memory at most. It is had from the system as it is filled.
    pub(super) fn new(memory_max: usize) -> Table {
        // A quarter for slots and entries: enough for words. Whatever is full first counts.
        let entries_max = (memory_max / 4 / (size_of::<Entry>() + 2 * size_of::<u64>())).max(16);
        let slots = (entries_max * 3 / 2).next_power_of_two() / 2;
        let (entries_max, slots) = (entries_max.min(slots * 4 / 5), slots);
        // The rest, but half of it where values are combined into a second one.
        let bytes_max = (memory_max / 4 * 3 / 2).min(BYTES_MAX);
        Table {
            slots: vec![0; slots],
            entries: Vec::new(),
            bytes: Vec::new(),
            bytes_max,
            entries_max,
            // Of its own, so that nobody can choose keys that collide.
            secrets: RapidSecrets::seed(RandomState::new().hash_one(0)),
            combined: Vec::new(),
        }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        rapidhash_v3_seeded(key, &self.secrets)
    }

    /// False if there is no room. With `combine` a key's values become one at once, in the place of the first, as long as that is as long:
    /// sums never grow.
    #[inline]
    pub(super) fn push(&mut self, key: &[u8], value: &[u8], combine: Option<&Combine<'_>>) -> bool {
        let needed = key.len() + value.len() + HEAD;
        if needed > self.bytes_max.saturating_sub(self.bytes.len()) || self.entries.len() >= self.entries_max
        {
            return false;
        }
        let hash = self.hash(key);
        let mask = self.slots.len() - 1;
        // The upper half tells keys apart, the lower one says where to look.
        let tag = hash >> 32 << 32;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                let key_at = self.bytes.len() as u32;
                self.bytes.extend_from_slice(key);
                let first = self.put_value(value);
                self.entries.push(Entry { key_at, key_len: key.len() as u32, first, last: first });
                self.slots[at] = tag | self.entries.len() as u64;
                return true;
            }
            if slot >> 32 << 32 == tag {
                let index = (slot as u32 - 1) as usize;
                if self.key(&self.entries[index]) == key {
                    if combine.is_some_and(|combine| self.combine_into(index, key, value, combine)) {
                        return true;
                    }
                    let added = self.put_value(value);
                    let last = self.entries[index].last as usize;
                    self.bytes[last..last + 4].copy_from_slice(&added.to_le_bytes());
                    self.entries[index].last = added;
                    return true;
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// False if what comes of both values is not as long as the one that is there.
    fn combine_into(&mut self, index: usize, key: &[u8], value: &[u8], combine: &Combine<'_>) -> bool {
        let Entry { first, last, .. } = self.entries[index];
        if first != last {
            return false;
        }
        let mut combined = std::mem::take(&mut self.combined);
        combined.clear();
        let at = first as usize + HEAD;
        let mut is_as_long = false;
        if let Some(old) = self.values(first).next() {
            combine(key, &mut [old, value].into_iter(), &mut combined);
            is_as_long = combined.len() == old.len();
        }
        if is_as_long {
            self.bytes[at..at + combined.len()].copy_from_slice(&combined);
        }
        self.combined = combined;
        is_as_long
    }

    fn put_value(&mut self, value: &[u8]) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&NONE.to_le_bytes());
        self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(value);
        at
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.key_at as usize..][..entry.key_len as usize]
    }

    fn values(&self, first: u32) -> Chain<'_> {
        Chain { bytes: &self.bytes, next: first }
    }

    /// Makes one value of all of a key's, and room.
    pub(super) fn combine(&mut self, combine: &Combine<'_>) {
        let mut made = Table { bytes: Vec::with_capacity(self.bytes.len() / 2), ..self.empty_twin() };
        let mut combined = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let key = self.key(entry);
            let key_at = made.bytes.len() as u32;
            made.bytes.extend_from_slice(key);
            let mut values = self.values(entry.first);
            let first = if entry.first == entry.last {
                values.next().map(|value| made.put_value(value))
            } else {
                combined.clear();
                combine(key, &mut values, &mut combined);
                Some(made.put_value(&combined))
            };
            let first = first.unwrap_or(NONE);
            made.entries.push(Entry { key_at, first, last: first, ..self.entries[at] });
            if made.bytes.len() > self.bytes_max {
                // It makes more of it than there was.
                return;
            }
        }
        self.bytes = made.bytes;
        self.entries = made.entries;
    }

    /// Of the same keys by the same slots, which stay with the old one.
    fn empty_twin(&self) -> Table {
        Table {
            slots: Vec::new(),
            entries: Vec::with_capacity(self.entries.len()),
            bytes: Vec::new(),
            bytes_max: self.bytes_max,
            entries_max: self.entries_max,
            secrets: self.secrets,
            combined: Vec::new(),
        }
    }

    pub(super) fn has_much_room(&self) -> bool {
        self.bytes.len() < self.bytes_max / 2 && self.entries.len() < self.entries_max / 4 * 3
    }

    /// Puts the entries in the order of their keys. Nothing can be pushed until it is cleared.
    pub(super) fn sort(&mut self) {
        let bytes = &self.bytes;
        let key = |entry: &Entry| &bytes[entry.key_at as usize..][..entry.key_len as usize];
        self.entries.sort_unstable_by(|a, b| key(a).cmp(key(b)));
    }

    pub(super) fn each(&self, see: &mut SeeGroup<'_>) -> Result<()> {
        self.entries.iter().try_for_each(|entry| see(self.key(entry), &mut self.values(entry.first)))
    }

    /// The key and the values of an entry.
    pub(super) fn entry(&self, index: usize) -> Option<(&[u8], Chain<'_>)> {
        self.entries.get(index).map(|entry| (self.key(entry), self.values(entry.first)))
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(0);
        self.entries.clear();
        self.bytes.clear();
    }
}

/// The values of a key.
pub(super) struct Chain<'t> {
    bytes: &'t [u8],
    next: u32,
}

impl<'t> Iterator for Chain<'t> {
    type Item = &'t [u8];

    fn next(&mut self) -> Option<&'t [u8]> {
        if self.next == NONE {
            return None;
        }
        let (head, rest) = self.bytes[self.next as usize..].split_at(HEAD);
        let four = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        self.next = four(0);
        Some(&rest[..four(4) as usize])
    }
}
