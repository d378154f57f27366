//! Handles Ctrl-C and SIGTERM in commands that must remove unfinished files before they end.

use crate::CommandFailure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The exit code that shells report for a program that SIGINT has ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// A flag that the first signal sets. A second signal ends the process at once.
#[derive(Clone)]
pub(crate) struct InterruptionFlag(Arc<AtomicBool>);

/// The flag, once the signals are handled. There is one, because a shell runs several commands.
static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

impl InterruptionFlag {
    /// Starts to handle the signals.
    pub(crate) fn watch() -> io::Result<InterruptionFlag> {
        if let Some(flag) = FLAG.get() {
            return Ok(InterruptionFlag(Arc::clone(flag)));
        }
        let has_come = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, EXIT_CODE.into(), Arc::clone(&has_come))?;
            flag::register(signal, Arc::clone(&has_come))?;
        }
        Ok(InterruptionFlag(Arc::clone(FLAG.get_or_init(|| has_come))))
    }

    /// Returns the flag, which is true after the first signal.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Forgets the signals that have arrived, before the next command of a shell.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Fails if a signal has arrived.
    pub(crate) fn check(&self) -> Result<(), CommandFailure> {
        if self.0.load(Ordering::Relaxed) { Err(CommandFailure::interrupted()) } else { Ok(()) }
    }
}
