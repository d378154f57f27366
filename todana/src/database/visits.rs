//! Runs visitors on records: hides expired records from them, waits for transactions, and removes
//! expired records if there is no room.

use super::limiter::SizeLimiter;
use super::{Database, unwritable};
use crate::counters::WorkerCounters;
use crate::durability::CommitPoint;
use crate::expiry::ExpiryVisitor;
use crate::table::{ROW_TERMS_MAX, is_indexable};
use crate::transaction::EngineView;
use crate::update_log::UpdateLog;
use std::cell::Cell;
use todana_core::{Action, Error, ErrorKind, IndexedEngine, Record, Result, UnixSeconds, Visitor, WhenFull};

/// The guarantees that a visit needs.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum VisitGuarantee {
    /// The reply must not leave before the change is durable.
    Change,
    /// The reply needs the effect.
    Answer,
    /// The effect may be lost.
    Note,
}

/// The record that a visit found.
#[derive(Clone, Copy)]
pub(super) struct VisitedRecord {
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

    /// Runs a visitor on a record atomically. The visitor does not see an expired record. Fails as
    /// [`Engine::visit`](todana_core::Engine::visit) does. Also fails with `Busy` if this thread
    /// has a transaction open, with `Invalid` if the database is read-only and the visitor wants a
    /// change, and with `Unavailable` if changes cannot be written to disk.
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

    /// Does the same as [`visit_record`](Self::visit_record), for a change that the server `origin`
    /// made first. The log entry names that server.
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

    /// Runs a visitor as a part of a commit, without waiting for transactions.
    pub(crate) fn visit_for_commit(&self, key: &[u8], visitor: &mut OverwriteVisitor<'_>) -> Result<()> {
        if let Action::Put(record) = visitor.0 {
            self.note_expiry(record.attributes.expiry);
        }
        loop {
            let removed = self.sweep.removed_total();
            match self.engine.visit(key, visitor) {
                Err(error) if error.is_out_of_memory() && self.relieve(self.clock.now(), removed) => {}
                outcome => return outcome,
            }
        }
    }

    /// Returns true if the engine may evict records. Evictions are not logged.
    fn may_evict(&self) -> bool {
        let limit = self.engine.bounded().map(|bounded| bounded.limit());
        limit.is_some_and(|limit| limit.bytes.is_some() && limit.when_full == WhenFull::Evict)
    }

