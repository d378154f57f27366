//! Records above 64 KiB: each value in a mapping of its own, shared with whoever is still sending it.

use super::Budget;
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
    /// What a value of this length takes from the budget.
    pub(crate) fn committed(key_len: usize, value_len: usize) -> usize {
        key_len + value_len.next_multiple_of(SYSTEM_PAGE) + 128
    }

    pub(crate) fn plain_size(&self) -> usize {
        self.key.len() + (*self.value).as_ref().len() + if self.attributes.flags != 0 { 4 } else { 0 }
    }

    pub(crate) fn record(&self) -> Record<'_> {
        Record { value: (*self.value).as_ref(), shared: Some(&self.value), attributes: self.attributes }
    }

    fn own_committed(&self) -> usize {
        Self::committed(self.key.len(), (*self.value).as_ref().len())
    }
}

struct Mapped {
    mapping: Mapping,
    len: usize,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.mapping.bytes()[..self.len]
    }
}

/// A copy of a large value on memory of its own; `None` when the system gives none.
pub(crate) fn share(value: &[u8]) -> Option<SharedBytes> {
    // The system limits how many mappings a process may have; the allocator still has memory then.
    match Mapping::new(value.len().max(1)) {
        Ok(mut mapping) => {
            mapping.bytes_mut()[..value.len()].copy_from_slice(value);
            Some(Arc::new(Mapped { mapping, len: value.len() }))
        }
        Err(_) => {
            let mut copy = Vec::new();
            copy.try_reserve_exact(value.len()).ok()?;
            copy.extend_from_slice(value);
            Some(Arc::new(copy))
        }
    }
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

    /// Adds a record whose memory the caller has committed already.
    pub(crate) fn insert(&mut self, record: HugeRecord) -> u32 {
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

    /// Removes a record and releases its memory.
    pub(crate) fn remove(&mut self, index: u32) {
        let record = self.records[index as usize].take().expect("a stub leads to its huge record");
        self.bytes -= record.key.len() + (*record.value).as_ref().len();
        self.budget.release(record.own_committed());
        self.free.push(index);
    }
}

impl Drop for HugeTable {
    fn drop(&mut self) {
        for record in self.records.iter().flatten() {
            self.budget.release(record.own_committed());
        }
    }
}
