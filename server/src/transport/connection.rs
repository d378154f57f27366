//! A connection: a socket, a session, and buffers only while they hold something.

use crate::databases::pending_commits::PendingCommits;
use crate::execution::Executor;
use crate::observation::connection_table::{ConnectionInfo, ConnectionState};
use crate::session::dispatch::DialectWorkers;
use crate::session::{AnySession, Next, SessionTurn, Step};
use crate::transport::listener::Stream;
use crate::transport::output::Output;
use std::io;
use std::sync::Arc;
use todana_core::RefusalReason;

/// The smallest growth of the buffer of an incomplete request, if that much is expected.
const INPUT_MIN: usize = 4 << 10;

/// A connection.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// Its entry in the connection table, and the state last written there.
    pub(crate) info: Arc<ConnectionInfo>,
    shown: (ConnectionState, u64),
    /// Its session in the dialect that it speaks.
    pub(crate) session: AnySession,
    input: ReceivedInput,
    /// Output that the socket has not taken yet.
    pub(crate) pending: Option<Box<Output>>,
    /// The memory that was last counted.
    pub(crate) counted: HeldMemory,
    /// The second of the last activity since the start of the server; kept if idle time is limited.
    pub(crate) active_s: u64,
    /// True while it is in its worker's queue.
    pub(crate) queued: bool,
    /// True if the socket may have more to read.
    pub(crate) readable: bool,
    /// True if the peer sends no more. Bytes may still wait in the socket.
    pub(crate) ended: bool,
    /// True if no further request is served; pending output is still sent.
    pub(crate) closing: bool,
    /// The cause of its end, unless the peer or the server closes it.
    pub(crate) close_cause: Option<CloseCause>,
    pub(crate) durability: PendingDurability,
}

/// Bytes received and not yet consumed.
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

/// The durability that the changes of a connection wait for.
#[derive(Default)]
pub(crate) struct PendingDurability {
    /// The commit points that must be durable before the next reply is sent.
    pub(crate) pending_commits: PendingCommits,
    /// The databases changed in the last turn, one bit for each (numbers from 63 on share the last
    /// bit).
    pub(crate) changed: u64,
    /// True while it is in its worker's list of connections that wait for the update log. It is not
    /// served meanwhile.
    pub(crate) is_parked: bool,
}

/// The reason why the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCause {
    /// An error occurred.
    Failed,
    /// It was idle for too long.
    Idle,
}

/// The memory that a connection holds between its turns, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldMemory {
    /// Incomplete requests ...
    pub(crate) partial: u64,
    /// ... and their long values, in memory of the engine.
    pub(crate) received: u64,
    /// Replies that the peer has not taken ...
    pub(crate) pending: u64,
    /// ... and the copied part of these; shared values are the engine's.
    pub(crate) copied: u64,
}

impl HeldMemory {
    /// Returns the memory of an incomplete request.
    pub(crate) fn unfinished(self) -> u64 {
        self.partial + self.received
    }

    /// Returns the memory that is not the engine's.
    pub(crate) fn sum(self) -> u64 {
        self.partial + self.copied
    }
}

/// The outcome of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// Bytes in the buffer; 0 at the end of the stream.
    Input(usize),
    /// Bytes of a long value, in its own memory.
    Value(usize),
    /// Nothing was read, because there is no memory for more of the long value.
    NoRoom,
}

impl Connection {
    pub(crate) fn new(stream: Stream, info: Arc<ConnectionInfo>, session: AnySession) -> Connection {
        Connection {
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
        }
    }

