//! A bounded way from the thread that makes a stream to the worker whose connection it leaves by.

use crate::session::wake::WakeHandle;
use crate::transport::output::Output;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use todana::checkpoint::HeldBytes;
use todana_protocol::memcached::ReplySink;

/// What waits in it at most, unless a single frame is longer.
const PIPE_MAX: usize = 256 << 10;
/// What says that there is nothing to say yet.
const WAIT: &[u8] = b"WAIT\r\n";

/// Frames on their way. Those who take it are never kept waiting, the one who fills it is.
pub(super) struct Pipe {
    /// Wakes the connection that it leads to.
    handle: WakeHandle,
    state: Mutex<State>,
    /// There is room, or news for the one who fills it.
    changed: Condvar,
    /// Nobody takes any more.
    is_left: AtomicBool,
    /// Whoever fills it need not go on: nobody takes any more, or the last frame is in.
    is_stopped: AtomicBool,
    /// What of the log is kept for it.
    held: OnceLock<HeldBytes>,
}

#[derive(Default)]
struct State {
    frames: VecDeque<Vec<u8>>,
    len: usize,
    /// The last frame is in.
    is_over: bool,
    /// Something went in or out since the last look.
    has_moved: bool,
    /// Looks since then.
    quiet_looks: u32,
    /// There is news.
    nudged: bool,
}

/// What has come out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// There may be more later.
    Some,
    /// That was all.
    All,
}

impl Pipe {
    pub(super) fn new(handle: WakeHandle) -> Pipe {
        Pipe {
            handle,
            state: Mutex::default(),
            changed: Condvar::new(),
            is_left: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            held: OnceLock::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a frame in, once there is room; false if it has been stopped.
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

    /// Puts the last frame in, whether there is room or not.
    pub(super) fn end(&self, frame: Vec<u8>) {
        let mut state = self.state();
        if !state.is_over {
            state.is_over = true;
            self.push(&mut state, frame);
        }
    }

    fn push(&self, state: &mut State, frame: Vec<u8>) {
        let was_empty = state.frames.is_empty();
        state.len += frame.len();
        state.has_moved = true;
        state.frames.push_back(frame);
        if was_empty {
            self.handle.wake();
        }
    }

    /// Moves whole frames to an output, as long as that holds less than `len_max`.
    pub(super) fn take(&self, output: &mut Output, len_max: usize) -> Taken {
        let mut state = self.state();
        while output.len() < len_max
            && let Some(frame) = state.frames.pop_front()
        {
            state.len -= frame.len();
            state.has_moved = true;
            output.put(&frame);
        }
        self.changed.notify_all();
        if state.is_over && state.frames.is_empty() { Taken::All } else { Taken::Some }
    }

    /// Nobody takes any more: whoever fills it hears of it.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        self.is_stopped.store(true, Ordering::Relaxed);
        // Whoever is between its look and its wait holds this lock.
        let mut state = self.state();
        state.frames = VecDeque::new();
        state.len = 0;
        self.changed.notify_all();
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    /// Puts the last frame in, in place of all that have not left yet, and has whoever fills it stop.
    pub(super) fn cut_short(&self, frame: Vec<u8>) {
        // Whoever is between its look and its wait, or puts something in, holds this lock.
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

    /// True as soon as whoever fills it need not go on, for those who look at it from time to time.
    pub(super) fn stop_flag(&self) -> &AtomicBool {
        &self.is_stopped
    }

    /// From now on this is kept for it.
    pub(super) fn keeps(&self, held: HeldBytes) {
        let _ = self.held.set(held);
    }

    /// Bytes of the log that are on disk for its sake alone; 0 once it is over.
    pub(super) fn held_len(&self) -> u64 {
        self.held.get().map_or(0, HeldBytes::len_bytes)
    }

    /// Nothing will ever be taken from it again.
    pub(super) fn is_done(&self) -> bool {
        let state = self.state();
        state.is_over && (state.frames.is_empty() || self.is_left())
    }

    /// There is news for the one who fills it.
    pub(super) fn nudge(&self) {
        self.state().nudged = true;
        self.changed.notify_all();
    }

    /// Waits for news, at most so long; false if it has been stopped.
    pub(super) fn wait_for_news(&self, timeout: Duration) -> bool {
        let waits = |state: &mut State| !state.nudged && !self.is_stopped();
        let waited = self.changed.wait_timeout_while(self.state(), timeout, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.nudged = false;
        !self.is_stopped()
    }

    /// Waits so long; false if it has been stopped.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let state = self.state();
        let waits = |_: &mut State| !self.is_stopped();
        let _rested = self.changed.wait_timeout_while(state, time, waits);
        !self.is_stopped()
    }

    /// Says that it is still there, where nothing else has been said since the last look. True if what is in it has been left
    /// standing at so many looks: its receiver is no receiver.
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

    fn pipe() -> Arc<Pipe> {
        let queues = Arc::new(WakeQueues::new(1));
        Arc::new(Pipe::new(WaitingConnections::new(queues, 0).enter_new()))
    }

    fn taken(pipe: &Pipe, len_max: usize) -> (Vec<u8>, Taken) {
        let (mut output, mut bytes) = (Output::default(), Vec::new());
        let taken = pipe.take(&mut output, len_max);
        output.write_to(&mut bytes).unwrap();
        (bytes, taken)
    }

    #[test]
    fn whole_frames_leave_in_order_and_the_last_one_is_known() {
        let pipe = pipe();
        assert!(pipe.put(b"one".to_vec()) && pipe.put(b"two".to_vec()));
        assert_eq!(taken(&pipe, 1), (b"one".to_vec(), Taken::Some));
        pipe.end(b"end".to_vec());
        pipe.end(b"never".to_vec());
        assert!(!pipe.is_done());
        assert_eq!(taken(&pipe, 100), (b"twoend".to_vec(), Taken::All));
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
        // No more than what was taken and what had room.
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
        assert_eq!(taken(&pipe, PIPE_MAX), (b"why".to_vec(), Taken::All));
        assert!(pipe.is_done());
        // Where all of it is in already nothing is cut.
        let pipe = self::pipe();
        pipe.end(b"all".to_vec());
        pipe.cut_short(b"why".to_vec());
        assert_eq!(taken(&pipe, 100), (b"all".to_vec(), Taken::All));
    }

    #[test]
    fn a_look_speaks_where_all_is_quiet_and_finds_out_who_takes_nothing() {
        let pipe = pipe();
        assert!(!pipe.look(2));
        assert_eq!(taken(&pipe, 100), (WAIT.to_vec(), Taken::Some));
        pipe.put(b"x".to_vec());
        // It has moved since; then it has not, twice.
        assert_eq!([pipe.look(2), pipe.look(2), pipe.look(2)], [false, false, true]);
        assert_eq!(taken(&pipe, 100), (b"x".to_vec(), Taken::Some));
        assert!(!pipe.look(2));
        pipe.end(b"end".to_vec());
        assert_eq!(taken(&pipe, 100), (b"end".to_vec(), Taken::All));
        assert_eq!([pipe.look(1), pipe.look(1)], [false, false]);
        assert_eq!(taken(&pipe, 100), (vec![], Taken::All));
    }
}
