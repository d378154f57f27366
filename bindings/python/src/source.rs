//! Where records are, and whether they can still be reached.

use parking_lot::{Mutex, RwLock};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use todana::{Db, Error, ErrorKind, Records, RecordsHandle, Result, Snapshot, Transaction};
use todana_core::Record;

use crate::conversion::Form;
use crate::error::{outcome, raised};
use crate::fork::forks;
use crate::pace::{Pace, Turn};

/// All databases that are open, so that they can be closed when the interpreter ends. Locked by whoever has the interpreter, as who forks
/// has: in the child of a fork it is free.
static OPEN: Mutex<Vec<Weak<Home>>> = Mutex::new(Vec::new());

/// Closes all databases: called when the interpreter ends, which does not drop what modules hold.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) {
    let homes = std::mem::take(&mut *OPEN.lock());
    let deadline = Instant::now() + LAST_CALLS_MAX;
    py.detach(|| {
        homes.iter().filter_map(Weak::upgrade).for_each(|home| {
            home.close_within(deadline.saturating_duration_since(Instant::now()));
        });
    });
}

/// Threads that the interpreter does not wait for may have calls that never end.
const LAST_CALLS_MAX: Duration = Duration::from_secs(5);
/// So often whoever closes a database looks for a Ctrl-C.
const CLOSING_SLICE: Duration = Duration::from_millis(100);

/// What calls get of a home, each as long as it needs it. Once all of it is gone, whoever closes the home is told.
pub(crate) struct Lent<T> {
    // Goes first.
    value: T,
    told: Sender<Infallible>,
}

