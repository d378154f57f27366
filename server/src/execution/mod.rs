//! Executors, which execute the operations of sessions.
//!
//! ```text
//! local     the databases of this process; gets of records that are only on disk are pending
//! cluster_records  databases on clusters, for background jobs
//! remote    databases on clusters, beside those of this process (feature `cassandra`)
//! routed    the servers of a proxy: keeps operations until `session::proxy` has sent them
//! deferred  the same databases from another thread, in tests only: every reply is pending
//! ```
//!
//! An executor that has to wait for another machine, or for the disk, returns
//! [`Completion::Pending`]. The session then waits with that ticket, and takes the reply once the
//! ticket is ready (`session::pending_replies`). An operation is never executed a second time.
//!
//! Some requests need the database itself and not operations on records: cursors, transactions,
//! scripts, searches through all keys, queues, dumps and replication. They are local by nature, and
//! reach the database only through [`Executor::databases`]. Not here: the form of requests
//! (`session`), and the effect of operations on records (`todana`).

#[cfg(feature = "cassandra")]
mod cluster_records;
#[cfg(test)]
mod deferred;
mod local;
mod parked_gets;
#[cfg(feature = "cassandra")]
mod remote;
mod routed;

#[cfg(feature = "cassandra")]
pub(crate) use cluster_records::ClusterRecords;
#[cfg(test)]
pub(crate) use deferred::DeferredExecutor;
pub(crate) use local::{LocalDatabase, LocalExecutor};
#[cfg(feature = "cassandra")]
pub(crate) use remote::RemoteExecutor;
pub(crate) use routed::{OPERATIONS_MAX, RoutedExecutor, RoutedOperation};

#[cfg(feature = "cassandra")]
use crate::databases::ServedDatabase;
use crate::observation::slow_requests::FirstRequest;
use crate::session::wake::WakeTicket;
use crate::shared::SharedState;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use todana::CommitPoint;
use todana_core::{Operation, Reply, ValueBuffer};
use todana_engine::PendingReads;

/// Executes operations on databases, which are named by their numbers.
pub(crate) trait Executor {
    /// Announces that these records will be needed soon. `database` may be a number that no
    /// database has.
    fn prefetch_all(&self, database: usize, keys: &[&[u8]]);

    /// Executes an operation and passes its reply to `reply`, unless the reply is pending. Of the
    /// operations of one request, either all replies are pending or none is, except for refused
    /// operations.
    fn execute(
        &mut self,
        database: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion;

    /// Does the same for the only operation of a request. Its reply may be known at once although
    /// those of others are pending, or the reverse.
    #[inline]
    fn execute_alone(
        &mut self,
        database: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        self.execute(database, operation, reply)
    }

    /// Returns true if the operations of a connection's later requests may begin before the reply
    /// to an earlier one has arrived.
    fn runs_ahead(&self, _database: usize) -> bool {
        false
    }

    /// Ends a turn of the worker: begins the operations that have been collected in it.
    fn end_turn(&mut self) {}

    /// Passes the reply of a pending operation, whose ticket is ready, to `reply`.
    fn take_reply(&mut self, _ticket: WakeTicket, _reply: &mut dyn FnMut(Reply<'_>)) {}

    /// Drops the reply of a pending operation, because its connection has closed.
    fn abandon(&mut self, _ticket: WakeTicket) {}

    /// Returns memory for a long value. Returns `None` if there is not enough memory.
    fn buffer(&self, database: usize, len: usize) -> Option<Box<dyn ValueBuffer>>;

    /// Returns the next part of the memory of `buffer` to write to, of up to `len` bytes. Returns
    /// `None` if there is not enough memory for that part.
    fn room<'b>(&self, database: usize, buffer: &'b mut dyn ValueBuffer, len: usize) -> Option<&'b mut [u8]>;

    /// Returns the databases of this process in the order of their numbers. The list is empty if
    /// the databases are elsewhere. A database on a cluster has a place in it, but no records.
    fn databases(&self) -> &[LocalDatabase];

    /// Returns a database of this process, for a request that is local by nature.
    fn local(&self, number: usize) -> Option<&LocalDatabase> {
        self.databases().get(number)
    }

    /// Takes the writes to the databases of this process since the previous call: the number of
    /// each changed database, and its last commit.
    fn take_commits(&self) -> impl Iterator<Item = (usize, CommitPoint)> {
        self.databases().iter().filter_map(|local| Some((local.number(), local.take_commit()?)))
    }
}

/// The progress of an operation that was passed to an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The reply has been passed to the caller.
    Done,
    /// The reply can be taken once this ticket is ready.
    Pending(WakeTicket),
}

/// The executor of a worker. It is an enum, so that the hot path makes no dynamic call.
pub(crate) enum AnyExecutor {
    Local(LocalExecutor),
    Routed(RoutedExecutor),
    #[cfg(feature = "cassandra")]
    Remote(RemoteExecutor),
    #[cfg(test)]
    Deferred(DeferredExecutor),
}

/// Calls a method of the executor in any variant.
macro_rules! dispatch {
    ($any:expr, $executor:ident => $call:expr) => {
        match $any {
            AnyExecutor::Local($executor) => $call,
            AnyExecutor::Routed($executor) => $call,
            #[cfg(feature = "cassandra")]
            AnyExecutor::Remote($executor) => $call,
            #[cfg(test)]
            AnyExecutor::Deferred($executor) => $call,
        }
    };
}

impl AnyExecutor {
    /// Creates the executor of a worker.
    pub(crate) fn new(shared: &Arc<SharedState>, worker: usize) -> AnyExecutor {
        if shared.proxy.is_some() {
            return AnyExecutor::Routed(RoutedExecutor::new(shared, worker));
        }
        let local = LocalExecutor::new(shared, worker);
        #[cfg(test)]
        if shared.options.defers_replies {
            return AnyExecutor::Deferred(DeferredExecutor::new(shared, worker, local));
        }
        #[cfg(feature = "cassandra")]
        if shared.databases.iter().any(ServedDatabase::is_on_cluster) {
            return AnyExecutor::Remote(RemoteExecutor::new(shared, worker, local));
        }
        AnyExecutor::Local(local)
    }

