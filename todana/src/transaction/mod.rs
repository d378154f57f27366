//! Transactions over a whole database.
//!
//! ```text
//! begin --> the gate is closed: who else writes waits, who reads goes on
//!           commands of the transaction --> a layer of its own, above the engine
//! commit -> what it replaces is copied to the shield, from which everybody reads it now
//!           the layer --record by record--> the engine
//!           the log is told of all of it in one entry
//!           the shield is lowered: everybody sees all of it; the gate is opened
//! ```
//!
//! There is one transaction at a time, and other writers wait, so transactions are serializable. A crash leaves all of
//! a transaction in the log or nothing.

mod gate;
mod layer;

use crate::counters::WorkerCounters;
use crate::durability::CommitPoint;
use crate::update_log::{LogChange, TransactionEncoder, UpdateLog};
use crate::{Database, Db, database::Overwrite};
use layer::{Layer, Owned};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use todana_core::{Action, Engine, Error, ErrorKind, MemoryLimit, Operation, Record, Reply, Result, Visitor};

pub(crate) use gate::{Gate, WhileWaiting};

/// Where a command reads and writes: the engine, or a transaction's view of it.
#[derive(Clone, Copy)]
pub(crate) struct Space<'s> {
    pub(crate) engine: &'s dyn Engine,
    pub(crate) log: Option<&'s UpdateLog>,
    /// The server that has first made the changes, if it was another.
    pub(crate) origin: Option<u32>,
    /// Who keeps it waiting; `None` within a transaction.
    pub(crate) gate: Option<&'s Gate>,
    /// What an answer to the changes has to wait for.
    pub(crate) commit: &'s Cell<CommitPoint>,
}

impl Space<'_> {
    /// Whether a write has to wait. To be asked under the record's lock.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.gate.is_some_and(Gate::is_closed)
    }

    #[inline]
    fn is_shielded(&self) -> bool {
        self.gate.is_some_and(Gate::is_shielded)
    }

    /// Waits until writes may go on.
    pub(crate) fn wait(&self) -> Result<()> {
        self.gate.map_or(Ok(()), Gate::wait)
    }

    /// Shows a record as it is for this space; returns whether there is one. `counts`: as a use of it.
    #[inline]
    pub(crate) fn look(&self, key: &[u8], counts: bool, mut see: impl FnMut(Record<'_>)) -> Result<bool> {
        loop {
            let shieldings = self.gate.map_or(0, Gate::shieldings);
            let mut is_replaced = false;
            let mut see_unless_replaced = |record: Record<'_>| {
                is_replaced = self.is_shielded();
                if !is_replaced {
                    see(record);
                }
            };
            let found = if counts {
                self.engine.view(key, &mut see_unless_replaced)
            } else {
                self.engine.peek(key, &mut see_unless_replaced)
            };
            // What is not there may only be away behind the shield of a commit, perhaps of one that has failed meanwhile.
            let is_certain = matches!(found, Ok(true))
                || (shieldings.is_multiple_of(2) && shieldings == self.gate.map_or(0, Gate::shieldings));
            if !is_replaced && is_certain {
                return found;
            }
            // Else the commit has come to its end.
            if let Some(shield) = self.gate.and_then(Gate::shield) {
                // The first attempt has already counted the use of a record that the engine holds.
                return shield.over(self.engine).peek(key, &mut see);
            }
        }
    }
}

/// A transaction: what is done through it becomes visible, and outlives a crash, as a whole when it is committed, or not at all. It is
/// aborted when it is dropped.
///
/// While it is open, others read the database as it was before, and wait before they write. The thread that has begun it fails with
/// `Busy` if it writes to the database past it. The transaction may move to another thread, but that thread then waits forever if it
/// writes to the database directly. Use one thread from begin to end.
pub struct Transaction<'d> {
    home: Home<'d>,
    layer: Layer,
    is_open: bool,
}

