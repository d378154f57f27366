//! Defines the session of a client of the proxy.

use super::client_login::ClientLogin;
use super::client_upload::{AnnouncedBlock, ClientUpload, LONG_VALUE, UploadStep};
use super::key_lines::KeyLine;
use super::moved_read::MovedOutcome;
use super::request_routing::RoutingTurn;
use super::request_starts::{RequestStart, RequestStarts};
use super::route_run::HeldScope;
use super::waiting_request::{PassedPart, WaitingRequest};
use crate::proxy::{ProxyState, ProxyWorker, ReplyDelivery, RequestTag};
use crate::session::wake::WakeReason;
use crate::session::worker_context::WorkerContext;
use crate::session::{NextAction, RetainedMemory, Session, SessionProgress, SessionTurn};
use crate::shared::SharedState;
use crate::transport::output::{ConnectionOutput, OUTPUT_MAX};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use todana_protocol::ReplySink;
use todana_protocol::memcached::{MemcachedDecoder, MemcachedLimits, MemcachedStep};

/// The number of requests of one client that may wait for their replies.
const WAITING_MAX: usize = 4096;
/// The number of bytes of replies that may wait for an earlier reply. A client with more gets no
/// further request sent.
const ARRIVED_MAX: usize = 256 << 10;
/// The largest record that memcached can be configured for.
const ITEM_SIZE_MAX: u64 = 1 << 30;
/// Values of a line with several keys are sent once they have this number of bytes, or all have
/// arrived. To send them earlier would cost a system call for each server.
const LINE_PIECE_LEN: usize = 16 << 10;
/// The number of bytes after which the worker counts the memory of a session again.
const REPORTED_STEP: usize = 256 << 10;
/// A larger buffer of replies is freed when it is empty.
const READY_KEPT: usize = 128;
/// A larger queue of requests is freed when it is empty.
const WAITING_KEPT: usize = 16;

/// A connection of a client of the proxy.
#[derive(Default)]
pub(crate) struct ProxySession {
    pub(super) decoder: MemcachedDecoder,
    /// The number of the session; 0 until its first request.
    pub(super) number: u64,
    /// The number of the listener, which chooses the routes.
    pub(super) listener: usize,
    /// The number of the first waiting request.
    first: u64,
    waiting: VecDeque<WaitingRequest>,
    starts: RequestStarts,
    /// The beginning of the request that is being executed.
    pub(super) start: RequestStart,
    /// The parts of requests whose routes can continue.
    changed: Vec<RequestTag>,
    /// The line of several keys that is being decoded, and the pools that its keys refer to.
    pub(super) line: Option<(Arc<ProxyState>, Box<KeyLine>)>,
    /// Replies that may be sent.
    ready: Vec<u8>,
    /// The number of bytes of replies that cannot be sent yet, because an earlier one is missing.
    arrived_len: usize,
    pub(super) login: ClientLogin,
    /// The long value that is arriving.
    pub(super) upload: Option<Box<ClientUpload>>,
    /// The number of the last request that may change a record.
    last_write: u64,
    /// True while the next request waits for the replies to all earlier ones.
    awaits_all: bool,
    /// The number of bytes of replies that were kept when the session last asked for a turn because
    /// of them, in steps of [`REPORTED_STEP`].
    reported_steps: usize,
    /// True if a route may wait for its servers.
    has_routed: bool,
    /// True while the next request waits for an earlier one.
    is_held: bool,
    pub(super) turn: AwaitedTurn,
    /// True after `quit`.
    closes: bool,
}

/// The wait of a session for its turn, because as many requests are in flight as allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AwaitedTurn {
    /// It does not wait.
    #[default]
    None,
    /// It waits since this time.
    Waiting(Instant),
    /// It may send a request. It has waited since this time.
    Granted(Instant),
    /// It has waited too long for its next request.
    Refused,
}

/// The state of a worker for the sessions of the proxy.
pub(crate) struct ProxySessionWorker {
    limits: MemcachedLimits,
    scratch: Vec<u8>,
}

