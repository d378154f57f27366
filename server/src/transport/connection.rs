//! Defines a connection: a socket, a session, and buffers that exist only while they hold bytes.

use crate::databases::pending_commits::PendingCommits;
use crate::execution::Executor;
use crate::observation::connection_table::{ConnectionInfo, ConnectionState};
use crate::session::dispatch::DialectWorkers;
use crate::session::{AnySession, NextAction, SessionProgress, SessionTurn};
use crate::transport::client_ring::{Receiving, RingState};
use crate::transport::listener::ClientStream;
use crate::transport::output::ConnectionOutput;
use crate::transport::refused_replies::put_errors;
use crate::transport::served_listener::ListenerClient;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use todana_core::RefusalReason;

/// The smallest growth of the buffer of an incomplete request, if at least this number of bytes is
/// expected.
const INPUT_MIN: usize = 4 << 10;

/// A connection.
pub(crate) struct Connection {
    pub(crate) stream: ClientStream,
    /// The entry of this connection in the connection table, with the state that was last written
    /// there.
    pub(crate) info: Arc<ConnectionInfo>,
    shown: (ConnectionState, u64),
    /// The number of the listener.
    pub(crate) listener: usize,
    /// Counts as long as the connection is open.
    pub(crate) client: ListenerClient,
    /// The session, in the dialect that the client speaks.
    pub(crate) session: AnySession,
    input: ReceivedInput,
    /// Output that the socket has not accepted yet.
    pub(crate) pending: Option<Box<ConnectionOutput>>,
    /// The memory of this connection as it was last counted.
    pub(crate) counted: HeldMemory,
    /// The time of the last activity, in seconds since the start of the server. It is updated only
    /// if idle time is limited.
    pub(crate) active_s: u64,
    /// True while the connection is in its worker's queue.
    pub(crate) queued: bool,
    /// True if the socket may have more bytes to read.
    pub(crate) readable: bool,
    /// True if the peer sends no more bytes. Bytes that it has sent may still be in the socket.
    pub(crate) ended: bool,
    /// True if no further request is served; pending output is still sent.
    pub(crate) closing: bool,
    /// The reason for closing the connection; `None` if the peer closed it or the server is
    /// stopping.
    pub(crate) close_cause: Option<CloseCause>,
    pub(crate) durability: PendingDurability,
    pub(crate) ring: RingState,
}

/// The bytes that were received and are not consumed yet.
#[derive(Default)]
struct ReceivedInput {
    bytes: Vec<u8>,
    /// The position of the first byte that is not consumed.
    at: usize,
    /// The least number of bytes that the incomplete request still needs.
    wanted: usize,
    /// True if the kept bytes are not a complete request.
    is_partial: bool,
}

/// The durability that must be reached before the changes of a connection are acknowledged.
#[derive(Default)]
pub(crate) struct PendingDurability {
    /// The commit points that must be durable before the next reply is sent.
    pub(crate) pending_commits: PendingCommits,
    /// The databases that were changed in the last turn, one bit for each. All databases from
    /// number 63 on share the last bit.
    pub(crate) changed: u64,
    /// The time until which replicas must have confirmed the changes.
    pub(crate) ack_deadline: Option<Instant>,
    /// True while the connection is in its worker's list of connections that wait for the update
    /// log. It is not served during that time.
    pub(crate) is_parked: bool,
}

impl PendingDurability {
    /// Notes that the changes may be acknowledged.
    pub(crate) fn clear_commits(&mut self) {
        (self.pending_commits, self.ack_deadline) = Default::default();
    }
}

/// The reason why the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCause {
    /// An error occurred.
    Failed,
    /// The connection was idle for too long.
    Idle,
}

/// The memory that a connection holds between its turns, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldMemory {
    /// The bytes of incomplete requests.
    pub(crate) partial: u64,
    /// The bytes of long values of incomplete requests, which are in memory of the engine.
    pub(crate) received: u64,
    /// The bytes of replies that have not been sent.
    pub(crate) pending: u64,
    /// The part of `pending` that was copied. The rest is shared with the engine.
    pub(crate) copied: u64,
}

impl HeldMemory {
    /// Returns the memory of an incomplete request.
    pub(crate) fn unfinished(self) -> u64 {
        self.partial + self.received
    }

