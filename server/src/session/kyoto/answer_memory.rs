//! The memory of long answers: counted together, bounded, and waited for.
//!
//! All long answers of a server, those being collected and those that their readers have not taken yet, have a quarter of the memory
//! limit. The threads that may wait (background calls) collect one at a time, which waits until readers have taken others; workers do not
//! wait, and answer by an error where there is no memory. A reader that takes nothing for [`STALL`] while somebody waits is cut off; so those who do not read keep others
//! from their answers only for a while.

use crate::handle::Stopping;
use crate::shared::Shared;
use crate::transport::output::{Output, Tail};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use todana_protocol::ReplySink;
use todana_protocol::kyoto::{AnswerBanner, AnswerBody, AnswerStatus, HttpForm, LongAnswer};

/// What each answer may take uncounted, so that short ones are given whatever long ones hold.
const FREE_LEN: u64 = 32 << 10;
/// A reader that takes nothing for so long is cut off where others wait for memory. The receiving system makes room known in steps
/// of up to 128 KiB on loopback, and nothing can be sent in between: of a reader of 4 KiB a second nothing is seen for 16 to 48 seconds.
pub(crate) const STALL: Duration = Duration::from_secs(50);
/// The allocator is trimmed after an answer that has taken so much.
const TRIMMED_LEN: u64 = 1 << 20;
/// How often those who wait for memory look again.
const LOOK: Duration = Duration::from_millis(5);
/// How long they wait: until those who take nothing have been cut off, and a while.
const WAIT_MAX: Duration = Duration::from_secs(75);
/// An answer up to this length is written at once.
const SHORT_LEN: usize = 64 << 10;

/// The memory of all long answers.
#[derive(Default)]
pub(crate) struct AnswerMemory {
    taken: AtomicU64,
    /// Held by the one that is collected.
    turn: Mutex<()>,
    /// Somebody waits for memory.
    is_wanted: AtomicBool,
    /// Much has been given back that the allocator may keep.
    is_much_returned: AtomicBool,
}

impl AnswerMemory {
    /// Returns how much is taken, in bytes.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns true if somebody waits for memory.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Returns true once after much has been given back at once, so that trimming the allocator is worth its time.
    pub(crate) fn take_returned(&self) -> bool {
        self.is_much_returned.swap(false, Ordering::Relaxed)
    }

    fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        // The next answers take the memory of short ones.
        if bytes >= TRIMMED_LEN {
            self.is_much_returned.store(true, Ordering::Relaxed);
        }
    }

    fn take(&self, bytes: u64, max: u64) -> bool {
        let grown = |taken: u64| Some(taken + bytes).filter(|&taken| taken <= max);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }
}

/// Why an answer has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// It is larger than all of it.
    TooLarge,
    /// Others have it.
    Busy,
    /// Nobody wants the answer any more.
    CalledOff,
}

/// What one answer has taken; given back when it is dropped.
struct Taken {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Taken {
    /// Counts as it is, whatever the limit.
    fn set(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        // Wraps around where it shrinks.
        self.shared.kyoto.answers.taken.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shared.kyoto.answers.give_back(self.bytes);
    }
}

/// A long answer that is collected.
pub(super) struct Collected {
    answer: LongAnswer,
    taken: Taken,
}

/// The turn to collect one, until it is dropped.
pub(super) struct Turn<'t>(#[expect(dead_code, reason = "held")] MutexGuard<'t, ()>);

impl Collected {
    pub(super) fn new(shared: &Arc<Shared>) -> Collected {
        Collected { answer: LongAnswer::default(), taken: Taken { shared: Arc::clone(shared), bytes: 0 } }
    }

    /// Waits until no other long answer is collected.
    pub(super) fn turn(shared: &Shared) -> Turn<'_> {
        Turn(shared.kyoto.answers.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn len(&self) -> usize {
        self.answer.len()
    }

    /// Adds a pair, whose name is `before` and `name` joined. Fails if there is no memory for it; with `waits`, which says
    /// when to give up, waits for it before.
    pub(super) fn push(
        &mut self,
        before: &[u8],
        name: &[u8],
        value: &[u8],
        waits: Option<&dyn Fn() -> bool>,
    ) -> Result<(), Lack> {
        let needed = self.answer.memory_bytes_with(before.len() + name.len() + value.len()) as u64;
        if needed > self.taken.bytes.max(FREE_LEN) {
            self.reserve(needed - self.taken.bytes, waits)?;
        }
        if self.answer.push(before, name, value) { Ok(()) } else { Err(Lack::TooLarge) }
    }

    fn reserve(&mut self, bytes: u64, waits: Option<&dyn Fn() -> bool>) -> Result<(), Lack> {
        let shared = &self.taken.shared;
        let (answers, max) = (&shared.kyoto.answers, shared.memory.held_max());
        if self.taken.bytes + bytes > max {
            return Err(Lack::TooLarge);
        }
        let since = Instant::now();
        let outcome = loop {
            if answers.take(bytes, max) {
                break Ok(());
            }
            match waits {
                None => break Err(Lack::Busy),
                Some(is_called_off) if is_called_off() || shared.lifecycle.stopping() != Stopping::No => {
                    break Err(Lack::CalledOff);
                }
                Some(_) if since.elapsed() > WAIT_MAX => break Err(Lack::Busy),
                Some(_) => {}
            }
            answers.is_wanted.store(true, Ordering::Relaxed);
            // Unparked by nobody.
            std::thread::park_timeout(LOOK);
        };
        if waits.is_some() {
            answers.is_wanted.store(false, Ordering::Relaxed);
        }
        outcome?;
        self.taken.bytes += bytes;
        Ok(())
    }

    /// Writes the answer, or its head and what goes out behind it piece by piece.
    pub(super) fn write(
        self,
        form: &HttpForm,
        banner: &AnswerBanner,
        status: AnswerStatus,
        output: &mut Output,
    ) {
        let Collected { answer, mut taken } = self;
        let mut body = answer.begin(form, banner, status, output);
        if body.remaining() <= SHORT_LEN {
            body.fill(SHORT_LEN, output);
            return;
        }
        // Columns that had to be encoded take more, or less, than before.
        taken.set(body.memory_bytes() as u64);
        output.set_tail(Box::new(Streamed { body, _taken: taken }));
    }
}

/// The body of a long answer on its way.
struct Streamed {
    body: AnswerBody,
    _taken: Taken,
}

/// Bytes that have been found, on their way.
struct Found {
    bytes: Vec<u8>,
    at: usize,
    _taken: Taken,
}

/// Writes bytes that have been found; many of them go out piece by piece, without a copy of all.
pub(super) fn put_found(shared: &Arc<Shared>, bytes: Vec<u8>, output: &mut Output) {
    if bytes.len() <= SHORT_LEN {
        return output.put(&bytes);
    }
    let mut taken = Taken { shared: Arc::clone(shared), bytes: 0 };
    taken.set(bytes.capacity() as u64);
    output.set_tail(Box::new(Found { bytes, at: 0, _taken: taken }));
}

impl Tail for Found {
    fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn fill(&mut self, len_max: usize, bytes: &mut Vec<u8>) {
        let end = self.bytes.len().min(self.at + len_max);
        bytes.extend_from_slice(&self.bytes[self.at..end]);
        self.at = end;
    }
}

impl Tail for Streamed {
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

    /// Each of many small `get_bulk` a second had the janitor trim the allocator ten times a second.
    #[test]
    fn the_allocator_is_trimmed_after_long_answers_alone() {
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
