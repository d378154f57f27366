//! Decides where the requests of a client go, and sends them.

use super::client_request::ClientRequest;
use super::client_upload::{AnnouncedBlock, ClientUpload};
use super::key_lines::{KeyLine, LinePart};
use super::loss_reply::{MissReply, put_loss};
use super::proxy_session::{AwaitedTurn, ProxySession};
use super::request_starts::RequestStart;
use super::route_plan::RoutePlan;
use super::route_run::{KEPT_VALUE_MAX, NearUse, RouteRun, RoutedReply, reply_kind};
use super::waiting_request::{GatheredReplies, WaitingRequest};
use crate::observation::logging::set_verbosity;
use crate::options::{PoolProtocol, ShadowedRequests, WhenDown};
use crate::proxy::{
    ClientCommand, PoolRoute, ProxyCount, ProxyState, ProxyWorker, ReplyDelivery, RequestTag, Route,
    RouteFilter, RouteTarget, SendRefusal, ServerPlace, is_in_share,
};
use crate::session::wake::WaitingConnections;
use crate::shared::SharedState;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};
use todana_client::pool::ReplyKind;
use todana_core::{Expiry, HitReply, Operation, RecacheState, Reply, StoreMode, UnixSeconds};
use todana_protocol::memcached::client::{ServerDialect, put_operation};
use todana_protocol::memcached::{MemcachedCommand, MemcachedLimits, MemcachedRequest, encode};

/// The reply to a command about a server.
const NOT_THROUGH: &str = "CLIENT_ERROR not through a proxy";
/// The reply to `flush_all` if a route refuses it.
const FLUSH_REFUSED: &[u8] = b"CLIENT_ERROR flush_all not allowed";
/// The reply to a request whose route refuses it.
const REFUSED: &str = "CLIENT_ERROR refused by the proxy";
/// The reply to a request above the limit of its route.
const OVER_LIMIT: &[u8] = b"SERVER_ERROR limit of the route: busy";
/// The reply to a request that requires a freshness, if its route has several servers: they have
/// different logs.
const NO_FRESHNESS: &[u8] = b"CLIENT_ERROR the flag Y needs a route to one server";

/// The reply to a longer value.
const VALUE_TOO_LONG: &[u8] = b"SERVER_ERROR value too long for its route";

/// The name and the reason in the reply to a request that has waited too long for its turn.
const LATE_LABEL: &str = "proxy";
const LATE_REASON: &str = "busy";

/// A turn of a session, in which it sends requests.
pub(super) struct RoutingTurn<'t> {
    pub(super) proxy: &'t mut ProxyWorker,
    pub(super) shared: &'t SharedState,
    pub(super) waits: &'t mut WaitingConnections,
    pub(super) state: Arc<ProxyState>,
    pub(super) limits: &'t MemcachedLimits,
    /// The index of the client's connection.
    pub(super) connection: usize,
}

impl RoutingTurn<'_> {
    /// Keeps the bytes of a request until its servers have answered.
    pub(super) fn keep(&self, bytes: Vec<u8>) -> ClientRequest {
        ClientRequest::new(bytes, self.limits, &self.proxy.kept)
    }
}

/// A request whose route is more than one server, after its filters.
enum FilteredRequest {
    Replied(RoutedReply),
    Running(Box<RouteRun>),
}

impl ProxySession {
    /// Adds a request that no server has to answer.
    fn answer(&mut self, request: &MemcachedRequest<'_>, reply: &Reply<'_>) {
        let mut bytes = Vec::new();
        encode(&request.form, reply, &mut bytes);
        self.push(WaitingRequest::Complete(bytes));
    }

    /// Passes a request on, or answers it. `bytes` is the request as it came. Returns false, and
    /// does nothing, if it must wait for an earlier request.
    pub(super) fn execute(
        &mut self,
        turn: &mut RoutingTurn<'_>,
        request: &MemcachedRequest<'_>,
        bytes: &[u8],
    ) -> bool {
        let must_wait = match &request.command {
            MemcachedCommand::Operation(Operation::Flush { .. }) => self.must_wait(None),
            MemcachedCommand::Operation(operation) => {
                operation.key().is_some_and(|key| self.must_wait(Some(key)))
            }
            _ => false,
        };
        if must_wait {
            return false;
        }
        // The first key of a line begins the request.
        if self.line.is_none() {
            self.start = RequestStart { pool: None, at_us: turn.proxy.now_us() };
        }
        self.execute_command(turn, request, bytes);
        if request.form.closes() {
            self.close_later();
        }
        true
    }

