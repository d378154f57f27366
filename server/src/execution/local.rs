//! The databases of this process, as one worker uses them: nothing here ever waits.

use super::{Completion, Executor};
use crate::databases::awaits::WorkerDatabase;
use crate::shared::Shared;
use std::sync::Arc;
use todana::{CommitPoint, Database, WorkerCounters};
use todana_core::{Operation, Reply, ValueBuffer};
use todana_protocol::memcached::Streams;

/// Executes operations at once, and shows them to observers.
pub(crate) struct LocalExecutor {
    shared: Arc<Shared>,
    /// All databases in their order, each with this worker's counters.
    databases: Vec<(Arc<Database>, WorkerDatabase)>,
    /// The descriptor of the connection that is being served, which observers see.
    pub(crate) descriptor: i32,
}

impl LocalExecutor {
    pub(crate) fn new(shared: &Arc<Shared>) -> LocalExecutor {
        let with_counters = |served: &crate::databases::Served| {
            (Arc::clone(&served.database), WorkerDatabase::new(&served.database))
        };
        let databases = shared.databases.iter().map(with_counters).collect();
        LocalExecutor { shared: Arc::clone(shared), databases, descriptor: -1 }
    }

    /// Returns the databases with this worker's counters, in the order of the databases.
    pub(crate) fn worker_databases(&self) -> impl Iterator<Item = &WorkerDatabase> {
        self.databases.iter().map(|(_, worker_counters)| worker_counters)
    }

    /// Takes what this worker has written since the last call: numbers of databases, and the last commit of each.
    pub(crate) fn take_commits(&self) -> impl Iterator<Item = (usize, CommitPoint)> {
        self.worker_databases()
            .enumerate()
            .filter_map(|(number, worker_counters)| Some((number, worker_counters.commits.take()?)))
    }

    #[cold]
    fn execute_observed(
        &self,
        database: &Database,
        worker_counters: &WorkerCounters,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> CommitPoint {
        let mut point = CommitPoint::NONE;
        let observers = &self.shared.observation.observers;
        observers.execute_observed(database, self.descriptor, operation, reply, |reply| {
            point = database.execute(worker_counters, operation, reply);
        });
        if matches!(operation, Operation::Flush { .. }) {
            observers.send(Streams::SYSTEM, |line| line.extend_from_slice(b"flush"));
        }
        point
    }
}

impl Executor for LocalExecutor {
    #[inline]
    fn prefetch(&self, database: usize, key: &[u8]) {
        self.databases[database].0.engine().prefetch(key);
    }

    #[inline]
    fn execute(
        &mut self,
        number: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        let (database, worker_counters) = &self.databases[number];
        worker_counters.commits.note(if self.shared.observation.observers.is_active() {
            self.execute_observed(database, &worker_counters.worker_counters, operation, reply)
        } else {
            database.execute(&worker_counters.worker_counters, operation, reply)
        });
        Completion::Done
    }

    fn buffer(&self, database: usize, len: usize) -> Option<Box<dyn ValueBuffer>> {
        self.databases[database].0.buffer(len).ok()
    }

    fn room<'b>(&self, database: usize, buffer: &'b mut dyn ValueBuffer, len: usize) -> Option<&'b mut [u8]> {
        let database = &self.databases[database].0;
        // An engine without a limit of its own bounds neither what it is given nor how many give.
        if database.engine().bounded().is_none()
            && self.shared.observation.unfinished_bytes() > self.shared.memory.held_max()
        {
            return None;
        }
        database.room(buffer, len).ok()
    }
}
