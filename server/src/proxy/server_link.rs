//! The connections of one worker to one server: connects, sends, detects the dialect of the server,
//! repeats requests whose connection was lost, and probes a server that is down.

use super::kept_bytes::KeptBytes;
use super::near_cache::NearFill;
use super::pool_server::{OpenConnection, PoolServer};
use super::proxy_counters::{ProxyCount, ProxyTally};
use super::server_counters::{ReadCounts, ServerCount, ServerTally};
use super::server_request::{ReplyDelivery, RequestTag, SERVER_TOKENS, SendRefusal};
use super::shared_reads::SharedReads;
use super::value_lanes::{LaneProgress, LaneUser, READ_LANES, UPLOAD_LANES, VALUE_STALL, ValueLanes};
use crate::observation::hot_keys::HotKeyCounter;
use crate::options::{PoolOptions, PoolProtocol};
use mio::event::Event;
use mio::{Registry, Token};
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana_client::Address;
use todana_client::pool::{LossReason, LostRequest, ReplyKind, ReplyPart, ServerConnection, ServerSocket};
use todana_protocol::memcached::client::{
    DetectedServer, ServerDialect, detected_server, put_detection, put_version,
};

/// The greatest number of connections of a worker to a server, without those for long values.
const SHARED_SLOTS_MAX: usize = SLOTS_MAX - UPLOAD_LANES - READ_LANES;
const SLOTS_MAX: usize = 1 << SLOT_BITS;
const SLOT_BITS: usize = 8;
/// The number of bytes of requests that may be kept for a connection.
const KEPT_LEN_MAX: usize = 16 << 20;
/// A read of a longer value is repeated on a connection that is read only as fast as the client
/// reads. A shorter value waits in memory for its client.
const READ_AGAIN_MIN: usize = 1 << 20;
/// The interval in which a retired link is checked.
const RETIRED_CHECK: Duration = Duration::from_millis(20);
/// A time that never passes.
const NEVER: Duration = Duration::from_secs(1 << 32);

/// Returns a time that is never reached.
fn never(now: Instant) -> Instant {
    now + NEVER
}

/// Receives what arrives for the requests of clients.
pub(super) type DeliverReply<'a> = dyn FnMut(RequestTag, ReplyDelivery<'_>) + 'a;

/// The state that the links of a worker share.
pub(super) struct LinkTurn {
    pub(super) registry: Registry,
    pub(super) now: Instant,
    /// The same in microseconds, from an earlier time that is always the same.
    pub(super) now_us: u32,
    /// The connections with bytes to send.
    pub(super) changed: Vec<LinkPosition>,
    /// The connections of which only a part of the arrived bytes was read.
    pub(super) unread: Vec<LinkPosition>,
    /// The number of requests of clients that servers have not answered, but for long values.
    pub(super) in_flight: usize,
    /// The time before which no deadline ends.
    pub(super) check_at: Option<Instant>,
    /// The requests with long values that have a connection now.
    pub(super) granted: Vec<RequestTag>,
    pub(super) hot_keys: HotKeyCounter,
    /// Memory for one read.
    pub(super) buffer: Vec<u8>,
    pub(super) tally: Arc<ProxyTally>,
    /// The bytes of requests that connections keep.
    pub(super) kept: KeptBytes,
}

impl LinkTurn {
    /// Notes that a deadline ends at this time.
    #[inline]
    pub(super) fn check_by(&mut self, at: Instant) {
        if self.check_at.is_none_or(|before| at < before) {
            self.check_at = Some(at);
        }
    }
}

/// Names a connection of a worker: the number of the server, and the connection's number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkPosition {
    pub(super) link: usize,
    slot: usize,
}

impl LinkPosition {
    /// Returns the position of the connection with this token.
    pub(super) fn of(token: Token) -> LinkPosition {
        let number = token.0 - SERVER_TOKENS;
        LinkPosition { link: number >> SLOT_BITS, slot: number & (SLOTS_MAX - 1) }
    }

    fn token(self) -> Token {
        Token(SERVER_TOKENS + (self.link << SLOT_BITS) + self.slot)
    }
}

/// The owner of a request that waits for its reply.
#[derive(Clone, Copy, Debug)]
enum RequestOwner {
    /// The session of a client.
    Client(RequestTag),
    /// The sessions of several clients, by the number of their read in [`SharedReads`].
    Shared(u64),
    /// Nobody: the reply is dropped.
    Unowned,
    /// The link, to learn the dialect of the server.
    Detection,
    /// The link, to learn whether the server answers.
    Check,
    /// Nobody any more: the client was told that the reply is overdue.
    Expired,
}

impl RequestOwner {
    /// Returns true if a client waits for the reply.
    #[inline]
    fn is_client(&self) -> bool {
        matches!(self, RequestOwner::Client(_) | RequestOwner::Shared(_))
    }
}

/// The connections of a worker to a server.
pub(super) struct ServerLink {
    server: Arc<PoolServer>,
    tally: Arc<ServerTally>,
    options: Arc<PoolOptions>,
    slots: Vec<LinkSlot>,
    /// The number of slots for connections that clients share. The slots after them are those for
    /// long values.
    shared: usize,
    uploads: ValueLanes<RequestTag, UPLOAD_LANES>,
    reads: ValueLanes<RequestTag, READ_LANES>,
    /// True if the configuration no longer has the server.
    is_retired: bool,
}

