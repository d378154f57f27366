//! Counts and limits the memory of long answers.
//!
//! All long answers of a server together, while they are collected and until they are sent, may use
//! a quarter of the memory limit. Background calls collect one answer at a time, and wait for
//! memory until clients have read parts of other answers. Workers do not wait: if there is no
//! memory, they answer with an error. If a client reads nothing for [`STALL`] while a call waits
//! for memory, the client is disconnected. Slow clients therefore delay others only for a limited
//! time.

use crate::handle::StopStage;
use crate::shared::SharedState;
use crate::transport::output::{ConnectionOutput, OutputTail};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use todana_protocol::ReplySink;
use todana_protocol::kyoto::{AnswerBanner, AnswerBody, AnswerStatus, HttpForm, LongAnswer};

/// The memory that each answer may use without being counted, so that short answers never fail for
/// lack of memory.
const FREE_LEN: u64 = 32 << 10;
/// A client that reads nothing for this long is disconnected if others wait for memory. The time is
/// long because a slow client can seem to read nothing. On loopback, the receiving system reports
/// free space in steps of up to 128 KiB, and nothing can be sent in between. A client that reads 4
/// KiB per second therefore seems to read nothing for 16 to 48 seconds.
pub(crate) const STALL: Duration = Duration::from_secs(50);
/// The allocator is trimmed after an answer of at least this size.
const TRIMMED_LEN: u64 = 1 << 20;
/// The interval at which waiting threads check for memory.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// The longest wait for memory: until stalled clients have been disconnected, and a margin.
const WAIT_MAX: Duration = Duration::from_secs(75);
/// The length up to which an answer is written to the output at once.
const SHORT_LEN: usize = 64 << 10;

/// The memory of all long answers.
#[derive(Default)]
pub(crate) struct AnswerMemory {
    taken: AtomicU64,
    /// The lock that is held while an answer is collected.
    turn: Mutex<()>,
    /// True if a thread waits for memory.
    is_wanted: AtomicBool,
    /// True if a large amount of memory was returned, which the allocator may still hold.
    is_much_returned: AtomicBool,
}

impl AnswerMemory {
    /// Returns the memory in use, in bytes.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns true if a thread waits for memory.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Returns true once after a large amount of memory was returned, when trimming the allocator
    /// is worth its time.
    pub(crate) fn take_returned(&self) -> bool {
        self.is_much_returned.swap(false, Ordering::Relaxed)
    }

    fn release(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        // The memory of short answers is reused by the next ones.
        if bytes >= TRIMMED_LEN {
            self.is_much_returned.store(true, Ordering::Relaxed);
        }
    }

    fn take(&self, bytes: u64, max: u64) -> bool {
        let grown = |taken: u64| Some(taken + bytes).filter(|&taken| taken <= max);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }
}

/// The reason why an answer gets no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerMemoryError {
    /// The answer needs more memory than all long answers may use.
    TooLarge,
    /// Other answers use the memory.
    Busy,
    /// The answer is no longer wanted.
    Cancelled,
}

/// The memory that is reserved for one answer. Dropping the value returns it.
struct ReservedMemory {
    shared: Arc<SharedState>,
    bytes: u64,
}

impl ReservedMemory {
    /// Sets the amount of reserved memory. It may exceed the limit.
    fn set(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        // The subtraction wraps around if the answer shrinks.
        self.shared.kyoto.answers.taken.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        self.shared.kyoto.answers.release(self.bytes);
    }
}

/// A long answer that is being collected.
pub(super) struct CollectedAnswer {
    answer: LongAnswer,
    taken: ReservedMemory,
}

/// Permission to collect an answer. Only one exists at a time.
pub(super) struct CollectionTurn<'t>(#[expect(dead_code, reason = "held")] MutexGuard<'t, ()>);

impl CollectedAnswer {
    pub(super) fn new(shared: &Arc<SharedState>) -> CollectedAnswer {
        CollectedAnswer {
            answer: LongAnswer::default(),
            taken: ReservedMemory { shared: Arc::clone(shared), bytes: 0 },
        }
    }