/// The database that a transaction changes, and the lane in which it counts what it does.
enum Home<'d> {
    /// Borrowed from the caller, who uses the lane in no other thread.
    Lent(&'d Database, &'d WorkerCounters),
    /// The lane is nobody else's until the transaction is over, wherever it goes: what its thread does beside it is counted elsewhere.
    Db(Cow<'d, Db>, Arc<WorkerCounters>),
    /// Kept alive by the transaction.
    Held(Arc<dyn TransactionHolder>),
}

/// Who has a database and a lane of it, for a transaction that borrows neither ([`Transaction::try_begin_held`]).
pub trait TransactionHolder: Send + Sync {
    /// The database.
    fn database(&self) -> &Database;

    /// The lane that the transaction counts in. Nobody else counts in it while the transaction is there.
    fn worker_counters(&self) -> &WorkerCounters;
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

impl Database {
    /// Begins a transaction, once no other one is open; what it does is counted in this lane, in which nobody else counts while it is
    /// there. Fails with `Busy` if this thread has one open already.
    pub fn begin<'d>(&'d self, worker_counters: &'d WorkerCounters) -> Result<Transaction<'d>> {
        self.flush_if_due(self.now());
        self.gate().close()?;
        Ok(Transaction::new(Home::Lent(self, worker_counters)))
    }

    /// The same without waiting: `None` if there is another one.
    pub fn try_begin<'d>(&'d self, worker_counters: &'d WorkerCounters) -> Option<Transaction<'d>> {
        self.flush_if_due(self.now());
        self.gate().try_close().then(|| Transaction::new(Home::Lent(self, worker_counters)))
    }
}

impl Db {
    /// As [`begin`](Db::begin), for a transaction that borrows nothing: to be kept where no lifetime goes. It keeps the database open.
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

    /// The same without waiting: `None` if there is another one.
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
        let begin = || Transaction::new(Home::Db(Cow::Owned(self.clone()), self.lend_counters()));
        Ok(database.gate().try_close().then(begin))
    }
}

impl Transaction<'static> {
    /// Begins a transaction that keeps what it needs; without waiting: `None` if there is another one.
    pub fn try_begin_held(holder: Arc<dyn TransactionHolder>) -> Option<Transaction<'static>> {
        let database = holder.database();
        database.flush_if_due(database.now());
        database.gate().try_close().then(|| Transaction::new(Home::Held(holder)))
    }
}