impl<T> Lent<T> {
    /// Something else of the same home.
    fn with<U>(&self, value: U) -> Lent<U> {
        Lent { value, told: self.told.clone() }
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// How a home is closed.
struct Departure {
    /// Ends when nothing is lent any more.
    is_empty: Receiver<Infallible>,
    /// Kept until then, so that it is closed by who has nothing else to do.
    db: Option<Db>,
}

thread_local! {
    /// By their addresses, the homes of which this thread has something lent while functions of Python's run.
    static CALLING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Something that can be closed while others hold it.
pub(crate) struct Slot<T> {
    value: RwLock<Option<T>>,
    forks: u32,
    what: &'static str,
}

impl<T: Clone> Slot<T> {
    fn new(value: T, what: &'static str) -> Slot<T> {
        Slot { value: RwLock::new(Some(value)), forks: forks(), what }
    }

    /// The lock is held for a clone, so nobody waits for it for long.
    #[inline]
    fn get(&self) -> Result<T> {
        if self.is_of_parent() {
            return Err(self.lost());
        }
        self.value.read().clone().ok_or_else(|| self.closed())
    }

    /// The same without a clone. The lock is held meanwhile: for whoever holds the interpreter and does not wait.
    #[inline]
    fn with<R>(&self, run: impl FnOnce(&T) -> Result<R>) -> Result<R> {
        if self.is_of_parent() {
            return Err(self.lost());
        }
        match &*self.value.read() {
            Some(value) => run(value),
            None => Err(self.closed()),
        }
    }

    /// Leaves nothing.
    fn take(&self) -> Option<T> {
        // The child of a fork touches nothing of its parent's.
        if self.is_of_parent() { None } else { self.value.write().take() }
    }

    /// The same for whoever must have it.
    fn take_open(&self) -> Result<T> {
        if self.is_of_parent() {
            return Err(self.lost());
        }
        self.take().ok_or_else(|| self.closed())
    }

    fn must_be_open(&self) -> Result<()> {
        self.with(|_| Ok(()))
    }

    fn is_open(&self) -> bool {
        !self.is_of_parent() && self.value.read().is_some()
    }

    #[inline]
    fn is_of_parent(&self) -> bool {
        self.forks != forks()
    }

    #[cold]
    fn closed(&self) -> Error {
        Error::new(ErrorKind::Closed, format!("the {} is closed", self.what))
    }

    #[cold]
    fn lost(&self) -> Error {
        let message =
            format!("the {} is the parent process's: what was opened before a fork stays there", self.what);
        Error::new(ErrorKind::Closed, message)
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        if self.forks != forks() {
            // To close it would be to write to the parent's files, and to wait for threads that are not here.
            std::mem::forget(self.value.get_mut().take());
        }
    }
}

/// An open database, and who has something of it.
pub(crate) struct Home {
    db: Slot<Arc<Lent<Db>>>,
    departure: Mutex<Departure>,
    pub(crate) form: Form,
    pub(crate) name: String,
    is_ordered: bool,
    reads: Pace,
    writes: Pace,
    /// Transactions that are open or about to be. It is raised by whoever holds the interpreter; while it is 0, no thread that holds
    /// the interpreter waits for one that does not have it.
    transactions: AtomicUsize,
    transaction_list: Mutex<Vec<Weak<Undertaking>>>,
    snapshot_list: Mutex<Vec<Weak<View>>>,
}

impl Home {
    pub(crate) fn new(db: Db, form: Form, reads: Pace, writes: Pace) -> Arc<Home> {
        let (told, is_empty) = mpsc::channel();
        let home = Arc::new(Home {
            form,
            name: db.name().to_string(),
            is_ordered: db.is_ordered(),
            reads,
            writes,
            db: Slot::new(Arc::new(Lent { value: db, told }), "database"),
            departure: Mutex::new(Departure { is_empty, db: None }),
            transactions: AtomicUsize::new(0),
            transaction_list: Mutex::default(),
            snapshot_list: Mutex::default(),
        });
        note(&OPEN, &home);
        home
    }

    pub(crate) fn db(&self) -> Result<Arc<Lent<Db>>> {
        self.db.get()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.db.is_open()
    }

    #[inline]
    pub(crate) fn must_be_of_this_process(&self) -> Result<()> {
        if self.db.is_of_parent() { Err(self.db.lost()) } else { Ok(()) }
    }

    /// Aborts what is open, and closes it. Calls of other threads that are under way come to their end first; who interrupts the wait for
    /// them leaves it to be closed later.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        while !py.detach(|| self.close_within(CLOSING_SLICE)) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// The same for who does not wait longer; returns whether it is closed.
    fn close_within(&self, wait_max: Duration) -> bool {
        // In the child of a fork its locks may be held by nobody.
        if self.db.is_of_parent() {
            return true;
        }
        if self.is_calling() {
            // A call of this very thread is under way: whoever has the last one closes it.
            drop(self.db.take());
            self.abandon();
            return true;
        }
        let Some(mut departure) = self.departure.try_lock_for(wait_max) else { return false };
        if let Some(lent) = self.db.take() {
            departure.db = Some(Db::clone(&lent));
            drop(lent);
            self.abandon();
        }
        if departure.is_empty.recv_timeout(wait_max) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        drop(departure.db.take());
        true
    }

    /// Ends what others have of it once it is closed.
    fn abandon(&self) {
        let transactions = std::mem::take(&mut *self.transaction_list.lock());
        transactions.iter().filter_map(Weak::upgrade).for_each(|undertaking| undertaking.drop_it());
        let snapshots = std::mem::take(&mut *self.snapshot_list.lock());
        snapshots.iter().filter_map(Weak::upgrade).for_each(|view| view.close());
    }

    /// Runs with something lent and functions of Python's, which may close it.
    pub(crate) fn calling<R>(&self, run: impl FnOnce() -> R) -> R {
        struct Ends;
        impl Drop for Ends {
            fn drop(&mut self) {
                CALLING.with_borrow_mut(Vec::pop);
            }
        }
        CALLING.with_borrow_mut(|calling| calling.push(self.address()));
        let _ends = Ends;
        run()
    }

    fn is_calling(&self) -> bool {
        CALLING.with_borrow(|calling| calling.contains(&self.address()))
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Begins a transaction, once no other one is open.
    pub(crate) fn begin(self: &Arc<Home>, py: Python<'_>) -> PyResult<Arc<Undertaking>> {
        let db = self.db().map_err(raised)?;
        self.transactions.fetch_add(1, Ordering::Relaxed);
        let begun = py.detach(|| db.begin_owned());
        // On the way out of here it is counted by whoever has it.
        let slot = match begun {
            Ok(transaction) => Slot::new(Arc::new(db.with(transaction)), "transaction"),
            Err(error) => {
                self.transactions.fetch_sub(1, Ordering::Relaxed);
                return Err(raised(error));
            }
        };
        let undertaking = Arc::new(Undertaking {
            home: Arc::clone(self),
            slot,
            thread: thread::current().id(),
            was_ended: AtomicBool::new(false),
        });
        note(&self.transaction_list, &undertaking);
        // Whoever has closed it meanwhile may not have met this one.
        match self.db.must_be_open() {
            Ok(()) => Ok(undertaking),
            Err(error) => {
                py.detach(|| undertaking.drop_it());
                Err(raised(error))
            }
        }
    }

    /// A view of it as it is now.
    pub(crate) fn snapshot(self: &Arc<Home>, py: Python<'_>) -> PyResult<Arc<View>> {
        let db = self.db().map_err(raised)?;
        let snapshot = py.detach(|| db.snapshot()).map_err(raised)?;
        let slot = Slot::new(Arc::new(db.with(snapshot)), "snapshot");
        let view = Arc::new(View { home: Arc::clone(self), slot });
        note(&self.snapshot_list, &view);
        match self.db.must_be_open() {
            Ok(()) => Ok(view),
            Err(error) => {
                py.detach(|| view.close());
                Err(raised(error))
            }
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.db.is_of_parent() {
            std::mem::forget(self.departure.get_mut().db.take());
            return;
        }
        // Nobody is left who has something of it. It is Python's garbage, mostly, in a thread that has the interpreter, and may wait for the
        // disk.
        let close = || drop((self.db.take(), self.departure.lock().db.take()));
        if Python::try_attach(|py| py.detach(close)).is_none() {
            close();
        }
    }
}

fn note<T>(list: &Mutex<Vec<Weak<T>>>, one: &Arc<T>) {
    let mut list = list.lock();
    list.retain(|other| other.strong_count() > 0);
    list.push(Arc::downgrade(one));
}

/// A transaction.
pub(crate) struct Undertaking {
    pub(crate) home: Arc<Home>,
    slot: Slot<Arc<Lent<Transaction<'static>>>>,
    thread: ThreadId,
    /// By a commit or an abort of its user's, and not with its database.
    was_ended: AtomicBool,
}

impl Undertaking {
    fn get(&self) -> Result<Arc<Lent<Transaction<'static>>>> {
        self.must_be_mine()?;
        self.slot.get()
    }

    fn must_be_mine(&self) -> Result<()> {
        if self.thread == thread::current().id() {
            return Ok(());
        }
        let message = "a transaction is used by the thread that has begun it, and by no other";
        Err(Error::new(ErrorKind::Invalid, message))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.slot.is_open()
    }

    pub(crate) fn commit(&self) -> Result<()> {
        self.must_be_mine()?;
        let transaction = self.slot.take_open()?;
        self.was_ended.store(true, Ordering::Relaxed);
        self.finish(|| match Arc::try_unwrap(transaction) {
            Ok(Lent { value: transaction, told: _told }) => transaction.commit(),
            // Only its own thread uses it, and that is here.
            Err(_) => Err(Error::new(ErrorKind::Busy, "the transaction is in use")),
        })
    }

    /// Commits it, unless its user has ended it already. Fails with `Closed` if anything else has.
    pub(crate) fn commit_unless_ended(&self) -> Result<()> {
        if !self.is_open() && self.was_ended.load(Ordering::Relaxed) { Ok(()) } else { self.commit() }
    }

    /// By any thread: its own may have ended without.
    pub(crate) fn abort(&self) {
        self.was_ended.store(true, Ordering::Relaxed);
        self.drop_it();
    }

    fn drop_it(&self) {
        if let Some(transaction) = self.slot.take() {
            self.finish(|| drop(transaction));
        }
    }

    fn finish<R>(&self, run: impl FnOnce() -> R) -> R {
        let outcome = run();
        // Not before nobody can wait for it.
        self.home.transactions.fetch_sub(1, Ordering::Relaxed);
        outcome
    }
}

impl Drop for Undertaking {
    fn drop(&mut self) {
        self.drop_it();
    }
}

/// A database as it was.
pub(crate) struct View {
    pub(crate) home: Arc<Home>,
    slot: Slot<Arc<Lent<Snapshot>>>,
}

impl View {
    pub(crate) fn close(&self) {
        drop(self.slot.take());
    }

    pub(crate) fn is_open(&self) -> bool {
        self.slot.is_open()
    }
}

/// Where records are.
#[derive(Clone)]
pub(crate) enum Source {
    Database(Arc<Home>),
    Transaction(Arc<Undertaking>),
    Snapshot(Arc<View>),
}

impl Source {
    #[inline]
    pub(crate) fn home(&self) -> &Arc<Home> {
        match self {
            Source::Database(home) => home,
            Source::Transaction(undertaking) => &undertaking.home,
            Source::Snapshot(view) => &view.home,
        }
    }

    #[inline]
    pub(crate) fn form(&self) -> Form {
        self.home().form
    }

    /// Fails in the child of a fork. To be asked before any lock that is held while others run: in the child it may be held by nobody.
    #[inline]
    pub(crate) fn must_be_of_this_process(&self) -> Result<()> {
        self.home().must_be_of_this_process()
    }

    /// Runs a look at one record.
    #[inline]
    pub(crate) fn look<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&Source) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.run(py, &self.home().reads, run)
    }

    /// Runs a change of one record.
    #[inline]
    pub(crate) fn change<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&Source) -> Result<T> + Send,
    ) -> PyResult<T> {
        let pace = match self {
            Source::Database(home) => &home.writes,
            // What is in the way of a commit is met there.
            Source::Transaction(_) | Source::Snapshot(_) => &self.home().reads,
        };
        self.run(py, pace, run)
    }

