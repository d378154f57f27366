//! The connections of a worker to the servers of all pools.

use super::kept_bytes::KeptBytes;
use super::live_proxy::LiveProxy;
use super::near_cache::NearFill;
use super::pool_server::PoolServer;
use super::proxy_counters::{ClientCommand, PoolCounters, PoolTally, ProxyCount};
use super::proxy_state::{ProxyState, ServerPlace};
use super::server_link::{LinkPosition, LinkTurn, ServerLink};
use super::server_request::{ReplyDelivery, RequestTag, SendRefusal};
use super::turn_queue::TurnQueue;
use crate::observation::hot_keys::SampleRate;
use crate::options::PoolOptions;
use mio::event::Event;
use mio::{Registry, Token};
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana_client::pool::ReplyKind;
use todana_protocol::memcached::client::ServerDialect;

/// The length of one read.
const BUFFER_LEN: usize = 64 << 10;

/// The longest wait for an event.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// A pool in a state that may have been replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedPool {
    pool: u32,
    /// The low half of the version of the state.
    version: u32,
}

/// The part of the proxy that one worker owns.
pub(crate) struct ProxyWorker {
    live: Arc<LiveProxy>,
    /// The state that this worker has adopted, and the number of its version.
    pub(crate) state: Arc<ProxyState>,
    version: u64,
    /// The links by the numbers of their servers.
    links: Vec<Option<ServerLink>>,
    turn: LinkTurn,
    /// The requests that are kept until their servers have answered.
    pub(crate) kept: KeptBytes,
    /// The counters of the pools of `state`, in their order.
    pools: Vec<(Arc<PoolCounters>, Arc<PoolTally>)>,
    started: Instant,
    /// The connections that are read in the next turn.
    unread: Vec<LinkPosition>,
    /// The sessions that wait for their turn.
    waiting: TurnQueue,
    next_session: u64,
    next_number: usize,
}

impl ProxyWorker {
    /// Creates the worker's part of the proxy. Connections are made when they are needed.
    pub(crate) fn new(live: Arc<LiveProxy>, registry: Registry) -> ProxyWorker {
        let (version, state) = (live.version(), live.state());
        let (now, buffer) = (Instant::now(), vec![0; BUFFER_LEN]);
        let (changed, unread, granted) = (Vec::new(), Vec::new(), Vec::new());
        let tally = live.counters.join();
        let kept = KeptBytes::default();
        let turn = LinkTurn {
            registry,
            now,
            now_us: 0,
            changed,
            unread,
            in_flight: 0,
            check_at: None,
            granted,
            hot_keys: live.hot_keys.join(state.hot_keys, SampleRate::OF_PROXY, now),
            buffer,
            tally,
            kept: kept.clone(),
        };
        let mut worker = ProxyWorker {
            live,
            state: Arc::clone(&state),
            version,
            links: Vec::new(),
            turn,
            kept,
            pools: Vec::new(),
            started: now,
            unread: Vec::new(),
            waiting: TurnQueue::default(),
            next_session: 0,
            next_number: 0,
        };
        worker.join_pools();
        for (number, pool) in state.pools.iter().enumerate().filter(|(_, pool)| pool.options.preconnect) {
            for server in 0..pool.servers.len() {
                let (link, turn) = worker.link(&state, ServerPlace { pool: number, server });
                link.preconnect(turn);
            }
        }
        worker
    }

    /// Returns the proxy, of which this is one worker's part.
    pub(crate) fn live(&self) -> &LiveProxy {
        &self.live
    }

    /// Returns the number of bytes of requests that wait for their servers.
    pub(crate) fn kept_len(&self) -> usize {
        self.kept.len()
    }

    /// Returns the number of a new session.
    pub(crate) fn session_number(&mut self) -> u64 {
        self.next_session += 1;
        self.next_session
    }

