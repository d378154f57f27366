//! Transactions, which may read and change all records of a database.
//!
//! ```text
//! begin --> the transaction lock is closed: other writers wait, readers continue
//!           operations of the transaction --> its write buffer, above the engine
//! commit -> copies of the old records are published: all threads read them from now on
//!           the write buffer --record by record--> the engine
//!           all changes are appended to the log as one entry
//!           the copies are withdrawn: all threads see all changes; the lock is opened
//! ```
//!
//! Only one transaction is open at a time, and other writers wait for its end, so transactions are
//! serializable. After a crash the log contains either all changes of a transaction or none of
//! them.

mod overlay;
mod transaction_lock;

use crate::counters::WorkerCounters;
use crate::durability::CommitPoint;
use crate::update_log::{LogChange, TransactionEncoder, UpdateLog};
use crate::{Database, Db, database::OverwriteVisitor};
use overlay::{OverlayRecord, RecordOverlay};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use todana_core::{Action, Engine, Error, ErrorKind, MemoryLimit, Operation, Record, Reply, Result, Visitor};

pub(crate) use transaction_lock::{TransactionLock, WhileWaiting};

/// The place where an operation reads and writes: the engine itself, or the engine as a transaction
/// sees it.
#[derive(Clone, Copy)]
pub(crate) struct EngineView<'s> {
    pub(crate) engine: &'s dyn Engine,
    pub(crate) log: Option<&'s UpdateLog>,
    /// The server that made the changes first, if it was another server.
    pub(crate) origin: Option<u32>,
    /// The transaction lock, for which writers may have to wait. `None` within a transaction.
    pub(crate) transaction_lock: Option<&'s TransactionLock>,
    /// The commit point for which the reply must wait.
    pub(crate) commit: &'s Cell<CommitPoint>,
}

impl EngineView<'_> {
    /// Returns true if a write must wait, or is refused. Must be called under the record's lock.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.transaction_lock.is_some_and(|lock| lock.is_closed(self.origin.is_none()))
    }

    #[inline]
    fn has_old_records(&self) -> bool {
        self.transaction_lock.is_some_and(TransactionLock::has_old_records)
    }

    /// Waits until writes are allowed.
    pub(crate) fn wait(&self) -> Result<()> {
        self.transaction_lock.map_or(Ok(()), TransactionLock::wait)
    }

    /// Calls `see` with a record in this view. Returns true if the record exists. If `counts` is
    /// true, the read counts as an access. If `reads_shared` is true, `see` reads a long value only
    /// in shared form ([`Engine::view_shared`]).
    #[inline]
    pub(crate) fn read(
        &self,
        key: &[u8],
        (counts, reads_shared): (bool, bool),
        mut see: impl FnMut(Record<'_>),
    ) -> Result<bool> {
        loop {
            let publish_count = self.transaction_lock.map_or(0, TransactionLock::publish_count);
            let mut is_replaced = false;
            let mut see_unless_replaced = |record: Record<'_>| {
                is_replaced = self.has_old_records();
                if !is_replaced {
                    see(record);
                }
            };
            let found = if reads_shared {
                self.engine.view_shared(key, counts, &mut see_unless_replaced)
            } else if counts {
                self.engine.view(key, &mut see_unless_replaced)
            } else {
                self.engine.peek(key, &mut see_unless_replaced)
            };
            // If the record seems to be missing, a commit in progress may have removed it, even a
            // commit that has failed since.
            let is_certain = matches!(found, Ok(true))
                || (publish_count.is_multiple_of(2)
                    && publish_count == self.transaction_lock.map_or(0, TransactionLock::publish_count));
            if !is_replaced && is_certain {
                return found;
            }
            // If the commit has ended, the record is read again.
            if let Some(old_records) = self.transaction_lock.and_then(TransactionLock::old_records) {
                // If the engine holds the record, the first attempt has already counted the access.
                return old_records.over(self.engine).peek(key, &mut see);
            }
        }
    }
}

/// A transaction. When it is committed, all its changes become visible and durable together.
/// Otherwise none of them do: a transaction that is dropped is aborted.
///
/// While a transaction is open, other threads read the database as it was before, and their writes
/// wait. The thread that began the transaction fails with `Busy` if it writes to the database
/// directly. A transaction may be moved to another thread, but that thread would wait forever if it
/// wrote to the database directly, so it is best to use one thread from begin to end.
pub struct Transaction<'d> {
    database_source: TransactionDatabase<'d>,
    overlay: RecordOverlay,
    /// The server that made the changes first, if it was another server.
    origin: Option<u32>,
    is_open: bool,
}

