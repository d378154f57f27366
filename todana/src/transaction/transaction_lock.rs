//! The transaction lock: either all threads may write, or only the open transaction.
//!
//! A transaction closes the lock, and other writers wait until it is opened. Writers check the lock
//! in their visit. After a transaction has closed the lock, it waits until all visits in progress
//! have ended ([`Engine::wait_for_visits`](todana_core::Engine::wait_for_visits)). So each write
//! either ends before the transaction begins, or waits for its end. While no transaction is open,
//! the check costs one load.
//!
//! The same check stops clients whose changes were allowed a moment ago, but not any more because
//! another server has become the master.
//!
//! A commit changes one record after another. Until it is complete, other threads read the replaced
//! records from copies, the old records of the commit. They check for these copies under the lock
//! of the record, so they see either all changes of a commit or none.

use super::overlay::RecordOverlay;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};
use todana_engine::waiting::{Condvar, Mutex, MutexGuard};

/// A number that no other thread has at any time. [`std::thread::current`] cannot be used, because
/// it fails after the thread's own data is destroyed, for example in a function registered with
/// `atexit`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ThreadNumber(u64);

impl ThreadNumber {
    fn own() -> ThreadNumber {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local!(static OWN: Cell<u64> = const { Cell::new(0) });
        OWN.with(|own| {
            if own.get() == 0 {
                own.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            ThreadNumber(own.get())
        })
    }
}

/// A function that a waiting thread calls at intervals. If it fails, the wait ends.
#[derive(Clone)]
pub(crate) struct WhileWaiting {
    pub(crate) every: Duration,
    pub(crate) call: Arc<dyn Fn() -> Result<()> + Send + Sync>,
}

impl fmt::Debug for WhileWaiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WhileWaiting").field("every", &self.every).finish_non_exhaustive()
    }
}

/// A transaction is open.
const IN_TRANSACTION: u8 = 1;
/// Changes of clients are refused.
const FENCED: u8 = 2;

#[derive(Default)]
pub(crate) struct TransactionLock {
    /// Some of the bits above.
    closed: AtomicU8,
    /// Incremented each time the old records of a commit are published or withdrawn, so it is odd
    /// while they are published.
    publish_count: AtomicU64,
    /// The thread that has the open transaction.
    owner: Mutex<Option<ThreadNumber>>,
    opened: Condvar,
    while_waiting: Option<WhileWaiting>,
    old_records: RwLock<Option<Arc<RecordOverlay>>>,
    /// Write-locked by a commit, from its first change until its entry is in the log.
    committing: RwLock<()>,
}

impl TransactionLock {
    /// Returns true if a writer must wait, or be refused if it is a client. Must be called under
    /// the record's lock.
    #[inline]
    pub(crate) fn is_closed(&self, is_client: bool) -> bool {
        // No stronger ordering is needed, because the lock of the record orders this load.
        let closed = self.closed.load(Ordering::Relaxed);
        closed != 0 && (is_client || closed & IN_TRANSACTION != 0)
    }

    /// Stops changes of clients that have found them allowed, or ends that. Waits for functions
    /// that run outside of transactions.
    pub(crate) fn set_fenced(&self, is_fenced: bool) {
        let _owner = self.owner.lock();
        match is_fenced {
            true => self.closed.fetch_or(FENCED, Ordering::SeqCst),
            false => self.closed.fetch_and(!FENCED, Ordering::SeqCst),
        };
    }

    /// Returns true if records must be read from the old records of a commit first. Must be called
    /// under the record's lock.
    #[inline]
    pub(crate) fn has_old_records(&self) -> bool {
        self.publish_count.load(Ordering::Relaxed) % 2 == 1
    }

    /// Returns how many times old records were published or withdrawn. If two calls return the same
    /// number and a record was missing in between, the record was missing for all threads.
    #[inline]
    pub(super) fn publish_count(&self) -> u64 {
        self.publish_count.load(Ordering::Acquire)
    }

    pub(crate) fn set_while_waiting(&mut self, while_waiting: WhileWaiting) {
        self.while_waiting = Some(while_waiting);
    }

