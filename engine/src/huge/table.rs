//! Defines the huge records of a shard.

use super::stand_in::stand_in;
use crate::arena::MemoryBudget;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use todana_core::{Attributes, EncodingStatus, LONG_VALUE_LEN, Record, SharedBytes, Visitor, plain_value};

/// A record whose value has memory of its own.
pub(crate) struct HugeRecord {
    pub(crate) key: Box<[u8]>,
    pub(crate) hash: u64,
    pub(crate) value: SharedBytes,
    pub(crate) attributes: Attributes,
    use_state: ValueUseState,
}

/// The use of a value, by which compression selects values.
struct ValueUseState {
    /// True if the value was used since the last round of compression.
    is_used: AtomicBool,
    /// The number of rounds since the last use.
    idle_rounds: AtomicU8,
    /// True if the value does not become shorter.
    is_incompressible: AtomicBool,
}

/// A compressed value and its plain form, for visitors that read all bytes.
pub(crate) struct DecompressedValue {
    stored: SharedBytes,
    plain: SharedBytes,
}

impl HugeRecord {
    /// Returns the memory that a record takes from the budget besides its value.
    pub(super) fn committed(key_len: usize) -> usize {
        key_len + 128
    }

    pub(crate) fn new(key: Box<[u8]>, hash: u64, value: SharedBytes, attributes: Attributes) -> HugeRecord {
        let use_state = ValueUseState {
            is_used: AtomicBool::new(true),
            idle_rounds: AtomicU8::new(0),
            is_incompressible: AtomicBool::new(false),
        };
        HugeRecord { key, hash, value, attributes, use_state }
    }

    pub(crate) fn plain_size(&self) -> usize {
        self.key.len() + self.value.len() + if self.attributes.flags != 0 { 4 } else { 0 }
    }

    /// Returns the number of bytes of the key and the stored value.
    pub(crate) fn stored_size(&self) -> usize {
        self.key.len() + self.value.stored_len()
    }

    /// Returns the record. In place of a compressed value it shows a stand-in of the same length.
    pub(crate) fn record(&self) -> Record<'_> {
        let value = self.value.plain().unwrap_or_else(|| stand_in(self.value.len()));
        Record { value, shared: Some(&self.value), attributes: self.attributes }
    }

    /// Notes a use of the value.
    pub(crate) fn note_use(&self) {
        self.use_state.is_used.store(true, Ordering::Relaxed);
    }
}

impl DecompressedValue {
    pub(crate) fn new(stored: SharedBytes) -> DecompressedValue {
        let plain = plain_value(&stored);
        DecompressedValue { stored, plain }
    }

    /// Returns a record as a visitor is shown it: with its plain value, if the visitor reads that.
    /// Fails with the value that must be decompressed first, outside of the lock.
    pub(crate) fn shown<'a>(
        record: Record<'a>,
        visitor: &dyn Visitor,
        decompressed: Option<&'a DecompressedValue>,
    ) -> Result<Record<'a>, SharedBytes> {
        let Some(stored) = record.compressed() else { return Ok(record) };
        match decompressed {
            Some(known) if Arc::ptr_eq(&known.stored, stored) => {
                Ok(Record { value: known.plain.plain().unwrap_or_default(), ..record })
            }
            _ if visitor.reads_shared() => Ok(record),
            _ => Err(Arc::clone(stored)),
        }
    }
}

/// The work that a value needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueWork {
    Compress,
    Decompress,
}

/// The result of a search for values that need work.
pub(super) enum WorkSearch {
    Found {
        index: u32,
        value: SharedBytes,
        work: ValueWork,
    },
    /// The search continues at this index.
    ContinueAt(u32),
    End,
}

/// The maximum number of records that are searched under one lock.
const SEARCHED_MAX: usize = 512;
/// The lengths of values that are compressed. Shorter values belong to long keys. A request that
/// needs all bytes of a longer value would take milliseconds.
const COMPRESSED_LENS: RangeInclusive<usize> = LONG_VALUE_LEN..=1 << 20;

/// The use by which values are compressed and become plain again.
#[derive(Clone, Copy)]
pub(super) struct UseBounds {
    /// A plain value is compressed after this number of rounds without a use.
    pub(super) idle_min: u8,
    /// A compressed value becomes plain if it was decompressed this number of times in a round.
    pub(super) decompressions_min: u32,
}

/// The huge records of a shard, by index.
pub(crate) struct HugeTable {
    records: Vec<Option<Box<HugeRecord>>>,
    free: Vec<u32>,
    /// The bytes of keys and stored values.
    bytes: usize,
    compressed: CompressedTotals,
    /// The bytes of all plain values that were ever added.
    added_bytes: u64,
    /// The values of removed records. They are dropped outside of the lock, because the system
    /// takes long to free a GiB.
    removed: Vec<SharedBytes>,
    budget: Arc<MemoryBudget>,
}

impl HugeTable {
    pub(crate) fn new(budget: Arc<MemoryBudget>) -> HugeTable {
        HugeTable {
            records: Vec::new(),
            free: Vec::new(),
            bytes: 0,
            compressed: CompressedTotals::default(),
            added_bytes: 0,
            removed: Vec::new(),
            budget,
        }
    }

    /// Returns the total number of bytes of keys and stored values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of bytes of all plain values that were ever added.
    pub(super) fn added_bytes(&self) -> u64 {
        self.added_bytes
    }

    /// Adds the compressed values to the status of the engine.
    pub(crate) fn add_to(&self, status: &mut EncodingStatus) {
        status.compressed_values += self.compressed.values;
        status.compressed_plain_bytes += self.compressed.plain;
        status.compressed_stored_bytes += self.compressed.stored;
    }

