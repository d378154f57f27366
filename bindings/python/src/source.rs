//! Gives access to the records of open objects, and checks that the objects can still be used.

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
use todana::table::SetSearch;
use todana::{Db, Error, ErrorKind, Records, RecordsHandle, Result, Snapshot, Transaction};
use todana_core::Record;

use crate::conversion::OutputForm;
use crate::error::{outcome, raised};
use crate::fork::forks;
use crate::pace::{CallPace, CallPermission};

/// All open databases, which are closed when the interpreter ends. Only threads that hold the
/// interpreter lock this list. A forking thread holds the interpreter too, so the list is not
/// locked in the child of a fork.
static OPEN: Mutex<Vec<Weak<PythonDatabase>>> = Mutex::new(Vec::new());

/// Closes all databases. Python calls this when the interpreter ends, because it does not drop the
/// objects of modules then.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) {
    let homes = std::mem::take(&mut *OPEN.lock());
    let deadline = Instant::now() + LAST_CALLS_MAX;
    py.detach(|| {
        homes.iter().filter_map(Weak::upgrade).for_each(|database| {
            database.close_within(deadline.saturating_duration_since(Instant::now()));
        });
    });
}

/// The longest wait for running calls at that time. The interpreter does not wait for all threads,
/// so some calls may never end.
const LAST_CALLS_MAX: Duration = Duration::from_secs(5);
/// The interval at which a closing thread checks for Ctrl-C.
const CLOSING_SLICE: Duration = Duration::from_millis(100);

/// A part of an open database that is kept for the duration of a call. Dropping the last such part
/// notifies the closing thread.
pub(crate) struct CallGuard<T> {
    // The part. It is dropped before the other fields.
    value: T,
    in_use: Sender<Infallible>,
}

impl<T> CallGuard<T> {
    /// Returns another part of the same database.
    fn with<U>(&self, value: U) -> CallGuard<U> {
        CallGuard { value, in_use: self.in_use.clone() }
    }
}

impl<T> Deref for CallGuard<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// The state of a database that is being closed.
struct PendingClose {
    /// A channel that is disconnected when no call uses the database any more.
    is_empty: Receiver<Infallible>,
    /// The database. It is kept until no call uses it, so that a thread without other work closes
    /// it.
    db: Option<Db>,
}

