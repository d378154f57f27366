//! Keeps the connections that wait for signals, by the name of the signal, in the order of their
//! arrival.
//!
//! ```text
//! a request with WAIT     -> its ticket joins the tickets that wait for the same name
//! a request with SIGNAL   -> makes the first ticket ready, or all of them
//! a message in a queue    -> makes the first ticket ready that waits for the name of the queue
//! ```
//!
//! Signals and messages are separate, even under the same name. Invariant: a ticket waits here
//! until it is signalled or removed.

use crate::session::wake::{WakeQueues, WakeTicket};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The kind of event that a ticket waits for: a signal of a client, or a message in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalPurpose {
    Signal,
    Message,
}

/// The waiting tickets by purpose and name, in the order of their creation.
type WaitingTickets = [HashMap<Vec<u8>, BTreeSet<WakeTicket>>; 2];

/// The connections of all workers that wait for signals.
pub(crate) struct SignalTable {
    queues: Arc<WakeQueues>,
    waiting: Mutex<WaitingTickets>,
}

impl SignalTable {
    pub(crate) fn new(queues: Arc<WakeQueues>) -> SignalTable {
        SignalTable { queues, waiting: Mutex::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingTickets> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a ticket that waits for a name.
    pub(crate) fn wait(&self, purpose: SignalPurpose, name: &[u8], ticket: WakeTicket) {
        self.waiting()[purpose as usize].entry(name.to_vec()).or_default().insert(ticket);
    }

    /// Returns the number of waiting tickets.
    pub(crate) fn count(&self) -> usize {
        self.waiting().iter().flat_map(HashMap::values).map(BTreeSet::len).sum()
    }

    /// Removes a ticket. Returns false if the ticket has been signalled already.
    pub(crate) fn forget(&self, purpose: SignalPurpose, name: &[u8], ticket: WakeTicket) -> bool {
        let waiting = &mut self.waiting()[purpose as usize];
        let Some(tickets) = waiting.get_mut(name) else { return false };
        let was_there = tickets.remove(&ticket);
        if tickets.is_empty() {
            waiting.remove(name);
        }
        was_there
    }

    /// Wakes the first ticket that waits for a name, or all of them. Returns the number of tickets
    /// that waited.
    pub(crate) fn signal(&self, purpose: SignalPurpose, name: &[u8], is_broadcast: bool) -> usize {
        let (count, ready) = {
            let waiting = &mut self.waiting()[purpose as usize];
            let Some(tickets) = waiting.get_mut(name) else { return 0 };
            let count = tickets.len();
            let ready = match is_broadcast {
                true => std::mem::take(tickets),
                false => tickets.pop_first().into_iter().collect(),
            };
            if tickets.is_empty() {
                waiting.remove(name);
            }
            (count, ready)
        };
        ready.into_iter().for_each(|ticket| self.queues.ready(ticket));
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::wake::WaitingConnections;

    /// Creates signals, and the waits of one worker with `count` tickets.
    fn signals(count: usize) -> (SignalTable, WaitingConnections, Vec<WakeTicket>) {
        let queues = Arc::new(WakeQueues::new(1));
        let mut waits = WaitingConnections::new(Arc::clone(&queues), 0);
        let tickets = (0..count).map(|_| waits.enter_new().ticket).collect();
        (SignalTable::new(queues), waits, tickets)
    }

    fn ready(waits: &WaitingConnections) -> Vec<WakeTicket> {
        waits.take_ready().into_iter().map(|(ticket, _)| ticket).collect()
    }

    #[test]
    fn signal_wakes_first_and_broadcast_wakes_all() {
        let (signals, waits, tickets) = signals(5);
        tickets[..4].iter().rev().for_each(|&ticket| signals.wait(SignalPurpose::Signal, b"go", ticket));
        signals.wait(SignalPurpose::Signal, b"", tickets[4]);
        assert_eq!(signals.signal(SignalPurpose::Signal, b"go", false), 4);
        assert_eq!(ready(&waits), [tickets[0]]);
        assert!(!signals.forget(SignalPurpose::Signal, b"go", tickets[0]));
        assert!(signals.forget(SignalPurpose::Signal, b"go", tickets[2]));
        assert_eq!(signals.signal(SignalPurpose::Signal, b"go", true), 2);
        assert_eq!(ready(&waits), [tickets[1], tickets[3]]);
        assert_eq!(signals.signal(SignalPurpose::Signal, b"go", true), 0);
        assert_eq!(signals.signal(SignalPurpose::Signal, b"", true), 1);
        assert_eq!((ready(&waits), signals.count()), (vec![tickets[4]], 0));
        assert!(signals.waiting().iter().all(HashMap::is_empty));
    }

    #[test]
    fn message_consumer_receives_no_signal() {
        let (signals, waits, tickets) = signals(1);
        signals.wait(SignalPurpose::Message, b"go", tickets[0]);
        assert_eq!((signals.signal(SignalPurpose::Signal, b"go", true), signals.count()), (0, 1));
        assert!(!signals.forget(SignalPurpose::Signal, b"go", tickets[0]));
        assert_eq!(signals.signal(SignalPurpose::Message, b"go", false), 1);
        assert_eq!(ready(&waits), tickets);
    }
}