impl ProxySessionWorker {
    pub(crate) fn new(shared: &SharedState) -> ProxySessionWorker {
        // The servers decide which values are too long.
        let long_block_len = LONG_VALUE + 1;
        let limits = MemcachedLimits { item_size_max: ITEM_SIZE_MAX, long_block_len, ..shared.limits() };
        ProxySessionWorker { limits, scratch: Vec::new() }
    }
}

impl ProxySession {
    /// Creates the session of a connection to the listener with this number.
    pub(crate) fn of_listener(listener: usize) -> ProxySession {
        ProxySession { listener, ..ProxySession::default() }
    }

    /// Notes what arrives for a request. Returns true if the session needs a turn: if there are
    /// replies to send, or if it no longer waits for any.
    pub(crate) fn receive(&mut self, tag: RequestTag, delivery: ReplyDelivery<'_>) -> bool {
        if tag.session != self.number {
            return false;
        }
        let was_waiting = self.is_waiting();
        if let ReplyDelivery::Turn { is_in_time } = delivery {
            if let AwaitedTurn::Waiting(since) = self.turn {
                self.turn = if is_in_time { AwaitedTurn::Granted(since) } else { AwaitedTurn::Refused };
            }
            return was_waiting && !self.is_waiting();
        }
        self.note_upload(tag, delivery);
        let has_ready = self.keep(tag, delivery);
        let steps = (self.arrived_len + self.ready.len()) / REPORTED_STEP;
        let has_grown = std::mem::replace(&mut self.reported_steps, steps) < steps;
        has_ready || has_grown || self.waiting.is_empty() || (was_waiting && !self.is_waiting())
    }

    /// Notes what arrives for the request whose long value is arriving.
    fn note_upload(&mut self, tag: RequestTag, delivery: ReplyDelivery<'_>) {
        let Some(upload) = self.upload.as_mut().filter(|upload| upload.is_of(tag.request)) else { return };
        match delivery {
            ReplyDelivery::UploadContinues => upload.unblock(),
            ReplyDelivery::Lost { .. } => upload.discard(),
            ReplyDelivery::Part(part) if part.is_last => upload.discard(),
            _ => {}
        }
    }

    /// Keeps what arrives for a request. Returns true if there are replies to send.
    fn keep(&mut self, tag: RequestTag, delivery: ReplyDelivery<'_>) -> bool {
        let index = tag.request.wrapping_sub(self.first) as usize;
        let Some(request) = self.waiting.get_mut(index) else { return false };
        if let ReplyDelivery::LongValue { part, server, options } = delivery
            && tag.question == 0
            // The server may have executed later writes, and the client must not see them yet.
            && self.last_write <= tag.request
            && request.move_read(tag, part, (server, options))
        {
            self.has_routed = true;
            return index == 0;
        }
        if let WaitingRequest::Moved(_) = request {
            return self.keep_moved(index, tag, delivery);
        }
        let delivery = delivery.kept();
        let first = self.first;
        // The usual case needs no copy beside `ready`.
        let mut passed = PassedPart::Nothing;
        if index == 0
            && let ReplyDelivery::Part(part) = delivery
        {
            passed = request.pass_on(tag.part, part, &mut self.ready);
        }
        match passed {
            PassedPart::Piece => return self.has_piece(first),
            PassedPart::BeforeKept => {}
            PassedPart::End => {
                self.waiting.pop_front();
                self.first += 1;
            }
            PassedPart::Nothing => {
                let (kept, is_changed) = request.receive(tag, delivery);
                self.arrived_len += kept;
                if is_changed {
                    self.changed.push(tag);
                }
            }
        }
        (index == 0 && self.collect() && self.has_piece(first)) || !self.changed.is_empty()
    }

    /// Returns true if the bytes in `ready` are worth a turn: they end a reply, or are a piece of
    /// one that should not wait. `first` is the number of the first waiting request before they
    /// arrived.
    fn has_piece(&self, first: u64) -> bool {
        match self.waiting.front() {
            Some(WaitingRequest::Merged(_)) if self.first == first => self.ready.len() >= LINE_PIECE_LEN,
            _ => self.has_ready(),
        }
    }

