//! One connection: a socket, a decoder's few bytes, and buffers only while something is in them.

use crate::databases::awaits::Awaits;
use crate::databases::exports::Receiving;
use crate::observation::roster::{Seat, State};
use crate::session::flow::{Announced, BATCH, Execute, Flow, Pause};
use crate::session::kyoto::{PluginSession, Session, Ticket};
use crate::session::login::Login;
use crate::session::memcached::listing::Listing;
use crate::session::memcached::upload::Upload;
use crate::transport::listener::Stream;
use crate::transport::output::{OUTPUT_MAX, Output};
use std::io;
use std::sync::Arc;
use todana_core::{Command, Refusal, Reply};
use todana_protocol::kyoto::{self, Beginning};
use todana_protocol::memcached::{Choice, Dialect, Form, Limits, Request, Step, encode};

/// The least by which the buffer of a request that is not whole grows, if that much is to come.
const INPUT_MIN: usize = 4 << 10;

/// A connection.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// Its entry in the roster, and what was last written there.
    pub(crate) seat: Arc<Seat>,
    shown: (State, u64),
    dialect: Dialect,
    /// It speaks Kyoto Tycoon's protocols.
    pub(crate) kyoto: Option<Box<Session>>,
    /// It speaks memcached's protocol as Kyoto Tycoon's plug-in does.
    pub(crate) plugin: Option<PluginSession>,
    /// The number of the database that its commands go to.
    pub(crate) database: usize,
    /// Which dialect of memcached's it may speak.
    pub(crate) choice: Choice,
    /// It may speak Kyoto Tycoon's protocols instead, which its first bytes tell.
    pub(crate) may_speak_kyoto: bool,
    /// How far its client has come with saying who they are.
    pub(crate) login: Login,
    /// Bytes received and not yet consumed, from `input_at` on.
    input: Vec<u8>,
    input_at: usize,
    /// How many more bytes the request that is not whole needs, at least.
    wanted: usize,
    /// The long value that is being received.
    upload: Option<Upload>,
    /// It has said its first byte, and so which dialect it speaks.
    is_introduced: bool,
    /// Output that the socket has not taken yet.
    pub(crate) pending: Option<Box<Output>>,
    /// What was last counted of it: bytes of a request that is not whole, bytes copied for its reader.
    pub(crate) counted: Held,
    /// The second in which something last happened, since the start of the server; kept where idling is limited.
    pub(crate) active_s: u64,
    /// It stands in its worker's queue.
    pub(crate) queued: bool,
    /// The socket may have more to read.
    pub(crate) readable: bool,
    /// The peer sends no more; what it has sent may still wait in the socket.
    pub(crate) ended: bool,
    /// It watches events; what it sends is read and dropped.
    pub(crate) watches: bool,
    /// It is closed because something has failed.
    pub(crate) failed: bool,
    /// It is closed because nobody has used it.
    pub(crate) is_kicked: bool,
    /// No further request is served; what is pending is sent.
    pub(crate) closing: bool,
    /// It has changed what is told up to here in the update log; what it is told next waits until that is settled.
    pub(crate) awaits: Awaits,
    /// Which databases it has changed in its last turn, a bit for each (those from number 63 on share the last).
    pub(crate) changed: u64,
    /// It stands in its worker's list of those who wait for the update log, and is served no further until that has come on.
    pub(crate) is_parked: bool,
    /// When it began to wait, a part of the reply that it was in had left already.
    is_amid_reply: bool,
    /// What is kept is not a whole request.
    needs_input: bool,
    /// A walk over all records is under way; `Some(None)`: it is about to begin.
    listing: Option<Option<Box<Listing>>>,
    /// An export is under way; what else its client asks for comes later.
    pub(crate) export: Option<Receiving>,
}

