//! The database: one command in, its replies out.

use crate::access::Tracking;
use crate::arithmetic::ArithmeticVisitor;
use crate::classes::{SizeClasses, plain_size, size_of};
use crate::clock::Clock;
use crate::counters::{ClassCounters, Counters, Lane, Lanes};
use crate::delete::DeleteVisitor;
use crate::expiry::{Bury, Living};
use crate::figures::Figures;
use crate::flush::{self, Flush};
use crate::get::{self, GetVisitor, Outcome};
use crate::inspect::InspectVisitor;
use crate::long_value;
use crate::records::Heading;
use crate::store::{LongJoin, StoreVisitor};
use crate::sweep::{Round, Sweep, Sweeps};
use crate::touch::TouchVisitor;
use crate::transaction::{Gate, Space};
use crate::update_log::{Change, LogOptions, Position, Sync, UpdateLog};
use crate::versions::Versions;
use parking_lot::RwLockReadGuard;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use todana_core::{
    Action, Arithmetic, Buffer, Command, Delete, Direction, Engine, Error, ErrorKind, Expiry, Family, Get,
    Inspect, Inspection, LONG_VALUE_LEN, Order, Place, Record, Refusal, Reply, Result, Shared, Status, Store,
    StoreMode, Touch, Ttl, UnixSeconds, Visitor, WhenFull,
};

/// Records that a scan shows before it lets a commit in.
const STRETCH: usize = 256;

/// How often a long append is tried outside of the lock before it is made under it, for whoever is always too late.
const JOINS_APART: u32 = 8;