    /// Keeps what arrives for a read with a connection for itself. Returns true if the session
    /// needs a turn.
    fn keep_moved(&mut self, index: usize, tag: RequestTag, delivery: ReplyDelivery<'_>) -> bool {
        // Such a read begins once it is the first request.
        let Some(WaitingRequest::Moved(read)) = self.waiting.front_mut().filter(|_| index == 0) else {
            return false;
        };
        let was_overtaken = read.may_be_overtaken();
        match read.receive(tag, delivery, &mut self.ready) {
            MovedOutcome::Continues => {
                if was_overtaken && !read.may_be_overtaken() {
                    // Requests that waited for it can be sent.
                    self.changed.push(tag);
                }
            }
            MovedOutcome::Complete => {
                self.changed.push(tag);
                self.waiting.pop_front();
                self.first += 1;
            }
            MovedOutcome::Cut => self.waiting[0] = WaitingRequest::Close,
        }
        self.collect() || !self.changed.is_empty() || self.can_advance_moved()
    }

    /// Returns true if the first request is a read that asks for its reply, or its next part.
    fn can_advance_moved(&self) -> bool {
        matches!(self.waiting.front(), Some(WaitingRequest::Moved(read)) if read.can_advance())
    }

    /// Asks for the reply, or its next part, of a read with a connection for itself. Returns true
    /// if it is answered at once.
    fn advance_moved(&mut self, proxy: &mut ProxyWorker) -> bool {
        let Some(WaitingRequest::Moved(read)) = self.waiting.front_mut() else { return false };
        let Some(reply) = read.advance(proxy) else { return false };
        self.waiting[0] = WaitingRequest::Complete(reply);
        self.is_held = false;
        true
    }

    /// Moves the replies that may be sent to `ready`. Returns true if there are any.
    fn collect(&mut self) -> bool {
        let before = self.ready.len();
        while let Some(request) = self.waiting.front_mut()
            && request.drain(&mut self.ready)
        {
            self.waiting.pop_front();
            self.first += 1;
        }
        self.arrived_len = match self.waiting.is_empty() {
            true => 0,
            false => self.arrived_len.saturating_sub(self.ready.len() - before),
        };
        self.has_ready()
    }

    fn has_ready(&self) -> bool {
        !self.ready.is_empty() || matches!(self.waiting.front(), Some(WaitingRequest::Close))
    }

    /// Returns true if a reply must still be sent.
    pub(crate) fn has_waiting(&self) -> bool {
        // A request whose value has not arrived gets no reply.
        let incomplete = self.upload.as_ref().is_some_and(|upload| upload.awaits_reply());
        self.waiting.len() > usize::from(incomplete) || !self.ready.is_empty()
    }

    /// Continues with the long value that is arriving. Returns the number of bytes of `input` that
    /// were used, and what to do next unless it is complete.
    fn advance_upload(
        &mut self,
        turn: &mut RoutingTurn<'_>,
        input: &[u8],
    ) -> Option<(usize, Option<NextAction>)> {
        let upload = self.upload.as_mut()?;
        let (used, step) = upload.advance(turn.proxy, input);
        let next = match step {
            UploadStep::Read { at_least } => Some(NextAction::Read { at_least }),
            UploadStep::Wait => Some(NextAction::Wait),
            UploadStep::Complete => {
                // Later requests must not overtake this one on another connection.
                self.awaits_all = upload.awaits_reply();
                self.upload = None;
                None
            }
            UploadStep::Refused(refusal) => {
                self.refuse_upload(refusal);
                None
            }
            UploadStep::Unterminated => {
                self.reject_upload(turn);
                None
            }
        };
        Some((used, next))
    }

