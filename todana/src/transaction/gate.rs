//! Who may write: everybody, or the one transaction that is open.
//!
//! A transaction closes the gate; other writers wait before it. They look at it in their visit, and when the transaction begins, it waits
//! until all visits that had begun are over ([`Engine::wait_for_visits`](todana_core::Engine::wait_for_visits)): so a write that was on its way when
//! the gate was closed is seen by the transaction, or has not happened yet and waits. While nobody has a transaction this costs a load.
//!
//! A commit changes record by record. Until it is through, everybody reads what it replaces from the shield, a copy of
//! that; they look, too, while they hold the lock of the record. So others see all of a commit or nothing.

use super::layer::Layer;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};

/// No two threads ever have the same one. [`std::thread::current`] cannot be asked once the thread's own data is gone, as it is in a
/// function given to `atexit`.
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

/// What a thread does every now and then while it waits; what it fails with ends the wait.
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
pub(crate) struct Gate {
    closed: AtomicBool,
    /// Grows whenever the shield is raised or lowered: it is odd while it is up.
    shieldings: AtomicU64,
    /// Whose transaction is open.
    owner: Mutex<Option<ThreadNumber>>,
    opened: Condvar,
    while_waiting: Option<WhileWaiting>,
    shield: RwLock<Option<Arc<Layer>>>,
    /// Held by a commit from its first change to its entry in the log.
    committing: RwLock<()>,
}

impl Gate {
    /// Whether a writer has to wait. To be asked under the lock of the record.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        // What is behind the record's lock is in order by that lock.
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether records have to be read by way of the shield. To be asked under the lock of the record.
    #[inline]
    pub(crate) fn is_shielded(&self) -> bool {
        self.shieldings.load(Ordering::Relaxed) % 2 == 1
    }

    /// How often the shield has been raised or lowered. What was not there, or not as it was to be seen, between two equal
    /// answers, was so for everybody.
    #[inline]
    pub(super) fn shieldings(&self) -> u64 {
        self.shieldings.load(Ordering::Acquire)
    }

    pub(crate) fn set_while_waiting(&mut self, while_waiting: WhileWaiting) {
        self.while_waiting = Some(while_waiting);
    }

    /// Waits until others may write. Fails with `Busy` if it is this thread's own transaction that keeps it waiting, and as what it calls
    /// while it waits.
    #[cold]
    pub(crate) fn wait(&self) -> Result<()> {
        self.unowned().map(|_| ())
    }

    /// Who has a transaction open, which is nobody; waits for that.
    fn unowned(&self) -> Result<MutexGuard<'_, Option<ThreadNumber>>> {
        let mut owner = self.owner.lock();
        while let Some(thread) = *owner {
            refuse_own(thread)?;
            match &self.while_waiting {
                None => self.opened.wait(&mut owner),
                Some(WhileWaiting { every, call }) => {
                    if self.opened.wait_for(&mut owner, *every).timed_out() {
                        // It may be anything, and take long: others go on meanwhile.
                        MutexGuard::unlocked(&mut owner, || call())?;
                    }
                }
            }
        }
        Ok(owner)
    }

    /// Closes the gate, once no other transaction has it closed.
    pub(super) fn close(&self) -> Result<()> {
        self.take(&mut *self.unowned()?);
        Ok(())
    }

    /// The same, unless another one has it closed; false then.
    pub(super) fn try_close(&self) -> bool {
        let mut owner = self.owner.lock();
        let is_free = owner.is_none();
        if is_free {
            self.take(&mut owner);
        }
        is_free
    }

    fn take(&self, owner: &mut Option<ThreadNumber>) {
        *owner = Some(ThreadNumber::own());
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(super) fn open(&self) {
        let mut owner = self.owner.lock();
        self.closed.store(false, Ordering::SeqCst);
        *owner = None;
        self.opened.notify_all();
    }

    /// What is done before this is dropped is one commit.
    pub(super) fn begin_commit(&self) -> RwLockWriteGuard<'_, ()> {
        self.committing.write()
    }

    /// No commit is under way until this is dropped.
    pub(crate) fn keep_commits_out(&self) -> RwLockReadGuard<'_, ()> {
        self.committing.read()
    }

    /// Runs while no commit is under way: the log has been told of whatever the engine has.
    pub(crate) fn between_commits<T>(&self, run: impl FnOnce() -> T) -> T {
        let _none = self.keep_commits_out();
        run()
    }

    /// From now on the records of this layer are read from it.
    pub(super) fn raise(&self, shield: Layer) {
        *self.shield.write() = Some(Arc::new(shield));
        self.shieldings.fetch_add(1, Ordering::SeqCst);
    }

    /// From now on records are read from the engine again.
    pub(super) fn lower(&self) {
        self.shieldings.fetch_add(1, Ordering::SeqCst);
        *self.shield.write() = None;
    }

    /// What a commit on its way replaces, if there is one.
    #[cold]
    pub(super) fn shield(&self) -> Option<Arc<Layer>> {
        self.shield.read().clone()
    }

    /// Runs unless a transaction is open, and keeps others from being opened meanwhile.
    #[cold]
    pub(crate) fn unless_closed(&self, run: impl FnOnce()) {
        let owner = self.owner.lock();
        if owner.is_none() {
            run();
        }
    }

    /// Runs while no transaction is open, and keeps others from being opened meanwhile.
    pub(crate) fn while_open<T>(&self, run: impl FnOnce() -> T) -> Result<T> {
        let _owner = self.unowned()?;
        Ok(run())
    }
}

fn refuse_own(owner: ThreadNumber) -> Result<()> {
    if owner == ThreadNumber::own() {
        return Err(Error::new(
            ErrorKind::Busy,
            "this thread has a transaction open: write through it, or end it first",
        ));
    }
    Ok(())
}
