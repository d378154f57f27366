//! The part of a worker that handles the events of its ring.

use super::Worker;
use crate::options::IoMode;
use crate::transport::client_ring::{ClientRing, KEPT_MAX, Receiving, index_of};
use crate::transport::output::ConnectionOutput;
use mio::{Events, Token};
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use todana_engine::{ReceiveEnd, ReceivedBytes, RingEvent};
use todana_protocol::memcached::ReplySink;

impl Worker {
    /// Creates the ring, if the server uses rings. Returns false if the server must stop, because a
    /// ring is required and cannot be created.
    pub(super) fn start_ring(&mut self) -> bool {
        if !self.shared.uses_rings {
            return true;
        }
        match ClientRing::new(self.poll.as_raw_fd()) {
            Ok(ring) => self.ring = Some(ring),
            Err(error) if self.shared.options.listen.io == IoMode::Uring => {
                tracing::error!(%error, "worker {}: cannot create its io_uring", self.number);
                return false;
            }
            Err(error) => tracing::warn!(
                %error,
                "worker {}: uses epoll, because it cannot create its io_uring",
                self.number
            ),
        }
        true
    }

    /// Handles the events of the ring, and through it those of the poll. A submission meanwhile can
    /// add events. These are handled in the next round, so that clients that send without pause
    /// cannot keep the worker here.
    pub(super) fn handle_ring_events(
        &mut self,
        events: &mut Events,
        measured_from: Option<Instant>,
    ) -> io::Result<()> {
        self.take_unsent();
        for _ in 0..self.ring.as_ref().map_or(0, ClientRing::event_count) {
            let Some(event) = self.ring.as_mut().and_then(ClientRing::next_event) else { break };
            match event {
                RingEvent::Received { token, bytes, has_more, continues } => {
                    self.on_received(token, bytes, has_more, continues);
                }
                RingEvent::ReceiveEnded { token, cause } => self.on_receive_ended(token, cause),
                RingEvent::Ready { .. } => {
                    if let Some(ring) = &mut self.ring {
                        ring.watch_poll()?;
                    }
                    self.handle_poll(events, measured_from)?;
                    continue;
                }
            }
            if let Some(began) = measured_from {
                self.shared.observation.turn_times[self.number].note(began.elapsed());
            }
        }
        Ok(())
    }

