//! The database: takes an operation and returns its reply.

mod commands;
mod front;
mod limiter;
mod reads;
mod resumption;
mod scans;
mod stores;
mod visits;

pub(crate) use commands::{is_change, is_removal};
pub use visits::Overwrite;
pub(crate) use visits::{Allowed, Restricted};

use crate::access::AccessTracking;
use crate::clock::Clock;
use crate::counters::{ClassCounters, CounterRegistry, Counters, WorkerCounters};
use crate::durability::{CommitPoint, Durability, EngineDurability, EngineFiles};
use crate::flush::{self, PendingFlush};
use crate::open::Name;
use crate::reset_baseline::ResetBaseline;
use crate::sweep::{Round, Sweep, Sweeps};
use crate::transaction::{EngineView, TransactionLock, WhileWaiting};
use crate::update_log::{LogChange, LogOptions, LogPosition, SyncPolicy, UpdateLog};
use crate::versions::VersionCounter;
use limiter::Limiter;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use todana_core::{
    Engine, EngineStatus, Error, ErrorKind, Operation, RefusalReason, Reply, Result, Ttl, UnixSeconds,
    ValueBuffer,
};
use todana_engine::ClassBounds;

/// A database: an engine with the semantics of operations around it. Shared by all workers.
pub struct Database {
    engine: Box<dyn Engine>,
    clock: Arc<dyn Clock>,
    versions: VersionCounter,
    tracking: AccessTracking,
    flush: PendingFlush,
    sweep: Sweep,
    counter_registry: CounterRegistry,
    classes: ClassBounds,
    figures: ResetBaseline,
    emulates_full: bool,
    /// Keeps the size limits of the name, if the engine does not.
    limiter: Option<Limiter>,
    /// The state of the engine's own files, if it keeps changes there.
    files: Option<EngineFiles>,
    /// The database was opened for reading, so its data never changes.
    is_read_only: bool,
    /// Too many changes wait in memory for a checkpoint.
    has_full_front: AtomicBool,
    /// The last attempt of a checkpoint failed.
    has_stuck_checkpoints: AtomicBool,
    transaction_lock: TransactionLock,
    /// Set once, after the data was restored.
    log: OnceLock<UpdateLog>,
    /// Set at most once. Dropped after the log, because it may hold the log's directory.
    before_commit: OnceLock<Box<dyn Fn() -> Result<()> + Send + std::marker::Sync>>,
}

impl Database {
    /// Creates a database over an engine.
    pub fn new(engine: Box<dyn Engine>, clock: Arc<dyn Clock>) -> Database {
        Database::with_classes(engine, clock, Vec::new())
    }

    /// Creates a database that also counts by size: one class for each of `bounds`, which ascend,
    /// and one for larger records. The size of a record is key + value + 4 if it has client flags.
    pub fn with_classes(engine: Box<dyn Engine>, clock: Arc<dyn Clock>, bounds: Vec<u32>) -> Database {
        let (counter_registry, classes) = (CounterRegistry::default(), ClassBounds::new(bounds));
        let database = Database {
            engine,
            clock,
            versions: VersionCounter::default(),
            tracking: AccessTracking::default(),
            flush: PendingFlush::new(),
            sweep: Sweep::new(),
            counter_registry,
            classes,
            figures: ResetBaseline::default(),
            emulates_full: false,
            limiter: None,
            files: None,
            is_read_only: false,
            has_full_front: AtomicBool::new(false),
            has_stuck_checkpoints: AtomicBool::new(false),
            transaction_lock: TransactionLock::default(),
            log: OnceLock::new(),
            before_commit: OnceLock::new(),
        };
        if let Some(durable) = database.engine.durable() {
            // There is no log that records which versions have been shown.
            database.versions.skip_lost(durable.open_count());
        }
        if database.engine.durable().is_some() || database.engine.checkpointed().is_some() {
            // Its records may expire, and the sweep does not know when.
            database.sweep.want();
        }
        database.tell_time();
        database.sync_engine(LogOptions::default().sync)
    }

    /// Makes every store fail for lack of memory: for tests of clients.
    pub fn emulate_full(mut self) -> Database {
        self.emulates_full = true;
        self
    }

    /// Sets when changes are durable if the engine keeps them in files of its own
    /// ([`Engine::durable`]). The update log has an option of its own. The default is one second.
    pub fn sync_engine(mut self, sync: SyncPolicy) -> Database {
        self.files = self.engine.durable().map(|_| EngineFiles::new(sync));
        self
    }

