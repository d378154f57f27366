//! Stores records above 64 KiB. Each of their values lies in a mapping of its own and is shared
//! with the connections that are still sending it.
//!
//! A value counts against the budget until its last user drops it, even if its record has been
//! removed. Slow readers therefore cannot make the process exceed its limit. While a value is being
//! received, its received part counts. The received memory becomes the value of the record without
//! a copy.
//!
//! Both engines in memory store long values in this way. Each engine frees memory for them by its
//! own policy. A value that is not in use is compressed in chunks.
//!
//! ```text
//! table             the huge records of a shard
//! compression       rounds of maintenance, which compress and decompress values
//! compressed_value  a value in compressed chunks
//! stand_in          bytes that are shown in place of a compressed value
//! ```

mod compressed_value;
mod compression;
mod stand_in;
mod table;

pub(crate) use compression::{HugeTables, LongValueCompression};
pub(crate) use table::{DecompressedValue, HugeRecord, HugeTable};

use crate::arena::{MemoryBudget, NoRoom};
use crate::raw::{MemoryMapping, SYSTEM_PAGE};
use crate::record::VALUE_LEN_MAX;
use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Record, Result, SharedBytes, ValueBuffer};

/// The number of attempts to free memory. Several may be needed, because another thread may take
/// the freed memory, or the record may need more than the first allocation that failed.
pub(crate) const TRIES: usize = 16;

pub(crate) fn memory_full_error() -> Error {
    Error::new(ErrorKind::Full, "memory limit reached")
}

/// Implements [`todana_core::Engine::buffer`]. `pack_shards` compacts the engine until the given
/// number of bytes fits.
pub(crate) fn open(
    budget: &Arc<MemoryBudget>,
    len: usize,
    pack_shards: &dyn Fn(usize) -> bool,
) -> Result<Box<dyn ValueBuffer>> {
    if len > VALUE_LEN_MAX {
        return Err(Error::new(ErrorKind::Invalid, format!("value of {len} bytes is too long")));
    }
    let is_too_much = len as u64 > budget.record_max()
        || (budget.refuses() && !budget.fits(len as u64) && !pack_shards(len));
    if is_too_much {
        return Err(memory_full_error());
    }
    match HugeBuffer::new(len, budget) {
        Ok(buffer) => Ok(Box::new(buffer)),
        Err(_) => Err(memory_full_error()),
    }
}

/// Implements [`todana_core::Engine::room`]. `make_room` receives the number of missing bytes and
/// the number of earlier attempts.
pub(crate) fn room<'b>(
    budget: &Arc<MemoryBudget>,
    buffer: &'b mut dyn ValueBuffer,
    len: usize,
    make_room: &dyn Fn(usize, usize) -> bool,
) -> Result<&'b mut [u8]> {
    let buffer: &mut dyn Any = buffer;
    let Some(buffer) = buffer.downcast_mut::<HugeBuffer>().filter(|buffer| buffer.is_of(budget)) else {
        return Err(Error::new(ErrorKind::Invalid, "a buffer of another engine"));
    };
    for attempt in 0..TRIES {
        match buffer.reserve(len) {
            Ok(()) => return Ok(buffer.reserved()),
            Err(BufferRefusal::NoRoom(NoRoom { bytes })) if make_room(bytes, attempt) => {}
            Err(BufferRefusal::NoRoom(_)) => break,
            Err(BufferRefusal::Share) => {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "other unfinished values occupy all the memory available to such values",
                ));
            }
        }
    }
    Err(memory_full_error())
}

