//! Defines the executor for the databases of this process. None of its functions waits for another
//! machine, or for the log.

use super::parked_gets::ParkedGets;
use super::{Completion, Executor};
use crate::databases::ServedDatabase;
use crate::databases::pending_commits::WorkerDatabase;
use crate::observation::hot_keys::{HotKeyCounter, SampleRate};
use crate::observation::slow_requests::FirstRequest;
use crate::session::wake::WakeTicket;
use crate::shared::SharedState;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Instant;
#[cfg(feature = "cassandra")]
use todana::CountedOperation;
use todana::{CommitPoint, Database, Records, ScanDirection, Transaction, TransactionHolder, WorkerCounters};
use todana_core::{
    Operation, OwnedOperation, Record, RecordRead, Reply, Result, ScanPosition, ValueBuffer, Visitor,
};
use todana_engine::PendingReads;

/// A database of this process, with the counters of the thread that uses it.
#[derive(Clone)]
pub(crate) struct LocalDatabase {
    shared: Arc<SharedState>,
    number: usize,
    database: Arc<Database>,
    counters: WorkerDatabase,
}

impl LocalDatabase {
    /// Returns all databases in the order of their numbers. Each thread needs a list of its own,
    /// because the counters in the list belong to one thread.
    pub(crate) fn all(shared: &Arc<SharedState>) -> Vec<LocalDatabase> {
        let local = |(number, served): (usize, &ServedDatabase)| LocalDatabase {
            shared: Arc::clone(shared),
            number,
            database: Arc::clone(&served.database),
            counters: WorkerDatabase::new(&served.database),
        };
        shared.databases.iter().enumerate().map(local).collect()
    }

    #[inline]
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn served(&self) -> &ServedDatabase {
        &self.shared.databases[self.number]
    }

    /// Returns true if clients may remove all records at once.
    pub(crate) fn is_flush_allowed(&self) -> bool {
        self.shared.options.limits.flush_allowed
    }

    /// Takes the last commit since the previous call. The commit must be durable before it is
    /// acknowledged.
    #[inline]
    pub(crate) fn take_commit(&self) -> Option<CommitPoint> {
        self.counters.commits.take()
    }

    /// Notes a commit that has not become durable, so that a later acknowledgement waits for it,
    /// too.
    pub(crate) fn note_commit(&self, point: CommitPoint) {
        self.counters.commits.note(point);
    }

    /// Counts an operation that was executed elsewhere.
    #[cfg(feature = "cassandra")]
    pub(crate) fn count_elsewhere(&self, operation: CountedOperation, reply: &Reply<'_>) {
        Database::count_elsewhere(&self.counters.worker_counters, operation, reply);
    }

    /// Removes all records.
    pub(crate) fn clear(&self) -> Result<()> {
        self.note_commit(self.database.clear(&self.counters.worker_counters)?);
        Ok(())
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self) -> Result<Transaction<'_>> {
        self.database.begin(&self.counters.worker_counters)
    }

    /// Commits a transaction. The worker does not wait for the disk; the reply does.
    pub(crate) fn commit(&self, transaction: Transaction<'_>) -> Result<()> {
        self.note_commit(transaction.commit_without_wait()?);
        Ok(())
    }
}

impl TransactionHolder for LocalDatabase {
    fn database(&self) -> &Database {
        &self.database
    }

    fn worker_counters(&self) -> &WorkerCounters {
        &self.counters.worker_counters
    }
}

impl Records for LocalDatabase {
    #[inline]
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        self.counters.commits.note(self.database.execute(&self.counters.worker_counters, command, reply));
        Ok(())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.note_commit(self.database.visit_record(&self.counters.worker_counters, key, visitor)?);
        Ok(())
    }

    fn is_ordered(&self) -> bool {
        self.database.engine().ordered().is_some()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.database.scan(from, see)
    }

    fn walk(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.database.walk(heading, from, see)
    }
}