    /// Runs a visitor that does not see an expired record.
    pub(super) fn visit(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<VisitedRecord> {
        self.visit_with_guarantee(space, VisitGuarantee::Change, worker_counters, key, now, visitor)
    }

    /// Removes a record. If a transaction is open, fails with `Busy` without waiting.
    pub(super) fn evict(&self, worker_counters: &WorkerCounters, key: &[u8]) -> Result<()> {
        let (commit, now) = (Cell::default(), self.clock.now());
        let visitor = &mut OverwriteVisitor(Action::Remove);
        self.visit_with_guarantee(
            self.space(&commit),
            VisitGuarantee::Note,
            worker_counters,
            key,
            now,
            visitor,
        )
        .map(|_| ())
    }

    /// Returns the view for side effects of reads (a version that is shown, a sliding expiry that
    /// is moved). The view has no log if the log is backlogged or does not accept these effects.
    /// Replies do not wait for them. A lost version is safe: a record without its version matches
    /// no compare-and-set of another state of the record, and no version is assigned twice
    /// ([`VersionCounter::skip_lost`]). A lost expiry is logged with its record at the next access.
    pub(super) fn for_side_effects<'s>(&self, space: EngineView<'s>) -> EngineView<'s> {
        let takes_side_effects =
            |log: &&UpdateLog| log.takes_changes() && !log.takes_only_removals() && !log.is_backlogged();
        let log = space.log.filter(takes_side_effects);
        if let (Some(skipped), None) = (space.log, log) {
            skipped.skip_accesses();
        }
        EngineView { log, ..space }
    }

    /// Fails with `Busy` if a transaction is open and the effect is not worth a wait.
    pub(super) fn visit_with_guarantee(
        &self,
        space: EngineView<'_>,
        guarantee: VisitGuarantee,
        worker_counters: &WorkerCounters,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<VisitedRecord> {
        if self.must_resolve(key) {
            return self.visit_resolved(space, guarantee, worker_counters, key, now, visitor);
        }
        self.visit_canonical(space, guarantee, worker_counters, key, now, visitor)
    }

    /// Runs a visit of a key in the form in which the engine knows it.
    #[inline]
    pub(super) fn visit_canonical(
        &self,
        space: EngineView<'_>,
        guarantee: VisitGuarantee,
        worker_counters: &WorkerCounters,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<VisitedRecord> {
        if self.emulates_full {
            let visitor = &mut RestrictedVisitor::new(visitor, AllowedChanges::AllButPuts);
            return self.visit_restricted(space, guarantee, worker_counters, key, now, visitor);
        }
        if self.refuses_origin(space.origin) {
            return self.visit_read_only(space, key, now, visitor);
        }
        if guarantee == VisitGuarantee::Change && space.log.is_some_and(UpdateLog::takes_only_removals) {
            let visitor = &mut RestrictedVisitor::new(visitor, AllowedChanges::Removals);
            return self.visit_restricted(space, guarantee, worker_counters, key, now, visitor);
        }
        // The record with the empty key is not indexed, and its visit locks the indexes.
        if let Some(indexed) = self.engine.indexed().filter(|_| self.is_table && !key.is_empty()) {
            let visitor = &mut RestrictedVisitor::new(visitor, AllowedChanges::IndexableRows(indexed));
            return self.visit_restricted(space, guarantee, worker_counters, key, now, visitor);
        }
        self.visit_any(space, guarantee, worker_counters, key, now, visitor)
    }

    /// Runs a visitor, some of whose changes are refused.
    #[inline(never)]
    fn visit_restricted(
        &self,
        space: EngineView<'_>,
        guarantee: VisitGuarantee,
        worker_counters: &WorkerCounters,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut RestrictedVisitor<'_>,
    ) -> Result<VisitedRecord> {
        let met = self.visit_any(space, guarantee, worker_counters, key, now, visitor)?;
        if !visitor.has_refused {
            return Ok(met);
        }
        let error = visitor.allowed.refusal();
        worker_counters.count_refusal(&error);
        Err(error)
    }

    /// Runs a visitor that may do any change. Inlined by force, because with two callers the
    /// compiler does not inline it, which costs 13 of 2,785 instructions per set (2026-11-23).
    #[inline(always)]
    fn visit_any(
        &self,
        space: EngineView<'_>,
        guarantee: VisitGuarantee,
        worker_counters: &WorkerCounters,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<VisitedRecord> {
        let _in_progress = self.limiter.as_ref().map(SizeLimiter::begin_write);
        let may_evict = || self.may_evict();
        let mut expiry_visitor = ExpiryVisitor::new(visitor, key, now, space, &may_evict);
        let outcome = self.visit_in_turn(space, guarantee, key, now, &mut expiry_visitor)?;
        self.note_changes(space, guarantee, &expiry_visitor);
        // A transaction checks the limit when it is committed.
        if let (Some(limiter), true, Some(_)) =
            (&self.limiter, expiry_visitor.has_put(), space.transaction_lock)
            && !self.is_replica()
        {
            limiter.enforce(self, worker_counters, key);
        }
        if let Err(error) = &outcome {
            worker_counters.count_refusal(error);
        }
        let met = VisitedRecord {
            expired: expiry_visitor.met_expired,
            class: self.classes.of(expiry_visitor.met_size),
        };
        if met.expired && outcome.is_ok() {
            // As in memcached, this counts for every command.
            worker_counters.counts.get_expired.one();
            worker_counters.counts.reclaimed.one();
            worker_counters.class(met.class).reclaimed.one();
        }
        outcome.map(|()| met)
    }

    /// Runs a visitor without any change; even an expired record is not removed. Fails with
    /// `Invalid` if the visitor wants a change.
    fn visit_read_only(
        &self,
        space: EngineView<'_>,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<VisitedRecord> {
        let mut restricted = RestrictedVisitor::new(visitor, AllowedChanges::ReadsOnly);
        let space = EngineView { transaction_lock: None, ..space };
        let mut expiry_visitor = ExpiryVisitor::new(&mut restricted, key, now, space, &|| false);
        space
            .engine
            .visit(key, &mut RestrictedVisitor::new(&mut expiry_visitor, AllowedChanges::ReadsOnly))?;
        let met = VisitedRecord {
            expired: expiry_visitor.met_expired,
            class: self.classes.of(expiry_visitor.met_size),
        };
        if restricted.has_refused { Err(restricted.allowed.refusal()) } else { Ok(met) }
    }

    /// Runs the engine's visit. Repeats it after waiting for a transaction, or after removing
    /// expired records if there was no room. The outer error is `Busy`, or that of
    /// [`refuse_origin`](Self::refuse_origin); the visitor has not run then.
    fn visit_in_turn(
        &self,
        space: EngineView<'_>,
        guarantee: VisitGuarantee,
        key: &[u8],
        now: UnixSeconds,
        expiry_visitor: &mut ExpiryVisitor<'_>,
    ) -> Result<Result<()>> {
        let mut removed = self.sweep.removed_total();
        loop {
            // This is reset here, because the engine may fail before it calls the visitor.
            expiry_visitor.found_transaction = false;
            let outcome = space.engine.visit(key, expiry_visitor);
            if expiry_visitor.found_transaction {
                // Another server may have become the master since the origin was checked.
                self.refuse_origin(space.origin)?;
                if guarantee == VisitGuarantee::Note {
                    return Err(Error::new(ErrorKind::Busy, "a transaction is open"));
                }
                space.wait()?;
                // A transaction may take long, and replicas may have removed the record meanwhile.
                if space.origin.is_none() {
                    expiry_visitor.visit_later(self.clock.now());
                }
                continue;
            }
            // Expired records must not be a reason for lack of room.
            if matches!(&outcome, Err(error) if error.is_out_of_memory()) && self.relieve(now, removed) {
                removed = self.sweep.removed_total();
                continue;
            }
            return Ok(outcome);
        }
    }

    /// Records the commit point for which the reply must wait.
    fn note_changes(
        &self,
        space: EngineView<'_>,
        guarantee: VisitGuarantee,
        expiry_visitor: &ExpiryVisitor<'_>,
    ) {
        if guarantee == VisitGuarantee::Change
            && (expiry_visitor.has_changed || expiry_visitor.logged.is_some())
        {
            space.commit.set(self.commit_point(expiry_visitor.logged).max(space.commit.get()));
        }
    }
}

/// A visitor that requests the same action for every record.
pub struct OverwriteVisitor<'r>(pub Action<'r>);

impl Visitor for OverwriteVisitor<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        self.0
    }

    fn sees_value_list(&self) -> bool {
        true
    }

    fn overwrites(&self) -> bool {
        matches!(self.0, Action::Put(_) | Action::Remove)
    }

    fn reads_shared(&self) -> bool {
        true
    }
}

