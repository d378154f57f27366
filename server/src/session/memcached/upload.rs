//! A long value that is received directly into its final memory.
//!
//! That memory is the engine's and counts as such, by the bytes received. The connection keeps the
//! head of the request.

use crate::execution::Executor;
use crate::session::RetainedMemory;
use todana_core::{SharedBytes, ValueBuffer};
use todana_protocol::memcached::LongBlock;

/// The length of one read: small at first, so that a slow sender evicts nothing for bytes that do
/// not come; then growing, within a bound that does not delay other connections.
const STEP_MIN: usize = 16 << 10;
const STEP_MAX: usize = 256 << 10;

/// The lengths of a request with a long value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnnouncedValue {
    pub(super) head_len: usize,
    pub(super) value_len: usize,
    /// The length of the end of the block, after the value.
    pub(super) end_len: usize,
}

/// A value that is being received.
pub(crate) struct ValueUpload {
    head: Box<[u8]>,
    /// `None` once there is no memory for it.
    buffer: Option<Box<dyn ValueBuffer>>,
    /// The number of bytes received when the memory was given up.
    given_up_at: usize,
    end_len: usize,
    step: usize,
}

/// The result of a reception.
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

    /// Returns the request's head.
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the memory that it keeps.
    pub(super) fn retained(&self) -> RetainedMemory {
        let of_engine = self.buffer.as_ref().map_or(0, |buffer| buffer.filled());
        RetainedMemory { own: self.head.len(), of_engine }
    }

    /// Returns true if its memory takes no more bytes: the value is complete, or was given up.
    pub(crate) fn is_full(&self) -> bool {
        self.buffer.as_ref().is_none_or(|buffer| buffer.filled() == buffer.len())
    }

    /// Returns the number of missing bytes.
    pub(super) fn missing(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() - buffer.filled()) + self.end_len
    }

    /// Returns memory for the next bytes; `None` if there is none, and then the received bytes are
    /// dropped.
    pub(crate) fn room(&mut self, database: usize, executor: &impl Executor) -> Option<&mut [u8]> {
        let filled = self.buffer.as_ref()?.filled();
        // Taken out, so that it is dropped if there is no room.
        let mut buffer = self.buffer.take()?;
        if executor.room(database, &mut *buffer, self.step).is_none() {
            self.given_up_at = filled;
            return None;
        }
        executor.room(database, &mut **self.buffer.insert(buffer), self.step)
    }

    /// Notes bytes written to that memory; `all` is true if they filled it.
    pub(crate) fn advance(&mut self, len: usize, all: bool) {
        if let Some(buffer) = &mut self.buffer {
            buffer.advance(len);
        }
        self.step = if all { (self.step * 2).min(STEP_MAX) } else { STEP_MIN };
    }

    /// Takes its bytes from `data`; returns their number, and the result once the block is
    /// complete.
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