impl<'d> Transaction<'d> {
    pub(crate) fn of(db: Cow<'d, Db>) -> Result<Transaction<'d>> {
        db.refuse_if_read_only()?;
        let database = db.database();
        database.flush_if_due(database.now());
        database.gate().close()?;
        let worker_counters = db.lend_counters();
        Ok(Transaction::new(Home::Db(db, worker_counters)))
    }

    /// Behind a gate that has just been closed.
    fn new(home: Home<'d>) -> Transaction<'d> {
        let transaction = Transaction { home, layer: Layer::default(), is_open: true };
        transaction.database().engine().wait_for_visits();
        transaction
    }

    /// The database that it changes.
    pub fn database(&self) -> &Database {
        match &self.home {
            Home::Lent(database, _) => database,
            Home::Db(db, _) => db.database(),
            Home::Held(holder) => holder.database(),
        }
    }

    fn worker_counters(&self) -> &WorkerCounters {
        match &self.home {
            Home::Lent(_, worker_counters) => worker_counters,
            Home::Db(_, worker_counters) => worker_counters,
            Home::Held(holder) => holder.worker_counters(),
        }
    }

    /// Runs a command as [`Database::execute`] does. One that would remove everything at once is answered `Unknown`.
    pub fn run(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) {
        if matches!(command, Operation::Flush { .. }) {
            return reply(Reply::Unknown);
        }
        let database = self.database();
        self.within(|space| database.run(space, self.worker_counters(), command, database.now(), reply));
    }

    /// Runs a visitor on a record as this transaction sees it.
    pub(crate) fn visit_record(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.within(|space| self.database().visit_in(space, self.worker_counters(), key, visitor))
    }

    /// Runs with the space of this transaction.
    pub(crate) fn within<T>(&self, run: impl FnOnce(Space<'_>) -> T) -> T {
        let engine = self.layer.over(self.database().engine());
        run(Space { engine: &engine, log: None, origin: None, gate: None, commit: &Cell::default() })
    }

    /// Makes all changes or none. Fails with `Full` if there is no room, `Unavailable` if changes cannot be written to disk, `Invalid` if
    /// the changes exceed one entry of the update log (1 GiB), and `Busy` if a planned flush became due while the transaction was open.
    /// Others see the old state until the commit is complete. Returns once the changes count as made by the log's options, as with any
    /// other write ([`UpdateLog::wait`]).
    pub fn commit(mut self) -> Result<()> {
        let point = self.make()?;
        self.database().durability().map_or(Ok(()), |durability| durability.wait(point))
    }

    /// The same, but returns before they count as made: what an answer has to wait for, as of any other write.
    pub fn commit_unsettled(mut self) -> Result<CommitPoint> {
        self.make()
    }

    /// Makes all changes.
    fn make(&mut self) -> Result<CommitPoint> {
        let changes = std::mem::take(&mut self.layer).into_changes();
        let mut outcome = if changes.is_empty() { Ok(CommitPoint::NONE) } else { self.apply(&changes) };
        if let (Ok(point), false) = (&mut outcome, changes.is_empty()) {
            let mut remove = |keys: &[Vec<u8>]| {
                *point = self.remove_at_once(keys)?.max(*point);
                Ok(())
            };
            self.database().limit_commit(changes.len(), &|key| changes.contains_key(key), &mut remove);
        }
        // Others may go on while the disk is waited for.
        self.end();
        outcome
    }

    /// Leaves everything as it was. So does dropping it.
    pub fn abort(self) {}

    /// Lets the others go on.
    fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.database().gate().open();
        }
    }

    /// Removes records by a commit of their own. The transaction stays open.
    pub(crate) fn remove_at_once(&self, keys: &[Vec<u8>]) -> Result<CommitPoint> {
        if keys.is_empty() {
            return Ok(CommitPoint::NONE);
        }
        self.apply(&keys.iter().map(|key| (key.as_slice().into(), None)).collect())
    }

    fn apply(&self, changes: &BTreeMap<Box<[u8]>, Option<Owned>>) -> Result<CommitPoint> {
        let database = self.database();
        let log = database.log();
        database.refuse_if_unwritable(self.worker_counters())?;
        if changes.values().any(Option::is_some) {
            database.refuse_if_full(self.worker_counters())?;
        }
        if database.is_flush_due() {
            let message = "everything was to be removed while the transaction was open: try again";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        database.prepare_commit()?;
        let mut gathered = TransactionEncoder::default();
        for (key, record) in changes.iter().filter(|_| log.is_some()) {
            if !gathered.push(change(key, record.as_ref())) {
                return Err(Error::new(ErrorKind::Invalid, "more changes than one transaction can make"));
            }
        }
        let _committing = database.gate().begin_commit();
        let (shield, undo) = (Layer::default(), self.replaced(changes)?);
        undo.iter().for_each(|(key, record)| shield.put(key, record.clone()));
        database.gate().raise(shield);
        let lowers = Lowers(database.gate());
        if let Some(durable) = database.engine().durable() {
            let actions: Vec<_> =
                changes.iter().map(|(key, record)| (&**key, action(record.as_ref()))).collect();
            changes
                .values()
                .flatten()
                .for_each(|record| database.note_expiry(record.record().attributes.expiry));
            durable.apply(&actions).inspect_err(|error| self.worker_counters().count_refusal(error))?;
            if let Some(log) = log {
                log.append(&gathered.change());
            }
            return Ok(database.commit_point(None));
        }
        if let Err(error) = make(database, changes.iter().map(|(key, record)| (&**key, record.as_ref()))) {
            self.undo(&undo);
            return Err(error);
        }
        let end = log.map(|log| log.append(&gathered.change()));
        drop(lowers);
        Ok(database.commit_point(end))
    }

    /// Puts back what changes that were made in part have replaced.
    fn undo(&self, replaced: &Records) {
        let database = self.database();
        let keys = |was_there: bool| replaced.iter().filter(move |(_, record)| record.is_some() == was_there);
        // What was not there gives its room back first. The rest fitted before, though perhaps not into the same blocks: for this
        // the limit does not count.
        let bounded = database.engine().bounded();
        let limit = bounded.map(|bounded| bounded.limit());
        if let Some(bounded) = bounded {
            bounded.set_limit(MemoryLimit { bytes: None, ..bounded.limit() });
        }
        for (key, record) in keys(false).chain(keys(true)) {
            let mut record = record.as_ref();
            if make(database, [(&**key, record)]).is_err() {
                // The system gives no memory: better nothing than what was never committed.
                record = None;
                let _ = make(database, [(&**key, record)]);
            }
            // The log is told, as a checkpoint may have met what was undone.
            if let Some(log) = database.log() {
                log.append(&change(key, record));
            }
        }
        if let (Some(bounded), Some(limit)) = (bounded, limit) {
            bounded.set_limit(limit);
        }
    }

    /// The records that these changes replace. One that is damaged is as good as none where the engine makes all changes or none, so that
    /// it need not be put back.
    fn replaced(&self, changes: &BTreeMap<Box<[u8]>, Option<Owned>>) -> Result<Records> {
        let mut replaced = Vec::with_capacity(changes.len());
        let engine = self.database().engine();
        for key in changes.keys() {
            let mut old = None;
            match engine.peek(key, &mut |record| old = Some(Owned::of(record))) {
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
        if let Home::Db(db, worker_counters) = &self.home {
            db.return_counters(Arc::clone(worker_counters));
        }
    }
}

/// By key; `None` for one that is not there.
type Records = Vec<(Box<[u8]>, Option<Owned>)>;

/// Lowers the shield, whatever happens.
struct Lowers<'g>(&'g Gate);

impl Drop for Lowers<'_> {
    fn drop(&mut self) {
        self.0.lower();
    }
}

fn change<'c>(key: &'c [u8], record: Option<&'c Owned>) -> LogChange<'c> {
    match record {
        Some(record) => LogChange::Put { key, record: record.record() },
        None => LogChange::Remove { key },
    }
}

fn action(record: Option<&Owned>) -> Action<'_> {
    record.map_or(Action::Remove, |record| Action::Put(record.record()))
}

fn make<'c>(
    database: &Database,
    changes: impl IntoIterator<Item = (&'c [u8], Option<&'c Owned>)>,
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

