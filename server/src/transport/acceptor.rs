//! Defines the acceptor, which accepts connections and passes them to the workers in turn.

use crate::handle::StopStage;
use crate::shared::SharedState;
use crate::transport::descriptors::DescriptorLimit;
use crate::transport::served_listener::{NewConnection, ServedListener};
use mio::{Events, Poll, Token, Waker};
use slab::Slab;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

const WAKE: Token = Token(usize::MAX);
/// The duration of a pause in accepting, if descriptors are missing or there are too many
/// connections.
const PAUSE: Duration = Duration::from_millis(50);

/// Listeners to add and to close while clients are served.
pub(crate) struct ListenerChanges {
    pub(crate) opened: Vec<ServedListener>,
    /// The numbers of the listeners to close.
    pub(crate) closed: Vec<usize>,
}

pub(crate) struct ConnectionAcceptor {
    shared: Arc<SharedState>,
    poll: Poll,
    listeners: Slab<ServedListener>,
    /// Listeners to add and to close.
    changes: Receiver<ListenerChanges>,
    workers: Vec<(Sender<NewConnection>, Arc<Waker>)>,
    next: usize,
    descriptors: DescriptorLimit,
    /// The time since which accepting has paused; `None` while connections are accepted.
    paused_since: Option<Instant>,
}

impl ConnectionAcceptor {
    pub(crate) fn new(
        shared: Arc<SharedState>,
        listeners: Vec<ServedListener>,
        changes: Receiver<ListenerChanges>,
        descriptors: DescriptorLimit,
    ) -> io::Result<(ConnectionAcceptor, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let mut acceptor = ConnectionAcceptor {
            shared,
            poll,
            listeners: Slab::new(),
            changes,
            workers: Vec::new(),
            next: 0,
            descriptors,
            paused_since: None,
        };
        listeners.into_iter().try_for_each(|listener| acceptor.add_listener(listener))?;
        Ok((acceptor, waker))
    }

    fn add_listener(&mut self, mut listener: ServedListener) -> io::Result<()> {
        let entry = self.listeners.vacant_entry();
        listener.socket.register(self.poll.registry(), Token(entry.key()))?;
        entry.insert(listener);
        Ok(())
    }

    /// Adds and closes listeners. The clients that wait at a listener are accepted before it is
    /// closed.
    fn change_listeners(&mut self) {
        while let Ok(ListenerChanges { opened, closed }) = self.changes.try_recv() {
            let is_closed = |listener: &ServedListener| closed.contains(&listener.number);
            let indexes = self.listeners.iter().filter(|(_, listener)| is_closed(listener));
            for index in indexes.map(|(index, _)| index).collect::<Vec<_>>() {
                self.accept_all(index);
                let mut listener = self.listeners.remove(index);
                let _ = listener.socket.deregister(self.poll.registry());
            }
            for listener in opened {
                if let Err(error) = self.add_listener(listener) {
                    tracing::error!(%error, "acceptor: cannot wait for connections at a listener");
                }
            }
        }
    }

    pub(crate) fn add_worker(&mut self, arrivals: Sender<NewConnection>, waker: Arc<Waker>) {
        self.workers.push((arrivals, waker));
    }

    /// Fails if there are too few descriptors for a connection.
    pub(crate) fn can_accept(&self) -> io::Result<()> {
        self.descriptors.suffice()
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(64);
        let mut paused = Vec::new();
        while self.shared.lifecycle.stopping() == StopStage::No {
            let timeout = (!paused.is_empty()).then_some(PAUSE);
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    tracing::error!(%error, "acceptor: cannot wait for connections");
                    self.shared.lifecycle.handle.stop();
                    return;
                }
                _ => {}
            }
            self.change_listeners();
            let mut ready: Vec<usize> = std::mem::take(&mut paused);
            for index in events.iter().map(|event| event.token().0) {
                if index != WAKE.0 && !ready.contains(&index) {
                    ready.push(index);
                }
            }
            for index in ready {
                if !self.accept_all(index) {
                    paused.push(index);
                }
            }
        }
    }

    /// Accepts all connections that wait at a listener. Returns false if some have to be accepted
    /// later.
    fn accept_all(&mut self, index: usize) -> bool {
        loop {
            if self.is_full() && !self.shared.options.limits.connections_refused {
                let max = self.shared.options.limits.connections_max;
                self.pause(|| {
                    tracing::info!("connections: the limit of {max} (-c) is reached; further clients wait")
                });
                return false;
            }
            let Some(listener) = self.listeners.get(index) else { return true };
            if listener.clients.are_full() && !self.shared.options.limits.connections_refused {
                return false;
            }
            if self.descriptors.are_scarce() {
                self.pause(|| {
                    tracing::warn!(
                        "connections: new clients wait, because the remaining descriptors are reserved for files; raise `ulimit -n` or lower -c"
                    );
                });
                return false;
            }
            match listener.accept() {
                Ok(arrival) => {
                    self.resume();
                    self.pass_to_worker(arrival);
                }
                Err(error) => {
                    match error.kind() {
                        io::ErrorKind::WouldBlock => {
                            self.resume();
                            return true;
                        }
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                        _ => {
                            // Descriptors or memory are missing. The clients that have connected
                            // stay in the backlog.
                            self.pause(|| tracing::warn!(%error, "acceptor: cannot accept a connection; trying again"));
                            return false;
                        }
                    }
                }
            }
        }
    }

    fn is_full(&self) -> bool {
        let connections = self.shared.observation.connections.current.load(Ordering::Relaxed);
        connections >= self.shared.options.limits.connections_max as u64
    }

    /// Begins a pause if there is none, and calls `log` for the first pause and then ever more
    /// rarely.
    fn pause(&mut self, log: impl FnOnce()) {
        if self.paused_since.is_none() {
            self.paused_since = Some(Instant::now());
            let connections = &self.shared.observation.connections;
            connections.accepting_paused.store(true, Ordering::Relaxed);
            let pauses = connections.accept_pauses.fetch_add(1, Ordering::Relaxed) + 1;
            // Only the pauses whose numbers are powers of two are logged, because there may be
            // many.
            if pauses.is_power_of_two() {
                log();
            }
        }
    }

    fn resume(&mut self) {
        if let Some(since) = self.paused_since.take() {
            let connections = &self.shared.observation.connections;
            let paused_us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
            connections.accept_paused_us.fetch_add(paused_us, Ordering::Relaxed);
            connections.accepting_paused.store(false, Ordering::Relaxed);
        }
    }

    fn pass_to_worker(&mut self, mut arrival: NewConnection) {
        let connections = &self.shared.observation.connections;
        if self.is_full() || arrival.client.is_surplus() {
            connections.rejected.fetch_add(1, Ordering::Relaxed);
            let _ = arrival.stream.write(b"ERROR Too many open connections\r\n");
            tracing::info!(
                "connections: one is refused, because the limit of {} (-c) or that of its listener is reached",
                self.shared.options.limits.connections_max
            );
            return;
        }
        connections.current.fetch_add(1, Ordering::Relaxed);
        connections.total.fetch_add(1, Ordering::Relaxed);
        let (arrivals, waker) = &self.workers[self.next];
        self.next = (self.next + 1) % self.workers.len();
        if arrivals.send(arrival).is_err() || waker.wake().is_err() {
            self.shared.observation.connection_closed();
        }
    }
}
