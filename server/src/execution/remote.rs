//! Defines the executor of a server with databases on a cluster. It passes their operations to the
//! cluster, and executes those of the other databases at once.

use super::{Completion, Executor, LocalDatabase, LocalExecutor};
use crate::session::wake::{WakeQueues, WakeTicket};
use crate::shared::SharedState;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use todana::CountedOperation;
use todana_core::{Operation, OwnedOperation, OwnedReply, RefusalReason, Reply, ValueBuffer};
use todana_remote::ReplyCallback;

/// The most bytes of values that replies keep until their sessions take them. A single value may be
/// longer.
const VALUES_MAX: usize = 64 << 20;

/// Executes operations on databases of this process and of clusters.
pub(crate) struct RemoteExecutor {
    local: LocalExecutor,
    shared: Arc<SharedState>,
    worker: u32,
    /// The operations of this turn, with the numbers of their databases.
    new: Vec<(usize, OwnedOperation, ReplyCallback)>,
    replies: Arc<Mutex<ArrivedReplies>>,
}

/// The database and the kind of a pending operation, for the counters.
type PendingOperation = (usize, CountedOperation);

/// The replies of a worker that its sessions have not taken yet.
#[derive(Default)]
struct ArrivedReplies {
    arrived: HashMap<WakeTicket, (PendingOperation, OwnedReply)>,
    /// The operations whose replies are awaited.
    awaited: HashMap<WakeTicket, PendingOperation>,
    /// The number of bytes of the values that have arrived.
    len: usize,
}

fn locked(replies: &Mutex<ArrivedReplies>) -> MutexGuard<'_, ArrivedReplies> {
    replies.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ArrivedReplies {
    /// Keeps a reply, and wakes its session.
    fn complete(&mut self, ticket: WakeTicket, mut reply: OwnedReply, queues: &WakeQueues) {
        let Some(pending) = self.awaited.remove(&ticket) else { return };
        if self.len > 0 && self.len + reply.len_bytes() > VALUES_MAX {
            reply = OwnedReply::new(Reply::Refused(RefusalReason::OutOfMemory));
        }
        self.len += reply.len_bytes();
        self.arrived.insert(ticket, (pending, reply));
        queues.ready(ticket);
    }

    fn remove(&mut self, ticket: WakeTicket) -> Option<(PendingOperation, OwnedReply)> {
        let (pending, reply) = self.arrived.remove(&ticket)?;
        self.len -= reply.len_bytes();
        Some((pending, reply))
    }
}

impl RemoteExecutor {
    pub(super) fn new(shared: &Arc<SharedState>, worker: usize, local: LocalExecutor) -> RemoteExecutor {
        let (new, replies) = Default::default();
        RemoteExecutor { local, shared: Arc::clone(shared), worker: worker as u32, new, replies }
    }
}

impl Executor for RemoteExecutor {
    fn prefetch_all(&self, database: usize, keys: &[&[u8]]) {
        self.local.prefetch_all(database, keys);
    }

    fn execute(
        &mut self,
        database: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        let served = &self.shared.databases[database];
        if !served.is_on_cluster() {
            return self.local.execute(database, operation, reply);
        }
        let queues = Arc::clone(&self.shared.wake_queues);
        let ticket = queues.ticket(self.worker);
        locked(&self.replies).awaited.insert(ticket, (database, CountedOperation::of(operation)));
        let replies = Arc::clone(&self.replies);
        let done = move |reply| locked(&replies).complete(ticket, reply, &queues);
        self.new.push((database, OwnedOperation::new(operation), Box::new(done)));
        Completion::Pending(ticket)
    }

    fn end_turn(&mut self) {
        // The driver's threads are woken once for all of them.
        for (database, operation, done) in self.new.drain(..) {
            match self.shared.databases[database].remote() {
                Some(remote) => remote.submit(operation, done),
                None => done(OwnedReply::new(Reply::Refused(RefusalReason::Unreachable))),
            }
        }
    }

    fn execute_alone(
        &mut self,
        database: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        let remote = self.shared.databases[database].remote();
        let place = &self.local.databases()[database];
        let counted = &mut |found: Reply<'_>| {
            place.count_elsewhere(CountedOperation::of(operation), &found);
            reply(found);
        };
        if remote.is_some_and(|remote| remote.reply_from_cache(operation, counted)) {
            return Completion::Done;
        }
        self.execute(database, operation, reply)
    }

    fn runs_ahead(&self, database: usize) -> bool {
        self.shared.databases[database].is_on_cluster()
    }

    fn take_reply(&mut self, ticket: WakeTicket, reply: &mut dyn FnMut(Reply<'_>)) {
        let taken = locked(&self.replies).remove(ticket);
        let ((database, kind), owned) = taken.expect("the reply is ready and is taken once");
        self.local.databases()[database].count_elsewhere(kind, &owned.borrowed());
        reply(owned.borrowed());
    }

    fn abandon(&mut self, ticket: WakeTicket) {
        let mut replies = locked(&self.replies);
        replies.awaited.remove(&ticket);
        replies.remove(ticket);
    }

    fn buffer(&self, database: usize, len: usize) -> Option<Box<dyn ValueBuffer>> {
        self.local.buffer(database, len)
    }

    fn room<'b>(&self, database: usize, buffer: &'b mut dyn ValueBuffer, len: usize) -> Option<&'b mut [u8]> {
        self.local.room(database, buffer, len)
    }

    fn databases(&self) -> &[LocalDatabase] {
        self.local.databases()
    }

    fn local(&self, number: usize) -> Option<&LocalDatabase> {
        self.local.local(number).filter(|local| !local.served().is_on_cluster())
    }
}
