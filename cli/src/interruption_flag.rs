//! Ctrl-C and SIGTERM, for commands that have something to clear away first.

use crate::CommandFailure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a shell reports of a program that SIGINT has ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// Notices the first signal; the second one ends the process at once.
pub(crate) struct InterruptionFlag(Arc<AtomicBool>);

impl InterruptionFlag {
    /// From here on signals are noticed.
    pub(crate) fn watch() -> io::Result<InterruptionFlag> {
        let has_come = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, EXIT_CODE.into(), Arc::clone(&has_come))?;
            flag::register(signal, Arc::clone(&has_come))?;
        }
        Ok(InterruptionFlag(has_come))
    }

    /// True once one has come.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Fails once one has come.
    pub(crate) fn check(&self) -> Result<(), CommandFailure> {
        if self.0.load(Ordering::Relaxed) { Err(CommandFailure::interrupted()) } else { Ok(()) }
    }
}
