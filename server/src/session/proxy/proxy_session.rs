//! Defines the session of a client of the proxy.

use super::key_lines::KeyLine;
use super::loss_reply::{MissReply, put_error, put_loss};
use super::waiting_request::{GatheredReplies, WaitingRequest};
use crate::options::WhenDown;
use crate::proxy::{ProxyState, ProxyWorker, ReplyDelivery, RequestTag, RouteTarget};
use crate::session::memcached::commands::MEMCACHED_VERSION;
use crate::session::{NextAction, RetainedMemory, Session, SessionProgress, SessionTurn};
use crate::shared::SharedState;
use crate::transport::output::OUTPUT_MAX;
use std::collections::VecDeque;
use std::sync::Arc;
use todana_client::pool::ReplyKind;
use todana_core::{Operation, Reply, StoreMode};
use todana_protocol::ReplySink;
use todana_protocol::memcached::{
    DialectChoice, MemcachedCommand, MemcachedDecoder, MemcachedLimits, MemcachedRequest, MemcachedStep,
    encode,
};

/// The number of requests of one client that may wait for their replies.
const WAITING_MAX: usize = 4096;
/// The number of bytes of replies that may wait for an earlier reply. A client with more gets no
/// further request sent.
const ARRIVED_MAX: usize = 256 << 10;
/// The largest record that memcached can be configured for.
const ITEM_SIZE_MAX: u64 = 1 << 30;
/// A larger buffer of replies is freed when it is empty.
const READY_KEPT: usize = 512;
/// The reply to a command about a server.
const NOT_THROUGH: &str = "CLIENT_ERROR not through a proxy";
/// The reply to a request whose route refuses it.
const REFUSED: &str = "CLIENT_ERROR refused by the proxy";

/// A connection of a client of the proxy.
#[derive(Default)]
pub(crate) struct ProxySession {
    decoder: MemcachedDecoder,
    /// The number of the session; 0 until its first request.
    number: u64,
    /// The number of the first waiting request.
    first: u64,
    waiting: VecDeque<WaitingRequest>,
    /// The line of several keys that is being decoded, and the pools that its keys refer to.
    line: Option<(Arc<ProxyState>, KeyLine)>,
    /// Replies that may be sent.
    ready: Vec<u8>,
    /// The number of bytes of replies that cannot be sent yet, because an earlier one is missing.
    arrived_len: usize,
    /// True after `quit`.
    closes: bool,
}

/// The state of a worker for the sessions of the proxy.
pub(crate) struct ProxySessionWorker {
    limits: MemcachedLimits,
    scratch: Vec<u8>,
}

impl ProxySessionWorker {
    pub(crate) fn new(shared: &SharedState) -> ProxySessionWorker {
        // The servers decide which values are too long.
        let limits =
            MemcachedLimits { choice: DialectChoice::Text, item_size_max: ITEM_SIZE_MAX, ..shared.limits() };
        ProxySessionWorker { limits, scratch: Vec::new() }
    }
}

impl ProxySession {
    /// Notes what arrives for a request. Returns true if the session needs a turn: if there are
    /// replies to send, or if it no longer waits for any.
    pub(crate) fn receive(&mut self, tag: RequestTag, delivery: ReplyDelivery<'_>) -> bool {
        if tag.session != self.number {
            return false;
        }
        let was_waiting = self.is_waiting();
        let has_ready = self.keep(tag, delivery);
        has_ready || self.waiting.is_empty() || (was_waiting && !self.is_waiting())
    }

    /// Keeps what arrives for a request. Returns true if there are replies to send.
    fn keep(&mut self, tag: RequestTag, delivery: ReplyDelivery<'_>) -> bool {
        let index = tag.request.wrapping_sub(self.first) as usize;
        let Some(request) = self.waiting.get_mut(index) else { return false };
        // The usual case needs no copy beside `ready`.
        if index == 0
            && let ReplyDelivery::Part(part) = delivery
            && request.is_passed_on(part, &mut self.ready)
        {
            if !part.is_last {
                return true;
            }
            self.waiting.pop_front();
            self.first += 1;
        } else {
            self.arrived_len += request.receive(tag.part, delivery);
        }
        index == 0 && self.collect()
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
        !self.waiting.is_empty() || !self.ready.is_empty()
    }

    /// Adds a request that no server has to answer.
    fn answer(&mut self, request: &MemcachedRequest<'_>, reply: &Reply<'_>) {
        let mut bytes = Vec::new();
        encode(&request.form, reply, &mut bytes);
        self.waiting.push_back(WaitingRequest::Complete(bytes));
    }