/// The changes that a visitor may do.
#[derive(Clone, Copy)]
pub(crate) enum AllowedChanges<'e> {
    /// No changes, because the database was opened for reading.
    ReadsOnly,
    /// Only removals, because the disk is full.
    Removals,
    /// All changes except stores, because memory counts as full.
    AllButPuts,
    /// All changes except rows that have too many terms for the indexes.
    IndexableRows(&'e dyn IndexedEngine),
}

impl AllowedChanges<'_> {
    fn permits(self, action: Action<'_>) -> bool {
        match (self, action) {
            (_, Action::Keep) => true,
            (AllowedChanges::ReadsOnly, _) => false,
            (AllowedChanges::Removals, action) => action == Action::Remove,
            (AllowedChanges::AllButPuts, action) => !matches!(action, Action::Put(_)),
            (AllowedChanges::IndexableRows(indexed), Action::Put(row)) => is_indexable(indexed, row.value),
            (AllowedChanges::IndexableRows(_), _) => true,
        }
    }

    /// Returns the error of a visit that wanted a change which is not allowed.
    fn refusal(self) -> Error {
        match self {
            AllowedChanges::ReadsOnly => super::read_only(),
            AllowedChanges::Removals => unwritable(),
            AllowedChanges::AllButPuts => super::full(),
            AllowedChanges::IndexableRows(_) => {
                let message =
                    format!("row: its indexed columns have more than {ROW_TERMS_MAX} words or characters");
                Error::new(ErrorKind::Invalid, message)
            }
        }
    }
}

