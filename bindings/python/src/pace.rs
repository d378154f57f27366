//! Decides whether calls hold the interpreter or release it.
//!
//! Releasing and reacquiring the interpreter takes about 100 ns if no other thread wants it, and up
//! to 5 ms otherwise. A read of a record in memory takes 200 ns. So calls that never wait hold the
//! interpreter, and writes to a disk release it. Reads from a disk are in between: they do not wait
//! as long as the system has the pages in memory. One read in sixteen is timed. After a long read,
//! reads release the interpreter until many reads in a row were short.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The time between the two kinds of reads: a read from the disk takes longer, and a read from the
/// system's memory takes less.
const LONG: Duration = Duration::from_micros(30);
const TIMED_ONE_IN: u32 = 16;
const QUICK_IN_A_ROW: u32 = 256;

pub(crate) enum CallPace {
    /// Calls never wait.
    Memory,
    /// Reads may wait. Their timing decides.
    Disk(DiskPace),
    /// Every call may wait.
    Waits,
}

#[derive(Default)]
pub(crate) struct DiskPace {
    calls: AtomicU32,
    /// The number of calls that will still release the interpreter.
    released_calls: AtomicU32,
}

/// The permission to run a call while holding the interpreter. If the call is timed, dropping the
/// permission records the duration.
pub(crate) struct CallPermission<'p>(Option<(&'p DiskPace, Instant)>);

impl Drop for CallPermission<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((disk, start)) = &self.0 {
            disk.note(start.elapsed());
        }
    }
}

impl DiskPace {
    #[cold]
    fn note(&self, took: Duration) {
        // Threads may overwrite each other's number here, which does no harm.
        let released_calls = if took > LONG {
            QUICK_IN_A_ROW
        } else {
            self.released_calls.load(Ordering::Relaxed).saturating_sub(1)
        };
        self.released_calls.store(released_calls, Ordering::Relaxed);
    }
}

impl CallPace {
    /// Returns the permission to hold the interpreter, or `None` for a call that must release it.
    #[inline]
    pub(crate) fn turn(&self) -> Option<CallPermission<'_>> {
        match self {
            CallPace::Memory => Some(CallPermission(None)),
            CallPace::Disk(disk) if disk.released_calls.load(Ordering::Relaxed) == 0 => {
                let calls = disk.calls.load(Ordering::Relaxed).wrapping_add(1);
                disk.calls.store(calls, Ordering::Relaxed);
                Some(CallPermission(calls.is_multiple_of(TIMED_ONE_IN).then(|| (disk, Instant::now()))))
            }
            CallPace::Disk(_) | CallPace::Waits => None,
        }
    }

    /// Runs a call with or without the interpreter.
    #[inline]
    pub(crate) fn run<T: Send>(&self, py: Python<'_>, run: impl FnOnce() -> T + Send) -> T {
        match self.turn() {
            Some(_turn) => run(),
            None => self.detached(py, run),
        }
    }

    /// Runs a call without the interpreter.
    pub(crate) fn detached<T: Send>(&self, py: Python<'_>, run: impl FnOnce() -> T + Send) -> T {
        py.detach(|| {
            let CallPace::Disk(disk) = self else { return run() };
            let start = Instant::now();
            let outcome = run();
            disk.note(start.elapsed());
            outcome
        })
    }
}
