//! Observes the execution of requests, for statistics by prefix and for connections that watch
//! events.
//!
//! While there are no observers, a request costs one relaxed load.

use crate::execution::Completion;
use crate::observation::class_events::ClassEventCounters;
use crate::observation::connection_table::{ConnectionAddress, ConnectionInfo};
use crate::observation::prefixes::PrefixStatistics;
use crate::observation::watchers::WatcherTable;
use crate::session::wake::WakeHandle;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use todana::{CachedClock, Clock, Database, SweepRound};
use todana_core::{
    ArithmeticReply, CommandSyntax, Delete, Operation, Record, RefusalReason, Reply, SizeClass, StoreMode,
    StoredReply, Ttl,
};
use todana_engine::{Departure, EvictionObserver};
use todana_protocol::memcached::WatchStreams;
use todana_protocol::memcached::{item_size, put_uri_encoded, size_class};

/// This bit is set if prefixes are counted. The lower bits are the streams that are watched.
const PREFIXES: u32 = 1 << 16;
const STREAMS: u32 = PREFIXES - 1;
/// The streams that report outcomes of requests.
const OUTCOMES: WatchStreams =
    WatchStreams::FETCHERS.and(WatchStreams::MUTATIONS).and(WatchStreams::DELETIONS);

/// All observers.
#[derive(Debug)]
pub(crate) struct EventObservers {
    flags: AtomicU32,
    pub(crate) watchers: WatcherTable,
    pub(crate) prefixes: PrefixStatistics,
    pub(crate) classes: ClassEventCounters,
    clock: Arc<CachedClock>,
}

/// A record as it was before an operation.
#[derive(Clone, Copy, Default)]
pub(crate) struct PreviousRecord {
    exists: bool,
    is_expired: bool,
    class: usize,
    value_len: usize,
}

impl EventObservers {
    pub(crate) fn new(
        watchers: WatcherTable,
        prefixes: PrefixStatistics,
        clock: Arc<CachedClock>,
    ) -> EventObservers {
        EventObservers {
            flags: AtomicU32::new(0),
            watchers,
            prefixes,
            classes: ClassEventCounters::new(),
            clock,
        }
    }