/// Passes on the changes of `inner` that are allowed, and refuses all others.
pub(crate) struct RestrictedVisitor<'v> {
    inner: &'v mut dyn Visitor,
    allowed: AllowedChanges<'v>,
    pub(crate) has_refused: bool,
}

impl<'v> RestrictedVisitor<'v> {
    pub(crate) fn new(inner: &'v mut dyn Visitor, allowed: AllowedChanges<'v>) -> RestrictedVisitor<'v> {
        RestrictedVisitor { inner, allowed, has_refused: false }
    }
}

impl Visitor for RestrictedVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let action = self.inner.visit(old);
        self.has_refused = !self.allowed.permits(action);
        if self.has_refused { Action::Keep } else { action }
    }

    fn overwrites(&self) -> bool {
        // A visitor that may not change a damaged record must receive the error about the damage.
        !matches!(self.allowed, AllowedChanges::ReadsOnly) && self.inner.overwrites()
    }

    fn sees_value_list(&self) -> bool {
        self.inner.sees_value_list()
    }

    fn ignores_value(&self) -> bool {
        self.inner.ignores_value()
    }

    fn reads_shared(&self) -> bool {
        self.inner.reads_shared()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.inner.applied(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;
    use crate::transaction::WhileWaiting;
    use crate::{Clock, DataDirectory, DataOptions, ManualClock, SystemClock};
    use std::path::Path;
    use std::sync::{Arc, mpsc};
    use std::time::Duration;
    use todana_core::{Attributes, Engine, Expiry, Operation, Reply, Store, Touch, Ttl};
    use todana_engine::{MemHash, MemHashOptions};

    /// The origin of a change is checked before the visit, and a server may learn in between that
    /// another one has become the master. The change must not enter the log after that.
    #[test]
    fn late_change_of_a_client_is_refused() {
        let engine = Box::new(MemHash::new(MemHashOptions::default()).unwrap());
        let database = Database::new(engine, Arc::new(SystemClock));
        let (counters, commit) = (database.worker_counters(), Cell::default());
        let put = |origin| {
            let view = EngineView { origin, ..database.space(&commit) };
            let visitor = &mut OverwriteVisitor(Action::Put(Record::new(b"1", Attributes::default())));
            database.visit_any(view, VisitGuarantee::Change, &counters, b"key", UnixSeconds(1), visitor)
        };
        for set in [Database::set_superseded, Database::follow_master] {
            set(&database, true);
            let refused = put(None).map(|_| ()).unwrap_err();
            let expected = database.refuse_origin(None).unwrap_err();
            assert_eq!((refused.to_string(), database.status().records), (expected.to_string(), 0));
            set(&database, false);
        }
        database.set_superseded(true);
        put(Some(2)).unwrap();
        assert_eq!(database.status().records, 1);
        database.set_superseded(false);
        put(None).unwrap();
    }

    /// The same for a transaction, between the check and its first change.
    #[test]
    fn late_commit_of_a_client_is_refused() {
        let engine = Box::new(MemHash::new(MemHashOptions::default()).unwrap());
        let database = Arc::new(Database::new(engine, Arc::new(SystemClock)));
        let superseded = Arc::downgrade(&database);
        database.before_commit(move || {
            superseded.upgrade().expect("the test has it").set_superseded(true);
            Ok(())
        });
        let counters = database.worker_counters();
        let transaction = database.begin(&counters).unwrap();
        let put = &mut OverwriteVisitor(Action::Put(Record::new(b"1", Attributes::default())));
        transaction.visit_record(b"key", put).unwrap();
        let error = transaction.commit().unwrap_err();
        assert_eq!(error.to_string(), database.refuse_origin(None).unwrap_err().to_string());
        assert_eq!(database.status().records, 0);
    }

    /// Replicas remove the record when it expires, so the touch would have no effect there.
    #[test]
    fn record_that_expired_meanwhile_stays_expired() {
        let clock = Arc::new(ManualClock::new(UnixSeconds(1_000)));
        let (sender, waits) = mpsc::channel();
        let clock_too = Arc::clone(&clock);
        let advance = move || {
            clock_too.advance(100);
            let _ = sender.send(());
            Ok(())
        };
        let engine = Box::new(MemHash::new(MemHashOptions::default()).unwrap());
        let database = Database::new(engine, clock as Arc<dyn Clock>)
            .while_waiting(WhileWaiting { every: Duration::from_millis(1), call: Arc::new(advance) });
        let counters = database.worker_counters();
        let store = Store { key: b"k", value: b"v", ttl: Ttl::Seconds(50), ..Store::default() };
        database.execute(&counters, &Operation::Store(store), &mut |_| ());
        let transaction = database.try_begin(&counters).unwrap();
        std::thread::scope(|scope| {
            let touches = scope.spawn(|| {
                let (touch, mut found) = (Touch { key: b"k", ttl: Ttl::Never }, None);
                let counters = database.worker_counters();
                database.execute(&counters, &Operation::Touch(touch), &mut |reply| {
                    found = Some(matches!(reply, Reply::Touched));
                });
                found
            });
            waits.recv().unwrap();
            drop(transaction);
            assert_eq!(touches.join().unwrap(), Some(false));
        });
    }

    fn with_log(hash: MemHash, clock: Arc<dyn Clock>, folder: &Path) -> (Database, DataDirectory) {
        let database = Database::new(Box::new(hash), Arc::clone(&clock));
        let directory = DataDirectory::open(Arc::new(SystemDisk), folder).unwrap();
        directory.restore(&database, clock, &DataOptions::default(), &mut |_| ()).unwrap();
        (database, directory)
    }

    /// A touch that waited for a transaction was logged as if the log lacked no access.
    #[test]
    fn later_visit_sees_the_present_log() {
        let folder = tempfile::tempdir().unwrap();
        let hash = MemHash::new(MemHashOptions::default()).unwrap();
        let clock = Arc::new(ManualClock::new(UnixSeconds(1_000)));
        let (database, _directory) = with_log(hash, clock, folder.path());
        let (commit, mut remove) = (Cell::default(), OverwriteVisitor(Action::Remove));
        let view = database.space(&commit);
        let mut visitor = ExpiryVisitor::new(&mut remove, b"k", UnixSeconds(1_000), view, &|| false);
        database.log().unwrap().skip_accesses();
        assert!(visitor.reads_shared(), "decided before the access");
        visitor.visit_later(UnixSeconds(1_100));
        assert!(!visitor.reads_shared());
    }

    /// The log may begin to lack accesses during a touch, which does not decompress the value. The
    /// record was then logged with zeros as its value.
    #[test]
    fn access_without_value_logs_no_record() {
        struct SharedTouch<'l>(&'l UpdateLog);

        impl Visitor for SharedTouch<'_> {
            fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
                // Another thread does this.
                self.0.skip_accesses();
                let expiry = Expiry::Sliding { at: UnixSeconds(1_090), span_s: 60 };
                Action::Retag(Attributes { expiry, ..old.unwrap().attributes })
            }

            fn reads_shared(&self) -> bool {
                true
            }
        }

        let folder = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(UnixSeconds(1_030)));
        let open = |hash: MemHash| with_log(hash, Arc::clone(&clock), folder.path());
        let hash = MemHash::new(MemHashOptions::default()).unwrap();
        // The log lacks this record, so that only the touch could add it.
        let expiry = Expiry::Sliding { at: UnixSeconds(1_060), span_s: 60 };
        let (value, attributes) = ([b'v'; 100_000], Attributes { expiry, ..Attributes::default() });
        hash.visit(b"k", &mut OverwriteVisitor(Action::Put(Record::new(&value, attributes)))).unwrap();
        hash.compress_long_values();
        assert_eq!(hash.status().encoding.compressed_values, 1);
        let (database, directory) = open(hash);
        let (counters, commit) = (database.worker_counters(), Cell::default());
        let log = database.log().unwrap();
        let (view, touch) = (database.space(&commit), &mut SharedTouch(log));
        database.visit(view, &counters, b"k", database.now(), touch).unwrap();
        assert!(log.lacks_access(expiry));
        log.close().unwrap();
        drop((database, directory));
        let (database, _directory) = open(MemHash::new(MemHashOptions::default()).unwrap());
        assert_eq!(database.status().records, 0);
    }
}
