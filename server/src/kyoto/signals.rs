//! Signals: who waits for which, without keeping a thread.
//!
//! ```text
//! a request with WAIT -> a ticket behind those who wait for the same name; its connection is parked
//! SIGNAL from anybody -> the first ticket, or all, go to their workers, which are woken
//! its time is over     -> its worker takes the ticket back
//! ```
//!
//! Always true: a ticket is waiting, or signalled and not yet heard of by its worker, or gone.

use mio::Waker;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Names the waiting of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(u64);

/// Who waits for signals, for all workers.
#[derive(Default)]
pub(crate) struct Signals {
    state: Mutex<State>,
    wakers: OnceLock<Vec<Arc<Waker>>>,
}

#[derive(Default)]
struct State {
    last: u64,
    /// By the name of the signal, in the order in which they came, with the worker of each.
    waiting: HashMap<Vec<u8>, VecDeque<(Ticket, usize)>>,
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
    pub(crate) fn wait(&self, name: &[u8], worker: usize) -> Ticket {
        let mut state = self.state();
        state.last += 1;
        let ticket = Ticket(state.last);
        state.waiting.entry(name.to_vec()).or_default().push_back((ticket, worker));
        ticket
    }

    /// It waits no longer; false if it has been signalled.
    pub(crate) fn forget(&self, name: &[u8], ticket: Ticket) -> bool {
        let mut state = self.state();
        let Some(queue) = state.waiting.get_mut(name) else { return false };
        let Some(at) = queue.iter().position(|&(other, _)| other == ticket) else { return false };
        queue.remove(at);
        if queue.is_empty() {
            state.waiting.remove(name);
        }
        true
    }

    /// Wakes the first who waits for a name, or all; returns how many were waiting.
    pub(crate) fn signal(&self, name: &[u8], is_broadcast: bool) -> usize {
        let mut woken: Vec<usize> = Vec::new();
        let count = {
            let mut state = self.state();
            let Some(mut queue) = state.waiting.remove(name) else { return 0 };
            let count = queue.len();
            for (ticket, worker) in queue.drain(..if is_broadcast { count } else { 1 }) {
                if state.signalled.len() <= worker {
                    state.signalled.resize(worker + 1, Vec::new());
                }
                state.signalled[worker].push(ticket);
                woken.push(worker);
            }
            if !queue.is_empty() {
                state.waiting.insert(name.to_vec(), queue);
            }
            count
        };
        woken.sort_unstable();
        woken.dedup();
        let wakers = self.wakers.get().map_or(&[][..], |wakers| wakers);
        for waker in woken.iter().filter_map(|&worker| wakers.get(worker)) {
            // A loop that is gone needs no waking.
            let _ = waker.wake();
        }
        count
    }

    /// The tickets of a worker's that were signalled since it last asked.
    fn take(&self, worker: usize) -> Vec<Ticket> {
        self.state().signalled.get_mut(worker).map(std::mem::take).unwrap_or_default()
    }
}

/// The requests of one worker that wait, by ticket, with their connections, and by when their time is over.
#[derive(Default)]
pub(crate) struct Waiting {
    connections: HashMap<Ticket, (usize, Instant)>,
    ends: BTreeMap<(Instant, Ticket), ()>,
}

impl Waiting {
    /// A connection's request waits until then, at most.
    pub(crate) fn enter(&mut self, ticket: Ticket, connection: usize, until: Instant) {
        self.connections.insert(ticket, (connection, until));
        self.ends.insert((until, ticket), ());
    }

    /// It waits no longer. False if it did not.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> bool {
        match self.connections.remove(&ticket) {
            Some((_, until)) => self.ends.remove(&(until, ticket)).is_some(),
            None => false,
        }
    }

    /// When the first of them has waited long enough.
    pub(crate) fn first_end(&self) -> Option<Instant> {
        self.ends.first_key_value().map(|(&(end, _), ())| end)
    }

    /// Those that were signalled: ticket and connection.
    pub(crate) fn signalled(&mut self, signals: &Signals, worker: usize) -> Vec<(Ticket, usize)> {
        if self.connections.is_empty() {
            return Vec::new();
        }
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
        while let Some((&(end, ticket), ())) = self.ends.first_key_value()
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
        let tickets: Vec<Ticket> = (0..4).map(|worker| signals.wait(b"go", worker % 2)).collect();
        let other = signals.wait(b"", 0);
        assert_eq!(signals.signal(b"go", false), 4);
        assert_eq!((signals.take(0), signals.take(1)), (vec![tickets[0]], vec![]));
        assert!(!signals.forget(b"go", tickets[0]) && signals.forget(b"go", tickets[2]));
        assert_eq!(signals.signal(b"go", true), 2);
        assert_eq!((signals.take(0), signals.take(1)), (vec![], vec![tickets[1], tickets[3]]));
        assert_eq!((signals.signal(b"go", true), signals.signal(b"", true)), (0, 1));
        assert_eq!(signals.take(0), [other]);
        assert!(signals.state().waiting.is_empty());
    }

    #[test]
    fn who_has_waited_long_enough_is_found_in_order() {
        let (signals, mut waiting, now) = (Signals::default(), Waiting::default(), Instant::now());
        let tickets: Vec<Ticket> = (0..3).map(|_| signals.wait(b"go", 0)).collect();
        for (index, seconds) in [30, 10, 20].into_iter().enumerate() {
            waiting.enter(tickets[index], index, now + Duration::from_secs(seconds));
        }
        assert_eq!(waiting.first_end(), Some(now + Duration::from_secs(10)));
        assert_eq!(waiting.over(now + Duration::from_secs(20)), [(tickets[1], 1), (tickets[2], 2)]);
        signals.signal(b"go", true);
        assert_eq!(waiting.signalled(&signals, 0), [(tickets[0], 0)]);
        assert_eq!((waiting.first_end(), waiting.all()), (None, vec![]));
    }
}
