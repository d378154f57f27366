//! The interface for logs and checkpoints: the state of a database, and its continuation from
//! there.

use super::{Database, Overwrite};
use crate::flush;
use crate::update_log::{LogChange, LogPosition, UpdateLog};
use parking_lot::RwLockReadGuard;
use todana_core::{Action, Expiry, Result, ScanOrder, UnixSeconds};

impl Database {
    /// Makes a change of a log or checkpoint without logging it. An expired record is stored too,
    /// because a later entry may have touched it in time. Fails with `Full` if there is no room and
    /// nothing may be evicted.
    pub(crate) fn replay(&self, change: &LogChange<'_>) -> Result<()> {
        match *change {
            LogChange::Put { key, record } => {
                self.versions.note_assigned(record.attributes.version);
                self.sweep.note_expiry(record.attributes.expiry);
                self.engine.visit(key, &mut Overwrite(Action::Put(record)))
            }
            LogChange::Retag { key, attributes } => {
                self.versions.note_assigned(attributes.version);
                self.sweep.note_expiry(attributes.expiry);
                self.engine.visit(key, &mut Overwrite(Action::Retag(attributes)))
            }
            LogChange::Remove { key } => self.engine.visit(key, &mut Overwrite(Action::Remove)),
            LogChange::Clear => {
                self.flush.restore(None);
                self.engine.clear(&mut || ())
            }
            LogChange::PlanClear { at } => {
                self.flush.restore(at);
                Ok(())
            }
            LogChange::Transaction(changes) => changes.iter().try_for_each(|change| self.replay(&change)),
            LogChange::Mark { .. } | LogChange::Lost { .. } => Ok(()),
        }
    }

    /// Returns the opening in which the highest known version was issued.
    pub(crate) fn openings_known(&self) -> u32 {
        (self.versions.highest() >> 32) as u32
    }

    /// Attaches the log, to which every change is appended from now on. A database has at most one
    /// log. `openings`: how often the database has been opened.
    pub(crate) fn attach(&self, log: UpdateLog, openings: u32) {
        self.versions.skip_lost(openings);
        let is_first = self.log.set(log).is_ok();
        debug_assert!(is_first, "a second log");
    }

    /// Returns the state with which a checkpoint begins, besides the records: the end of the log,
    /// the planned clear as of there, and the highest version so far. `None` without a log.
    pub(crate) fn stand(&self) -> Option<Stand> {
        let log = self.log()?;
        // A clear that is not logged yet, or that the log has seen carried out, must not be
        // recorded as planned.
        self.flush.with_planned(|planned_clear| {
            let end = log.end();
            Some(Stand { end, planned_clear, version: self.versions.highest() })
        })
    }

    /// Excludes commits and clears until the returned value is dropped. Taken before locks of the
    /// engine, as they do.
    pub(crate) fn stillness(&self) -> Stillness<'_> {
        Stillness { _no_commit: self.transaction_lock.block_commits(), clear: self.flush.block_changes() }
    }

    /// Returns the end of the log, which contains all changes of the engine.
    pub(crate) fn log_end(&self, log: &UpdateLog) -> LogPosition {
        self.transaction_lock.between_commits(|| log.end())
    }

    pub(crate) fn note_expiry(&self, expiry: Expiry) {
        self.sweep.note_expiry(expiry);
    }

    /// Announces the order of a checkpoint's records to the engine.
    pub(crate) fn expect(&self, order: ScanOrder) {
        self.engine.begin_ordered_load(order);
    }

    /// Returns true if the engine keeps its records in this order.
    pub(crate) fn keeps(&self, order: Option<ScanOrder>) -> bool {
        order.is_some_and(|order| self.engine.scan_order().is_some_and(|own| own.seed == order.seed))
    }

    /// Returns the time of a planned clear.
    pub(crate) fn planned_clear(&self) -> Option<UnixSeconds> {
        self.flush.with_planned(|planned_clear| planned_clear)
    }

    /// Sets the state with which a checkpoint begins, after its records were restored.
    pub(crate) fn resume(&self, planned_clear: Option<UnixSeconds>, version: u64) {
        self.flush.restore(planned_clear);
        self.versions.note_assigned(version);
    }
}

/// See [`Database::stillness`].
pub(crate) struct Stillness<'d> {
    _no_commit: RwLockReadGuard<'d, ()>,
    clear: flush::FlushGuard<'d>,
}

impl Stillness<'_> {
    /// Returns the end of the log, for an engine that has all of it so far. A planned clear is
    /// logged again after it, up to the second position, which must be on disk before anything
    /// before the mark is removed.
    pub(crate) fn mark(&self, log: &UpdateLog) -> (LogPosition, LogPosition) {
        let (mark, at) = (log.end(), self.clear.planned());
        let told = at.map_or(mark, |_| log.append(&LogChange::PlanClear { at }));
        (mark, told)
    }
}

/// See [`Database::stand`].
pub(crate) struct Stand {
    pub(crate) end: LogPosition,
    pub(crate) planned_clear: Option<UnixSeconds>,
    pub(crate) version: u64,
}
