//! How long a call may take.

use mlua::{HookTriggers, Lua, VmState};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A check costs about as much as this many instructions, or less.
const INSTRUCTIONS: u32 = 10_000;

/// When the call under way has to be over. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Deadline(Arc<Mutex<Option<Instant>>>);

impl Deadline {
    /// A call begins, and may take so long.
    pub(crate) fn begin(&self, time_max: Duration) {
        *self.0.lock() = Instant::now().checked_add(time_max);
    }

    /// The call is over.
    pub(crate) fn end(&self) {
        *self.0.lock() = None;
    }

    /// Fails once the time is over, and each time from then on.
    pub(crate) fn check(&self) -> mlua::Result<()> {
        if self.left().is_zero() {
            return Err(mlua::Error::runtime("the procedure has taken too long"));
        }
        Ok(())
    }

    /// How much time is left.
    pub(crate) fn left(&self) -> Duration {
        self.0.lock().map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Has the machine check it from time to time.
    pub(crate) fn watch(&self, lua: &Lua) -> mlua::Result<()> {
        let deadline = self.clone();
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS);
        lua.set_global_hook(triggers, move |_, _| deadline.check().map(|()| VmState::Continue))
    }
}