    /// Runs at this pace; with the interpreter given up where a transaction may be in the way.
    #[inline]
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        pace: &Pace,
        run: impl FnOnce(&Source) -> Result<T> + Send,
    ) -> PyResult<T> {
        if self.waits_for_none() {
            pace.run(py, || run(self)).map_err(raised)
        } else {
            outcome(py.detach(|| run(self)))
        }
    }

    /// Runs with the interpreter given up: what may take long, or wait.
    pub(crate) fn at_length<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&Source) -> Result<T> + Send,
    ) -> PyResult<T> {
        outcome(py.detach(|| run(self)))
    }

    /// Whether no look ever waits.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.home().reads, Pace::Memory)
    }

    /// Leave to look at one record with the interpreter held, until it is dropped.
    #[inline]
    pub(crate) fn look_turn(&self) -> Option<Turn<'_>> {
        // A read may have to move a sliding expiry, and that waits for transactions.
        if self.waits_for_none() { self.home().reads.turn() } else { None }
    }

    /// Shows a record to whoever has leave to hold the interpreter meanwhile.
    #[inline]
    pub(crate) fn view_in_turn(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        match self {
            Source::Database(home) => home.db.with(|db| db.view(key, see)),
            _ => self.view(key, see),
        }
    }

    #[inline]
    fn waits_for_none(&self) -> bool {
        match self {
            Source::Database(home) => home.transactions.load(Ordering::Relaxed) == 0,
            _ => true,
        }
    }
}

impl RecordsHandle for Source {
    #[inline]
    fn with_records<T>(&self, run: impl FnOnce(&dyn Records) -> Result<T>) -> Result<T> {
        match self {
            Source::Database(home) => run(&**home.db.get()?),
            Source::Transaction(undertaking) => run(&**undertaking.get()?),
            Source::Snapshot(view) => run(&**view.slot.get()?),
        }
    }

    fn has_order(&self) -> bool {
        self.home().is_ordered
    }
}
