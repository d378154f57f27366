//! The database: executes operations on the records of an engine.

mod commands;
mod elsewhere;
mod following;
mod front;
mod limiter;
mod numbered;
mod reads;
mod resumption;
mod scans;
mod stores;
mod visits;

pub use elsewhere::CountedOperation;

pub(crate) use commands::{is_change, is_removal};
pub use visits::OverwriteVisitor;
pub(crate) use visits::{AllowedChanges, RestrictedVisitor};

use crate::access::AccessTracking;
use crate::clock::Clock;
use crate::counters::{ClassCounters, CounterRegistry, Counters, WorkerCounters};
use crate::durability::{CommitPoint, Durability, EngineDurability, EngineFiles};
use crate::flush::{self, PendingFlush};
use crate::open::DatabaseName;
use crate::records::replies::with_key;
use crate::reset_baseline::ResetBaseline;
use crate::sweep::{ExpirySweep, SweepCounters, SweepRound};
use crate::transaction::{EngineView, TransactionLock, WhileWaiting};
use crate::update_log::{LogChange, LogOptions, LogPosition, SyncPolicy, UpdateLog};
use crate::versions::VersionCounter;
use following::FollowedMaster;
pub(crate) use following::replica;
use limiter::SizeLimiter;
use scans::GROUP_RECORDS;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use todana_core::{
    Engine, EngineStatus, Error, ErrorKind, Operation, Record, RefusalReason, Reply, Result, Ttl,
    UnixSeconds, ValueBuffer,
};
use todana_engine::ClassBounds;

/// A database: an engine, and around it everything that operations need besides records, such as
/// expiry, counters and the update log. All workers share it.
pub struct Database {
    engine: Box<dyn Engine>,
    clock: Arc<dyn Clock>,
    versions: VersionCounter,
    tracking: AccessTracking,
    flush: PendingFlush,
    sweep: ExpirySweep,
    counter_registry: CounterRegistry,
    classes: ClassBounds,
    figures: ResetBaseline,
    emulates_full: bool,
    /// The keys are numbers.
    is_numbered: bool,
    /// The records are rows of columns, and there may be indexes on columns.
    is_table: bool,
    /// Each key has one value, although the engine could hold several.
    has_single_values: bool,
    /// Keeps the limits that the name sets, if the engine does not.
    limiter: Option<SizeLimiter>,
    /// How far the engine's own files are on disk, if the engine has files.
    files: Option<EngineFiles>,
    /// True if the database was opened for reading, so that its data never changes.
    is_read_only: bool,
    followed: FollowedMaster,
    /// True if too many changes wait in memory for a checkpoint.
    has_full_front: AtomicBool,
    /// True if the last attempt to write a checkpoint failed.
    has_stuck_checkpoints: AtomicBool,
    transaction_lock: TransactionLock,
    /// The update log. Set once, after the data was restored.
    log: OnceLock<UpdateLog>,
    /// A callback before each commit, set at most once. Dropped after the log, because it may hold
    /// the log's directory.
    before_commit: OnceLock<Box<dyn Fn() -> Result<()> + Send + std::marker::Sync>>,
}

impl Database {
    /// Creates a database over an engine.
    pub fn new(engine: Box<dyn Engine>, clock: Arc<dyn Clock>) -> Database {
        Database::with_classes(engine, clock, Vec::new())
    }

