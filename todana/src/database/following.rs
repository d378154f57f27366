//! A database whose changes come from a master: applies entries of the master's log, and refuses
//! changes of clients.
//!
//! Invariants: an entry has the same effect as at the master, whatever this server's clock shows. A
//! record that has expired here is therefore changed like a live one, because the master may have
//! extended its expiry in time. For the same reason, such a record is removed only when the
//! master's clock has passed its expiry in the log. In a chain, that is the clock of the first
//! master. Removals of expired records are not in the log.

use super::{Database, OverwriteVisitor};
use crate::checkpoint::{CheckpointTarget, TransferredCheckpoint};
use crate::counters::WorkerCounters;
use crate::durability::CommitPoint;
use crate::transaction::EngineView;
use crate::update_log::{LogChange, LogPosition};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana_core::{Action, Error, ErrorKind, ImageForm, Record, RecordLoad, Result, UnixSeconds};

/// The clock of the master is not limited.
const ANY_TIME: u64 = u64::MAX;

/// A command of the master may use a reading of the clock that is older by this time.
const CLOCK_MARGIN_S: u64 = 2;

/// The relation of a database to a master.
#[derive(Debug)]
pub(super) struct FollowedMaster {
    /// True if only the master may change records.
    refuses_clients: AtomicBool,
    /// True if changes are refused because another server has become the master.
    is_superseded: AtomicBool,
    /// The time at the master up to which its changes are here, in Unix seconds.
    time_s: AtomicU64,
    /// A position of this database's log. Until a checkpoint of a later state is on disk, a part of
    /// the records is only in memory. 0 if all records are on disk or in the log.
    unlogged_until: AtomicU64,
    /// True if the log that was replayed at the opening lacks changes.
    lacks_changes: AtomicBool,
}

impl Default for FollowedMaster {
    fn default() -> Self {
        FollowedMaster {
            refuses_clients: AtomicBool::new(false),
            is_superseded: AtomicBool::new(false),
            time_s: AtomicU64::new(ANY_TIME),
            unlogged_until: AtomicU64::new(0),
            lacks_changes: AtomicBool::new(false),
        }
    }
}

impl Database {
    /// Makes the database a replica, whose changes come only from a master, or ends that. Changes
    /// of clients fail while it is a replica, and expired records stay until
    /// [`note_master_time`](Self::note_master_time) shows that they have expired at the master.
    /// Waits for changes of clients that are in progress.
    pub fn follow_master(&self, follows: bool) {
        self.followed.time_s.store(if follows { 0 } else { ANY_TIME }, Ordering::Relaxed);
        self.followed.refuses_clients.store(follows, Ordering::SeqCst);
        self.fence_clients();
    }

    /// Returns true if only a master may change records.
    #[inline]
    pub fn is_replica(&self) -> bool {
        self.followed.refuses_clients.load(Ordering::Relaxed)
    }

    /// Refuses changes of clients because another server has become the master, or ends that. Waits
    /// for changes of clients that are in progress, so that all of them are in the log.
    pub fn set_superseded(&self, is_superseded: bool) {
        self.followed.is_superseded.store(is_superseded, Ordering::SeqCst);
        self.fence_clients();
    }

    /// Stops changes whose origin was checked before the flags were set. Without that, they would
    /// be in the log after its changes have been salvaged, and would be lost without a trace.
    fn fence_clients(&self) {
        let is_fenced = self.is_replica() || self.is_superseded();
        let lock = self.transaction_lock();
        lock.set_fenced(is_fenced);
        if is_fenced {
            lock.between_commits(|| self.engine.wait_for_visits());
        }
    }

    /// Returns true if changes of clients are refused because another server has become the master.
    #[inline]
    pub fn is_superseded(&self) -> bool {
        self.followed.is_superseded.load(Ordering::Relaxed)
    }

    /// Notes that all changes which the first master made before this time are here.
    pub fn note_master_time(&self, time: UnixSeconds) {
        if self.is_replica() {
            let time_s = time.0.saturating_sub(CLOCK_MARGIN_S);
            self.followed.time_s.fetch_max(time_s, Ordering::Relaxed);
        }
    }

    /// Returns the format of the buckets that the database can take over from an image, if it can.
    pub fn bucket_format(&self) -> Option<u32> {
        self.engine.imaged().map(|engine| engine.image_form().bucket_format)
    }

