//! Visits with expiry, transactions, and removal of expired records for room.

use super::{Database, is_full, unwritable};
use crate::counters::WorkerCounters;
use crate::durability::CommitPoint;
use crate::expiry::ExpiryVisitor;
use crate::transaction::EngineView;
use crate::update_log::UpdateLog;
use std::cell::Cell;
use todana_core::{Action, Error, ErrorKind, Record, Result, UnixSeconds, Visitor, WhenFull};

/// The guarantees that a visit needs.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Worth {
    /// The reply must not leave before the change is durable.
    Change,
    /// The reply needs the effect.
    Answer,
    /// The effect may be lost.
    Note,
}

/// The record that a visit found.
#[derive(Clone, Copy)]
pub(super) struct Met {
    /// The record existed, but had expired.
    pub(super) expired: bool,
    /// The size class of the old record.
    pub(super) class: usize,
}

impl Database {
    /// Runs a visitor on a record in a space. The visitor does not see expired records.
    pub(crate) fn visit_in(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        key: &[u8],
        visitor: &mut dyn Visitor,
    ) -> Result<()> {
        self.visit(space, worker_counters, key, self.clock.now(), visitor).map(|_| ())
    }

    /// Runs a visitor on a record atomically. The visitor does not see expired records. Fails as
    /// [`Engine::visit`](todana_core::Engine::visit) does; with `Busy` if this thread has a
    /// transaction open; with `Invalid` if the database is read-only and the visitor wants a
    /// change; with `Unavailable` if changes cannot be written to disk.
    ///
    /// Returns the commit point for which a reply must wait.
    pub fn visit_record(
        &self,
        worker_counters: &WorkerCounters,
        key: &[u8],
        visitor: &mut dyn Visitor,
    ) -> Result<CommitPoint> {
        self.visit_first_made_by(None, worker_counters, key, visitor)
    }

    /// As [`visit_record`](Self::visit_record), for a change that server `origin` made first. The
    /// log entry names that server.
    pub fn visit_record_from(
        &self,
        origin: u32,
        worker_counters: &WorkerCounters,
        key: &[u8],
        visitor: &mut dyn Visitor,
    ) -> Result<CommitPoint> {
        self.visit_first_made_by(Some(origin), worker_counters, key, visitor)
    }

    fn visit_first_made_by(
        &self,
        origin: Option<u32>,
        worker_counters: &WorkerCounters,
        key: &[u8],
        visitor: &mut dyn Visitor,
    ) -> Result<CommitPoint> {
        self.flush_if_due(self.clock.now());
        self.refuse_if_unwritable(worker_counters)?;
        let commit = Cell::default();
        self.visit_in(EngineView { origin, ..self.space(&commit) }, worker_counters, key, visitor)?;
        Ok(commit.get())
    }

    /// Runs a visit of a commit.
    pub(crate) fn visit_past_gate(&self, key: &[u8], visitor: &mut Overwrite<'_>) -> Result<()> {
        if let Action::Put(record) = visitor.0 {
            self.note_expiry(record.attributes.expiry);
        }
        loop {
            let removed = self.sweep.gone();
            match self.engine.visit(key, visitor) {
                Err(error) if is_full(&error) && self.relieve(self.clock.now(), removed) => {}
                outcome => return outcome,
            }
        }
    }

    /// Returns true if records may be evicted, which is not logged.
    fn forgets(&self) -> bool {
        let limit = self.engine.bounded().map(|bounded| bounded.limit());
        limit.is_some_and(|limit| limit.bytes.is_some() && limit.when_full == WhenFull::Evict)
    }