    /// Handles the events of the poll. If there are more events than the poll returns at once, the
    /// ring reports the poll as ready again.
    fn handle_poll(&mut self, events: &mut Events, measured_from: Option<Instant>) -> io::Result<()> {
        match self.poll.poll(events, Some(Duration::ZERO)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        events.iter().for_each(|event| self.handle_event(event, measured_from));
        Ok(())
    }

    /// Returns the index of the open connection with this token.
    fn connection_of(&self, token: u64) -> Option<usize> {
        let index = index_of(token);
        let connection = self.connections.get(index)?;
        (connection.ring.token(index) == token).then_some(index)
    }

    fn on_received(&mut self, token: u64, bytes: ReceivedBytes, has_more: bool, continues: bool) {
        let Some(index) = self.connection_of(token) else { return self.give_back(bytes) };
        let Some(ring) = &self.ring else { return };
        let connection = &self.connections[index];
        if connection.ring.send_error.is_some() {
            // The connection is about to be closed.
            return self.give_back(bytes);
        }
        let is_busy = connection.queued || connection.durability.is_parked;
        // The next event of this round has the rest of a long request, or of many requests. If
        // there is none, the connection is served at the end of the round: Linux before 6.5 may
        // report more bytes without any (commit 88fc8b8463b0).
        let is_part = has_more && bytes.are_full() && connection.kept_len() < KEPT_MAX;
        // Its previous replies have not been submitted. One submission after this round of events
        // suffices for all such connections.
        let has_replies = ring.has_request_of(&connection.ring);
        if is_busy || connection.ring.receiving != Receiving::Ring {
            self.keep_received(index, bytes);
        } else if is_part || has_replies {
            self.keep_received(index, bytes);
            self.queue(index);
        } else {
            self.received = Some(bytes);
            self.serve(index);
            // The turn may have ended before it read.
            if let Some(bytes) = self.received.take() {
                match self.connection_of(token) {
                    Some(index) => self.keep_received(index, bytes),
                    None => self.give_back(bytes),
                }
            }
        }
        if let Some(index) = self.connection_of(token) {
            self.continue_receiving(index, continues);
        }
    }

    fn on_receive_ended(&mut self, token: u64, cause: ReceiveEnd) {
        let Some(index) = self.connection_of(token) else { return };
        let connection = &mut self.connections[index];
        match cause {
            ReceiveEnd::Cancelled | ReceiveEnd::NoBuffer => return self.continue_receiving(index, false),
            ReceiveEnd::EndOfStream => {}
            ReceiveEnd::Failed(error) => {
                // A peer that has reset the connection accepts neither a reply nor a message that
                // other clients wait for.
                connection.closing |= connection.session.ends_with_reset();
                connection.ring.receive_error = Some(error);
            }
        }
        connection.ring.receiving = Receiving::Polled;
        (connection.readable, connection.ended) = (true, true);
        if !connection.queued && !connection.durability.is_parked {
            self.serve(index);
        }
        if let Some(index) = self.connection_of(token) {
            self.register(index);
        }
    }

    /// Decides in which way a connection receives from now on. `continues` is false if the ring's
    /// request has ended.
    pub(super) fn continue_receiving(&mut self, index: usize, continues: bool) {
        let connection = &mut self.connections[index];
        let Some(ring) = &mut self.ring else { return };
        let is_unsent = connection.stream.kept_lens().1 > 0;
        let has_output = is_unsent || connection.pending.is_some() && !connection.durability.is_parked;
        let is_calm = !has_output && connection.kept_len() < KEPT_MAX && !connection.session.is_receiving();
        let outcome = match (connection.ring.receiving, is_calm, continues) {
            (Receiving::Ring, true, false) => ring.receive_more(connection, index),
            (Receiving::Ring, false, true) => ring.leave(&mut connection.ring, index),
            (Receiving::Ring | Receiving::Leaving, _, false) => {
                connection.ring.receiving = Receiving::Polled;
                connection.readable = true;
                self.queue(index);
                return self.register(index);
            }
            _ => Ok(()),
        };
        self.check_ring(outcome);
    }

    /// Ends the ring's request for a connection, which is polled once the last event has arrived.
    pub(super) fn leave_ring(&mut self, index: usize) {
        if let (Some(ring), Some(connection)) = (&mut self.ring, self.connections.get_mut(index))
            && connection.ring.receiving == Receiving::Ring
        {
            let outcome = ring.leave(&mut connection.ring, index);
            self.check_ring(outcome);
        }
    }

    /// Registers a connection with the poll.
    fn register(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if let Err(error) = connection.stream.register(self.poll.registry(), Token(index)) {
            tracing::warn!(%error, "connection: closed, because it cannot be registered for events");
            connection.ring.send_error = Some(error);
            self.queue(index);
        }
    }

    /// Lets the ring receive from a connection that has been polled, if it is calm again.
    pub(super) fn return_to_ring(&mut self, index: usize) {
        let Some(ring) = &mut self.ring else { return };
        if let Some(connection) = self.connections.get_mut(index)
            && ClientRing::suits_again(connection)
            && connection.stream.deregister(self.poll.registry()).is_ok()
        {
            let outcome = ring.receive(connection, index);
            self.check_ring(outcome);
        }
    }

    /// Appends bytes to those that the connection has not served.
    fn keep_received(&mut self, index: usize, bytes: ReceivedBytes) {
        let Some(ring) = &mut self.ring else { return };
        let connection = &mut self.connections[index];
        connection.active_s = self.now_s;
        let outcome = match connection.stream.plain(ring.bytes(&bytes), &mut self.buffer) {
            // A part of a record of TLS has arrived.
            Ok([]) => Ok(()),
            Ok(plain) => {
                self.shared.observation.workers[self.number].bytes_read.add(plain.len() as u64);
                connection.keep_unserved(plain)
            }
            Err(error) => Err(error),
        };
        connection.readable |= connection.stream.has_ended();
        ring.give_back(bytes);
        if let Err(error) = outcome {
            connection.ring.send_error = Some(error);
            self.queue(index);
        }
        self.count_held(index);
    }

    fn give_back(&mut self, bytes: ReceivedBytes) {
        if let Some(ring) = &mut self.ring {
            ring.give_back(bytes);
        }
    }

    /// Gives a connection a turn in this round of the loop.
    fn queue(&mut self, index: usize) {
        if !std::mem::replace(&mut self.connections[index].queued, true) {
            self.ready.push_back(index);
        }
    }

    /// Submits the requests of the ring, if one of them has the socket of this connection. Its
    /// output is then either sent or pending.
    #[inline]
    pub(super) fn finish_send(&mut self, index: usize) {
        let Some(ring) = &self.ring else { return };
        if ring.has_request_of(&self.connections[index].ring) {
            self.submit();
        } else if ring.has_unsent() {
            self.take_unsent();
        }
    }

    /// Submits the requests of the ring.
    pub(super) fn submit(&mut self) {
        if let Some(ring) = &mut self.ring {
            let outcome = ring.submit();
            self.check_ring(outcome);
            self.take_unsent();
        }
    }

    /// Stops the server if the ring has failed.
    fn check_ring(&self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            tracing::error!(%error, "worker {}: its io_uring has failed", self.number);
            self.shared.lifecycle.handle.stop();
        }
    }

    /// Takes the bytes that sockets have not accepted. They become pending output.
    fn take_unsent(&mut self) {
        while let Some(unsent) = self.ring.as_mut().and_then(ClientRing::next_unsent) {
            let Some(index) = self.connection_of(unsent.token) else { continue };
            let written = &self.shared.observation.workers[self.number].bytes_written;
            written.add((unsent.bytes.len() as u64).wrapping_neg());
            let connection = &mut self.connections[index];
            if unsent.error.is_some() {
                connection.ring.send_error = unsent.error;
                self.queue(index);
                continue;
            }
            let mut output = ConnectionOutput::default();
            output.put(&unsent.bytes);
            connection.pending = Some(Box::new(output));
            self.count_held(index);
            self.continue_receiving(index, true);
        }
    }
}