    fn execute_command(&mut self, turn: &mut RoutingTurn<'_>, request: &MemcachedRequest<'_>, bytes: &[u8]) {
        let has_waited_too_long = self.turn == AwaitedTurn::Refused;
        if has_waited_too_long && request.form.is_last_of_line() {
            self.turn = AwaitedTurn::None;
        }
        let operation = match &request.command {
            MemcachedCommand::Operation(operation) if has_waited_too_long => {
                if request.form.is_last_of_line() {
                    let reply = self.late_reply(turn, request, operation, bytes);
                    self.push(WaitingRequest::Complete(reply));
                }
                return;
            }
            MemcachedCommand::Operation(operation) => operation,
            MemcachedCommand::Version => return self.answer_version(turn, &request.form),
            MemcachedCommand::Verbosity(verbosity) => {
                turn.shared.observation.verbosity.store(*verbosity, Ordering::Relaxed);
                set_verbosity(turn.shared.observation.log_verbosity());
                return self.answer(request, &Reply::Done);
            }
            // Such a command is refused even if it is malformed.
            MemcachedCommand::Faulty { .. } if is_about_a_server(bytes) => {
                return self.answer(request, &Reply::Faulty(NOT_THROUGH));
            }
            MemcachedCommand::Faulty { message } => return self.answer(request, &Reply::Faulty(message)),
            MemcachedCommand::RefreshCertificates => {
                let mut out = Vec::new();
                turn.shared
                    .listening
                    .refresh_certificates(&mut |reply| encode(&request.form, &reply, &mut out));
                return self.push(WaitingRequest::Complete(out));
            }
            MemcachedCommand::Mechanisms => {
                let mechanisms = turn.shared.logins.mechanisms();
                return self.answer(request, &mechanisms.map_or(Reply::Unknown, Reply::Mechanisms));
            }
            MemcachedCommand::Authenticate(message) => {
                let checks = (turn.shared, &mut *turn.waits);
                if let Some(reply) = self.login.begin(message, &request.form, &mut self.decoder, checks) {
                    self.push(WaitingRequest::Complete(reply));
                }
                return;
            }
            MemcachedCommand::Quit => return self.close_later(),
            MemcachedCommand::Stats { group } => return self.answer_statistics(turn, &request.form, group),
            _ => return self.answer(request, &Reply::Faulty(NOT_THROUGH)),
        };
        // The value of such a request was not received, so its line alone must not be sent.
        if let Operation::RefusedStore(refused) = operation {
            return self.answer(request, &Reply::Refused(refused.refusal));
        }
        if may_change(operation) {
            self.note_write();
        }
        let Some(key) = operation.key() else {
            return match operation {
                // Without an effect here: commands about the memory of a server.
                Operation::Noop
                    if !request.form.is_binary() && !bytes.trim_ascii_start().starts_with(b"mn") =>
                {
                    self.answer(request, &Reply::Faulty(NOT_THROUGH));
                }
                Operation::Noop => self.answer(request, &Reply::Done),
                Operation::Flush { .. } => {
                    let places = turn.state.reached_places(self.listener, command_of(operation, bytes));
                    if let Some(first) = places.iter().flatten().next() {
                        self.count_request(turn, RouteTarget::Pool(first.pool), operation, false);
                    }
                    let tag = self.tag(turn.connection, 0, false);
                    self.push(sent_to_all(turn, places, operation, bytes, tag));
                }
                _ => self.answer(request, &Reply::Faulty(NOT_THROUGH)),
            };
        };
        turn.proxy.note_key(key, bytes.len());
        if request.form.is_value() && !(self.line.is_none() && request.form.is_last_of_line()) {
            return self.add_key(turn, request, operation, key, bytes);
        }
        let state = Arc::clone(&turn.state);
        let target = state.target_of(self.listener, command_of(operation, bytes), key);
        self.count_request(turn, target, operation, request.form.is_quiet());
        if let Some(place) = forwarding_place(&state, target, request, operation, key) {
            return self.forward(turn, request, operation, place, bytes);
        }
        match target {
            RouteTarget::Refuse => self.answer(request, &Reply::Faulty(REFUSED)),
            RouteTarget::Null => self.answer(request, &null_reply(operation)),
            target => {
                let kept = turn.keep(bytes.to_vec());
                let tag = self.tag(turn.connection, 0, may_repeat(operation));
                self.push(routed(turn, target, kept, operation, key, tag));
            }
        }
    }