    fn tag(&self, connection: usize, part: u32, may_repeat: bool) -> RequestTag {
        let request = self.first + self.waiting.len() as u64;
        RequestTag { connection, session: self.number, request, part, may_repeat }
    }

    /// Passes a request on, or answers it. `bytes` is the request as it came.
    fn execute(
        &mut self,
        proxy: &mut ProxyWorker,
        connection: usize,
        request: &MemcachedRequest<'_>,
        bytes: &[u8],
    ) {
        let operation = match &request.command {
            MemcachedCommand::Operation(operation) => operation,
            MemcachedCommand::Version => return self.answer(request, &Reply::Version(MEMCACHED_VERSION)),
            MemcachedCommand::Verbosity(_) => return self.answer(request, &Reply::Done),
            MemcachedCommand::Faulty { message } => return self.answer(request, &Reply::Faulty(message)),
            MemcachedCommand::Quit => {
                self.closes = true;
                return self.waiting.push_back(WaitingRequest::Close);
            }
            _ => return self.answer(request, &Reply::Faulty(NOT_THROUGH)),
        };
        // The value of such a request was not received, so its line alone must not be sent.
        if let Operation::RefusedStore(refused) = operation {
            return self.answer(request, &Reply::Refused(refused.refusal));
        }
        let Some(key) = operation.key() else {
            return match operation {
                Operation::Noop => self.answer(request, &Reply::Done),
                Operation::Flush { .. } => self.send_to_all(proxy, connection, request, bytes),
                _ => self.answer(request, &Reply::Faulty(NOT_THROUGH)),
            };
        };
        // All keys of a line go by the routes that its first key has found.
        let state = Arc::clone(self.line.as_ref().map_or(&proxy.state, |(state, _)| state));
        let target = state.target_of(key);
        if request.form.is_value() && !(self.line.is_none() && request.form.is_last_of_line()) {
            return self.add_key(proxy, connection, request, key, target, bytes);
        }
        let pool_number = match target {
            RouteTarget::Pool(pool_number) => pool_number,
            RouteTarget::Refuse => return self.answer(request, &Reply::Faulty(REFUSED)),
            RouteTarget::Null => return self.answer(request, &null_reply(operation)),
        };
        let server = state.pools[pool_number].ring.server_of(key);
        let miss = MissReply::of(operation, &request.form);
        let kind = if request.form.is_value() { ReplyKind::Values } else { ReplyKind::Single };
        let tag = self.tag(connection, 0, may_repeat(operation));
        let put = |out: &mut Vec<u8>| request.form.put_answered(bytes, out);
        let sent = proxy.send(&state, pool_number, server, kind, tag, put);
        let pool = &state.pools[pool_number];
        let (hidden, when_down) = (request.form.hidden_replies(), pool.options.when_down);
        let mut arrived = Vec::new();
        self.waiting.push_back(match sent {
            Ok(()) => WaitingRequest::Forwarded { arrived, hidden, when_down, miss },
            Err(refusal) => {
                let label = &pool.servers[server].label;
                put_loss(when_down, miss, label, refusal.as_str(), &mut arrived);
                if hidden.contain(&arrived) {
                    arrived.clear();
                }
                WaitingRequest::Complete(arrived)
            }
        });
    }

    /// Passes a request on to all servers.
    fn send_to_all(
        &mut self,
        proxy: &mut ProxyWorker,
        connection: usize,
        request: &MemcachedRequest<'_>,
        bytes: &[u8],
    ) {
        let state = Arc::clone(&proxy.state);
        let pools = state.reached_pools().into_iter();
        let servers =
            pools.flat_map(|pool| (0..state.pools[pool].servers.len()).map(move |server| (pool, server)));
        let mut replies = GatheredReplies::default();
        for (number, (pool, server)) in (0..).zip(servers) {
            let tag = self.tag(connection, number, false);
            let put = |out: &mut Vec<u8>| request.form.put_answered(bytes, out);
            match proxy.send(&state, pool, server, ReplyKind::Single, tag, put) {
                Ok(()) => replies.missing += 1,
                Err(refusal) => replies.lose(&state.pools[pool].servers[server].label, refusal.as_str()),
            }
        }
        self.waiting.push_back(WaitingRequest::Gathered { replies, hidden: request.form.hidden_replies() });
    }