/// Memory that a connection keeps between its turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Of a request that is not whole yet ...
    pub(crate) partial: u64,
    /// ... and of its long value, in memory of the engine's.
    pub(crate) received: u64,
    /// Of replies that its reader has not taken ...
    pub(crate) pending: u64,
    /// ... and of these the copied ones; values shared with the engine are the engine's.
    pub(crate) copied: u64,
}

impl Held {
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
pub(crate) enum Got {
    /// So many bytes, into the buffer; 0 at the end of the stream.
    Input(usize),
    /// So many bytes of a long value, into its own memory.
    Value(usize),
    /// Nothing was read: there is no memory for more of the long value.
    NoRoom,
}

impl Connection {
    pub(crate) fn new(stream: Stream, seat: Arc<Seat>, choice: Choice) -> Connection {
        Connection {
            stream,
            shown: (seat.state(), seat.last_command_at()),
            seat,
            dialect: Dialect::default(),
            kyoto: None,
            plugin: None,
            database: 0,
            choice,
            may_speak_kyoto: false,
            login: Login::default(),
            input: Vec::new(),
            input_at: 0,
            wanted: 0,
            upload: None,
            is_introduced: false,
            pending: None,
            counted: Held::default(),
            active_s: 0,
            queued: false,
            readable: true,
            ended: false,
            watches: false,
            failed: false,
            is_kicked: false,
            closing: false,
            awaits: Awaits::default(),
            changed: 0,
            is_parked: false,
            is_amid_reply: false,
            needs_input: false,
            listing: None,
            export: None,
        }
    }

    /// It speaks Kyoto Tycoon's protocols, whatever it begins with.
    pub(crate) fn speak_kyoto(&mut self) {
        self.is_introduced = true;
        self.kyoto = Some(Box::default());
    }

    /// It speaks memcached's protocol as Kyoto Tycoon's plug-in does.
    pub(crate) fn speak_as_plugin(&mut self) {
        self.is_introduced = true;
        self.plugin = Some(PluginSession::default());
    }

    /// A turn begins: what is said in it goes on with a reply that has begun to leave, or does not.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        // As long as it waits nothing leaves.
        if self.awaits.is_empty() {
            self.is_amid_reply = self.listing.is_some() || self.dialect.is_between_keys();
        }
    }

    /// What it has been about to be told may not be true. It is told that instead, where that can be said outside of
    /// any reply, and closed.
    pub(crate) fn give_up(&mut self, refusal: Refusal) {
        let mut output = Output::default();
        if self.kyoto.is_none() && self.plugin.is_none() && !self.dialect.is_binary() && !self.is_amid_reply {
            encode(&Form::LINE, &Reply::Refused(refusal), &mut output);
        }
        self.pending = Some(Box::new(output));
        self.awaits = Awaits::default();
        self.closing = true;
    }

    /// Notes in the roster what it does, and that it has just been served.
    #[inline]
    pub(crate) fn show(&mut self, now: u64) {
        let state = match (&self.pending, self.input_len()) {
            _ if self.watches => State::Watching,
            _ if self.export.is_some() => State::Sending,
            (Some(_), _) => State::Sending,
            (None, 0) if self.upload.is_none() => State::Waiting,
            (None, _) => State::Receiving,
        };
        if (state, now) != self.shown {
            self.seat.has_come_to(state);
            self.seat.has_asked(now);
            self.shown = (state, now);
        }
    }

    /// Bytes of a request that is not whole yet.
    pub(crate) fn input_len(&self) -> usize {
        self.input.len() - self.input_at
    }

    /// A part of a request has come, and the rest is to.
    pub(crate) fn is_amid_request(&self) -> bool {
        self.upload.is_some() || self.input_len() > 0
    }

    /// There is something to look at before anything is read.
    pub(crate) fn has_work(&self) -> bool {
        self.listing.is_some() || self.input_len() > 0
    }

    /// Nothing more can be done for it without its peer: all that has been received whole is answered and sent.
    pub(crate) fn is_done(&self) -> bool {
        let has_work = self.is_parked || self.readable || (self.has_work() && !self.needs_input);
        self.pending.is_none() && !has_work
    }

