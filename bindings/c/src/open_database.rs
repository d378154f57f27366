//! Keeps the open databases and snapshots, which functions find by their handles.

use crate::answer::invalid;
use crate::handles::{HandleTable, shown};
use crate::transactions;
use parking_lot::{RwLock, RwLockWriteGuard};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use todana::{Db, Error, ErrorKind, Records, RecordsHandle, Result, Snapshot, UnixSeconds};

/// An open database or snapshot. Any number of threads may use the same handle at the same time.
pub struct DatabaseHandle {
    _private: [u8; 0],
}

pub(crate) struct RegisteredDatabase {
    pub(crate) number: usize,
    /// The database or snapshot, or `None` after it was closed. Closing waits for the running
    /// calls.
    base: RwLock<Option<DatabaseOrSnapshot>>,
    /// The number of open snapshots, searches and transactions.
    dependents: AtomicUsize,
    /// The number of threads that wait to close the database.
    closers: AtomicUsize,
}

pub(crate) enum DatabaseOrSnapshot {
    Db(Db),
    /// Keeps the database of the snapshot open.
    Snapshot {
        snapshot: Snapshot,
        _of: CloseBlocker,
    },
}

/// The interval at which a waiting thread checks whether it may still close the database.
const CLOSE_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The pause of a thread with many calls, while another thread waits to close the database.
const CLOSING_PAUSE: Duration = Duration::from_millis(1);

/// Keeps a database from being closed.
pub(crate) struct CloseBlocker(Arc<RegisteredDatabase>);

static OPEN: HandleTable<RegisteredDatabase> = HandleTable::new();

thread_local! {
    /// The database that this thread used last. Most threads use only one database, so this saves
    /// the lookup. While the process ends the value is not available, and a function given to
    /// `atexit` looks handles up.
    static LAST: Cell<Option<Arc<RegisteredDatabase>>> = const { Cell::new(None) };
}

/// Runs `run` with the database of a handle.
pub(crate) fn with<T>(
    database: *mut DatabaseHandle,
    run: impl FnOnce(&Arc<RegisteredDatabase>) -> Result<T>,
) -> Result<T> {
    let number = database.addr();
    // The value is taken and not borrowed, because `run` may call this function again.
    let open_database = match LAST.try_with(Cell::take).ok().flatten() {
        // Only an outer call pauses here. An inner call finds no value to take, and must not pause,
        // because the closing thread waits for the outer call.
        Some(open_database) if open_database.number == number => {
            open_database.pause_for_closing();
            open_database
        }
        _ => OPEN.find(number, "database")?,
    };
    let outcome = run(&open_database);
    let _ = LAST.try_with(|last| last.set(Some(open_database)));
    outcome
}

impl RegisteredDatabase {
    /// Registers an open database and returns its handle.
    pub(crate) fn open(base: DatabaseOrSnapshot) -> *mut DatabaseHandle {
        let number = crate::handles::new_number();
        let open_database = RegisteredDatabase {
            number,
            base: RwLock::new(Some(base)),
            dependents: AtomicUsize::new(0),
            closers: AtomicUsize::new(0),
        };
        OPEN.insert(number, Arc::new(open_database));
        shown(number)
    }

    /// Closes the database after the running calls have returned, and returns it. Fails with `Busy`
    /// if it has open snapshots or transactions.
    pub(crate) fn close(&self) -> Result<DatabaseOrSnapshot> {
        self.closers.fetch_add(1, Ordering::SeqCst);
        let base = self.wait_for_calls();
        self.closers.fetch_sub(1, Ordering::SeqCst);
        let mut base = base?;
        self.refuse_if_needed()?;
        let taken = base.take().ok_or_else(closed)?;
        let _ = OPEN.remove(self.number, "database");
        Ok(taken)
    }

    fn wait_for_calls(&self) -> Result<RwLockWriteGuard<'_, Option<DatabaseOrSnapshot>>> {
        loop {
            // The running call may wait for an open transaction. A database with an open
            // transaction must not be closed.
            self.refuse_if_needed()?;
            if let Some(base) = self.base.try_write_for(CLOSE_CHECK_INTERVAL) {
                return Ok(base);
            }
        }
    }

    /// Pauses if a thread waits to close the database. Calls do not queue after that thread,
    /// because one call may run within another. Without this pause, threads with many calls kept
    /// the closing thread waiting for minutes.
    fn pause_for_closing(&self) {
        if self.closers.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(CLOSING_PAUSE);
        }
    }

    fn refuse_if_needed(&self) -> Result<()> {
        if self.dependents.load(Ordering::SeqCst) > 0 {
            let message = "snapshots or searches of the database, or other threads' transactions, are open";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        Ok(())
    }

    /// Runs `run` with the database. Fails with `Invalid` for a snapshot.
    pub(crate) fn with_db<T>(&self, run: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        // One call may run within another, so a thread that waits to close the database must not
        // block the inner call.
        match &*self.base.read_recursive() {
            Some(DatabaseOrSnapshot::Db(db)) => run(db),
            Some(DatabaseOrSnapshot::Snapshot { .. }) => Err(invalid("a snapshot can only be read")),
            None => Err(closed()),
        }
    }

    /// Runs `run` with the database, or with that of the snapshot.
    pub(crate) fn with_base<T>(&self, run: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        match &*self.base.read_recursive() {
            Some(DatabaseOrSnapshot::Db(db)) => run(db),
            Some(DatabaseOrSnapshot::Snapshot { snapshot, .. }) => run(snapshot.db()),
            None => Err(closed()),
        }
    }

    /// Returns the current time of the database's clock, by which records expire.
    pub(crate) fn now(&self) -> Result<UnixSeconds> {
        self.with_db(|db| Ok(db.database().now()))
    }
}

impl CloseBlocker {
    /// Prevents the database from being closed. Must be called while a running call keeps the
    /// database open.
    pub(crate) fn new(open_database: &Arc<RegisteredDatabase>) -> CloseBlocker {
        open_database.dependents.fetch_add(1, Ordering::SeqCst);
        CloseBlocker(Arc::clone(open_database))
    }

    pub(crate) fn number(&self) -> usize {
        self.0.number
    }
}

impl Drop for CloseBlocker {
    fn drop(&mut self) {
        self.0.dependents.fetch_sub(1, Ordering::SeqCst);
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database was closed")
}

impl RecordsHandle for RegisteredDatabase {
    /// Runs `run` with this thread's transaction if it has one open.
    fn with_records<T>(&self, run: impl FnOnce(&dyn Records) -> Result<T>) -> Result<T> {
        let base = self.base.read_recursive();
        let base = base.as_ref().ok_or_else(closed)?;
        if let Some(transaction) = transactions::of_this_thread(self.number) {
            return run(transaction.records());
        }
        match base {
            DatabaseOrSnapshot::Db(db) => run(db),
            DatabaseOrSnapshot::Snapshot { snapshot, .. } => run(snapshot),
        }
    }
}

/// The database of a cursor or an iterator. It can be closed while the cursor or iterator exists.
pub(crate) type DatabaseScope = Arc<RegisteredDatabase>;
