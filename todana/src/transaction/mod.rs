//! Transactions on a complete database.
//!
//! ```text
//! begin --> the transaction lock is closed: other writers wait, readers continue
//!           operations of the transaction --> its write buffer, above the engine
//! commit -> copies of the old records are published; everyone reads them from now on
//!           the write buffer --record by record--> the engine
//!           all changes are appended to the log as one entry
//!           the old records are withdrawn: everyone sees all changes; the lock is opened
//! ```
//!
//! There is one transaction at a time, and other writers wait, so transactions are serializable.
//! After a crash the log contains either the complete transaction or nothing of it.

mod overlay;
mod transaction_lock;

use crate::counters::WorkerCounters;
use crate::durability::CommitPoint;
use crate::update_log::{LogChange, TransactionEncoder, UpdateLog};
use crate::{Database, Db, database::Overwrite};
use overlay::{OverlayRecord, RecordOverlay};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use todana_core::{Action, Engine, Error, ErrorKind, MemoryLimit, Operation, Record, Reply, Result, Visitor};

pub(crate) use transaction_lock::{TransactionLock, WhileWaiting};

/// Where an operation reads and writes: the engine, or a transaction's view of it.
#[derive(Clone, Copy)]
pub(crate) struct EngineView<'s> {
    pub(crate) engine: &'s dyn Engine,
    pub(crate) log: Option<&'s UpdateLog>,
    /// The server that first made the changes, if it was another one.
    pub(crate) origin: Option<u32>,
    /// The lock that may delay writers; `None` within a transaction.
    pub(crate) transaction_lock: Option<&'s TransactionLock>,
    /// The point up to which the database must be durable before a reply may be sent.
    pub(crate) commit: &'s Cell<CommitPoint>,
}

impl EngineView<'_> {
    /// Returns true if a write must wait. To be called under the record's lock.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.transaction_lock.is_some_and(TransactionLock::is_closed)
    }

    #[inline]
    fn has_old_records(&self) -> bool {
        self.transaction_lock.is_some_and(TransactionLock::has_old_records)
    }

    /// Waits until writes are allowed.
    pub(crate) fn wait(&self) -> Result<()> {
        self.transaction_lock.map_or(Ok(()), TransactionLock::wait)
    }

    /// Calls `see` with a record in this view. Returns true if there is one. The read counts as a
    /// use of the record if `counts` is true.
    #[inline]
    pub(crate) fn read(&self, key: &[u8], counts: bool, mut see: impl FnMut(Record<'_>)) -> Result<bool> {
        loop {
            let publish_count = self.transaction_lock.map_or(0, TransactionLock::publish_count);
            let mut is_replaced = false;
            let mut see_unless_replaced = |record: Record<'_>| {
                is_replaced = self.has_old_records();
                if !is_replaced {
                    see(record);
                }
            };
            let found = if counts {
                self.engine.view(key, &mut see_unless_replaced)
            } else {
                self.engine.peek(key, &mut see_unless_replaced)
            };
            // A commit may have hidden a record that seems to be missing, even one that has failed
            // since.
            let is_certain = matches!(found, Ok(true))
                || (publish_count.is_multiple_of(2)
                    && publish_count == self.transaction_lock.map_or(0, TransactionLock::publish_count));
            if !is_replaced && is_certain {
                return found;
            }
            // Otherwise the commit has ended; read again.
            if let Some(old_records) = self.transaction_lock.and_then(TransactionLock::old_records) {
                // The first attempt has already counted the use of a record that the engine holds.
                return old_records.over(self.engine).peek(key, &mut see);
            }
        }
    }
}

/// A transaction. Its changes become visible, and survive a crash, together when it is committed,
/// or not at all. A transaction that is dropped is aborted.
///
/// While it is open, others read the database as it was before, and wait before they write. The
/// thread that began it fails with `Busy` if it writes to the database directly. The transaction
/// may move to another thread, but that thread then waits forever if it writes to the database
/// directly. Use one thread from begin to end.
pub struct Transaction<'d> {
    database_source: TransactionDatabase<'d>,
    overlay: RecordOverlay,
    is_open: bool,
}