    /// Adds a key of a line with several keys, and sends the lines of all servers after the last
    /// key.
    fn add_key(
        &mut self,
        proxy: &mut ProxyWorker,
        connection: usize,
        request: &MemcachedRequest<'_>,
        key: &[u8],
        target: RouteTarget,
        bytes: &[u8],
    ) {
        // The first step of a line has the bytes before its first key.
        let head_len = (key.as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize);
        let head = &bytes[..head_len.min(bytes.len())];
        let (state, line) = self.line.get_or_insert_with(|| (Arc::clone(&proxy.state), KeyLine::new(head)));
        match target {
            RouteTarget::Pool(pool) => line.add(pool, state.pools[pool].ring.server_of(key), key),
            RouteTarget::Refuse => line.refuse(REFUSED),
            RouteTarget::Null => {}
        }
        if !request.form.is_last_of_line() {
            return;
        }
        let Some((state, line)) = self.line.take() else { return };
        let (mut values, parts) = line.end();
        let mut when_down = Vec::with_capacity(parts.len());
        for (number, (pool, server, line)) in (0..).zip(parts) {
            let tag = self.tag(connection, number, true);
            let put = |out: &mut Vec<u8>| out.extend_from_slice(&line);
            let sent = proxy.send(&state, pool, server, ReplyKind::Values, tag, put);
            when_down.push(state.pools[pool].options.when_down);
            if let Err(refusal) = sent {
                let pool = &state.pools[pool];
                let mut error = Vec::new();
                if pool.options.when_down == WhenDown::Error {
                    put_error(&pool.servers[server].label, refusal.as_str(), &mut error);
                }
                values.complete(number, &error);
            }
        }
        self.waiting.push_back(WaitingRequest::Merged { values: Box::new(values), when_down });
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
        let connection = turn.context.waits.connection;
        let mut consumed = 0;
        let next = loop {
            self.collect();
            turn.output.put(&self.ready);
            self.ready.clear();
            if self.ready.capacity() > READY_KEPT {
                self.ready = Vec::new();
            }
            if matches!(self.waiting.front(), Some(WaitingRequest::Close)) {
                self.waiting.clear();
                break NextAction::Close;
            }
            if turn.output.len() > OUTPUT_MAX {
                break NextAction::Flush;
            }
            if self.is_waiting() {
                break NextAction::Wait;
            }
            if *turn.budget == 0 {
                break if consumed == input.len() { NextAction::READ } else { NextAction::Yield };
            }
            let Some(proxy) = &mut turn.context.proxy else { break NextAction::Close };
            if self.number == 0 {
                self.number = proxy.session_number();
            }
            // The rest of a refused value must not reach a server as a command.
            consumed += self.decoder.skip_discarded(&input[consumed..]);
            match self.decoder.decode(&worker.limits, &input[consumed..], &mut worker.scratch) {
                MemcachedStep::Request { consumed: len, request } => {
                    let bytes = &input[consumed..consumed + len];
                    self.execute(proxy, connection, &request, bytes);
                    *turn.budget -= u32::from(request.form.is_last_of_line());
                    consumed += len;
                }
                MemcachedStep::NeedMore { consumed: len, at_least } => {
                    consumed += len;
                    break NextAction::Read { at_least };
                }
                // No value is announced, because `long_block_len` has no limit.
                MemcachedStep::Block { .. } => break NextAction::Fail,
                // The requests before are still answered.
                MemcachedStep::Close => {
                    self.closes = true;
                    self.waiting.push_back(WaitingRequest::Close);
                }
            }
        };
        SessionProgress { consumed, next }
    }

    fn is_waiting(&self) -> bool {
        let is_full = self.waiting.len() >= WAITING_MAX || self.arrived_len > ARRIVED_MAX;
        (self.closes || is_full) && !self.has_ready()
    }

    fn has_work(&self) -> bool {
        self.has_ready()
    }

    fn retained(&self) -> RetainedMemory {
        RetainedMemory { own: self.arrived_len + self.ready.capacity(), of_engine: 0 }
    }
}

/// Returns true if a request has the same effect and the same reply when it is sent again after an
/// attempt of which nobody knows whether it was executed.
fn may_repeat(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Get(get) => {
            let changes = get.vivify.is_some() || get.recache_below_s.is_some();
            !changes && (get.touch.is_none() || get.counts_as_touch)
        }
        Operation::Store(store) => {
            store.mode == StoreMode::Set && store.compare.is_none() && !store.stale_if_older
        }
        Operation::Delete(_) | Operation::Touch(_) | Operation::Inspect(_) => true,
        _ => false,
    }
}

/// Returns the reply of a route without servers.
fn null_reply(operation: &Operation<'_>) -> Reply<'static> {
    match operation {
        Operation::Get(_) | Operation::Inspect(_) => Reply::Miss,
        Operation::Store(_) | Operation::RefusedStore(_) => Reply::NotStored,
        _ => Reply::NotFound,
    }
}
