//! The transaction lock: either all threads may write, or only the open transaction.
//!
//! A transaction closes the lock, and other writers wait for it. Writers check the lock in their
//! visit. When a transaction begins, it waits until all visits under way have ended
//! ([`Engine::wait_for_visits`](todana_core::Engine::wait_for_visits)). A write that was under way
//! when the lock was closed is therefore either seen by the transaction, or has not happened yet
//! and waits. While no transaction is open this costs one load.
//!
//! A commit changes one record after another. Until it is complete, all threads read the replaced
//! records from a copy, the old records of the commit; they check for it, too, under the lock of
//! the record. So other threads see either all of a commit or nothing.

use super::overlay::RecordOverlay;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};

/// A number that no other thread ever has. [`std::thread::current`] does not work after the
/// thread's own data is destroyed, for example in a function registered with `atexit`.
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

/// A function that a waiting thread calls at intervals. An error ends the wait.
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

#[derive(Default)]
pub(crate) struct TransactionLock {
    closed: AtomicBool,
    /// Incremented when the old records of a commit are published or withdrawn: odd while they are
    /// published.
    publish_count: AtomicU64,
    /// The thread with the open transaction.
    owner: Mutex<Option<ThreadNumber>>,
    opened: Condvar,
    while_waiting: Option<WhileWaiting>,
    old_records: RwLock<Option<Arc<RecordOverlay>>>,
    /// Locked by a commit from its first change to its entry in the log.
    committing: RwLock<()>,
}

impl TransactionLock {
    /// Returns true if a writer must wait. To be called under the lock of the record.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        // The lock of the record orders this load.
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns true if records must be read through the old records of a commit. To be called under
    /// the lock of the record.
    #[inline]
    pub(crate) fn has_old_records(&self) -> bool {
        self.publish_count.load(Ordering::Relaxed) % 2 == 1
    }

    /// Returns how often old records were published or withdrawn. A record that was missing between
    /// two equal results of this was missing for all threads.
    #[inline]
    pub(super) fn publish_count(&self) -> u64 {
        self.publish_count.load(Ordering::Acquire)
    }

    pub(crate) fn set_while_waiting(&mut self, while_waiting: WhileWaiting) {
        self.while_waiting = Some(while_waiting);
    }

    /// Waits until writes are allowed. Fails with `Busy` if the open transaction belongs to this
    /// thread, and with the error of the function that is called while waiting.
    #[cold]
    pub(crate) fn wait(&self) -> Result<()> {
        self.lock_when_free().map(|_| ())
    }

    /// Waits until no transaction is open, and returns the locked owner.
    fn lock_when_free(&self) -> Result<MutexGuard<'_, Option<ThreadNumber>>> {
        let mut owner = self.owner.lock();
        while let Some(thread) = *owner {
            refuse_own(thread)?;
            match &self.while_waiting {
                None => self.opened.wait(&mut owner),
                Some(WhileWaiting { every, call }) => {
                    if self.opened.wait_for(&mut owner, *every).timed_out() {
                        // The function may take long; others continue in the meantime.
                        MutexGuard::unlocked(&mut owner, || call())?;
                    }
                }
            }
        }
        Ok(owner)
    }

    /// Closes the lock when no other transaction has it closed.
    pub(super) fn close(&self) -> Result<()> {
        self.set_owner(&mut *self.lock_when_free()?);
        Ok(())
    }

    /// Closes the lock without waiting. Returns false if another transaction has it closed.
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
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(super) fn open(&self) {
        let mut owner = self.owner.lock();
        self.closed.store(false, Ordering::SeqCst);
        *owner = None;
        self.opened.notify_all();
    }

    /// Everything done until the guard is dropped is one commit.
    pub(super) fn begin_commit(&self) -> RwLockWriteGuard<'_, ()> {
        self.committing.write()
    }

    /// No commit begins or ends until the guard is dropped.
    pub(crate) fn block_commits(&self) -> RwLockReadGuard<'_, ()> {
        self.committing.read()
    }

    /// Calls `run` while no commit is under way: the log then contains all changes that the engine
    /// has.
    pub(crate) fn between_commits<T>(&self, run: impl FnOnce() -> T) -> T {
        let _none = self.block_commits();
        run()
    }

    /// Publishes the old records of a commit: they are read from here from now on.
    pub(super) fn publish_old_records(&self, old_records: RecordOverlay) {
        *self.old_records.write() = Some(Arc::new(old_records));
        self.publish_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Withdraws the old records: records are read from the engine again.
    pub(super) fn withdraw_old_records(&self) {
        self.publish_count.fetch_add(1, Ordering::SeqCst);
        *self.old_records.write() = None;
    }

    /// Returns the old records of the commit under way, if there is one.
    #[cold]
    pub(super) fn old_records(&self) -> Option<Arc<RecordOverlay>> {
        self.old_records.read().clone()
    }

    /// Calls `run` unless a transaction is open, and prevents one from being opened in the
    /// meantime.
    #[cold]
    pub(crate) fn unless_in_transaction(&self, run: impl FnOnce()) {
        let owner = self.owner.lock();
        if owner.is_none() {
            run();
        }
    }

    /// Calls `run` when no transaction is open, and prevents one from being opened in the meantime.
    pub(crate) fn outside_transactions<T>(&self, run: impl FnOnce() -> T) -> Result<T> {
        let _owner = self.lock_when_free()?;
        Ok(run())
    }
}

fn refuse_own(owner: ThreadNumber) -> Result<()> {
    if owner == ThreadNumber::own() {
        return Err(Error::new(
            ErrorKind::Busy,
            "transaction: this thread has one open; write through it, or end it first",
        ));
    }
    Ok(())
}