/// Implements [`todana_core::Engine::view`] and `peek` by `view_shared`: decompresses a compressed
/// value after `view` has released the lock, and then calls `see`.
pub(crate) fn view_plain(
    see: &mut dyn FnMut(Record<'_>),
    view: impl FnOnce(&mut dyn FnMut(Record<'_>)) -> Result<bool>,
) -> Result<bool> {
    let mut compressed = None;
    let found = view(&mut |record| match record.compressed() {
        Some(value) => compressed = Some((Arc::clone(value), record.attributes)),
        None => see(record),
    })?;
    if let Some((value, attributes)) = compressed {
        Record { shared: Some(&value), ..Record::new(b"", attributes) }.with_plain_value(see);
    }
    Ok(found)
}

/// Calls `see`, which reads plain values. A compressed value is decompressed under the lock of the
/// scan, because a scan cannot be interrupted within a bucket or a leaf. One value at a time is
/// decompressed.
pub(crate) fn see_plain<'s>(
    see: &'s mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> impl FnMut(&[u8], Record<'_>) -> ControlFlow<()> + 's {
    |key, record| record.with_plain_value(|record| see(key, record))
}

/// A value and its share of the budget. Its fields are dropped in their order here, so that the
/// memory counts until it is freed.
struct HugeValue {
    memory: ValueMemory,
    len: usize,
    share: BudgetShare,
}

/// A number of bytes that are taken from the budget, and are returned to it on drop.
struct BudgetShare {
    bytes: usize,
    budget: Arc<MemoryBudget>,
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

enum ValueMemory {
    Mapped(MemoryMapping),
    /// Memory of the allocator, which is used when the system allows no more mappings.
    Allocated(Vec<u8>),
}

impl AsRef<[u8]> for HugeValue {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            ValueMemory::Mapped(mapping) => &mapping.bytes()[..self.len],
            ValueMemory::Allocated(bytes) => bytes,
        }
    }
}

/// A value that is being received. Its memory is committed page by page, ahead of the data.
pub(crate) struct HugeBuffer {
    value: HugeValue,
    filled: usize,
    /// The end of the part that may be written, which begins at `filled`.
    reserved: usize,
    /// True if the complete value was requested at once. Such a buffer does not count as
    /// unfinished.
    at_once: bool,
    unfinished: UnfinishedShare,
}

/// The bytes of a buffer that count as unfinished in the budget.
struct UnfinishedShare {
    bytes: usize,
    budget: Arc<MemoryBudget>,
}

impl UnfinishedShare {
    fn set(&mut self, bytes: usize) {
        self.budget.received(self.bytes, bytes);
        self.bytes = bytes;
    }
}

impl Drop for UnfinishedShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The reason why a buffer could not grow.
#[derive(Debug)]
pub(crate) enum BufferRefusal {
    /// This number of bytes is missing.
    NoRoom(NoRoom),
    /// Unfinished values already use all memory that they may use.
    Share,
}

impl HugeBuffer {
    /// Creates a buffer for a value of `len` bytes. Nothing is committed yet.
    fn new(len: usize, budget: &Arc<MemoryBudget>) -> std::result::Result<HugeBuffer, NoRoom> {
        let memory = match MemoryMapping::new(len.max(1)) {
            Ok(mut mapping) => {
                // Memory must not be spent before data has been received.
                mapping.use_small_pages();
                ValueMemory::Mapped(mapping)
            }
            Err(_) => {
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(len).map_err(|_| NoRoom { bytes: len })?;
                ValueMemory::Allocated(bytes)
            }
        };
        Ok(HugeBuffer {
            value: HugeValue { memory, len, share: BudgetShare { bytes: 0, budget: Arc::clone(budget) } },
            filled: 0,
            reserved: 0,
            at_once: false,
            unfinished: UnfinishedShare { bytes: 0, budget: Arc::clone(budget) },
        })
    }

    pub(crate) fn is_of(&self, budget: &Arc<MemoryBudget>) -> bool {
        Arc::ptr_eq(&self.value.share.budget, budget)
    }

    /// Commits memory for up to `len` more bytes of the value.
    pub(crate) fn reserve(&mut self, len: usize) -> std::result::Result<(), BufferRefusal> {
        let end = self.value.len.min(self.filled + len);
        let wanted = end.next_multiple_of(SYSTEM_PAGE);
        if wanted > self.value.share.bytes {
            let more = wanted - self.value.share.bytes;
            self.at_once = self.filled == 0 && end == self.value.len;
            let budget = &self.value.share.budget;
            let (len, own) = (self.value.len as u64, self.unfinished.bytes as u64);
            if !self.at_once && !budget.may_receive(len, own, more as u64) {
                return Err(BufferRefusal::Share);
            }
            if !budget.commit(more) {
                return Err(BufferRefusal::NoRoom(NoRoom { bytes: more }));
            }
            self.value.share.bytes = wanted;
            if !self.at_once {
                self.unfinished.set(wanted);
            }
        }
        self.reserved = end;
        Ok(())
    }

