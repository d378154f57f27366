//! Pairs in memory, with their values grouped by key.
//!
//! ```text
//! slots:  a hash table with open addressing; each slot is 0 if it is empty,
//!         otherwise the offset of a group + 1, and bits of the hash of its key
//! groups: the offsets of all groups; after sorting, in the order of their keys
//! bytes:  key_len(4) last_value(4) key   a group, one for each key
//!         next(4) value_len(4) value     a value; the first one follows its key, the others are
//!                                        linked by `next` in order
//! ```
//!
//! Pairs wait until there are several of them. Then the memory that all of them need is prefetched
//! before the first is processed. A table of words is larger than the processor's caches, so one
//! common wait is shorter than many (word count of 64 MB, 2026-11-21: 0.88 s of CPU time instead of
//! 1.5 s).

use super::CombineValues;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use todana_core::Result;

const NONE: u32 = u32::MAX;
/// The length of the fields before each value.
const HEAD: usize = 8;
/// The length of the fields before each key.
const GROUP_HEAD: usize = 8;
/// The most bytes of keys and values, because their offsets have 32 bits.
const BYTES_MAX: usize = (u32::MAX >> 1) as usize;
/// The number of waiting pairs that are processed together. They are processed earlier if they have
/// more than `WAITING_LEN_MAX` bytes.
const WAITING_MAX: usize = 16;
const WAITING_LEN_MAX: usize = 128;

pub(super) struct PairTable {
    slots: Vec<u64>,
    groups: Vec<u32>,
    bytes: Vec<u8>,
    bytes_max: usize,
    groups_max: usize,
    secrets: RapidSecrets,
    waiting: Vec<WaitingPair>,
    waiting_bytes: Vec<u8>,
    /// A buffer for combined values.
    combined: Vec<u8>,
}

/// Receives a key and its values.
type VisitGroup<'s> = dyn FnMut(&[u8], &mut dyn Iterator<Item = &[u8]>) -> Result<()> + 's;

/// A waiting pair. Its fields are offsets in the common bytes of all waiting pairs.
struct WaitingPair {
    hash: u64,
    key_at: u32,
    value_at: u32,
    end: u32,
}

impl PairTable {
    /// Creates a table that uses at most this much memory. The system allocates the memory as the
    /// table is filled.
    pub(super) fn new(memory_max: usize) -> PairTable {
        // Slots and groups get a quarter of the memory, which is enough for words. The table is
        // full when either part is full.
        let groups_max = (memory_max / 4 / (size_of::<u32>() + 2 * size_of::<u64>())).max(16);
        let slots = (groups_max * 3 / 2).next_power_of_two() / 2;
        let (groups_max, slots) = (groups_max.min(slots * 4 / 5), slots);
        // Keys and values get the rest. If values are combined, half of it is for the second table
        // into which they are combined.
        let bytes_max = (memory_max / 4 * 3 / 2).min(BYTES_MAX);
        PairTable {
            slots: vec![0; slots],
            groups: Vec::new(),
            bytes: Vec::new(),
            bytes_max,
            groups_max,
            // Each table has a random seed, so that nobody can choose keys whose hashes collide.
            secrets: RapidSecrets::seed(RandomState::new().hash_one(0)),
            waiting: Vec::with_capacity(WAITING_MAX),
            waiting_bytes: Vec::with_capacity(WAITING_MAX * WAITING_LEN_MAX),
            combined: Vec::new(),
        }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        rapidhash_v3_seeded(key, &self.secrets)
    }

    /// Adds a pair, or lets it wait. Returns false if there is no room for this pair or for a
    /// waiting one. The waiting pairs then continue to wait, and this pair must be pushed again.
    #[inline]
    pub(super) fn push(&mut self, key: &[u8], value: &[u8], combine: Option<&CombineValues<'_>>) -> bool {
        if key.len() + value.len() > WAITING_LEN_MAX {
            return self.put(self.hash(key), key, value, combine);
        }
        if self.waiting.len() == WAITING_MAX && !self.add_waiting(combine) {
            return false;
        }
        let hash = self.hash(key);
        let key_at = self.waiting_bytes.len() as u32;
        self.waiting_bytes.extend_from_slice(key);
        let value_at = self.waiting_bytes.len() as u32;
        self.waiting_bytes.extend_from_slice(value);
        self.waiting.push(WaitingPair { hash, key_at, value_at, end: self.waiting_bytes.len() as u32 });
        true
    }

