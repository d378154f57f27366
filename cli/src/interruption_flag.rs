//! Handles Ctrl-C and SIGTERM in commands that must remove unfinished files before they end.

use crate::CommandFailure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code that shells report for a program that SIGINT has ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// A flag that the first signal sets. A second signal ends the process at once.
pub(crate) struct InterruptionFlag(Arc<AtomicBool>);

impl InterruptionFlag {
    /// Starts to handle the signals.
    pub(crate) fn watch() -> io::Result<InterruptionFlag> {
        let has_come = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, EXIT_CODE.into(), Arc::clone(&has_come))?;
            flag::register(signal, Arc::clone(&has_come))?;
        }
        Ok(InterruptionFlag(has_come))
    }

    /// Returns the flag, which is true after the first signal.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Fails if a signal has arrived.
    pub(crate) fn check(&self) -> Result<(), CommandFailure> {
        if self.0.load(Ordering::Relaxed) { Err(CommandFailure::interrupted()) } else { Ok(()) }
    }
}