    /// Counts a request by its pool and command. With several pools, the first one counts.
    #[inline]
    fn count_request(
        &mut self,
        turn: &RoutingTurn<'_>,
        target: RouteTarget,
        operation: &Operation<'_>,
        is_quiet: bool,
    ) {
        if let Some(pool) = turn.state.first_pool(target) {
            let command = ClientCommand::of(operation);
            self.start.pool = turn.proxy.count_request(pool, command, is_quiet);
        }
    }

    /// Returns the reply to a request that has waited too long for its turn.
    fn late_reply(
        &self,
        turn: &RoutingTurn<'_>,
        request: &MemcachedRequest<'_>,
        operation: &Operation<'_>,
        bytes: &[u8],
    ) -> Vec<u8> {
        let key = operation.key().unwrap_or_default();
        let target = turn.state.target_of(self.listener, command_of(operation, bytes), key);
        let pool = turn.state.first_pool(target);
        let when_down = pool.map_or(WhenDown::Error, |pool| turn.state.pools[pool].options.when_down);
        let mut reply = Vec::new();
        if request.form.is_binary() {
            let kept = turn.keep(bytes.to_vec());
            kept.put_loss(when_down, LATE_LABEL, LATE_REASON, &mut reply);
        } else {
            let miss = MissReply::of(operation, &request.form);
            put_loss(when_down, &miss, LATE_LABEL, LATE_REASON, &mut reply);
        }
        if request.form.hidden_replies().contain(&reply) {
            reply.clear();
        }
        reply
    }

    /// Passes the bytes of a request on to one server.
    fn forward(
        &mut self,
        turn: &mut RoutingTurn<'_>,
        request: &MemcachedRequest<'_>,
        operation: &Operation<'_>,
        place: ServerPlace,
        bytes: &[u8],
    ) {
        let kind = if request.form.is_value() { ReplyKind::Values } else { ReplyKind::Single };
        let tag = self.tag(turn.connection, 0, may_repeat(operation));
        let put = |out: &mut Vec<u8>| request.form.put_answered(bytes, out);
        let sent = turn.proxy.send(&turn.state, place, kind, tag, put);
        let miss = MissReply::of(operation, &request.form);
        let hidden = request.form.hidden_replies();
        let can_move = matches!(operation, Operation::Get(get) if is_plain(get));
        let mut waiting = WaitingRequest::forwarded(hidden, miss, can_move);
        if let Err(refusal) = sent {
            let _ = waiting.receive(tag, lost(&turn.state, place, refusal));
        }
        self.push(waiting);
    }

