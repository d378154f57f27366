//! Receives a long value directly into the memory in which the engine will keep it.
//!
//! The memory belongs to the engine, and counts as the engine's for the part that has been
//! received. The connection keeps only the head of the request.

use crate::execution::Executor;
use crate::session::RetainedMemory;
use todana_core::{SharedBytes, ValueBuffer};
use todana_protocol::memcached::LongBlock;

/// Bounds of the length of one read. The length is small at first, so that a slow sender causes no
/// evictions for bytes that it has not sent. It grows to a maximum that does not delay other
/// connections.
const STEP_MIN: usize = 16 << 10;
const STEP_MAX: usize = 256 << 10;

/// The lengths of a request with a long value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnnouncedValue {
    pub(super) head_len: usize,
    pub(super) value_len: usize,
    /// The length of the line end after the value.
    pub(super) end_len: usize,
}

/// A value that is being received.
pub(crate) struct ValueUpload {
    head: Box<[u8]>,
    /// The memory for the value; `None` once there is not enough.
    buffer: Option<Box<dyn ValueBuffer>>,
    /// The number of bytes that were received before the memory was released.
    given_up_at: usize,
    end_len: usize,
    step: usize,
}

/// The result of receiving a value.
pub(super) enum ReceivedValue {
    Whole {
        value: SharedBytes,
        /// The bytes after the value.
        end: [u8; 2],
        end_len: usize,
    },
    Refused {
        received: usize,
    },
}

impl ReceivedValue {
    pub(super) fn block(&self) -> LongBlock<'_> {
        match self {
            ReceivedValue::Whole { value, end, end_len } => LongBlock::Whole { value, end: &end[..*end_len] },
            ReceivedValue::Refused { received } => LongBlock::Refused { received: *received },
        }
    }
}

impl ValueUpload {
    pub(super) fn new(
        head: &[u8],
        announced: AnnouncedValue,
        database: usize,
        executor: &impl Executor,
    ) -> ValueUpload {
        let AnnouncedValue { value_len, end_len, .. } = announced;
        let buffer = executor.buffer(database, value_len);
        ValueUpload { head: head.into(), buffer, given_up_at: 0, end_len, step: STEP_MIN }
    }

    /// Returns the head of the request.
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the memory that the upload keeps.
    pub(super) fn retained(&self) -> RetainedMemory {
        let of_engine = self.buffer.as_ref().map_or(0, |buffer| buffer.filled());
        RetainedMemory { own: self.head.len(), of_engine }
    }

    /// Returns true if no more bytes are stored, because the value is complete or its memory was
    /// released.
    pub(crate) fn is_full(&self) -> bool {
        self.buffer.as_ref().is_none_or(|buffer| buffer.filled() == buffer.len())
    }

    /// Returns the number of bytes that have not arrived.
    pub(super) fn missing(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() - buffer.filled()) + self.end_len
    }

    /// Returns memory for the next bytes. Returns `None` if there is not enough memory; the
    /// remaining bytes of the value are then discarded as they arrive.
    pub(crate) fn room(&mut self, database: usize, executor: &impl Executor) -> Option<&mut [u8]> {
        let filled = self.buffer.as_ref()?.filled();
        // The buffer is taken out of `self`, so that it is dropped if there is not enough memory.
        let mut buffer = self.buffer.take()?;
        if executor.room(database, &mut *buffer, self.step).is_none() {
            self.given_up_at = filled;
            return None;
        }
        executor.room(database, &mut **self.buffer.insert(buffer), self.step)
    }

    /// Notes that bytes were written to the memory that `room` returned. `all` is true if they
    /// filled it.
    pub(crate) fn advance(&mut self, len: usize, all: bool) {
        if let Some(buffer) = &mut self.buffer {
            buffer.advance(len);
        }
        self.step = if all { (self.step * 2).min(STEP_MAX) } else { STEP_MIN };
    }

    /// Takes the bytes of the value from the start of `data`. Returns their number, and the result
    /// once the block is complete.
    pub(super) fn receive(
        &mut self,
        data: &[u8],
        database: usize,
        executor: &impl Executor,
    ) -> (usize, Option<ReceivedValue>) {
        let mut taken = 0;
        while taken < data.len() && !self.is_full() {
            let rest = &data[taken..];
            let Some(room) = self.room(database, executor) else { break };
            let len = room.len().min(rest.len());
            room[..len].copy_from_slice(&rest[..len]);
            let all = len == room.len();
            self.advance(len, all);
            taken += len;
        }
        if self.buffer.is_none() {
            return (taken, Some(ReceivedValue::Refused { received: self.given_up_at }));
        }
        let Some(rest) = data[taken..].get(..self.end_len).filter(|_| self.is_full()) else {
            return (taken, None);
        };
        let mut end = [0; 2];
        end[..rest.len()].copy_from_slice(rest);
        let value = self.buffer.take().map(ValueBuffer::into_shared);
        let whole = value.map(|value| ReceivedValue::Whole { value, end, end_len: self.end_len });
        (taken + self.end_len, whole)
    }
}
