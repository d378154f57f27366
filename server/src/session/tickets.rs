//! Signals: who waits for which, without keeping a thread.
//!
//! ```text
//! a request with WAIT -> a ticket behind those who wait for the same name; its connection is parked
//! SIGNAL from anybody -> the first ticket, or all, go to their workers, which are woken
//! its time is over     -> its worker takes the ticket back
//! an errand            -> a ticket that nobody signals but who has done it
//! a message            -> signals the name of its queue to those who wait for messages, which are no signals of clients
//! ```
//!
//! Always true: a ticket is waiting, or signalled and not yet heard of by its worker, or gone.

use mio::Waker;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Names the waiting of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(u64);

/// What is waited for. What is said to the ones the others do not hear, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A signal of a client's.
    Signal,
    /// A message of a queue.
    Message,
}

/// Those who wait for one name, in the order in which they came, which is that of tickets, with the worker of each.
type Queue = BTreeMap<Ticket, usize>;

/// Who waits for signals, for all workers.
#[derive(Default)]
pub(crate) struct Signals {
    state: Mutex<State>,
    wakers: OnceLock<Vec<Arc<Waker>>>,
}

#[derive(Default)]
struct State {
    last: u64,
    /// By purpose, and by the name of the signal.
    waiting: [HashMap<Vec<u8>, Queue>; 2],
    /// By worker: tickets that were signalled.
    signalled: Vec<Vec<Ticket>>,
}

impl Signals {
    /// Who is to be woken, by number. Said once.
    pub(crate) fn set_wakers(&self, wakers: Vec<Arc<Waker>>) {
        let _ = self.wakers.set(wakers);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request of a worker's waits from here on.
    pub(crate) fn wait(&self, purpose: Purpose, name: &[u8], worker: usize) -> Ticket {
        let mut state = self.state();
        let ticket = state.ticket();
        state.waiting[purpose as usize].entry(name.to_vec()).or_default().insert(ticket, worker);
        ticket
    }

    /// A ticket that waits for no name, but until it is [called](Signals::call).
    pub(crate) fn ticket(&self) -> Ticket {
        self.state().ticket()
    }

    /// What the ticket of a worker's has waited for is there.
    pub(crate) fn call(&self, worker: usize, ticket: Ticket) {
        self.state().call(worker, ticket);
        self.wake(worker);
    }

    /// How many wait for a signal or a message.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting.iter().flat_map(HashMap::values).map(BTreeMap::len).sum()
    }

    /// It waits no longer; false if it has been signalled.
    pub(crate) fn forget(&self, purpose: Purpose, name: &[u8], ticket: Ticket) -> bool {
        let mut state = self.state();
        let waiting = &mut state.waiting[purpose as usize];
        let Some(queue) = waiting.get_mut(name) else { return false };
        if queue.remove(&ticket).is_none() {
            return false;
        }
        if queue.is_empty() {
            waiting.remove(name);
        }
        true
    }

    /// Wakes the first who waits for a name, or all; returns how many were waiting.
    pub(crate) fn signal(&self, purpose: Purpose, name: &[u8], is_broadcast: bool) -> usize {
        let mut woken: BTreeSet<usize> = BTreeSet::new();
        let count = {
            let mut state = self.state();
            let Some(mut queue) = state.waiting[purpose as usize].remove(name) else { return 0 };
            let count = queue.len();
            for _ in 0..if is_broadcast { count } else { 1 } {
                let Some((ticket, worker)) = queue.pop_first() else { break };
                state.call(worker, ticket);
                woken.insert(worker);
            }
            if !queue.is_empty() {
                state.waiting[purpose as usize].insert(name.to_vec(), queue);
            }
            count
        };
        woken.into_iter().for_each(|worker| self.wake(worker));
        count
    }

    fn wake(&self, worker: usize) {
        if let Some(waker) = self.wakers.get().and_then(|wakers| wakers.get(worker)) {
            // A loop that is gone needs no waking.
            let _ = waker.wake();
        }
    }

    /// The tickets of a worker's that were signalled since it last asked.
    fn take(&self, worker: usize) -> Vec<Ticket> {
        self.state().signalled.get_mut(worker).map(std::mem::take).unwrap_or_default()
    }
}

impl State {
    fn ticket(&mut self) -> Ticket {
        self.last += 1;
        Ticket(self.last)
    }

    fn call(&mut self, worker: usize, ticket: Ticket) {
        if self.signalled.len() <= worker {
            self.signalled.resize(worker + 1, Vec::new());
        }
        self.signalled[worker].push(ticket);
    }
}

/// The requests of one worker that wait, by ticket, with their connections, and by when their time is over.
#[derive(Default)]
pub(crate) struct Waiting {
    connections: HashMap<Ticket, (usize, Option<Instant>)>,
    ends: BTreeSet<(Instant, Ticket)>,
}

