//! Defines the state that all functions of an interpreter share: its limits, and the transactions
//! that a call has left open.

use crate::error::message;
use crate::limits::Deadline;
use crate::transaction_turn::TurnHolder;
use mlua::Lua;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The permissions and limits of procedures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptOptions {
    /// The maximum time of a call and of loading the program. The time of `copy` and
    /// `dump_snapshot` does not count.
    pub time_max: Duration,
    /// The maximum memory of an interpreter in bytes, including results that are assembled outside
    /// of the interpreter.
    pub memory_max: usize,
    /// True to give scripts access to files and programs: all of `os`, `io`, `package`, `dofile`,
    /// `loadfile`, and databases and snapshots by any path.
    pub is_unsafe: bool,
    /// The folder in which `copy`, `dump_snapshot` and `load_snapshot` write and read. Without this
    /// folder, and without `is_unsafe`, these calls are refused. A file in the folder is replaced
    /// only if it is a snapshot.
    pub files: Option<PathBuf>,
}

impl Default for ScriptOptions {
    fn default() -> ScriptOptions {
        ScriptOptions {
            time_max: Duration::from_secs(5),
            memory_max: 64 << 20,
            is_unsafe: false,
            files: None,
        }
    }
}

/// A database in which a call may leave a transaction open.
pub(crate) trait AbortOpenTransaction: Send + Sync {
    /// Aborts the open transaction and undoes its changes. Returns true if a transaction was open.
    fn abort(&self) -> bool;
}

/// The state that all functions of an interpreter share.
pub(crate) struct ScriptContext {
    pub(crate) deadline: Deadline,
    pub(crate) options: ScriptOptions,
    pub(crate) turns: TurnHolder,
    /// The bytes of results that are currently assembled outside of the interpreter.
    outside: AtomicUsize,
    bases: Mutex<Vec<Weak<dyn AbortOpenTransaction>>>,
    /// True if the call has ignored an error.
    has_ignored_error: AtomicBool,
}

impl ScriptContext {
    pub(crate) fn new(options: &ScriptOptions) -> ScriptContext {
        ScriptContext {
            deadline: Deadline::default(),
            options: options.clone(),
            turns: TurnHolder::default(),
            outside: AtomicUsize::new(0),
            bases: Mutex::default(),
            has_ignored_error: AtomicBool::new(false),
        }
    }

    /// Remembers a database whose open transaction must be aborted after a call.
    pub(crate) fn watch(&self, base: Weak<dyn AbortOpenTransaction>) {
        let mut bases = self.bases.lock();
        bases.retain(|base| base.strong_count() > 0);
        bases.push(base);
    }

    /// Counts bytes that are assembled outside of the interpreter, until they are released. Fails
    /// if all such bytes and the memory of the interpreter together exceed the limit.
    pub(crate) fn take_outside(&self, lua: &Lua, bytes: usize) -> mlua::Result<()> {
        let fits = || {
            let taken = lua.used_memory() + self.outside.load(Ordering::Relaxed);
            taken + bytes <= self.options.memory_max
        };
        if !fits() {
            // The interpreter may hold garbage that it has not collected yet.
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

    /// Returns the result of a script function that the database called. If the function failed,
    /// returns `instead`, as in the original. Errors of time and memory are never ignored.
    pub(crate) fn ignore_error<T>(&self, outcome: mlua::Result<T>, instead: T) -> mlua::Result<T> {
        match outcome {
            Err(error) if self.deadline.check().is_ok() && !is_of_memory(&error) => {
                // Only the first ignored error of a call is logged, because there may be an error
                // for each record.
                if !self.has_ignored_error.swap(true, Ordering::Relaxed) {
                    tracing::warn!("a function that a database has called failed: {}", message(&error));
                }
                Ok(instead)
            }
            outcome => outcome,
        }
    }

    /// Resets the mark of ignored errors at the start of a call.
    pub(crate) fn reset_ignored_errors(&self) {
        self.has_ignored_error.store(false, Ordering::Relaxed);
    }

    /// Aborts all open transactions; returns true if any was open.
    pub(crate) fn abort_all(&self) -> bool {
        let bases: Vec<_> = self.bases.lock().iter().filter_map(Weak::upgrade).collect();
        // All transactions are counted, because each must be aborted and not only the first.
        bases.iter().filter(|base| base.abort()).count() > 0
    }
}

/// The bytes that a function has assembled outside of the interpreter. They are released on drop.
pub(crate) struct OutsideBytes<'c> {
    context: &'c ScriptContext,
    taken: usize,
}

impl OutsideBytes<'_> {
    pub(crate) fn new(context: &ScriptContext) -> OutsideBytes<'_> {
        OutsideBytes { context, taken: 0 }
    }

    /// Counts further bytes. Fails if there is not enough memory, or the time of the call is over.
    pub(crate) fn take(&mut self, lua: &Lua, bytes: usize) -> mlua::Result<()> {
        self.context.deadline.check()?;
        self.context.take_outside(lua, bytes)?;
        self.taken += bytes;
        Ok(())
    }
}

impl Drop for OutsideBytes<'_> {
    fn drop(&mut self) {
        self.context.give_back(self.taken);
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