    /// Begins to receive a long value. Returns false if the value must be kept until it is
    /// complete, because it does not go to one server as it comes.
    pub(super) fn begin_upload(&mut self, turn: &mut RoutingTurn<'_>, announced: AnnouncedBlock) -> bool {
        if std::mem::take(&mut self.turn) == AwaitedTurn::Refused {
            let reply = announced.with(self.decoder, turn.limits, true, |request| match &request.command {
                MemcachedCommand::Operation(operation) => {
                    self.late_reply(turn, request, operation, announced.head())
                }
                _ => Vec::new(),
            });
            self.push(WaitingRequest::Complete(reply.unwrap_or_default()));
            self.upload = Some(Box::new(ClientUpload::to_nowhere(announced)));
            return true;
        }
        let state = Arc::clone(&turn.state);
        let listener = self.listener;
        let found = announced.with(self.decoder, turn.limits, true, |request| {
            let MemcachedCommand::Operation(operation) = &request.command else { return None };
            let key = operation.key()?;
            let target = state.target_of(listener, command_of(operation, announced.head()), key);
            match forwarding_place(&state, target, request, operation, key) {
                Some(place) => {
                    // With a block, the line is written as for a value.
                    let mut line = Vec::new();
                    request.form.put_answered(&[announced.head(), b"\r\n"].concat(), &mut line);
                    line.truncate(line.len() - 2);
                    // The time until the reply depends on the client.
                    turn.proxy.count_request(
                        place.pool,
                        ClientCommand::of(operation),
                        request.form.is_quiet(),
                    );
                    Some((place, line, request.form.hidden_replies()))
                }
                _ => None,
            }
        });
        let Some((place, line, hidden)) = found.flatten() else {
            if announced.len() <= KEPT_VALUE_MAX {
                return false;
            }
            let reply = announced.with(self.decoder, turn.limits, true, |request| {
                let mut bytes = Vec::new();
                request.form.put_failure(VALUE_TOO_LONG, &mut bytes);
                bytes
            });
            self.push(WaitingRequest::Complete(reply.unwrap_or_default()));
            self.upload = Some(Box::new(ClientUpload::to_nowhere(announced)));
            return true;
        };
        let tag = self.tag(turn.connection, 0, false);
        self.upload = Some(Box::new(ClientUpload::to_server(announced, state, place, tag, line)));
        self.push(WaitingRequest::forwarded(hidden, MissReply::None, false));
        true
    }

    /// Answers the request whose long value its server does not accept. The value is discarded.
    pub(super) fn refuse_upload(&mut self, refusal: SendRefusal) {
        let Some((state, place, tag)) = self.upload.as_mut().and_then(|upload| upload.refused()) else {
            return;
        };
        if let Some(waiting) = self.last_waiting() {
            let _ = waiting.receive(tag, lost(&state, place, refusal));
        }
    }

    /// Answers the request whose long value has no line end after it. Its server stores nothing.
    pub(super) fn reject_upload(&mut self, turn: &mut RoutingTurn<'_>) {
        let Some(upload) = &mut self.upload else { return };
        upload.cancel(turn.proxy);
        let reply = upload.announced.with(self.decoder, turn.limits, false, |request| {
            let mut bytes = Vec::new();
            if let MemcachedCommand::Faulty { message } = request.command {
                encode(&request.form, &Reply::Faulty(message), &mut bytes);
            }
            bytes
        });
        self.replace_last(WaitingRequest::Complete(reply.unwrap_or_default()));
    }

    /// Adds a key of a line with several keys, and sends the lines of all servers after the last
    /// key.
    fn add_key(
        &mut self,
        turn: &mut RoutingTurn<'_>,
        request: &MemcachedRequest<'_>,
        operation: &Operation<'_>,
        key: &[u8],
        bytes: &[u8],
    ) {
        // The first step of a line has the bytes before its first key.
        let head_len = (key.as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize);
        let head = &bytes[..head_len.min(bytes.len())];
        let begun = self.line.take();
        let is_first = begun.is_none();
        let (state, mut line) =
            begun.unwrap_or_else(|| (Arc::clone(&turn.state), Box::new(KeyLine::new(head))));
        // All keys of a line go by the routes that its first key has found.
        let now_state = std::mem::replace(&mut turn.state, state);
        let target = turn.state.target_of(self.listener, command_of(operation, line.head()), key);
        if is_first {
            self.count_request(turn, target, operation, request.form.is_quiet());
        }
        let place = forwarding_place(&turn.state, target, request, operation, key);
        match (place, target) {
            (Some(place), _) => line.add(place, key),
            (None, RouteTarget::Refuse) => line.refuse(REFUSED),
            (None, RouteTarget::Null) => {}
            (None, target) => {
                let kept = turn.keep(line.line_of(key));
                let part = match filtered(turn, self.number, target, kept, operation, key) {
                    FilteredRequest::Replied(reply) => LinePart::Replied(reply),
                    FilteredRequest::Running(run) => LinePart::Routed(run),
                };
                line.add_part(part);
            }
        }
        if request.form.is_last_of_line() {
            self.send_line(turn, *line);
            turn.state = now_state;
        } else {
            self.line = Some((std::mem::replace(&mut turn.state, now_state), line));
        }
    }

