//! Defines the context in which a worker executes calls: databases by name, counters and options.

use super::answers::NOT_ON_CLUSTER;
use super::counters::KyotoCounters;
use crate::databases::ServedDatabase;
use crate::execution::{Executor, LocalDatabase};
use crate::session::worker_context::WorkerContext;
use crate::shared::SharedState;
use std::sync::Arc;
use todana::Clock;
use todana_protocol::kyoto::{CallFailure, DatabaseError, DatabaseTarget, Procedure, ProcedureCall};

/// The longest answer in bytes. Kyoto Tycoon has the same limit for requests.
pub(super) const ANSWER_MAX: usize = 1 << 28;

/// The databases, counters and options of a worker's requests.
pub(super) struct CallContext {
    pub(super) shared: Arc<SharedState>,
    pub(super) worker: usize,
    /// The longest answer to the current request, in bytes.
    pub(super) answer_max: usize,
}

impl CallContext {
    pub(super) fn new(context: &WorkerContext) -> CallContext {
        CallContext { shared: Arc::clone(&context.shared), worker: context.worker, answer_max: ANSWER_MAX }
    }

    #[inline]
    pub(super) fn counters(&self) -> &KyotoCounters {
        &self.shared.observation.workers[self.worker].kyoto
    }

    /// Returns true if clients may not change any database.
    #[inline]
    pub(super) fn is_read_only(&self) -> bool {
        self.shared.options.protocols.kyoto.read_only
    }

    /// Returns true if clients may not change this database.
    pub(super) fn is_reader(&self, database: usize) -> bool {
        self.is_read_only() || self.shared.databases[database].database.is_read_only()
    }

    pub(super) fn now(&self) -> u64 {
        self.shared.clock.now().0
    }

    /// Returns the number of the database that a request names.
    #[inline]
    pub(super) fn database(&self, target: DatabaseTarget<'_>) -> Result<usize, CallFailure<'static>> {
        let databases = &self.shared.databases;
        let number = match target {
            DatabaseTarget::Index(number) => {
                usize::try_from(number).ok().filter(|&number| number < databases.len())
            }
            // If several databases have this name, the last one is used.
            DatabaseTarget::Name(name) => databases.iter().rposition(|served| is_named(served, name)),
        };
        number.ok_or(CallFailure::NoSuchDatabase)
    }

    /// Returns true if the records of this database are on other machines.
    pub(super) fn is_remote(&self, database: usize) -> bool {
        self.shared.is_proxy() || self.shared.databases[database].is_on_cluster()
    }

    /// Returns the refusal of a call that a database on a cluster cannot execute.
    pub(super) fn cluster_refusal(&self, call: &ProcedureCall<'_>) -> Option<CallFailure<'static>> {
        let database = self.database(call.target()).ok()?;
        if !self.shared.databases[database].is_on_cluster() {
            return None;
        }
        let is_bulk =
            matches!(call.procedure?, Procedure::SetBulk | Procedure::RemoveBulk | Procedure::GetBulk);
        (is_bulk && call.flag(b"atomic")).then_some(NOT_ON_CLUSTER)
    }

    /// Returns true if no record of this database expires.
    #[inline]
    pub(super) fn is_persistent(&self, database: usize) -> bool {
        self.shared.databases[database].name.tuning.persistent
    }
}

fn is_named(served: &ServedDatabase, name: &[u8]) -> bool {
    let base = served.name.path.as_deref().and_then(|path| path.file_name());
    served.name.label().as_bytes() == name || base.is_some_and(|base| base.as_encoded_bytes() == name)
}

/// Returns the place of a database in this process. A database on a cluster has no records there.
pub(super) fn place(
    context: &WorkerContext,
    database: usize,
) -> Result<&LocalDatabase, CallFailure<'static>> {
    context.executor.databases().get(database).ok_or(CallFailure::Database(DatabaseError::NotImplemented))
}

/// Returns a database of this process, for a request that is local by nature.
pub(super) fn local(
    context: &WorkerContext,
    database: usize,
) -> Result<&LocalDatabase, CallFailure<'static>> {
    context.executor.local(database).ok_or(CallFailure::Database(DatabaseError::NotImplemented))
}