    /// Begins a turn, which may continue a reply that has begun to leave.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        // Nothing leaves while the connection waits.
        if self.durability.pending_commits.is_empty() {
            self.session.begin_turn();
        }
    }

    /// Discards replies that may acknowledge lost writes, sends the refusal if no reply is half
    /// sent, and closes the connection.
    pub(crate) fn refuse_changes(&mut self, refusal: RefusalReason) {
        let mut output = Output::default();
        self.session.refuse(refusal, &mut output);
        self.pending = Some(Box::new(output));
        self.durability.pending_commits = PendingCommits::default();
        self.closing = true;
    }

    /// Updates the entry in the connection table.
    #[inline]
    pub(crate) fn show(&mut self, now: u64) {
        let state = match (self.session.shown_as(), &self.pending) {
            (Some(state), _) => state,
            (None, Some(_)) => ConnectionState::Sending,
            (None, None) if self.is_amid_request() => ConnectionState::ExportReceiver,
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

    /// Returns true if a part of a request has arrived.
    pub(crate) fn is_amid_request(&self) -> bool {
        self.session.is_receiving() || self.input_len() > 0
    }

    /// Returns true if there is work to do before anything is read.
    pub(crate) fn has_work(&self) -> bool {
        self.session.has_work() || self.input_len() > 0
    }

    /// Returns true if nothing can be done without the peer: all complete requests are answered and
    /// sent.
    pub(crate) fn is_done(&self) -> bool {
        let has_work =
            self.durability.is_parked || self.readable || (self.has_work() && !self.input.is_partial);
        self.pending.is_none() && !has_work
    }

    /// Returns true if it waits for a request, or for the rest of one. As in memcached, Unix
    /// sockets may do so for any time.
    pub(crate) fn is_idle(&self) -> bool {
        let is_busy =
            self.queued || self.durability.is_parked || self.session.has_work() || self.session.is_waiting();
        !matches!(self.stream, Stream::Unix(_)) && self.pending.is_none() && !is_busy
    }

    /// Returns true if the peer sends no more and the work under way is of use to nobody else.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.ended && self.session.ends_with_peer()
    }

    /// Returns the memory that it holds now.
    pub(crate) fn held(&self) -> HeldMemory {
        let of_pending = |len: fn(&Output) -> usize| self.pending.as_deref().map_or(0, len) as u64;
        let (pending, copied) = (of_pending(Output::len), of_pending(Output::copied_len));
        let (partial, unsent) = self.stream.kept_lens();
        let retained = self.session.retained();
        HeldMemory {
            partial: (self.input.bytes.len() + partial + retained.own) as u64,
            received: retained.of_engine as u64,
            pending,
            copied: copied + unsent as u64,
        }
    }

    /// Reads once. Also returns true if there is no more for now.
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        executor: &impl Executor,
    ) -> io::Result<(ReadOutcome, bool)> {
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

    /// Appends the bytes that were just read to the kept ones.
    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.input.at > 0 {
            self.input.bytes.drain(..self.input.at);
            self.input.at = 0;
        }
        if self.input.bytes.capacity() - self.input.bytes.len() < bytes.len() {
            // The buffer grows with the bytes that have arrived, up to the expected length: an
            // announced length alone reserves nothing.
            let doubled = self.input.bytes.len().max(INPUT_MIN);
            let wanted =
                if self.input.wanted < bytes.len() { doubled } else { self.input.wanted.min(doubled) };
            let outcome = self.input.bytes.try_reserve_exact(wanted.max(bytes.len()));
            outcome.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        }
        self.input.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Serves the kept input and `buffer`, which was just read; keeps the bytes that are not
    /// consumed.
    pub(crate) fn serve(
        &mut self,
        buffer: &[u8],
        workers: &mut DialectWorkers,
        turn: &mut SessionTurn<'_>,
    ) -> io::Result<Next> {
        if !self.input.bytes.is_empty() && !buffer.is_empty() {
            self.keep(buffer)?;
        }
        let own = std::mem::take(&mut self.input.bytes);
        let data = if own.is_empty() { buffer } else { &own[self.input.at..] };
        let Step { consumed, next } = self.session.advance(workers, turn, data);
        self.input.is_partial = next.is_read();
        self.input.wanted = if let Next::Read { at_least } = next { at_least } else { 0 };
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