    /// Sends the parts of a line with several keys.
    fn send_line(&mut self, turn: &mut RoutingTurn<'_>, line: KeyLine) {
        let keys = line.keys_len();
        let (values, parts) = line.end();
        turn.proxy.count_line(self.start.pool, keys, parts.len());
        let mut waiting = WaitingRequest::Merged(Box::new(values));
        for (number, part) in (0..).zip(parts) {
            let tag = self.tag(turn.connection, number, true);
            match part {
                LinePart::Server { place, line } => {
                    let put = |out: &mut Vec<u8>| out.extend_from_slice(&line);
                    if let Err(refusal) = turn.proxy.send(&turn.state, place, ReplyKind::ValueList, tag, put)
                    {
                        let _ = waiting.receive(tag, lost(&turn.state, place, refusal));
                    }
                }
                LinePart::Routed(run) => {
                    if let WaitingRequest::Merged(values) = &mut waiting {
                        values.await_run(number, run);
                        values.advance(turn.proxy, tag);
                    }
                }
                LinePart::Replied(reply) => {
                    if let WaitingRequest::Merged(values) = &mut waiting {
                        values.complete_with(number, &reply);
                    }
                }
            }
        }
        self.push(waiting);
    }
}

/// Passes a request on to several servers; `None` means that a route refuses it. `tag` is the tag
/// of its first part.
pub(super) fn sent_to_all(
    turn: &mut RoutingTurn<'_>,
    places: Option<Vec<ServerPlace>>,
    operation: &Operation<'_>,
    bytes: &[u8],
    tag: RequestTag,
) -> WaitingRequest {
    let state = Arc::clone(&turn.state);
    let request = turn.keep(bytes.to_vec());
    let Some(places) = places else {
        let mut refusal = Vec::new();
        request.put_failure(FLUSH_REFUSED, &mut refusal);
        return WaitingRequest::Complete(refusal);
    };
    let mut replies = GatheredReplies::new(request, state.near_caches().cloned().collect());
    for place in places {
        let tag = RequestTag { part: replies.next_part(), ..tag };
        // The text dialect is the one that all servers have before their dialect is known.
        let dialect = turn.proxy.known_dialect(&state, place).unwrap_or(ServerDialect::Text);
        let mut line = Vec::new();
        let Ok(asked) = put_operation(dialect, operation, &mut line) else { continue };
        let put = |out: &mut Vec<u8>| out.extend_from_slice(&line);
        match turn.proxy.send(&state, place, reply_kind(asked), tag, put) {
            Ok(()) => replies.await_reply(asked),
            Err(refusal) => replies.refuse(state.server(place).shown_label(), refusal.as_str()),
        }
    }
    state.near_caches().for_each(|cache| cache.clear());
    WaitingRequest::Gathered(Box::new(replies))
}

/// Begins a request whose route is more than one server, or whose server speaks another dialect.
pub(super) fn routed(
    turn: &mut RoutingTurn<'_>,
    target: RouteTarget,
    request: ClientRequest,
    operation: &Operation<'_>,
    key: &[u8],
    tag: RequestTag,
) -> WaitingRequest {
    if request.requires_freshness() {
        let mut refusal = Vec::new();
        request.put_failure(NO_FRESHNESS, &mut refusal);
        return WaitingRequest::Complete(refusal);
    }
    match filtered(turn, tag.session, target, request, operation, key) {
        FilteredRequest::Replied(reply) => WaitingRequest::Complete(reply.bytes),
        FilteredRequest::Running(mut run) => match run.advance(turn.proxy, tag) {
            Some(reply) => WaitingRequest::Complete(reply.bytes),
            None => WaitingRequest::Routed(run),
        },
    }
}

