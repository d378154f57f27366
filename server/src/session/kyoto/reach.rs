//! A database, as one worker gets at it.

use crate::databases::awaits::WorkerDatabase;
use crate::shared::Shared;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use todana::{CommitPoint, Records, ScanDirection, Transaction, WorkerCounters};
use todana_core::{Operation, Record, Reply, Result, ScanPosition, Visitor};

/// A database of the server's, with the worker's counters.
#[derive(Clone)]
pub(crate) struct Reach {
    shared: Arc<Shared>,
    number: usize,
    worker_counters: WorkerDatabase,
}

impl Reach {
    pub(crate) fn new(shared: &Arc<Shared>, number: usize, worker_counters: WorkerDatabase) -> Reach {
        Reach { shared: Arc::clone(shared), number, worker_counters }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn served(&self) -> &crate::databases::Served {
        &self.shared.databases[self.number]
    }

    /// Returns true if the database was opened for reading.
    pub(crate) fn is_read_only(&self) -> bool {
        self.served().database.is_read_only()
    }

    /// Whether clients may remove all records at once.
    pub(crate) fn flush_allowed(&self) -> bool {
        self.shared.options.limits.flush_allowed
    }

    pub(crate) fn worker_counters(&self) -> &WorkerCounters {
        &self.worker_counters.worker_counters
    }

    /// Returns what has been written here since the last call, and has to be durable before it is answered.
    pub(crate) fn take_commit(&self) -> Option<CommitPoint> {
        self.worker_counters.commits.take()
    }

    /// Removes all records.
    pub(crate) fn clear(&self) -> Result<()> {
        self.worker_counters.commits.note(self.served().database.clear(self.worker_counters())?);
        Ok(())
    }

    /// Makes all changes of a transaction: the answer waits for the disk, not the worker.
    pub(crate) fn commit(&self, transaction: Transaction<'_>) -> Result<()> {
        self.worker_counters.commits.note(transaction.commit_without_wait()?);
        Ok(())
    }
}

impl Records for Reach {
    #[inline]
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        self.worker_counters.commits.note(self.served().database.execute(
            self.worker_counters(),
            command,
            reply,
        ));
        Ok(())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.worker_counters.commits.note(self.served().database.visit_record(
            self.worker_counters(),
            key,
            visitor,
        )?);
        Ok(())
    }

    fn is_ordered(&self) -> bool {
        self.served().database.engine().ordered().is_some()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.served().database.scan(from, see)
    }

    fn walk(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.served().database.walk(heading, from, see)
    }
}