    /// It waits for a request, or for the rest of one. As in memcached, Unix sockets may do so for ever.
    pub(crate) fn is_idle(&self) -> bool {
        let is_busy = self.queued
            || self.is_parked
            || self.watches
            || self.listing.is_some()
            || self.export.is_some()
            || self.is_waiting();
        !matches!(self.stream, Stream::Unix(_)) && self.pending.is_none() && !is_busy
    }

    /// Whoever checks a password, sends a signal, or leaves a message has to come first.
    pub(crate) fn is_waiting(&self) -> bool {
        self.login.is_waiting()
            || self.kyoto.as_ref().is_some_and(|session| session.is_waiting())
            || self.waits_for_message()
    }

    /// It waits for a message of a queue.
    pub(crate) fn waits_for_message(&self) -> bool {
        self.plugin.as_ref().is_some_and(PluginSession::is_waiting)
    }

    /// The waiting that a ticket names has come to its end; false if it is not at that.
    pub(crate) fn end_wait(&mut self, ticket: Ticket, was_signalled: bool) -> bool {
        match (&mut self.kyoto, &mut self.plugin) {
            (Some(session), _) => session.end_wait(ticket, was_signalled),
            (None, Some(session)) => session.end_wait(ticket, was_signalled),
            (None, None) => false,
        }
    }

