//! A database of this server as the target of Tokyo Tyrant's commands from an update log.

use todana::replication::ChangeOrigin;
use todana::tyrant::LoggedTarget;
use todana::{Database, WorkerCounters};
use todana_core::{Result, Visitor};

/// A database that receives commands from an update log.
pub(crate) struct ServedTarget<'d> {
    pub(crate) database: &'d Database,
    pub(crate) worker_counters: &'d WorkerCounters,
    /// The servers that the commands have passed.
    pub(crate) origin: ChangeOrigin,
}

impl<'d> LoggedTarget<'d> for ServedTarget<'d> {
    fn visit(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let origin = self.origin.into();
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
