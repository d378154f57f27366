//! What all words of a machine know of it: its bounds, and what a call has left open.

use crate::limits::Deadline;
use crate::trouble::message;
use crate::turn::Turns;
use mlua::Lua;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// What procedures may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a call may take, and loading the program. What `copy` and `dump_snapshot` take does not count.
    pub time_max: Duration,
    /// How many bytes a machine may take; what is put together for it outside, too.
    pub memory_max: usize,
    /// Scripts get at files and programs: all of `os`, `io`, `package`, `dofile`, `loadfile`, and databases and snapshots by any path.
    pub is_unsafe: bool,
    /// The folder in which `copy`, `dump_snapshot` and `load_snapshot` write and read; without it, and without `is_unsafe`, they are
    /// refused. There, too, a file is replaced only if it is a snapshot.
    pub files: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options { time_max: Duration::from_secs(5), memory_max: 64 << 20, is_unsafe: false, files: None }
    }
}

/// Something in which a call may leave a transaction open.
pub(crate) trait Abort: Send + Sync {
    /// Ends the transaction and undoes it. Returns true if one was open.
    fn abort(&self) -> bool;
}

/// What all words of a machine know of it.
pub(crate) struct World {
    pub(crate) deadline: Deadline,
    pub(crate) options: Options,
    pub(crate) turns: Turns,
    /// Bytes of the texts that are put together outside of the machine at the moment.
    outside: AtomicUsize,
    bases: Mutex<Vec<Weak<dyn Abort>>>,
    /// The call has had an error that was overlooked.
    has_overlooked: AtomicBool,
}

impl World {
    pub(crate) fn new(options: &Options) -> World {
        World {
            deadline: Deadline::default(),
            options: options.clone(),
            turns: Turns::default(),
            outside: AtomicUsize::new(0),
            bases: Mutex::default(),
            has_overlooked: AtomicBool::new(false),
        }
    }

    /// What is left open there is aborted when a call is over.
    pub(crate) fn watch(&self, base: Weak<dyn Abort>) {
        let mut bases = self.bases.lock();
        bases.retain(|base| base.strong_count() > 0);
        bases.push(base);
    }

    /// Counts bytes that are put together outside of the machine, until they are given back. Fails if they do not fit into the limit
    /// beside those that the machine and others outside of it take.
    pub(crate) fn take_outside(&self, lua: &Lua, bytes: usize) -> mlua::Result<()> {
        let fits = || {
            let taken = lua.used_memory() + self.outside.load(Ordering::Relaxed);
            taken + bytes <= self.options.memory_max
        };
        if !fits() {
            // The machine has not looked yet which of its memory is free.
            lua.gc_collect()?;
            self.deadline.check()?;
            if !fits() {
                return Err(mlua::Error::MemoryError("not enough memory".into()));
            }
        }
        self.outside.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.outside.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// What a function of the script's has come to that the database calls. Where it has failed, `instead` counts, as in the original; but
    /// time and memory are never overlooked.
    pub(crate) fn overlook<T>(&self, outcome: mlua::Result<T>, instead: T) -> mlua::Result<T> {
        match outcome {
            Err(error) if self.deadline.check().is_ok() && !is_of_memory(&error) => {
                // Of a call only the first: there may be one for each record.
                if !self.has_overlooked.swap(true, Ordering::Relaxed) {
                    tracing::warn!("a function that a database has called failed: {}", message(&error));
                }
                Ok(instead)
            }
            outcome => outcome,
        }
    }

    /// Begins a call, which has overlooked nothing yet.
    pub(crate) fn forget_overlooked(&self) {
        self.has_overlooked.store(false, Ordering::Relaxed);
    }

    /// Aborts what is open; true if something was.
    pub(crate) fn abort_all(&self) -> bool {
        let bases: Vec<_> = self.bases.lock().iter().filter_map(Weak::upgrade).collect();
        // All of them, not up to the first.
        bases.iter().filter(|base| base.abort()).count() > 0
    }
}

/// Whether there was too little memory.
fn is_of_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } | mlua::Error::WithContext { cause, .. } => {
            is_of_memory(cause)
        }
        _ => false,
    }
}