    /// Returns true if there is any observer.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.flags.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn count_prefixes(&self, on: bool) {
        if on {
            self.flags.fetch_or(PREFIXES, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!PREFIXES, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts_prefixes(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & PREFIXES != 0
    }

    /// Adds a connection that watches events. Returns false if there are too many.
    pub(crate) fn watch(&self, descriptor: i32, handle: WakeHandle, streams: WatchStreams) -> bool {
        self.watchers.add(descriptor, handle, streams, |all| self.set_streams(all))
    }

    /// Removes a connection that watched events.
    pub(crate) fn unwatch(&self, descriptor: i32) {
        self.watchers.remove(descriptor, |all| self.set_streams(all));
    }

    fn set_streams(&self, streams: WatchStreams) {
        let set = |flags: u32| Some((flags & !STREAMS) | u32::from(streams.bits()));
        let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    /// Returns true if one of these streams is watched.
    #[inline]
    pub(crate) fn watch_any(&self, streams: WatchStreams) -> bool {
        self.flags.load(Ordering::Relaxed) & u32::from(streams.bits()) != 0
    }

    /// Sends an event if its stream is watched. `write` writes the line of the event from its type
    /// on.
    #[inline]
    pub(crate) fn send(&self, stream: WatchStreams, write: impl FnOnce(&mut Vec<u8>)) {
        if self.watch_any(stream) {
            self.watchers.send(stream, write);
        }
    }

    pub(crate) fn send_opened(&self, info: &ConnectionInfo) {
        self.send(WatchStreams::CONNECTIONS, |line| {
            line.put_text(format_args!("conn_new {} cfd={}", RemoteAddress(&info.peer), info.descriptor));
        });
    }

    pub(crate) fn send_closed(&self, info: &ConnectionInfo, reason: &str) {
        self.send(WatchStreams::CONNECTIONS, |line| {
            let remote = RemoteAddress(&info.peer);
            line.put_text(format_args!("conn_close {remote} reason={reason} cfd={}", info.descriptor));
        });
    }

    /// Sends an event at the end of a round of the expiry sweep. Its fields are those of
    /// memcached's crawler, which walks one queue of one slab class at a time. Here one round
    /// covers all records, and a round is planned at most a second before it begins.
    pub(crate) fn send_swept(&self, round: &SweepRound) {
        self.send(WatchStreams::SYSTEM, |line| {
            let SweepRound { since_last, elapsed, seen, removed } = round;
            let (since, elapsed) = (since_last.as_secs(), elapsed.as_secs());
            line.put_text(format_args!(
                "lru_crawler crawler=0 lru=all low_mark=0 next_reclaims=0 since_run={since} next_run=1 \
                 elapsed={elapsed} examined={seen} reclaimed={removed}"
            ));
        });
    }

    /// Sends an event for a request that is not a valid command.
    pub(crate) fn send_faulty(&self, descriptor: i32) {
        self.send(WatchStreams::REQUESTS, |line| {
            line.put_text(format_args!("rawcmd cfd={descriptor} cmd=faulty"))
        });
    }

    /// Reports a request of a connection. If the observers need it, also returns the record as it
    /// was before the request. Another thread may change the record before the request is executed.
    /// The reply is correct even then, but an event may be wrong.
    #[cold]
    pub(crate) fn report_request(
        &self,
        database: Option<&Database>,
        descriptor: i32,
        command: &Operation<'_>,
    ) -> PreviousRecord {
        let key = command.key();
        self.send(WatchStreams::REQUESTS, |line| {
            line.put_text(format_args!("rawcmd cfd={descriptor} cmd={}", name_of(command)));
            if let Some(key) = key {
                line.put_key(key);
            }
        });
        match (database, key) {
            (Some(database), Some(key)) if self.watch_any(OUTCOMES) => read_before(database, key),
            _ => PreviousRecord::default(),
        }
    }

    /// Executes a request of a connection, and reports the outcome unless the reply is pending.
    #[cold]
    pub(crate) fn observe(
        &self,
        descriptor: i32,
        command: &Operation<'_>,
        before: PreviousRecord,
        reply: &mut dyn FnMut(Reply<'_>),
        execute: impl FnOnce(&mut dyn FnMut(Reply<'_>)) -> Completion,
    ) -> Completion {
        let is_told = self.watch_any(OUTCOMES);
        let mut outcome = OperationOutcome::default();
        let completion = execute(&mut |answer| {
            outcome.take(&answer);
            reply(answer);
        });
        if completion != Completion::Done {
            return completion;
        }
        if self.counts_prefixes() {
            self.prefixes.count(command, outcome.is_hit);
        }
        if let (Some(key), true) = (command.key(), is_told) {
            self.send_record_events(descriptor, command, key, before, &outcome);
        }
        if matches!(command, Operation::Flush { .. }) {
            self.send(WatchStreams::SYSTEM, |line| line.extend_from_slice(b"flush"));
        }
        completion
    }

    fn send_record_events(
        &self,
        descriptor: i32,
        command: &Operation<'_>,
        key: &[u8],
        before: PreviousRecord,
        outcome: &OperationOutcome,
    ) {
        self.send(WatchStreams::FETCHERS, |line| {
            let is_found = before.exists || outcome.is_hit;
            let status = match (is_found, before.is_expired) {
                (true, _) => "found",
                (false, true) => "expired",
                (false, false) => "not_found",
            };
            let (class, size) = if is_found { (before.class, before.value_len) } else { (0, 0) };
            line.put_text(format_args!("item_get"));
            line.put_key(key);
            line.put_text(format_args!(" status={status} clsid={class} cfd={descriptor} size={size}"));
        });
        let stored = |status: &str, command: &str, ttl: i64, flags: u32, value_len: usize| {
            self.send(WatchStreams::MUTATIONS, |line| {
                let class = size_class(item_size(key.len() as u64, value_len as u64, flags));
                line.put_text(format_args!("item_store"));
                line.put_key(key);
                line.put_text(format_args!(
                    " status={status} cmd={command} ttl={ttl} clsid={class} cfd={descriptor} size={value_len}"
                ));
            });
        };
        match command {
            Operation::Store(store) => {
                let name = mode_name(store.mode, store.compare.is_some());
                let value_len = outcome.stored_len.unwrap_or(store.value.len());
                stored(outcome.status, name, self.seconds(store.ttl), store.flags, value_len);
            }
            Operation::RefusedStore(refused) => {
                stored(outcome.status, mode_name(refused.mode, refused.compares), 0, 0, 0)
            }
            Operation::Arithmetic(arithmetic) if outcome.is_created => {
                let ttl = arithmetic.vivify.map_or(0, |ttl| self.seconds(ttl));
                stored("stored", "add", ttl, 0, arithmetic.initial.to_string().len());
            }
            Operation::Delete(Delete { mark_stale: false, drop_value: false, syntax, .. })
                if outcome.is_deleted =>
            {
                self.send(WatchStreams::DELETIONS, |line| {
                    let command = if *syntax == CommandSyntax::Meta { "md" } else { "delete" };
                    let PreviousRecord { class, value_len, .. } = before;
                    line.put_text(format_args!("deleted"));
                    line.put_key(key);
                    line.put_text(format_args!(" cmd={command} clsid={class} size={value_len}"));
                });
            }
            _ => {}
        }
    }

    /// Returns a time to live in seconds, in the form in which a client sends it. A time in the
    /// past is negative.
    fn seconds(&self, ttl: Ttl) -> i64 {
        match ttl {
            Ttl::Never => 0,
            Ttl::Expired => -1,
            Ttl::Seconds(seconds) | Ttl::Sliding(seconds) => seconds.into(),
            Ttl::At(at) => at as i64 - self.clock.now().0 as i64,
        }
    }
}

impl EvictionObserver for EventObservers {
    fn is_listening(&self) -> bool {
        self.watch_any(WatchStreams::EVICTIONS)
    }

    /// Sends an event for an evicted record. As in memcached, `ttl` is the remaining time to live,
    /// or -1 for a record that does not expire. `fetch` states whether the record was read since it
    /// was stored. If access times are not kept, only reads since memory became scarce are known,
    /// and `la` is 0.
    fn evicted(&self, key: &[u8], record: Record<'_>, is_read: bool) {
        self.send(WatchStreams::EVICTIONS, |line| {
            let Record { attributes, value, .. } = record;
            let now = self.clock.now();
            let is_fetched = is_read || attributes.access.is_some_and(|access| access.fetched);
            let fetch = if is_fetched { "yes" } else { "no" };
            let ttl = attributes.expiry.seconds_left(now).unwrap_or(-1);
            let idle = attributes.access.map_or(0, |access| now.0.saturating_sub(access.at.0));
            let class = size_class(item_size(key.len() as u64, value.len() as u64, attributes.flags));
            line.put_text(format_args!("eviction"));
            line.put_key(key);
            line.put_text(format_args!(
                " fetch={fetch} ttl={ttl} la={idle} clsid={class} size={}",
                value.len()
            ));
        });
    }

    fn departed(&self, departure: &Departure) {
        self.classes.count(departure);
    }

    fn passed_over(&self, plain_size: usize, is_first: bool) {
        self.classes.count_passed(plain_size, is_first);
    }

    fn cleared(&self, classes: &[SizeClass]) {
        self.classes.count_cleared(classes);
    }
}

/// Writes the lines of events.
trait EventLine {
    fn put_text(&mut self, text: std::fmt::Arguments<'_>);
    /// Writes ` key=...`.
    fn put_key(&mut self, key: &[u8]);
}

impl EventLine for Vec<u8> {
    fn put_text(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a Vec does not fail.
        let _ = self.write_fmt(text);
    }

    fn put_key(&mut self, key: &[u8]) {
        self.extend_from_slice(b" key=");
        put_uri_encoded(key, self);
    }
}

/// The address of a connection, in the format of events.
struct RemoteAddress<'a>(&'a ConnectionAddress);

impl std::fmt::Display for RemoteAddress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            ConnectionAddress::Tcp(address) => {
                write!(f, "rip={} rport={} transport=tcp", address.ip(), address.port())
            }
            ConnectionAddress::Udp(address) => {
                write!(f, "rip={} rport={} transport=udp", address.ip(), address.port())
            }
            ConnectionAddress::Unix(path) => write!(f, "rip={path} rport=0 transport=local"),
            ConnectionAddress::Unknown => f.write_str("rip=unknown rport=0 transport=unknown"),
        }
    }
}

/// The parts of an operation's outcome that events show.
#[derive(Default)]
struct OperationOutcome {
    is_hit: bool,
    is_deleted: bool,
    is_created: bool,
    stored_len: Option<usize>,
    /// The outcome of a store, in memcached's words.
    status: &'static str,
}

impl OperationOutcome {
    fn take(&mut self, reply: &Reply<'_>) {
        match reply {
            Reply::Hit(_) => self.is_hit = true,
            Reply::Deleted => self.is_deleted = true,
            Reply::Number(ArithmeticReply { created, .. }) => self.is_created = *created,
            Reply::Stored(StoredReply { value_len, .. }) => self.stored_len = Some(*value_len as usize),
            _ => {}
        }
        self.status = match reply {
            Reply::Stored(_) => "stored",
            Reply::Exists => "exists",
            Reply::NotFound => "not_found",
            Reply::Refused(RefusalReason::TooLarge) => "too_large",
            Reply::Refused(RefusalReason::OutOfMemory) => "no_memory",
            // memcached has no word for these refusals, because it keeps nothing on disk.
            Reply::Refused(RefusalReason::Damaged) => "damaged",
            Reply::Refused(RefusalReason::Busy) => "busy",
            Reply::Refused(RefusalReason::ReadOnly | RefusalReason::Replica | RefusalReason::Superseded) => {
                "read_only"
            }
            Reply::Refused(RefusalReason::Unreachable | RefusalReason::Overloaded) => "unreachable",
            Reply::Refused(RefusalReason::OutcomeUnknown) => "unknown",
            Reply::Refused(
                RefusalReason::LogUnwritable | RefusalReason::FilesUnwritable | RefusalReason::Unavailable,
            ) => "unwritable",
            _ => "not_stored",
        };
    }
}

fn read_before(database: &Database, key: &[u8]) -> PreviousRecord {
    let mut before = PreviousRecord::default();
    let now = database.now();
    // Reads of a local engine do not fail.
    let _ = database.engine().peek(key, &mut |record| {
        let exists = record.attributes.expiry.is_live(now);
        let (key_len, value_len) = (key.len() as u64, record.value.len());
        let class = size_class(item_size(key_len, value_len as u64, record.attributes.flags));
        before = PreviousRecord { exists, is_expired: !exists, class, value_len };
    });
    before
}

fn mode_name(mode: StoreMode, compares: bool) -> &'static str {
    match mode {
        StoreMode::Set if compares => "cas",
        StoreMode::Set => "set",
        StoreMode::Add => "add",
        StoreMode::Replace => "replace",
        StoreMode::Append => "append",
        StoreMode::Prepend => "prepend",
    }
}

fn name_of(command: &Operation<'_>) -> &'static str {
    match command {
        Operation::Get(get) if get.counts_as_touch => "gat",
        Operation::Get(_) => "get",
        Operation::Store(store) => mode_name(store.mode, store.compare.is_some()),
        Operation::RefusedStore(refused) => mode_name(refused.mode, refused.compares),
        Operation::Delete(_) => "delete",
        Operation::Arithmetic(_) => "arithmetic",
        Operation::Touch(_) => "touch",
        Operation::Modify(_) => "modify",
        Operation::Inspect(_) => "me",
        Operation::Flush { .. } => "flush_all",
        Operation::Noop => "mn",
    }
}
