//! A bounded pipe from the thread that produces an export to the worker that sends it.

use crate::session::wake::WakeHandle;
use crate::transport::output::Output;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use todana::checkpoint::HeldBytes;
use todana_protocol::memcached::ReplySink;

/// Maximum bytes in the pipe, unless a single frame is longer.
const PIPE_MAX: usize = 256 << 10;
/// The line that means "no data yet".
const WAIT: &[u8] = b"WAIT\r\n";

/// Frames on their way. The worker never waits for the pipe; the producer may.
pub(super) struct ExportPipe {
    /// Wakes the receiving connection.
    handle: WakeHandle,
    state: Mutex<PipeState>,
    /// Signals room, or news for the producer.
    changed: Condvar,
    /// True once the receiver has closed.
    is_left: AtomicBool,
    /// True once the producer may stop: the receiver has closed, or the last frame is in the pipe.
    is_stopped: AtomicBool,
    /// The part of the log that is kept for this export.
    held: OnceLock<HeldBytes>,
}

#[derive(Default)]
struct PipeState {
    frames: VecDeque<Vec<u8>>,
    len: usize,
    /// True once the last frame is in the pipe.
    is_over: bool,
    /// True if a frame went in or out since the last check.
    has_moved: bool,
    /// Checks since the last movement.
    quiet_looks: u32,
    /// True if there is news for the producer.
    nudged: bool,
}

/// The result of taking frames out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenFrames {
    /// More frames may come.
    Some,
    /// The last frame was taken.
    All,
}

