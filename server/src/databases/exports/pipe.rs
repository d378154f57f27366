//! Defines the bounded pipe from the thread that produces an export to the worker that sends it.

use crate::session::wake::WakeHandle;
use crate::transport::output::ConnectionOutput;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use todana::checkpoint::HeldBytes;
use todana_protocol::memcached::ReplySink;

/// The maximum number of bytes in the pipe, unless a single frame is longer.
const PIPE_MAX: usize = 256 << 10;
/// The line that reports that there is no data yet.
const WAIT: &[u8] = b"WAIT\r\n";

/// A pipe with the frames that were produced and not sent. The producer may wait for the pipe; the
/// worker never does.
pub(super) struct ExportPipe {
    /// Wakes the receiving connection. `None` if no client receives the export.
    handle: Option<WakeHandle>,
    state: Mutex<PipeState>,
    /// Signals that the pipe has space, or that the update log has grown.
    changed: Condvar,
    /// True once the receiver has closed.
    is_receiver_closed: AtomicBool,
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
    /// True if a frame was put in or taken out since the last check.
    has_moved: bool,
    /// The number of checks since a frame was last put in or taken out.
    quiet_checks: u32,
    /// True if the update log has grown since the producer last waited for it.
    has_log_grown: bool,
}

/// The result of taking frames out of the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenFrames {
    /// More frames may follow.
    Some,
    /// The last frame was taken.
    All,
}

