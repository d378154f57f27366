//! Defines an executor for tests whose replies are all pending: another thread executes each
//! operation after the session has parked. It simulates an executor that waits for another machine.

mod tests;

use super::{Completion, Executor, LocalDatabase, LocalExecutor};
use crate::session::wake::{WakeQueues, WakeTicket};
use crate::shared::SharedState;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use todana::Records;
use todana_core::{Operation, OwnedOperation, OwnedReply, Reply, ValueBuffer};

/// If the key of an operation begins with this prefix, the operation waits until the test releases
/// it.
const HELD: &[u8] = b"held:";

/// The number of operations that were executed in all tests.
static EXECUTED: AtomicU64 = AtomicU64::new(0);
/// The number of replies that were dropped because their connections had closed.
static DROPPED: AtomicU64 = AtomicU64::new(0);
static RELEASED: Mutex<bool> = Mutex::new(false);
static RELEASE: Condvar = Condvar::new();

/// Executes operations on another thread.
pub(crate) struct DeferredExecutor {
    local: LocalExecutor,
    queues: Arc<WakeQueues>,
    worker: u32,
    operations: Sender<DeferredOperation>,
    replies: Arc<Mutex<DeferredReplies>>,
}

#[derive(Default)]
struct DeferredReplies {
    come: HashMap<WakeTicket, OwnedReply>,
    /// Tickets of pending operations whose connections have closed.
    abandoned: HashSet<WakeTicket>,
}

struct DeferredOperation {
    ticket: WakeTicket,
    database: usize,
    operation: OwnedOperation,
}

impl DeferredExecutor {
    pub(super) fn new(shared: &Arc<SharedState>, worker: usize, local: LocalExecutor) -> DeferredExecutor {
        let (operations, received) = channel::<DeferredOperation>();
        let (queues, replies) =
            (Arc::clone(&shared.wake_queues), Arc::new(Mutex::<DeferredReplies>::default()));
        let (databases, for_thread) =
            (LocalDatabase::all(shared), (Arc::clone(&queues), Arc::clone(&replies)));
        std::thread::spawn(move || {
            let (queues, replies) = for_thread;
            for DeferredOperation { ticket, database, operation } in received {
                let operation = operation.borrowed();
                if operation.key().is_some_and(|key| key.starts_with(HELD)) {
                    let _released = RELEASE.wait_while(RELEASED.lock().unwrap(), |released| !*released);
                }
                let mut owned = None;
                databases[database]
                    .execute(&operation, &mut |reply| owned = Some(OwnedReply::new(reply)))
                    .unwrap();
                EXECUTED.fetch_add(1, Ordering::SeqCst);
                let mut replies = replies.lock().unwrap();
                if replies.abandoned.remove(&ticket) {
                    continue;
                }
                replies.come.insert(ticket, owned.expect("each operation has a reply"));
                drop(replies);
                queues.ready(ticket);
            }
        });
        DeferredExecutor { local, queues, worker: worker as u32, operations, replies }
    }
}

impl Executor for DeferredExecutor {
    fn prefetch_all(&self, _database: usize, _keys: &[&[u8]]) {}

    fn execute(
        &mut self,
        database: usize,
        operation: &Operation<'_>,
        _reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        let ticket = self.queues.ticket(self.worker);
        let operation = OwnedOperation::new(operation);
        self.operations.send(DeferredOperation { ticket, database, operation }).expect("the thread runs");
        Completion::Pending(ticket)
    }

    fn runs_ahead(&self, _database: usize) -> bool {
        true
    }

    fn take_reply(&mut self, ticket: WakeTicket, reply: &mut dyn FnMut(Reply<'_>)) {
        let owned = self.replies.lock().unwrap().come.remove(&ticket);
        reply(owned.expect("the reply is ready and is taken once").borrowed());
    }

    fn abandon(&mut self, ticket: WakeTicket) {
        let mut replies = self.replies.lock().unwrap();
        if replies.come.remove(&ticket).is_none() {
            replies.abandoned.insert(ticket);
        }
        DROPPED.fetch_add(1, Ordering::SeqCst);
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
}