/// Executes operations at once, except for gets that wait for the disk.
pub(crate) struct LocalExecutor {
    shared: Arc<SharedState>,
    worker: u32,
    parked_gets: ParkedGets,
    databases: Vec<LocalDatabase>,
    /// The counters of hot keys, one for each database.
    hot_keys: Vec<HotKeyCounter>,
    pub(super) first: FirstRequest,
}

/// The number of keys that a worker counts in each database.
const HOT_KEYS: usize = 100;

impl LocalExecutor {
    pub(crate) fn new(shared: &Arc<SharedState>, worker: usize) -> LocalExecutor {
        let databases = shared.databases.iter();
        let hot_keys =
            databases.map(|served| served.hot_keys.join(HOT_KEYS, SampleRate::OF_SERVER, Instant::now()));
        let hot_keys = hot_keys.collect();
        let (shared, databases) = (Arc::clone(shared), LocalDatabase::all(shared));
        LocalExecutor {
            shared,
            worker: worker as u32,
            parked_gets: ParkedGets::default(),
            databases,
            hot_keys,
            first: FirstRequest::default(),
        }
    }

    /// Starts the reads from the disk that were added. Returns the tickets of the gets whose
    /// records have been read.
    pub(super) fn take_read(&mut self) -> Vec<WakeTicket> {
        let LocalExecutor { parked_gets, databases, .. } = self;
        let mut ready = parked_gets.start_delayed(|number, get| match get.borrowed() {
            Operation::Get(get) => databases[number].database.engine().await_read(get.key, true),
            _ => RecordRead::Ready,
        });
        ready.extend(parked_gets.take_ready());
        ready
    }
}

impl Executor for LocalExecutor {
    #[inline]
    fn prefetch_all(&self, database: usize, keys: &[&[u8]]) {
        if let Some(local) = self.databases.get(database) {
            local.database.engine().prefetch_all(keys);
        }
    }

    #[inline]
    fn execute(
        &mut self,
        number: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        if let Some(key) = operation.key() {
            self.hot_keys[number].note_request(key, 0, Instant::now);
            self.first.note(number, operation, key);
        }
        let LocalDatabase { database, counters, .. } = &self.databases[number];
        counters.commits.note(database.execute(&counters.worker_counters, operation, reply));
        Completion::Done
    }

    #[inline]
    fn execute_alone(
        &mut self,
        number: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        if let Operation::Get(get) = operation
            && let engine = self.databases[number].database.engine()
            && engine.has_cold_records()
            // Other threads would not learn when the record has been read.
            && PendingReads::has_descriptor()
            && let read = engine.await_read(get.key, self.parked_gets.may_start())
            && read != RecordRead::Ready
        {
            self.shared.observation.workers[self.worker as usize].cold_gets.add(1);
            let ticket = self.shared.wake_queues.ticket(self.worker);
            self.parked_gets.add(ticket, read, number, OwnedOperation::new(operation));
            return Completion::Pending(ticket);
        }
        self.execute(number, operation, reply)
    }

    fn take_reply(&mut self, ticket: WakeTicket, reply: &mut dyn FnMut(Reply<'_>)) {
        let parked = self.parked_gets.remove(ticket).expect("the get is ready and is taken once");
        self.execute(parked.database, &parked.get.borrowed(), reply);
    }

    fn abandon(&mut self, ticket: WakeTicket) {
        self.parked_gets.remove(ticket);
    }

    fn buffer(&self, database: usize, len: usize) -> Option<Box<dyn ValueBuffer>> {
        self.databases[database].database.buffer(len).ok()
    }

    fn room<'b>(&self, database: usize, buffer: &'b mut dyn ValueBuffer, len: usize) -> Option<&'b mut [u8]> {
        let database = &self.databases[database].database;
        // An engine without a memory limit limits neither the length nor the number of unfinished
        // values.
        if database.engine().bounded().is_none()
            && self.shared.observation.unfinished_bytes() > self.shared.memory.held_max()
        {
            return None;
        }
        database.room(buffer, len).ok()
    }

    #[inline]
    fn databases(&self) -> &[LocalDatabase] {
        &self.databases
    }
}