/// The database that a transaction changes, and the counters that it uses.
enum TransactionDatabase<'d> {
    /// Borrowed from the caller, whose counters no other thread uses.
    Lent(&'d Database, &'d WorkerCounters),
    /// The counters belong to the transaction alone until it ends, even if it moves to another
    /// thread, because its thread counts other operations in its own.
    Db(Cow<'d, Db>, Arc<WorkerCounters>),
    /// Kept alive by the transaction.
    Held(Arc<dyn TransactionHolder>),
}

/// Owns a database and counters for a transaction that borrows neither
/// ([`Transaction::try_begin_held`]).
pub trait TransactionHolder: Send + Sync {
    /// Returns the database.
    fn database(&self) -> &Database;

    /// Returns the counters of the transaction. No other thread may use them while the transaction
    /// exists.
    fn worker_counters(&self) -> &WorkerCounters;
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

impl Database {
    /// Begins a transaction when no other one is open. It uses these counters; no other thread may
    /// use them while it exists. Fails with `Busy` if this thread has an open transaction.
    pub fn begin<'d>(&'d self, worker_counters: &'d WorkerCounters) -> Result<Transaction<'d>> {
        self.flush_if_due(self.now());
        self.transaction_lock().close()?;
        Ok(Transaction::new(TransactionDatabase::Lent(self, worker_counters)))
    }

    /// Begins a transaction without waiting. Returns `None` if another one is open.
    pub fn try_begin<'d>(&'d self, worker_counters: &'d WorkerCounters) -> Option<Transaction<'d>> {
        self.flush_if_due(self.now());
        self.transaction_lock()
            .try_close()
            .then(|| Transaction::new(TransactionDatabase::Lent(self, worker_counters)))
    }
}

impl Db {
    /// Begins a transaction as [`begin`](Db::begin) does, but one that borrows nothing and keeps
    /// the database open.
    ///
    /// ```
    /// # use todana::{Db, Records, Transaction};
    /// struct Session {
    ///     transaction: Option<Transaction<'static>>,
    /// }
    ///
    /// let db = Db::open("mem:hash")?;
    /// let mut session = Session { transaction: Some(db.begin_owned()?) };
    /// if let Some(transaction) = session.transaction.take() {
    ///     transaction.set(b"a", b"1")?;
    ///     transaction.commit()?;
    /// }
    /// assert_eq!(db.get(b"a")?, Some(b"1".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn begin_owned(&self) -> Result<Transaction<'static>> {
        Transaction::of(Cow::Owned(self.clone()))
    }

    /// Begins such a transaction without waiting. Returns `None` if another one is open.
    ///
    /// ```
    /// # use todana::Db;
    /// let db = Db::open("mem:hash")?;
    /// let first = db.try_begin_owned()?;
    /// assert!(first.is_some() && db.try_begin_owned()?.is_none());
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn try_begin_owned(&self) -> Result<Option<Transaction<'static>>> {
        self.refuse_if_read_only()?;
        let database = self.database();
        database.flush_if_due(database.now());
        let begin =
            || Transaction::new(TransactionDatabase::Db(Cow::Owned(self.clone()), self.lend_counters()));
        Ok(database.transaction_lock().try_close().then(begin))
    }
}

impl Transaction<'static> {
    /// Begins a transaction that owns its database, without waiting. Returns `None` if another one
    /// is open.
    pub fn try_begin_held(holder: Arc<dyn TransactionHolder>) -> Option<Transaction<'static>> {
        let database = holder.database();
        database.flush_if_due(database.now());
        database.transaction_lock().try_close().then(|| Transaction::new(TransactionDatabase::Held(holder)))
    }
}

