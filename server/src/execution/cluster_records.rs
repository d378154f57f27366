//! Defines the records of a database on a cluster, for background jobs, which may wait for the
//! cluster.

use crate::shared::SharedState;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use todana::{Records, ScanDirection};
use todana_core::{Error, ErrorKind, Operation, Record, Reply, Result, ScanPosition, Visitor};
use todana_remote::RemoteDatabase;

/// The records of a database on a cluster.
#[derive(Clone)]
pub(crate) struct ClusterRecords {
    shared: Arc<SharedState>,
    number: usize,
}

impl ClusterRecords {
    /// Returns the records of the database with this number; `None` if it is not on a cluster.
    pub(crate) fn of(shared: &Arc<SharedState>, number: usize) -> Option<ClusterRecords> {
        let is_there = shared.databases.get(number)?.is_on_cluster();
        is_there.then(|| ClusterRecords { shared: Arc::clone(shared), number })
    }

    fn remote(&self) -> Result<&RemoteDatabase> {
        let remote = self.shared.databases[self.number].remote();
        remote.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the cluster is not connected"))
    }
}

impl Records for ClusterRecords {
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        self.remote()?.execute(command, reply)
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.remote()?.visit(key, visitor)
    }

    fn is_ordered(&self) -> bool {
        self.remote().is_ok_and(Records::is_ordered)
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.remote()?.scan(from, see)
    }

    fn walk(
        &self,
        direction: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.remote()?.walk(direction, from, see)
    }
}