thread_local! {
    /// The addresses of the databases that this thread uses while it runs Python functions.
    static CALLING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A value that can be closed while others use it.
pub(crate) struct ClosableSlot<T> {
    value: RwLock<Option<T>>,
    forks: u32,
    what: &'static str,
}

impl<T: Clone> ClosableSlot<T> {
    fn new(value: T, what: &'static str) -> ClosableSlot<T> {
        ClosableSlot { value: RwLock::new(Some(value)), forks: forks(), what }
    }

    /// Returns a clone. The lock is held only for the clone.
    #[inline]
    fn get(&self) -> Result<T> {
        if self.is_of_parent() {
            return Err(self.lost());
        }
        self.value.read().clone().ok_or_else(|| self.closed())
    }

    /// Runs `run` with the value itself, under the lock. Only for threads that hold the interpreter
    /// and do not wait.
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

    /// Removes and returns the value.
    fn take(&self) -> Option<T> {
        // The child of a fork must not touch the values of its parent.
        if self.is_of_parent() { None } else { self.value.write().take() }
    }

    /// Removes and returns the value. Fails if it is closed.
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

impl<T> Drop for ClosableSlot<T> {
    fn drop(&mut self) {
        if self.forks != forks() {
            // Closing the value would write to the files of the parent, and wait for threads that
            // this process does not have.
            std::mem::forget(self.value.get_mut().take());
        }
    }
}

/// An open database and the objects that depend on it.
pub(crate) struct PythonDatabase {
    db: ClosableSlot<Arc<CallGuard<Db>>>,
    pending_close: Mutex<PendingClose>,
    pub(crate) form: OutputForm,
    pub(crate) name: String,
    is_ordered: bool,
    reads: CallPace,
    writes: CallPace,
    /// The number of transactions that are open or about to be opened. Only threads that hold the
    /// interpreter increase it. While it is 0, no thread that holds the interpreter waits for a
    /// thread that does not hold it.
    transactions: AtomicUsize,
    transaction_list: Mutex<Vec<Weak<OpenTransaction>>>,
    snapshot_list: PartList<Snapshot>,
    search_list: PartList<Mutex<SetSearch<'static>>>,
}

impl PythonDatabase {
    pub(crate) fn new(db: Db, form: OutputForm, reads: CallPace, writes: CallPace) -> Arc<PythonDatabase> {
        let (in_use, is_empty) = mpsc::channel();
        let database = Arc::new(PythonDatabase {
            form,
            name: db.name().to_string(),
            is_ordered: db.is_ordered(),
            reads,
            writes,
            db: ClosableSlot::new(Arc::new(CallGuard { value: db, in_use }), "database"),
            pending_close: Mutex::new(PendingClose { is_empty, db: None }),
            transactions: AtomicUsize::new(0),
            transaction_list: Mutex::default(),
            snapshot_list: Mutex::default(),
            search_list: Mutex::default(),
        });
        note(&OPEN, &database);
        database
    }

    pub(crate) fn db(&self) -> Result<Arc<CallGuard<Db>>> {
        self.db.get()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.db.is_open()
    }

    #[inline]
    pub(crate) fn must_be_of_this_process(&self) -> Result<()> {
        if self.db.is_of_parent() { Err(self.db.lost()) } else { Ok(()) }
    }

    /// Aborts open transactions and closes the database, after the running calls of other threads
    /// have returned. If the wait is interrupted, the last of these calls closes the database.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        while !py.detach(|| self.close_within(CLOSING_SLICE)) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Closes the database like `close`, with a time limit. Returns true if the database is closed.
    fn close_within(&self, wait_max: Duration) -> bool {
        // In the child of a fork, locks may be held by threads that do not exist any more.
        if self.db.is_of_parent() {
            return true;
        }
        if self.is_calling() {
            // A call of this same thread is running, so this thread cannot wait for it. The last
            // running call closes the database.
            drop(self.db.take());
            self.abandon();
            return true;
        }
        let Some(mut pending_close) = self.pending_close.try_lock_for(wait_max) else { return false };
        if let Some(open_db) = self.db.take() {
            pending_close.db = Some(Db::clone(&open_db));
            drop(open_db);
            self.abandon();
        }
        if pending_close.is_empty.recv_timeout(wait_max) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        drop(pending_close.db.take());
        true
    }

    /// Ends the objects that depend on the closed database.
    fn abandon(&self) {
        let transactions = std::mem::take(&mut *self.transaction_list.lock());
        transactions.iter().filter_map(Weak::upgrade).for_each(|transaction| transaction.drop_it());
        let snapshots = std::mem::take(&mut *self.snapshot_list.lock());
        snapshots.iter().filter_map(Weak::upgrade).for_each(|view| view.close());
        let searches = std::mem::take(&mut *self.search_list.lock());
        searches.iter().filter_map(Weak::upgrade).for_each(|search| search.close());
    }

    /// Runs Python functions during a call. The functions may close the database.
    pub(crate) fn calling<R>(&self, run: impl FnOnce() -> R) -> R {
        struct PopOnDrop;
        impl Drop for PopOnDrop {
            fn drop(&mut self) {
                CALLING.with_borrow_mut(Vec::pop);
            }
        }
        CALLING.with_borrow_mut(|calling| calling.push(self.address()));
        let _pop = PopOnDrop;
        run()
    }

    fn is_calling(&self) -> bool {
        CALLING.with_borrow(|calling| calling.contains(&self.address()))
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Begins a transaction after no other transaction is open.
    pub(crate) fn begin(self: &Arc<PythonDatabase>, py: Python<'_>) -> PyResult<Arc<OpenTransaction>> {
        let db = self.db().map_err(raised)?;
        self.transactions.fetch_add(1, Ordering::Relaxed);
        let begun = py.detach(|| db.begin_owned());
        // The guard decreases the count on every path out of this function.
        let slot = match begun {
            Ok(transaction) => ClosableSlot::new(Arc::new(db.with(transaction)), "transaction"),
            Err(error) => {
                self.transactions.fetch_sub(1, Ordering::Relaxed);
                return Err(raised(error));
            }
        };
        let transaction = Arc::new(OpenTransaction {
            database: Arc::clone(self),
            slot,
            thread: thread::current().id(),
            was_ended: AtomicBool::new(false),
        });
        note(&self.transaction_list, &transaction);
        // A thread that closed the database meanwhile may not have seen this transaction.
        match self.db.must_be_open() {
            Ok(()) => Ok(transaction),
            Err(error) => {
                py.detach(|| transaction.drop_it());
                Err(raised(error))
            }
        }
    }

    /// Returns a view of the database as it is now.
    pub(crate) fn snapshot(self: &Arc<PythonDatabase>, py: Python<'_>) -> PyResult<Arc<OpenSnapshot>> {
        self.open_part(py, &self.snapshot_list, "snapshot", Db::snapshot)
    }

    /// Starts a search of a table, which `start` does.
    pub(crate) fn search(
        self: &Arc<PythonDatabase>,
        py: Python<'_>,
        start: impl FnOnce(&Db) -> Result<SetSearch<'static>> + Send,
    ) -> PyResult<Arc<OpenSearch>> {
        self.open_part(py, &self.search_list, "search", |db| start(db).map(Mutex::new))
    }

    /// Opens an object that ends before the database is closed.
    fn open_part<T: Send + Sync>(
        self: &Arc<PythonDatabase>,
        py: Python<'_>,
        list: &PartList<T>,
        what: &'static str,
        open: impl FnOnce(&Db) -> Result<T> + Send,
    ) -> PyResult<Arc<OpenPart<T>>> {
        let db = self.db().map_err(raised)?;
        let value = py.detach(|| open(&db)).map_err(raised)?;
        let slot = ClosableSlot::new(Arc::new(db.with(value)), what);
        drop(db);
        let part = Arc::new(OpenPart { slot, database: Arc::clone(self) });
        note(list, &part);
        // A thread that closed the database meanwhile may not have seen this object.
        match self.db.must_be_open() {
            Ok(()) => Ok(part),
            Err(error) => {
                py.detach(|| part.close());
                Err(raised(error))
            }
        }
    }
}

impl Drop for PythonDatabase {
    fn drop(&mut self) {
        if self.db.is_of_parent() {
            std::mem::forget(self.pending_close.get_mut().db.take());
            return;
        }
        // No object uses the database any more. In most cases Python's garbage collection runs this
        // in a thread that holds the interpreter, and closing may wait for the disk, so the
        // interpreter is released.
        let close = || drop((self.db.take(), self.pending_close.lock().db.take()));
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

/// An open transaction.
pub(crate) struct OpenTransaction {
    pub(crate) database: Arc<PythonDatabase>,
    slot: ClosableSlot<Arc<CallGuard<Transaction<'static>>>>,
    thread: ThreadId,
    /// True if the program committed or aborted the transaction. False if the database was closed.
    was_ended: AtomicBool,
}

impl OpenTransaction {
    fn get(&self) -> Result<Arc<CallGuard<Transaction<'static>>>> {
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
            Ok(CallGuard { value: transaction, in_use: _in_use }) => transaction.commit(),
            // Only the thread of the transaction uses it. That is this thread, within an outer
            // call.
            Err(_) => Err(Error::new(ErrorKind::Busy, "the transaction is in use")),
        })
    }

    /// Commits the transaction, unless the program has already ended it. Fails with `Closed` if it
    /// ended for another reason.
    pub(crate) fn commit_unless_ended(&self) -> Result<()> {
        if !self.is_open() && self.was_ended.load(Ordering::Relaxed) { Ok(()) } else { self.commit() }
    }

    /// Aborts the transaction. Any thread may do so, because the thread of the transaction may have
    /// ended without an abort.
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
        // The count is decreased only now, because another thread may wait for the transaction
        // until here.
        self.database.transactions.fetch_sub(1, Ordering::Relaxed);
        outcome
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        self.drop_it();
    }
}

/// An open object of a database that ends before the database is closed.
pub(crate) struct OpenPart<T> {
    // Dropped before the database, which releases the interpreter while it closes.
    slot: ClosableSlot<Arc<CallGuard<T>>>,
    pub(crate) database: Arc<PythonDatabase>,
}

/// The open objects of one type.
type PartList<T> = Mutex<Vec<Weak<OpenPart<T>>>>;

/// An open snapshot.
pub(crate) type OpenSnapshot = OpenPart<Snapshot>;

/// An open search of a table. A thread that waits for the interpreter never holds its lock.
pub(crate) type OpenSearch = OpenPart<Mutex<SetSearch<'static>>>;

impl OpenSearch {
    /// Returns the key and the columns of the next row.
    pub(crate) fn next(&self) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        let search = match self.slot.get() {
            Ok(search) => search,
            Err(error) => return Some(Err(error)),
        };
        let found = search.lock().next()?;
        Some(found.map(|(key, row)| (key, row.as_bytes().to_vec())))
    }

    /// Reads all rows, and returns the plan of the search.
    pub(crate) fn hint(&self) -> Result<String> {
        let search = self.slot.get()?;
        let mut search = search.lock();
        search.try_for_each(|found| found.map(drop))?;
        Ok(search.hint())
    }
}