    /// Returns a descriptor that becomes readable when records have been read from the disk; `None`
    /// if the executor keeps no gets meanwhile. A worker must wait for it from its start on.
    pub(crate) fn reads_descriptor(&self) -> io::Result<Option<RawFd>> {
        match self {
            AnyExecutor::Local(_) => PendingReads::descriptor().map(Some),
            _ => Ok(None),
        }
    }

    /// Starts the reads from the disk that were added. Returns the tickets of the gets whose
    /// records have been read.
    pub(crate) fn take_read(&mut self) -> Vec<WakeTicket> {
        match self {
            AnyExecutor::Local(local) => local.take_read(),
            _ => Vec::new(),
        }
    }

    /// Returns the first request of this turn for a database of this process.
    #[inline]
    pub(crate) fn first_request(&mut self) -> Option<&mut FirstRequest> {
        match self {
            AnyExecutor::Local(local) => Some(&mut local.first),
            _ => None,
        }
    }
}

impl Executor for AnyExecutor {
    #[inline]
    fn prefetch_all(&self, database: usize, keys: &[&[u8]]) {
        dispatch!(self, executor => executor.prefetch_all(database, keys));
    }

    #[inline]
    fn execute(
        &mut self,
        database: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        dispatch!(self, executor => executor.execute(database, operation, reply))
    }

    #[inline]
    fn execute_alone(
        &mut self,
        database: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        dispatch!(self, executor => executor.execute_alone(database, operation, reply))
    }

    fn runs_ahead(&self, database: usize) -> bool {
        dispatch!(self, executor => executor.runs_ahead(database))
    }

    #[inline]
    fn end_turn(&mut self) {
        dispatch!(self, executor => executor.end_turn());
    }

    fn take_reply(&mut self, ticket: WakeTicket, reply: &mut dyn FnMut(Reply<'_>)) {
        dispatch!(self, executor => executor.take_reply(ticket, reply));
    }

    fn abandon(&mut self, ticket: WakeTicket) {
        dispatch!(self, executor => executor.abandon(ticket));
    }

    fn buffer(&self, database: usize, len: usize) -> Option<Box<dyn ValueBuffer>> {
        dispatch!(self, executor => executor.buffer(database, len))
    }

    fn room<'b>(&self, database: usize, buffer: &'b mut dyn ValueBuffer, len: usize) -> Option<&'b mut [u8]> {
        dispatch!(self, executor => executor.room(database, buffer, len))
    }

    #[inline]
    fn databases(&self) -> &[LocalDatabase] {
        dispatch!(self, executor => executor.databases())
    }

    fn local(&self, number: usize) -> Option<&LocalDatabase> {
        dispatch!(self, executor => executor.local(number))
    }
}
