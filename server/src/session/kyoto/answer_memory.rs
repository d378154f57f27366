//! The memory of long answers: counted together and bounded.
//!
//! All long answers of a server, whether being collected or not yet sent, may use a quarter of the
//! memory limit. Background calls collect one answer at a time and wait until readers have taken
//! others. Workers do not wait: without memory they answer with an error. A reader that takes
//! nothing for [`STALL`] while others wait is disconnected, so that slow readers delay others only
//! for a limited time.

use crate::handle::Stopping;
use crate::shared::Shared;
use crate::transport::output::{Output, OutputTail};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use todana_protocol::ReplySink;
use todana_protocol::kyoto::{AnswerBanner, AnswerBody, AnswerStatus, HttpForm, LongAnswer};

/// The memory that each answer may use uncounted, so that short answers never fail for lack of it.
const FREE_LEN: u64 = 32 << 10;
/// A reader that takes nothing for this long is disconnected if others wait for memory. On loopback
/// the receiving system reports free space in steps of up to 128 KiB, and nothing can be sent in
/// between: a reader of 4 KiB per second seems to take nothing for 16 to 48 seconds.
pub(crate) const STALL: Duration = Duration::from_secs(50);
/// The allocator is trimmed after an answer of at least this size.
const TRIMMED_LEN: u64 = 1 << 20;
/// The interval at which waiting threads check for memory.
const LOOK: Duration = Duration::from_millis(5);
/// The longest wait: until stalled readers have been disconnected, and a margin.
const WAIT_MAX: Duration = Duration::from_secs(75);
/// An answer up to this length is written at once.
const SHORT_LEN: usize = 64 << 10;

/// The memory of all long answers.
#[derive(Default)]
pub(crate) struct AnswerMemory {
    taken: AtomicU64,
    /// Held while an answer is collected.
    turn: Mutex<()>,
    /// True if a thread waits for memory.
    is_wanted: AtomicBool,
    /// True if much memory was returned that the allocator may keep.
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

    /// Returns true once after much memory was returned, so that trimming the allocator is worth
    /// its time.
    pub(crate) fn take_returned(&self) -> bool {
        self.is_much_returned.swap(false, Ordering::Relaxed)
    }

    fn give_back(&self, bytes: u64) {
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
    /// The answer is larger than all the memory.
    TooLarge,
    /// Other answers use the memory.
    Busy,
    /// The answer is no longer wanted.
    CalledOff,
}

/// The memory reserved for one answer; returned when dropped.
struct ReservedMemory {
    shared: Arc<Shared>,
    bytes: u64,
}

impl ReservedMemory {
    /// Sets the reserved memory, whatever the limit.
    fn set(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        // Wraps around if the answer shrinks.
        self.shared.kyoto.answers.taken.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        self.shared.kyoto.answers.give_back(self.bytes);
    }
}

/// A long answer that is being collected.
pub(super) struct CollectedAnswer {
    answer: LongAnswer,
    taken: ReservedMemory,
}

/// Permission to collect an answer, until dropped.
pub(super) struct CollectionTurn<'t>(#[expect(dead_code, reason = "held")] MutexGuard<'t, ()>);

impl CollectedAnswer {
    pub(super) fn new(shared: &Arc<Shared>) -> CollectedAnswer {
        CollectedAnswer {
            answer: LongAnswer::default(),
            taken: ReservedMemory { shared: Arc::clone(shared), bytes: 0 },
        }
    }

    /// Waits until no other long answer is collected.
    pub(super) fn turn(shared: &Shared) -> CollectionTurn<'_> {
        CollectionTurn(shared.kyoto.answers.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn len(&self) -> usize {
        self.answer.len()
    }

    /// Adds a pair whose name is `before` and `name` joined. Fails if there is no memory for it.
    /// With `waits`, which returns true to give up, waits for memory first.
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
                Some(is_called_off) if is_called_off() || shared.lifecycle.stopping() != Stopping::No => {
                    break Err(AnswerMemoryError::CalledOff);
                }
                Some(_) if since.elapsed() > WAIT_MAX => break Err(AnswerMemoryError::Busy),
                Some(_) => {}
            }
            answers.is_wanted.store(true, Ordering::Relaxed);
            // Nothing unparks this thread.
            std::thread::park_timeout(LOOK);
        };
        if waits.is_some() {
            answers.is_wanted.store(false, Ordering::Relaxed);
        }
        outcome?;
        self.taken.bytes += bytes;
        Ok(())
    }

    /// Writes a short answer; or the head of a long one, whose body is then sent in pieces.
    pub(super) fn write(
        self,
        form: &HttpForm,
        banner: &AnswerBanner,
        status: AnswerStatus,
        output: &mut Output,
    ) {
        let CollectedAnswer { answer, mut taken } = self;
        let mut body = answer.begin(form, banner, status, output);
        if body.remaining() <= SHORT_LEN {
            body.fill(SHORT_LEN, output);
            return;
        }
        // Encoded columns take more or less memory than the plain ones.
        taken.set(body.memory_bytes() as u64);
        output.set_tail(Box::new(StreamedAnswer { body, _taken: taken }));
    }
}

/// The body of a long answer that is being sent.
struct StreamedAnswer {
    body: AnswerBody,
    _taken: ReservedMemory,
}

/// Records in bytes that are being sent.
struct StreamedRecords {
    bytes: Vec<u8>,
    at: usize,
    _taken: ReservedMemory,
}

/// Writes encoded records; a large number of bytes is sent in pieces, without a copy of all.
pub(super) fn put_found(shared: &Arc<Shared>, bytes: Vec<u8>, output: &mut Output) {
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

    /// Many small `get_bulk` requests once had the allocator trimmed ten times a second.
    #[test]
    fn allocator_is_trimmed_after_long_answers_only() {
        let answers = AnswerMemory::default();
        for bytes in [0, 100, TRIMMED_LEN - 1] {
            assert!(answers.take(bytes, 10 * TRIMMED_LEN));
            answers.give_back(bytes);
            assert!(!answers.take_returned(), "{bytes}");
        }
        assert!(answers.take(TRIMMED_LEN, 10 * TRIMMED_LEN));
        answers.give_back(TRIMMED_LEN);
        assert_eq!([answers.take_returned(), answers.take_returned()], [true, false]);
        assert_eq!(answers.taken(), 0);
    }
}