impl<T> OpenPart<T> {
    pub(crate) fn close(&self) {
        drop(self.slot.take());
    }

    pub(crate) fn is_open(&self) -> bool {
        self.slot.is_open()
    }
}

/// The object whose records are used.
#[derive(Clone)]
pub(crate) enum RecordsSource {
    Database(Arc<PythonDatabase>),
    Transaction(Arc<OpenTransaction>),
    Snapshot(Arc<OpenSnapshot>),
}

impl RecordsSource {
    #[inline]
    pub(crate) fn database(&self) -> &Arc<PythonDatabase> {
        match self {
            RecordsSource::Database(database) => database,
            RecordsSource::Transaction(transaction) => &transaction.database,
            RecordsSource::Snapshot(view) => &view.database,
        }
    }

    #[inline]
    pub(crate) fn form(&self) -> OutputForm {
        self.database().form
    }

    /// Fails in the child of a fork. Must be called before taking any lock that is held while other
    /// code runs, because in the child the holder of the lock may not exist any more.
    #[inline]
    pub(crate) fn must_be_of_this_process(&self) -> Result<()> {
        self.database().must_be_of_this_process()
    }

    /// Reads one record.
    #[inline]
    pub(crate) fn read<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&RecordsSource) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.run(py, &self.database().reads, run)
    }

    /// Changes one record.
    #[inline]
    pub(crate) fn change<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&RecordsSource) -> Result<T> + Send,
    ) -> PyResult<T> {
        let pace = match self {
            RecordsSource::Database(database) => &database.writes,
            // A change within a transaction writes nothing before the commit, which also reports
            // conflicts.
            RecordsSource::Transaction(_) | RecordsSource::Snapshot(_) => &self.database().reads,
        };
        self.run(py, pace, run)
    }

    /// Runs a call at this pace. If a transaction may block the call, releases the interpreter.
    #[inline]
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        pace: &CallPace,
        run: impl FnOnce(&RecordsSource) -> Result<T> + Send,
    ) -> PyResult<T> {
        if self.waits_for_none() {
            pace.run(py, || run(self)).map_err(raised)
        } else {
            outcome(py.detach(|| run(self)))
        }
    }

    /// Runs a call that may take long or wait. Releases the interpreter.
    pub(crate) fn at_length<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&RecordsSource) -> Result<T> + Send,
    ) -> PyResult<T> {
        outcome(py.detach(|| run(self)))
    }

    /// Returns true if reads never wait.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.database().reads, CallPace::Memory)
    }

    /// Returns the permission to hold the interpreter while reading one record.
    #[inline]
    pub(crate) fn look_turn(&self) -> Option<CallPermission<'_>> {
        // A read may move a sliding expiry, and this write waits for transactions.
        if self.waits_for_none() { self.database().reads.turn() } else { None }
    }

    /// Shows a record to a thread that has the permission to hold the interpreter.
    #[inline]
    pub(crate) fn view_in_turn(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        match self {
            RecordsSource::Database(database) => database.db.with(|db| db.view(key, see)),
            _ => self.view(key, see),
        }
    }

    #[inline]
    fn waits_for_none(&self) -> bool {
        match self {
            RecordsSource::Database(database) => database.transactions.load(Ordering::Relaxed) == 0,
            _ => true,
        }
    }
}

impl RecordsHandle for RecordsSource {
    #[inline]
    fn with_records<T>(&self, run: impl FnOnce(&dyn Records) -> Result<T>) -> Result<T> {
        match self {
            RecordsSource::Database(database) => run(&**database.db.get()?),
            RecordsSource::Transaction(transaction) => run(&**transaction.get()?),
            RecordsSource::Snapshot(view) => run(&**view.slot.get()?),
        }
    }

    fn has_order(&self) -> bool {
        self.database().is_ordered
    }
}
