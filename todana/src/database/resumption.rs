//! What a log and checkpoints ask of a database: where it stands, and that it goes on from there.

use super::{Database, Overwrite};
use crate::flush;
use crate::update_log::{LogChange, LogPosition, UpdateLog};
use parking_lot::RwLockReadGuard;
use todana_core::{Action, Expiry, Result, ScanOrder, UnixSeconds};

impl Database {
    /// Does what a log or a checkpoint tells, without telling the log. A record that has expired since is stored all the same: a
    /// later entry may tell that it was touched in time. Fails with `Full` where there is no room and nothing may be evicted.
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

    /// The opening in which the highest version was made that is known.
    pub(crate) fn openings_known(&self) -> u32 {
        (self.versions.highest() >> 32) as u32
    }

    /// From now on the log is told of every change. A database has one log at most. `openings`: how often the database has
    /// been opened.
    pub(crate) fn attach(&self, log: UpdateLog, openings: u32) {
        self.versions.skip_lost(openings);
        let is_first = self.log.set(log).is_ok();
        debug_assert!(is_first, "a second log");
    }

    /// What else than records a checkpoint begins with: the log's end, what clear is planned as of there, and the highest
    /// version made so far. `None` without a log.
    pub(crate) fn stand(&self) -> Option<Stand> {
        let log = self.log()?;
        // Neither a clear that the log does not know yet nor one that it has seen carried out may be told as planned.
        self.flush.with_planned(|planned_clear| {
            let end = log.end();
            Some(Stand { end, planned_clear, version: self.versions.highest() })
        })
    }

    /// Keeps commits and clears away until it is dropped: taken before an engine's locks, as those take it.
    pub(crate) fn stillness(&self) -> Stillness<'_> {
        Stillness { _no_commit: self.transaction_lock.block_commits(), clear: self.flush.block_changes() }
    }

    /// The end of the log, which has been told of whatever the engine has.
    pub(crate) fn log_end(&self, log: &UpdateLog) -> LogPosition {
        self.transaction_lock.between_commits(|| log.end())
    }

    pub(crate) fn note_expiry(&self, expiry: Expiry) {
        self.sweep.note_expiry(expiry);
    }

    /// The records of a checkpoint will come in this order.
    pub(crate) fn expect(&self, order: ScanOrder) {
        self.engine.begin_ordered_load(order);
    }

    /// Whether the engine keeps its records in this order.
    pub(crate) fn keeps(&self, order: Option<ScanOrder>) -> bool {
        order.is_some_and(|order| self.engine.scan_order().is_some_and(|own| own.seed == order.seed))
    }

    /// When everything is going to be removed, if that is planned.
    pub(crate) fn planned_clear(&self) -> Option<UnixSeconds> {
        self.flush.with_planned(|planned_clear| planned_clear)
    }

    /// Takes over what a checkpoint begins with, once its records are there.
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
    /// The end of the log, for an engine that has all of it so far. What else it has told comes behind it once more, up to the
    /// second position: it must be on disk before anything that stands before the mark is removed.
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
