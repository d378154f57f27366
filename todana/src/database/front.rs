//! The limit of changes that wait in memory for a checkpoint, for an engine that is the checkpoint
//! of its log.

use super::Database;
use crate::DataDirectory;
use crate::checkpoint::FRONT_BYTES_MAX;
use std::sync::atomic::Ordering;
use todana_core::{CheckpointedEngine, Result};

impl Database {
    fn pending_bytes(&self) -> u64 {
        self.engine().checkpointed().map_or(0, CheckpointedEngine::pending_bytes)
    }

    /// Returns true if the last attempt of a checkpoint failed.
    pub fn has_stuck_checkpoints(&self) -> bool {
        self.has_stuck_checkpoints.load(Ordering::Relaxed)
    }

    /// Records the outcome of a checkpoint.
    pub(crate) fn note_checkpoint(&self, has_failed: bool) {
        self.has_stuck_checkpoints.store(has_failed, Ordering::Relaxed);
    }

    /// Returns true if there is room for changes that wait in memory for a checkpoint.
    pub fn front_has_room(&self) -> bool {
        self.pending_bytes() <= FRONT_BYTES_MAX
    }

    /// Refuses changes, or takes them again, according to the bytes that wait in memory for a
    /// checkpoint. Reads go on. Writers that can wait for room have waited before, but not all can,
    /// and there is no room while checkpoints fail. Writers that make checkpoints themselves are
    /// refused only then.
    pub fn guard_front(&self) {
        if let Some(engine) = self.engine().checkpointed() {
            let is_stuck = self.has_stuck_checkpoints();
            let makes_room = self.before_commit.get().is_some() && !is_stuck;
            self.refuse_changes(!makes_room && is_too_much(engine.pending_bytes(), is_stuck));
        }
    }

    /// Makes a checkpoint if too many changes wait for one.
    pub(crate) fn relieve_front(&self, directory: &DataDirectory) -> Result<()> {
        if self.front_has_room() { Ok(()) } else { directory.checkpoint(self).map(|_| ()) }
    }
}

/// Returns true if no more changes may wait for a checkpoint. `is_stuck`: checkpoints fail.
fn is_too_much(pending: u64, is_stuck: bool) -> bool {
    pending > if is_stuck { FRONT_BYTES_MAX } else { 2 * FRONT_BYTES_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;
    use crate::open::EngineOptions;
    use crate::{CachedClock, Name, Overwrite, Upkeep};
    use std::sync::Arc;
    use std::time::Instant;
    use todana_core::{Action, Attributes, Record};

    /// Only a server checked the limit. In a program's own database, the waiting memory grew
    /// without bound while checkpoints failed.
    #[test]
    fn upkeep_refuses_changes_while_no_checkpoint_can_be_made_for_what_waits() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("x.tree");
        let name = Name::parse(place.to_str().unwrap()).unwrap();
        let engine = name.open_engine_at(&place, Arc::new(SystemDisk), EngineOptions::default()).unwrap();
        let database = Arc::new(Database::new(engine, Arc::new(CachedClock::new())));
        let (worker_counters, upkeep) = (database.worker_counters(), Upkeep::new(Arc::clone(&database)));
        let value = vec![b'x'; 1 << 20];
        let put = |number: u32| {
            let record = Record::new(&value, Attributes::default());
            database
                .visit_record(&worker_counters, &number.to_be_bytes(), &mut Overwrite(Action::Put(record)))
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
    fn what_waits_for_a_checkpoint_is_bounded_and_sooner_when_none_can_be_made() {
        let around = [FRONT_BYTES_MAX, FRONT_BYTES_MAX + 1, 2 * FRONT_BYTES_MAX, 2 * FRONT_BYTES_MAX + 1];
        assert_eq!(around.map(|pending| is_too_much(pending, true)), [false, true, true, true]);
        assert_eq!(around.map(|pending| is_too_much(pending, false)), [false, false, false, true]);
    }
}
