//! The databases of this process, as one worker uses them: nothing here ever waits.

use super::{Completion, Executor};
use crate::shared::Shared;
use std::sync::Arc;
use todana::{Database, Lane, Limiter};
use todana_core::{Arithmetic, Buffer, Operation, Reply, Store};
use todana_protocol::memcached::Streams;

/// Executes operations at once, and shows them to observers.
pub(crate) struct LocalExecutor {
    shared: Arc<Shared>,
    /// All databases in their order, each with this worker's lane.
    databases: Vec<(Arc<Database>, Arc<Lane>)>,
    /// The descriptor of the connection that is being served, which observers see.
    pub(crate) descriptor: i32,
}

impl LocalExecutor {
    pub(crate) fn new(shared: &Arc<Shared>) -> LocalExecutor {
        let with_lane =
            |served: &crate::databases::Served| (Arc::clone(&served.database), served.database.lane());
        let databases = shared.databases.iter().map(with_lane).collect();
        LocalExecutor { shared: Arc::clone(shared), databases, descriptor: -1 }
    }

    /// Returns this worker's lanes, in the order of the databases.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.databases.iter().map(|(_, lane)| lane)
    }

    #[cold]
    fn execute_observed(
        &self,
        database: &Database,
        lane: &Lane,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) {
        let observers = &self.shared.observation.observers;
        observers.look_on(database, self.descriptor, operation, reply, |reply| {
            database.execute(lane, operation, reply);
        });
        if matches!(operation, Operation::Flush { .. }) {
            observers.tell(Streams::SYSTEM, |line| line.extend_from_slice(b"flush"));
        }
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
        let (database, lane) = &self.databases[number];
        if self.shared.observation.observers.are_there() {
            self.execute_observed(database, lane, operation, reply);
        } else {
            database.execute(lane, operation, reply);
        }
        if let Some(limiter) = &self.shared.databases[number].limiter {
            limit(limiter, database, lane, operation);
        }
        Completion::Done
    }

    fn buffer(&self, database: usize, len: usize) -> Option<Box<dyn Buffer>> {
        self.databases[database].0.buffer(len).ok()
    }

    fn room<'b>(&self, database: usize, buffer: &'b mut dyn Buffer, len: usize) -> Option<&'b mut [u8]> {
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

/// Evicts other records if this write exceeded the limit of the database.
#[cold]
fn limit(limiter: &Limiter, database: &Database, lane: &Lane, operation: &Operation<'_>) {
    if let Operation::Store(Store { key, .. }) | Operation::Arithmetic(Arithmetic { key, .. }) = operation {
        // Where nothing can be removed, the next change is refused.
        let _ = limiter.enforce(database, lane, key);
    }
}