    /// Returns the memory that does not belong to the engine.
    pub(crate) fn sum(self) -> u64 {
        self.partial + self.copied
    }
}

/// The outcome of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// Bytes were read into the buffer. 0 means the end of the stream.
    Input(usize),
    /// Bytes of a long value were read into the value's own memory.
    Value(usize),
    /// Nothing was read, because there is no memory for more of the long value.
    NoRoom,
}

impl Connection {
    pub(crate) fn new(
        stream: ClientStream,
        info: Arc<ConnectionInfo>,
        session: AnySession,
        (listener, client): (usize, ListenerClient),
    ) -> Connection {
        Connection {
            listener,
            client,
            stream,
            shown: (info.state(), info.last_command_at()),
            info,
            session,
            input: ReceivedInput::default(),
            pending: None,
            counted: HeldMemory::default(),
            active_s: 0,
            queued: false,
            readable: true,
            ended: false,
            closing: false,
            close_cause: None,
            durability: PendingDurability::default(),
            ring: RingState::default(),
        }
    }

    /// Begins a turn. The turn may continue a reply of which a part has already been sent.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        // While the connection waits for durability, nothing is sent.
        if self.durability.pending_commits.is_empty() {
            self.session.begin_turn();
        }
    }

    /// Discards the replies that may acknowledge lost writes. Sends an error, unless a part of a
    /// reply has already been sent, and closes the connection. `replies` are the bytes of the
    /// replies.
    pub(crate) fn refuse_changes(&mut self, refusal: RefusalReason, replies: &[u8]) {
        let mut output = ConnectionOutput::default();
        self.session.refuse(refusal, &mut output);
        let is_of_replicas = matches!(refusal, RefusalReason::Unconfirmed | RefusalReason::Superseded);
        if output.is_empty() && is_of_replicas {
            put_errors(self.session.reply_dialect(), refusal, replies, &mut output);
        }
        self.pending = Some(Box::new(output));
        self.durability.clear_commits();
        self.closing = true;
    }

    /// Updates the entry of this connection in the connection table.
    #[inline]
    pub(crate) fn show(&mut self, now: u64) {
        let state = match (self.session.shown_as(), &self.pending) {
            (Some(state), _) => state,
            (None, Some(_)) => ConnectionState::Sending,
            (None, None) if self.has_partial_request() => ConnectionState::Receiving,
            (None, None) => ConnectionState::Waiting,
        };
        if (state, now) != self.shown {
            self.info.set_state(state);
            self.info.set_last_command_at(now);
            self.shown = (state, now);
        }
    }

    /// Returns the number of input bytes that are not consumed.
    pub(crate) fn input_len(&self) -> usize {
        self.input.bytes.len() - self.input.at
    }

    /// Returns the number of received bytes that are not consumed, with those of an incomplete
    /// record of TLS.
    pub(crate) fn kept_len(&self) -> usize {
        self.input_len() + self.stream.kept_lens().0
    }

    /// Returns true if a part of a request has arrived.
    pub(crate) fn has_partial_request(&self) -> bool {
        self.session.is_receiving() || self.input_len() > 0
    }

    /// Returns true if there is work to do before anything is read.
    pub(crate) fn has_work(&self) -> bool {
        self.session.has_work() || self.input_len() > 0
    }

    /// Returns true if all complete requests are answered and all replies are sent, so that only
    /// the peer can cause more work.
    pub(crate) fn is_done(&self) -> bool {
        let has_work =
            self.durability.is_parked || self.readable || (self.has_work() && !self.input.is_partial);
        let is_waiting = self.session.is_waiting() || self.session.has_replies_to_come();
        // A ring may have taken bytes out of the socket that the worker has not seen yet.
        let is_polled = self.ring.receiving == Receiving::Polled;
        self.pending.is_none() && !has_work && !is_waiting && is_polled
    }

    /// Returns true if the connection waits for a request or for the rest of one. As in memcached,
    /// connections over Unix sockets never count as idle.
    pub(crate) fn is_idle(&self) -> bool {
        let is_busy =
            self.queued || self.durability.is_parked || self.session.has_work() || self.session.is_waiting();
        !matches!(self.stream, ClientStream::Unix(_)) && self.pending.is_none() && !is_busy
    }

    /// Returns true if the connection only waits for the next request.
    pub(crate) fn is_calm(&self) -> bool {
        let is_busy =
            self.queued || self.durability.is_parked || self.has_work() || self.session.is_waiting();
        let is_ending = self.readable || self.ended || self.closing;
        self.pending.is_none() && !is_busy && !is_ending && !self.session.is_receiving()
    }

    /// Returns true if the peer sends no more bytes and the current work is of use only to the
    /// peer.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.ended && self.session.ends_with_peer()
    }

    /// Returns the memory that the connection holds now.
    pub(crate) fn held(&self) -> HeldMemory {
        let of_pending = |len: fn(&ConnectionOutput) -> usize| self.pending.as_deref().map_or(0, len) as u64;
        let (pending, copied) = (of_pending(ConnectionOutput::len), of_pending(ConnectionOutput::copied_len));
        let (partial, unsent) = self.stream.kept_lens();
        let retained = self.session.retained();
        HeldMemory {
            partial: (self.input.bytes.len() + partial + retained.own) as u64,
            received: retained.of_engine as u64,
            pending,
            copied: copied + unsent as u64,
        }
    }

    /// Reads once from the socket. The second result is true if the socket has no more bytes now.
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        executor: &impl Executor,
    ) -> io::Result<(ReadOutcome, bool)> {
        if let Some(error) = self.ring.receive_error.take() {
            return Err(error);
        }
        if let Some((upload, database)) = self.session.upload()
            && !upload.is_full()
            && self.stream.reads_any_len()
        {
            let Some(room) = upload.room(database, executor) else { return Ok((ReadOutcome::NoRoom, false)) };
            let wanted = room.len();
            let outcome = self.stream.read_some(room);
            let len = outcome.as_ref().map_or(0, |(len, _)| *len);
            upload.advance(len, len == wanted);
            let (len, drained) = outcome?;
            return Ok((if len == 0 { ReadOutcome::Input(0) } else { ReadOutcome::Value(len) }, drained));
        }
        let (len, drained) = self.stream.read_some(buffer)?;
        Ok((ReadOutcome::Input(len), drained))
    }

    /// Appends bytes that were received while the connection was not served.
    pub(crate) fn keep_unserved(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.input.is_partial = false;
        self.keep(bytes)
    }

    /// Appends the bytes that were just read to the bytes of the incomplete request.
    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.input.at > 0 {
            self.input.bytes.drain(..self.input.at);
            self.input.at = 0;
        }
        if self.input.bytes.capacity() - self.input.bytes.len() < bytes.len() {
            // The buffer grows as bytes arrive, up to the expected length. A client therefore
            // reserves no memory by announcing a length.
            let doubled = self.input.bytes.len().max(INPUT_MIN);
            let wanted =
                if self.input.wanted < bytes.len() { doubled } else { self.input.wanted.min(doubled) };
            let outcome = self.input.bytes.try_reserve_exact(wanted.max(bytes.len()));
            outcome.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        }
        self.input.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Passes the bytes of the incomplete request and `buffer`, which was just read, to the
    /// session. Keeps the bytes that the session does not consume.
    pub(crate) fn serve(
        &mut self,
        buffer: &[u8],
        workers: &mut DialectWorkers,
        turn: &mut SessionTurn<'_>,
    ) -> io::Result<NextAction> {
        if !self.input.bytes.is_empty() && !buffer.is_empty() {
            self.keep(buffer)?;
        }
        let own = std::mem::take(&mut self.input.bytes);
        let data = if own.is_empty() { buffer } else { &own[self.input.at..] };
        let SessionProgress { consumed, next } = self.session.advance(workers, turn, data);
        self.input.is_partial = next.is_read();
        self.input.wanted = if let NextAction::Read { at_least } = next { at_least } else { 0 };
        let left = data.len() - consumed;
        if next.is_last() || left == 0 {
            self.input.at = 0;
        } else if own.is_empty() {
            self.input.bytes = data[consumed..].to_vec();
            self.input.at = 0;
        } else {
            self.input.at += consumed;
            self.input.bytes = own;
        }
        Ok(next)
    }
}