impl ExportPipe {
    pub(super) fn new(handle: WakeHandle) -> ExportPipe {
        ExportPipe {
            handle,
            state: Mutex::default(),
            changed: Condvar::new(),
            is_left: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            held: OnceLock::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PipeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a frame into the pipe, waiting for room. Returns false if the export was stopped.
    pub(super) fn put(&self, frame: Vec<u8>) -> bool {
        let mut state = self.state();
        while state.len > 0 && state.len + frame.len() > PIPE_MAX && !self.is_stopped() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if self.is_stopped() {
            return false;
        }
        self.push(&mut state, frame);
        true
    }

    /// Puts the last frame into the pipe, even if there is no room.
    pub(super) fn end(&self, frame: Vec<u8>) {
        let mut state = self.state();
        if !state.is_over {
            state.is_over = true;
            self.push(&mut state, frame);
        }
    }

    fn push(&self, state: &mut PipeState, frame: Vec<u8>) {
        let was_empty = state.frames.is_empty();
        state.len += frame.len();
        state.has_moved = true;
        state.frames.push_back(frame);
        if was_empty {
            self.handle.wake();
        }
    }

    /// Moves complete frames to an output while that holds less than `len_max` bytes.
    pub(super) fn take(&self, output: &mut Output, len_max: usize) -> TakenFrames {
        let mut state = self.state();
        while output.len() < len_max
            && let Some(frame) = state.frames.pop_front()
        {
            state.len -= frame.len();
            state.has_moved = true;
            output.put(&frame);
        }
        self.changed.notify_all();
        if state.is_over && state.frames.is_empty() { TakenFrames::All } else { TakenFrames::Some }
    }

    /// Notes that the receiver has closed, and notifies the producer.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        self.is_stopped.store(true, Ordering::Relaxed);
        // A producer between its check and its wait holds this lock.
        let mut state = self.state();
        state.frames = VecDeque::new();
        state.len = 0;
        self.changed.notify_all();
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    /// Replaces all frames that have not left yet by a last frame, and stops the producer.
    pub(super) fn cut_short(&self, frame: Vec<u8>) {
        // A producer between its check and its wait, or within `put`, holds this lock.
        let mut state = self.state();
        self.is_stopped.store(true, Ordering::Relaxed);
        if !state.is_over {
            state.frames = VecDeque::new();
            state.len = 0;
            state.is_over = true;
            self.push(&mut state, frame);
        }
        self.changed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Returns a flag that is true once the producer may stop, for code that polls it.
    pub(super) fn stop_flag(&self) -> &AtomicBool {
        &self.is_stopped
    }

    /// Sets the part of the log that is kept for this export.
    pub(super) fn keeps(&self, held: HeldBytes) {
        let _ = self.held.set(held);
    }

    /// Returns the bytes of the log that are on disk only for this export; 0 once it has ended.
    pub(super) fn held_len(&self) -> u64 {
        self.held.get().map_or(0, HeldBytes::len_bytes)
    }

    /// Returns true if nothing will ever be taken from the pipe again.
    pub(super) fn is_done(&self) -> bool {
        let state = self.state();
        state.is_over && (state.frames.is_empty() || self.is_left())
    }

    /// Notifies the producer of news.
    pub(super) fn nudge(&self) {
        self.state().nudged = true;
        self.changed.notify_all();
    }

    /// Waits for news for at most `timeout`. Returns false if the export was stopped.
    pub(super) fn wait_for_news(&self, timeout: Duration) -> bool {
        let waits = |state: &mut PipeState| !state.nudged && !self.is_stopped();
        let waited = self.changed.wait_timeout_while(self.state(), timeout, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.nudged = false;
        !self.is_stopped()
    }

    /// Waits for `time`. Returns false if the export was stopped.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let state = self.state();
        let waits = |_: &mut PipeState| !self.is_stopped();
        let _rested = self.changed.wait_timeout_while(state, time, waits);
        !self.is_stopped()
    }

    /// Sends an idle receiver a line if nothing was sent since the last check. Returns true if
    /// frames have been waiting for `looks_max` checks: the receiver then takes nothing.
    pub(super) fn look(&self, looks_max: u32) -> bool {
        let mut state = self.state();
        if std::mem::take(&mut state.has_moved) || state.is_over && state.frames.is_empty() {
            state.quiet_looks = 0;
        } else if state.frames.is_empty() {
            self.push(&mut state, WAIT.to_vec());
        } else {
            state.quiet_looks += 1;
        }
        state.quiet_looks >= looks_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::wake::{WaitingConnections, WakeQueues};
    use std::sync::Arc;

    fn pipe() -> Arc<ExportPipe> {
        let queues = Arc::new(WakeQueues::new(1));
        Arc::new(ExportPipe::new(WaitingConnections::new(queues, 0).enter_new()))
    }

    fn taken(pipe: &ExportPipe, len_max: usize) -> (Vec<u8>, TakenFrames) {
        let (mut output, mut bytes) = (Output::default(), Vec::new());
        let taken = pipe.take(&mut output, len_max);
        output.write_to(&mut bytes).unwrap();
        (bytes, taken)
    }

    #[test]
    fn whole_frames_leave_in_order_and_the_last_one_is_known() {
        let pipe = pipe();
        assert!(pipe.put(b"one".to_vec()) && pipe.put(b"two".to_vec()));
        assert_eq!(taken(&pipe, 1), (b"one".to_vec(), TakenFrames::Some));
        pipe.end(b"end".to_vec());
        pipe.end(b"never".to_vec());
        assert!(!pipe.is_done());
        assert_eq!(taken(&pipe, 100), (b"twoend".to_vec(), TakenFrames::All));
        assert!(pipe.is_done());
    }

    #[test]
    fn who_fills_it_waits_for_room_and_hears_when_nobody_takes_any_more() {
        let pipe = pipe();
        let filler = {
            let pipe = Arc::clone(&pipe);
            std::thread::spawn(move || (0..).take_while(|_| pipe.put(vec![0; PIPE_MAX / 4])).count())
        };
        let mut got = 0;
        while got < 10 * PIPE_MAX {
            let (bytes, _) = taken(&pipe, 1);
            assert!(pipe.state().len <= PIPE_MAX);
            got += bytes.len();
        }
        pipe.leave();
        let put = filler.join().unwrap();
        // At most the frames that were taken and those that fit.
        assert!((40..=44).contains(&put), "{put}");
        assert!(!pipe.put(b"x".to_vec()) && !pipe.wait_for_news(Duration::MAX) && !pipe.rest(Duration::MAX));
    }

    #[test]
    fn what_is_cut_short_ends_with_why_and_who_fills_it_puts_nothing_behind_that() {
        let pipe = pipe();
        assert!(pipe.put(vec![b'x'; PIPE_MAX]));
        let filler = {
            let pipe = Arc::clone(&pipe);
            std::thread::spawn(move || {
                assert!(!pipe.put(b"one more".to_vec()));
                pipe.end(b"another end".to_vec());
            })
        };
        pipe.cut_short(b"why".to_vec());
        filler.join().unwrap();
        assert!(pipe.is_stopped() && !pipe.is_left() && !pipe.wait_for_news(Duration::MAX));
        assert_eq!(taken(&pipe, PIPE_MAX), (b"why".to_vec(), TakenFrames::All));
        assert!(pipe.is_done());
        // Once the last frame is in the pipe, nothing is cut.
        let pipe = self::pipe();
        pipe.end(b"all".to_vec());
        pipe.cut_short(b"why".to_vec());
        assert_eq!(taken(&pipe, 100), (b"all".to_vec(), TakenFrames::All));
    }

    #[test]
    fn a_look_speaks_where_all_is_quiet_and_finds_out_who_takes_nothing() {
        let pipe = pipe();
        assert!(!pipe.look(2));
        assert_eq!(taken(&pipe, 100), (WAIT.to_vec(), TakenFrames::Some));
        pipe.put(b"x".to_vec());
        // It has moved since the first check, and not since the next two.
        assert_eq!([pipe.look(2), pipe.look(2), pipe.look(2)], [false, false, true]);
        assert_eq!(taken(&pipe, 100), (b"x".to_vec(), TakenFrames::Some));
        assert!(!pipe.look(2));
        pipe.end(b"end".to_vec());
        assert_eq!(taken(&pipe, 100), (b"end".to_vec(), TakenFrames::All));
        assert_eq!([pipe.look(1), pipe.look(1)], [false, false]);
        assert_eq!(taken(&pipe, 100), (vec![], TakenFrames::All));
    }
}
