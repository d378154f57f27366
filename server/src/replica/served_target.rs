//! A database of this server as the target of Tokyo Tyrant's commands from an update log.

use todana::replication::{ChangeOrigin, UndoLog};
use todana::tyrant::LoggedTarget;
use todana::{Database, WorkerCounters};
use todana_core::{Result, Visitor};

/// A database that receives commands from an update log.
pub(crate) struct ServedTarget<'d> {
    pub(crate) database: &'d Database,
    pub(crate) worker_counters: &'d WorkerCounters,
    /// The servers that the commands have passed.
    pub(crate) origin: ChangeOrigin,
    /// Keeps the former records, if the commands may be executed again after a crash.
    pub(crate) undo: Option<&'d mut UndoLog>,
}

impl<'d> LoggedTarget<'d> for ServedTarget<'d> {
    fn visit(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let origin = self.origin.into();
        // A record that does not depend on the former one becomes the same again.
        let depends = !visitor.overwrites() || self.database.holds_value_lists();
        if depends && let Some(undo) = &mut self.undo {
            undo.keep(self.database, origin, key)?;
        }
        self.database.visit_record_from(origin, self.worker_counters, key, visitor).map(|_| ())
    }

    fn clear(&mut self) -> Result<()> {
        self.database.clear_from(self.origin.into(), self.worker_counters).map(|_| ())
    }

    fn sync(&mut self) -> Result<()> {
        self.database.sync()
    }

    fn database(&self) -> Option<&'d Database> {
        Some(self.database)
    }
}