impl<'d> Transaction<'d> {
    pub(crate) fn of(db: Cow<'d, Db>) -> Result<Transaction<'d>> {
        db.refuse_if_read_only()?;
        let database = db.database();
        database.flush_if_due(database.now());
        database.transaction_lock().close()?;
        let worker_counters = db.lend_counters();
        Ok(Transaction::new(TransactionDatabase::Db(db, worker_counters)))
    }

    /// The transaction lock must just have been closed.
    fn new(database_source: TransactionDatabase<'d>) -> Transaction<'d> {
        let transaction = Transaction { database_source, overlay: RecordOverlay::default(), is_open: true };
        transaction.database().engine().wait_for_visits();
        transaction
    }

    /// Returns the database that the transaction changes.
    pub fn database(&self) -> &Database {
        match &self.database_source {
            TransactionDatabase::Lent(database, _) => database,
            TransactionDatabase::Db(db, _) => db.database(),
            TransactionDatabase::Held(holder) => holder.database(),
        }
    }

    fn worker_counters(&self) -> &WorkerCounters {
        match &self.database_source {
            TransactionDatabase::Lent(_, worker_counters) => worker_counters,
            TransactionDatabase::Db(_, worker_counters) => worker_counters,
            TransactionDatabase::Held(holder) => holder.worker_counters(),
        }
    }

    /// Executes an operation as [`Database::execute`] does. The reply to one that removes all
    /// records is `Unknown`.
    pub fn run(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) {
        if matches!(command, Operation::Flush { .. }) {
            return reply(Reply::Unknown);
        }
        let database = self.database();
        self.within(|space| database.run(space, self.worker_counters(), command, database.now(), reply));
    }

    /// Calls a visitor on a record as this transaction sees it.
    pub(crate) fn visit_record(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.within(|space| self.database().visit_in(space, self.worker_counters(), key, visitor))
    }

    /// Calls `run` with the view of this transaction.
    pub(crate) fn within<T>(&self, run: impl FnOnce(EngineView<'_>) -> T) -> T {
        let engine = self.overlay.over(self.database().engine());
        run(EngineView {
            engine: &engine,
            log: None,
            origin: None,
            transaction_lock: None,
            commit: &Cell::default(),
        })
    }

    /// Applies all changes or none. Fails with `Full` if there is no room, with `Unavailable` if
    /// changes cannot be written to disk, with `Invalid` if the changes exceed one entry of the
    /// update log (1 GiB), and with `Busy` if a planned flush became due while the transaction was
    /// open. Others see the old state until the commit is complete. Returns when the changes are
    /// durable according to the options of the log, like any other write ([`UpdateLog::wait`]).
    pub fn commit(mut self) -> Result<()> {
        let point = self.apply_buffer()?;
        self.database().durability().map_or(Ok(()), |durability| durability.wait(point))
    }

    /// Commits without waiting for durability. Returns the commit point that a reply must wait for.
    pub fn commit_without_wait(mut self) -> Result<CommitPoint> {
        self.apply_buffer()
    }

    /// Applies all changes.
    fn apply_buffer(&mut self) -> Result<CommitPoint> {
        let changes = std::mem::take(&mut self.overlay).into_changes();
        let mut outcome = if changes.is_empty() { Ok(CommitPoint::NONE) } else { self.apply(&changes) };
        if let (Ok(point), false) = (&mut outcome, changes.is_empty()) {
            let mut remove = |keys: &[Vec<u8>]| {
                *point = self.remove_at_once(keys)?.max(*point);
                Ok(())
            };
            self.database().limit_commit(changes.len(), &|key| changes.contains_key(key), &mut remove);
        }
        // Others continue while this thread waits for the disk.
        self.end();
        outcome
    }

    /// Discards all changes, as dropping the transaction does.
    pub fn abort(self) {}

    /// Opens the transaction lock.
    fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.database().transaction_lock().open();
        }
    }

    /// Removes records by a commit of their own. The transaction stays open.
    pub(crate) fn remove_at_once(&self, keys: &[Vec<u8>]) -> Result<CommitPoint> {
        if keys.is_empty() {
            return Ok(CommitPoint::NONE);
        }
        self.apply(&keys.iter().map(|key| (key.as_slice().into(), None)).collect())
    }

    fn apply(&self, changes: &BTreeMap<Box<[u8]>, Option<OverlayRecord>>) -> Result<CommitPoint> {
        let database = self.database();
        let log = database.log();
        database.refuse_if_unwritable(self.worker_counters())?;
        if changes.values().any(Option::is_some) {
            database.refuse_if_full(self.worker_counters())?;
        }
        if database.is_flush_due() {
            let message = "transaction: a planned flush became due in the meantime; try again";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        database.prepare_commit()?;
        let mut encoder = TransactionEncoder::default();
        for (key, record) in changes.iter().filter(|_| log.is_some()) {
            if !encoder.push(change(key, record.as_ref())) {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "transaction: its changes exceed one entry of the update log",
                ));
            }
        }
        let _committing = database.transaction_lock().begin_commit();
        let (old_records, undo) = (RecordOverlay::default(), self.replaced(changes)?);
        undo.iter().for_each(|(key, record)| old_records.put(key, record.clone()));
        database.transaction_lock().publish_old_records(old_records);
        let guard = OldRecordsGuard(database.transaction_lock());
        if let Some(durable) = database.engine().durable() {
            let actions: Vec<_> =
                changes.iter().map(|(key, record)| (&**key, action(record.as_ref()))).collect();
            changes
                .values()
                .flatten()
                .for_each(|record| database.note_expiry(record.record().attributes.expiry));
            durable.apply(&actions).inspect_err(|error| self.worker_counters().count_refusal(error))?;
            if let Some(log) = log {
                log.append(&encoder.change());
            }
            return Ok(database.commit_point(None));
        }
        if let Err(error) =
            apply_records(database, changes.iter().map(|(key, record)| (&**key, record.as_ref())))
        {
            self.undo(&undo);
            return Err(error);
        }
        let end = log.map(|log| log.append(&encoder.change()));
        drop(guard);
        Ok(database.commit_point(end))
    }

