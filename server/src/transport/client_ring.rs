//! Defines the ring of a worker, which receives from its clients and sends to them through
//! io_uring, and the part of it that belongs to a connection.
//!
//! A ring receives only from calm connections: those whose requests are short and whose clients
//! read their replies. All others are read and written as without a ring, when the worker's poll
//! reports them. Thus the ring needs no bounds of its own: bytes leave its buffers as soon as their
//! event is handled, and a connection of which the worker must not read more leaves the ring.

use crate::options::{IoMode, ServerOptions};
use crate::transport::connection::Connection;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;
use todana_engine::{RECEIVE_LEN, ReceivedBytes, RingEvent, SEND_LEN_MAX, SocketRing, UnsentBytes};

/// A connection leaves the ring once this number of its bytes have not been served.
pub(crate) const KEPT_MAX: usize = 8 << 10;
/// A connection returns to the ring after this number of reads that would have fitted its buffers.
const SHORT_READS: u8 = 32;
/// The token of the worker's poll. The tokens of connections are smaller.
const POLL: u64 = (1 << 62) - 1;
/// The number of bits of the index of a connection in its token.
const INDEX_BITS: u32 = 32;
/// The numbers that distinguish connections with the same index.
const GENERATIONS: u32 = 1 << 29;

/// The ring of a worker.
pub(crate) struct ClientRing {
    ring: SocketRing,
    poll: RawFd,
    generation: u32,
}

/// The part of a connection that its worker's ring needs.
#[derive(Debug, Default)]
pub(crate) struct RingState {
    pub(crate) receiving: Receiving,
    generation: u32,
    /// One more than the number of submissions when a request with the socket was last added.
    added_at: u64,
    /// The number of successive reads that would have fitted the ring's buffers.
    short_reads: u8,
    /// The error of a send.
    pub(crate) send_error: Option<io::Error>,
    /// The error of a receive.
    pub(crate) receive_error: Option<io::Error>,
}

/// The way in which a connection receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Receiving {
    /// The poll reports that the socket is readable, and the worker reads from it.
    #[default]
    Polled,
    /// The ring receives.
    Ring,
    /// The ring's request is cancelled. The connection is polled once its last event has arrived.
    Leaving,
}

impl RingState {
    /// Notes the length of a read.
    #[inline]
    pub(crate) fn note_read(&mut self, len: usize) {
        self.short_reads = if len > RECEIVE_LEN { 0 } else { self.short_reads.saturating_add(1) };
    }

    /// Returns the token of the connection with this index.
    pub(crate) fn token(&self, index: usize) -> u64 {
        u64::from(self.generation) << INDEX_BITS | index as u64
    }
}

/// Returns true if the workers use rings. Fails if a ring is required and the system does not allow
/// it.
pub(crate) fn is_used(options: &ServerOptions) -> io::Result<bool> {
    let is_used = match options.listen.io {
        IoMode::Epoll => false,
        // Half of a proxy's sockets lead to servers, and are polled.
        IoMode::Auto if options.proxy.is_some() => false,
        IoMode::Auto => match SocketRing::try_features() {
            Ok(()) => true,
            Err(error) => {
                tracing::trace!("sockets: the system does not allow io_uring: {error}");
                false
            }
        },
        IoMode::Uring => {
            SocketRing::try_features().map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!(
                        "io_uring: the system does not allow it, or is older than Linux 6.1: {error}; use --io auto"
                    ),
                )
            })?;
            true
        }
    };
    tracing::trace!("sockets: {} is used", if is_used { "io_uring" } else { "epoll" });
    Ok(is_used)
}

impl ClientRing {
    /// Creates the ring of this thread, which also reports the events of a poll.
    pub(crate) fn new(poll: RawFd) -> io::Result<ClientRing> {
        let mut ring = ClientRing { ring: SocketRing::new()?, poll, generation: 0 };
        ring.watch_poll()?;
        Ok(ring)
    }

    /// Lets the ring report once that the poll has events.
    pub(crate) fn watch_poll(&mut self) -> io::Result<()> {
        self.ring.poll(self.poll, POLL)
    }

    /// Returns true if a connection that is polled may return to the ring.
    pub(crate) fn suits_again(connection: &Connection) -> bool {
        let state = &connection.ring;
        state.receiving == Receiving::Polled && state.short_reads >= SHORT_READS && connection.is_calm()
    }

    /// Begins to receive from a connection.
    pub(crate) fn receive(&mut self, connection: &mut Connection, index: usize) -> io::Result<()> {
        self.generation = (self.generation + 1) % GENERATIONS;
        connection.readable = false;
        let state = &mut connection.ring;
        state.generation = self.generation;
        state.receiving = Receiving::Ring;
        state.short_reads = 0;
        self.receive_more(connection, index)
    }

    /// Receives from a connection whose last request has ended.
    pub(crate) fn receive_more(&mut self, connection: &mut Connection, index: usize) -> io::Result<()> {
        self.ring.receive(connection.info.descriptor, connection.ring.token(index))?;
        connection.ring.added_at = self.ring.submissions() + 1;
        Ok(())
    }

    /// Ends receiving from a connection. Its last event follows.
    pub(crate) fn leave(&mut self, state: &mut RingState, index: usize) -> io::Result<()> {
        state.receiving = Receiving::Leaving;
        self.ring.cancel_receive(state.token(index))
    }

    /// Ends receiving from a connection, and waits for the end.
    pub(crate) fn end(&mut self, state: &mut RingState, index: usize) -> io::Result<()> {
        state.receiving = Receiving::Polled;
        self.ring.end_receive(state.token(index))
    }

    /// Returns true if the ring may send an output of this length. TLS sends by itself.
    #[inline]
    pub(crate) fn can_send(connection: &Connection, len: usize) -> bool {
        connection.ring.receiving == Receiving::Ring
            && len <= SEND_LEN_MAX
            && connection.stream.reads_any_len()
    }

    /// Sends bytes with the next submission.
    #[inline]
    pub(crate) fn send(
        &mut self,
        state: &mut RingState,
        (index, socket): (usize, RawFd),
        bytes: &[u8],
    ) -> io::Result<()> {
        self.ring.send(socket, state.token(index), bytes)?;
        state.added_at = self.ring.submissions() + 1;
        Ok(())
    }

    /// Returns true if a request with the connection's socket has not been submitted.
    #[inline]
    pub(crate) fn has_request_of(&self, state: &RingState) -> bool {
        state.added_at == self.ring.submissions() + 1
    }

    /// Submits all requests.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        self.ring.submit()
    }

    /// Submits all requests, and waits for an event.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.ring.wait(timeout)
    }

    /// Returns the number of events that have not been taken.
    pub(crate) fn event_count(&self) -> usize {
        self.ring.event_count()
    }

    #[inline]
    pub(crate) fn next_event(&mut self) -> Option<RingEvent> {
        self.ring.next_event()
    }

    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.ring.has_unsent()
    }

    pub(crate) fn next_unsent(&mut self) -> Option<UnsentBytes> {
        self.ring.next_unsent()
    }

    #[inline]
    pub(crate) fn bytes(&self, received: &ReceivedBytes) -> &[u8] {
        self.ring.bytes(received)
    }

    #[inline]
    pub(crate) fn give_back(&mut self, received: ReceivedBytes) {
        self.ring.give_back(received);
    }
}

/// Returns the index of the connection with this token.
#[inline]
pub(crate) fn index_of(token: u64) -> usize {
    (token & ((1 << INDEX_BITS) - 1)) as usize
}