    /// Waits until no other long answer is collected.
    pub(super) fn turn(shared: &SharedState) -> CollectionTurn<'_> {
        CollectionTurn(shared.kyoto.answers.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn len(&self) -> usize {
        self.answer.len()
    }

    /// Adds a pair whose name is `before` followed by `name`. If there is no memory for the pair,
    /// fails; with `waits`, first waits for memory until `waits` returns true.
    pub(super) fn push(
        &mut self,
        before: &[u8],
        name: &[u8],
        value: &[u8],
        waits: Option<&dyn Fn() -> bool>,
    ) -> Result<(), AnswerMemoryError> {
        let needed = self.answer.memory_bytes_with(before.len() + name.len() + value.len()) as u64;
        if needed > self.taken.bytes.max(FREE_LEN) {
            self.reserve(needed - self.taken.bytes, waits)?;
        }
        if self.answer.push(before, name, value) { Ok(()) } else { Err(AnswerMemoryError::TooLarge) }
    }

    fn reserve(&mut self, bytes: u64, waits: Option<&dyn Fn() -> bool>) -> Result<(), AnswerMemoryError> {
        let shared = &self.taken.shared;
        let (answers, max) = (&shared.kyoto.answers, shared.memory.held_max());
        if self.taken.bytes + bytes > max {
            return Err(AnswerMemoryError::TooLarge);
        }
        let since = Instant::now();
        let outcome = loop {
            if answers.take(bytes, max) {
                break Ok(());
            }
            match waits {
                None => break Err(AnswerMemoryError::Busy),
                Some(is_cancelled) if is_cancelled() || shared.lifecycle.stopping() != StopStage::No => {
                    break Err(AnswerMemoryError::Cancelled);
                }
                Some(_) if since.elapsed() > WAIT_MAX => break Err(AnswerMemoryError::Busy),
                Some(_) => {}
            }
            answers.is_wanted.store(true, Ordering::Relaxed);
            // This thread waits by polling.
            std::thread::park_timeout(CHECK_INTERVAL);
        };
        if waits.is_some() {
            answers.is_wanted.store(false, Ordering::Relaxed);
        }
        outcome?;
        self.taken.bytes += bytes;
        Ok(())
    }

    /// Writes a short answer completely. Of a long answer, writes the head; the body is then sent
    /// in pieces.
    pub(super) fn write(
        self,
        form: &HttpForm,
        banner: &AnswerBanner,
        status: AnswerStatus,
        output: &mut ConnectionOutput,
    ) {
        let CollectedAnswer { answer, mut taken } = self;
        let mut body = answer.begin(form, banner, status, output);
        if body.remaining() <= SHORT_LEN {
            body.fill(SHORT_LEN, output);
            return;
        }
        // Encoding the columns changes their size.
        taken.set(body.memory_bytes() as u64);
        output.set_tail(Box::new(StreamedAnswer { body, _taken: taken }));
    }
}

/// The body of a long answer that is being sent.
struct StreamedAnswer {
    body: AnswerBody,
    _taken: ReservedMemory,
}

/// Encoded records that are being sent.
struct StreamedRecords {
    bytes: Vec<u8>,
    at: usize,
    _taken: ReservedMemory,
}

/// Writes encoded records. If there are many bytes, they are sent in pieces from `bytes`, without a
/// copy of all of them.
pub(super) fn put_found(shared: &Arc<SharedState>, bytes: Vec<u8>, output: &mut ConnectionOutput) {
    if bytes.len() <= SHORT_LEN {
        return output.put(&bytes);
    }
    let mut taken = ReservedMemory { shared: Arc::clone(shared), bytes: 0 };
    taken.set(bytes.capacity() as u64);
    output.set_tail(Box::new(StreamedRecords { bytes, at: 0, _taken: taken }));
}

impl OutputTail for StreamedRecords {
    fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn fill(&mut self, len_max: usize, bytes: &mut Vec<u8>) {
        let end = self.bytes.len().min(self.at + len_max);
        bytes.extend_from_slice(&self.bytes[self.at..end]);
        self.at = end;
    }
}

impl OutputTail for StreamedAnswer {
    fn remaining(&self) -> usize {
        self.body.remaining()
    }

    fn fill(&mut self, len_max: usize, bytes: &mut Vec<u8>) {
        self.body.fill(len_max, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many small `get_bulk` requests once trimmed the allocator ten times a second.
    #[test]
    fn allocator_is_trimmed_after_long_answers_only() {
        let answers = AnswerMemory::default();
        for bytes in [0, 100, TRIMMED_LEN - 1] {
            assert!(answers.take(bytes, 10 * TRIMMED_LEN));
            answers.release(bytes);
            assert!(!answers.take_returned(), "{bytes}");
        }
        assert!(answers.take(TRIMMED_LEN, 10 * TRIMMED_LEN));
        answers.release(TRIMMED_LEN);
        assert_eq!([answers.take_returned(), answers.take_returned()], [true, false]);
        assert_eq!(answers.taken(), 0);
    }
}