    /// Restores the records that a partly applied commit has replaced.
    fn undo(&self, replaced: &ReplacedRecords) {
        let database = self.database();
        let keys = |was_there: bool| replaced.iter().filter(move |(_, record)| record.is_some() == was_there);
        // Remove new records first, to free their memory. The old records fitted before, but
        // perhaps not into the same blocks, so the limit is suspended.
        let bounded = database.engine().bounded();
        let limit = bounded.map(|bounded| bounded.limit());
        if let Some(bounded) = bounded {
            bounded.set_limit(MemoryLimit { bytes: None, ..bounded.limit() });
        }
        for (key, record) in keys(false).chain(keys(true)) {
            let mut record = record.as_ref();
            if apply_records(database, [(&**key, record)]).is_err() {
                // The system provides no memory: a missing record is better than one that was never
                // committed.
                record = None;
                let _ = apply_records(database, [(&**key, record)]);
            }
            // Append it to the log, because a checkpoint may contain what was undone.
            if let Some(log) = database.log() {
                log.append(&change(key, record));
            }
        }
        if let (Some(bounded), Some(limit)) = (bounded, limit) {
            bounded.set_limit(limit);
        }
    }

    /// Returns the records that these changes replace. If the engine applies all changes or none, a
    /// damaged record counts as missing, because it need not be restored.
    fn replaced(&self, changes: &BTreeMap<Box<[u8]>, Option<OverlayRecord>>) -> Result<ReplacedRecords> {
        let mut replaced = Vec::with_capacity(changes.len());
        let engine = self.database().engine();
        for key in changes.keys() {
            let mut old = None;
            match engine.peek(key, &mut |record| old = Some(OverlayRecord::of(record))) {
                Err(error) if error.kind() == ErrorKind::Corrupt && engine.durable().is_some() => {}
                seen => drop(seen?),
            }
            replaced.push((key.clone(), old));
        }
        Ok(replaced)
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.end();
        if let TransactionDatabase::Db(db, worker_counters) = &self.database_source {
            db.return_counters(Arc::clone(worker_counters));
        }
    }
}