    /// Returns true if the next request may be executed. Otherwise the session waits for its turn.
    fn takes_turn(&mut self, proxy: &mut ProxyWorker, connection: usize) -> bool {
        let (since, was_granted) = match self.turn {
            AwaitedTurn::None => (proxy.now(), false),
            AwaitedTurn::Granted(since) => (since, true),
            AwaitedTurn::Waiting(_) => return false,
            AwaitedTurn::Refused => return true,
        };
        let has_turn = proxy.has_turn(was_granted);
        self.turn = if has_turn { AwaitedTurn::None } else { AwaitedTurn::Waiting(since) };
        if !has_turn {
            proxy.await_turn(since, self.tag(connection, 0, false));
        }
        has_turn
    }

    /// Returns true, and lets the session wait, if earlier requests have no reply yet.
    pub(super) fn must_await_all(&mut self) -> bool {
        self.awaits_all = !self.waiting.is_empty();
        self.awaits_all
    }

    /// Replaces the last request by a reply to it.
    pub(super) fn replace_last(&mut self, request: WaitingRequest) {
        self.waiting.pop_back();
        self.starts.remove_last();
        self.push(request);
    }

    /// Returns the last request that waits.
    pub(super) fn last_waiting(&mut self) -> Option<&mut WaitingRequest> {
        self.waiting.back_mut()
    }

    /// Adds a request to those that wait.
    pub(super) fn push(&mut self, request: WaitingRequest) {
        match &request {
            WaitingRequest::Complete(bytes) => self.arrived_len += bytes.len(),
            WaitingRequest::Routed(_) | WaitingRequest::Merged(_) => self.has_routed = true,
            _ => {}
        }
        // Most clients wait for one reply at a time, and the first growth would be to four.
        if self.waiting.capacity() == 0 {
            self.waiting.reserve_exact(1);
        }
        self.waiting.push_back(request);
        self.starts.add(self.start);
        self.start.pool = None;
    }

    /// Closes the connection after the replies to all requests so far.
    pub(super) fn close_later(&mut self) {
        self.closes = true;
        self.push(WaitingRequest::Close);
    }

    /// Notes that the next request may change a record.
    pub(super) fn note_write(&mut self) {
        self.last_write = self.first + self.waiting.len() as u64;
    }

    /// Returns the tag of a part of the next request.
    pub(super) fn tag(&self, connection: usize, part: u32, may_repeat: bool) -> RequestTag {
        let request = self.first + self.waiting.len() as u64;
        let session = self.number;
        RequestTag { connection, session, request, part, question: 0, may_repeat, repeats: 0, sent_us: 0 }
    }

    /// Lets the routes continue for which an answer has arrived.
    fn advance_routes(&mut self, proxy: &mut ProxyWorker) {
        // In their order, because later requests may depend on earlier ones.
        for tag in std::mem::take(&mut self.changed) {
            self.is_held = false;
            let index = tag.request.wrapping_sub(self.first) as usize;
            if let Some(request) = self.waiting.get_mut(index) {
                request.advance(proxy, tag);
            }
        }
    }

    /// Returns true if a request for this key, or for all keys, must wait, because an earlier
    /// request for the same key still has to ask a server.
    #[inline]
    pub(super) fn must_wait(&mut self, key: Option<&[u8]>) -> bool {
        self.has_routed &= !self.waiting.is_empty();
        self.is_held = self.has_routed && {
            let scope = key.map_or(HeldScope::All, HeldScope::of_key);
            self.waiting.iter().any(|request| request.holds(scope))
        };
        self.is_held
    }
}