/// The place of one connection.
#[derive(Default)]
struct LinkSlot {
    connection: Option<ServerConnection<RequestOwner>>,
    /// True while the connection is in the list of those with bytes to send.
    is_changed: bool,
    /// The reason why the connection is lost, which is reported by the next flush.
    failed: Option<LossReason>,
    /// True while the connection is not read, because its client has to read first.
    is_paused: bool,
    /// True if an event has reported the end of the stream.
    has_ended: bool,
    /// The number of sent bytes that are counted.
    counted_len: u64,
    /// The number of bytes of requests that are counted as memory.
    counted_kept: usize,
    /// The number of addresses that could not be connected to.
    failed_addresses: usize,
    detection: DialectDetection,
    shared: SharedReads,
    /// `None` until the connection is known to stand.
    open: Option<OpenConnection>,
}

/// The knowledge of a connection about the dialect of its server.
#[derive(Default)]
struct DialectDetection {
    /// The answers to the questions.
    answers: Vec<u8>,
    found: Option<ServerDialect>,
    /// The requests that wait for the dialect.
    waiting: Vec<RequestTag>,
    /// True if the server has left out an answer or closed the connection instead, as Tokyo Tyrant
    /// does. Then the next connection asks no questions.
    was_refused: bool,
}

impl DialectDetection {
    /// Notes an answer.
    fn note(&mut self, answer: &[u8]) {
        self.was_refused |= self.answers.is_empty() && answer.starts_with(b"VERSION ");
        self.answers.extend_from_slice(answer);
        self.found = match detected_server(&self.answers) {
            Ok(None) => return,
            Ok(Some((_, DetectedServer::Knows(dialect)))) => Some(dialect),
            // Such a server shows its own errors.
            Ok(Some((_, DetectedServer::NeedsLogin))) | Err(_) => Some(ServerDialect::Text),
        };
        self.answers = Vec::new();
    }
}

impl ServerLink {
    pub(super) fn new(server: Arc<PoolServer>, options: Arc<PoolOptions>) -> ServerLink {
        let shared = options.connections.clamp(1, SHARED_SLOTS_MAX);
        let slots = (0..shared).map(|_| LinkSlot::default()).collect();
        let tally = server.counters.tallies.join();
        let uploads = ValueLanes::from_slot(shared);
        let reads = ValueLanes::from_slot(shared + UPLOAD_LANES);
        ServerLink { server, tally, options, slots, shared, uploads, reads, is_retired: false }
    }

    /// Lets the link end after the replies to its requests.
    pub(super) fn retire(&mut self) {
        self.is_retired = true;
    }

    /// Keeps the link, with these options. It keeps its number of connections, too, because the
    /// requests of a client must stay in order.
    pub(super) fn stay(&mut self, options: &Arc<PoolOptions>) {
        self.is_retired = false;
        self.options = Arc::clone(options);
    }

    /// Returns true if the link is retired and no request waits.
    pub(super) fn has_ended(&self) -> bool {
        let is_idle = |slot: &LinkSlot| {
            let waits = slot.connection.as_ref().is_some_and(|connection| connection.waiting_len() > 0);
            !waits && slot.detection.waiting.is_empty()
        };
        self.is_retired && self.slots.iter().all(is_idle) && self.uploads.is_empty() && self.reads.is_empty()
    }

    /// Returns the number of the connection for the requests of a session. It is always the same,
    /// so that the requests of a client stay in order.
    fn slot_of(&self, session: u64) -> usize {
        if self.shared == 1 { 0 } else { (session % self.shared as u64) as usize }
    }