/// A database: an engine with the meaning of commands around it. Shared by all workers.
pub struct Database {
    engine: Box<dyn Engine>,
    clock: Arc<dyn Clock>,
    versions: Versions,
    tracking: Tracking,
    flush: Flush,
    sweep: Sweep,
    lanes: Lanes,
    classes: SizeClasses,
    figures: Figures,
    emulates_full: bool,
    /// When changes count as made where the engine keeps them in files of its own.
    sync: Sync,
    /// They count there before they are answered: lanes tell that there have been some.
    promises: bool,
    /// The engine cannot bring changes to its disk any more.
    has_lost_disk: AtomicBool,
    /// Too much waits in memory for a checkpoint.
    has_full_front: AtomicBool,
    gate: Gate,
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
        let (lanes, classes) = (Lanes::default(), SizeClasses::new(bounds));
        let database = Database {
            engine,
            clock,
            versions: Versions::default(),
            tracking: Tracking::default(),
            flush: Flush::new(),
            sweep: Sweep::new(),
            lanes,
            classes,
            figures: Figures::default(),
            emulates_full: false,
            sync: LogOptions::default().sync,
            promises: false,
            has_lost_disk: AtomicBool::new(false),
            has_full_front: AtomicBool::new(false),
            gate: Gate::default(),
            log: OnceLock::new(),
            before_commit: OnceLock::new(),
        };
        if let Some(durable) = database.engine.durable() {
            // There is no log to tell which versions have been shown.
            database.versions.begin_anew(durable.openings());
        }
        if database.engine.durable().is_some() || database.engine.checkpointed().is_some() {
            // It may have come with records, and nobody has taken note of when they expire.
            database.sweep.want();
        }
        database.tell_time();
        database
    }

    /// The same database, but every store finds no memory: for tests of clients.
    pub fn emulate_full(mut self) -> Database {
        self.emulates_full = true;
        self
    }

    /// When changes count as made where the engine keeps them in files of its own ([`Engine::durable`]): they are not in the update
    /// log then, which has an option of its own for it. At first, one second.
    ///
    /// With [`Sync::Always`], [`Lane::logged`] moves on with each change, though there is no log: it is then on disk when a
    /// sync of the engine's that has begun later is over.
    pub fn sync_engine(mut self, sync: Sync) -> Database {
        self.sync = sync;
        self.promises = sync == Sync::Always && self.engine.durable().is_some();
        self
    }

    /// The engine cannot bring changes to its disk any more: they are refused from here on.
    pub fn has_lost_disk(&self) {
        self.has_lost_disk.store(true, Ordering::Relaxed);
    }

    /// It can again: its disk was full, and has room now.
    pub fn has_disk_again(&self) {
        self.has_lost_disk.store(false, Ordering::Relaxed);
    }

    /// Whether so much waits in memory for a checkpoint that changes are refused. Reads go on.
    pub fn refuse_changes(&self, is_full: bool) {
        self.has_full_front.store(is_full, Ordering::Relaxed);
    }

    /// Returns once what has just been changed counts as made, where the engine keeps it in files of its own. Fails with `Unavailable` if
    /// it cannot be written.
    pub(crate) fn settle_engine(&self) -> Result<()> {
        match (self.engine.durable(), self.sync) {
            (Some(durable), Sync::Always) => durable.sync(),
            _ => Ok(()),
        }
    }

    /// When changes count as made where the engine keeps them.
    pub(crate) fn engine_sync(&self) -> Sync {
        self.sync
    }

    /// A new lane of counters; one for each worker thread. It counts on after its worker has ended.
    pub fn lane(&self) -> Arc<Lane> {
        self.lanes.open(&self.classes)
    }

    /// The second that it is.
    pub fn now(&self) -> UnixSeconds {
        self.clock.now()
    }

    /// The engine underneath.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// What has happened since the start or the last reset, over all lanes.
    pub fn counters(&self) -> Counters {
        self.lanes.sum()
    }

    /// The same by size class, for what is counted so.
    pub fn counters_by_class(&self) -> Vec<ClassCounters> {
        self.lanes.sum_by_class()
    }

    /// What the engine holds, and what it has counted since the start or the last reset.
    pub fn status(&self) -> Status {
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
        self.lanes.reset();
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
    pub fn buffer(&self, len: usize) -> Result<Box<dyn Buffer>> {
        loop {
            let removed = self.sweep.gone();
            match self.engine.buffer(len) {
                Err(error) if error.kind() == ErrorKind::Full && self.relieve(self.clock.now(), removed) => {}
                outcome => return outcome,
            }
        }
    }

    /// The next piece of such memory to write to ([`Engine::room`]); what has expired makes room first.
    pub fn room<'b>(&self, buffer: &'b mut dyn Buffer, len: usize) -> Result<&'b mut [u8]> {
        loop {
            let removed = self.sweep.gone();
            match self.engine.room(buffer, len) {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Full && self.relieve(self.clock.now(), removed) => {}
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
            self.gate.unless_closed(|| {
                self.flush.carry_out_if_due(now, self.engine(), &|change| {
                    self.tell(change);
                });
            });
        }
    }

    /// Does what a log or a checkpoint tells, without telling the log. A record that has expired since is stored all the same: a
    /// later entry may tell that it was touched in time. Fails with `Full` where there is no room and nothing may be evicted.
    pub(crate) fn replay(&self, change: &Change<'_>) -> Result<()> {
        match *change {
            Change::Put { key, record } => {
                self.versions.have_been_made_to(record.attributes.version);
                self.sweep.note_expiry(record.attributes.expiry);
                self.engine.visit(key, &mut Regardless(Action::Put(record)))
            }
            Change::Retag { key, attributes } => {
                self.versions.have_been_made_to(attributes.version);
                self.sweep.note_expiry(attributes.expiry);
                self.engine.visit(key, &mut Regardless(Action::Retag(attributes)))
            }
            Change::Remove { key } => self.engine.visit(key, &mut Regardless(Action::Remove)),
            Change::Clear => {
                self.flush.restore(None);
                self.engine.clear(&mut || ())
            }
            Change::PlanClear { at } => {
                self.flush.restore(at);
                Ok(())
            }
            Change::Transaction(changes) => changes.iter().try_for_each(|change| self.replay(&change)),
            Change::Mark { .. } | Change::Lost { .. } => Ok(()),
        }
    }

    /// What else than records a checkpoint begins with: the log's end, what clear is planned as of there, and the highest
    /// version made so far. `None` without a log.
    pub(crate) fn stand(&self) -> Option<Stand> {
        let log = self.log()?;
        // Neither a clear that the log does not know yet nor one that it has seen carried out may be told as planned.
        self.flush.hold_still(|planned_clear| {
            let end = log.end();
            Some(Stand { end, planned_clear, version: self.versions.made() })
        })
    }

    /// Keeps commits and clears away until it is dropped: taken before an engine's locks, as those take it.
    pub(crate) fn stillness(&self) -> Stillness<'_> {
        Stillness { _no_commit: self.gate.keep_commits_out(), clear: self.flush.stillness() }
    }

    /// The end of the log, which has been told of whatever the engine has.
    pub(crate) fn log_end(&self, log: &UpdateLog) -> Position {
        self.gate.between_commits(|| log.end())
    }

    pub(crate) fn note_expiry(&self, expiry: Expiry) {
        self.sweep.note_expiry(expiry);
    }

    /// A visit of a commit's.
    pub(crate) fn visit_past_gate(&self, key: &[u8], visitor: &mut Regardless<'_>) -> Result<()> {
        if let Action::Put(record) = visitor.0 {
            self.note_expiry(record.attributes.expiry);
        }
        loop {
            let removed = self.sweep.gone();
            match self.engine.visit(key, visitor) {
                Err(error) if error.kind() == ErrorKind::Full && self.relieve(self.clock.now(), removed) => {}
                outcome => return outcome,
            }
        }
    }

    /// The records of a checkpoint will come in this order.
    pub(crate) fn expect(&self, order: Order) {
        self.engine.expect(order);
    }

    /// Whether the engine keeps its records in this order.
    pub(crate) fn keeps(&self, order: Option<Order>) -> bool {
        order.is_some_and(|order| self.engine.order().is_some_and(|own| own.seed == order.seed))
    }

    /// When everything is going to be removed, if that is planned.
    pub(crate) fn planned_clear(&self) -> Option<UnixSeconds> {
        self.flush.hold_still(|planned_clear| planned_clear)
    }

    /// Takes over what a checkpoint begins with, once its records are there.
    pub(crate) fn resume(&self, planned_clear: Option<UnixSeconds>, version: u64) {
        self.flush.restore(planned_clear);
        self.versions.have_been_made_to(version);
    }

    /// From now on the log is told of every change. A database has one log at most. `openings`: how often the database has
    /// been opened.
    pub(crate) fn attach(&self, log: UpdateLog, openings: u32) {
        self.versions.begin_anew(openings);
        let is_first = self.log.set(log).is_ok();
        debug_assert!(is_first, "a second log");
    }

    /// Tells the log, if there is one.
    fn tell(&self, change: Change<'_>) -> Option<Position> {
        self.log.get().map(|log| log.append(&change))
    }

    fn plan_flush(&self, lane: &Lane, at: Ttl, now: UnixSeconds) -> Result<()> {
        // Records outlive a restart there, and a plan would not.
        if self.engine.durable().is_some() && self.log.get().is_none() && flush::is_ahead(at, now) {
            return Err(Error::new(ErrorKind::Invalid, "this database keeps no plan of a flush"));
        }
        self.gate.while_open(|| {
            self.flush.plan(at, now, self.engine(), &|change| {
                if let Some(end) = self.tell(change) {
                    lane.has_logged(end);
                }
            })
        })??;
        if self.promises {
            lane.has_logged(Position(lane.logged().0 + 1));
        }
        Ok(())
    }

    /// Whether this is a change, and the log could not be told of it.
    #[inline]
    fn refuses(&self, command: &Command<'_>) -> bool {
        self.cannot_write() && is_change(command)
    }

    pub(crate) fn cannot_write(&self) -> bool {
        self.log.get().is_some_and(|log| !log.takes_changes())
            || self.has_lost_disk.load(Ordering::Relaxed)
            || self.has_full_front.load(Ordering::Relaxed)
    }

    /// Removes all records at once. Fails with `Unavailable` if that cannot be written, with `Busy` if this thread has a transaction
    /// open.
    pub fn clear(&self, lane: &Lane) -> Result<()> {
        if self.cannot_write() {
            return Err(unwritable());
        }
        lane.counts.cmd_flush.one();
        self.plan_flush(lane, Ttl::Never, self.clock.now())
    }

    /// Removes some of what has expired. False if there is none, and there was none either since the sweep had removed
    /// `before` records: what another thread has removed since then has made room, too.
    fn relieve(&self, now: UnixSeconds, before: u64) -> bool {
        self.sweep.relieve(self.engine(), now);
        self.sweep.gone() != before
    }

    /// Runs a command. `reply` is called once for a command about data, perhaps under a lock of the engine: it shall only
    /// encode. Commands that are the server's own (statistics, version ...) are answered `Unknown`.
    pub fn execute(&self, lane: &Lane, command: &Command<'_>, reply: &mut dyn FnMut(Reply<'_>)) {
        let now = self.clock.now();
        self.flush_if_due(now);
        if self.refuses(command) {
            lane.counts.log_refusals.one();
            let has_log_trouble = self.log.get().is_some_and(|log| !log.takes_changes());
            let refusal = if has_log_trouble { Refusal::LogUnwritable } else { Refusal::FilesUnwritable };
            return reply(Reply::Refused(refusal));
        }
        self.run(self.space(), lane, command, now, reply);
    }

    /// What everybody reads and writes, as long as no transaction has it otherwise.
    #[inline]
    fn space(&self) -> Space<'_> {
        Space { engine: &*self.engine, log: self.log.get(), gate: Some(&self.gate) }
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Runs a visitor on a record in a space. What is expired is not shown to it.
    pub(crate) fn visit_in(
        &self,
        space: Space<'_>,
        lane: &Lane,
        key: &[u8],
        visitor: &mut dyn Visitor,
    ) -> Result<()> {
        self.visit(space, lane, key, self.clock.now(), visitor).map(|_| ())
    }

    /// Runs a visitor on a record, atomically; what is expired is not shown to it. Fails as [`Engine::visit`] does, and with
    /// `Unavailable` if the update log cannot be written.
    pub fn visit_record(&self, lane: &Lane, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.flush_if_due(self.clock.now());
        if self.cannot_write() {
            return Err(unwritable());
        }
        self.visit_in(self.space(), lane, key, visitor)
    }

    /// Runs a command in a space.
    pub(crate) fn run(
        &self,
        space: Space<'_>,
        lane: &Lane,
        command: &Command<'_>,
        now: UnixSeconds,
        reply: &mut dyn FnMut(Reply<'_>),
    ) {
        match command {
            Command::Get(get) => self.get(space, lane, get, now, reply),
            Command::Store(store) => reply(self.store(space, lane, store, now)),
            Command::RefusedStore(refused) => {
                let flags_len = if refused.flags != 0 { 4 } else { 0 };
                let class = self.classes.of(refused.key.len() + refused.value_len + flags_len);
                self.refuse_store(space, lane, (refused.key, class), refused.discards, refused.refusal, now);
                reply(Reply::Refused(refused.refusal));
            }
            Command::Delete(delete) => reply(self.delete(space, lane, delete, now)),
            Command::Arithmetic(arithmetic) => reply(self.arithmetic(space, lane, arithmetic, now)),
            Command::Touch(touch) => reply(self.touch(space, lane, touch, now)),
            Command::Inspect(inspect) => reply(self.inspect(space, lane, inspect, now)),
            Command::Flush { at } => {
                lane.counts.cmd_flush.one();
                reply(match self.plan_flush(lane, *at, now) {
                    Ok(()) => Reply::Done,
                    Err(error) if error.kind() == ErrorKind::Invalid => Reply::Refused(Refusal::NoPlans),
                    Err(error) => Reply::Refused(refusal(&error)),
                });
            }
            Command::Noop => reply(Reply::Done),
            Command::Faulty { message } => reply(Reply::Faulty(message)),
            Command::List(_)
            | Command::Crawler(_)
            | Command::Watch(_)
            | Command::Export(_)
            | Command::Stats { .. }
            | Command::Version
            | Command::Verbosity(_)
            | Command::MemoryLimit { .. }
            | Command::RefreshCertificates
            | Command::ShiftClock(_)
            | Command::Shutdown { .. }
            | Command::Mechanisms
            | Command::Authenticate(_)
            | Command::Quit => reply(Reply::Unknown),
        }
    }

    /// Shows the live records from `from` (the start: `None`) on, until `see` breaks; returns where to go on, `None` at
    /// the end. What [`Engine::scan`] promises holds here too.
    pub fn scan(
        &self,
        from: Option<Place>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Place>> {
        let now = self.clock.now();
        self.flush_if_due(now);
        let (mut place, mut has_broken) = (from, false);
        loop {
            // Nothing of a commit is shown before all of it; and no commit waits for more than a stretch.
            let _no_commit = self.gate.keep_commits_out();
            let mut seen = 0;
            place = self.engine.scan(place, &mut |key, record| {
                seen += 1;
                if record.attributes.expiry.is_live(now) && see(key, record).is_break() {
                    has_broken = true;
                }
                if has_broken || seen == STRETCH { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if place.is_none() || has_broken {
                return Ok(place);
            }
        }
    }

    /// Shows the live records from a key on, in order, until `see` breaks. What [`Ordered`] promises holds here too. Fails with
    /// `Invalid` where the engine keeps no order.
    ///
    /// [`Ordered`]: todana_core::Ordered
    pub(crate) fn walk(
        &self,
        heading: Heading,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let now = self.clock.now();
        self.flush_if_due(now);
        let (mut from, mut has_broken) = (from.map(<[u8]>::to_vec), false);
        loop {
            let _no_commit = self.gate.keep_commits_out();
            let (mut seen, mut last) = (0, Vec::new());
            let start = from.as_ref().map(Vec::as_slice);
            crate::records::walk(&*self.engine, heading, start, &mut |key, record| {
                seen += 1;
                if record.attributes.expiry.is_live(now) && see(key, record).is_break() {
                    has_broken = true;
                }
                if seen == STRETCH {
                    last.extend_from_slice(key);
                }
                if has_broken || seen == STRETCH { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if has_broken || seen < STRETCH {
                return Ok(());
            }
            from = Bound::Excluded(last);
        }
    }

    /// The same for what is known of records besides their values.
    pub fn list(
        &self,
        from: Option<Place>,
        see: &mut dyn FnMut(&[u8], Inspection) -> ControlFlow<()>,
    ) -> Result<Option<Place>> {
        let now = self.clock.now();
        self.scan(from, &mut |key, record| {
            let attributes = record.attributes;
            let inspection = Inspection {
                expiry: attributes.expiry,
                access: attributes.access,
                version: attributes.version,
                flags: attributes.flags,
                key_len: key.len() as u64,
                value_len: record.value.len() as u64,
                now,
            };
            see(key, inspection)
        })
    }

    /// Tells the sweep of times to live that a command has given.
    #[inline]
    fn note(&self, ttls: [Option<Ttl>; 2], now: UnixSeconds) {
        ttls.into_iter().flatten().for_each(|ttl| self.sweep.note(ttl, now));
    }

    /// Whether records may be evicted, of which the log is not told.
    fn forgets(&self) -> bool {
        let limit = self.engine.bounded().map(|bounded| bounded.limit());
        limit.is_some_and(|limit| limit.bytes.is_some() && limit.when_full == WhenFull::Evict)
    }

    /// Visits with expiry in between.
    fn visit(
        &self,
        space: Space<'_>,
        lane: &Lane,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<Met> {
        self.visit_telling(space, Worth::Change, lane, key, now, visitor)
    }

    /// The log, for what reads note on records (a version shown, a sliding expiry moved). Nothing waits for it to be on disk, for
    /// it may be lost: a record without its version meets no compare-and-set that was made for another state of it, and no
    /// version is made a second time ([`Versions::begin_anew`]). Nor shall it pile up before a log that cannot be written.
    fn for_notes<'s>(&self, space: Space<'s>) -> Space<'s> {
        Space { log: space.log.filter(|log| log.takes_changes() && !log.is_crowded()), ..space }
    }

    /// Fails with `Busy` where a transaction is open and it is not worth waiting.
    fn visit_telling(
        &self,
        space: Space<'_>,
        worth: Worth,
        lane: &Lane,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<Met> {
        if self.emulates_full {
            return self.visit_full(space, lane, key, now, visitor);
        }
        let forgets = || self.forgets();
        let mut living = Living::new(visitor, key, now, space, &forgets);
        let outcome = self.visit_in_turn(space, worth, key, now, &mut living)?;
        self.note_changes(lane, worth, &living);
        let met = Met { expired: living.met_expired, class: self.classes.of(living.met_size) };
        if met.expired && outcome.is_ok() {
            // Whatever the command was, as memcached counts.
            lane.counts.get_expired.one();
            lane.counts.reclaimed.one();
            lane.class(met.class).reclaimed.one();
        }
        outcome.map(|()| met)
    }

    /// The engine's visit, once no transaction is in its way and what has expired has made room. The outer error: `Busy`, without any
    /// visit.
    fn visit_in_turn(
        &self,
        space: Space<'_>,
        worth: Worth,
        key: &[u8],
        now: UnixSeconds,
        living: &mut Living<'_>,
    ) -> Result<Result<()>> {
        let mut removed = self.sweep.gone();
        loop {
            // It may fail before it comes to the visitor.
            living.turned_away = false;
            let outcome = space.engine.visit(key, living);
            if living.turned_away {
                if worth == Worth::Note {
                    return Err(Error::new(ErrorKind::Busy, "a transaction is open"));
                }
                space.wait()?;
                continue;
            }
            // What is expired takes nobody's room.
            if matches!(&outcome, Err(error) if error.kind() == ErrorKind::Full) && self.relieve(now, removed)
            {
                removed = self.sweep.gone();
                continue;
            }
            return Ok(outcome);
        }
    }

    /// Tells the lane of what its next answer has to wait for.
    fn note_changes(&self, lane: &Lane, worth: Worth, living: &Living<'_>) {
        if worth != Worth::Change {
            return;
        }
        if let Some(end) = living.logged {
            lane.has_logged(end);
        }
        if self.promises && living.has_changed {
            lane.has_logged(Position(lane.logged().0 + 1));
        }
    }

    /// A visit that finds no memory if it wants to put anything.
    #[cold]
    fn visit_full(
        &self,
        space: Space<'_>,
        lane: &Lane,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<Met> {
        let mut full = NoRoom { inner: visitor, refused: false };
        let forgets = || self.forgets();
        let mut living = Living::new(&mut full, key, now, space, &forgets);
        let outcome = self.visit_in_turn(space, Worth::Change, key, now, &mut living)?;
        self.note_changes(lane, Worth::Change, &living);
        let met = Met { expired: living.met_expired, class: self.classes.of(living.met_size) };
        if full.refused {
            return Err(Error::new(ErrorKind::Full, "memory is taken to be full"));
        }
        outcome.map(|()| met)
    }

    fn get(
        &self,
        space: Space<'_>,
        lane: &Lane,
        get: &Get<'_>,
        now: UnixSeconds,
        reply: &mut dyn FnMut(Reply<'_>),
    ) {
        if get.needs.access {
            self.tracking.ask(now);
        }
        let (outcome, class) = if get::only_looks(get) && (get.silent || !self.tracking.is_on(now)) {
            self.look(space, lane, get, now, reply)
        } else {
            self.visit_get(space, lane, get, now, reply)
        };
        if outcome == Outcome::Miss {
            reply(Reply::Miss);
        }
        // What is made for the caller to fill is found, as memcached counts.
        let found = matches!(outcome, Outcome::Hit | Outcome::Vivified);
        if outcome == Outcome::Vivified {
            lane.counts.total_items.one();
        }
        if get.family == Family::Meta {
            lane.counts.cmd_meta.one();
        }
        // As memcached counts: a hit of `mg` with a new time to live is a touch and no get, its miss a get.
        if get.counts_as_touch || (get.touch.is_some() && found) {
            lane.counts.cmd_touch.one();
            if found {
                lane.counts.touch_hits.one();
                lane.class(class).touch_hits.one();
            } else {
                lane.counts.touch_misses.one();
            }
        } else if !get.silent {
            // A look that shall not count as an access is none to the hit ratio either.
            lane.counts.cmd_get.one();
            if found {
                lane.counts.get_hits.one();
                lane.class(class).get_hits.one();
            } else {
                lane.counts.get_misses.one();
            }
        }
    }

    #[inline]
    fn look(
        &self,
        space: Space<'_>,
        lane: &Lane,
        get: &Get<'_>,
        now: UnixSeconds,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> (Outcome, usize) {
        let mut outcome = Outcome::Miss;
        let mut size = 0;
        let (mut must_visit, mut is_expired) = (false, false);
        let see = |record: Record<'_>| {
            if !record.attributes.expiry.is_live(now) {
                is_expired = true;
            } else if let Some(hit) = get::look(get, record, now) {
                outcome = Outcome::Hit;
                size = plain_size(get.key, &record);
                reply(Reply::Hit(hit));
            } else {
                must_visit = true;
            }
        };
        if let Err(error) = space.look(get.key, !get.silent, see) {
            // What cannot be read is not known to be missing.
            reply(Reply::Refused(refusal(&error)));
            return (Outcome::Refused, self.classes.of(get.key.len()));
        }
        if must_visit {
            return self.visit_get(space, lane, get, now, reply);
        }
        if is_expired && !space.is_closed() {
            let _ = self.visit(space, lane, get.key, now, &mut Bury);
        }
        (outcome, self.classes.of(size))
    }

    fn visit_get(
        &self,
        space: Space<'_>,
        lane: &Lane,
        get: &Get<'_>,
        now: UnixSeconds,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> (Outcome, usize) {
        // Notes of reads must not push records out.
        let is_tight =
            self.tracking.is_on(now) && self.engine.bounded().is_some_and(|bounded| bounded.is_tight());
        let mut visitor = GetVisitor::new(get, now, &self.tracking, &self.versions, reply, is_tight);
        let is_change = get.touch.is_some() || get.vivify.is_some();
        // A version that is shown must be the record's; all else that is noted can do without.
        let worth = match get.needs.version {
            _ if is_change => Worth::Change,
            true => Worth::Answer,
            false => Worth::Note,
        };
        let noting = if is_change { space } else { self.for_notes(space) };
        let met = self.visit_telling(noting, worth, lane, get.key, now, &mut visitor);
        let outcome = visitor.outcome;
        self.note([get.touch, get.vivify], now);
        match met {
            Ok(_) if outcome == Outcome::Vivified => (outcome, self.classes.of(get.key.len())),
            Ok(met) => (outcome, met.class),
            Err(error) => {
                // What could not be noted on a record does not keep it from being read.
                let may_show = outcome == Outcome::Hit || error.kind() == ErrorKind::Busy;
                let mut shown = false;
                let _ = space.look(get.key, true, |record| {
                    shown = may_show && record.attributes.expiry.is_live(now);
                    if shown {
                        reply(Reply::Hit(get::unchanged(record, now)));
                    }
                });
                if shown {
                    return (outcome, 0);
                }
                if error.kind() == ErrorKind::Busy {
                    return (Outcome::Miss, 0);
                }
                let class = self.classes.of(get.key.len());
                if error.kind() == ErrorKind::Full {
                    lane.class(class).out_of_memory.one();
                }
                reply(Reply::Refused(refusal(&error)));
                (Outcome::Refused, class)
            }
        }
    }

    fn store(&self, space: Space<'_>, lane: &Lane, store: &Store<'_>, now: UnixSeconds) -> Reply<'static> {
        let class_number = self.classes.of(size_of(store.key, store.value, store.flags));
        let class = lane.class(class_number);
        if store.family == Family::Meta {
            lane.counts.cmd_meta.one();
        }
        // Not even looked at: where memory is really full, it is asked for first.
        let visited = if self.emulates_full {
            Err(Error::new(ErrorKind::Full, "memory is taken to be full"))
        } else {
            self.visit_store(space, lane, store, now)
        };
        self.note([Some(store.ttl), store.vivify], now);
        let mut met_class = 0;
        let outcome = match visited {
            Ok((met, outcome)) => {
                met_class = met.class;
                outcome
            }
            Err(error) => Reply::Refused(refusal(&error)),
        };
        if !matches!(outcome, Reply::Refused(_)) {
            lane.counts.cmd_set.one();
            class.cmd_set.one();
        }
        match outcome {
            Reply::Stored(_) => {
                lane.counts.total_items.one();
                lane.counts.cas_hits.add(u64::from(store.compare.is_some()));
                class.cas_hits.add(u64::from(store.compare.is_some()));
            }
            Reply::Exists => {
                lane.counts.cas_badval.one();
                lane.class(met_class).cas_badval.one();
            }
            Reply::NotFound => lane.counts.cas_misses.one(),
            Reply::Refused(refusal) => {
                // What the client believes replaced must not be read again; a compare-and-set has promised nothing.
                let discards = store.mode == StoreMode::Set && store.compare.is_none();
                self.refuse_store(space, lane, (store.key, class_number), discards, refusal, now);
            }
            _ => {}
        }
        outcome
    }

    /// Counts a store that was refused: as refused alone, as memcached does. Removes the old record if that goes.
    fn refuse_store(
        &self,
        space: Space<'_>,
        lane: &Lane,
        (key, class): (&[u8], usize),
        discards: bool,
        refusal: Refusal,
        now: UnixSeconds,
    ) {
        match refusal {
            Refusal::TooLarge => lane.counts.store_too_large.one(),
            Refusal::OutOfMemory => {
                lane.counts.store_no_memory.one();
                lane.class(class).out_of_memory.one();
            }
            _ => {}
        }
        if discards {
            let _ = self.visit(space, lane, key, now, &mut Regardless(Action::Remove));
        }
    }

    fn visit_store(
        &self,
        space: Space<'_>,
        lane: &Lane,
        store: &Store<'_>,
        now: UnixSeconds,
    ) -> Result<(Met, Reply<'static>)> {
        let extends = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
        let (copied, with_copy);
        let store = if store.value.len() < LONG_VALUE_LEN || store.shared.0.is_some() || extends {
            store
        } else {
            match long_value::gather(self, &[store.value]) {
                Ok(value) => {
                    copied = value;
                    let (value, shared) = ((*copied).as_ref(), Shared(Some(&copied)));
                    with_copy = Store { value, shared, ..*store };
                    &with_copy
                }
                // Then the engine copies as it can.
                Err(error) if error.kind() == ErrorKind::Invalid => store,
                Err(error) => return Err(error),
            }
        };
        let mut visitor = StoreVisitor::new(store, now, &self.tracking, &self.versions);
        let mut tries = 0;
        loop {
            let met = self.visit(space, lane, store.key, now, &mut visitor)?;
            let Some(seen) = visitor.take_wanted() else { return Ok((met, visitor.outcome)) };
            tries += 1;
            if tries > JOINS_APART {
                visitor.go_on(LongJoin::Forgone);
                continue;
            }
            let pieces = StoreVisitor::pieces(store, seen.value());
            // The old value stays until the new one stands; what has no room beside it must not push all the others out.
            let both = seen.value().len() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
            let limit = self.engine.bounded().and_then(|bounded| bounded.limit().bytes);
            if limit.is_some_and(|limit| both as u64 > limit) {
                return Err(Error::new(ErrorKind::Full, "no room for the old value and the new one"));
            }
            let long = match long_value::gather(self, &pieces) {
                Ok(made) => LongJoin::Made(seen, made),
                Err(error) if error.kind() == ErrorKind::Invalid => LongJoin::Forgone,
                Err(error) => return Err(error),
            };
            visitor.go_on(long);
        }
    }

    fn delete(&self, space: Space<'_>, lane: &Lane, delete: &Delete<'_>, now: UnixSeconds) -> Reply<'static> {
        if delete.family == Family::Meta {
            lane.counts.cmd_meta.one();
        }
        let mut visitor = DeleteVisitor { delete, now, versions: &self.versions, outcome: Reply::NotFound };
        let visited = self.visit(space, lane, delete.key, now, &mut visitor);
        self.note([delete.ttl, None], now);
        let (outcome, class) = match visited {
            Ok(met) => (visitor.outcome, met.class),
            Err(error) => (Reply::Refused(refusal(&error)), 0),
        };
        match outcome {
            // A record that stays, without its value or as stale, is none deleted.
            Reply::Deleted if delete.mark_stale || delete.drop_value => {}
            Reply::Deleted => {
                lane.counts.delete_hits.one();
                lane.class(class).delete_hits.one();
            }
            Reply::NotFound => lane.counts.delete_misses.one(),
            _ => {}
        }
        outcome
    }

    fn arithmetic(
        &self,
        space: Space<'_>,
        lane: &Lane,
        arithmetic: &Arithmetic<'_>,
        now: UnixSeconds,
    ) -> Reply<'static> {
        if arithmetic.family == Family::Meta {
            lane.counts.cmd_meta.one();
        }
        let mut visitor = ArithmeticVisitor::new(arithmetic, now, &self.tracking, &self.versions);
        let visited = self.visit(space, lane, arithmetic.key, now, &mut visitor);
        self.note([arithmetic.touch, arithmetic.vivify], now);
        let (outcome, class) = match visited {
            Ok(met) => (visitor.outcome, lane.class(met.class)),
            Err(error) => {
                // No store: memcached counts what finds no memory here by class alone.
                let digits = arithmetic.initial.checked_ilog10().map_or(1, |log| log as usize + 1);
                let class = lane.class(self.classes.of(arithmetic.key.len() + digits));
                class.out_of_memory.add(u64::from(error.kind() == ErrorKind::Full));
                (Reply::Refused(refusal(&error)), class)
            }
        };
        let (hits, class_hits, misses) = match arithmetic.direction {
            Direction::Increment => (&lane.counts.incr_hits, &class.incr_hits, &lane.counts.incr_misses),
            Direction::Decrement => (&lane.counts.decr_hits, &class.decr_hits, &lane.counts.decr_misses),
        };
        match outcome {
            Reply::Number(number) => {
                // What is made where there was none is neither a hit nor a miss, as memcached counts.
                if number.created {
                    lane.counts.total_items.one();
                } else {
                    hits.one();
                    class_hits.one();
                }
            }
            Reply::NotFound => misses.one(),
            _ => {}
        }
        outcome
    }

    fn touch(&self, space: Space<'_>, lane: &Lane, touch: &Touch<'_>, now: UnixSeconds) -> Reply<'static> {
        lane.counts.cmd_touch.one();
        let mut visitor = TouchVisitor { touch, now, tracking: &self.tracking, found: false };
        let visited = self.visit(space, lane, touch.key, now, &mut visitor);
        self.note([Some(touch.ttl), None], now);
        match visited {
            Ok(met) if visitor.found => {
                lane.counts.touch_hits.one();
                lane.class(met.class).touch_hits.one();
                Reply::Touched
            }
            Ok(_) => {
                lane.counts.touch_misses.one();
                Reply::NotFound
            }
            Err(error) => Reply::Refused(refusal(&error)),
        }
    }

    fn inspect(
        &self,
        space: Space<'_>,
        lane: &Lane,
        inspect: &Inspect<'_>,
        now: UnixSeconds,
    ) -> Reply<'static> {
        lane.counts.cmd_meta.one();
        self.tracking.ask(now);
        let mut visitor = InspectVisitor { inspect, now, versions: &self.versions, outcome: Reply::Miss };
        match self.visit_telling(self.for_notes(space), Worth::Answer, lane, inspect.key, now, &mut visitor) {
            Ok(_) => visitor.outcome,
            Err(error) => Reply::Refused(refusal(&error)),
        }
    }
}

pub(crate) fn unwritable() -> Error {
    Error::new(ErrorKind::Unavailable, "changes cannot be written to disk")
}

/// What a command is answered whose visit has failed.
fn refusal(error: &Error) -> Refusal {
    match error.kind() {
        ErrorKind::Invalid => Refusal::TooLarge,
        ErrorKind::Full => Refusal::OutOfMemory,
        ErrorKind::Busy => Refusal::Busy,
        ErrorKind::Corrupt => Refusal::Damaged,
        ErrorKind::Unavailable | ErrorKind::Closed => Refusal::Unavailable,
    }
}

/// Whether a command is meant to change something. Reads may note things on records all the same: a version that is shown, a
/// sliding expiry that moves.
pub(crate) fn is_change(command: &Command<'_>) -> bool {
    match command {
        Command::Get(get) => get.touch.is_some() || get.vivify.is_some(),
        Command::RefusedStore(refused) => refused.discards,
        Command::Store(_)
        | Command::Delete(_)
        | Command::Arithmetic(_)
        | Command::Touch(_)
        | Command::Flush { .. } => true,
        _ => false,
    }
}

/// Lets `inner` look, retag and remove, and refuses what it wants put.
struct NoRoom<'v> {
    inner: &'v mut dyn Visitor,
    refused: bool,
}

impl Visitor for NoRoom<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let action = self.inner.visit(old);
        self.refused = matches!(action, Action::Put(_));
        if self.refused { Action::Keep } else { action }
    }

    fn overwrites(&self) -> bool {
        self.inner.overwrites()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.inner.applied(now);
    }
}

/// How much depends on a visit.
#[derive(Clone, Copy, PartialEq)]
enum Worth {
    /// What is answered is not to leave before the log has come on.
    Change,
    /// The answer needs it.
    Answer,
    /// The answer can do without.
    Note,
}

/// What a visit came upon.
#[derive(Clone, Copy)]
struct Met {
    /// A record, but it had expired.
    expired: bool,
    /// The size class of what was there.
    class: usize,
}

/// See [`Database::stillness`].
pub(crate) struct Stillness<'d> {
    _no_commit: RwLockReadGuard<'d, ()>,
    clear: flush::Stillness<'d>,
}

impl Stillness<'_> {
    /// The end of the log, for an engine that has all of it so far. What else it has told comes behind it once more, up to the
    /// second position: it must be on disk before anything that stands before the mark is removed.
    pub(crate) fn mark(&self, log: &UpdateLog) -> (Position, Position) {
        let (mark, at) = (log.end(), self.clear.planned());
        let told = at.map_or(mark, |_| log.append(&Change::PlanClear { at }));
        (mark, told)
    }
}

/// See [`Database::stand`].
pub(crate) struct Stand {
    pub(crate) end: Position,
    pub(crate) planned_clear: Option<UnixSeconds>,
    pub(crate) version: u64,
}

/// Does as it is told, whatever is there.
pub(crate) struct Regardless<'r>(pub(crate) Action<'r>);

impl Visitor for Regardless<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        self.0
    }

    fn overwrites(&self) -> bool {
        matches!(self.0, Action::Put(_) | Action::Remove)
    }
}
