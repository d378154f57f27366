//! Sends the operations of clients that do not speak memcached's dialects: the sessions of Kyoto
//! Tycoon's and Tokyo Tyrant's protocols.
//!
//! ```text
//! a session executes an operation -> `RoutedExecutor` keeps it, and the session waits
//! the turn of the worker ends     -> the operation becomes a request, which takes its route
//! the reply arrives               -> the next request of the operation, or its reply is complete
//! `RoutedExecutor::complete`      -> the session continues
//! ```
//!
//! Invariant: the requests of a client to one server are sent in the order of its operations.

use super::record_run::RecordRun;
use super::request_routing::{RoutingTurn, command_of, may_repeat, null_reply, routed, sent_to_all};
use super::waiting_request::WaitingRequest;
use crate::execution::{AnyExecutor, RoutedExecutor, RoutedOperation};
use crate::proxy::{ClientCommand, ProxyWorker, ReplyDelivery, RequestTag, RouteTarget};
use crate::session::wake::{WaitingConnections, WakeTicket};
use crate::session::worker_context::WorkerContext;
use crate::shared::SharedState;
use std::collections::HashMap;
use std::sync::Arc;
use todana::Clock;
use todana_core::{NOT_EXECUTED, Operation, OwnedOperation, OwnedReply, RefusalReason, Reply};
use todana_protocol::memcached::MemcachedLimits;
use todana_protocol::memcached::client::{
    AskedReply, NotSpoken, RecordFields, ServerDialect, ServerReply, TimeLeft, decode_reply_of,
    put_operation_for,
};

/// The index that the requests have in place of that of a client's connection.
const CONNECTION: usize = usize::MAX;

/// The operations of a worker's clients that are under way.
pub(crate) struct RecordRuns {
    limits: MemcachedLimits,
    running: HashMap<u64, RunningOperation>,
    /// The requests for which something has arrived.
    changed: Vec<RequestTag>,
    next_number: u64,
}

/// An operation whose reply is not complete.
struct RunningOperation {
    ticket: WakeTicket,
    listener: usize,
    tag: RequestTag,
    run: RecordRun,
    sent: SentRequest,
}

/// A request of an operation.
enum SentRequest {
    Waiting {
        request: WaitingRequest,
        asked: AskedReply,
    },
    /// The reply is known, and no server is asked.
    Replied(Reply<'static>),
}

impl RecordRuns {
    pub(crate) fn new(shared: &SharedState) -> RecordRuns {
        // The servers decide which values are too long.
        let limits = MemcachedLimits { item_size_max: 1 << 30, ..shared.limits() };
        RecordRuns { limits, running: HashMap::new(), changed: Vec::new(), next_number: 0 }
    }

    /// Notes what arrives for a request.
    pub(crate) fn receive(&mut self, tag: RequestTag, delivery: ReplyDelivery<'_>) {
        if tag.connection == CONNECTION
            && let Some(running) = self.running.get_mut(&tag.request)
            && let SentRequest::Waiting { request, .. } = &mut running.sent
        {
            let (_, can_continue) = request.receive(tag, delivery.kept());
            if can_continue || matches!(request, WaitingRequest::Gathered(_)) {
                self.changed.push(tag);
            }
        }
    }

    /// Returns true if operations can continue.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Sends the new operations of the sessions, and continues those for which something has
    /// arrived.
    pub(crate) fn advance(&mut self, context: &mut WorkerContext) {
        let limits = self.limits;
        let WorkerContext { proxy: Some(proxy), waits, shared, executor, .. } = context else { return };
        let AnyExecutor::Routed(executor) = executor else { return };
        for tag in std::mem::take(&mut self.changed) {
            let Some(mut running) = self.running.remove(&tag.request) else { continue };
            if let SentRequest::Waiting { request, .. } = &mut running.sent {
                request.advance(proxy, tag);
            }
            self.settle(running, executor, &mut turn(proxy, shared, waits, &limits));
        }
        for RoutedOperation { ticket, connection, listener, operation } in executor.take_new() {
            let (run, first) = RecordRun::new(operation);
            let mut turn = turn(proxy, shared, waits, &limits);
            let tag = self.tag(connection as u64);
            let sent = SentRequest::send(&mut turn, listener, &first, tag);
            let running = RunningOperation { ticket, listener, tag, run, sent };
            self.settle(running, executor, &mut turn);
        }
    }