    /// While a commit was under way, a read that counts as no use (`mg` with `u`) made the record young for eviction all the same, as the
    /// second attempt, by way of the shield, asked the engine for a counted read.
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
            let gate = Gate::default();
            gate.raise(Layer::default());
            let commit = Cell::default();
            let space =
                Space { engine: &*engine, log: None, origin: None, gate: Some(&gate), commit: &commit };
            let look = |counts| {
                let mut value = Vec::new();
                assert!(space.look(b"a", counts, |record| value = record.value.to_vec()).unwrap());
                value
            };
            assert_eq!((look(false), age_s()), (b"1".to_vec(), 60));
            assert_eq!((look(true), age_s()), (b"1".to_vec(), 0));
        }
    }

    #[test]
    fn a_transaction_counts_in_a_lane_that_no_thread_has_and_the_next_one_has_it_again() {
        let db = Db::open("mem:hash").unwrap();
        let lane_of = |transaction: &Transaction<'_>| {
            transaction.set(b"a", b"1").unwrap();
            ptr::from_ref(transaction.worker_counters())
        };
        let own = ptr::from_ref(db.worker_counters());
        let lent = lane_of(&db.begin().unwrap());
        let transaction = db.begin_owned().unwrap();
        assert_eq!(lane_of(&transaction), lent);
        assert_ne!(own, lent);
        // One that still waits for the disk while the next one is open keeps its own.
        let mut waiting = transaction;
        waiting.end();
        assert_ne!(lane_of(&db.begin().unwrap()), lent);
    }
}
