//! The state that all functions of an interpreter share: its limits, and the transactions that a
//! call has left open.

use crate::error::message;
use crate::limits::Deadline;
use crate::turn::TurnHolder;
use mlua::Lua;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The permissions and limits of procedures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The maximum time of a call and of loading the program. The time of `copy` and
    /// `dump_snapshot` does not count.
    pub time_max: Duration,
    /// The maximum memory of an interpreter in bytes, including results that are assembled outside
    /// of it.
    pub memory_max: usize,
    /// True gives scripts access to files and programs: all of `os`, `io`, `package`, `dofile`,
    /// `loadfile`, and databases and snapshots by any path.
    pub is_unsafe: bool,
    /// The folder in which `copy`, `dump_snapshot` and `load_snapshot` write and read. Without it,
    /// and without `is_unsafe`, they are refused. A file in the folder is replaced only if it is a
    /// snapshot.
    pub files: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options { time_max: Duration::from_secs(5), memory_max: 64 << 20, is_unsafe: false, files: None }
    }
}

/// A database in which a call may leave a transaction open.
pub(crate) trait AbortOpenTransaction: Send + Sync {
    /// Ends the transaction and undoes it. Returns true if one was open.
    fn abort(&self) -> bool;
}

/// The state that all functions of an interpreter share.
pub(crate) struct ScriptContext {
    pub(crate) deadline: Deadline,
    pub(crate) options: Options,
    pub(crate) turns: TurnHolder,
    /// The bytes of results that are currently assembled outside of the interpreter.
    outside: AtomicUsize,
    bases: Mutex<Vec<Weak<dyn AbortOpenTransaction>>>,
    /// True if the call has ignored an error.
    has_overlooked: AtomicBool,
}

impl ScriptContext {
    pub(crate) fn new(options: &Options) -> ScriptContext {
        ScriptContext {
            deadline: Deadline::default(),
            options: options.clone(),
            turns: TurnHolder::default(),
            outside: AtomicUsize::new(0),
            bases: Mutex::default(),
            has_overlooked: AtomicBool::new(false),
        }
    }

    /// The databases whose open transactions are aborted after a call.
    pub(crate) fn watch(&self, base: Weak<dyn AbortOpenTransaction>) {
        let mut bases = self.bases.lock();
        bases.retain(|base| base.strong_count() > 0);
        bases.push(base);
    }

    /// Counts bytes that are assembled outside of the interpreter, until they are released. Fails
    /// if they exceed the limit together with the memory of the interpreter and other such bytes.
    pub(crate) fn take_outside(&self, lua: &Lua, bytes: usize) -> mlua::Result<()> {
        let fits = || {
            let taken = lua.used_memory() + self.outside.load(Ordering::Relaxed);
            taken + bytes <= self.options.memory_max
        };
        if !fits() {
            // The interpreter has not collected its garbage yet.
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

    /// Returns the result of a script function that the database called. If it failed, `instead`
    /// counts, as in the original. Errors of time and memory are never ignored.
    pub(crate) fn overlook<T>(&self, outcome: mlua::Result<T>, instead: T) -> mlua::Result<T> {
        match outcome {
            Err(error) if self.deadline.check().is_ok() && !is_of_memory(&error) => {
                // Logs only the first ignored error of a call, because there may be one for each
                // record.
                if !self.has_overlooked.swap(true, Ordering::Relaxed) {
                    tracing::warn!("a function that a database has called failed: {}", message(&error));
                }
                Ok(instead)
            }
            outcome => outcome,
        }
    }

    /// Starts a call, which has ignored no error yet.
    pub(crate) fn forget_overlooked(&self) {
        self.has_overlooked.store(false, Ordering::Relaxed);
    }

    /// Aborts all open transactions; returns true if any was open.
    pub(crate) fn abort_all(&self) -> bool {
        let bases: Vec<_> = self.bases.lock().iter().filter_map(Weak::upgrade).collect();
        // Counts all of them instead of stopping at the first.
        bases.iter().filter(|base| base.abort()).count() > 0
    }
}

/// Returns true if the error is a lack of memory.
fn is_of_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } | mlua::Error::WithContext { cause, .. } => {
            is_of_memory(cause)
        }
        _ => false,
    }
}