impl ProxySession {
    /// Does what is due between two lines of requests: sends replies, and lets routes continue.
    /// Returns the next action if no further request may be executed now.
    fn settle(
        &mut self,
        proxy: &mut ProxyWorker,
        output: &mut ConnectionOutput,
        (connection, budget): (usize, u32),
        has_input: bool,
    ) -> Option<NextAction> {
        loop {
            if let Some(reply) = self.login.end(&mut self.decoder) {
                self.push(WaitingRequest::Complete(reply));
            }
            self.advance_routes(proxy);
            self.collect();
            self.starts.end(self.waiting.len(), |start, count| {
                if let Some(pool) = start.pool {
                    proxy.note_times(pool, start.at_us, count.into());
                }
            });
            output.put(&self.ready);
            self.ready.clear();
            if self.ready.capacity() > READY_KEPT {
                self.ready = Vec::new();
            }
            if self.waiting.capacity() > WAITING_KEPT && self.waiting.is_empty() {
                self.waiting = VecDeque::new();
            }
            if matches!(self.waiting.front(), Some(WaitingRequest::Close)) {
                self.waiting.clear();
                return Some(NextAction::Close);
            }
            if output.len() > OUTPUT_MAX {
                return Some(NextAction::Flush);
            }
            if self.advance_moved(proxy) {
                continue;
            }
            self.awaits_all &= !self.waiting.is_empty();
            if self.is_waiting() {
                return Some(NextAction::Wait);
            }
            if !self.login.is_decided() {
                break;
            }
        }
        if budget == 0 {
            return Some(if has_input { NextAction::Yield } else { NextAction::READ });
        }
        if self.number == 0 {
            self.number = proxy.session_number();
        }
        if has_input && self.upload.is_none() && !self.takes_turn(proxy, connection) {
            return Some(NextAction::Wait);
        }
        None
    }
}

impl Session for ProxySession {
    type Worker = ProxySessionWorker;

    fn advance(
        &mut self,
        worker: &mut ProxySessionWorker,
        turn: &mut SessionTurn<'_>,
        input: &[u8],
    ) -> SessionProgress {
        worker.limits.unfinished_len_max = turn.room;
        let WorkerContext { proxy: Some(proxy), waits, shared, .. } = &mut *turn.context else {
            return SessionProgress { consumed: 0, next: NextAction::Close };
        };
        let ProxySessionWorker { limits, scratch } = worker;
        let state = Arc::clone(&proxy.state);
        let connection = waits.connection;
        let mut routing = RoutingTurn { proxy, shared, waits, state, limits, connection };
        let mut consumed = 0;
        // Between the keys of a line there is nothing to check.
        let mut is_in_line = false;
        let next = loop {
            if !is_in_line {
                let has_input = consumed < input.len();
                // The requests under way take memory, for which the next one would be refused. Each
                // client may have one request under way, however much memory others take.
                let has_room = turn.room > input.len() - consumed;
                self.awaits_all |= !has_room && !self.waiting.is_empty();
                if let Some(next) =
                    self.settle(routing.proxy, turn.output, (connection, *turn.budget), has_input)
                {
                    break next;
                }
                if let Some((used, next)) = self.advance_upload(&mut routing, &input[consumed..]) {
                    consumed += used;
                    match next {
                        Some(next) => break next,
                        None => continue,
                    }
                }
                // The rest of a refused value must not reach a server as a command.
                consumed += self.decoder.skip_discarded(&input[consumed..]);
            }
            let before = self.decoder;
            let mut step = self.decoder.decode(limits, &input[consumed..], scratch);
            if let MemcachedStep::Block { consumed: skipped, head_len, value_len, end_len } = step {
                consumed += skipped;
                if self.must_await_all() {
                    self.decoder = before;
                    continue;
                }
                let announced =
                    AnnouncedBlock::new(&input[consumed..consumed + head_len], value_len, end_len);
                if self.begin_upload(&mut routing, announced) {
                    consumed += head_len;
                    *turn.budget -= 1;
                    continue;
                }
                let unlimited = MemcachedLimits { long_block_len: usize::MAX, ..*limits };
                step = self.decoder.decode(&unlimited, &input[consumed..], scratch);
            }
            match step {
                MemcachedStep::Request { consumed: len, request } => {
                    let bytes = &input[consumed..consumed + len];
                    if !self.execute(&mut routing, &request, bytes) {
                        self.decoder = before;
                        is_in_line = false;
                        continue;
                    }
                    is_in_line = self.line.is_some();
                    *turn.budget -= u32::from(request.form.is_last_of_line());
                    consumed += len;
                }
                MemcachedStep::NeedMore { consumed: len, at_least } => {
                    consumed += len;
                    break NextAction::Read { at_least };
                }
                // A long value was announced above.
                MemcachedStep::Block { .. } => break NextAction::Fail,
                // The requests before are still answered.
                MemcachedStep::Close => self.close_later(),
            }
        };
        SessionProgress { consumed, next }
    }