    /// Returns the tag of a request. Each request of an operation has its own number, because
    /// replies to an earlier one may still arrive.
    fn tag(&mut self, session: u64) -> RequestTag {
        self.next_number += 1;
        let request = self.next_number;
        let (part, question, may_repeat, repeats, sent_us) = (0, 0, false, 0, 0);
        let connection = CONNECTION;
        RequestTag { connection, session, request, part, question, may_repeat, repeats, sent_us }
    }

    /// Continues an operation as long as replies are complete.
    fn settle(
        &mut self,
        mut running: RunningOperation,
        executor: &mut RoutedExecutor,
        turn: &mut RoutingTurn<'_>,
    ) {
        loop {
            let mut bytes = Vec::new();
            let reply = match &mut running.sent {
                SentRequest::Replied(reply) => *reply,
                SentRequest::Waiting { request, asked } => {
                    if !request.drain(&mut bytes) {
                        self.running.insert(running.tag.request, running);
                        return;
                    }
                    decoded(*asked, &bytes)
                }
            };
            let mut answer = None;
            let now = turn.shared.clock.now();
            let next = running.run.receive(reply, now, &mut |reply| answer = Some(OwnedReply::new(reply)));
            // If the client has gone, nothing more is changed for it.
            let Some(operation) = next.filter(|_| executor.is_awaited(running.ticket)) else {
                if let Some(answer) = answer {
                    executor.complete(running.ticket, answer);
                }
                return;
            };
            running.tag = self.tag(running.tag.session);
            running.sent = SentRequest::send(turn, running.listener, &operation, running.tag);
        }
    }
}

/// Returns the means to send requests.
fn turn<'t>(
    proxy: &'t mut ProxyWorker,
    shared: &'t SharedState,
    waits: &'t mut WaitingConnections,
    limits: &'t MemcachedLimits,
) -> RoutingTurn<'t> {
    let state = Arc::clone(&proxy.state);
    RoutingTurn { proxy, shared, waits, state, limits, connection: CONNECTION }
}

impl SentRequest {
    /// Sends an operation that memcached has.
    fn send(
        turn: &mut RoutingTurn<'_>,
        listener: usize,
        operation: &OwnedOperation,
        tag: RequestTag,
    ) -> SentRequest {
        let operation = &operation.borrowed();
        let compares = matches!(operation, Operation::Delete(delete) if delete.compare.is_some());
        let tag = RequestTag { may_repeat: may_repeat(operation) && !compares, ..tag };
        let mut fields = RecordFields::default();
        if let Operation::Get(_) = operation {
            fields.time_left = TimeLeft::After;
        }
        let mut bytes = Vec::new();
        // The servers get requests in their own dialects. This one is only the form of the reply.
        let asked = match put_operation_for(ServerDialect::Meta, operation, fields, &mut bytes) {
            Ok(asked) => asked,
            // memcached's keys have from 1 to 250 bytes.
            Err(NotSpoken::Key) => return SentRequest::Replied(Reply::Refused(RefusalReason::TooLarge)),
            Err(_) => return SentRequest::Replied(Reply::Refused(RefusalReason::NotEnabled)),
        };
        let Some(key) = operation.key() else {
            let places = turn.state.reached_places(listener, command_of(operation, &bytes));
            let request = sent_to_all(turn, places, operation, &bytes, tag);
            return SentRequest::Waiting { request, asked };
        };
        // Routes name the commands of the text dialect.
        let target = turn.state.target_of(listener, command_of(operation, b""), key);
        if let Some(pool) = turn.state.first_pool(target) {
            turn.proxy.count_request(pool, ClientCommand::of(operation), false);
        }
        match target {
            RouteTarget::Refuse => SentRequest::Replied(Reply::Refused(RefusalReason::NotEnabled)),
            RouteTarget::Null => SentRequest::Replied(null_reply(operation)),
            target => {
                let kept = turn.keep(bytes).without_need_of_time();
                SentRequest::Waiting { request: routed(turn, target, kept, operation, key, tag), asked }
            }
        }
    }
}

fn decoded(asked: AskedReply, bytes: &[u8]) -> Reply<'_> {
    match decode_reply_of(asked, bytes) {
        Ok(ServerReply::Reply(reply)) => reply,
        Ok(ServerReply::Error(_)) | Err(_) => NOT_EXECUTED,
    }
}