impl Waiting {
    /// A connection's request waits until then, at most; `None`: as long as it takes.
    pub(crate) fn enter(&mut self, ticket: Ticket, connection: usize, until: Option<Instant>) {
        self.connections.insert(ticket, (connection, until));
        if let Some(until) = until {
            self.ends.insert((until, ticket));
        }
    }

    /// It waits no longer. False if it did not.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> bool {
        let Some((_, until)) = self.connections.remove(&ticket) else { return false };
        if let Some(until) = until {
            self.ends.remove(&(until, ticket));
        }
        true
    }

    /// When the first of them has waited long enough.
    pub(crate) fn first_end(&self) -> Option<Instant> {
        self.ends.first().map(|&(end, _)| end)
    }

    /// Those that were signalled: ticket and connection.
    pub(crate) fn signalled(&mut self, signals: &Signals, worker: usize) -> Vec<(Ticket, usize)> {
        let heard =
            |ticket: &Ticket| self.connections.get(ticket).map(|&(connection, _)| (*ticket, connection));
        let woken: Vec<_> = signals.take(worker).iter().filter_map(heard).collect();
        woken.iter().for_each(|&(ticket, _)| {
            self.leave(ticket);
        });
        woken
    }

    /// Those whose time is over: ticket and connection. They have been signalled in the last moment, or not.
    pub(crate) fn over(&mut self, now: Instant) -> Vec<(Ticket, usize)> {
        let mut over = Vec::new();
        while let Some(&(end, ticket)) = self.ends.first()
            && end <= now
        {
            self.ends.pop_first();
            if let Some((connection, _)) = self.connections.remove(&ticket) {
                over.push((ticket, connection));
            }
        }
        over
    }

    /// All of them, as the server stops.
    pub(crate) fn all(&mut self) -> Vec<(Ticket, usize)> {
        self.ends.clear();
        self.connections.drain().map(|(ticket, (connection, _))| (ticket, connection)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_signal_wakes_the_first_and_a_broadcast_all() {
        let signals = Signals::default();
        let tickets: Vec<Ticket> =
            (0..4).map(|worker| signals.wait(Purpose::Signal, b"go", worker % 2)).collect();
        let other = signals.wait(Purpose::Signal, b"", 0);
        assert_eq!(signals.signal(Purpose::Signal, b"go", false), 4);
        assert_eq!((signals.take(0), signals.take(1)), (vec![tickets[0]], vec![]));
        assert!(
            !signals.forget(Purpose::Signal, b"go", tickets[0])
                && signals.forget(Purpose::Signal, b"go", tickets[2])
        );
        assert_eq!(signals.signal(Purpose::Signal, b"go", true), 2);
        assert_eq!((signals.take(0), signals.take(1)), (vec![], vec![tickets[1], tickets[3]]));
        assert_eq!(
            (signals.signal(Purpose::Signal, b"go", true), signals.signal(Purpose::Signal, b"", true)),
            (0, 1)
        );
        assert_eq!(signals.take(0), [other]);
        assert_eq!(signals.waiting(), 0);
        assert!(signals.state().waiting.iter().all(HashMap::is_empty));
    }

    #[test]
    fn who_waits_for_a_message_hears_no_signal_of_that_name() {
        let signals = Signals::default();
        let ticket = signals.wait(Purpose::Message, b"go", 0);
        assert_eq!((signals.signal(Purpose::Signal, b"go", true), signals.waiting()), (0, 1));
        assert!(!signals.forget(Purpose::Signal, b"go", ticket));
        assert_eq!(signals.signal(Purpose::Message, b"go", false), 1);
        assert_eq!(signals.take(0), [ticket]);
    }

    #[test]
    fn who_has_waited_long_enough_is_found_in_order() {
        let (signals, mut waiting, now) = (Signals::default(), Waiting::default(), Instant::now());
        let tickets: Vec<Ticket> = (0..3).map(|_| signals.wait(Purpose::Signal, b"go", 0)).collect();
        for (index, seconds) in [30, 10, 20].into_iter().enumerate() {
            waiting.enter(tickets[index], index, Some(now + Duration::from_secs(seconds)));
        }
        assert_eq!(waiting.first_end(), Some(now + Duration::from_secs(10)));
        assert_eq!(waiting.over(now + Duration::from_secs(20)), [(tickets[1], 1), (tickets[2], 2)]);
        signals.signal(Purpose::Signal, b"go", true);
        assert_eq!(waiting.signalled(&signals, 0), [(tickets[0], 0)]);
        assert_eq!((waiting.first_end(), waiting.all()), (None, vec![]));
    }
}