    /// It waits for a signal that may never come, or for a search that may take minutes, and its peer has gone, or at least sends no
    /// more: nobody would hear of it.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.ended && self.kyoto.as_ref().is_some_and(|session| session.waits_for_its_peer_alone())
    }

    /// What it keeps now.
    pub(crate) fn held(&self) -> Held {
        let of_pending = |len: fn(&Output) -> usize| self.pending.as_deref().map_or(0, len) as u64;
        let (pending, copied) = (of_pending(Output::len), of_pending(Output::copied_len));
        let (partial, unsent) = self.stream.kept_lens();
        let found = self.kyoto.as_ref().map_or(0, |session| session.kept_len());
        let taken = self.plugin.as_ref().map_or(0, PluginSession::kept_len);
        let (head, received) = self.upload.as_ref().map_or((0, 0), Upload::held);
        Held {
            partial: (self.input.len() + head + partial + found + taken) as u64,
            received: received as u64,
            pending,
            copied: copied + unsent as u64,
        }
    }

    /// Reads once; tells too whether there is no more for now.
    pub(crate) fn read(&mut self, buffer: &mut [u8], service: &impl Execute) -> io::Result<(Got, bool)> {
        if let Some(upload) = &mut self.upload
            && !upload.is_full()
            && self.stream.reads_any_len()
        {
            let Some(room) = upload.room(service) else { return Ok((Got::NoRoom, false)) };
            let wanted = room.len();
            let outcome = self.stream.read_some(room);
            let len = outcome.as_ref().map_or(0, |(len, _)| *len);
            upload.advance(len, len == wanted);
            let (len, drained) = outcome?;
            return Ok((if len == 0 { Got::Input(0) } else { Got::Value(len) }, drained));
        }
        let (len, drained) = self.stream.read_some(buffer)?;
        Ok((Got::Input(len), drained))
    }

    /// Puts what was just read behind what is kept.
    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.input_at > 0 {
            self.input.drain(..self.input_at);
            self.input_at = 0;
        }
        if self.input.capacity() - self.input.len() < bytes.len() {
            // Grows with what has really come, up to what is known to come: a length alone reserves nothing.
            let doubled = self.input.len().max(INPUT_MIN);
            let wanted = if self.wanted < bytes.len() { doubled } else { self.wanted.min(doubled) };
            let outcome = self.input.try_reserve_exact(wanted.max(bytes.len()));
            outcome.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        }
        self.input.extend_from_slice(bytes);
        Ok(())
    }

    /// Serves what is kept and what is in `buffer` (just read); keeps what is not consumed.
    pub(crate) fn serve(
        &mut self,
        buffer: &[u8],
        limits: &Limits,
        budget: &mut u32,
        scratch: &mut [Vec<u8>; BATCH],
        service: &mut impl Execute,
        output: &mut Output,
    ) -> io::Result<Pause> {
        if !self.input.is_empty() && !buffer.is_empty() {
            self.keep(buffer)?;
        }
        let own = std::mem::take(&mut self.input);
        let data = if own.is_empty() { buffer } else { &own[self.input_at..] };
        let mut is_unsure = false;
        if !self.is_introduced && self.may_speak_kyoto {
            match kyoto::begins(data) {
                Beginning::Kyoto => self.speak_kyoto(),
                Beginning::Unsure => is_unsure = true,
                Beginning::Other => {}
            }
        }
        if !self.is_introduced && !data.is_empty() && !is_unsure {
            self.is_introduced = true;
            if service.is_aloud() && self.choice == Choice::Auto {
                service.tell_dialect(self.dialect.begins_binary(limits, data));
            }
        }
        let (mut consumed, mut wanted) = (0, 0);
        let pause = loop {
            if is_unsure {
                break Pause::NeedsInput;
            }
            if let Some(session) = &mut self.kyoto {
                let (served, more, pause) =
                    service.converse(session, &data[consumed..], limits.unfinished_len_max, budget, output);
                (consumed, wanted) = (consumed + served, more);
                break pause;
            }
            if let Some(session) = &mut self.plugin {
                let (served, more, pause) = service.converse_as_plugin(
                    session,
                    &data[consumed..],
                    limits.unfinished_len_max,
                    budget,
                    output,
                );
                (consumed, wanted) = (consumed + served, more);
                break pause;
            }
            if let Some(listing) = self.listing.take() {
                self.listing = service.list(listing, output).map(Some);
                if self.listing.is_some() || output.len() > OUTPUT_MAX {
                    break Pause::Blocked;
                }
            }
            let rest = &data[consumed..];
            if let Some(upload) = &mut self.upload {
                let (served, received) = upload.receive(rest, service);
                consumed += served;
                let Some(block) = received else {
                    wanted = upload.missing();
                    break Pause::NeedsInput;
                };
                let upload = self.upload.take().expect("it was here above");
                let flow = upload.execute(
                    block,
                    &mut self.dialect,
                    &mut self.login,
                    limits,
                    &mut scratch[0],
                    service,
                    output,
                );
                *budget = budget.saturating_sub(1);
                if flow == Flow::Close {
                    break Pause::Closes;
                }
                continue;
            }
            let (served, more, pause) =
                serve_all(&mut self.dialect, &mut self.login, rest, limits, budget, scratch, service, output);
            wanted = more;
            consumed += served;
            match pause {
                Pause::Lists => self.listing = Some(None),
                Pause::Receives(announced) => {
                    let head = &data[consumed..consumed + announced.head_len];
                    consumed += head.len();
                    self.upload = Some(Upload::new(head, announced, service));
                }
                pause => break pause,
            }
        };
        self.wanted = wanted;
        self.needs_input = pause == Pause::NeedsInput;
        self.watches = pause == Pause::Watches;
        let left = data.len() - consumed;
        if pause.is_last() || self.watches || left == 0 {
            self.input_at = 0;
        } else if own.is_empty() {
            self.input = data[consumed..].to_vec();
            self.input_at = 0;
        } else {
            self.input_at += consumed;
            self.input = own;
        }
        Ok(pause)
    }
}