    /// Waits until writes are allowed. Fails with `Busy` if this thread has the open transaction,
    /// and with the error of the function that is called during the wait.
    #[cold]
    pub(crate) fn wait(&self) -> Result<()> {
        self.lock_when_free().map(|_| ())
    }

    /// Waits until no transaction is open. Returns the owner, locked.
    fn lock_when_free(&self) -> Result<MutexGuard<'_, Option<ThreadNumber>>> {
        let mut owner = self.owner.lock();
        while let Some(thread) = *owner {
            refuse_own(thread)?;
            match &self.while_waiting {
                None => self.opened.wait(&mut owner),
                Some(WhileWaiting { every, call }) => {
                    if self.opened.wait_for(&mut owner, *every) {
                        // The mutex is unlocked meanwhile, because the function may take long.
                        MutexGuard::unlocked(&mut owner, || call())?;
                    }
                }
            }
        }
        Ok(owner)
    }

    /// Closes the lock. Waits until no other transaction has closed it.
    pub(super) fn close(&self) -> Result<()> {
        self.set_owner(&mut *self.lock_when_free()?);
        Ok(())
    }

    /// Closes the lock without waiting. Returns false if another transaction has closed it.
    pub(super) fn try_close(&self) -> bool {
        let mut owner = self.owner.lock();
        let is_free = owner.is_none();
        if is_free {
            self.set_owner(&mut owner);
        }
        is_free
    }

    fn set_owner(&self, owner: &mut Option<ThreadNumber>) {
        *owner = Some(ThreadNumber::own());
        self.closed.fetch_or(IN_TRANSACTION, Ordering::SeqCst);
    }

    pub(super) fn open(&self) {
        let mut owner = self.owner.lock();
        self.closed.fetch_and(!IN_TRANSACTION, Ordering::SeqCst);
        *owner = None;
        self.opened.notify_all();
    }

    /// Begins a commit, which ends when the guard is dropped.
    pub(super) fn begin_commit(&self) -> RwLockWriteGuard<'_, ()> {
        self.committing.write()
    }

    /// Prevents that a commit begins, until the guard is dropped. Waits for a commit in progress.
    pub(crate) fn block_commits(&self) -> RwLockReadGuard<'_, ()> {
        self.committing.read()
    }

    /// Calls `run` while no commit is in progress. The log then contains all changes of the engine.
    pub(crate) fn between_commits<T>(&self, run: impl FnOnce() -> T) -> T {
        let _none = self.block_commits();
        run()
    }

    /// Publishes the old records of a commit. From now on, other threads read them from here.
    pub(super) fn publish_old_records(&self, old_records: RecordOverlay) {
        *self.old_records.write() = Some(Arc::new(old_records));
        self.publish_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Withdraws the old records. From now on, other threads read all records from the engine.
    pub(super) fn withdraw_old_records(&self) {
        self.publish_count.fetch_add(1, Ordering::SeqCst);
        *self.old_records.write() = None;
    }

    /// Returns the old records of the commit in progress, if there is one.
    #[cold]
    pub(super) fn old_records(&self) -> Option<Arc<RecordOverlay>> {
        self.old_records.read().clone()
    }

    /// Calls `run` unless a transaction is open. No transaction can begin during the call.
    #[cold]
    pub(crate) fn unless_in_transaction(&self, run: impl FnOnce()) {
        let owner = self.owner.lock();
        if owner.is_none() {
            run();
        }
    }

    /// Waits until no transaction is open, and calls `run`. No transaction can begin during the
    /// call.
    pub(crate) fn outside_transactions<T>(&self, run: impl FnOnce() -> T) -> Result<T> {
        let _owner = self.lock_when_free()?;
        Ok(run())
    }
}

fn refuse_own(owner: ThreadNumber) -> Result<()> {
    if owner == ThreadNumber::own() {
        return Err(Error::new(
            ErrorKind::Busy,
            "transaction: this thread has an open transaction; write through it, or end it first",
        ));
    }
    Ok(())
}