/// Returns true if the bytes of a request can be passed on to the servers of a pool as they are.
fn is_forwarded(state: &ProxyState, pool: usize, request: &MemcachedRequest<'_>) -> bool {
    !request.form.is_binary() && state.pools[pool].options.speak != PoolProtocol::Binary
}

/// Returns the server to which a request is passed on as it is, or `None` if it needs more.
#[inline]
fn forwarding_place(
    state: &ProxyState,
    target: RouteTarget,
    request: &MemcachedRequest<'_>,
    operation: &Operation<'_>,
    key: &[u8],
) -> Option<ServerPlace> {
    let RouteTarget::Pool(pool) = target else { return None };
    is_forwarded(state, pool, request)
        .then(|| state.unlimited_place_of(pool, key, sets_ttl(operation)))
        .flatten()
}

/// Returns what a request sees if its server does not take it.
fn lost<'s>(state: &'s ProxyState, place: ServerPlace, refusal: SendRefusal) -> ReplyDelivery<'s> {
    let when_down = state.pools[place.pool].options.when_down;
    ReplyDelivery::Lost { label: state.server(place).shown_label(), reason: refusal.as_str(), when_down }
}

/// Returns true if an operation can set a time to live.
fn sets_ttl(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Get(get) => get.touch.is_some() || get.vivify.is_some(),
        Operation::Inspect(_) | Operation::Delete(_) => false,
        _ => true,
    }
}

/// Applies the filters of a route to a request.
fn filtered(
    turn: &mut RoutingTurn<'_>,
    session: u64,
    target: RouteTarget,
    request: ClientRequest,
    operation: &Operation<'_>,
    key: &[u8],
) -> FilteredRequest {
    let state = Arc::clone(&turn.state);
    let is_read = matches!(operation, Operation::Get(_) | Operation::Inspect(_));
    let single;
    let (filters, pools): (&[RouteFilter], &PoolRoute) = match target {
        RouteTarget::Route(number) => {
            let Route { filters, pools } = &state.routes[number];
            (filters, pools)
        }
        RouteTarget::Pool(pool) => {
            single = PoolRoute::Pool(pool);
            (&[], &single)
        }
        RouteTarget::Refuse | RouteTarget::Null => (&[], &PoolRoute::Null),
    };
    let mut ttl_max_s: Option<u32> = None;
    let reached = pools.numbers().into_iter().map(|pool| &state.pools[pool]);
    let copies = if let PoolRoute::Replicate { copies, .. } = pools { *copies } else { 1 };
    for pool in reached.filter(|pool| sets_ttl(operation) && pool.is_stood_in(key, copies)) {
        let max_s = pool.options.stand_in_ttl.as_secs().clamp(1, u32::MAX.into()) as u32;
        ttl_max_s = ttl_max_s.into_iter().chain([max_s]).min();
    }
    let mut near = None;
    for filter in filters {
        match filter {
            RouteFilter::Ttl { max_s } => ttl_max_s = ttl_max_s.into_iter().chain([*max_s]).min(),
            RouteFilter::Limit(limit) => {
                if !limit.takes(turn.proxy.now()) {
                    let mut bytes = Vec::new();
                    request.put_failure(OVER_LIMIT, &mut bytes);
                    return FilteredRequest::Replied(RoutedReply { bytes, is_error: true });
                }
            }
            RouteFilter::Shadow { pool, share_ppm, requests } => {
                let is_meant = match requests {
                    ShadowedRequests::Reads => is_read,
                    ShadowedRequests::Writes => !is_read,
                    ShadowedRequests::All => true,
                };
                if is_meant && is_in_share(key, *share_ppm) {
                    send_copy(turn, session, state.place_of(*pool, key), operation);
                }
            }
            RouteFilter::Near(cache) if !is_read => {
                near = Some(NearUse::write(Arc::clone(cache), key));
            }
            RouteFilter::Near(cache) => {
                let can_serve = request.with(|operation, form| {
                    form.shows_only_value() && matches!(operation, Operation::Get(get) if is_plain(get))
                });
                if can_serve != Some(true) {
                    continue;
                }
                let mut bytes = Vec::new();
                let found = cache.read(key, turn.proxy.now(), &mut |record| {
                    let hit = HitReply {
                        record,
                        expiry_before: Expiry::Never,
                        access_before: None,
                        recache: RecacheState::default(),
                        now: UnixSeconds(0),
                    };
                    request.put_reply(&Reply::Hit(hit), &mut bytes);
                });
                match found {
                    Ok(()) => {
                        return FilteredRequest::Replied(RoutedReply { bytes, is_error: false });
                    }
                    Err(fill) => near = Some(NearUse::Fill { cache: Arc::clone(cache), fill }),
                }
            }
        }
    }
    let mut bytes = Vec::new();
    match pools {
        PoolRoute::Refuse => request.put_failure(REFUSED.as_bytes(), &mut bytes),
        PoolRoute::Null => request.put_reply(&null_reply(operation), &mut bytes),
        _ => {
            let now_ms = SystemTime::now().duration_since(UNIX_EPOCH);
            let now_ms = now_ms.map_or(0, |duration| duration.as_millis() as u64);
            let plan = RoutePlan::new(pools, &state, operation, key, now_ms, turn.proxy.next_number());
            let run = RouteRun::new(state, request, plan, ttl_max_s, near, key);
            return FilteredRequest::Running(Box::new(run));
        }
    }
    FilteredRequest::Replied(RoutedReply { bytes, is_error: matches!(pools, PoolRoute::Refuse) })
}