    /// Returns the part of the value that may be written now.
    pub(crate) fn reserved(&mut self) -> &mut [u8] {
        let bytes = match &mut self.value.memory {
            ValueMemory::Mapped(mapping) => mapping.bytes_mut(),
            ValueMemory::Allocated(bytes) => {
                // This stays within the capacity that was reserved at creation.
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
        assert!(self.filled + len <= self.reserved, "at most the reserved bytes are written");
        self.filled += len;
        self.release_unfilled();
    }

    fn into_shared(self: Box<Self>) -> SharedBytes {
        let HugeBuffer { mut value, .. } = *self;
        if let ValueMemory::Allocated(bytes) = &mut value.memory {
            bytes.resize(value.len, 0);
        }
        Arc::new(value)
    }
}

impl ValueMemory {
    /// Returns `len` zero bytes that take memory of the system only when they are written.
    fn zeroed(len: usize) -> ValueMemory {
        match MemoryMapping::new(len.max(1)) {
            Ok(mut mapping) => {
                mapping.use_small_pages();
                ValueMemory::Mapped(mapping)
            }
            Err(_) => ValueMemory::Allocated(vec![0; len]),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            ValueMemory::Mapped(mapping) => mapping.bytes(),
            ValueMemory::Allocated(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            ValueMemory::Mapped(mapping) => mapping.bytes_mut(),
            ValueMemory::Allocated(bytes) => bytes,
        }
    }
}

/// Returns the value of a record in the form in which it is stored at first. A value that another
/// engine has compressed is copied, because its memory belongs to that engine. The copy is taken
/// from `record.shared`, because `record.value` may be a stand-in.
///
/// Fails if there is no room for the value, or for the key, which [`HugeTable::insert`] commits
/// without a check.
pub(crate) fn value_to_store(
    key_len: usize,
    record: &Record<'_>,
    budget: &Arc<MemoryBudget>,
) -> std::result::Result<SharedBytes, NoRoom> {
    // A value that is shared already has its memory.
    let copied = if record.plain_shared().is_some() { 0 } else { record.value.len() };
    let bytes = HugeRecord::committed(key_len) + copied.next_multiple_of(SYSTEM_PAGE);
    if !budget.fits(bytes as u64) {
        return Err(NoRoom { bytes });
    }
    match record.plain_shared() {
        Some(shared) => Ok(Arc::clone(shared)),
        None => record.with_plain_value(|record| copy_to_shared(record.value, budget)),
    }
}

/// Copies a large value to memory of its own, which can be shared.
fn copy_to_shared(value: &[u8], budget: &Arc<MemoryBudget>) -> std::result::Result<SharedBytes, NoRoom> {
    let committed = value.len().next_multiple_of(SYSTEM_PAGE);
    if !budget.commit(committed) {
        return Err(NoRoom { bytes: committed });
    }
    // From here on, dropping `share` returns the bytes, also after an error.
    let share = BudgetShare { bytes: committed, budget: Arc::clone(budget) };
    let mut shared = HugeValue { memory: ValueMemory::Allocated(Vec::new()), len: value.len(), share };
    match MemoryMapping::new(value.len().max(1)) {
        Ok(mut mapping) => {
            mapping.bytes_mut()[..value.len()].copy_from_slice(value);
            shared.memory = ValueMemory::Mapped(mapping);
        }
        Err(_) => {
            let mut copy = Vec::new();
            copy.try_reserve_exact(value.len()).map_err(|_| NoRoom { bytes: committed })?;
            copy.extend_from_slice(value);
            shared.memory = ValueMemory::Allocated(copy);
        }
    }
    Ok(Arc::new(shared))
}
