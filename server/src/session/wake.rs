//! Wakes waiting sessions, when another thread has a result or a deadline has passed.
//!
//! ```text
//! a waiting session -> a ticket in its worker's `WaitingConnections`, with or without a deadline
//! any thread        -> `WakeQueues::ready`: puts the ticket into its worker's queue, wakes the worker
//! the worker        -> `WakeReason::Ready` to the session, `TimedOut` at the deadline, `Cancelled` at a stop
//! the update log    -> `WakeQueues::log_advanced`: workers that hold back replies check again
//! ```
//!
//! Invariants: a ticket belongs to one connection of one worker; a ready ticket without a waiting
//! connection is dropped; tickets are ordered by age. Not here: the events that sessions wait for
//! (passwords: `login`; signals and messages: `kyoto`; long work: `background_jobs`; watched
//! events: `watchers`; replies: `pending_replies`).

use mio::Waker;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// The identity of a wait. A connection waits with a ticket until the ticket is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WakeTicket {
    number: u64,
    worker: u32,
}

/// The reason why a waiting session is served again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// The event has happened.
    Ready(WakeTicket),
    /// The deadline has passed.
    TimedOut(WakeTicket),
    /// The server is stopping.
    Cancelled,
}

/// The queues of wake-ups, one for each worker.
#[derive(Debug, Default)]
pub(crate) struct WakeQueues {
    last: AtomicU64,
    workers: Vec<WakeQueue>,
}

#[derive(Debug, Default)]
struct WakeQueue {
    ready: Mutex<Vec<WakeTicket>>,
    /// True if the worker holds replies back until the update log advances.
    awaits_log: AtomicBool,
    waker: OnceLock<Arc<Waker>>,
}

impl WakeQueue {
    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            // `wake` fails only if the worker has ended.
            let _ = waker.wake();
        }
    }
}

impl WakeQueues {
    pub(crate) fn new(workers: usize) -> WakeQueues {
        let queues = std::iter::repeat_with(WakeQueue::default);
        WakeQueues { last: AtomicU64::new(0), workers: queues.take(workers).collect() }
    }

    /// Sets the waker of a worker. Call it once for each worker.
    pub(crate) fn set_waker(&self, worker: usize, waker: Arc<Waker>) {
        if let Some(queue) = self.workers.get(worker) {
            let _ = queue.waker.set(waker);
        }
    }

    /// Creates a ticket of a worker. No connection waits with it yet.
    pub(crate) fn ticket(&self, worker: u32) -> WakeTicket {
        WakeTicket { number: self.last.fetch_add(1, Ordering::Relaxed), worker }
    }

    /// Wakes the connection that waits with this ticket.
    pub(crate) fn ready(&self, ticket: WakeTicket) {
        let Some(queue) = self.workers.get(ticket.worker as usize) else { return };
        let mut ready = queue.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = ready.is_empty();
        ready.push(ticket);
        drop(ready);
        // The worker takes all tickets at once. An earlier one has woken it already.
        if was_empty {
            queue.wake();
        }
    }

    /// Notes that a worker holds back replies. The worker must check once more after this call,
    /// because progress of the log before the call does not wake it.
    pub(crate) fn awaits_log(&self, worker: usize) {
        self.workers[worker].awaits_log.store(true, Ordering::Relaxed);
        // This fence pairs with the one in `log_advanced`: either the worker sees the progress of
        // the log, or the log sees the flag of the worker.
        fence(Ordering::SeqCst);
    }

    /// Wakes the workers that hold back replies, because the update log has advanced.
    pub(crate) fn log_advanced(&self) {
        fence(Ordering::SeqCst);
        for queue in &self.workers {
            if queue.awaits_log.load(Ordering::Relaxed) && queue.awaits_log.swap(false, Ordering::Relaxed) {
                queue.wake();
            }
        }
    }

    /// Wakes all workers.
    pub(crate) fn wake_all(&self) {
        self.workers.iter().for_each(WakeQueue::wake);
    }

    /// Takes the ready tickets of a worker.
    fn take(&self, worker: u32) -> Vec<WakeTicket> {
        let queue = self.workers.get(worker as usize);
        queue
            .map(|queue| std::mem::take(&mut *queue.ready.lock().unwrap_or_else(PoisonError::into_inner)))
            .unwrap_or_default()
    }
}

/// Wakes one connection, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct WakeHandle {
    queues: Arc<WakeQueues>,
    pub(crate) ticket: WakeTicket,
}

impl WakeHandle {
    pub(crate) fn wake(&self) {
        self.queues.ready(self.ticket);
    }
}

