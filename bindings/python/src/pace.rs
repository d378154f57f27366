//! Whether calls hold the interpreter or give it up.
//!
//! To give it up and get it back takes some 100 ns where nobody else wants it, and up to 5 ms where somebody does; a read of a record in
//! memory takes 200. So what never waits holds it, and writes to a disk, which may, give it up. Reads from a disk are in between: as long as
//! the system has its pages in memory they do not wait. One in sixteen is timed; after one that took long they give the interpreter up until
//! many in a row were quick.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A read from the disk itself takes longer, one from the system's memory less.
const LONG: Duration = Duration::from_micros(30);
const TIMED_ONE_IN: u32 = 16;
const QUICK_IN_A_ROW: u32 = 256;

pub(crate) enum Pace {
    /// Nothing waits.
    Memory,
    /// What waits and what does not is found out.
    Disk(Disk),
    /// All may wait.
    Waits,
}

#[derive(Default)]
pub(crate) struct Disk {
    calls: AtomicU32,
    /// So many calls more give the interpreter up.
    wary: AtomicU32,
}

/// Leave to run a call with the interpreter held. It is told how long it has taken when it is dropped, if that is wanted.
pub(crate) struct Turn<'p>(Option<(&'p Disk, Instant)>);

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((disk, start)) = &self.0 {
            disk.note(start.elapsed());
        }
    }
}

impl Disk {
    #[cold]
    fn note(&self, took: Duration) {
        // Threads may overtake one another here, to no harm.
        let wary =
            if took > LONG { QUICK_IN_A_ROW } else { self.wary.load(Ordering::Relaxed).saturating_sub(1) };
        self.wary.store(wary, Ordering::Relaxed);
    }
}

impl Pace {
    /// Leave to hold the interpreter; `None` for whoever is to give it up.
    #[inline]
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        match self {
            Pace::Memory => Some(Turn(None)),
            Pace::Disk(disk) if disk.wary.load(Ordering::Relaxed) == 0 => {
                let calls = disk.calls.load(Ordering::Relaxed).wrapping_add(1);
                disk.calls.store(calls, Ordering::Relaxed);
                Some(Turn(calls.is_multiple_of(TIMED_ONE_IN).then(|| (disk, Instant::now()))))
            }
            Pace::Disk(_) | Pace::Waits => None,
        }
    }

    /// Runs a call with the interpreter held or given up.
    #[inline]
    pub(crate) fn run<T: Send>(&self, py: Python<'_>, run: impl FnOnce() -> T + Send) -> T {
        match self.turn() {
            Some(_turn) => run(),
            None => self.detached(py, run),
        }
    }

    /// Runs a call with the interpreter given up.
    pub(crate) fn detached<T: Send>(&self, py: Python<'_>, run: impl FnOnce() -> T + Send) -> T {
        py.detach(|| {
            let Pace::Disk(disk) = self else { return run() };
            let start = Instant::now();
            let outcome = run();
            disk.note(start.elapsed());
            outcome
        })
    }
}