#[allow(clippy::too_many_arguments, reason = "the fields of a connection and of its worker, borrowed apart")]
fn serve_all(
    dialect: &mut Dialect,
    login: &mut Login,
    data: &[u8],
    limits: &Limits,
    budget: &mut u32,
    scratch: &mut [Vec<u8>; BATCH],
    service: &mut impl Execute,
    output: &mut Output,
) -> (usize, usize, Pause) {
    let mut at = 0;
    loop {
        if *budget == 0 {
            // With nothing left to serve, its turn would have been over anyway: memcached counts no yield for that.
            let pause = if at == data.len() { Pause::NeedsInput } else { Pause::Yields };
            return (at, 0, pause);
        }
        if output.len() > OUTPUT_MAX {
            return (at, 0, Pause::Blocked);
        }
        let mut batch: [Option<Request<'_>>; BATCH] = [const { None }; BATCH];
        // Where the decoder stood behind each request: the reader may turn out too slow for all of them.
        let start = (at, *dialect);
        let mut behind = [start; BATCH];
        let mut len = 0;
        let mut end = None;
        let mut lines = 0;
        for slot in scratch.iter_mut() {
            if lines == *budget {
                break;
            }
            match dialect.decode(limits, &data[at..], slot) {
                Step::Request { consumed, request } => {
                    at += consumed;
                    // The keys of one line share its turn.
                    lines += u32::from(request.form.is_last_of_line());
                    // Nothing behind a quit is looked at; what is behind a walk over all records or a login, later.
                    let quits = matches!(
                        request.command,
                        Command::Quit
                            | Command::List(_)
                            | Command::Watch(_)
                            | Command::Export(_)
                            | Command::UseDatabase(_)
                            | Command::Stats { .. }
                            | Command::Authenticate(_)
                    );
                    batch[len] = Some(request);
                    behind[len] = (at, *dialect);
                    len += 1;
                    if quits {
                        break;
                    }
                }
                Step::NeedMore { consumed, at_least } => {
                    at += consumed;
                    end = Some((at_least, Pause::NeedsInput));
                    break;
                }
                Step::Block { consumed, head_len, value_len, end_len } => {
                    at += consumed;
                    end = Some((0, Pause::Receives(Announced { head_len, value_len, end_len })));
                    break;
                }
                Step::Close => {
                    end = Some((0, Pause::Fails));
                    break;
                }
            }
        }
        let batch = &batch[..len];
        if len > 1 {
            batch
                .iter()
                .flatten()
                .filter_map(|request| key_of(&request.command))
                .for_each(|key| service.prefetch(key));
        }
        for (index, request) in batch.iter().flatten().enumerate() {
            let flow = if service.is_aloud() {
                let (from, before) = if index == 0 { start } else { behind[index - 1] };
                service.execute_aloud(before.head(limits, &data[from..]), request, login, output)
            } else {
                service.execute(request, login, output)
            };
            match flow {
                Flow::Continue if output.len() > OUTPUT_MAX && index + 1 < len => {
                    (at, *dialect) = behind[index];
                    return (at, 0, Pause::Blocked);
                }
                Flow::Continue => {}
                Flow::List => return (at, 0, Pause::Lists),
                Flow::Watch => return (at, 0, Pause::Watches),
                Flow::Export => return (at, 0, Pause::Exports),
                Flow::Use => return (at, 0, Pause::Yields),
                Flow::Admit => dialect.admit(),
                Flow::Expel => dialect.expel(),
                Flow::Wait => {
                    (at, *dialect) = if index == 0 { start } else { behind[index - 1] };
                    return (at, 0, Pause::Waits);
                }
                Flow::Close => return (at, 0, Pause::Closes),
            }
        }
        *budget -= lines;
        if let Some((wanted, pause)) = end {
            return (at, wanted, pause);
        }
    }
}

/// The key that a command looks for.
#[inline]
fn key_of<'a>(command: &Command<'a>) -> Option<&'a [u8]> {
    match command {
        Command::Get(get) => Some(get.key),
        Command::Store(store) => Some(store.key),
        Command::Delete(delete) => Some(delete.key),
        Command::Arithmetic(arithmetic) => Some(arithmetic.key),
        Command::Touch(touch) => Some(touch.key),
        _ => None,
    }
}