    /// Creates a database that also counts by size class. `bounds`, in ascending order, are the
    /// upper bounds of the classes; one more class holds larger records. The size of a record is
    /// key + value, and 4 more if it has client flags.
    pub fn with_classes(engine: Box<dyn Engine>, clock: Arc<dyn Clock>, bounds: Vec<u32>) -> Database {
        let (counter_registry, classes) = (CounterRegistry::default(), ClassBounds::new(bounds));
        let (is_numbered, is_table) = (engine.numbered().is_some(), engine.indexed().is_some());
        let database = Database {
            engine,
            clock,
            versions: VersionCounter::default(),
            tracking: AccessTracking::default(),
            flush: PendingFlush::new(),
            sweep: ExpirySweep::new(),
            counter_registry,
            classes,
            figures: ResetBaseline::default(),
            emulates_full: false,
            is_numbered,
            is_table,
            has_single_values: false,
            limiter: None,
            files: None,
            is_read_only: false,
            followed: FollowedMaster::default(),
            has_full_front: AtomicBool::new(false),
            has_stuck_checkpoints: AtomicBool::new(false),
            transaction_lock: TransactionLock::default(),
            log: OnceLock::new(),
            before_commit: OnceLock::new(),
        };
        if let Some(durable) = database.engine.durable() {
            // No log records which versions have been shown to clients.
            database.versions.skip_lost(durable.open_count());
        }
        if database.engine.durable().is_some() || database.engine.checkpointed().is_some() {
            // The existing records may have expiries that the sweep does not know.
            database.sweep.request_round();
        }
        database.report_time();
        database.with_engine_sync(LogOptions::default().sync)
    }

    /// Makes every store fail for lack of memory, so that clients can be tested.
    pub fn emulate_full(mut self) -> Database {
        self.emulates_full = true;
        self
    }

    /// Sets when changes count as durable, for an engine that keeps them in files of its own
    /// ([`Engine::durable`]). The default is within one second. The update log has an option of its
    /// own.
    pub fn with_engine_sync(mut self, sync: SyncPolicy) -> Database {
        self.files = self.engine.durable().map(|_| EngineFiles::new(sync));
        self
    }

    /// Makes the database refuse every change, because it was opened for reading.
    pub fn read_only(mut self) -> Database {
        self.is_read_only = true;
        self
    }

    /// Keeps the database within the limits that its name sets, if the engine does not: its size,
    /// and the number of values of a key.
    pub fn with_limits_of(mut self, name: &DatabaseName) -> Database {
        self.limiter = SizeLimiter::of(name).filter(|_| !self.is_read_only);
        self.has_single_values = name.tuning.single_values;
        self
    }

    /// Removes surplus records, some tens at a time, until the limit is kept or `goes_on` returns
    /// false. If a transaction is open, returns without waiting for it.
    pub(crate) fn keep_to_limits(&self, worker_counters: &WorkerCounters, mut goes_on: impl FnMut() -> bool) {
        let step = || {
            // At a replica, the removals come from the master.
            let limiter = self.limiter.as_ref().filter(|_| !self.is_replica());
            let limiter = limiter.filter(|limiter| limiter.is_exceeded(self))?;
            limiter.remove_surplus(&self.try_begin(worker_counters)?).ok().filter(|&removed| removed > 0)
        };
        // If a removal fails, the next tick tries again.
        while step().is_some() && goes_on() {}
    }

    /// Removes surplus records until the limit is kept. Waits for open transactions.
    pub(crate) fn meet_limits(&self, worker_counters: &WorkerCounters) -> Result<()> {
        let Some(limiter) = self.limiter.as_ref().filter(|_| !self.is_replica()) else { return Ok(()) };
        while limiter.is_exceeded(self) && limiter.remove_surplus(&self.begin(worker_counters)?)? > 0 {}
        Ok(())
    }

    /// If a commit has exceeded the limit, removes records other than those that it has stored.
    pub(crate) fn limit_commit(
        &self,
        changes: usize,
        is_spared: &dyn Fn(&[u8]) -> bool,
        remove: &mut dyn FnMut(&[Vec<u8>]) -> Result<()>,
    ) {
        if let Some(limiter) = self.limiter.as_ref().filter(|_| !self.is_replica()) {
            limiter.enforce_after_commit(self, changes, is_spared, remove);
        }
    }

    /// Returns true if the database was opened for reading.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Sets a callback for writers that wait for a transaction to end.
    pub(crate) fn while_waiting(mut self, while_waiting: WhileWaiting) -> Database {
        self.transaction_lock.set_while_waiting(while_waiting);
        self
    }

