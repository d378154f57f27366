//! Keeps the pending replies of a request, so that its session can wait for an executor.
//!
//! ```text
//! a request is decoded, and its operations are pending -> `PendingReplies` has their tickets
//! the session returns `NextAction::Wait`                -> the request stays in the input
//! the executor wakes each ticket                       -> `PendingReplies::is_complete_with`
//! the request is decoded again                         -> its replies are taken in their order
//! ```
//!
//! Invariants: an operation is executed once; a request with pending replies is the first in its
//! session's input; a reply whose connection has closed is dropped.

use super::wake::{WaitingConnections, WakeReason, WakeTicket};
use super::worker_context::WorkerContext;
use crate::execution::{AnyExecutor, Completion, Executor};
use std::collections::VecDeque;
use todana_core::{Operation, Reply};

/// The pending replies of a request, in the order of its operations.
#[derive(Default)]
pub(crate) struct PendingReplies(Option<Box<PendingTickets>>);

#[derive(Default)]
struct PendingTickets {
    /// The tickets in ascending order, because tickets are numbered in the order of their creation.
    in_order: VecDeque<WakeTicket>,
    /// The number of tickets that are not ready.
    missing: usize,
}

impl PendingReplies {
    /// Returns true if a reply must arrive before the session continues.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.as_ref().is_some_and(|tickets| tickets.missing > 0)
    }

    /// Returns the ticket of a reply that must arrive before the session continues.
    pub(crate) fn missing(&self) -> Option<WakeTicket> {
        self.0.as_ref().filter(|tickets| tickets.missing > 0)?.in_order.front().copied()
    }

    /// Returns true if all replies have arrived and none has been taken.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.0.as_ref().is_some_and(|tickets| tickets.missing == 0)
    }

    /// Returns true if a reply has not arrived or has not been taken.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Lets the connection that is being served wait for a reply.
    #[cold]
    pub(crate) fn add(&mut self, ticket: WakeTicket, waits: &mut WaitingConnections) {
        let tickets = self.0.get_or_insert_default();
        tickets.in_order.push_back(ticket);
        tickets.missing += 1;
        waits.enter(ticket, None);
    }

    /// Notes a wake-up. Returns true if all replies have arrived now.
    pub(crate) fn is_complete_with(&mut self, wake: WakeReason, waits: &mut WaitingConnections) -> bool {
        let (Some(tickets), WakeReason::Ready(ticket)) = (&mut self.0, wake) else { return false };
        if tickets.in_order.binary_search(&ticket).is_err() {
            return false;
        }
        waits.leave(ticket);
        tickets.missing -= 1;
        tickets.missing == 0
    }

    /// Executes an operation. If the request was executed before, takes the reply of this operation
    /// instead.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        context: &mut WorkerContext,
        database: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        self.execute_by(context, reply, |executor, reply| executor.execute(database, operation, reply))
    }

    /// Does the same for an operation that is the only one of its request, or of those operations
    /// of a request for whose replies it waits together.
    #[inline]
    pub(crate) fn execute_alone(
        &mut self,
        context: &mut WorkerContext,
        database: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion {
        self.execute_by(context, reply, |executor, reply| executor.execute_alone(database, operation, reply))
    }

    #[inline]
    fn execute_by(
        &mut self,
        context: &mut WorkerContext,
        reply: &mut dyn FnMut(Reply<'_>),
        execute: impl FnOnce(&mut AnyExecutor, &mut dyn FnMut(Reply<'_>)) -> Completion,
    ) -> Completion {
        if self.is_ready() {
            self.take(&mut context.executor, reply);
            return Completion::Done;
        }
        let completion = execute(&mut context.executor, reply);
        if let Completion::Pending(ticket) = completion {
            self.add(ticket, &mut context.waits);
        }
        completion
    }

    /// Takes the next reply.
    #[cold]
    pub(crate) fn take(&mut self, executor: &mut AnyExecutor, reply: &mut dyn FnMut(Reply<'_>)) {
        let Some(tickets) = &mut self.0 else { return };
        if let Some(ticket) = tickets.in_order.pop_front() {
            executor.take_reply(ticket, reply);
        }
        if tickets.in_order.is_empty() {
            self.0 = None;
        }
    }

    /// Drops the remaining replies, because the request has been answered or its connection has
    /// closed.
    #[inline]
    pub(crate) fn abandon(&mut self, context: &mut WorkerContext) {
        if self.0.is_some() {
            self.abandon_all(context);
        }
    }

    #[cold]
    fn abandon_all(&mut self, context: &mut WorkerContext) {
        for ticket in self.0.take().map(|tickets| tickets.in_order).into_iter().flatten() {
            context.waits.leave(ticket);
            context.executor.abandon(ticket);
        }
    }
}
