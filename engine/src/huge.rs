//! Records above 64 KiB: each value in a mapping of its own, shared with whoever is still sending it.
//!
//! A value counts against the budget until the last of them lets go of it, not until its record is gone: readers
//! that never finish cannot make the process outgrow its limit. One that is still being received counts by what has
//! come, and becomes the record's value without a copy.
//!
//! Both engines in memory keep long values so; what they make room by is their own.

use crate::arena::{Budget, NoRoom};
use crate::raw::{Mapping, SYSTEM_PAGE};
use crate::record::VALUE_LEN_MAX;
use std::any::Any;
use std::sync::Arc;
use todana_core::{Attributes, Error, ErrorKind, Record, Result, SharedBytes, ValueBuffer};

/// Another thread may take the room that was made, or the record need more than the first thing that lacked room; after
/// some tries it is fair to say that there is none.
pub(crate) const TRIES: usize = 16;

pub(crate) fn full() -> Error {
    Error::new(ErrorKind::Full, "memory limit reached")
}

/// What an engine answers to [`todana_core::Engine::buffer`]; `close_ranks` packs what it holds until so many bytes would fit.
pub(crate) fn open(
    budget: &Arc<Budget>,
    len: usize,
    close_ranks: &dyn Fn(usize) -> bool,
) -> Result<Box<dyn ValueBuffer>> {
    if len > VALUE_LEN_MAX {
        return Err(Error::new(ErrorKind::Invalid, format!("value of {len} bytes is too long")));
    }
    let is_too_much = len as u64 > budget.record_max()
        || (budget.refuses() && !budget.fits(len as u64) && !close_ranks(len));
    if is_too_much {
        return Err(full());
    }
    match HugeBuffer::new(len, budget) {
        Ok(buffer) => Ok(Box::new(buffer)),
        Err(_) => Err(full()),
    }
}

/// What an engine answers to [`todana_core::Engine::room`]; `makes_room` is given the bytes that are missing and how often it
/// has been asked before.
pub(crate) fn room<'b>(
    budget: &Arc<Budget>,
    buffer: &'b mut dyn ValueBuffer,
    len: usize,
    makes_room: &dyn Fn(usize, usize) -> bool,
) -> Result<&'b mut [u8]> {
    let buffer: &mut dyn Any = buffer;
    let Some(buffer) = buffer.downcast_mut::<HugeBuffer>().filter(|buffer| buffer.is_of(budget)) else {
        return Err(Error::new(ErrorKind::Invalid, "a buffer of another engine"));
    };
    for attempt in 0..TRIES {
        match buffer.reserve(len) {
            Ok(()) => return Ok(buffer.reserved()),
            Err(Refused::NoRoom(NoRoom { bytes })) if makes_room(bytes, attempt) => {}
            Err(Refused::NoRoom(_)) => break,
            Err(Refused::Share) => {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "other unfinished values hold their share of memory",
                ));
            }
        }
    }
    Err(full())
}

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

/// A value and its share of the budget. Fields are dropped in this order: what still is in memory counts.
struct Value {
    memory: Memory,
    len: usize,
    share: Share,
}

/// So many bytes of the budget.
struct Share {
    bytes: usize,
    budget: Arc<Budget>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

enum Memory {
    Mapped(Mapping),
    /// The system limits how many mappings a process may have; the allocator still has memory then.
    Allocated(Vec<u8>),
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            Memory::Mapped(mapping) => &mapping.bytes()[..self.len],
            Memory::Allocated(bytes) => bytes,
        }
    }
}

/// A value on its way in. It is committed page by page, ahead of what is written.
pub(crate) struct HugeBuffer {
    value: Value,
    filled: usize,
    /// How far it may be written, from `filled` on.
    reserved: usize,
    /// It was asked for whole, to be filled at once, so it waits for nobody and takes no share of what waits.
    at_once: bool,
    unfinished: Unfinished,
}

/// What a buffer holds of the share of all unfinished values.
struct Unfinished {
    bytes: usize,
    budget: Arc<Budget>,
}

