//! Changes that wait in memory for a checkpoint, of an engine that is its log's checkpoint: how many there may be.

use super::Database;
use crate::DataDirectory;
use crate::checkpoint::FRONT_BYTES_MAX;
use std::sync::atomic::Ordering;
use todana_core::{Checkpointed, Result};

impl Database {
    fn pending_bytes(&self) -> u64 {
        self.engine().checkpointed().map_or(0, Checkpointed::pending_bytes)
    }

    /// Returns true if the last checkpoint that was tried has failed.
    pub fn has_stuck_checkpoints(&self) -> bool {
        self.has_stuck_checkpoints.load(Ordering::Relaxed)
    }

    /// Notes whether a checkpoint could be made.
    pub(crate) fn note_checkpoint(&self, has_failed: bool) {
        self.has_stuck_checkpoints.store(has_failed, Ordering::Relaxed);
    }

    /// Returns true if changes may come where they wait in memory for a checkpoint.
    pub fn front_has_room(&self) -> bool {
        self.pending_bytes() <= FRONT_BYTES_MAX
    }

    /// Has the database refuse changes, or take them again, by what waits in memory for a checkpoint. Reads go on. Writers that can wait
    /// for room have been asked to before; not all can, and none comes while checkpoints fail.
    pub fn guard_front(&self) {
        if let Some(engine) = self.engine().checkpointed() {
            self.refuse_changes(is_too_much(engine.pending_bytes(), self.has_stuck_checkpoints()));
        }
    }

    /// Makes the checkpoint that too many changes wait for.
    pub(crate) fn relieve_front(&self, directory: &DataDirectory) -> Result<()> {
        if self.front_has_room() { Ok(()) } else { directory.checkpoint(self).map(|_| ()) }
    }
}

/// Returns true if no more may come to what waits for a checkpoint; `is_stuck`: none can be made.
fn is_too_much(pending: u64, is_stuck: bool) -> bool {
    pending > if is_stuck { FRONT_BYTES_MAX } else { 2 * FRONT_BYTES_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_checkpoint_is_bounded_and_sooner_when_none_can_be_made() {
        let around = [FRONT_BYTES_MAX, FRONT_BYTES_MAX + 1, 2 * FRONT_BYTES_MAX, 2 * FRONT_BYTES_MAX + 1];
        assert_eq!(around.map(|pending| is_too_much(pending, true)), [false, true, true, true]);
        assert_eq!(around.map(|pending| is_too_much(pending, false)), [false, false, false, true]);
    }
}