/// The database that a transaction changes, with the counters that it uses.
enum TransactionDatabase<'d> {
    /// The caller lends both. No other thread uses the counters.
    Lent(&'d Database, &'d WorkerCounters),
    /// The counters belong to the transaction until its end, even if it moves to another thread.
    /// The threads count their other operations in counters of their own.
    Db(Cow<'d, Db>, Arc<WorkerCounters>),
    /// The transaction keeps both alive.
    Held(Arc<dyn TransactionHolder>),
}

/// Owns the database and the counters of a transaction that borrows neither
/// ([`Transaction::try_begin_held`]).
pub trait TransactionHolder: Send + Sync {
    /// Returns the database.
    fn database(&self) -> &Database;

    /// Returns the counters of the transaction. While it exists, no other thread may use them.
    fn worker_counters(&self) -> &WorkerCounters;
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

impl Database {
    /// Begins a transaction when no other one is open. It uses these counters, which no other
    /// thread may use while it exists. Fails with `Busy` if this thread has an open transaction.
    pub fn begin<'d>(&'d self, worker_counters: &'d WorkerCounters) -> Result<Transaction<'d>> {
        self.flush_if_due(self.now());
        self.transaction_lock().close()?;
        Ok(Transaction::new(TransactionDatabase::Lent(self, worker_counters)))
    }

    /// Begins a transaction as [`begin`](Self::begin) does, for changes that the server `origin`
    /// made first. The log entry names that server.
    pub fn begin_from<'d>(
        &'d self,
        origin: u32,
        worker_counters: &'d WorkerCounters,
    ) -> Result<Transaction<'d>> {
        let mut transaction = self.begin(worker_counters)?;
        transaction.origin = Some(origin);
        Ok(transaction)
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

    /// Creates a transaction. The caller has just closed the transaction lock.
    fn new(database_source: TransactionDatabase<'d>) -> Transaction<'d> {
        let transaction =
            Transaction { database_source, overlay: RecordOverlay::default(), origin: None, is_open: true };
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

    /// Executes an operation as [`Database::execute`] does. If the operation removes all records,
    /// the reply is `Unknown`.
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

    /// Calls `run` with this transaction's view of the engine.
    pub(crate) fn within<T>(&self, run: impl FnOnce(EngineView<'_>) -> T) -> T {
        let engine = self.overlay.over(self.database().engine());
        run(EngineView {
            engine: &engine,
            log: None,
            origin: self.origin,
            transaction_lock: None,
            commit: &Cell::default(),
        })
    }

    /// Applies all changes, or none if that fails. Other threads see the old state until the commit
    /// is complete. Returns when the changes are durable according to the options of the log, as
    /// for any other write ([`UpdateLog::wait`]).
    ///
    /// Fails with `Full` if there is no room, with `Unavailable` if changes cannot be written to
    /// disk, with `Invalid` if the changes exceed one entry of the update log (1 GiB), and with
    /// `Busy` if a planned flush became due while the transaction was open.
    pub fn commit(mut self) -> Result<()> {
        let point = self.apply_buffer()?;
        self.database().durability().map_or(Ok(()), |durability| durability.wait(point))
    }

    /// Commits without waiting for durability. Returns the commit point for which the reply must
    /// wait.
    pub fn commit_without_wait(mut self) -> Result<CommitPoint> {
        self.apply_buffer()
    }

    /// Applies all changes.
    fn apply_buffer(&mut self) -> Result<CommitPoint> {
        let changes = std::mem::take(&mut self.overlay).into_changes();
        let mut outcome =
            if changes.is_empty() { Ok(CommitPoint::NONE) } else { self.apply(&changes, self.origin) };
        if let (Ok(point), false) = (&mut outcome, changes.is_empty()) {
            let mut remove = |keys: &[Vec<u8>]| {
                *point = self.remove_at_once(keys)?.max(*point);
                Ok(())
            };
            self.database().limit_commit(changes.len(), &|key| changes.contains_key(key), &mut remove);
        }
        // The lock is opened, so that other threads continue while this thread waits for the disk.
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

    /// Removes records by a separate commit. The transaction stays open.
    pub(crate) fn remove_at_once(&self, keys: &[Vec<u8>]) -> Result<CommitPoint> {
        if keys.is_empty() {
            return Ok(CommitPoint::NONE);
        }
        // This server decides which records to remove, also after a change of another.
        self.apply(&keys.iter().map(|key| (key.as_slice().into(), None)).collect(), None)
    }

    /// Applies changes. The log entry names `origin` as the server that made them first.
    fn apply(
        &self,
        changes: &BTreeMap<Box<[u8]>, Option<OverlayRecord>>,
        origin: Option<u32>,
    ) -> Result<CommitPoint> {
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
        database.prepare_commit(origin)?;
        let undo = self.replaced(changes)?;
        let mut encoder = TransactionEncoder::default();
        for ((key, record), (_, old)) in changes.iter().zip(&undo).filter(|_| log.is_some()) {
            let (record, old) = (record.as_ref(), old.as_ref());
            let is_pushed = record.zip(old).is_some_and(|(record, old)| {
                old.record().attributes.has_value_list && encoder.push_replacement(key, record.record())
            });
            if !is_pushed && !encoder.push(change(key, record)) {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "transaction: its changes exceed one entry of the update log",
                ));
            }
        }
        let _committing = database.transaction_lock().begin_commit();
        // Another server may have become the master meanwhile.
        database.refuse_origin(origin)?;
        let old_records = RecordOverlay::default();
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
                log.append_from(origin, &encoder.change());
            }
            return Ok(database.commit_point(None));
        }
        if let Err(error) =
            apply_records(database, changes.iter().map(|(key, record)| (&**key, record.as_ref())))
        {
            self.undo(&undo, origin);
            return Err(error);
        }
        let end = log.map(|log| log.append_from(origin, &encoder.change()));
        drop(guard);
        Ok(database.commit_point(end))
    }

