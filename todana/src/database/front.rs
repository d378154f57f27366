//! Limits the changes that wait in memory for a checkpoint. They exist only if the engine is the
//! checkpoint of its log.

use super::Database;
use crate::DataDirectory;
use crate::checkpoint::FRONT_BYTES_MAX;
use std::sync::atomic::Ordering;
use todana_core::{CheckpointedEngine, Result};

impl Database {
    fn pending_bytes(&self) -> u64 {
        self.engine().checkpointed().map_or(0, CheckpointedEngine::pending_bytes)
    }

    /// Returns true if the last attempt to write a checkpoint failed.
    pub fn has_stuck_checkpoints(&self) -> bool {
        self.has_stuck_checkpoints.load(Ordering::Relaxed)
    }

    /// Records whether an attempt to write a checkpoint failed.
    pub(crate) fn note_checkpoint(&self, has_failed: bool) {
        self.has_stuck_checkpoints.store(has_failed, Ordering::Relaxed);
    }

    /// Returns true if more changes may wait in memory for a checkpoint.
    pub fn front_has_room(&self) -> bool {
        self.pending_bytes() <= FRONT_BYTES_MAX
    }

    /// Refuses changes, or accepts them again, depending on how many bytes wait in memory for a
    /// checkpoint. Reads are always served.
    ///
    /// Writers that can wait for a checkpoint have already done so, but not all can, and waiting
    /// does not help while checkpoints fail. Writers that write checkpoints themselves are refused
    /// only while checkpoints fail.
    pub fn guard_front(&self) {
        if let Some(engine) = self.engine().checkpointed() {
            let is_stuck = self.has_stuck_checkpoints();
            let makes_room = self.before_commit.get().is_some() && !is_stuck;
            self.refuse_changes(!makes_room && is_too_much(engine.pending_bytes(), is_stuck));
        }
    }

    /// Writes a checkpoint if too many changes wait for one.
    pub(crate) fn relieve_front(&self, directory: &DataDirectory) -> Result<()> {
        if self.front_has_room() { Ok(()) } else { directory.checkpoint(self).map(|_| ()) }
    }
}

/// Returns true if no more changes may wait for a checkpoint. `is_stuck` is true while checkpoints
/// fail.
fn is_too_much(pending: u64, is_stuck: bool) -> bool {
    pending > if is_stuck { FRONT_BYTES_MAX } else { 2 * FRONT_BYTES_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;
    use crate::open::EngineOptions;
    use crate::{CachedClock, DatabaseName, DatabaseUpkeep, OverwriteVisitor};
    use std::sync::Arc;
    use std::time::Instant;
    use todana_core::{Action, Attributes, Record};

    /// Only a server used to check the limit. In a program's own database, the waiting changes grew
    /// without bound while checkpoints failed.
    #[test]
    fn upkeep_refuses_changes_while_checkpoints_fail() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("x.tree");
        let name = DatabaseName::parse(place.to_str().unwrap()).unwrap();
        let engine = name.open_engine_at(&place, Arc::new(SystemDisk), EngineOptions::default()).unwrap();
        let database = Arc::new(Database::new(engine, Arc::new(CachedClock::new())));
        let (worker_counters, upkeep) =
            (database.worker_counters(), DatabaseUpkeep::new(Arc::clone(&database)));
        let value = vec![b'x'; 1 << 20];
        let put = |number: u32| {
            let record = Record::new(&value, Attributes::default());
            database
                .visit_record(
                    &worker_counters,
                    &number.to_be_bytes(),
                    &mut OverwriteVisitor(Action::Put(record)),
                )
                .is_ok()
        };
        for number in 0..200 {
            assert!(!database.front_has_room() || put(number));
        }
        assert!(!database.front_has_room());
        upkeep.tick(Instant::now());
        assert!(put(1000), "a checkpoint is still to come");
        database.note_checkpoint(true);
        upkeep.tick(Instant::now());
        assert!(!put(1001) && !database.takes_changes());
        database.engine().checkpointed().unwrap().checkpoint(0).unwrap();
        database.note_checkpoint(false);
        upkeep.tick(Instant::now());
        assert!(put(1002));
    }

    #[test]
    fn pending_bytes_limit_is_lower_while_checkpoints_fail() {
        let around = [FRONT_BYTES_MAX, FRONT_BYTES_MAX + 1, 2 * FRONT_BYTES_MAX, 2 * FRONT_BYTES_MAX + 1];
        assert_eq!(around.map(|pending| is_too_much(pending, true)), [false, true, true, true]);
        assert_eq!(around.map(|pending| is_too_much(pending, false)), [false, false, false, true]);
    }
}
