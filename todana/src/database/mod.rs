//! The database: one command in, its replies out.

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

/// A database: an engine with the meaning of commands around it. Shared by all workers.
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
    /// Keeps to what the name says of its size, where the engine does not.
    limiter: Option<Limiter>,
    /// Where the engine keeps changes in files of its own.
    files: Option<EngineFiles>,
    /// Opened for reading: nothing changes that is kept.
    is_read_only: bool,
    /// Too much waits in memory for a checkpoint.
    has_full_front: AtomicBool,
    /// The last checkpoint that was tried has failed.
    has_stuck_checkpoints: AtomicBool,
    transaction_lock: TransactionLock,
    /// Set once, when what is kept has been restored.
    log: OnceLock<UpdateLog>,
    /// Set once, if at all. Behind the log, as it may hold what the log lies in.
    before_commit: OnceLock<Box<dyn Fn() -> Result<()> + Send + std::marker::Sync>>,
}

impl Database {
    /// A database over this engine.
    pub fn new(engine: Box<dyn Engine>, clock: Arc<dyn Clock>) -> Database {
        Database::with_classes(engine, clock, Vec::new())
    }

    /// A database that counts by size as well: one class for each of `bounds`, which ascend, and one for all above. The
    /// size of a record is key + value + 4 if it carries flags.
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
            // There is no log to tell which versions have been shown.
            database.versions.skip_lost(durable.open_count());
        }
        if database.engine.durable().is_some() || database.engine.checkpointed().is_some() {
            // It may have come with records, and nobody has taken note of when they expire.
            database.sweep.want();
        }
        database.tell_time();
        database.sync_engine(LogOptions::default().sync)
    }

    /// The same database, but every store finds no memory: for tests of clients.
    pub fn emulate_full(mut self) -> Database {
        self.emulates_full = true;
        self
    }

    /// When changes count as made where the engine keeps them in files of its own ([`Engine::durable`]): they are not in the update
    /// log then, which has an option of its own for it. At first, one second.
    pub fn sync_engine(mut self, sync: SyncPolicy) -> Database {
        self.files = self.engine.durable().map(|_| EngineFiles::new(sync));
        self
    }

    /// The same database, opened for reading: every change is refused.
    pub fn read_only(mut self) -> Database {
        self.is_read_only = true;
        self
    }

    /// The same database, kept to the number of records or bytes that its name says, where its engine does not do so.
    pub fn limited_as(mut self, name: &Name) -> Database {
        self.limiter = Limiter::of(name).filter(|_| !self.is_read_only);
        self
    }

    /// Removes what was there before the database was limited, some tens of records at a time, until the limit holds or `goes_on` returns
    /// false. Does not wait for an open transaction.
    pub(crate) fn keep_to_limits(&self, worker_counters: &WorkerCounters, mut goes_on: impl FnMut() -> bool) {
        let step = || {
            let limiter = self.limiter.as_ref().filter(|limiter| limiter.is_exceeded(self))?;
            limiter.remove_surplus(&self.try_begin(worker_counters)?).ok().filter(|&removed| removed > 0)
        };
        // What cannot be removed now is tried again at the next tick.
        while step().is_some() && goes_on() {}
    }

    /// The same, waiting for its turn, until the limit holds.
    pub(crate) fn meet_limits(&self, worker_counters: &WorkerCounters) -> Result<()> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        while limiter.is_exceeded(self) && limiter.remove_surplus(&self.begin(worker_counters)?)? > 0 {}
        Ok(())
    }

    /// Removes other records for those that a commit has just put, as long as there are too many.
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

    /// Whoever waits for a transaction does this meanwhile.
    pub(crate) fn while_waiting(mut self, while_waiting: WhileWaiting) -> Database {
        self.transaction_lock.set_while_waiting(while_waiting);
        self
    }

    /// Whether so much waits in memory for a checkpoint that changes are refused. Reads go on.
    pub fn refuse_changes(&self, is_full: bool) {
        self.has_full_front.store(is_full, Ordering::Relaxed);
    }

    /// Returns what vouches for changes; `None` where nothing does, and where nothing is written.
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

    /// Returns when changes count as made where the engine keeps them in files of its own; `None` elsewhere.
    pub fn engine_sync(&self) -> Option<SyncPolicy> {
        self.engine_files().map(EngineFiles::sync)
    }

    /// Returns what an answer to a change has to wait for that the log was given up to this position.
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

    /// The second that it is.
    pub fn now(&self) -> UnixSeconds {
        self.clock.now()
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The engine underneath.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// What has happened since the start or the last reset, over all workers.
    pub fn counters(&self) -> Counters {
        self.counter_registry.sum()
    }

    /// The same by size class, for what is counted so.
    pub fn counters_by_class(&self) -> Vec<ClassCounters> {
        self.counter_registry.sum_by_class()
    }

    /// What the engine holds, and what it has counted since the start or the last reset.
    pub fn status(&self) -> EngineStatus {
        self.figures.status(self.engine.status())
    }

    /// What the sweep for expired records has done since the start or the last reset.
    pub fn sweeps(&self) -> Sweeps {
        self.figures.sweeps(self.sweep.counts())
    }

    /// Has the sweep begin a round over all records at the next `maintain`, even if nothing has expired as far as it knows.
    pub fn want_sweep(&self) {
        self.sweep.want();
    }

    /// When everything was last flushed, or is going to be by a flush that is planned.
    pub fn flushed_at(&self) -> Option<UnixSeconds> {
        self.flush.last()
    }

    /// Begins counting anew.
    pub fn reset_counters(&self) {
        self.counter_registry.reset();
        self.figures.reset(self.engine.status(), self.sweep.counts());
    }

    /// Tells the engine what time it is. `maintain` does so too: to be called where the clock has made a jump.
    pub fn tell_time(&self) {
        if let Some(bounded) = self.engine.bounded() {
            bounded.set_time(self.clock.now());
        }
    }

    /// A bounded piece of housekeeping: a step of the sweep for expired records, a step of the engine's own. True
    /// when there is more to do at once. Meant for one background thread.
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

    /// The last round of the sweep for expired records that has come to its end, if it has not been taken yet.
    pub fn take_sweep_round(&self) -> Option<Round> {
        self.sweep.take_round()
    }

    /// Memory for a long value that is to be stored ([`Engine::buffer`]); what has expired makes room first.
    pub fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        loop {
            let removed = self.sweep.gone();
            match self.engine.buffer(len) {
                Err(error) if is_full(&error) && self.relieve(self.clock.now(), removed) => {}
                outcome => return outcome,
            }
        }
    }

    /// The next piece of such memory to write to ([`Engine::room`]); what has expired makes room first.
    pub fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        loop {
            let removed = self.sweep.gone();
            match self.engine.room(buffer, len) {
                Ok(_) => break,
                Err(error) if is_full(&error) && self.relieve(self.clock.now(), removed) => {}
                Err(error) => return Err(error),
            }
        }
        // Costs little the second time: what has just been given is there.
        self.engine.room(buffer, len)
    }

    /// Whether a planned removal of everything has come due and was not carried out yet.
    pub(crate) fn is_flush_due(&self) -> bool {
        self.flush.is_due(self.clock.now())
    }

    /// Each commit calls this before it changes anything, and fails as it does: for whoever makes room for changes. Once at most.
    pub fn before_commit(&self, call: impl Fn() -> Result<()> + Send + std::marker::Sync + 'static) {
        let is_first = self.before_commit.set(Box::new(call)).is_ok();
        debug_assert!(is_first, "a second call before commits");
    }

    pub(crate) fn prepare_commit(&self) -> Result<()> {
        self.refuse_if_read_only()?;
        self.before_commit.get().map_or(Ok(()), |call| call())
    }

    /// The update log, if there is one.
    pub fn log(&self) -> Option<&UpdateLog> {
        self.log.get()
    }

    /// Carries out a planned flush whose time has come.
    #[inline]
    pub(crate) fn flush_if_due(&self, now: UnixSeconds) {
        if self.flush.is_due(now) {
            // While a transaction is open it waits for a later command.
            self.transaction_lock.unless_in_transaction(|| {
                self.flush.execute_if_due(now, self.engine(), &|change| {
                    self.tell(change);
                });
            });
        }
    }

    /// Tells the log, if there is one.
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
        // Records outlive a restart there, and a plan would not.
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

    /// Whether this is a change, and the log could not be told of it.
    #[inline]
    fn refuses(&self, command: &Operation<'_>) -> bool {
        (self.cannot_write() && is_change(command))
            || (self.takes_only_removals() && is_change(command) && !is_removal(command))
    }

    /// Returns false while changes are refused because they could not be kept: all, or all but removals.
    pub fn takes_changes(&self) -> bool {
        !self.cannot_write() && !self.takes_only_removals()
    }

    /// Returns true while the disk of the update log is full: removals alone can be kept, for they lead to more room.
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

    /// Returns once all that was written so far is on disk, where it is kept there. Fails with `Unavailable` if that cannot be
    /// brought about.
    pub fn sync(&self) -> Result<()> {
        self.log().map_or_else(|| self.sync_engine_files(), |log| self.sync_to(log.end()))
    }

    /// Returns once what stands before this position of the log is on disk, in the engine's own files first, if it keeps such: what the
    /// log tells replicas is then never more than those hold. Fails as [`sync`](Self::sync) does.
    pub fn sync_to(&self, position: LogPosition) -> Result<()> {
        self.sync_engine_files()?;
        self.log().map_or(Ok(()), |log| log.sync_to(position))
    }

    fn sync_engine_files(&self) -> Result<()> {
        self.engine().durable().map_or(Ok(()), |durable| durable.sync())
    }

    /// Removes all records at once. Fails with `Unavailable` if that cannot be written, with `Busy` if this thread has a transaction
    /// open.
    pub fn clear(&self, worker_counters: &WorkerCounters) -> Result<CommitPoint> {
        self.clear_first_made_by(None, worker_counters)
    }

    /// The same as it was first done at the server `origin`, which the update log is told.
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

    /// Removes some of what has expired. False if there is none, and there was none either since the sweep had removed
    /// `before` records: what another thread has removed since then has made room, too.
    fn relieve(&self, now: UnixSeconds, before: u64) -> bool {
        self.sweep.relieve(self.engine(), now);
        self.sweep.gone() != before
    }

    /// Executes an operation. `reply` is called once, perhaps under a lock of the engine: it shall only encode.
    ///
    /// Returns what the answer has to wait for ([`durability`](Self::durability)).
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

    /// What everybody reads and writes, as long as no transaction has it otherwise.
    #[inline]
    fn space<'s>(&'s self, commit: &'s Cell<CommitPoint>) -> EngineView<'s> {
        let transaction_lock = Some(&self.transaction_lock);
        EngineView { engine: &*self.engine, log: self.log.get(), origin: None, transaction_lock, commit }
    }

    pub(crate) fn transaction_lock(&self) -> &TransactionLock {
        &self.transaction_lock
    }
}

/// Returns true if records that have expired can make room: in memory, not in files, where removing them takes room itself.
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
