//! Enforces the time limit of a call.

use mlua::{HookTriggers, Lua, VmState};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The number of Lua instructions between two checks. A check costs less than a tenth of the time
/// of these instructions. The number is not higher, because a single instruction may call a C
/// function that copies all memory.
const INSTRUCTIONS: u32 = 1_000;
/// The time for which a cancelled call may continue, so that a short call ends normally.
const GRACE: Duration = Duration::from_secs(1);
/// The interval at which a sleeping call checks for cancellation.
const CANCELLATION_INTERVAL: Duration = Duration::from_millis(20);

/// The deadline of the current call. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Deadline(Arc<Mutex<CallTimes>>);

#[derive(Default)]
struct CallTimes {
    end: Option<Instant>,
    /// The start of the current pause, during which time does not count.
    paused_since: Option<Instant>,
    called_off: Option<Arc<AtomicBool>>,
    /// The time at which the cancellation was noticed.
    called_off_since: Option<Instant>,
}

impl CallTimes {
    fn is_called_off(&mut self) -> bool {
        if self.called_off_since.is_none()
            && self.called_off.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
        {
            self.called_off_since = Some(Instant::now());
        }
        self.called_off_since.is_some_and(|since| since.elapsed() >= GRACE)
    }
}

/// A pause of the deadline, which ends on drop.
pub(crate) struct DeadlinePause<'d>(&'d Deadline);

impl Drop for DeadlinePause<'_> {
    fn drop(&mut self) {
        let mut times = self.0.0.lock();
        if let Some(since) = times.paused_since.take() {
            times.end = times.end.and_then(|end| end.checked_add(since.elapsed()));
        }
    }
}

impl Deadline {
    /// Starts a call that may take `time_max`.
    pub(crate) fn begin(&self, time_max: Duration, called_off: Option<Arc<AtomicBool>>) {
        let end = Instant::now().checked_add(time_max);
        *self.0.lock() = CallTimes { end, called_off, ..CallTimes::default() };
    }

    /// Ends the call.
    pub(crate) fn end(&self) {
        *self.0.lock() = CallTimes::default();
    }

    /// Pauses the deadline until the returned value is dropped, for work that the script does not
    /// control. The call can still be cancelled.
    pub(crate) fn pause(&self) -> DeadlinePause<'_> {
        let mut times = self.0.lock();
        times.paused_since = times.paused_since.or_else(|| Some(Instant::now()));
        DeadlinePause(self)
    }

    /// Fails if the deadline has passed or the call was cancelled. Every later check of the same
    /// call then fails, too.
    pub(crate) fn check(&self) -> mlua::Result<()> {
        if self.0.lock().is_called_off() {
            return Err(mlua::Error::runtime("the server is stopping"));
        }
        if self.left().is_zero() {
            return Err(mlua::Error::runtime("the procedure has taken too long"));
        }
        Ok(())
    }

    /// Returns the remaining time.
    pub(crate) fn left(&self) -> Duration {
        let mut times = self.0.lock();
        if times.is_called_off() {
            return Duration::ZERO;
        }
        match times.end {
            Some(end) if times.paused_since.is_none() => end.saturating_duration_since(Instant::now()),
            _ => Duration::MAX,
        }
    }

    /// Runs work that takes no notice of the deadline, but of a flag. Sets the flag once the time of
    /// the call is over, or the call was cancelled.
    pub(crate) fn cancel_late<T>(&self, work: impl FnOnce(&Arc<AtomicBool>) -> T) -> T {
        let flag = Arc::new(AtomicBool::new(false));
        let (end, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let ended = ended;
                while ended.recv_timeout(CANCELLATION_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    if self.left().is_zero() {
                        flag.store(true, Ordering::Relaxed);
                    }
                }
            });
            // Dropped after the work, also if the work panics.
            let _end = end;
            work(&flag)
        })
    }

    /// Sleeps for this time, or until the deadline if that is earlier.
    pub(crate) fn sleep(&self, wanted: Duration) {
        let since = Instant::now();
        loop {
            let left = self.left().min(wanted.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(CANCELLATION_INTERVAL));
        }
    }

    /// Makes the interpreter check the deadline periodically.
    pub(crate) fn watch(&self, lua: &Lua) -> mlua::Result<()> {
        let deadline = self.clone();
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS);
        lua.set_global_hook(triggers, move |_, _| deadline.check().map(|()| VmState::Continue))
    }
}