    /// Restores the records that a failed commit has replaced so far.
    fn undo(&self, replaced: &ReplacedRecords, origin: Option<u32>) {
        let database = self.database();
        let keys = |was_there: bool| replaced.iter().filter(move |(_, record)| record.is_some() == was_there);
        // New records are removed first, which frees their memory. The old records had room before,
        // but perhaps not in the blocks that are free now, so the memory limit is suspended.
        let bounded = database.engine().bounded();
        let limit = bounded.map(|bounded| bounded.limit());
        if let Some(bounded) = bounded {
            bounded.set_limit(MemoryLimit { bytes: None, ..bounded.limit() });
        }
        for (key, record) in keys(false).chain(keys(true)) {
            let mut record = record.as_ref();
            if apply_records(database, [(&**key, record)]).is_err() {
                // The system provides no memory. It is better to lose the record than to keep a
                // change that was never committed.
                record = None;
                let _ = apply_records(database, [(&**key, record)]);
            }
            // The restored records are logged, because a checkpoint may contain the changes that
            // are undone here.
            if let Some(log) = database.log() {
                log.append_from(origin, &change(key, record));
            }
        }
        if let (Some(bounded), Some(limit)) = (bounded, limit) {
            bounded.set_limit(limit);
        }
    }

    /// Returns the records that these changes replace. If the engine itself applies all changes or
    /// none, the old records need not be restored, so a damaged record counts as missing.
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

/// Records by key; `None` for a record that does not exist.
type ReplacedRecords = Vec<(Box<[u8]>, Option<OverlayRecord>)>;

/// Withdraws the published old records when dropped.
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
        database.visit_for_commit(key, &mut OverwriteVisitor(action(record)))?;
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

    /// A read that does not count as an access (`mg` with `u`) once marked the record as used if a
    /// commit was in progress, because the second attempt was a read that counts.
    #[test]
    fn silent_read_during_commit_counts_no_use() {
        let engines: [Box<dyn Engine>; 2] = [
            Box::new(MemHash::new(MemHashOptions { class_bounds: vec![100], ..Default::default() }).unwrap()),
            Box::new(MemTree::new(MemTreeOptions { class_bounds: vec![100], ..Default::default() }).unwrap()),
        ];
        for engine in engines {
            let set_time = |now| engine.bounded().unwrap().set_time(UnixSeconds(now));
            let age_s = || engine.sample_records().records[0].idle_s;
            set_time(1000);
            let record = Record::new(b"1", Attributes::default());
            engine.visit(b"a", &mut OverwriteVisitor(Action::Put(record))).unwrap();
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
                assert!(space.read(b"a", (counts, false), |record| value = record.value.to_vec()).unwrap());
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
        // This transaction still waits for the disk while the next one is open, so both need
        // counters of their own.
        let mut waiting = transaction;
        waiting.end();
        assert_ne!(counters_of(&db.begin().unwrap()), lent);
    }
}
