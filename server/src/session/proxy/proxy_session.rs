//! Defines the session of a client of the proxy.

use super::key_lines::KeyLine;
use super::loss_reply::{MissReply, put_error, put_loss};
use super::waiting_request::WaitingRequest;
use crate::options::WhenDown;
use crate::proxy::{ProxyWorker, ReplyDelivery, RequestTag};
use crate::session::memcached::commands::MEMCACHED_VERSION;
use crate::session::{NextAction, Session, SessionProgress, SessionTurn};
use crate::shared::SharedState;
use crate::transport::output::OUTPUT_MAX;
use std::collections::VecDeque;
use todana_client::pool::ReplyKind;
use todana_core::{Operation, Reply, StoreMode};
use todana_protocol::ReplySink;
use todana_protocol::memcached::{
    DialectChoice, MemcachedCommand, MemcachedDecoder, MemcachedLimits, MemcachedRequest, MemcachedStep,
    encode,
};

/// The number of requests of one client that may wait for their replies.
const WAITING_MAX: usize = 4096;
/// The pool to which all requests go.
const POOL: usize = 0;
/// The reply to a command about a server.
const NOT_THROUGH: &str = "CLIENT_ERROR not through a proxy";

/// A connection of a client of the proxy.
#[derive(Default)]
pub(crate) struct ProxySession {
    decoder: MemcachedDecoder,
    /// The number of the session; 0 until its first request.
    number: u64,
    /// The number of the first waiting request.
    first: u64,
    waiting: VecDeque<WaitingRequest>,
    /// The line of several keys that is being decoded.
    line: Option<KeyLine>,
    /// Replies that may be sent.
    ready: Vec<u8>,
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
        let limits = MemcachedLimits { choice: DialectChoice::Text, ..shared.limits() };
        ProxySessionWorker { limits, scratch: Vec::new() }
    }
}

impl ProxySession {
    /// Notes what arrives for a request. Returns true if there are replies to send.
    pub(crate) fn receive(&mut self, tag: RequestTag, delivery: ReplyDelivery<'_>) -> bool {
        if tag.session != self.number {
            return false;
        }
        let index = tag.request.wrapping_sub(self.first) as usize;
        if let Some(request) = self.waiting.get_mut(index) {
            request.receive(tag.part, delivery);
        }
        index == 0 && self.collect()
    }

    /// Moves the replies that may be sent to `ready`. Returns true if there are any.
    fn collect(&mut self) -> bool {
        while let Some(request) = self.waiting.front_mut()
            && request.drain(&mut self.ready)
        {
            self.waiting.pop_front();
            self.first += 1;
        }
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
        let Some(key) = operation.key() else {
            return match operation {
                Operation::Noop => self.answer(request, &Reply::Done),
                _ => self.answer(request, &Reply::Faulty(NOT_THROUGH)),
            };
        };
        let server = proxy.state.pools[POOL].ring.server_of(key);
        if request.form.is_value() && !(self.line.is_none() && request.form.is_last_of_line()) {
            return self.add_key(proxy, connection, request, key, server, bytes);
        }
        let miss = MissReply::of(operation, &request.form);
        let kind = if request.form.is_value() { ReplyKind::Values } else { ReplyKind::Single };
        let tag = self.tag(connection, 0, may_repeat(operation));
        let sent = proxy.send(POOL, server, kind, tag, |out| request.form.put_answered(bytes, out));
        let pool = &proxy.state.pools[POOL];
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

    /// Adds a key of a line with several keys, and sends the lines of all servers after the last
    /// key.
    fn add_key(
        &mut self,
        proxy: &mut ProxyWorker,
        connection: usize,
        request: &MemcachedRequest<'_>,
        key: &[u8],
        server: usize,
        bytes: &[u8],
    ) {
        // The first step of a line has the bytes before its first key.
        let head_len = (key.as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize);
        let line = self.line.get_or_insert_with(|| KeyLine::new(&bytes[..head_len.min(bytes.len())]));
        line.add(POOL, server, key);
        if !request.form.is_last_of_line() {
            return;
        }
        let Some(line) = self.line.take() else { return };
        let (mut values, parts) = line.end();
        for (number, (pool, server, line)) in (0..).zip(parts) {
            let tag = self.tag(connection, number, true);
            let sent = proxy.send(pool, server, ReplyKind::Values, tag, |out| out.extend_from_slice(&line));
            if let Err(refusal) = sent {
                let pool = &proxy.state.pools[pool];
                let mut error = Vec::new();
                if pool.options.when_down == WhenDown::Error {
                    put_error(&pool.servers[server].label, refusal.as_str(), &mut error);
                }
                values.complete(number, &error);
            }
        }
        let when_down = proxy.state.pools[POOL].options.when_down;
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
                MemcachedStep::Block { .. } | MemcachedStep::Close => break NextAction::Fail,
            }
        };
        SessionProgress { consumed, next }
    }

    fn is_waiting(&self) -> bool {
        (self.closes || self.waiting.len() >= WAITING_MAX) && !self.has_ready()
    }

    fn has_work(&self) -> bool {
        self.has_ready()
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