    /// Adds the waiting pairs. Returns false if there is no room for one of them. That pair and all
    /// after it continue to wait.
    pub(super) fn add_waiting(&mut self, combine: Option<&CombineValues<'_>>) -> bool {
        let (waiting, bytes) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.waiting_bytes));
        self.prefetch(&waiting);
        let taken = waiting.iter().take_while(|pair| {
            let (key, rest) = bytes[pair.key_at as usize..].split_at((pair.value_at - pair.key_at) as usize);
            self.put(pair.hash, key, &rest[..(pair.end - pair.value_at) as usize], combine)
        });
        let taken = taken.count();
        let are_all_taken = taken == waiting.len();
        (self.waiting, self.waiting_bytes) = (waiting, bytes);
        self.waiting.drain(..taken);
        if are_all_taken {
            self.waiting_bytes.clear();
        }
        are_all_taken
    }

    /// Reads the memory that the pairs need: first the slots of all pairs, and then their groups.
    /// So the processor waits for all slots together, and for all groups together.
    fn prefetch(&self, waiting: &[WaitingPair]) {
        let mask = self.slots.len() - 1;
        let mut groups = [0; WAITING_MAX];
        for (group, pair) in groups.iter_mut().zip(waiting) {
            *group = self.slots[pair.hash as usize & mask] as u32;
        }
        let mut read = 0;
        for at in groups {
            // A group may lie in two cache lines, so both its ends are read.
            for at in [at as usize, at as usize + 31] {
                read ^= self.bytes.get(at).copied().unwrap_or_default();
            }
        }
        black_box(read);
    }

    /// Adds a pair. Returns false if there is no room. With `combine`, the value is combined with
    /// the first value of its key at once and replaces it, if the length stays the same. So sums
    /// need no more memory.
    #[inline]
    fn put(&mut self, hash: u64, key: &[u8], value: &[u8], combine: Option<&CombineValues<'_>>) -> bool {
        let needed = key.len() + value.len() + HEAD + GROUP_HEAD;
        if needed > self.bytes_max.saturating_sub(self.bytes.len()) || self.groups.len() >= self.groups_max {
            return false;
        }
        let mask = self.slots.len() - 1;
        // The upper half of the hash distinguishes keys, and the lower half selects the slot.
        let tag = hash >> 32 << 32;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                let group = self.put_group(key);
                let first = self.put_value(value);
                self.set_last(group, first);
                self.slots[at] = tag | u64::from(group + 1);
                return true;
            }
            if slot >> 32 << 32 == tag {
                let group = slot as u32 - 1;
                if self.key(group) == key {
                    if combine.is_some_and(|combine| self.combine_into(group, key, value, combine)) {
                        return true;
                    }
                    let added = self.put_value(value);
                    let last = self.last(group) as usize;
                    self.bytes[last..last + 4].copy_from_slice(&added.to_le_bytes());
                    self.set_last(group, added);
                    return true;
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Combines a value with the first value of a group. Returns false if the result has another
    /// length.
    fn combine_into(&mut self, group: u32, key: &[u8], value: &[u8], combine: &CombineValues<'_>) -> bool {
        let first = self.first(group, key.len());
        if first != self.last(group) {
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

    /// Adds a group without a value.
    fn put_group(&mut self, key: &[u8]) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&NONE.to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.groups.push(at);
        at
    }

    fn put_value(&mut self, value: &[u8]) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&NONE.to_le_bytes());
        self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(value);
        at
    }

    fn number(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap_or_default())
    }

    fn key(&self, group: u32) -> &[u8] {
        let at = group as usize;
        &self.bytes[at + GROUP_HEAD..][..self.number(at) as usize]
    }

    /// Returns the offset of the first value of a group. `key_len` is the length of its key.
    fn first(&self, group: u32, key_len: usize) -> u32 {
        group + (GROUP_HEAD + key_len) as u32
    }

    fn last(&self, group: u32) -> u32 {
        self.number(group as usize + 4)
    }

    fn set_last(&mut self, group: u32, last: u32) {
        self.bytes[group as usize + 4..][..4].copy_from_slice(&last.to_le_bytes());
    }

    fn values(&self, first: u32) -> ValueChain<'_> {
        ValueChain { bytes: &self.bytes, next: first }
    }

    fn group(&self, group: u32) -> (&[u8], ValueChain<'_>) {
        let key = self.key(group);
        // A group has no value if combining has left none.
        let first = if self.last(group) == NONE { NONE } else { self.first(group, key.len()) };
        (key, self.values(first))
    }

    /// Combines the values of each key into one, which frees memory.
    pub(super) fn combine(&mut self, combine: &CombineValues<'_>) {
        let mut combined_table = self.empty_copy();
        let mut combined = Vec::new();
        for &group in &self.groups {
            let (key, mut values) = self.group(group);
            let its = combined_table.put_group(key);
            let last = if self.first(group, key.len()) == self.last(group) {
                values.next().map(|value| combined_table.put_value(value))
            } else {
                combined.clear();
                combine(key, &mut values, &mut combined);
                Some(combined_table.put_value(&combined))
            };
            combined_table.set_last(its, last.unwrap_or(NONE));
            if combined_table.bytes.len() > self.bytes_max {
                // The combined values need more memory than the values had, so the table stays as
                // it is.
                return;
            }
        }
        self.bytes = combined_table.bytes;
        self.groups = combined_table.groups;
        self.fill_slots();
    }

    /// Returns an empty table with the same hash seed and without slots.
    fn empty_copy(&self) -> PairTable {
        PairTable {
            slots: Vec::new(),
            groups: Vec::with_capacity(self.groups.len()),
            bytes: Vec::with_capacity(self.bytes.len() / 2),
            bytes_max: self.bytes_max,
            groups_max: self.groups_max,
            secrets: self.secrets,
            waiting: Vec::new(),
            waiting_bytes: Vec::new(),
            combined: Vec::new(),
        }
    }

    /// Fills the slots again after the groups have moved.
    fn fill_slots(&mut self) {
        self.slots.fill(0);
        let mask = self.slots.len() - 1;
        for index in 0..self.groups.len() {
            let group = self.groups[index];
            let hash = self.hash(self.key(group));
            let mut at = hash as usize & mask;
            while self.slots[at] != 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = hash >> 32 << 32 | u64::from(group + 1);
        }
    }

    pub(super) fn has_much_room(&self) -> bool {
        self.bytes.len() < self.bytes_max / 2 && self.groups.len() < self.groups_max / 4 * 3
    }

    /// Sorts the groups by key. Until the table is cleared, no pairs may be added.
    pub(super) fn sort(&mut self) {
        let mut groups = std::mem::take(&mut self.groups);
        groups.sort_unstable_by(|&a, &b| self.key(a).cmp(self.key(b)));
        self.groups = groups;
    }

    pub(super) fn each(&self, see: &mut VisitGroup<'_>) -> Result<()> {
        self.groups.iter().try_for_each(|&group| {
            let (key, mut values) = self.group(group);
            see(key, &mut values)
        })
    }

    /// Returns the key and the values of a group.
    pub(super) fn entry(&self, index: usize) -> Option<(&[u8], ValueChain<'_>)> {
        self.groups.get(index).map(|&group| self.group(group))
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(0);
        self.groups.clear();
        self.bytes.clear();
    }
}

/// Iterates over the values of a key.
pub(super) struct ValueChain<'t> {
    bytes: &'t [u8],
    next: u32,
}

impl<'t> Iterator for ValueChain<'t> {
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
