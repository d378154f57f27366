//! The interface of a database for logs and checkpoints: returns its state, and restores that
//! state.

use super::{Database, OverwriteVisitor};
use crate::flush;
use crate::update_log::{LogChange, LogPosition, UpdateLog};
use parking_lot::RwLockReadGuard;
use todana_core::{
    Action, Attributes, Expiry, ImageForm, Record, RecordLoad, Result, ScanOrder, UnixSeconds,
};
use todana_engine::read_bucket_block;

impl Database {
    /// Applies a change from a log or a checkpoint without logging it. An expired record is stored
    /// too, because a later entry may show that it was touched in time. Fails with `Full` if there
    /// is no room and no record may be evicted.
    pub(crate) fn replay(&self, change: &LogChange<'_>) -> Result<()> {
        match *change {
            LogChange::Put { key, record } => {
                if record.attributes.has_value_list {
                    self.expect_list(key, &record)?;
                }
                self.versions.note_assigned(record.attributes.version);
                self.sweep.note_expiry(record.attributes.expiry);
                self.engine.visit(key, &mut OverwriteVisitor(Action::Put(record)))
            }
            LogChange::Retag { key, attributes } => {
                self.versions.note_assigned(attributes.version);
                self.sweep.note_expiry(attributes.expiry);
                self.engine.visit(key, &mut OverwriteVisitor(Action::Retag(attributes)))
            }
            LogChange::Remove { key } => self.engine.visit(key, &mut OverwriteVisitor(Action::Remove)),
            LogChange::Clear => {
                self.flush.restore(None);
                self.engine.clear(&mut || ())
            }
            LogChange::PlanClear { at } => {
                self.flush.restore(at);
                Ok(())
            }
            LogChange::Transaction(changes) => changes.iter().try_for_each(|change| self.replay(&change)),
            LogChange::Mark { .. } | LogChange::Epoch(_) | LogChange::Lost { .. } => Ok(()),
        }
    }

    /// Fails with `Invalid` if the database cannot hold several values of a key. A hash in memory
    /// keeps them, because the data directory of a tree in memory can be opened as that of a hash.
    #[cold]
    fn expect_list(&self, key: &[u8], record: &Record<'_>) -> Result<()> {
        let is_hash_in_memory = self.engine.durable().is_none()
            && self.engine.numbered().is_none()
            && self.engine.indexed().is_none();
        if is_hash_in_memory { Ok(()) } else { self.expect_storable(key, record) }
    }

    /// Returns the number of openings that the highest known version contains.
    pub(crate) fn openings_known(&self) -> u32 {
        (self.versions.highest() >> 32) as u32
    }

    /// Attaches the log, to which every change is appended from now on. A database has at most one
    /// log. `openings` is the number of times that the database has been opened.
    pub(crate) fn attach(&self, log: UpdateLog, openings: u32) {
        self.versions.skip_lost(openings);
        let is_first = self.log.set(log).is_ok();
        debug_assert!(is_first, "a second log");
    }

    /// Returns the state that the header of a checkpoint contains: the end of the log, the clear
    /// that is planned at that position, and the highest version. Returns `None` without a log.
    pub(crate) fn checkpoint_start(&self) -> Option<CheckpointStart> {
        let log = self.log()?;
        // This excludes two states: a planned clear that is not logged yet, and a clear that is
        // logged but not yet executed.
        self.flush.with_planned(|planned_clear| {
            let end = log.end();
            Some(CheckpointStart { end, planned_clear, version: self.versions.highest() })
        })
    }

    /// Blocks commits and clears until the returned value is dropped. Must be called before any
    /// lock of the engine is taken, because commits and clears take their locks in this order.
    pub(crate) fn block_commits(&self) -> BlockedCommits<'_> {
        BlockedCommits {
            _no_commit: self.transaction_lock.block_commits(),
            clear: self.flush.block_changes(),
        }
    }

    /// Returns the end of the log. The engine contains all changes before it.
    pub(crate) fn log_end(&self, log: &UpdateLog) -> LogPosition {
        self.transaction_lock.between_commits(|| log.end())
    }

    pub(crate) fn note_expiry(&self, expiry: Expiry) {
        self.sweep.note_expiry(expiry);
    }

    /// Notifies the engine of the order in which a checkpoint's records will be stored.
    pub(crate) fn expect(&self, order: ScanOrder) {
        self.engine.begin_ordered_load(order);
    }

    /// Returns true if the engine keeps its records in this order.
    pub(crate) fn keeps(&self, order: Option<ScanOrder>) -> bool {
        order.is_some_and(|order| self.engine.scan_order().is_some_and(|own| own.seed == order.seed))
    }

    /// Lets the engine compress its records before the next part of a load, if they would not fit
    /// otherwise. Every load must do this, because the records may have been in memory only in
    /// their compressed form.
    pub fn compress_for_load(&self, load: RecordLoad) {
        if let Some(engine) = self.engine.bounded() {
            engine.compress_for_load(load);
        }
    }

    /// Prepares the empty engine for the buckets of an image.
    pub(crate) fn begin_image_load(&self, form: &ImageForm) {
        if let Some(engine) = self.engine.imaged() {
            engine.begin_image_load(form);
        }
    }

    /// Adds the records of a block of an image without logging them. If the engine cannot take over
    /// the buckets, the records are passed to `put`. Returns the number of all records. Fails with
    /// `Corrupt` if the block is not intact, and with the error of `put`.
    pub(crate) fn adopt_buckets(
        &self,
        form: &ImageForm,
        block: &[u8],
        put: &mut dyn FnMut(&[u8], Record<'_>) -> Result<()>,
    ) -> Result<u64> {
        let Some(engine) = self.engine.imaged() else {
            return read_bucket_block(form, block, put);
        };
        let mut note = |attributes: &Attributes| {
            self.versions.note_assigned(attributes.version);
            self.sweep.note_expiry(attributes.expiry);
        };
        engine.adopt_buckets(form, block, &mut note, put)
    }

    /// Returns the time of a planned clear.
    pub(crate) fn planned_clear(&self) -> Option<UnixSeconds> {
        self.flush.with_planned(|planned_clear| planned_clear)
    }

    /// Sets the state from the header of a checkpoint, after the checkpoint's records were
    /// restored.
    pub(crate) fn resume(&self, planned_clear: Option<UnixSeconds>, version: u64) {
        self.flush.restore(planned_clear);
        self.versions.note_assigned(version);
    }
}

/// See [`Database::block_commits`].
pub(crate) struct BlockedCommits<'d> {
    _no_commit: RwLockReadGuard<'d, ()>,
    clear: flush::FlushGuard<'d>,
}

impl BlockedCommits<'_> {
    /// Returns the tree mark: the end of the log, whose changes are all in the engine. If a clear
    /// is planned, it is logged again after the mark. The second position is the end of that entry,
    /// which must be on disk before any log before the mark is removed.
    pub(crate) fn mark(&self, log: &UpdateLog) -> (LogPosition, LogPosition) {
        let (mark, at) = (log.end(), self.clear.planned());
        let told = at.map_or(mark, |_| log.append(&LogChange::PlanClear { at }));
        (mark, told)
    }
}

/// See [`Database::checkpoint_start`].
pub(crate) struct CheckpointStart {
    pub(crate) end: LogPosition,
    pub(crate) planned_clear: Option<UnixSeconds>,
    pub(crate) version: u64,
}
