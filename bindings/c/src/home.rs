//! An open database, or a snapshot of one, as functions find it by its handle.

use crate::answer::invalid;
use crate::handles::{Handles, shown};
use crate::transactions;
use parking_lot::{RwLock, RwLockWriteGuard};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use todana::{Db, Error, ErrorKind, Records, RecordsHandle, Result, Snapshot, UnixSeconds};

/// An open database, or a snapshot of one. The same handle may be used by any number of threads at once.
pub struct Database {
    _private: [u8; 0],
}

pub(crate) struct Home {
    pub(crate) number: usize,
    /// `None` once it is closed, which waits for the calls that are under way.
    base: RwLock<Option<Base>>,
    /// How many snapshots and transactions of it are open.
    dependents: AtomicUsize,
    /// How many threads wait to close it.
    closers: AtomicUsize,
}

pub(crate) enum Base {
    Db(Db),
    /// The database that it is of stays open until it is gone.
    Snapshot {
        snapshot: Snapshot,
        _of: Dependent,
    },
}

/// How often who closes asks whether it still may.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long a thread that makes one call after another stays away while the database is to be closed.
const MAKE_WAY: Duration = Duration::from_millis(1);

/// Keeps a database from being closed.
pub(crate) struct Dependent(Arc<Home>);

static OPEN: Handles<Home> = Handles::new();

thread_local! {
    /// What this thread has used last: most use one. Gone where the process ends: a function given to `atexit` looks its handles up.
    static LAST: Cell<Option<Arc<Home>>> = const { Cell::new(None) };
}

/// Runs with the database of a handle.
pub(crate) fn with<T>(database: *mut Database, run: impl FnOnce(&Arc<Home>) -> Result<T>) -> Result<T> {
    let number = database.addr();
    // Not borrowed, as what runs may come here again.
    let home = match LAST.try_with(Cell::take).ok().flatten() {
        // Not a call within another one, which has taken it: that is what is waited for.
        Some(home) if home.number == number => {
            home.make_way();
            home
        }
        _ => OPEN.find(number, "database")?,
    };
    let outcome = run(&home);
    let _ = LAST.try_with(|last| last.set(Some(home)));
    outcome
}

impl Home {
    /// Opens a home for it, and tells its handle.
    pub(crate) fn open(base: Base) -> *mut Database {
        let number = crate::handles::new_number();
        let home = Home {
            number,
            base: RwLock::new(Some(base)),
            dependents: AtomicUsize::new(0),
            closers: AtomicUsize::new(0),
        };
        OPEN.insert(number, Arc::new(home));
        shown(number)
    }

    /// Closes it, once calls that are under way have ended, and returns what it was. Fails with `Busy` if something of it is still open.
    pub(crate) fn close(&self) -> Result<Base> {
        self.closers.fetch_add(1, Ordering::SeqCst);
        let base = self.wait_for_calls();
        self.closers.fetch_sub(1, Ordering::SeqCst);
        let mut base = base?;
        self.refuse_if_needed()?;
        let taken = base.take().ok_or_else(closed)?;
        let _ = OPEN.remove(self.number, "database");
        Ok(taken)
    }

    fn wait_for_calls(&self) -> Result<RwLockWriteGuard<'_, Option<Base>>> {
        loop {
            // A call may itself be waiting for a transaction that is open, and the answer is known meanwhile.
            self.refuse_if_needed()?;
            if let Some(base) = self.base.try_write_for(LOOK_AGAIN) {
                return Ok(base);
            }
        }
    }

    /// Lets a thread that waits to close the database go first. Calls pass by it, as one may be made within another, and threads that call
    /// without end kept it waiting for minutes.
    fn make_way(&self) {
        if self.closers.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(MAKE_WAY);
        }
    }

    fn refuse_if_needed(&self) -> Result<()> {
        if self.dependents.load(Ordering::SeqCst) > 0 {
            let message = "snapshots of the database, or other threads' transactions, are open";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        Ok(())
    }

    /// Runs with the database itself. Fails with `Invalid` for a snapshot.
    pub(crate) fn with_db<T>(&self, run: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        // A call may be made within another one: the one that waits to close it must not come between.
        match &*self.base.read_recursive() {
            Some(Base::Db(db)) => run(db),
            Some(Base::Snapshot { .. }) => Err(invalid("a snapshot can only be read")),
            None => Err(closed()),
        }
    }

    /// The time by which its records live.
    pub(crate) fn now(&self) -> Result<UnixSeconds> {
        self.with_db(|db| Ok(db.database().now()))
    }
}

impl Dependent {
    /// To be called while something keeps it open.
    pub(crate) fn new(home: &Arc<Home>) -> Dependent {
        home.dependents.fetch_add(1, Ordering::SeqCst);
        Dependent(Arc::clone(home))
    }

    pub(crate) fn number(&self) -> usize {
        self.0.number
    }
}

impl Drop for Dependent {
    fn drop(&mut self) {
        self.0.dependents.fetch_sub(1, Ordering::SeqCst);
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database was closed")
}

impl RecordsHandle for Home {
    /// As this thread's transaction sees them, if it has one open.
    fn with_records<T>(&self, run: impl FnOnce(&dyn Records) -> Result<T>) -> Result<T> {
        let base = self.base.read_recursive();
        let base = base.as_ref().ok_or_else(closed)?;
        if let Some(transaction) = transactions::of_this_thread(self.number) {
            return run(transaction.records());
        }
        match base {
            Base::Db(db) => run(db),
            Base::Snapshot { snapshot, .. } => run(snapshot),
        }
    }
}

/// The same for cursors and iterators, which stay. They do not keep it open.
pub(crate) type Scope = Arc<Home>;