    /// Returns a target for the records of a master's checkpoint. `is_image` states that the part
    /// of the checkpoint that was read before is an image. The records of an image are not logged,
    /// because that would take longer than the copy.
    pub fn copy_from<'d>(
        &'d self,
        origin: u32,
        worker_counters: &'d WorkerCounters,
        is_image: bool,
    ) -> impl CheckpointTarget + use<'d> {
        CopiedRecords { database: self, origin, worker_counters, is_image }
    }

    /// Returns true while copied records are only in memory. The next checkpoint ends this, and is
    /// due at once.
    pub fn awaits_checkpoint(&self) -> bool {
        self.followed.unlogged_until.load(Ordering::Acquire) > 0
    }

    /// Notes that a checkpoint is on disk whose log begins at this position.
    pub(crate) fn note_checkpoint_start(&self, start: LogPosition) {
        let unlogged_until = &self.followed.unlogged_until;
        let until = unlogged_until.load(Ordering::Acquire);
        if until <= start.0 {
            // If records were copied again meanwhile, they are not in the checkpoint.
            let _ = unlogged_until.compare_exchange(until, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Returns true if the database was restored from a log that lacks changes: a salvage has
    /// marked them as lost, or they came with a copy of a master's records.
    pub fn lacks_changes(&self) -> bool {
        self.followed.lacks_changes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_lacking_changes(&self) {
        self.followed.lacks_changes.store(true, Ordering::Relaxed);
    }

    /// Takes over the state of the master beside its records, after all records of a checkpoint
    /// have been applied.
    pub fn adopt_checkpoint(
        &self,
        origin: u32,
        worker_counters: &WorkerCounters,
        checkpoint: &TransferredCheckpoint,
    ) -> Result<()> {
        self.versions.note_assigned(checkpoint.version);
        if checkpoint.is_image {
            self.engine.end_ordered_load();
            if let Some(log) = self.log.get() {
                // Readers of this log must copy the records, too. All records are in the engine
                // now, so a checkpoint or a copy that begins after this entry contains them.
                let end = log.append(&LogChange::Lost { len: 0 });
                self.followed.unlogged_until.store(end.0, Ordering::Release);
            }
        }
        let plan = LogChange::PlanClear { at: checkpoint.planned_clear };
        self.apply_entry(origin, worker_counters, &plan).map(|_| ())
    }

    /// Returns the latest expiry of records that may be removed now.
    pub fn removal_time(&self, now: UnixSeconds) -> UnixSeconds {
        UnixSeconds(now.0.min(self.followed.time_s.load(Ordering::Relaxed)))
    }

    /// Returns true if a change of this origin must be refused.
    #[inline]
    pub(super) fn refuses_origin(&self, origin: Option<u32>) -> bool {
        self.is_read_only || (origin.is_none() && (self.is_replica() || self.is_superseded()))
    }

    /// Fails with `Invalid` if a change of this origin must be refused.
    pub(crate) fn refuse_origin(&self, origin: Option<u32>) -> Result<()> {
        match (self.is_read_only, self.refuses_origin(origin)) {
            (true, _) => Err(super::read_only()),
            (false, true) if self.is_superseded() => Err(superseded()),
            (false, true) => Err(replica()),
            (false, false) => Ok(()),
        }
    }

    /// Applies a change from the log of a master, and logs it. `origin` is the server that made the
    /// change first. The change has the effect that it had at the master, so a change that is
    /// applied again, with all later ones, gives the same records.
    ///
    /// Fails with `Corrupt` if the entry states that changes are lost: the records must then be
    /// copied. Fails with `Invalid` if this kind of database cannot hold the record. Otherwise
    /// fails as [`visit_record`](Self::visit_record) does.
    pub fn apply_entry(
        &self,
        origin: u32,
        worker_counters: &WorkerCounters,
        change: &LogChange<'_>,
    ) -> Result<CommitPoint> {
        match *change {
            LogChange::Put { key, record } => {
                self.expect_storable(key, &record)?;
                self.versions.note_assigned(record.attributes.version);
                self.note_expiry(record.attributes.expiry);
                self.overwrite(origin, worker_counters, key, Action::Put(record))
            }
            LogChange::Retag { key, attributes } => {
                self.versions.note_assigned(attributes.version);
                self.note_expiry(attributes.expiry);
                self.overwrite(origin, worker_counters, key, Action::Retag(attributes))
            }
            LogChange::Remove { key } => self.overwrite(origin, worker_counters, key, Action::Remove),
            LogChange::Transaction(changes) => {
                let transaction = self.begin_from(origin, worker_counters)?;
                for change in changes.iter() {
                    let (key, action) = match change {
                        LogChange::Put { key, record } => {
                            self.expect_storable(key, &record)?;
                            self.versions.note_assigned(record.attributes.version);
                            (key, Action::Put(record))
                        }
                        LogChange::Remove { key } => (key, Action::Remove),
                        _ => continue,
                    };
                    transaction.visit_record(key, &mut OverwriteVisitor(action))?;
                }
                transaction.commit_without_wait()
            }
            LogChange::Clear => self.clear_from(origin, worker_counters),
            LogChange::PlanClear { at } => {
                // The clear itself comes as an entry when the master has executed it. The plan is
                // kept, because this server may become the master before that.
                if self.is_replica() && self.engine.durable().is_none() {
                    let log = self.log.get();
                    self.flush.adopt(at, || {
                        log.map(|log| log.append_from(Some(origin), change));
                    });
                }
                Ok(CommitPoint::NONE)
            }
            // The caller takes over the epoch, and the time of a mark if it is that of the first
            // master.
            LogChange::Epoch(_) | LogChange::Mark { .. } => Ok(CommitPoint::NONE),
            LogChange::Lost { .. } => {
                Err(Error::new(ErrorKind::Corrupt, "update log: changes are lost, as marked by a repair"))
            }
        }
    }

    /// Applies a change without logging it. If there is no room, removes expired records.
    fn replay_with_room(&self, change: &LogChange<'_>) -> Result<()> {
        loop {
            let removed = self.sweep.removed_total();
            match self.replay(change) {
                Err(error) if error.is_out_of_memory() && self.relieve(self.clock.now(), removed) => {}
                outcome => return outcome,
            }
        }
    }

    fn overwrite(
        &self,
        origin: u32,
        worker_counters: &WorkerCounters,
        key: &[u8],
        action: Action<'_>,
    ) -> Result<CommitPoint> {
        self.refuse_if_unwritable(worker_counters)?;
        let commit = Cell::default();
        let view = EngineView { origin: Some(origin), ..self.space(&commit) };
        loop {
            let removed = self.sweep.removed_total();
            // At this time no record has expired.
            let visited =
                self.visit(view, worker_counters, key, UnixSeconds(0), &mut OverwriteVisitor(action));
            match visited {
                Err(error) if error.is_out_of_memory() && self.relieve(self.clock.now(), removed) => {}
                outcome => return outcome.map(|_| commit.get()),
            }
        }
    }
}

/// Stores the records of a master's checkpoint.
struct CopiedRecords<'d> {
    database: &'d Database,
    origin: u32,
    worker_counters: &'d WorkerCounters,
    is_image: bool,
}

impl CopiedRecords<'_> {
    fn compress_for(&self, next_len: usize) {
        // The length of a checkpoint is unknown until its end.
        let load = RecordLoad { all_bytes: u64::MAX, next_bytes: next_len as u64 };
        self.database.compress_for_load(load);
    }
}

impl CheckpointTarget for CopiedRecords<'_> {
    fn begin(&mut self, form: Option<&ImageForm>) -> Result<()> {
        self.is_image = form.is_some();
        form.iter().for_each(|form| self.database.begin_image_load(form));
        Ok(())
    }

    fn put(&mut self, key: &[u8], record: Record<'_>) -> Result<()> {
        self.compress_for(record.value.len());
        let put = LogChange::Put { key, record };
        if self.is_image {
            return self.database.replay_with_room(&put);
        }
        self.database.apply_entry(self.origin, self.worker_counters, &put).map(|_| ())
    }

    fn put_buckets(&mut self, form: &ImageForm, block: &[u8]) -> Result<u64> {
        self.compress_for(block.len());
        self.database.adopt_buckets(form, block, &mut |key, record| {
            self.database.replay_with_room(&LogChange::Put { key, record })
        })
    }
}

fn superseded() -> Error {
    Error::read_only("another server has become the master; send changes to it")
}

pub(crate) fn replica() -> Error {
    Error::read_only("this server is a replica; send changes to its master")
}