    pub(crate) fn get(&self, index: u32) -> &HugeRecord {
        self.records[index as usize].as_deref().expect("a stub leads to its huge record")
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut HugeRecord {
        self.records[index as usize].as_deref_mut().expect("a stub leads to its huge record")
    }

    /// Adds a record and returns its index.
    pub(crate) fn insert(&mut self, record: HugeRecord) -> u32 {
        self.budget.commit_anyway(HugeRecord::committed(record.key.len()));
        self.bytes += record.stored_size();
        self.compressed.add(&record.value);
        self.added_bytes += record.value.plain().map_or(0, |value| value.len() as u64);
        let record = Some(Box::new(record));
        match self.free.pop() {
            Some(index) => {
                self.records[index as usize] = record;
                index
            }
            None => {
                self.records.push(record);
                self.records.len() as u32 - 1
            }
        }
    }

    /// Takes the values of removed records, so that the caller can drop them after releasing the
    /// lock.
    #[inline]
    pub(crate) fn take_removed(&mut self) -> Vec<SharedBytes> {
        std::mem::take(&mut self.removed)
    }

    /// Takes all records, so that the caller can drop them after releasing the lock.
    pub(crate) fn take(&mut self) -> HugeTable {
        let budget = Arc::clone(&self.budget);
        std::mem::replace(self, HugeTable::new(budget))
    }

    /// Takes a record out of the table.
    pub(crate) fn take_out(&mut self, index: u32) -> HugeRecord {
        let record = self.records[index as usize].take().expect("a stub leads to its huge record");
        self.bytes -= record.stored_size();
        self.compressed.subtract(&record.value);
        self.budget.release(HugeRecord::committed(record.key.len()));
        self.free.push(index);
        if self.free.len() == self.records.len() {
            (self.records, self.free) = (Vec::new(), Vec::new());
        }
        *record
    }

    /// Searches for a value that needs work, from an index on. Each record must be passed once in a
    /// round, because idle rounds are counted.
    pub(super) fn search_work(&self, from: u32, bounds: UseBounds) -> WorkSearch {
        for (index, record) in self.records.iter().enumerate().skip(from as usize) {
            if index - from as usize >= SEARCHED_MAX {
                return WorkSearch::ContinueAt(index as u32);
            }
            let Some(record) = record else { continue };
            let state = &record.use_state;
            let is_used = state.is_used.swap(false, Ordering::Relaxed);
            let is_compressed = record.value.plain().is_none();
            let work = if is_compressed {
                (record.value.take_decompressions() >= bounds.decompressions_min)
                    .then_some(ValueWork::Decompress)
            } else {
                let before = state.idle_rounds.load(Ordering::Relaxed);
                let idle = if is_used { 0 } else { before.saturating_add(1) };
                state.idle_rounds.store(idle, Ordering::Relaxed);
                // A list of values is read under locks, as a slice.
                let is_due = idle >= bounds.idle_min
                    && COMPRESSED_LENS.contains(&record.value.len())
                    && !state.is_incompressible.load(Ordering::Relaxed)
                    && !record.attributes.has_value_list;
                is_due.then_some(ValueWork::Compress)
            };
            if let Some(work) = work {
                let value = Arc::clone(&record.value);
                return WorkSearch::Found { index: index as u32, value, work };
            }
        }
        WorkSearch::End
    }

    fn record_of(&self, index: u32, value: &SharedBytes) -> Option<&HugeRecord> {
        let record = self.records.get(index as usize)?.as_deref()?;
        (Arc::ptr_eq(&record.value, value) && !record.attributes.has_value_list).then_some(record)
    }

    /// Replaces a value by another form of it, unless the record has another value by now, or a
    /// value to be compressed has been used meanwhile.
    pub(super) fn replace_value(&mut self, index: u32, old: &SharedBytes, new: &SharedBytes) {
        let Some(record) = self.record_of(index, old) else { return };
        if new.plain().is_none() && record.use_state.is_used.load(Ordering::Relaxed) {
            return;
        }
        self.compressed.subtract(old);
        self.compressed.add(new);
        self.bytes = self.bytes - old.stored_len() + new.stored_len();
        let record = self.get_mut(index);
        record.note_use();
        let old = std::mem::replace(&mut record.value, Arc::clone(new));
        self.removed.push(old);
    }

    /// Excludes a value from compression.
    pub(super) fn exclude(&self, index: u32, value: &SharedBytes) {
        if let Some(record) = self.record_of(index, value) {
            record.use_state.is_incompressible.store(true, Ordering::Relaxed);
        }
    }

    /// Removes a record. Its value is freed when its last user drops it. The table's own reference
    /// to the value is kept for `take_removed`.
    pub(crate) fn remove(&mut self, index: u32) {
        let record = self.take_out(index);
        self.removed.push(record.value);
    }
}

impl Drop for HugeTable {
    fn drop(&mut self) {
        for record in self.records.iter().flatten() {
            self.budget.release(HugeRecord::committed(record.key.len()));
        }
    }
}

/// The sums over the compressed values of a table.
#[derive(Default)]
struct CompressedTotals {
    values: u64,
    plain: u64,
    stored: u64,
}

impl CompressedTotals {
    fn add(&mut self, value: &SharedBytes) {
        if value.plain().is_none() {
            self.values += 1;
            self.plain += value.len() as u64;
            self.stored += value.stored_len() as u64;
        }
    }

    fn subtract(&mut self, value: &SharedBytes) {
        if value.plain().is_none() {
            self.values -= 1;
            self.plain -= value.len() as u64;
            self.stored -= value.stored_len() as u64;
        }
    }
}
