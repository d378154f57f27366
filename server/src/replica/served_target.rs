//! A database of this server as the target of Tokyo Tyrant's commands from an update log.

use todana::replication::ChangeOrigin;
use todana::table::new_row_number_by;
use todana::tyrant::LoggedTarget;
use todana::{Database, WorkerCounters};
use todana_core::{Error, ErrorKind, NumberedEngine, Result, Visitor};

/// A database that receives commands from an update log.
pub(crate) struct ServedTarget<'d> {
    pub(crate) database: &'d Database,
    pub(crate) worker_counters: &'d WorkerCounters,
    /// The servers that the commands have passed.
    pub(crate) origin: ChangeOrigin,
}

impl LoggedTarget for ServedTarget<'_> {
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

    fn is_table(&self) -> bool {
        self.database.engine().indexed().is_some()
    }

    fn new_row_number(&mut self) -> Result<u64> {
        let no_table = || Error::new(ErrorKind::Invalid, "the database is no table");
        let indexed = self.database.engine().indexed().ok_or_else(no_table)?;
        new_row_number_by(indexed, |key, visitor| self.visit(key, visitor))
    }

    fn width(&self) -> Option<usize> {
        self.database.engine().numbered().map(NumberedEngine::width)
    }
}