impl Unfinished {
    fn set(&mut self, bytes: usize) {
        self.budget.received(self.bytes, bytes);
        self.bytes = bytes;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Why a buffer does not grow.
#[derive(Debug)]
pub(crate) enum Refused {
    /// So many bytes are missing.
    NoRoom(NoRoom),
    /// Unfinished values hold their share already.
    Share,
}

impl HugeBuffer {
    /// A buffer for a value of `len` bytes. Nothing is committed yet.
    fn new(len: usize, budget: &Arc<Budget>) -> std::result::Result<HugeBuffer, NoRoom> {
        let memory = match Mapping::new(len.max(1)) {
            Ok(mut mapping) => {
                // What has not come must not cost memory.
                mapping.use_small_pages();
                Memory::Mapped(mapping)
            }
            Err(_) => {
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(len).map_err(|_| NoRoom { bytes: len })?;
                Memory::Allocated(bytes)
            }
        };
        Ok(HugeBuffer {
            value: Value { memory, len, share: Share { bytes: 0, budget: Arc::clone(budget) } },
            filled: 0,
            reserved: 0,
            at_once: false,
            unfinished: Unfinished { bytes: 0, budget: Arc::clone(budget) },
        })
    }

    pub(crate) fn is_of(&self, budget: &Arc<Budget>) -> bool {
        Arc::ptr_eq(&self.value.share.budget, budget)
    }

    /// Commits memory for up to `len` more bytes.
    pub(crate) fn reserve(&mut self, len: usize) -> std::result::Result<(), Refused> {
        let end = self.value.len.min(self.filled + len);
        let wanted = end.next_multiple_of(SYSTEM_PAGE);
        if wanted > self.value.share.bytes {
            let more = wanted - self.value.share.bytes;
            self.at_once = self.filled == 0 && end == self.value.len;
            let budget = &self.value.share.budget;
            let (len, own) = (self.value.len as u64, self.unfinished.bytes as u64);
            if !self.at_once && !budget.may_receive(len, own, more as u64) {
                return Err(Refused::Share);
            }
            if !budget.commit(more) {
                return Err(Refused::NoRoom(NoRoom { bytes: more }));
            }
            self.value.share.bytes = wanted;
            if !self.at_once {
                self.unfinished.set(wanted);
            }
        }
        self.reserved = end;
        Ok(())
    }

    /// What may be written to.
    pub(crate) fn reserved(&mut self) -> &mut [u8] {
        let bytes = match &mut self.value.memory {
            Memory::Mapped(mapping) => mapping.bytes_mut(),
            Memory::Allocated(bytes) => {
                // Within what has been reserved at the start.
                bytes.resize(self.reserved, 0);
                bytes
            }
        };
        &mut bytes[self.filled..self.reserved]
    }

    fn release_unfilled(&mut self) {
        let kept = self.filled.next_multiple_of(SYSTEM_PAGE);
        self.value.share.budget.release(self.value.share.bytes - kept);
        self.value.share.bytes = kept;
        if !self.at_once || self.filled < self.value.len {
            self.unfinished.set(kept);
        }
        self.reserved = self.filled;
    }
}

impl ValueBuffer for HugeBuffer {
    fn len(&self) -> usize {
        self.value.len
    }

    fn filled(&self) -> usize {
        self.filled
    }

    fn advance(&mut self, len: usize) {
        assert!(self.filled + len <= self.reserved, "only what was given has been written");
        self.filled += len;
        self.release_unfilled();
    }

    fn into_shared(self: Box<Self>) -> SharedBytes {
        let HugeBuffer { mut value, .. } = *self;
        if let Memory::Allocated(bytes) = &mut value.memory {
            bytes.resize(value.len, 0);
        }
        Arc::new(value)
    }
}

/// A copy of a large value on memory of its own.
pub(crate) fn share(value: &[u8], budget: &Arc<Budget>) -> std::result::Result<SharedBytes, NoRoom> {
    let committed = value.len().next_multiple_of(SYSTEM_PAGE);
    if !budget.commit(committed) {
        return Err(NoRoom { bytes: committed });
    }
    // From here on, whatever happens, the budget gets it back.
    let share = Share { bytes: committed, budget: Arc::clone(budget) };
    let mut shared = Value { memory: Memory::Allocated(Vec::new()), len: value.len(), share };
    match Mapping::new(value.len().max(1)) {
        Ok(mut mapping) => {
            mapping.bytes_mut()[..value.len()].copy_from_slice(value);
            shared.memory = Memory::Mapped(mapping);
        }
        Err(_) => {
            let mut copy = Vec::new();
            copy.try_reserve_exact(value.len()).map_err(|_| NoRoom { bytes: committed })?;
            copy.extend_from_slice(value);
            shared.memory = Memory::Allocated(copy);
        }
    }
    Ok(Arc::new(shared))
}

/// The huge records of a shard, by index.
pub(crate) struct HugeTable {
    records: Vec<Option<Box<HugeRecord>>>,
    free: Vec<u32>,
    bytes: usize,
    /// Values whose records are gone. Giving a GiB back takes the system long; it is done when the lock is not held.
    gone: Vec<SharedBytes>,
    budget: Arc<Budget>,
}

impl HugeTable {
    pub(crate) fn new(budget: Arc<Budget>) -> HugeTable {
        HugeTable { records: Vec::new(), free: Vec::new(), bytes: 0, gone: Vec::new(), budget }
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

    /// The values of removed records, to be dropped behind the lock.
    #[inline]
    pub(crate) fn take_gone(&mut self) -> Vec<SharedBytes> {
        std::mem::take(&mut self.gone)
    }

    /// All of it, to be dropped behind the lock.
    pub(crate) fn take(&mut self) -> HugeTable {
        let budget = Arc::clone(&self.budget);
        std::mem::replace(self, HugeTable::new(budget))
    }

    /// Takes a record out whole.
    pub(crate) fn take_out(&mut self, index: u32) -> HugeRecord {
        let record = self.records[index as usize].take().expect("a stub leads to its huge record");
        self.bytes -= record.key.len() + (*record.value).as_ref().len();
        self.budget.release(HugeRecord::committed(record.key.len()));
        self.free.push(index);
        *record
    }

    /// Removes a record; its value's memory goes with the last that holds it, this table's hold with `take_gone`.
    pub(crate) fn remove(&mut self, index: u32) {
        let record = self.take_out(index);
        self.gone.push(record.value);
    }
}

impl Drop for HugeTable {
    fn drop(&mut self) {
        for record in self.records.iter().flatten() {
            self.budget.release(HugeRecord::committed(record.key.len()));
        }
    }
}