/// The waiting connections of one worker, by ticket, and their deadlines.
#[derive(Debug)]
pub(crate) struct WaitingConnections {
    queues: Arc<WakeQueues>,
    worker: u32,
    /// The index of the connection that is being served.
    pub(crate) connection: usize,
    connections: HashMap<WakeTicket, (usize, Option<Instant>)>,
    deadlines: BTreeSet<(Instant, WakeTicket)>,
}

impl WaitingConnections {
    pub(crate) fn new(queues: Arc<WakeQueues>, worker: usize) -> WaitingConnections {
        WaitingConnections {
            queues,
            worker: worker as u32,
            connection: 0,
            connections: HashMap::new(),
            deadlines: BTreeSet::new(),
        }
    }

    /// Creates a ticket. No connection waits with it yet.
    pub(crate) fn ticket(&self) -> WakeTicket {
        self.queues.ticket(self.worker)
    }

    /// Returns the handle that wakes the connection that waits with a ticket.
    pub(crate) fn handle(&self, ticket: WakeTicket) -> WakeHandle {
        WakeHandle { queues: Arc::clone(&self.queues), ticket }
    }

    /// Lets the connection that is being served wait with this ticket, until `deadline` at the
    /// latest.
    pub(crate) fn enter(&mut self, ticket: WakeTicket, deadline: Option<Instant>) {
        self.connections.insert(ticket, (self.connection, deadline));
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, ticket));
        }
    }

    /// Lets the connection that is being served wait with a new ticket and without a deadline.
    /// Returns the handle that wakes it.
    pub(crate) fn enter_new(&mut self) -> WakeHandle {
        let ticket = self.ticket();
        self.enter(ticket, None);
        self.handle(ticket)
    }

    /// Ends a wait.
    pub(crate) fn leave(&mut self, ticket: WakeTicket) {
        if let Some((_, Some(deadline))) = self.connections.remove(&ticket) {
            self.deadlines.remove(&(deadline, ticket));
        }
    }

    /// Returns the connection that waits with a ticket.
    pub(crate) fn connection_of(&self, ticket: WakeTicket) -> Option<usize> {
        self.connections.get(&ticket).map(|&(connection, _)| connection)
    }

    /// Returns the earliest deadline of all waits.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Returns the ready tickets with their connections. Each wait continues until `leave`.
    pub(crate) fn take_ready(&self) -> Vec<(WakeTicket, usize)> {
        let ready = self.queues.take(self.worker).into_iter();
        ready.filter_map(|ticket| Some((ticket, self.connections.get(&ticket)?.0))).collect()
    }

    /// Ends the waits whose deadlines have passed, and returns them with their connections. The
    /// event of such a wait may have happened at the same moment.
    pub(crate) fn take_timed_out(&mut self, now: Instant) -> Vec<(WakeTicket, usize)> {
        let mut timed_out = Vec::new();
        while let Some(&(deadline, ticket)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            if let Some((connection, _)) = self.connections.remove(&ticket) {
                timed_out.push((ticket, connection));
            }
        }
        timed_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ready_tickets_reach_their_own_worker_once() {
        let queues = Arc::new(WakeQueues::new(2));
        let mut workers = [
            WaitingConnections::new(Arc::clone(&queues), 0),
            WaitingConnections::new(Arc::clone(&queues), 1),
        ];
        workers[0].connection = 7;
        let (here, there) = (workers[0].enter_new(), workers[1].enter_new());
        let unknown = workers[0].ticket();
        here.wake();
        there.wake();
        queues.ready(unknown);
        assert_eq!(workers[0].take_ready(), [(here.ticket, 7)]);
        assert_eq!(workers[0].take_ready(), []);
        workers[1].leave(there.ticket);
        assert_eq!(workers[1].take_ready(), []);
    }

    #[test]
    fn deadlines_come_in_order() {
        let now = Instant::now();
        let mut waits = WaitingConnections::new(Arc::new(WakeQueues::new(1)), 0);
        let tickets: Vec<WakeTicket> = (0..3).map(|_| waits.ticket()).collect();
        for (index, seconds) in [30, 10, 20].into_iter().enumerate() {
            waits.connection = index;
            waits.enter(tickets[index], Some(now + Duration::from_secs(seconds)));
        }
        assert_eq!(waits.first_deadline(), Some(now + Duration::from_secs(10)));
        let timed_out = waits.take_timed_out(now + Duration::from_secs(20));
        assert_eq!(timed_out, [(tickets[1], 1), (tickets[2], 2)]);
        waits.handle(tickets[0]).wake();
        assert_eq!(waits.take_ready(), [(tickets[0], 0)]);
        waits.leave(tickets[0]);
        assert_eq!(waits.first_deadline(), None);
    }
}