    /// Makes the database refuse every change, because it was opened for reading.
    pub fn read_only(mut self) -> Database {
        self.is_read_only = true;
        self
    }

    /// Keeps the database to the limits of its name, if the engine does not.
    pub fn limited_as(mut self, name: &Name) -> Database {
        self.limiter = Limiter::of(name).filter(|_| !self.is_read_only);
        self
    }

    /// Removes surplus records, some tens at a time, until the limit is kept or `goes_on` returns
    /// false. Does not wait for an open transaction.
    pub(crate) fn keep_to_limits(&self, worker_counters: &WorkerCounters, mut goes_on: impl FnMut() -> bool) {
        let step = || {
            let limiter = self.limiter.as_ref().filter(|limiter| limiter.is_exceeded(self))?;
            limiter.remove_surplus(&self.try_begin(worker_counters)?).ok().filter(|&removed| removed > 0)
        };
        // A removal that fails now is tried again at the next tick.
        while step().is_some() && goes_on() {}
    }

    /// Removes surplus records until the limit is kept; waits for open transactions.
    pub(crate) fn meet_limits(&self, worker_counters: &WorkerCounters) -> Result<()> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        while limiter.is_exceeded(self) && limiter.remove_surplus(&self.begin(worker_counters)?)? > 0 {}
        Ok(())
    }

    /// Removes other records for those that a commit has just stored, if there are too many.
    pub(crate) fn limit_commit(
        &self,
        changes: usize,
        is_spared: &dyn Fn(&[u8]) -> bool,
        remove: &mut dyn FnMut(&[Vec<u8>]) -> Result<()>,
    ) {
        if let Some(limiter) = &self.limiter {
            limiter.enforce_after_commit(self, changes, is_spared, remove);
        }
    }

    /// Returns true if the database was opened for reading.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Sets the callback of writers that wait for a transaction.
    pub(crate) fn while_waiting(mut self, while_waiting: WhileWaiting) -> Database {
        self.transaction_lock.set_while_waiting(while_waiting);
        self
    }

    /// Sets whether changes are refused because too many wait in memory for a checkpoint. Reads go
    /// on.
    pub fn refuse_changes(&self, is_full: bool) {
        self.has_full_front.store(is_full, Ordering::Relaxed);
    }

    /// Returns what makes changes durable; `None` if nothing does, or the database is read-only.
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

    /// Returns when changes are durable if the engine keeps them in files of its own; `None` for
    /// other engines.
    pub fn engine_sync(&self) -> Option<SyncPolicy> {
        self.engine_files().map(EngineFiles::sync)
    }

    /// Returns the commit point of a change that ends at this position of the log.
    pub(crate) fn commit_point(&self, logged: Option<LogPosition>) -> CommitPoint {
        match &self.files {
            Some(files) => files.commit_point(),
            None => logged.map_or(CommitPoint::NONE, CommitPoint::from),
        }
    }

    /// Registers counters for a worker thread. They are counted after the worker has ended, too.
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

    /// Returns the counts since the start or the last reset, over all workers.
    pub fn counters(&self) -> Counters {
        self.counter_registry.sum()
    }

    /// Returns the counts by size class since the start or the last reset.
    pub fn counters_by_class(&self) -> Vec<ClassCounters> {
        self.counter_registry.sum_by_class()
    }

    /// Returns the status of the engine, with its counts since the start or the last reset.
    pub fn status(&self) -> EngineStatus {
        self.figures.status(self.engine.status())
    }

    /// Returns the work of the sweep for expired records since the start or the last reset.
    pub fn sweeps(&self) -> Sweeps {
        self.figures.sweeps(self.sweep.counts())
    }

    /// Requests a round of the sweep over all records at the next `maintain`, even if it knows of
    /// no expired ones.
    pub fn want_sweep(&self) {
        self.sweep.want();
    }

    /// Returns the time of the last flush, or of a planned one.
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
    pub fn tell_time(&self) {
        if let Some(bounded) = self.engine.bounded() {
            bounded.set_time(self.clock.now());
        }
    }

    /// Does a bounded piece of maintenance: a step of the sweep for expired records, and a step of
    /// the engine. Returns true if there is more to do at once. Meant for one background thread.
    pub fn maintain(&self) -> bool {
        if self.is_read_only && self.has_files() {
            self.tell_time();
            return false;
        }
        let now = self.clock.now();
        self.flush_if_due(now);
        self.tell_time();
        let is_sweeping = self.sweep.step(self.engine(), now);
        self.engine.maintain() || is_sweeping
    }

    /// Returns the last completed round of the sweep, unless it was returned before.
    pub fn take_sweep_round(&self) -> Option<Round> {
        self.sweep.take_round()
    }

    /// Allocates memory for a long value ([`Engine::buffer`]). Expired records are removed if there
    /// is no room.
    pub fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        loop {
            let removed = self.sweep.gone();
            match self.engine.buffer(len) {
                Err(error) if is_full(&error) && self.relieve(self.clock.now(), removed) => {}
                outcome => return outcome,
            }
        }
    }

    /// Returns the next piece of such memory to write to ([`Engine::room`]). Expired records are
    /// removed if there is no room.
    pub fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        loop {
            let removed = self.sweep.gone();
            match self.engine.room(buffer, len) {
                Ok(_) => break,
                Err(error) if is_full(&error) && self.relieve(self.clock.now(), removed) => {}
                Err(error) => return Err(error),
            }
        }
        // The second call is cheap, because the piece is already allocated.
        self.engine.room(buffer, len)
    }

    /// Returns true if a planned flush is due and was not carried out yet.
    pub(crate) fn is_flush_due(&self) -> bool {
        self.flush.is_due(self.clock.now())
    }

    /// Sets a callback that makes room before each commit. The commit fails if the callback does.
    /// May be set once.
    pub fn before_commit(&self, call: impl Fn() -> Result<()> + Send + std::marker::Sync + 'static) {
        let is_first = self.before_commit.set(Box::new(call)).is_ok();
        debug_assert!(is_first, "a second call before commits");
    }

    pub(crate) fn prepare_commit(&self) -> Result<()> {
        self.refuse_if_read_only()?;
        self.before_commit.get().map_or(Ok(()), |call| call())
    }

    /// Returns the update log, if there is one.
    pub fn log(&self) -> Option<&UpdateLog> {
        self.log.get()
    }

    /// Carries out a planned flush that is due.
    #[inline]
    pub(crate) fn flush_if_due(&self, now: UnixSeconds) {
        if self.flush.is_due(now) {
            // While a transaction is open, the flush waits for a later command.
            self.transaction_lock.unless_in_transaction(|| {
                self.flush.execute_if_due(now, self.engine(), &|change| {
                    self.tell(change);
                });
            });
        }
    }

    /// Appends a change to the log, if there is one.
    fn tell(&self, change: LogChange<'_>) -> Option<LogPosition> {
        self.log.get().map(|log| log.append(&change))
    }

    fn plan_flush(
        &self,
        origin: Option<u32>,
        worker_counters: &WorkerCounters,
        at: Ttl,
        now: UnixSeconds,
    ) -> Result<CommitPoint> {
        self.refuse_if_read_only()?;
        // The records there outlive a restart, but a plan would not.
        if self.engine.durable().is_some() && flush::is_in_future(at, now) {
            return Err(Error::new(ErrorKind::Invalid, "this database keeps no plan of a flush"));
        }
        let logged = Cell::new(None);
        let planned = self.transaction_lock.outside_transactions(|| {
            self.flush.plan(at, now, self.engine(), &|change| {
                logged.set(self.log.get().map(|log| log.append_from(origin, &change)));
            })
        })?;
        planned.inspect_err(|error| worker_counters.count_refusal(error))?;
        Ok(self.commit_point(logged.get()))
    }

    /// Returns true if records are kept on disk, in an update log or in files of the engine's own.
    fn keeps_records(&self) -> bool {
        self.log.get().is_some() || self.has_files()
    }

    /// Returns true if the engine keeps records in files of its own.
    fn has_files(&self) -> bool {
        self.engine.durable().is_some() || self.engine.checkpointed().is_some()
    }

    /// Returns true for a change that could not be logged.
    #[inline]
    fn refuses(&self, command: &Operation<'_>) -> bool {
        (self.cannot_write() && is_change(command))
            || (self.takes_only_removals() && is_change(command) && !is_removal(command))
    }

    /// Returns false while changes are refused because they cannot be kept: all changes, or all but
    /// removals.
    pub fn takes_changes(&self) -> bool {
        !self.cannot_write() && !self.takes_only_removals()
    }

    /// Returns true while the disk of the update log is full. Only removals are taken, because they
    /// make room.
    #[inline]
    fn takes_only_removals(&self) -> bool {
        self.log.get().is_some_and(UpdateLog::takes_only_removals)
    }

    fn cannot_write(&self) -> bool {
        self.log.get().is_some_and(|log| !log.takes_changes())
            || self.files.as_ref().is_some_and(|files| !files.takes_changes())
            || self.has_full_front.load(Ordering::Relaxed)
    }

    /// Fails with `Invalid` if the database was opened for reading.
    pub fn refuse_if_read_only(&self) -> Result<()> {
        if self.is_read_only { Err(read_only()) } else { Ok(()) }
    }

    /// Fails with `Unavailable`, and counts the refusal, if changes cannot be written.
    pub(crate) fn refuse_if_unwritable(&self, worker_counters: &WorkerCounters) -> Result<()> {
        if !self.cannot_write() {
            return Ok(());
        }
        let error = unwritable();
        worker_counters.count_refusal(&error);
        Err(error)
    }

    /// Fails with `Unavailable`, and counts the refusal, while only removals are taken.
    pub(crate) fn refuse_if_full(&self, worker_counters: &WorkerCounters) -> Result<()> {
        if !self.takes_only_removals() {
            return Ok(());
        }
        let error = unwritable();
        worker_counters.count_refusal(&error);
        Err(error)
    }

    /// Waits until all earlier writes are on disk, if the database is kept there. Fails with
    /// `Unavailable` if that is impossible.
    pub fn sync(&self) -> Result<()> {
        self.log().map_or_else(|| self.sync_engine_files(), |log| self.sync_to(log.end()))
    }

    /// Waits until the log is on disk up to this position, after the engine's own files if it has
    /// any, so that replicas never receive more than these hold. Fails as [`sync`](Self::sync)
    /// does.
    pub fn sync_to(&self, position: LogPosition) -> Result<()> {
        self.sync_engine_files()?;
        self.log().map_or(Ok(()), |log| log.sync_to(position))
    }

    fn sync_engine_files(&self) -> Result<()> {
        self.engine().durable().map_or(Ok(()), |durable| durable.sync())
    }

    /// Removes all records at once. Fails with `Unavailable` if the removal cannot be written, and
    /// with `Busy` if this thread has a transaction open.
    pub fn clear(&self, worker_counters: &WorkerCounters) -> Result<CommitPoint> {
        self.clear_first_made_by(None, worker_counters)
    }

    /// Removes all records as [`clear`](Self::clear) does, for a change first made by server
    /// `origin`, which the log entry names.
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

    /// Removes some expired records. Returns false if none were removed since `before`, the number
    /// of removed records at an earlier time; removals by other threads count.
    fn relieve(&self, now: UnixSeconds, before: u64) -> bool {
        self.sweep.relieve(self.engine(), now);
        self.sweep.gone() != before
    }

    /// Executes an operation. `reply` is called once, perhaps under a lock of the engine, so it
    /// must only encode.
    ///
    /// Returns the commit point for which the reply must wait ([`durability`](Self::durability)).
    pub fn execute(
        &self,
        worker_counters: &WorkerCounters,
        command: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> CommitPoint {
        let now = self.clock.now();
        self.flush_if_due(now);
        if self.is_read_only && is_change(command) {
            reply(Reply::Refused(RefusalReason::ReadOnly));
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
        self.run(self.space(&commit), worker_counters, command, now, reply);
        commit.get()
    }

    /// Returns the space of all readers and writers outside of transactions.
    #[inline]
    fn space<'s>(&'s self, commit: &'s Cell<CommitPoint>) -> EngineView<'s> {
        let transaction_lock = Some(&self.transaction_lock);
        EngineView { engine: &*self.engine, log: self.log.get(), origin: None, transaction_lock, commit }
    }

    pub(crate) fn transaction_lock(&self) -> &TransactionLock {
        &self.transaction_lock
    }
}

/// Returns true if removing expired records makes room. In files it does not, because a removal
/// itself needs room.
fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::Full && !error.is_refused_write()
}

pub(crate) fn read_only() -> Error {
    Error::read_only("the database was opened for reading only")
}

fn full() -> Error {
    Error::new(ErrorKind::Full, "memory is taken to be full")
}

pub(crate) fn unwritable() -> Error {
    Error::refused_write(ErrorKind::Unavailable, "changes cannot be written to disk")
}
