//! Defines the executor of a proxy, whose records are in other servers. It keeps operations until
//! their replies have arrived; `session::proxy::record_runs` sends them.
//!
//! Invariant: all replies are pending, also refusals, because a session takes the replies of a
//! request in the order of its operations.

use super::{Completion, Executor, LocalDatabase};
use crate::session::wake::{WakeQueues, WakeTicket};
use crate::shared::SharedState;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use todana_core::{Operation, OwnedOperation, OwnedReply, RefusalReason, Reply, ValueBuffer};

/// The most operations of one request. Each needs about 1 KB until its reply has arrived.
pub(crate) const OPERATIONS_MAX: usize = 10_000;
/// The most bytes of values that replies keep until their sessions take them. A single value may be
/// longer.
const VALUES_MAX: usize = 64 << 20;

/// Keeps operations for the servers of a proxy.
pub(crate) struct RoutedExecutor {
    queues: Arc<WakeQueues>,
    worker: u32,
    /// The connection that is being served, and the number of its listener.
    client: (usize, usize),
    new: Vec<RoutedOperation>,
    /// The operations whose replies are awaited.
    awaited: HashSet<WakeTicket>,
    /// The replies that no session has taken yet.
    replies: HashMap<WakeTicket, OwnedReply>,
    /// The number of bytes of their values.
    replies_len: usize,
}

/// An operation for the servers of a proxy.
pub(crate) struct RoutedOperation {
    pub(crate) ticket: WakeTicket,
    /// The index of the client's connection.
    pub(crate) connection: usize,
    /// The number of the client's listener, which chooses the routes.
    pub(crate) listener: usize,
    pub(crate) operation: OwnedOperation,
}

impl RoutedExecutor {
    pub(super) fn new(shared: &SharedState, worker: usize) -> RoutedExecutor {
        RoutedExecutor {
            queues: Arc::clone(&shared.wake_queues),
            worker: worker as u32,
            client: (0, 0),
            new: Vec::new(),
            awaited: HashSet::new(),
            replies: HashMap::new(),
            replies_len: 0,
        }
    }

    /// Begins the turn of a connection to the listener with this number.
    pub(crate) fn serve(&mut self, connection: usize, listener: usize) {
        self.client = (connection, listener);
    }

    /// Takes the operations since the previous call.
    pub(crate) fn take_new(&mut self) -> Vec<RoutedOperation> {
        std::mem::take(&mut self.new)
    }

    /// Returns true if a session waits for this reply.
    pub(crate) fn is_awaited(&self, ticket: WakeTicket) -> bool {
        self.awaited.contains(&ticket)
    }

    /// Keeps a reply for its session, and wakes the session.
    pub(crate) fn complete(&mut self, ticket: WakeTicket, mut reply: OwnedReply) {
        if !self.awaited.remove(&ticket) {
            return;
        }
        if self.replies_len > 0 && self.replies_len + reply.len_bytes() > VALUES_MAX {
            reply = OwnedReply::new(Reply::Refused(RefusalReason::OutOfMemory));
        }
        self.replies_len += reply.len_bytes();
        self.replies.insert(ticket, reply);
        self.queues.ready(ticket);
    }

    fn remove(&mut self, ticket: WakeTicket) -> Option<OwnedReply> {
        let reply = self.replies.remove(&ticket)?;
        self.replies_len -= reply.len_bytes();
        Some(reply)
    }
}

impl Executor for RoutedExecutor {
    fn prefetch_all(&self, _database: usize, _keys: &[&[u8]]) {}

    fn execute(
        &mut self,
        _database: usize,
        operation: &Operation<'_>,
        _reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        let ticket = self.queues.ticket(self.worker);
        let (connection, listener) = self.client;
        let operation = OwnedOperation::new(operation);
        self.new.push(RoutedOperation { ticket, connection, listener, operation });
        self.awaited.insert(ticket);
        Completion::Pending(ticket)
    }

    fn take_reply(&mut self, ticket: WakeTicket, reply: &mut dyn FnMut(Reply<'_>)) {
        let owned = self.remove(ticket);
        reply(owned.expect("the reply is ready and is taken once").borrowed());
    }

    fn abandon(&mut self, ticket: WakeTicket) {
        self.awaited.remove(&ticket);
        self.remove(ticket);
    }

    fn buffer(&self, _database: usize, _len: usize) -> Option<Box<dyn ValueBuffer>> {
        None
    }

    fn room<'b>(
        &self,
        _database: usize,
        _buffer: &'b mut dyn ValueBuffer,
        _len: usize,
    ) -> Option<&'b mut [u8]> {
        None
    }

    fn databases(&self) -> &[LocalDatabase] {
        &[]
    }
}