    /// Adds a request of a client.
    #[inline]
    pub(super) fn send(
        &mut self,
        turn: &mut LinkTurn,
        kind: ReplyKind,
        tag: RequestTag,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendRefusal> {
        let tag = RequestTag { sent_us: turn.now_us.max(1), ..tag };
        self.add(turn, self.slot_of(tag.session), kind, RequestOwner::Client(tag), put)
    }

    /// Adds a read, or lets it wait for the reply to an equal one that is under way.
    pub(super) fn send_shared(
        &mut self,
        turn: &mut LinkTurn,
        kind: ReplyKind,
        tag: RequestTag,
        fill: NearFill,
        bytes: &[u8],
    ) -> Result<(), SendRefusal> {
        let (slot, queue) = (self.slot_of(tag.session), self.options.queue);
        if self.slots[slot].shared.join(bytes, fill, tag, queue) {
            return Ok(());
        }
        let number = self.slots[slot].shared.begin(bytes, fill, tag);
        let owner = RequestOwner::Shared(number);
        let sent = self.add(turn, slot, kind, owner, |out| out.extend_from_slice(bytes));
        if sent.is_err() {
            self.slots[slot].shared.end(number);
        }
        sent
    }

    /// Adds a request whose reply is dropped.
    pub(super) fn send_unowned(
        &mut self,
        turn: &mut LinkTurn,
        kind: ReplyKind,
        session: u64,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendRefusal> {
        self.add(turn, self.slot_of(session), kind, RequestOwner::Unowned, put)
    }

    #[inline]
    fn add(
        &mut self,
        turn: &mut LinkTurn,
        slot: usize,
        kind: ReplyKind,
        owner: RequestOwner,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendRefusal> {
        let due = self.due(turn);
        let added = self.add_by(turn, slot, due, kind, owner, put);
        if added.is_err() {
            self.tally.count(ServerCount::NotSent, 1);
        }
        added
    }

    /// Adds a request whose reply is due at this time.
    #[inline]
    fn add_by(
        &mut self,
        turn: &mut LinkTurn,
        slot: usize,
        due: Instant,
        kind: ReplyKind,
        owner: RequestOwner,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendRefusal> {
        let queue = self.options.queue;
        let connection = self.ready(turn, slot)?;
        if connection.waiting_len() >= queue || connection.kept_len() > KEPT_LEN_MAX {
            return Err(SendRefusal::Busy);
        }
        let is_open = connection.is_open();
        connection.add(kind, due, owner, put);
        turn.check_by(due);
        if !is_open && let Some(timeout) = self.options.queue_timeout {
            turn.check_by(turn.now + timeout);
        }
        turn.in_flight += usize::from(slot < self.shared && owner.is_client());
        self.tally.count(ServerCount::Requests, 1);
        self.mark_changed(turn, slot);
        Ok(())
    }

    /// Lets a request wait until the dialect of the server is known.
    pub(super) fn await_dialect(&mut self, turn: &mut LinkTurn, tag: RequestTag) -> Result<(), SendRefusal> {
        let slot = self.slot_of(tag.session);
        let queue = self.options.queue;
        if let Err(refusal) = self.ready(turn, slot) {
            self.tally.count(ServerCount::NotSent, 1);
            return Err(refusal);
        }
        let waiting = &mut self.slots[slot].detection.waiting;
        if waiting.len() >= queue {
            return Err(SendRefusal::Busy);
        }
        waiting.push(tag);
        Ok(())
    }

    /// Returns the connection for a request. Begins to connect if there is none.
    #[inline]
    fn ready(
        &mut self,
        turn: &mut LinkTurn,
        slot: usize,
    ) -> Result<&mut ServerConnection<RequestOwner>, SendRefusal> {
        if self.server.health.is_down() {
            return Err(SendRefusal::Down);
        }
        if self.slots[slot].connection.is_none() {
            self.connect(turn, slot).map_err(|reason| {
                // After the start, a name may be resolved a moment later.
                if reason != LossReason::NameNotFound || self.server.is_looked_up() {
                    self.note_failure(turn, reason, false);
                }
                SendRefusal::Lost(reason)
            })?;
        }
        self.slots[slot].connection.as_mut().ok_or(SendRefusal::Down)
    }

    /// Begins to connect. With `speak = "auto"`, the first requests detect the dialect.
    fn connect(&mut self, turn: &mut LinkTurn, slot: usize) -> Result<(), LossReason> {
        let socket = self.socket(turn, slot)?;
        let mut connection = ServerConnection::new(socket, self.server.access.login.clone(), turn.now);
        let was_refused = std::mem::take(&mut self.slots[slot].detection.was_refused);
        if self.options.speak == PoolProtocol::Auto && !was_refused {
            let due = self.due(turn);
            // Two requests, which are written together.
            connection.add(ReplyKind::Single, due, RequestOwner::Detection, put_detection);
            connection.add(ReplyKind::Single, due, RequestOwner::Detection, |_| ());
            // If the server closes the connection, requests that were not sent can be sent again.
            connection.hold();
        }
        turn.check_by(turn.now + self.options.connect_timeout);
        let place = &mut self.slots[slot];
        place.detection.answers.clear();
        (place.failed, place.is_paused) = (None, false);
        (place.has_ended, place.failed_addresses) = (false, 0);
        place.counted_len = 0;
        place.connection = Some(connection);
        self.tally.count(ServerCount::Connected, 1);
        self.mark_changed(turn, slot);
        Ok(())
    }

    /// Returns a socket that is connecting.
    fn socket(&self, turn: &LinkTurn, slot: usize) -> Result<ServerSocket, LossReason> {
        let mut socket = match &self.server.address {
            Address::Unix(path) => {
                ServerSocket::connect_unix(path).map_err(|error| LossReason::of(&error))?
            }
            Address::Tcp(..) | Address::Tls(..) => {
                let address = self.server.resolved().ok_or(LossReason::NameNotFound)?;
                self.server.access.connect(address)?
            }
        };
        // A system without these options only notices later that a peer has vanished.
        let _ = socket.detect_loss(self.options.reply_timeout.map(|timeout| timeout.saturating_mul(2)));
        let token = LinkPosition { link: self.server.number.get(), slot }.token();
        socket.register(&turn.registry, token).map_err(|error| LossReason::of(&error))?;
        Ok(socket)
    }

    /// Connects all connections that are not, before there are requests.
    pub(super) fn preconnect(&mut self, turn: &mut LinkTurn) {
        for slot in 0..self.shared {
            // A failure shows with the first request.
            let _ = self.ready(turn, slot);
        }
    }

    /// Sends the requests of a connection that were added since the previous call.
    pub(super) fn flush(&mut self, turn: &mut LinkTurn, at: LinkPosition, see: &mut DeliverReply<'_>) {
        let Some(slot) = self.slots.get_mut(at.slot) else { return };
        slot.is_changed = false;
        let failed = slot.failed.take();
        if failed.is_some() {
            // A server that refuses a value may have said so before it closed the connection.
            self.read(turn, at, see);
        }
        let Some(connection) = &mut self.slots[at.slot].connection else { return };
        match failed.map_or_else(|| connection.flush(), Err) {
            Ok(()) => self.continue_upload(at.slot, see),
            Err(reason) => self.lose(turn, at.slot, reason, see),
        }
        self.count_sent(at.slot);
        self.count_kept(turn, at.slot);
        self.note_open(at.slot);
    }

    /// Notes that a connection stands, if it does.
    fn note_open(&mut self, slot: usize) {
        let LinkSlot { connection, open, .. } = &mut self.slots[slot];
        if open.is_none() && connection.as_ref().is_some_and(ServerConnection::is_open) {
            *open = Some(OpenConnection::new(&self.server));
        }
    }

    /// Counts the end of a request that gets no reply.
    fn count_end(&self, request: RequestOwner) {
        let is_counted =
            !matches!(request, RequestOwner::Detection | RequestOwner::Check | RequestOwner::Expired);
        self.tally.count(ServerCount::Ended, u64::from(is_counted));
    }

    /// Counts the bytes that were sent since the previous call.
    fn count_sent(&mut self, slot: usize) {
        let LinkSlot { connection: Some(connection), counted_len, .. } = &mut self.slots[slot] else {
            return;
        };
        let sent = connection.sent_len();
        self.tally.count(ServerCount::WrittenBytes, sent - std::mem::replace(counted_len, sent));
    }

    /// Counts the bytes of requests that a connection keeps.
    fn count_kept(&mut self, turn: &LinkTurn, slot: usize) {
        let LinkSlot { connection, counted_kept, .. } = &mut self.slots[slot];
        let now = connection.as_ref().map_or(0, ServerConnection::kept_len);
        if now != *counted_kept {
            turn.kept.change(std::mem::replace(counted_kept, now), now);
        }
    }

    /// Handles an event of a connection.
    pub(super) fn on_event(
        &mut self,
        turn: &mut LinkTurn,
        at: LinkPosition,
        event: &Event,
        see: &mut DeliverReply<'_>,
    ) {
        let Some(place) = self.slots.get_mut(at.slot) else { return };
        let Some(connection) = &mut place.connection else { return };
        place.has_ended |= event.is_read_closed() || event.is_error();
        if event.is_writable()
            && let Err(reason) = connection.flush()
        {
            return self.lose(turn, at.slot, reason, see);
        }
        if event.is_readable() || place.has_ended {
            self.read(turn, at, see);
        }
        self.note_open(at.slot);
        self.continue_upload(at.slot, see);
    }

    /// Reads from a connection, and passes what arrives to `see`.
    pub(super) fn read(&mut self, turn: &mut LinkTurn, at: LinkPosition, see: &mut DeliverReply<'_>) {
        let is_read_lane = at.slot >= self.shared + UPLOAD_LANES;
        let Some(LinkSlot { connection: Some(connection), detection, has_ended, shared, is_paused, .. }) =
            self.slots.get_mut(at.slot)
        else {
            return;
        };
        if *is_paused {
            return;
        }
        let (server, options) = (&self.server, &self.options);
        let (mut has_answered, mut is_released, mut pauses) = (false, false, false);
        let mut counted = ReadCounts::default();
        let (tally, now_us) = (&*self.tally, turn.now_us);
        let (mut answered, counts) = (0, at.slot < self.shared);
        let (hot_keys, now) = (&mut turn.hot_keys, turn.now);
        let deliver = |owner: &RequestOwner, part: ReplyPart<'_>| {
            if let Some(key) = part.key {
                hot_keys.note_value(key, part.bytes.len(), || now);
            }
            answered += usize::from(counts && part.is_last && owner.is_client());
            has_answered |= !matches!(owner, RequestOwner::Expired);
            counted.note(&part);
            pauses = is_read_lane && matches!(owner, RequestOwner::Client(_)) && !part.is_last;
            match *owner {
                RequestOwner::Client(tag) => {
                    match tag.sent_us {
                        _ if !part.is_last => {}
                        0 => counted.untimed += 1,
                        sent_us => counted.note_reply(tally, now_us.wrapping_sub(sent_us)),
                    }
                    let delivery = match part.missing > READ_AGAIN_MIN && !part.continues {
                        true => ReplyDelivery::LongValue { part, server, options },
                        false => ReplyDelivery::Part(part),
                    };
                    see(tag, delivery);
                }
                RequestOwner::Shared(number) => {
                    counted.untimed += u64::from(part.is_last);
                    shared.deliver(number, part, see);
                }
                RequestOwner::Unowned => counted.untimed += u64::from(part.is_last),
                RequestOwner::Expired => counted.late += u64::from(part.is_last),
                RequestOwner::Detection => detection.note(part.bytes),
                RequestOwner::Check => {}
            }
        };
        let outcome = connection.read(&mut turn.buffer, turn.now, *has_ended, deliver);
        counted.end(tally);
        turn.tally.add(ProxyCount::LateReplies as usize, counted.late);
        turn.in_flight -= answered;
        if has_answered && self.server.health.note_success() {
            tracing::info!("proxy: server {} is up", self.server.label);
        }
        let was_refused = detection.was_refused;
        if let Some(dialect) = detection.found.take() {
            self.server.dialect.set(dialect);
            connection.release();
            is_released = true;
            for tag in std::mem::take(&mut detection.waiting) {
                see(tag, ReplyDelivery::DialectKnown);
            }
        }
        *is_paused = pauses;
        if is_released {
            self.mark_changed(turn, at.slot);
        }
        match outcome {
            _ if was_refused => return self.lose(turn, at.slot, LossReason::Closed, see),
            Err(reason) => return self.lose(turn, at.slot, reason, see),
            Ok(false) if !pauses => turn.unread.push(at),
            Ok(_) => {}
        }
        self.count_kept(turn, at.slot);
        self.end_answered_upload(turn, at.slot);
        self.note_read(turn, at.slot);
    }

    /// Reports the requests whose replies are overdue, ends connections on which nothing arrives,
    /// asks idle servers whether they still answer, and probes a server that is down.
    pub(super) fn check_deadlines(&mut self, turn: &mut LinkTurn, see: &mut DeliverReply<'_>) {
        for slot in 0..self.slots.len() {
            let has_expired = self.expire(turn, slot, see);
            self.expire_unsent(turn, slot, see);
            if self.end_of(slot).is_some_and(|at| at <= turn.now) {
                self.lose(turn, slot, LossReason::TimedOut, see);
            } else if has_expired {
                self.note_failure(turn, LossReason::TimedOut, false);
            }
            if self.ping_at(slot).is_some_and(|at| at <= turn.now) {
                self.ask(turn, slot);
            }
        }
        self.end_stalled_values(turn, see);
        let probe_time = self.options.connect_timeout + self.options.reply_timeout.unwrap_or_default();
        let is_probed = !self.is_retired && self.server.health.is_down();
        if is_probed && self.server.health.takes_probe(turn.now, probe_time) {
            self.probe(turn);
        }
        let slots = 0..self.slots.len();
        let deadlines = slots.flat_map(|slot| {
            [self.next_due(slot), self.end_of(slot), self.ping_at(slot), self.queue_end_of(slot)]
        });
        let last = match self.is_retired {
            // The link ends when it is checked after its last reply.
            true => Some(turn.now + RETIRED_CHECK),
            false => self.server.health.probe_at(),
        };
        let stalls = [self.uploads.first_stall(), self.reads.first_stall()].map(|stall| Some(stall?.0));
        if let Some(at) = deadlines.chain([last]).chain(stalls).flatten().min() {
            turn.check_by(at);
        }
    }

    /// Reports the requests whose replies are overdue. Returns true if there are any.
    fn expire(&mut self, turn: &mut LinkTurn, slot: usize, see: &mut DeliverReply<'_>) -> bool {
        let LinkSlot { connection: Some(connection), shared, is_paused: false, .. } = &mut self.slots[slot]
        else {
            return false;
        };
        let (label, when_down) = (self.server.shown_label(), self.options.when_down);
        let tally = &self.tally;
        let reason = LossReason::TimedOut.as_str();
        let (now, counts) = (turn.now, slot < self.shared);
        let expire = |owner: &mut RequestOwner| {
            if !owner.is_client() {
                return;
            }
            tally.count(ServerCount::TimedOut, 1);
            tally.count(ServerCount::Ended, 1);
            turn.in_flight -= usize::from(counts);
            let lost = ReplyDelivery::Lost { label, reason, when_down };
            match std::mem::replace(owner, RequestOwner::Expired) {
                RequestOwner::Client(tag) => see(tag, lost),
                RequestOwner::Shared(number) => shared.end(number).into_iter().for_each(|tag| see(tag, lost)),
                _ => {}
            }
        };
        connection.is_open() && connection.expire(now, expire) > 0
    }

    /// Reports the requests that have waited too long for a connection, which are not sent then.
    /// This is no failure of the server: the connection itself has a longer limit.
    fn expire_unsent(&mut self, turn: &mut LinkTurn, slot: usize, see: &mut DeliverReply<'_>) {
        if self.queue_end_of(slot).is_none_or(|end| end > turn.now) {
            return;
        }
        let mut removed = Vec::new();
        let until = self.due(turn) - self.options.queue_timeout.unwrap_or_default();
        if let Some(connection) = &mut self.slots[slot].connection {
            connection.remove_unsent(|owner, due| {
                let is_removed = owner.is_client() && due <= until;
                removed.extend(is_removed.then_some(*owner));
                is_removed
            });
        }
        turn.in_flight -= removed.len();
        for owner in &removed {
            self.count_end(*owner);
            self.tally.count(ServerCount::QueueTimedOut, 1);
            self.report_loss(slot, *owner, LossReason::TimedOut, see);
        }
    }

    /// Returns the time at which the first request has waited too long for a connection.
    fn queue_end_of(&self, slot: usize) -> Option<Instant> {
        let timeout = self.options.queue_timeout.filter(|_| slot < self.shared)?;
        let connection = self.slots[slot].connection.as_ref().filter(|connection| !connection.is_open())?;
        let due = connection.due_of_first(RequestOwner::is_client)?;
        // Its reply is due this time after its arrival.
        let span = self.options.reply_timeout.unwrap_or(NEVER);
        Some(due.checked_sub(span)? + timeout)
    }

    /// Returns the time at which a reply on a connection is overdue.
    fn next_due(&self, slot: usize) -> Option<Instant> {
        let place = &self.slots[slot];
        place.connection.as_ref().filter(|connection| connection.is_open() && !place.is_paused)?.next_due()
    }

    /// Returns the time at which a connection counts as lost, unless bytes arrive before.
    fn end_of(&self, slot: usize) -> Option<Instant> {
        let connection = self.slots[slot].connection.as_ref()?;
        if !connection.is_open() {
            return Some(connection.active_at() + self.options.connect_timeout);
        }
        if self.slots[slot].is_paused {
            return None;
        }
        connection.end_of_silence(self.options.reply_timeout?)
    }

    /// Returns the time at which the server of an idle connection is asked for its version.
    fn ping_at(&self, slot: usize) -> Option<Instant> {
        let connection = self.slots[slot].connection.as_ref()?;
        let is_idle = connection.is_open() && connection.waiting_len() == 0 && !self.is_retired;
        is_idle.then_some(connection.active_at() + self.options.ping?)
    }

    fn due(&self, turn: &LinkTurn) -> Instant {
        self.options.reply_timeout.map_or(never(turn.now), |timeout| turn.now + timeout)
    }

    fn mark_changed(&mut self, turn: &mut LinkTurn, slot: usize) {
        if !std::mem::replace(&mut self.slots[slot].is_changed, true) {
            turn.changed.push(LinkPosition { link: self.server.number.get(), slot });
        }
    }

    /// Asks a server that is down for its version.
    fn probe(&mut self, turn: &mut LinkTurn) {
        let is_new = self.slots[0].connection.is_none();
        if is_new && let Err(reason) = self.connect(turn, 0) {
            self.note_failure(turn, reason, true);
            return;
        }
        let is_free =
            self.slots[0].connection.as_ref().is_some_and(|connection| connection.waiting_len() == 0);
        if is_new || is_free {
            self.ask(turn, 0);
        }
    }

    /// Asks the server for its version.
    fn ask(&mut self, turn: &mut LinkTurn, slot: usize) {
        let due = self.due(turn);
        let Some(connection) = &mut self.slots[slot].connection else { return };
        let (kind, dialect) = match self.options.speak {
            PoolProtocol::Binary => (ReplyKind::Binary, ServerDialect::Binary),
            PoolProtocol::Auto | PoolProtocol::Text | PoolProtocol::Meta => {
                (ReplyKind::Single, ServerDialect::Text)
            }
        };
        connection.add(kind, due, RequestOwner::Check, |out| put_version(dialect, out));
        turn.check_by(due);
        self.mark_changed(turn, slot);
    }

    /// Ends a connection, and repeats its requests or reports that they are lost.
    fn lose(&mut self, turn: &mut LinkTurn, slot: usize, reason: LossReason, see: &mut DeliverReply<'_>) {
        if self.tries_next_address(turn, slot, reason) {
            return;
        }
        self.count_sent(slot);
        let Some(connection) = self.slots[slot].connection.take() else { return };
        self.count_kept(turn, slot);
        self.slots[slot].open = None;
        self.release_lane(turn, slot);
        self.tally.count(ServerCount::Disconnected, 1);
        let was_open = connection.is_open();
        match reason {
            _ if !was_open => self.tally.count(ServerCount::NotConnected, 1),
            LossReason::Closed => self.tally.count(ServerCount::ClosedByServer, 1),
            _ => {}
        }
        let lost = connection.lose();
        let detection = &mut self.slots[slot].detection;
        let asks = lost.first().is_some_and(|lost| matches!(lost.request, RequestOwner::Detection));
        detection.was_refused |=
            was_open && asks && detection.answers.is_empty() && reason == LossReason::Closed;
        let was_refused = detection.was_refused;
        let waiting = std::mem::take(&mut detection.waiting);
        // An idle connection that its server closes is no failure, even if a check is under way.
        let is_idle = lost.iter().all(|lost| matches!(lost.request, RequestOwner::Check));
        if was_refused {
            self.server.dialect.set(ServerDialect::Text);
        } else if !was_open || (!lost.is_empty() && (reason != LossReason::Closed || !is_idle)) {
            let is_check = lost.iter().any(|lost| matches!(lost.request, RequestOwner::Check));
            self.note_failure(turn, reason, is_check);
        }
        // A server that was only slow still executes what it has received, perhaps after requests
        // of a new connection. So a write that is repeated after silence could undo a later one.
        let may_repeat = reason == LossReason::Closed;
        for LostRequest { request, kind, due, bytes, is_sent } in lost {
            self.count_end(request);
            turn.in_flight -= usize::from(slot < self.shared && request.is_client());
            let is_in_time = may_repeat && due > turn.now && !bytes.is_empty();
            let again = match is_in_time {
                true if was_refused && !is_sent => Some(request),
                true => self.repeated(slot, request),
                false => None,
            };
            let is_repeated = again.is_some_and(|owner| {
                self.add_by(turn, slot, due, kind, owner, |out| out.extend_from_slice(&bytes)).is_ok()
            });
            if is_repeated {
                turn.tally.add(ProxyCount::Retries as usize, 1);
                self.tally.count(ServerCount::Repeated, 1);
            } else {
                self.report_loss(slot, request, reason, see);
            }
        }
        for tag in waiting {
            see(tag, if was_refused { ReplyDelivery::DialectKnown } else { self.loss(reason) });
        }
    }

    /// Reports the loss of a request to the clients that wait for it.
    fn report_loss(
        &mut self,
        slot: usize,
        owner: RequestOwner,
        reason: LossReason,
        see: &mut DeliverReply<'_>,
    ) {
        match owner {
            RequestOwner::Client(tag) => see(tag, self.loss(reason)),
            RequestOwner::Shared(number) => {
                let tags = self.slots[slot].shared.end(number);
                tags.into_iter().for_each(|tag| see(tag, self.loss(reason)));
            }
            _ => {}
        }
    }

    /// Returns the owner of a request that is sent again, or `None` if it must not be.
    fn repeated(&mut self, slot: usize, owner: RequestOwner) -> Option<RequestOwner> {
        let max = self.options.retries.min(u8::MAX.into());
        match owner {
            RequestOwner::Client(tag) if tag.may_repeat && u32::from(tag.repeats) < max => {
                Some(RequestOwner::Client(RequestTag { repeats: tag.repeats + 1, ..tag }))
            }
            RequestOwner::Shared(number) if self.slots[slot].shared.repeats(number, max) => Some(owner),
            _ => None,
        }
    }

    /// Returns the report to a request whose connection is lost.
    fn loss(&self, reason: LossReason) -> ReplyDelivery<'_> {
        let (label, when_down) = (self.server.shown_label(), self.options.when_down);
        ReplyDelivery::Lost { label, reason: reason.as_str(), when_down }
    }

    /// Connects to the next address of the server, if it has several and this one fails.
    fn tries_next_address(&mut self, turn: &mut LinkTurn, slot: usize, reason: LossReason) -> bool {
        let place = &mut self.slots[slot];
        let is_connecting = place.connection.as_ref().is_some_and(|connection| !connection.is_open());
        if !is_connecting || !matches!(reason, LossReason::Refused | LossReason::Unreachable) {
            return false;
        }
        place.failed_addresses += 1;
        if place.failed_addresses >= self.server.select_next_address() {
            return false;
        }
        let Ok(socket) = self.socket(turn, slot) else { return false };
        let place = &mut self.slots[slot];
        place.has_ended = false;
        if let Some(connection) = &mut place.connection {
            connection.replace_socket(socket, self.server.access.login.clone());
        }
        self.mark_changed(turn, slot);
        true
    }

    /// Makes room for the connection of a request with a long value. `slot` is `None` if it must
    /// wait.
    fn own_slot(&mut self, turn: &mut LinkTurn, slot: Option<usize>) -> Option<usize> {
        match slot {
            // A client in front may send or read nothing.
            None => turn.check_by(turn.now + VALUE_STALL),
            Some(slot) if self.slots.len() <= slot => self.slots.resize_with(slot + 1, LinkSlot::default),
            Some(_) => {}
        }
        slot
    }

    /// Begins a request with a long value: sends its head. Returns false if the request must wait
    /// for a connection; [`ReplyDelivery::UploadContinues`] follows.
    pub(super) fn begin_upload(
        &mut self,
        turn: &mut LinkTurn,
        kind: ReplyKind,
        tag: RequestTag,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool, SendRefusal> {
        let taken = self.uploads.take(tag, turn.now, self.options.queue)?;
        let Some(slot) = self.own_slot(turn, taken) else { return Ok(false) };
        // The client may take as long as it likes to send the value.
        let outcome = self.add_by(turn, slot, never(turn.now), kind, RequestOwner::Client(tag), put);
        match (&outcome, self.uploads.user(slot)) {
            (Ok(()), Some(user)) => user.progress = LaneProgress::AwaitsClient,
            _ => {
                self.tally.count(ServerCount::NotSent, 1);
                self.release_lane(turn, slot);
            }
        }
        outcome.map(|()| true)
    }

    /// Sends bytes of a long value. `ends` is true if they are its last ones. Returns the number of
    /// bytes that the server has accepted; [`ReplyDelivery::UploadContinues`] follows if it is
    /// smaller. Returns `None` if the request is not being sent.
    pub(super) fn send_value(
        &mut self,
        turn: &mut LinkTurn,
        tag: RequestTag,
        bytes: &[u8],
        ends: bool,
    ) -> Option<usize> {
        let slot = self.uploads.slot_of(tag)?;
        // A server that stores gigabytes may pause for longer than a reply takes.
        let due = self.due(turn).max(turn.now + VALUE_STALL);
        let user = self.uploads.user(slot)?;
        let place = self.slots.get_mut(slot)?;
        let connection = place.connection.as_mut()?;
        let accepted = match connection.send_on(bytes) {
            Ok(accepted) => accepted,
            Err(reason) => {
                place.failed = Some(reason);
                self.mark_changed(turn, slot);
                return Some(0);
            }
        };
        let was_blocked = user.progress == LaneProgress::AwaitsServer;
        user.progress = match (accepted == bytes.len(), ends) {
            (true, true) => LaneProgress::Complete,
            (true, false) => LaneProgress::AwaitsClient,
            (false, _) => LaneProgress::AwaitsServer,
        };
        self.tally.count(ServerCount::WrittenBytes, accepted as u64);
        if accepted > 0 {
            user.note_bytes(accepted, was_blocked, turn.now);
        }
        match user.progress {
            LaneProgress::AwaitsClient => connection.set_last_due(never(turn.now)),
            LaneProgress::AwaitsServer if was_blocked && accepted == 0 => {}
            _ => {
                connection.set_last_due(due);
                turn.check_by(due);
            }
        }
        Some(accepted)
    }

    /// Begins a request whose reply has a long value: it is read as far as
    /// [`resume_read`](Self::resume_read) demands. Returns false if the request must wait for a
    /// connection; [`ReplyDelivery::UploadContinues`] follows.
    pub(super) fn begin_read(
        &mut self,
        turn: &mut LinkTurn,
        kind: ReplyKind,
        tag: RequestTag,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool, SendRefusal> {
        let taken = self.reads.take(tag, turn.now, self.options.queue)?;
        let Some(slot) = self.own_slot(turn, taken) else { return Ok(false) };
        let outcome = self.add(turn, slot, kind, RequestOwner::Client(tag), put);
        match (&outcome, self.reads.user(slot)) {
            (Ok(()), Some(user)) => user.progress = LaneProgress::AwaitsServer,
            _ => self.release_lane(turn, slot),
        }
        outcome.map(|()| true)
    }

    /// Reads the next part of a long value.
    pub(super) fn resume_read(&mut self, turn: &mut LinkTurn, tag: RequestTag) {
        let Some(slot) = self.reads.slot_of(tag) else { return };
        if let Some(user) = self.reads.user(slot)
            && let Some(LinkSlot { connection: Some(connection), is_paused, .. }) = self.slots.get_mut(slot)
            && std::mem::take(is_paused)
        {
            user.progress = LaneProgress::AwaitsServer;
            connection.set_active(turn.now);
            turn.unread.push(LinkPosition { link: self.server.number.get(), slot });
            turn.check_by(self.due(turn));
        }
    }

    /// Notes that a part of a long value was read: its client has to read it before the next part.
    fn note_read(&mut self, turn: &mut LinkTurn, slot: usize) {
        let has_others = self.reads.has_queue();
        let place = &self.slots[slot];
        let Some(user) = self.reads.user(slot) else { return };
        if place.is_paused {
            user.progress = LaneProgress::AwaitsClient;
            user.restart(turn.now);
            if has_others {
                turn.check_by(turn.now + VALUE_STALL);
            }
        } else if user.progress == LaneProgress::AwaitsServer
            && place.connection.as_ref().is_none_or(|connection| connection.waiting_len() == 0)
        {
            self.release_lane(turn, slot);
        }
    }

    /// Ends a request whose long value the client no longer reads.
    pub(super) fn cancel_read(&mut self, turn: &mut LinkTurn, tag: RequestTag) {
        self.reads.leave_queue(tag);
        if let Some(slot) = self.reads.slot_of(tag) {
            self.drop_value(turn, slot);
        }
    }

    /// Ends a request with a long value whose client has gone, or whose value is not to be stored.
    /// The server has not got all of it, and the connection ends, so the server stores nothing.
    pub(super) fn cancel_upload(&mut self, turn: &mut LinkTurn, tag: RequestTag) {
        self.uploads.leave_queue(tag);
        if let Some(slot) = self.uploads.slot_of(tag)
            && self.uploads.user(slot).is_some_and(|user| user.progress != LaneProgress::Complete)
        {
            self.drop_value(turn, slot);
        }
    }

    /// Drops a connection with an incomplete value.
    fn drop_value(&mut self, turn: &mut LinkTurn, slot: usize) {
        let Some(place) = self.slots.get_mut(slot) else { return };
        (place.open, place.is_paused) = (None, false);
        self.count_sent(slot);
        if let Some(connection) = self.slots[slot].connection.take() {
            self.tally.count(ServerCount::Disconnected, 1);
            connection.lose().iter().for_each(|lost| self.count_end(lost.request));
        }
        self.count_kept(turn, slot);
        self.release_lane(turn, slot);
    }

    /// Lets the next request use the connection for long values that was used in this slot.
    fn release_lane(&mut self, turn: &mut LinkTurn, slot: usize) {
        if self.reads.user(slot).is_some() {
            self.slots[slot].is_paused = false;
        }
        turn.granted.extend(self.uploads.release(slot, turn.now));
        turn.granted.extend(self.reads.release(slot, turn.now));
    }

    /// Lets the client of a long value continue once the server accepts bytes again.
    fn continue_upload(&mut self, slot: usize, see: &mut DeliverReply<'_>) {
        let connection = self.slots.get(slot).and_then(|place| place.connection.as_ref());
        if connection.is_some_and(ServerConnection::has_sent_all)
            && let Some(LaneUser { tag, progress: LaneProgress::AwaitsServer, .. }) = self.uploads.user(slot)
        {
            see(*tag, ReplyDelivery::UploadContinues);
        }
    }

    /// Ends the use of a connection for a long value once the server has replied. A server may
    /// refuse the value before it has got all of it.
    fn end_answered_upload(&mut self, turn: &mut LinkTurn, slot: usize) {
        let Some(progress) = self.uploads.user(slot).map(|user| user.progress) else { return };
        let connection = self.slots[slot].connection.as_ref();
        let is_answered = connection.is_none_or(|connection| connection.waiting_len() == 0);
        match progress {
            LaneProgress::Granted => {}
            _ if !is_answered => {}
            LaneProgress::Complete => self.release_lane(turn, slot),
            LaneProgress::AwaitsClient | LaneProgress::AwaitsServer => self.drop_value(turn, slot),
        }
    }

    /// Ends requests whose clients send or read nothing of their long values while others wait: at
    /// most one that sends, and one that reads.
    fn end_stalled_values(&mut self, turn: &mut LinkTurn, see: &mut DeliverReply<'_>) {
        for stall in [self.uploads.first_stall(), self.reads.first_stall()] {
            let Some((at, slot)) = stall else { continue };
            let user = self.uploads.user(slot).or_else(|| self.reads.user(slot));
            if at <= turn.now
                && let Some(tag) = user.map(|user| user.tag)
            {
                see(tag, self.loss(LossReason::TimedOut));
                self.drop_value(turn, slot);
            }
        }
    }

    fn note_failure(&self, turn: &mut LinkTurn, reason: LossReason, is_probe: bool) {
        let is_final = reason == LossReason::Refused && !self.server.has_open_connection();
        let is_down = self.server.health.note_failure(turn.now, is_final, is_probe);
        self.server.counters.note_failure(reason, turn.now);
        self.tally.count_failure(reason);
        self.tally.count(ServerCount::Downs, u64::from(is_down));
        if is_down {
            tracing::warn!("proxy: server {} is down: {}", self.server.label, reason.as_str());
        }
        if let Some(at) = self.server.health.probe_at() {
            turn.check_by(at);
        }
    }
}

impl Drop for ServerLink {
    fn drop(&mut self) {
        let connections = self.slots.iter().filter(|slot| slot.connection.is_some()).count();
        self.tally.count(ServerCount::Disconnected, connections as u64);
    }
}