    /// Notes the time, and adopts a new state, at the beginning of each turn of the event loop.
    pub(crate) fn tick(&mut self) {
        self.turn.now = Instant::now();
        // Intervals are measured with it, so it may wrap around.
        self.turn.now_us = self.turn.now.duration_since(self.started).as_micros() as u32;
        let version = self.live.version();
        if version != self.version {
            self.adopt(version, self.live.state());
        }
    }

    /// Uses another state for requests from now on. Links to servers that it does not have end
    /// after the replies to their requests.
    fn adopt(&mut self, version: u64, state: Arc<ProxyState>) {
        self.links.iter_mut().flatten().for_each(ServerLink::retire);
        for pool in &state.pools {
            for server in &pool.servers {
                if let Some(Some(link)) = self.links.get_mut(server.number.get()) {
                    link.stay(&pool.options);
                }
            }
        }
        self.turn.hot_keys.set_max(state.hot_keys);
        (self.version, self.state) = (version, state);
        self.join_pools();
        // The deadlines depend on the options.
        self.turn.check_by(self.turn.now);
    }

    /// Takes part in the counters of the pools.
    fn join_pools(&mut self) {
        let before = std::mem::take(&mut self.pools);
        let joined = self.state.pools.iter().map(|pool| {
            let same = before.iter().find(|(counters, _)| Arc::ptr_eq(counters, &pool.counters));
            same.cloned().unwrap_or_else(|| (Arc::clone(&pool.counters), pool.counters.join()))
        });
        self.pools = joined.collect();
    }

    /// Returns the time of this turn in microseconds. Only differences of such times have a
    /// meaning.
    #[inline]
    pub(crate) fn now_us(&self) -> u32 {
        self.turn.now_us
    }

    /// Counts a request for a pool. Returns the identity of the pool for [`note_times`].
    ///
    /// [`note_times`]: Self::note_times
    #[inline]
    pub(crate) fn count_request(
        &self,
        pool: usize,
        command: ClientCommand,
        is_quiet: bool,
    ) -> Option<TimedPool> {
        let (_, tally) = self.pools.get(pool)?;
        tally.count_request(command, is_quiet);
        Some(TimedPool { pool: u32::try_from(pool).ok()?, version: self.version as u32 })
    }

    /// Counts a line with several keys.
    pub(crate) fn count_line(&self, pool: Option<TimedPool>, keys: usize, parts: usize) {
        self.count(ProxyCount::MultigetKeys, keys as u64);
        self.count(ProxyCount::MultigetRequests, parts as u64);
        if let Some(pool) = pool.and_then(|pool| self.pools.get(pool.pool as usize)) {
            pool.1.count_line(keys, parts);
        }
    }

    /// Notes that the replies to `count` requests can be sent, all of which arrived at this time.
    #[inline]
    pub(crate) fn note_times(&self, pool: TimedPool, started_us: u32, count: u64) {
        // The numbers of the pools of an earlier state have another meaning.
        if pool.version == self.version as u32
            && let Some((_, tally)) = self.pools.get(pool.pool as usize)
        {
            tally.note_times(self.turn.now_us.wrapping_sub(started_us), count);
        }
    }

    /// Adds to a counter of the proxy.
    pub(crate) fn count(&self, count: ProxyCount, by: u64) {
        self.turn.tally.add(count as usize, by);
    }