impl ExportPipe {
    pub(super) fn new(handle: impl Into<Option<WakeHandle>>) -> ExportPipe {
        ExportPipe {
            handle: handle.into(),
            state: Mutex::default(),
            changed: Condvar::new(),
            is_receiver_closed: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            held: OnceLock::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PipeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a frame into the pipe; waits while the pipe is full. Returns false if the export was
    /// stopped.
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

    /// Puts the last frame into the pipe, even if the pipe is full.
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
        if let (true, Some(handle)) = (was_empty, &self.handle) {
            handle.wake();
        }
    }

    /// Moves complete frames to an output while the output holds less than `len_max` bytes.
    pub(super) fn take(&self, output: &mut ConnectionOutput, len_max: usize) -> TakenFrames {
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
    pub(super) fn close_receiver(&self) {
        self.is_receiver_closed.store(true, Ordering::Relaxed);
        self.is_stopped.store(true, Ordering::Relaxed);
        // A producer that is between its check and its wait holds this lock, so it does not miss
        // the notification.
        let mut state = self.state();
        state.frames = VecDeque::new();
        state.len = 0;
        self.changed.notify_all();
    }

    pub(super) fn is_receiver_closed(&self) -> bool {
        self.is_receiver_closed.load(Ordering::Relaxed)
    }

    /// Replaces all frames in the pipe by a last frame, and stops the producer.
    pub(super) fn end_early(&self, frame: Vec<u8>) {
        // A producer that is within `put`, or between its check and its wait, holds this lock, so
        // it does not miss the notification.
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

    /// Returns a flag that is true once the producer may stop, for code that polls the flag.
    pub(super) fn stop_flag(&self) -> &AtomicBool {
        &self.is_stopped
    }

    /// Sets the part of the log that is kept for this export.
    pub(super) fn set_held(&self, held: HeldBytes) {
        let _ = self.held.set(held);
    }

    /// Returns the bytes of the log that are on disk only for this export; 0 once it has ended.
    pub(super) fn held_len(&self) -> u64 {
        self.held.get().map_or(0, HeldBytes::len_bytes)
    }

    /// Returns true if no more frames will be taken from the pipe.
    pub(super) fn is_done(&self) -> bool {
        let state = self.state();
        state.is_over && (state.frames.is_empty() || self.is_receiver_closed() || self.handle.is_none())
    }

    /// Notifies the producer that the update log has grown.
    pub(super) fn note_log_growth(&self) {
        self.state().has_log_grown = true;
        self.changed.notify_all();
    }

    /// Waits until the update log has grown, for at most `timeout`. Returns false if the export was
    /// stopped.
    pub(super) fn wait_for_log_growth(&self, timeout: Duration) -> bool {
        let waits = |state: &mut PipeState| !state.has_log_grown && !self.is_stopped();
        let waited = self.changed.wait_timeout_while(self.state(), timeout, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_log_grown = false;
        !self.is_stopped()
    }

    /// Waits for `time`. Returns false if the export was stopped.
    pub(super) fn sleep_for(&self, time: Duration) -> bool {
        let state = self.state();
        let waits = |_: &mut PipeState| !self.is_stopped();
        let _rested = self.changed.wait_timeout_while(state, time, waits);
        !self.is_stopped()
    }

    /// Puts a line into the pipe if no frame was put in or taken out since the last check. Returns
    /// true if frames have waited for `checks_max` checks, so that the receiver reads nothing.
    pub(super) fn check_receiver(&self, checks_max: u32) -> bool {
        let mut state = self.state();
        if self.handle.is_none()
            || std::mem::take(&mut state.has_moved)
            || state.is_over && state.frames.is_empty()
        {
            state.quiet_checks = 0;
        } else if state.frames.is_empty() {
            self.push(&mut state, WAIT.to_vec());
        } else {
            state.quiet_checks += 1;
        }
        state.quiet_checks >= checks_max
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
        let (mut output, mut bytes) = (ConnectionOutput::default(), Vec::new());
        let taken = pipe.take(&mut output, len_max);
        output.write_to(&mut bytes).unwrap();
        (bytes, taken)
    }

    #[test]
    fn complete_frames_leave_in_order_until_the_last() {
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
    fn producer_waits_for_room_until_the_reader_leaves() {
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
        pipe.close_receiver();
        let put = filler.join().unwrap();
        // The number includes the frames that were taken and the frames that fit into the pipe.
        assert!((40..=44).contains(&put), "{put}");
        assert!(
            !pipe.put(b"x".to_vec())
                && !pipe.wait_for_log_growth(Duration::MAX)
                && !pipe.sleep_for(Duration::MAX)
        );
    }

    /// After the reason for an early end, the producer can put in no more frames.
    #[test]
    fn cut_pipe_ends_with_its_reason_alone() {
        let pipe = pipe();
        assert!(pipe.put(vec![b'x'; PIPE_MAX]));
        let filler = {
            let pipe = Arc::clone(&pipe);
            std::thread::spawn(move || {
                assert!(!pipe.put(b"one more".to_vec()));
                pipe.end(b"another end".to_vec());
            })
        };
        pipe.end_early(b"why".to_vec());
        filler.join().unwrap();
        assert!(pipe.is_stopped() && !pipe.is_receiver_closed() && !pipe.wait_for_log_growth(Duration::MAX));
        assert_eq!(taken(&pipe, PIPE_MAX), (b"why".to_vec(), TakenFrames::All));
        assert!(pipe.is_done());
        // Once the last frame is in the pipe, an early end changes nothing.
        let pipe = self::pipe();
        pipe.end(b"all".to_vec());
        pipe.end_early(b"why".to_vec());
        assert_eq!(taken(&pipe, 100), (b"all".to_vec(), TakenFrames::All));
    }

    /// An empty pipe gets a frame that keeps the connection open. A reader that has taken nothing
    /// for two checks is stalled.
    #[test]
    fn check_sends_wait_and_detects_a_stalled_reader() {
        let pipe = pipe();
        assert!(!pipe.check_receiver(2));
        assert_eq!(taken(&pipe, 100), (WAIT.to_vec(), TakenFrames::Some));
        pipe.put(b"x".to_vec());
        // A frame was taken before the first of these checks, and none before the next two.
        assert_eq!(
            [pipe.check_receiver(2), pipe.check_receiver(2), pipe.check_receiver(2)],
            [false, false, true]
        );
        assert_eq!(taken(&pipe, 100), (b"x".to_vec(), TakenFrames::Some));
        assert!(!pipe.check_receiver(2));
        pipe.end(b"end".to_vec());
        assert_eq!(taken(&pipe, 100), (b"end".to_vec(), TakenFrames::All));
        assert_eq!([pipe.check_receiver(1), pipe.check_receiver(1)], [false, false]);
        assert_eq!(taken(&pipe, 100), (vec![], TakenFrames::All));
    }
}
