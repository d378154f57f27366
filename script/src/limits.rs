//! How long a call may take.

use mlua::{HookTriggers, Lua, VmState};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A check costs less than a tenth of this many instructions. Each of them may be a call of C that copies all of the memory.
const INSTRUCTIONS: u32 = 1_000;
/// How long a call goes on that is called off: what takes a moment ends as it should.
const GRACE: Duration = Duration::from_secs(1);
/// Whoever sleeps looks this often whether it is called off.
const NAP: Duration = Duration::from_millis(20);

/// When the call under way has to be over. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Deadline(Arc<Mutex<Times>>);

#[derive(Default)]
struct Times {
    end: Option<Instant>,
    /// What it does counts for nothing since then.
    paused_since: Option<Instant>,
    called_off: Option<Arc<AtomicBool>>,
    /// When it was seen to be called off.
    called_off_since: Option<Instant>,
}

impl Times {
    fn is_called_off(&mut self) -> bool {
        if self.called_off_since.is_none()
            && self.called_off.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
        {
            self.called_off_since = Some(Instant::now());
        }
        self.called_off_since.is_some_and(|since| since.elapsed() >= GRACE)
    }
}

/// As long as it lives, time does not count.
pub(crate) struct Pause<'d>(&'d Deadline);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let mut times = self.0.0.lock();
        if let Some(since) = times.paused_since.take() {
            times.end = times.end.and_then(|end| end.checked_add(since.elapsed()));
        }
    }
}

impl Deadline {
    /// A call begins, and may take so long.
    pub(crate) fn begin(&self, time_max: Duration, called_off: Option<Arc<AtomicBool>>) {
        let end = Instant::now().checked_add(time_max);
        *self.0.lock() = Times { end, called_off, ..Times::default() };
    }

    /// The call is over.
    pub(crate) fn end(&self) {
        *self.0.lock() = Times::default();
    }

    /// What is done from here on does not count, until the pause is dropped: it is not the script's own time. It can be called off all the
    /// same.
    pub(crate) fn pause(&self) -> Pause<'_> {
        let mut times = self.0.lock();
        times.paused_since = times.paused_since.or_else(|| Some(Instant::now()));
        Pause(self)
    }

    /// Fails once the time is over or the call is called off, and each time from then on.
    pub(crate) fn check(&self) -> mlua::Result<()> {
        if self.0.lock().is_called_off() {
            return Err(mlua::Error::runtime("the server is stopping"));
        }
        if self.left().is_zero() {
            return Err(mlua::Error::runtime("the procedure has taken too long"));
        }
        Ok(())
    }

    /// How much time is left.
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

    /// Sleeps, at most until the time is over.
    pub(crate) fn sleep(&self, wanted: Duration) {
        let since = Instant::now();
        loop {
            let left = self.left().min(wanted.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }

    /// Has the machine check it from time to time.
    pub(crate) fn watch(&self, lua: &Lua) -> mlua::Result<()> {
        let deadline = self.clone();
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS);
        lua.set_global_hook(triggers, move |_, _| deadline.check().map(|()| VmState::Continue))
    }
}