    /// Sets whether changes are refused because too many wait in memory for a checkpoint. Reads are
    /// still served.
    pub fn refuse_changes(&self, is_full: bool) {
        self.has_full_front.store(is_full, Ordering::Relaxed);
    }

    /// Returns the mechanism that makes changes durable, or `None` if changes are not durable or
    /// the database is read-only.
    pub fn durability(&self) -> Option<Durability<'_>> {
        let log = self.log.get();
        match (&self.files, self.engine.durable()) {
            (Some(files), Some(engine)) if !self.is_read_only => {
                Some(Durability::Files(EngineDurability { files, engine, log }))
            }
            _ => log.map(Durability::Log),
        }
    }

    pub(crate) fn engine_files(&self) -> Option<&EngineFiles> {
        self.files.as_ref().filter(|_| !self.is_read_only)
    }

    /// Returns the sync policy for the engine's own files, or `None` if the engine has no files.
    pub fn engine_sync(&self) -> Option<SyncPolicy> {
        self.engine_files().map(EngineFiles::sync)
    }

    /// Returns the commit point of a change. `logged` is the end of its entry in the log, if it was
    /// logged.
    pub(crate) fn commit_point(&self, logged: Option<LogPosition>) -> CommitPoint {
        match &self.files {
            Some(files) => files.commit_point(),
            None => logged.map_or(CommitPoint::NONE, CommitPoint::from),
        }
    }

    /// Registers counters for a worker thread. Their counts remain part of the sums after the
    /// worker has ended.
    pub fn worker_counters(&self) -> Arc<WorkerCounters> {
        self.counter_registry.open(&self.classes)
    }

    /// Returns the current second.
    pub fn now(&self) -> UnixSeconds {
        self.clock.now()
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the engine.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// Returns true if a key may have several values: in a tree, unless its name excludes that.
    pub fn holds_value_lists(&self) -> bool {
        self.engine.ordered().is_some() && self.engine.indexed().is_none() && !self.has_single_values
    }

    /// Fails with `Invalid` if a record has several values and the database is no tree.
    pub fn expect_storable(&self, key: &[u8], record: &Record<'_>) -> Result<()> {
        if !record.attributes.has_value_list || self.holds_value_lists() {
            return Ok(());
        }
        let message = "the key has several values, which only trees hold (mem:tree, PATH.tree)";
        Err(with_key(key, &Error::new(ErrorKind::Invalid, message)))
    }

    /// Returns the counts since the start or the last reset, over all workers.
    pub fn counters(&self) -> Counters {
        self.counter_registry.sum()
    }

    /// Returns the counts by size class since the start or the last reset.
    pub fn counters_by_class(&self) -> Vec<ClassCounters> {
        self.counter_registry.sum_by_class()
    }

    /// Returns the status of the engine. Its counts are those since the start or the last reset.
    pub fn status(&self) -> EngineStatus {
        self.figures.status(self.engine.status())
    }

    /// Returns the counts of the sweep for expired records since the start or the last reset.
    pub fn sweeps(&self) -> SweepCounters {
        self.figures.sweeps(self.sweep.counts())
    }

    /// Requests a sweep over all records, which the next `maintain` starts even if no record is
    /// known to be expired.
    pub fn request_sweep(&self) {
        self.sweep.request_round();
    }

    /// Returns the time of the last flush, or of a flush that is planned.
    pub fn flushed_at(&self) -> Option<UnixSeconds> {
        self.flush.last()
    }

    /// Resets all counts.
    pub fn reset_counters(&self) {
        self.counter_registry.reset();
        self.figures.reset(self.engine.status(), self.sweep.counts());
    }

    /// Reports the time to the engine, as `maintain` does. Must be called after a jump of the
    /// clock.
    pub fn report_time(&self) {
        if let Some(bounded) = self.engine.bounded() {
            bounded.set_time(self.clock.now());
        }
    }

    /// Does a limited amount of maintenance: a step of the sweep for expired records, and a step of
    /// the engine. Returns true if more work is waiting. Meant for a single background thread.
    pub fn maintain(&self) -> bool {
        if self.is_read_only && self.has_files() {
            self.report_time();
            return false;
        }
        let now = self.clock.now();
        self.flush_if_due(now);
        self.report_time();
        let is_sweeping = self.sweep.step(self.engine(), self.removal_time(now));
        self.engine.maintain() || is_sweeping
    }

    /// Returns the result of the last completed round of the sweep, unless it was returned before.
    pub fn take_sweep_round(&self) -> Option<SweepRound> {
        self.sweep.take_round()
    }

    /// Allocates memory for a long value ([`Engine::buffer`]). Removes expired records if there is
    /// no room.
    pub fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        loop {
            let removed = self.sweep.removed_total();
            match self.engine.buffer(len) {
                Err(error) if error.is_out_of_memory() && self.relieve(self.clock.now(), removed) => {}
                outcome => return outcome,
            }
        }
    }

    /// Returns the next piece of the buffer, for writing the value into it ([`Engine::room`]).
    /// Removes expired records if there is no room.
    pub fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        loop {
            let removed = self.sweep.removed_total();
            match self.engine.room(buffer, len) {
                Ok(_) => break,
                Err(error) if error.is_out_of_memory() && self.relieve(self.clock.now(), removed) => {}
                Err(error) => return Err(error),
            }
        }
        // The loop has allocated this piece, so the second call is cheap.
        self.engine.room(buffer, len)
    }

    /// Returns true if a planned flush is due and has not been executed.
    pub(crate) fn is_flush_due(&self) -> bool {
        self.flush.is_due(self.clock.now()) && self.may_flush()
    }

    /// Returns true if planned flushes are executed here. At a replica, a flush is executed by an
    /// entry of the master's log.
    fn may_flush(&self) -> bool {
        !self.is_replica() && !self.is_superseded()
    }

    /// Sets a callback that is called before each commit and makes room for it. If the callback
    /// fails, the commit fails. May be set once.
    pub fn before_commit(&self, call: impl Fn() -> Result<()> + Send + std::marker::Sync + 'static) {
        let is_first = self.before_commit.set(Box::new(call)).is_ok();
        debug_assert!(is_first, "a second call before commits");
    }

    pub(crate) fn prepare_commit(&self, origin: Option<u32>) -> Result<()> {
        self.refuse_origin(origin)?;
        self.before_commit.get().map_or(Ok(()), |call| call())
    }

    /// Returns the update log, if there is one.
    pub fn log(&self) -> Option<&UpdateLog> {
        self.log.get()
    }

    /// Executes a planned flush that is due.
    #[inline]
    pub(crate) fn flush_if_due(&self, now: UnixSeconds) {
        if self.flush.is_due(now) && self.may_flush() {
            // If a transaction is open, a later command executes the flush.
            self.transaction_lock.unless_in_transaction(|| {
                if !self.may_flush() {
                    return;
                }
                self.flush.execute_if_due(now, self.engine(), &|change| {
                    self.append_to_log(change);
                });
            });
        }
    }

    /// Appends a change to the log, if there is one.
    fn append_to_log(&self, change: LogChange<'_>) -> Option<LogPosition> {
        self.log.get().map(|log| log.append(&change))
    }

    fn plan_flush(
        &self,
        origin: Option<u32>,
        worker_counters: &WorkerCounters,
        at: Ttl,
        now: UnixSeconds,
    ) -> Result<CommitPoint> {
        self.refuse_origin(origin)?;
        // A planned flush would be forgotten at a restart, but these records survive it, so the
        // plan is refused.
        if self.engine.durable().is_some() && flush::is_in_future(at, now) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "this database cannot store a planned flush; flush without a delay",
            ));
        }
        let logged = Cell::new(None);
        let planned = self.transaction_lock.outside_transactions(|| {
            self.refuse_origin(origin)?;
            self.flush.plan(at, now, self.engine(), &|change| {
                logged.set(self.log.get().map(|log| log.append_from(origin, &change)));
            })
        })?;
        planned.inspect_err(|error| worker_counters.count_refusal(error))?;
        Ok(self.commit_point(logged.get()))
    }

    /// Returns true if changes are kept on disk, in an update log or in the engine's own files.
    fn keeps_records(&self) -> bool {
        self.log.get().is_some() || self.has_files()
    }

    /// Returns true if the engine keeps records in files of its own.
    fn has_files(&self) -> bool {
        self.engine.durable().is_some() || self.engine.checkpointed().is_some()
    }

    /// Returns true if a change could not be logged now.
    #[inline]
    fn refuses(&self, command: &Operation<'_>) -> bool {
        (self.cannot_write() && is_change(command))
            || (self.takes_only_removals() && is_change(command) && !is_removal(command))
    }

    /// Returns false while some changes are refused because they cannot be kept: all changes, or
    /// all except removals.
    pub fn takes_changes(&self) -> bool {
        !self.cannot_write() && !self.takes_only_removals()
    }

    /// Returns true while the disk of the update log is full. Only removals are then accepted,
    /// because they free space.
    #[inline]
    fn takes_only_removals(&self) -> bool {
        self.log.get().is_some_and(UpdateLog::takes_only_removals)
    }

    fn cannot_write(&self) -> bool {
        self.log.get().is_some_and(|log| !log.takes_changes())
            || self.files.as_ref().is_some_and(|files| !files.takes_changes())
            || self.has_full_front.load(Ordering::Relaxed)
    }

    /// Fails with `Invalid` if the database was opened for reading, or if it is a replica.
    pub fn refuse_if_read_only(&self) -> Result<()> {
        self.refuse_origin(None)
    }

    /// Fails with `Unavailable` if changes cannot be written, and counts that refusal.
    pub(crate) fn refuse_if_unwritable(&self, worker_counters: &WorkerCounters) -> Result<()> {
        if !self.cannot_write() {
            return Ok(());
        }
        let error = unwritable();
        worker_counters.count_refusal(&error);
        Err(error)
    }

    /// Fails with `Unavailable` if only removals are accepted, and counts that refusal.
    pub(crate) fn refuse_if_full(&self, worker_counters: &WorkerCounters) -> Result<()> {
        if !self.takes_only_removals() {
            return Ok(());
        }
        let error = unwritable();
        worker_counters.count_refusal(&error);
        Err(error)
    }

    /// Waits until all earlier writes are on disk, if the database is kept on disk. Fails with
    /// `Unavailable` if they cannot be written.
    pub fn sync(&self) -> Result<()> {
        self.log().map_or_else(|| self.sync_engine_files(), |log| self.sync_to(log.end()))
    }

    /// Waits until all earlier changes are durable, as the sync policy states. Returns false if
    /// `keep_waiting` ended the wait. Fails as [`sync`](Self::sync) does.
    #[must_use = "the changes are durable only if this returns true"]
    pub fn await_durability(&self, keep_waiting: &dyn Fn() -> bool) -> Result<bool> {
        match self.durability() {
            Some(Durability::Log(log)) => log.wait_while(log.end(), keep_waiting),
            Some(Durability::Files(files)) if files.is_synced_for_each_reply() => {
                self.sync_engine_files().map(|()| true)
            }
            _ => Ok(true),
        }
    }

    /// Waits until the log is on disk up to this position. If the engine has files, they are synced
    /// first, so that replicas never receive changes that these files could still lose. Fails as
    /// [`sync`](Self::sync) does.
    pub fn sync_to(&self, position: LogPosition) -> Result<()> {
        self.sync_engine_files()?;
        self.log().map_or(Ok(()), |log| log.sync_to(position))
    }

    fn sync_engine_files(&self) -> Result<()> {
        self.engine().durable().map_or(Ok(()), |durable| durable.sync())
    }

    /// Removes all records. Fails with `Unavailable` if the removal cannot be written, and with
    /// `Busy` if this thread has a transaction open.
    pub fn clear(&self, worker_counters: &WorkerCounters) -> Result<CommitPoint> {
        self.clear_first_made_by(None, worker_counters)
    }

    /// Removes all records as [`clear`](Self::clear) does, because the server `origin` has done so.
    /// The log entry names that server.
    pub fn clear_from(&self, origin: u32, worker_counters: &WorkerCounters) -> Result<CommitPoint> {
        self.clear_first_made_by(Some(origin), worker_counters)
    }

    fn clear_first_made_by(
        &self,
        origin: Option<u32>,
        worker_counters: &WorkerCounters,
    ) -> Result<CommitPoint> {
        self.refuse_if_unwritable(worker_counters)?;
        worker_counters.counts.cmd_flush.one();
        self.plan_flush(origin, worker_counters, Ttl::Never, self.clock.now())
    }

    /// Removes expired records for room. Returns true if any thread has removed records since the
    /// number of removed records was `before`.
    fn relieve(&self, now: UnixSeconds, before: u64) -> bool {
        self.sweep.relieve(self.engine(), self.removal_time(now));
        self.sweep.removed_total() != before
    }

    /// Executes an operation. `reply` is called once with the reply. It may run under a lock of the
    /// engine, so it must only encode the reply.
    ///
    /// Returns the commit point for which the reply must wait ([`durability`](Self::durability)).
    pub fn execute(
        &self,
        worker_counters: &WorkerCounters,
        command: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> CommitPoint {
        self.execute_first_made_by(None, worker_counters, command, reply)
    }

    /// As [`execute`](Self::execute), for a change that server `origin` made first. The log entry
    /// names that server.
    pub fn execute_from(
        &self,
        origin: u32,
        worker_counters: &WorkerCounters,
        command: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> CommitPoint {
        self.execute_first_made_by(Some(origin), worker_counters, command, reply)
    }

    /// Executes an operation. Inlined by force, because it has two callers.
    #[inline(always)]
    fn execute_first_made_by(
        &self,
        origin: Option<u32>,
        worker_counters: &WorkerCounters,
        command: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> CommitPoint {
        let now = self.clock.now();
        self.flush_if_due(now);
        if self.refuses_origin(origin) && is_change(command) {
            let refusal = match self.is_read_only {
                true => RefusalReason::ReadOnly,
                false if self.is_superseded() => RefusalReason::Superseded,
                false => RefusalReason::Replica,
            };
            reply(Reply::Refused(refusal));
            return CommitPoint::NONE;
        }
        if self.refuses(command) {
            worker_counters.counts.log_refusals.one();
            let has_log_trouble =
                self.log.get().is_some_and(|log| !log.takes_changes() || log.takes_only_removals());
            let refusal =
                if has_log_trouble { RefusalReason::LogUnwritable } else { RefusalReason::FilesUnwritable };
            reply(Reply::Refused(refusal));
            return CommitPoint::NONE;
        }
        let commit = Cell::default();
        self.run(EngineView { origin, ..self.space(&commit) }, worker_counters, command, now, reply);
        commit.get()
    }

    /// Returns the view for all operations outside of transactions.
    #[inline]
    fn space<'s>(&'s self, commit: &'s Cell<CommitPoint>) -> EngineView<'s> {
        let transaction_lock = Some(&self.transaction_lock);
        EngineView { engine: &*self.engine, log: self.log.get(), origin: None, transaction_lock, commit }
    }

    pub(crate) fn transaction_lock(&self) -> &TransactionLock {
        &self.transaction_lock
    }
}

pub(crate) fn read_only() -> Error {
    Error::read_only("the database was opened for reading only")
}

fn full() -> Error {
    Error::new(ErrorKind::Full, "the memory limit is reached")
}

pub(crate) fn unwritable() -> Error {
    Error::refused_write(ErrorKind::Unavailable, "changes cannot be written to disk")
}