    /// Adds a request to those for a server. They are sent by [`flush`](Self::flush).
    #[inline]
    pub(crate) fn send(
        &mut self,
        state: &ProxyState,
        place: ServerPlace,
        kind: ReplyKind,
        tag: RequestTag,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendRefusal> {
        let (link, turn) = self.link(state, place);
        link.send(turn, kind, tag, put)
    }

    /// Adds a read, or lets it wait for the reply to an equal one that is under way.
    pub(crate) fn send_shared(
        &mut self,
        state: &ProxyState,
        place: ServerPlace,
        kind: ReplyKind,
        tag: RequestTag,
        fill: NearFill,
        bytes: &[u8],
    ) -> Result<(), SendRefusal> {
        let (link, turn) = self.link(state, place);
        link.send_shared(turn, kind, tag, fill, bytes)
    }

    /// Adds a request whose reply is dropped. It keeps its place among those of the session.
    pub(crate) fn send_unowned(
        &mut self,
        state: &ProxyState,
        place: ServerPlace,
        kind: ReplyKind,
        session: u64,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendRefusal> {
        let (link, turn) = self.link(state, place);
        link.send_unowned(turn, kind, session, put)
    }

    /// Begins a request with a long value: sends its head, which `put` writes. Returns false if the
    /// request must wait for a connection; [`ReplyDelivery::UploadContinues`] follows.
    pub(crate) fn begin_upload(
        &mut self,
        state: &ProxyState,
        place: ServerPlace,
        tag: RequestTag,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool, SendRefusal> {
        let (link, turn) = self.link(state, place);
        link.begin_upload(turn, ReplyKind::Single, tag, put)
    }

    /// Sends bytes of a long value, and returns the number of bytes that the server has accepted.
    /// [`ReplyDelivery::UploadContinues`] follows if it is smaller. `ends` is true if the bytes are
    /// the last ones. Returns `None` if the request is not being sent.
    pub(crate) fn send_value(
        &mut self,
        state: &ProxyState,
        place: ServerPlace,
        tag: RequestTag,
        bytes: &[u8],
        ends: bool,
    ) -> Option<usize> {
        let (link, turn) = self.link(state, place);
        link.send_value(turn, tag, bytes, ends)
    }

    /// Ends a request with a long value that is incomplete. The server stores nothing.
    pub(crate) fn cancel_upload(&mut self, state: &ProxyState, place: ServerPlace, tag: RequestTag) {
        let (link, turn) = self.link(state, place);
        link.cancel_upload(turn, tag);
    }

    /// Asks a server again on a connection that is read only as far as [`resume_read`] demands.
    /// Returns false if the request must wait for a connection;
    /// [`ReplyDelivery::UploadContinues`] follows.
    ///
    /// [`resume_read`]: Self::resume_read
    pub(crate) fn begin_read(
        &mut self,
        server: &Arc<PoolServer>,
        options: &Arc<PoolOptions>,
        kind: ReplyKind,
        tag: RequestTag,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool, SendRefusal> {
        let (link, turn) = self.link_to(server, options);
        link.begin_read(turn, kind, tag, put)
    }

    /// Reads the next part of a long value.
    pub(crate) fn resume_read(&mut self, server: &PoolServer, tag: RequestTag) {
        if let Some(Some(link)) = self.links.get_mut(server.number.get()) {
            link.resume_read(&mut self.turn, tag);
        }
    }

    /// Ends a request whose long value the client no longer reads.
    pub(crate) fn cancel_read(&mut self, server: &PoolServer, tag: RequestTag) {
        if let Some(Some(link)) = self.links.get_mut(server.number.get()) {
            link.cancel_read(&mut self.turn, tag);
        }
    }

    /// Returns the dialect of a server. `None` means that it is not known yet:
    /// [`ReplyDelivery::DialectKnown`] or [`ReplyDelivery::Lost`] follows.
    pub(crate) fn dialect_of(
        &mut self,
        state: &ProxyState,
        place: ServerPlace,
        tag: RequestTag,
    ) -> Result<Option<ServerDialect>, SendRefusal> {
        if let Some(dialect) = self.known_dialect(state, place) {
            return Ok(Some(dialect));
        }
        let (link, turn) = self.link(state, place);
        link.await_dialect(turn, tag)?;
        Ok(None)
    }

    /// Returns the dialect of a server if it is known.
    pub(crate) fn known_dialect(&self, state: &ProxyState, place: ServerPlace) -> Option<ServerDialect> {
        state.server(place).dialect.get()
    }

    /// Returns true if a session may send its next request: fewer requests are in flight than
    /// allowed. Sessions that wait come first; `was_granted` is true for those that have waited.
    #[inline]
    pub(crate) fn has_turn(&self, was_granted: bool) -> bool {
        let Some(max) = self.state.in_flight_max else { return true };
        self.turn.in_flight < max && (was_granted || self.waiting.is_empty())
    }

    /// Lets a session wait for its turn. [`ReplyDelivery::Turn`] follows.
    pub(crate) fn await_turn(&mut self, since: Instant, tag: RequestTag) {
        self.waiting.push(since, tag);
        if let Some(timeout) = self.state.queue_timeout {
            self.turn.check_by(since + timeout);
        }
    }

    /// Returns the number of sessions that may have their turn now.
    fn free_turns(&self) -> usize {
        self.state.in_flight_max.map_or(usize::MAX, |max| max.saturating_sub(self.turn.in_flight))
    }

    /// Gives sessions their turn, and ends the wait of those that have waited too long.
    fn grant_turns(&mut self, see: &mut dyn FnMut(RequestTag, ReplyDelivery<'_>)) {
        for _ in 0..self.free_turns() {
            let Some(tag) = self.waiting.pop() else { break };
            see(tag, ReplyDelivery::Turn { is_in_time: true });
        }
        let Some(timeout) = self.state.queue_timeout else { return };
        while let Some(tag) =
            self.turn.now.checked_sub(timeout).and_then(|since| self.waiting.pop_since(since))
        {
            see(tag, ReplyDelivery::Turn { is_in_time: false });
        }
        if let Some(since) = self.waiting.first_since() {
            self.turn.check_by(since + timeout);
        }
    }

    /// Counts a request of `len` bytes for a key.
    #[inline]
    pub(crate) fn note_key(&mut self, key: &[u8], len: usize) {
        let now = self.turn.now;
        self.turn.hot_keys.note_request(key, len, || now);
    }

    /// Returns the time of this turn.
    pub(crate) fn now(&self) -> Instant {
        self.turn.now
    }

    /// Returns a number that is different for each call.
    pub(crate) fn next_number(&mut self) -> usize {
        self.next_number = self.next_number.wrapping_add(1);
        self.next_number
    }

    /// Returns the link to a server.
    #[inline]
    fn link(&mut self, state: &ProxyState, place: ServerPlace) -> (&mut ServerLink, &mut LinkTurn) {
        let pool = &state.pools[place.pool];
        self.link_to(&pool.servers[place.server], &pool.options)
    }

    /// Returns the link to a server of a state, which may have been replaced.
    #[inline]
    fn link_to(
        &mut self,
        server: &Arc<PoolServer>,
        options: &Arc<PoolOptions>,
    ) -> (&mut ServerLink, &mut LinkTurn) {
        let index = server.number.get();
        if self.links.len() <= index {
            self.links.resize_with(index + 1, || None);
        }
        let link = self.links[index].get_or_insert_with(|| {
            let mut link = ServerLink::new(Arc::clone(server), Arc::clone(options));
            // Requests under way may still need a server that the configuration no longer has.
            if !self.state.has(server) {
                link.retire();
                self.turn.check_by(self.turn.now);
            }
            link
        });
        (link, &mut self.turn)
    }

    /// Sends the requests that were added since the previous call: all of a connection in one
    /// write.
    pub(crate) fn flush(&mut self, see: &mut dyn FnMut(RequestTag, ReplyDelivery<'_>)) {
        for at in std::mem::take(&mut self.turn.changed) {
            if let Some(Some(link)) = self.links.get_mut(at.link) {
                link.flush(&mut self.turn, at, see);
            }
        }
        for tag in std::mem::take(&mut self.turn.granted) {
            see(tag, ReplyDelivery::UploadContinues);
        }
    }

    /// Handles an event of a connection to a server, and passes what arrives to `see`.
    pub(crate) fn on_event(
        &mut self,
        token: Token,
        event: &Event,
        see: &mut dyn FnMut(RequestTag, ReplyDelivery<'_>),
    ) {
        let at = LinkPosition::of(token);
        if let Some(Some(link)) = self.links.get_mut(at.link) {
            link.on_event(&mut self.turn, at, event, see);
        }
    }

    /// Reports requests whose replies are overdue, ends connections on which nothing arrives, and
    /// probes servers that are down. Reads on where the turn before has stopped.
    pub(crate) fn check_deadlines(&mut self, see: &mut dyn FnMut(RequestTag, ReplyDelivery<'_>)) {
        for at in std::mem::take(&mut self.unread) {
            if let Some(Some(link)) = self.links.get_mut(at.link) {
                link.read(&mut self.turn, at, see);
            }
        }
        self.unread.append(&mut self.turn.unread);
        if self.turn.check_at.is_some_and(|at| at <= self.turn.now) {
            self.turn.check_at = None;
            for place in &mut self.links {
                if place.as_ref().is_some_and(ServerLink::has_ended) {
                    *place = None;
                }
                let Some(link) = place else { continue };
                link.check_deadlines(&mut self.turn, see);
            }
        }
        if !self.waiting.is_empty() {
            self.grant_turns(see);
        }
        self.flush(see);
    }

    /// Returns the time at which [`check_deadlines`](Self::check_deadlines) must be called.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if !self.unread.is_empty() || (!self.waiting.is_empty() && self.free_turns() > 0) {
            return Some(self.turn.now);
        }
        // Without a time limit, a reply is due in a century, which is too long for a wait.
        self.turn.check_at.map(|at| at.min(self.turn.now + WAIT_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{PoolOptions, PoolProtocol, ProxyOptions};
    use mio::{Events, Poll};
    use std::collections::BTreeMap;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// A worker whose only server is a listener of the test.
    struct WorkerLoop {
        poll: Poll,
        state: Arc<ProxyState>,
        worker: ProxyWorker,
        listener: TcpListener,
    }

    impl WorkerLoop {
        fn new(options: PoolOptions) -> WorkerLoop {
            let poll = Poll::new().unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let servers = vec![listener.local_addr().unwrap().to_string().parse().unwrap()];
            let pools = BTreeMap::from([("main".into(), PoolOptions { servers, ..options })]);
            let state = ProxyState::new(&ProxyOptions { pools, ..ProxyOptions::default() }).unwrap();
            let live = Arc::new(LiveProxy::new(state));
            let state = live.state();
            let worker = ProxyWorker::new(live, poll.registry().try_clone().unwrap());
            WorkerLoop { poll, state, worker, listener }
        }

        /// Accepts a connection and reads from it.
        fn accept(&mut self, expected: &[u8]) -> TcpStream {
            self.worker.flush(&mut |_, _| panic!("nothing is lost"));
            let mut stream = self.listener.accept().unwrap().0;
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            // The request is sent once the connection is known to stand.
            self.turn();
            expect(&mut stream, expected);
            stream
        }

        fn dialect_of(&mut self, request: u64) -> Result<Option<ServerDialect>, SendRefusal> {
            self.worker.dialect_of(&self.state, PLACE, tag(request))
        }

        /// Handles one wake-up. Returns what arrives.
        fn turn(&mut self) -> Vec<(u64, String)> {
            let mut events = Events::with_capacity(16);
            self.poll.poll(&mut events, Some(Duration::from_secs(60))).unwrap();
            self.worker.tick();
            let mut arrived = Vec::new();
            let mut see = |tag: RequestTag, delivery: ReplyDelivery<'_>| {
                arrived.push((
                    tag.request,
                    match delivery {
                        ReplyDelivery::Part(part) => part.bytes.escape_ascii().to_string(),
                        ReplyDelivery::Lost { reason, .. } => reason.into(),
                        ReplyDelivery::DialectKnown => "known".into(),
                        ReplyDelivery::UploadContinues => "continues".into(),
                        ReplyDelivery::Turn { .. } => "turn".into(),
                        ReplyDelivery::LongValue { .. } => "long".into(),
                    },
                ));
            };
            for event in &events {
                self.worker.on_event(event.token(), event, &mut see);
            }
            self.worker.flush(&mut see);
            self.worker.check_deadlines(&mut see);
            arrived
        }

        /// Handles wake-ups until something arrives.
        fn arrivals(&mut self) -> Vec<(u64, String)> {
            loop {
                let arrived = self.turn();
                if !arrived.is_empty() {
                    return arrived;
                }
            }
        }
    }

    fn expect(stream: &mut TcpStream, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    fn tag(request: u64) -> RequestTag {
        let (part, question, repeats, sent_us) = (0, 0, 0, 0);
        RequestTag { connection: 0, session: 1, request, part, question, may_repeat: false, repeats, sent_us }
    }

    const PLACE: ServerPlace = ServerPlace { pool: 0, server: 0 };
    const QUESTIONS: &[u8] = b"mn\r\nversion\r\n";

    #[test]
    fn dialect_is_found_by_the_first_replies() {
        for (replies, dialect) in [
            (&b"MN\r\nVERSION 1.6.45\r\n"[..], ServerDialect::Meta),
            (b"MN\r\nVERSION 1.6.9\r\n", ServerDialect::Text),
            (b"ERROR\r\nVERSION 1.4.15\r\n", ServerDialect::Text),
            (b"CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR unauthenticated\r\n", ServerDialect::Text),
        ] {
            let mut looped = WorkerLoop::new(PoolOptions::default());
            for request in [7, 8] {
                assert_eq!(looped.dialect_of(request), Ok(None));
            }
            looped.accept(QUESTIONS).write_all(replies).unwrap();
            assert_eq!(looped.arrivals(), [7, 8].map(|request| (request, "known".into())));
            assert_eq!(looped.dialect_of(9), Ok(Some(dialect)));
        }
    }

    #[test]
    fn configured_dialect_needs_no_connection() {
        for (speak, dialect) in [
            (PoolProtocol::Text, ServerDialect::Text),
            (PoolProtocol::Meta, ServerDialect::Meta),
            (PoolProtocol::Binary, ServerDialect::Binary),
        ] {
            let mut looped = WorkerLoop::new(PoolOptions { speak, ..PoolOptions::default() });
            assert_eq!(looped.dialect_of(1), Ok(Some(dialect)));
            assert!(looped.worker.turn.changed.is_empty());
        }
    }

    #[test]
    fn loss_ends_the_wait_for_the_dialect() {
        let mut looped = WorkerLoop::new(PoolOptions::default());
        assert_eq!(looped.dialect_of(1), Ok(None));
        looped.accept(QUESTIONS).write_all(b"MN\r\n").unwrap();
        assert_eq!(looped.arrivals(), [(1, "closed".into())]);
    }

    /// Tokyo Tyrant does not answer a command that it does not know, or closes the connection.
    #[test]
    fn server_that_answers_no_question_is_asked_none() {
        for answer in [&b"VERSION 1.1.41\r\n"[..], b""] {
            let mut looped = WorkerLoop::new(PoolOptions::default());
            let state = Arc::clone(&looped.state);
            let put = |out: &mut Vec<u8>| out.extend_from_slice(b"incr n 1\r\n");
            assert_eq!(looped.dialect_of(1), Ok(None));
            looped.worker.send(&state, PLACE, ReplyKind::Single, tag(2), put).unwrap();
            let mut stream = looped.accept(QUESTIONS);
            if answer.is_empty() {
                drop(stream);
            } else {
                stream.write_all(answer).unwrap();
            }
            assert_eq!(looped.arrivals(), [(1, "known".into())]);
            assert_eq!(looped.dialect_of(3), Ok(Some(ServerDialect::Text)));
            looped.accept(b"incr n 1\r\n").write_all(b"5\r\n").unwrap();
            assert_eq!(looped.arrivals(), [(2, "5\\r\\n".into())]);
        }
    }

    #[test]
    fn replies_that_nobody_waits_for_are_dropped() {
        // The requests of a session share one of the connections, so that they stay in order.
        let options = PoolOptions { speak: PoolProtocol::Binary, connections: 2, ..PoolOptions::default() };
        let mut looped = WorkerLoop::new(options);
        let packet = |magic, opaque| {
            let mut packet = [0u8; 24];
            (packet[0], packet[15]) = (magic, opaque);
            packet
        };
        let packets = [packet(0x81, 1), packet(0x81, 2)];
        let state = Arc::clone(&looped.state);
        let put = |out: &mut Vec<u8>| out.extend_from_slice(&packet(0x80, 0));
        looped.worker.send_unowned(&state, PLACE, ReplyKind::Binary, 1, put).unwrap();
        looped.worker.send(&state, PLACE, ReplyKind::Binary, tag(1), put).unwrap();
        let mut stream = looped.accept(&[packet(0x80, 1), packet(0x80, 2)].concat());
        stream.write_all(&packets.concat()).unwrap();
        assert_eq!(looped.arrivals(), [(1, packets[1].escape_ascii().to_string())]);
        drop(stream);
        // Without a request that a client waits for, nothing is lost.
        looped.worker.send_unowned(&state, PLACE, ReplyKind::Binary, 1, put).unwrap();
    }

    /// A connection that stands can still be used.
    #[test]
    fn one_refused_connection_of_two_is_a_failure() {
        let speak = PoolProtocol::Meta;
        let mut looped = WorkerLoop::new(PoolOptions { speak, connections: 2, ..PoolOptions::default() });
        let state = Arc::clone(&looped.state);
        let send = |looped: &mut WorkerLoop, session: u64| {
            let tag = RequestTag { session, ..tag(session) };
            let put = |out: &mut Vec<u8>| out.extend_from_slice(b"mg k\r\n");
            looped.worker.send(&state, PLACE, ReplyKind::Single, tag, put).unwrap();
        };
        send(&mut looped, 1);
        let mut stream = looped.accept(b"mg k\r\n");
        // Nobody listens at the old address any more.
        looped.listener = TcpListener::bind("127.0.0.1:0").unwrap();
        send(&mut looped, 2);
        assert_eq!(looped.arrivals(), [(2, "refused".into())]);
        send(&mut looped, 1);
        looped.worker.flush(&mut |_, _| panic!("nothing is lost"));
        expect(&mut stream, b"mg k\r\n");
    }

    /// A slow server may execute the requests later, so none is repeated.
    #[test]
    fn silence_ends_all_requests_of_a_connection() {
        let options = PoolOptions { speak: PoolProtocol::Meta, ..PoolOptions::default() };
        let mut looped = WorkerLoop::new(options);
        let state = Arc::clone(&looped.state);
        let start = looped.worker.turn.now;
        for (ms, request, may_repeat) in [(0, 1, true), (600, 2, true), (600, 3, false)] {
            looped.worker.turn.now = start + Duration::from_millis(ms);
            let tag = RequestTag { may_repeat, ..tag(request) };
            let put = |out: &mut Vec<u8>| out.extend_from_slice(format!("mg {request}\r\n").as_bytes());
            looped.worker.send(&state, PLACE, ReplyKind::Single, tag, put).unwrap();
        }
        let mut silent = looped.accept(b"mg 1\r\nmg 2\r\nmg 3\r\n");
        looped.worker.turn.now = start + Duration::from_secs(1);
        let mut lost = Vec::new();
        looped.worker.check_deadlines(&mut |tag, delivery| {
            assert!(matches!(delivery, ReplyDelivery::Lost { reason: "timed out", .. }));
            lost.push(tag.request);
        });
        assert_eq!(lost, [1, 2, 3]);
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    }
}
