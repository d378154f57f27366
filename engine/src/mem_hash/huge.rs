//! Records above 64 KiB: each value in a mapping of its own, shared with whoever is still sending it.
//!
//! A value counts against the budget until the last of them lets go of it, not until its record is gone: readers
//! that never finish cannot make the process outgrow its limit.

use crate::arena::{Budget, NoRoom};
use crate::raw::{Mapping, SYSTEM_PAGE};
use std::sync::Arc;
use todana_core::{Attributes, Record, SharedBytes};

/// One huge record.
pub(crate) struct HugeRecord {
    pub(crate) key: Box<[u8]>,
    pub(crate) hash: u64,
    pub(crate) value: SharedBytes,
    pub(crate) attributes: Attributes,
}

impl HugeRecord {
    /// What a record takes from the budget besides its value.
    fn committed(key_len: usize) -> usize {
        key_len + 128
    }

    pub(crate) fn plain_size(&self) -> usize {
        self.key.len() + (*self.value).as_ref().len() + if self.attributes.flags != 0 { 4 } else { 0 }
    }

    pub(crate) fn record(&self) -> Record<'_> {
        Record { value: (*self.value).as_ref(), shared: Some(&self.value), attributes: self.attributes }
    }
}

/// A value and its share of the budget.
struct Value {
    bytes: ValueBytes,
    committed: usize,
    budget: Arc<Budget>,
}

enum ValueBytes {
    Mapped(Mapping, usize),
    /// The system limits how many mappings a process may have; the allocator still has memory then.
    Allocated(Vec<u8>),
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        match &self.bytes {
            ValueBytes::Mapped(mapping, len) => &mapping.bytes()[..*len],
            ValueBytes::Allocated(bytes) => bytes,
        }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.budget.release(self.committed);
    }
}

/// A copy of a large value on memory of its own.
pub(crate) fn share(value: &[u8], budget: &Arc<Budget>) -> Result<SharedBytes, NoRoom> {
    let committed = value.len().next_multiple_of(SYSTEM_PAGE);
    let no_room = NoRoom { bytes: committed };
    if !budget.commit(committed) {
        return Err(no_room);
    }
    let bytes = ValueBytes::Allocated(Vec::new());
    // From here on, whatever happens, the budget gets it back.
    let mut shared = Value { bytes, committed, budget: Arc::clone(budget) };
    match Mapping::new(value.len().max(1)) {
        Ok(mut mapping) => {
            mapping.bytes_mut()[..value.len()].copy_from_slice(value);
            shared.bytes = ValueBytes::Mapped(mapping, value.len());
        }
        Err(_) => {
            let mut copy = Vec::new();
            copy.try_reserve_exact(value.len()).map_err(|_| no_room)?;
            copy.extend_from_slice(value);
            shared.bytes = ValueBytes::Allocated(copy);
        }
    }
    Ok(Arc::new(shared))
}

/// The huge records of a shard, by index.
pub(crate) struct HugeTable {
    records: Vec<Option<Box<HugeRecord>>>,
    free: Vec<u32>,
    bytes: usize,
    budget: Arc<Budget>,
}

impl HugeTable {
    pub(crate) fn new(budget: Arc<Budget>) -> HugeTable {
        HugeTable { records: Vec::new(), free: Vec::new(), bytes: 0, budget }
    }

    /// Bytes of keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, index: u32) -> &HugeRecord {
        self.records[index as usize].as_deref().expect("a stub leads to its huge record")
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut HugeRecord {
        self.records[index as usize].as_deref_mut().expect("a stub leads to its huge record")
    }

    /// Adds a record.
    pub(crate) fn insert(&mut self, record: HugeRecord) -> u32 {
        self.budget.commit_anyway(HugeRecord::committed(record.key.len()));
        self.bytes += record.key.len() + (*record.value).as_ref().len();
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

    /// Removes a record; its value's memory goes with the last that holds it.
    pub(crate) fn remove(&mut self, index: u32) {
        let record = self.records[index as usize].take().expect("a stub leads to its huge record");
        self.bytes -= record.key.len() + (*record.value).as_ref().len();
        self.budget.release(HugeRecord::committed(record.key.len()));
        self.free.push(index);
    }
}

impl Drop for HugeTable {
    fn drop(&mut self) {
        for record in self.records.iter().flatten() {
            self.budget.release(HugeRecord::committed(record.key.len()));
        }
    }
}