    fn is_waiting(&self) -> bool {
        let is_full = self.waiting.len() >= WAITING_MAX || self.arrived_len > ARRIVED_MAX;
        let is_blocked = self.awaits_all && !self.waiting.is_empty()
            || self.upload.as_ref().is_some_and(|upload| upload.is_blocked())
            || matches!(self.turn, AwaitedTurn::Waiting(_));
        (self.closes || is_full || self.is_held || is_blocked || self.login.is_waiting()) && !self.has_work()
    }

    fn has_work(&self) -> bool {
        self.has_ready()
            || !self.changed.is_empty()
            || self.login.is_decided()
            || self.upload.as_ref().is_some_and(|upload| upload.can_begin())
            || self.can_advance_moved()
    }

    fn is_receiving(&self) -> bool {
        self.upload.is_some()
    }

    fn wake(&mut self, wake: WakeReason, context: &mut WorkerContext) -> bool {
        self.login.wake(wake, &mut context.waits)
    }

    fn leave(&mut self, context: &mut WorkerContext) {
        self.login.leave(&mut context.waits);
        if let (Some(upload), Some(proxy)) = (&mut self.upload, &mut context.proxy) {
            upload.cancel(proxy);
        }
        if let (Some(WaitingRequest::Moved(read)), Some(proxy)) = (self.waiting.front(), &mut context.proxy) {
            read.cancel(proxy);
        }
    }

    fn retained(&self) -> RetainedMemory {
        RetainedMemory { own: self.arrived_len + self.ready.capacity(), of_engine: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::ServerPlace;
    use todana_client::pool::ReplyPart;

    /// A session that waits for the values of this many keys, each of another server.
    fn session_of(keys: usize) -> ProxySession {
        let mut line = KeyLine::new(b"get ");
        (0..keys).for_each(|server| line.add(ServerPlace { pool: 0, server }, b"key"));
        let waiting = VecDeque::from([WaitingRequest::Merged(Box::new(line.end().0))]);
        ProxySession { waiting, ..ProxySession::default() }
    }

    /// Delivers the value of a server, or the end of its reply. Returns true if the session needs a
    /// turn.
    fn deliver(session: &mut ProxySession, server: u32, value: Option<&[u8]>) -> bool {
        let part = ReplyPart {
            bytes: value.unwrap_or(b"END\r\n"),
            key: value.map(|_| &b"key"[..]),
            is_last: value.is_none(),
            ..ReplyPart::default()
        };
        let tag = RequestTag { part: server, ..RequestTag::default() };
        session.receive(tag, ReplyDelivery::Part(part))
    }

    #[test]
    fn values_of_a_line_wait_for_each_other() {
        let mut session = session_of(3);
        assert!(!deliver(&mut session, 0, Some(b"A ")));
        assert!(!deliver(&mut session, 0, None));
        assert!(!deliver(&mut session, 2, Some(b"C ")));
        assert!(!deliver(&mut session, 2, None));
        assert!(!deliver(&mut session, 1, Some(b"B ")));
        assert!(deliver(&mut session, 1, None), "the line is complete");
        assert_eq!(session.ready, b"A B C END\r\n");
    }

    #[test]
    fn long_values_of_a_line_do_not_wait() {
        let mut session = session_of(3);
        let value = vec![b'v'; LINE_PIECE_LEN / 2];
        assert!(!deliver(&mut session, 0, Some(&value)));
        assert!(deliver(&mut session, 1, Some(&value)), "the values fill a piece");
        assert_eq!(session.ready.len(), LINE_PIECE_LEN);
    }
}