/// Records by key; `None` for one that does not exist.
type ReplacedRecords = Vec<(Box<[u8]>, Option<OverlayRecord>)>;

/// Withdraws the old records when dropped.
struct OldRecordsGuard<'g>(&'g TransactionLock);

impl Drop for OldRecordsGuard<'_> {
    fn drop(&mut self) {
        self.0.withdraw_old_records();
    }
}

fn change<'c>(key: &'c [u8], record: Option<&'c OverlayRecord>) -> LogChange<'c> {
    match record {
        Some(record) => LogChange::Put { key, record: record.record() },
        None => LogChange::Remove { key },
    }
}

fn action(record: Option<&OverlayRecord>) -> Action<'_> {
    record.map_or(Action::Remove, |record| Action::Put(record.record()))
}

fn apply_records<'c>(
    database: &Database,
    changes: impl IntoIterator<Item = (&'c [u8], Option<&'c OverlayRecord>)>,
) -> Result<()> {
    for (key, record) in changes {
        database.visit_past_gate(key, &mut Overwrite(action(record)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Records as _;
    use std::ptr;
    use todana_core::{Attributes, UnixSeconds};
    use todana_engine::{MemHash, MemHashOptions, MemTree, MemTreeOptions};

    /// While a commit was under way, a read that counts as no use (`mg` with `u`) refreshed the
    /// record for eviction nevertheless, because the second attempt asked the engine for a counted
    /// read.
    #[test]
    fn silent_read_during_a_commit_counts_as_no_use() {
        let engines: [Box<dyn Engine>; 2] = [
            Box::new(MemHash::new(MemHashOptions { class_bounds: vec![100], ..Default::default() }).unwrap()),
            Box::new(MemTree::new(MemTreeOptions { class_bounds: vec![100], ..Default::default() }).unwrap()),
        ];
        for engine in engines {
            let set_time = |now| engine.bounded().unwrap().set_time(UnixSeconds(now));
            let age_s = || engine.sample_records().records[0].idle_s;
            set_time(1000);
            let record = Record::new(b"1", Attributes::default());
            engine.visit(b"a", &mut Overwrite(Action::Put(record))).unwrap();
            set_time(1060);
            let lock = TransactionLock::default();
            lock.publish_old_records(RecordOverlay::default());
            let commit = Cell::default();
            let space = EngineView {
                engine: &*engine,
                log: None,
                origin: None,
                transaction_lock: Some(&lock),
                commit: &commit,
            };
            let read = |counts| {
                let mut value = Vec::new();
                assert!(space.read(b"a", counts, |record| value = record.value.to_vec()).unwrap());
                value
            };
            assert_eq!((read(false), age_s()), (b"1".to_vec(), 60));
            assert_eq!((read(true), age_s()), (b"1".to_vec(), 0));
        }
    }

    #[test]
    fn transaction_counters_are_reused_by_the_next() {
        let db = Db::open("mem:hash").unwrap();
        let counters_of = |transaction: &Transaction<'_>| {
            transaction.set(b"a", b"1").unwrap();
            ptr::from_ref(transaction.worker_counters())
        };
        let own = ptr::from_ref(db.worker_counters());
        let lent = counters_of(&db.begin().unwrap());
        let transaction = db.begin_owned().unwrap();
        assert_eq!(counters_of(&transaction), lent);
        assert_ne!(own, lent);
        // A transaction that still waits for the disk while the next one is open keeps its own
        // counters.
        let mut waiting = transaction;
        waiting.end();
        assert_ne!(counters_of(&db.begin().unwrap()), lent);
    }
}