/// Sends a copy of a request whose answer nobody waits for.
fn send_copy(turn: &mut RoutingTurn<'_>, session: u64, place: ServerPlace, operation: &Operation<'_>) {
    let dialect = turn.proxy.known_dialect(&turn.state, place).unwrap_or(ServerDialect::Text);
    let mut bytes = Vec::new();
    if let Ok(asked) = put_operation(dialect, operation, &mut bytes) {
        turn.state.pools[place.pool].put_vbucket(operation.key().unwrap_or_default(), &mut bytes);
        let put = |out: &mut Vec<u8>| out.extend_from_slice(&bytes);
        let sent = turn.proxy.send_unowned(&turn.state, place, reply_kind(asked), session, put);
        turn.proxy.count(if sent.is_ok() { ProxyCount::ShadowSent } else { ProxyCount::ShadowDropped }, 1);
    }
}

/// Returns true if an operation may change a record, or what a later read of it shows.
fn may_change(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Get(get) => get.touch.is_some() || get.vivify.is_some() || get.recache_below_s.is_some(),
        Operation::Inspect(_) | Operation::Noop => false,
        _ => true,
    }
}

/// Returns true if a read changes nothing and needs nothing that a copy does not have.
fn is_plain(get: &todana_core::Get<'_>) -> bool {
    get.touch.is_none()
        && get.vivify.is_none()
        && get.recache_below_s.is_none()
        && !get.needs.access
        && !get.counts_as_touch
}

/// Returns true if a request has the same effect and the same reply when it is sent again after an
/// attempt of which nobody knows whether it was executed.
pub(super) fn may_repeat(operation: &Operation<'_>) -> bool {
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

/// Returns true if a line begins with a command about one server.
fn is_about_a_server(line: &[u8]) -> bool {
    const COMMANDS: [&[u8]; 7] =
        [b"watch", b"lru_crawler", b"slabs", b"lru", b"cache_memlimit", b"shutdown", b"extstore"];
    let word = line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty());
    word.is_some_and(|word| COMMANDS.contains(&word))
}

/// Returns the reply of a route without servers.
pub(super) fn null_reply(operation: &Operation<'_>) -> Reply<'static> {
    match operation {
        Operation::Get(_) | Operation::Inspect(_) => Reply::Miss,
        Operation::Store(_) | Operation::RefusedStore(_) => Reply::NotStored,
        _ => Reply::NotFound,
    }
}

/// Returns the text that begins with the command word of a request. A binary request has the word
/// of the text dialect.
pub(super) fn command_of<'b>(operation: &Operation<'_>, bytes: &'b [u8]) -> &'b [u8] {
    if bytes.first().is_some_and(u8::is_ascii) {
        return bytes;
    }
    ClientCommand::of(operation).as_str().as_bytes()
}
