//! Checkpoints: those of the inner engine, cut between visits of rows.

use super::TableEngine;
use std::path::Path;
use todana_core::{CheckpointedEngine, Error, Result};

impl TableEngine {
    fn files(&self) -> &dyn CheckpointedEngine {
        self.inner.checkpointed().expect("the table offers checkpoints only if its engine does")
    }
}

impl CheckpointedEngine for TableEngine {
    fn log_position(&self) -> u64 {
        self.files().log_position()
    }

    fn bind_to_log(&self, database_id: [u8; 16]) -> Result<()> {
        self.files().bind_to_log(database_id)
    }

    fn pending_bytes(&self) -> u64 {
        self.files().pending_bytes()
    }

    fn is_due(&self) -> bool {
        self.files().is_due()
    }

    fn checkpoint_at(
        &self,
        cut: &mut dyn FnMut() -> u64,
        ready: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        // No visit is between a row and its entries until the cut has been made.
        let mut between_visits = Some(self.indexes.write());
        self.save_totals()?;
        let mut cut = || {
            let position = cut();
            between_visits.take();
            position
        };
        self.files().checkpoint_at(&mut cut, ready)
    }

    fn damaged_records(&self) -> Option<(u64, Error)> {
        self.files().damaged_records()
    }

    fn file_bytes(&self) -> u64 {
        self.files().file_bytes()
    }

    fn copy(&self, directory: &Path) -> Result<u64> {
        self.files().copy(directory)
    }
}