    /// Visits a record through the filter for expired records.
    pub(super) fn visit(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<Met> {
        self.visit_telling(space, Worth::Change, worker_counters, key, now, visitor)
    }

    /// Removes a record unless a transaction is open; fails with `Busy` then, without waiting.
    pub(super) fn evict(&self, worker_counters: &WorkerCounters, key: &[u8]) -> Result<()> {
        let (commit, now) = (Cell::default(), self.clock.now());
        let visitor = &mut Overwrite(Action::Remove);
        self.visit_telling(self.space(&commit), Worth::Note, worker_counters, key, now, visitor).map(|_| ())
    }

    /// Returns the space for side effects of reads (a shown version, a moved sliding expiry),
    /// without a log if that is crowded or does not take them. Nothing waits for these entries, and
    /// losing them is safe: a record without its version matches no compare-and-set of another
    /// state of it, and no version is issued twice ([`VersionCounter::skip_lost`]).
    pub(super) fn for_notes<'s>(&self, space: EngineView<'s>) -> EngineView<'s> {
        let takes_notes =
            |log: &&UpdateLog| log.takes_changes() && !log.takes_only_removals() && !log.is_backlogged();
        EngineView { log: space.log.filter(takes_notes), ..space }
    }

    /// Fails with `Busy` if a transaction is open and the effect is not worth a wait.
    pub(super) fn visit_telling(
        &self,
        space: EngineView<'_>,
        worth: Worth,
        worker_counters: &WorkerCounters,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<Met> {
        if self.emulates_full {
            let visitor = &mut Restricted::new(visitor, Allowed::AllButPuts);
            return self.visit_restricted(space, worth, worker_counters, key, now, visitor);
        }
        if self.is_read_only {
            return self.visit_read_only(space, key, now, visitor);
        }
        if worth == Worth::Change && space.log.is_some_and(UpdateLog::takes_only_removals) {
            let visitor = &mut Restricted::new(visitor, Allowed::Removals);
            return self.visit_restricted(space, worth, worker_counters, key, now, visitor);
        }
        self.visit_any(space, worth, worker_counters, key, now, visitor)
    }

    /// Runs a visitor that may not make every change.
    #[cold]
    fn visit_restricted(
        &self,
        space: EngineView<'_>,
        worth: Worth,
        worker_counters: &WorkerCounters,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut Restricted<'_>,
    ) -> Result<Met> {
        let met = self.visit_any(space, worth, worker_counters, key, now, visitor)?;
        if !visitor.has_refused {
            return Ok(met);
        }
        let error = visitor.allowed.refusal();
        worker_counters.count_refusal(&error);
        Err(error)
    }

    /// Runs a visitor that may make any change. Inlined by force: with two callers the
    /// compiler does not, at 13 instructions of 2,785 per set (2026-11-23).
    #[inline(always)]
    fn visit_any(
        &self,
        space: EngineView<'_>,
        worth: Worth,
        worker_counters: &WorkerCounters,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<Met> {
        let forgets = || self.forgets();
        let mut living = ExpiryVisitor::new(visitor, key, now, space, &forgets);
        let outcome = self.visit_in_turn(space, worth, key, now, &mut living)?;
        self.note_changes(space, worth, &living);
        // A transaction keeps the limit when it is committed.
        if let (Some(limiter), true, Some(_)) = (&self.limiter, living.has_put(), space.transaction_lock) {
            limiter.enforce(self, worker_counters, key);
        }
        if let Err(error) = &outcome {
            worker_counters.count_refusal(error);
        }
        let met = Met { expired: living.met_expired, class: self.classes.of(living.met_size) };
        if met.expired && outcome.is_ok() {
            // As in memcached, the command does not matter.
            worker_counters.counts.get_expired.one();
            worker_counters.counts.reclaimed.one();
            worker_counters.class(met.class).reclaimed.one();
        }
        outcome.map(|()| met)
    }

    /// Runs a visit that changes nothing, not even expired records. Fails with `Invalid` if the
    /// visitor wants a change.
    fn visit_read_only(
        &self,
        space: EngineView<'_>,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<Met> {
        let mut looks = Restricted::new(visitor, Allowed::Looks);
        let space = EngineView { transaction_lock: None, ..space };
        let mut living = ExpiryVisitor::new(&mut looks, key, now, space, &|| false);
        space.engine.visit(key, &mut Restricted::new(&mut living, Allowed::Looks))?;
        let met = Met { expired: living.met_expired, class: self.classes.of(living.met_size) };
        if looks.has_refused { Err(looks.allowed.refusal()) } else { Ok(met) }
    }

    /// Runs the engine's visit, after waiting for transactions and removing expired records for
    /// room. The outer error is `Busy`, before any visit.
    fn visit_in_turn(
        &self,
        space: EngineView<'_>,
        worth: Worth,
        key: &[u8],
        now: UnixSeconds,
        living: &mut ExpiryVisitor<'_>,
    ) -> Result<Result<()>> {
        let mut removed = self.sweep.gone();
        loop {
            // The engine may fail before it calls the visitor.
            living.turned_away = false;
            let outcome = space.engine.visit(key, living);
            if living.turned_away {
                if worth == Worth::Note {
                    return Err(Error::new(ErrorKind::Busy, "a transaction is open"));
                }
                space.wait()?;
                continue;
            }
            // Expired records do not take up room.
            if matches!(&outcome, Err(error) if is_full(error)) && self.relieve(now, removed) {
                removed = self.sweep.gone();
                continue;
            }
            return Ok(outcome);
        }
    }

    /// Records the commit point for which the reply must wait.
    fn note_changes(&self, space: EngineView<'_>, worth: Worth, living: &ExpiryVisitor<'_>) {
        if worth == Worth::Change && (living.has_changed || living.logged.is_some()) {
            space.commit.set(self.commit_point(living.logged).max(space.commit.get()));
        }
    }
}

/// A visitor that does the same for every record.
pub struct Overwrite<'r>(pub Action<'r>);

impl Visitor for Overwrite<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        self.0
    }

    fn overwrites(&self) -> bool {
        matches!(self.0, Action::Put(_) | Action::Remove)
    }
}

/// The changes that a visitor may make.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Allowed {
    /// No change: the database was opened for reading.
    Looks,
    /// Only removals: the disk is full.
    Removals,
    /// All but stores: memory counts as full.
    AllButPuts,
}

impl Allowed {
    fn permits(self, action: Action<'_>) -> bool {
        match (self, action) {
            (_, Action::Keep) => true,
            (Allowed::Looks, _) => false,
            (Allowed::Removals, action) => action == Action::Remove,
            (Allowed::AllButPuts, action) => !matches!(action, Action::Put(_)),
        }
    }

    /// Returns the error of a visit that wanted another change.
    fn refusal(self) -> Error {
        match self {
            Allowed::Looks => super::read_only(),
            Allowed::Removals => unwritable(),
            Allowed::AllButPuts => super::full(),
        }
    }
}

/// Passes the allowed changes of `inner` on, and refuses all others.
pub(crate) struct Restricted<'v> {
    inner: &'v mut dyn Visitor,
    allowed: Allowed,
    pub(crate) has_refused: bool,
}

impl<'v> Restricted<'v> {
    pub(crate) fn new(inner: &'v mut dyn Visitor, allowed: Allowed) -> Restricted<'v> {
        Restricted { inner, allowed, has_refused: false }
    }
}

impl Visitor for Restricted<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let action = self.inner.visit(old);
        self.has_refused = !self.allowed.permits(action);
        if self.has_refused { Action::Keep } else { action }
    }

    fn overwrites(&self) -> bool {
        // A visitor that cannot change a damaged record must receive the damage.
        self.allowed != Allowed::Looks && self.inner.overwrites()
    }

    fn ignores_value(&self) -> bool {
        self.inner.ignores_value()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.inner.applied(now);
    }
}
