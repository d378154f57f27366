//! One connection: a socket, a decoder's few bytes, and buffers only while something is in them.

use crate::databases::awaits::Awaits;
use crate::execution::Executor;
use crate::observation::connection_table::{ConnectionInfo, ConnectionState};
use crate::session::dispatch::DialectWorkers;
use crate::session::{AnySession, Next, SessionTurn, Step};
use crate::transport::listener::Stream;
use crate::transport::output::Output;
use std::io;
use std::sync::Arc;
use todana_core::RefusalReason;

/// The least by which the buffer of a request that is not whole grows, if that much is to come.
const INPUT_MIN: usize = 4 << 10;

/// A connection.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// Its entry in the roster, and what was last written there.
    pub(crate) info: Arc<ConnectionInfo>,
    shown: (ConnectionState, u64),
    /// What it speaks, and how far it has come with that.
    pub(crate) session: AnySession,
    input: ReceivedInput,
    /// Output that the socket has not taken yet.
    pub(crate) pending: Option<Box<Output>>,
    /// What was last counted of it: bytes of a request that is not whole, bytes copied for its reader.
    pub(crate) counted: HeldMemory,
    /// The second in which something last happened, since the start of the server; kept where idling is limited.
    pub(crate) active_s: u64,
    /// It stands in its worker's queue.
    pub(crate) queued: bool,
    /// The socket may have more to read.
    pub(crate) readable: bool,
    /// The peer sends no more; what it has sent may still wait in the socket.
    pub(crate) ended: bool,
    /// No further request is served; what is pending is sent.
    pub(crate) closing: bool,
    /// Why it is closed, unless its peer or the server wishes so.
    pub(crate) fault: Option<CloseCause>,
    pub(crate) settlement: PendingDurability,
}

/// Bytes received and not yet consumed.
#[derive(Default)]
struct ReceivedInput {
    bytes: Vec<u8>,
    /// They begin here.
    at: usize,
    /// How many more bytes the request that is not whole needs, at least.
    wanted: usize,
    /// What is kept is not a whole request.
    is_partial: bool,
}

/// What the changes of a connection wait for.
#[derive(Default)]
pub(crate) struct PendingDurability {
    /// It has made changes up to here in the update log; what it is told next waits until that is settled.
    pub(crate) awaits: Awaits,
    /// Which databases it has changed in its last turn, a bit for each (those from number 63 on share the last).
    pub(crate) changed: u64,
    /// It stands in its worker's list of those who wait for the update log, and is served no further until that has come on.
    pub(crate) is_parked: bool,
}

/// Why a connection is closed from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCause {
    /// Something has failed.
    Failed,
    /// Nobody has used it.
    Idle,
}

/// Memory that a connection keeps between its turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldMemory {
    /// Of a request that is not whole yet ...
    pub(crate) partial: u64,
    /// ... and of its long value, in memory of the engine's.
    pub(crate) received: u64,
    /// Of replies that its reader has not taken ...
    pub(crate) pending: u64,
    /// ... and of these the copied ones; values shared with the engine are the engine's.
    pub(crate) copied: u64,
}

impl HeldMemory {
    /// All of a request that is not whole yet.
    pub(crate) fn unfinished(self) -> u64 {
        self.partial + self.received
    }

    /// What is not the engine's.
    pub(crate) fn sum(self) -> u64 {
        self.partial + self.copied
    }
}

/// What reading once has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// So many bytes, into the buffer; 0 at the end of the stream.
    Input(usize),
    /// So many bytes of a long value, into its own memory.
    Value(usize),
    /// Nothing was read: there is no memory for more of the long value.
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
            fault: None,
            settlement: PendingDurability::default(),
        }
    }

    /// A turn begins: what is said in it goes on with a reply that has begun to leave, or does not.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        // As long as it waits nothing leaves.
        if self.settlement.awaits.is_empty() {
            self.session.begin_turn();
        }
    }

    /// What it has been about to be told may not be true. It is told that instead, where that can be said outside of
    /// any reply, and closed.
    pub(crate) fn give_up(&mut self, refusal: RefusalReason) {
        let mut output = Output::default();
        self.session.refuse(refusal, &mut output);
        self.pending = Some(Box::new(output));
        self.settlement.awaits = Awaits::default();
        self.closing = true;
    }

    /// Notes in the roster what it does, and that it has just been served.
    #[inline]
    pub(crate) fn show(&mut self, now: u64) {
        let state = match (self.session.shown_as(), &self.pending) {
            (Some(state), _) => state,
            (None, Some(_)) => ConnectionState::Sending,
            (None, None) if self.is_amid_request() => ConnectionState::Receiving,
            (None, None) => ConnectionState::Waiting,
        };
        if (state, now) != self.shown {
            self.info.set_state(state);
            self.info.set_last_command_at(now);
            self.shown = (state, now);
        }
    }

    /// Bytes of a request that is not whole yet.
    pub(crate) fn input_len(&self) -> usize {
        self.input.bytes.len() - self.input.at
    }

    /// A part of a request has come, and the rest is to.
    pub(crate) fn is_amid_request(&self) -> bool {
        self.session.is_receiving() || self.input_len() > 0
    }

    /// There is something to look at before anything is read.
    pub(crate) fn has_work(&self) -> bool {
        self.session.has_work() || self.input_len() > 0
    }

    /// Nothing more can be done for it without its peer: all that has been received whole is answered and sent.
    pub(crate) fn is_done(&self) -> bool {
        let has_work =
            self.settlement.is_parked || self.readable || (self.has_work() && !self.input.is_partial);
        self.pending.is_none() && !has_work
    }

    /// It waits for a request, or for the rest of one. As in memcached, Unix sockets may do so for ever.
    pub(crate) fn is_idle(&self) -> bool {
        let is_busy =
            self.queued || self.settlement.is_parked || self.session.has_work() || self.session.is_waiting();
        !matches!(self.stream, Stream::Unix(_)) && self.pending.is_none() && !is_busy
    }

    /// Returns true if its peer has gone, or at least sends no more, and what is under way is of use to nobody else.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.ended && self.session.ends_with_peer()
    }

    /// What it keeps now.
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

    /// Reads once; tells too whether there is no more for now.
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

    /// Puts what was just read behind what is kept.
    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.input.at > 0 {
            self.input.bytes.drain(..self.input.at);
            self.input.at = 0;
        }
        if self.input.bytes.capacity() - self.input.bytes.len() < bytes.len() {
            // Grows with what has really come, up to what is known to come: a length alone reserves nothing.
            let doubled = self.input.bytes.len().max(INPUT_MIN);
            let wanted =
                if self.input.wanted < bytes.len() { doubled } else { self.input.wanted.min(doubled) };
            let outcome = self.input.bytes.try_reserve_exact(wanted.max(bytes.len()));
            outcome.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        }
        self.input.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Serves what is kept and what is in `buffer` (just read); keeps what is not consumed.
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
