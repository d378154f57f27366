//! Executors: where the operations of sessions go.
//!
//! ```text
//! local     the databases of this process
//! deferred  the same databases from another thread, in tests only: every reply is pending
//! ```
//!
//! An executor that has to wait for another machine returns [`Completion::Pending`]. The session
//! then waits with that ticket, and takes the reply once the ticket is ready (`session::pending`).
//! An operation is never executed a second time.
//!
//! Some requests need the database itself and not operations on records: cursors, transactions,
//! scripts, searches through all keys, queues, dumps and replication. They are local by nature, and
//! get at it through [`Executor::databases`] alone. Not here: the form of requests (`session`), and
//! the effect of operations on records (`todana`).

#[cfg(test)]
mod deferred;
mod local;

#[cfg(test)]
pub(crate) use deferred::DeferredExecutor;
pub(crate) use local::{LocalDatabase, LocalExecutor};

use crate::session::wake::WakeTicket;
use crate::shared::Shared;
use std::sync::Arc;
use todana::CommitPoint;
use todana_core::{Operation, Reply, ValueBuffer};

/// Executes operations on databases, which are named by their numbers.
pub(crate) trait Executor {
    /// Announces that a record is needed soon. The database may be unknown.
    fn prefetch(&self, database: usize, key: &[u8]);

    /// Executes an operation and gives its reply to `reply`, unless the reply is pending. Of the
    /// operations of one request either all are pending or none, except those that are refused.
    fn execute(
        &mut self,
        database: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion;

    /// Gives the reply of a pending operation, whose ticket is ready, to `reply`.
    fn take_reply(&mut self, _ticket: WakeTicket, _reply: &mut dyn FnMut(Reply<'_>)) {}

    /// Drops the reply of a pending operation, because its connection has closed.
    fn abandon(&mut self, _ticket: WakeTicket) {}

    /// Returns memory for a long value, if there is any.
    fn buffer(&self, database: usize, len: usize) -> Option<Box<dyn ValueBuffer>>;

    /// Returns the next piece of such memory to write to, of up to `len` bytes; `None` if there is
    /// no memory for it.
    fn room<'b>(&self, database: usize, buffer: &'b mut dyn ValueBuffer, len: usize) -> Option<&'b mut [u8]>;

    /// Returns the databases of this process, in their order, for requests that are local by
    /// nature; none if the databases are elsewhere.
    fn databases(&self) -> &[LocalDatabase];

    /// Takes the writes since the last call to the databases of this process: their numbers, and
    /// the last commit of each.
    fn take_commits(&self) -> impl Iterator<Item = (usize, CommitPoint)> {
        self.databases().iter().filter_map(|local| Some((local.number(), local.take_commit()?)))
    }
}

/// The progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// Its reply has been given.
    Done,
    /// Its reply can be taken once this ticket is ready.
    Pending(WakeTicket),
}

/// The executor of a worker: an enum, so that the hot path makes no dynamic call. With one variant
/// it costs nothing.
pub(crate) enum AnyExecutor {
    Local(LocalExecutor),
    #[cfg(test)]
    Deferred(DeferredExecutor),
}

/// Calls a method of the executor at hand.
macro_rules! dispatch {
    ($any:expr, $executor:ident => $call:expr) => {
        match $any {
            AnyExecutor::Local($executor) => $call,
            #[cfg(test)]
            AnyExecutor::Deferred($executor) => $call,
        }
    };
}

impl AnyExecutor {
    /// Creates the executor of a worker.
    pub(crate) fn new(shared: &Arc<Shared>, worker: usize) -> AnyExecutor {
        let local = LocalExecutor::new(shared);
        #[cfg(test)]
        if shared.options.defers_replies {
            return AnyExecutor::Deferred(DeferredExecutor::new(shared, worker, local));
        }
        let _ = worker;
        AnyExecutor::Local(local)
    }
}

impl Executor for AnyExecutor {
    #[inline]
    fn prefetch(&self, database: usize, key: &[u8]) {
        dispatch!(self, executor => executor.prefetch(database, key));
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
}
