//! A worker sends requests for its own keys and compares the replies with the model.

use super::connection::{ClientConnection, ServerAddress};
use super::draft::{KeyState, RequestBatch, RequestDraft, WorkerKeys};
use super::model::{
    ExpectedReply, ModelContext, ModelItem, ModelStep, RecordAfterRefusal, ReplyPiece, VersionTable,
};
use super::progress::{RunProgress, TableSection};
use super::reply::{ReplyMatch, compare, cut, describe};
use super::server::{ClockState, FullMemoryPolicy, REFUSED, SoakServer};
use super::shared_keys::SharedKeys;
use super::{binary, meta, text};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of requests in a batch.
const PIPELINE_MAX: usize = 24;
/// Maximum bytes of a batch's requests and replies, so that client and server cannot both block on
/// a full socket buffer.
const BATCH_LEN_MAX: usize = 96 << 10;
/// Number of steps of a batch with which records are read at the end; a get has two.
const VERIFIED_STEPS: usize = 16;
/// Minimum time between two batches of a worker. The soak test looks for faults, not for limits.
const PACE: Duration = Duration::from_micros(1500);
/// A worker reopens a connection that was unused for this time, before the server closes it.
const IDLE: Duration = Duration::from_secs(2);
const NOOP_LEN: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestDialect {
    Text,
    Binary,
}

/// An address and dialect over which a worker connects.
struct WorkerLink {
    address: ServerAddress,
    dialect: RequestDialect,
    name: String,
    connection: Option<(ClientConnection, Instant)>,
}

pub(super) struct SoakWorker {
    pub(super) name: String,
    seed: u64,
    pub(super) server: Arc<SoakServer>,
    pub(super) keys: WorkerKeys,
    versions: VersionTable,
    random: fastrand::Rng,
    serial: u64,
    links: Vec<WorkerLink>,
    flushes: u64,
    is_bulky: bool,
    allows_sliding: bool,
    shared: Option<Arc<SharedKeys>>,
    progress: Arc<RunProgress>,
}

/// The settings of a worker.
pub(super) struct WorkerConfig {
    pub(super) number: usize,
    pub(super) seed: u64,
    pub(super) server: Arc<SoakServer>,
    pub(super) keys: usize,
    pub(super) is_bulky: bool,
    pub(super) allows_sliding: bool,
    pub(super) shared: Option<Arc<SharedKeys>>,
    pub(super) progress: Arc<RunProgress>,
}

impl SoakWorker {
    pub(super) fn new(config: WorkerConfig) -> SoakWorker {
        let WorkerConfig { number, seed, server, keys, is_bulky, allows_sliding, shared, progress } = config;
        let mut links = Vec::new();
        for address in &server.addresses {
            for dialect in [RequestDialect::Text, RequestDialect::Binary] {
                let name = format!("{} over {}", format!("{dialect:?}").to_lowercase(), address.name());
                links.push(WorkerLink { address: address.clone(), dialect, name, connection: None });
            }
        }
        let seed = seed.wrapping_add((number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        SoakWorker {
            name: format!("{number} at {:?}", server.name),
            seed,
            keys: WorkerKeys::new(format!("w{number}:"), keys),
            versions: VersionTable::default(),
            random: fastrand::Rng::with_seed(seed),
            serial: 0,
            links,
            flushes: 0,
            is_bulky,
            allows_sliding,
            shared,
            progress,
            server,
        }
    }

    /// Sends batches until the run stops.
    pub(super) fn run(&mut self) {
        let server = Arc::clone(&self.server);
        while !self.progress.is_stopped() {
            let start = Instant::now();
            let link = self.random.usize(..self.links.len());
            // The lock keeps the director from advancing the clock while requests are in flight.
            let Ok(guard) = server.clock.read() else { return };
            let outcome = self.send_batch(link, *guard);
            drop(guard);
            if let Err(error) = outcome {
                let address = &self.links[link].name;
                self.progress.fail(format!("worker {} (seed {}), {address}: {error}", self.name, self.seed));
                return;
            }
            thread::sleep(PACE.saturating_sub(start.elapsed()));
        }
        self.links.iter_mut().for_each(|link| link.connection = None);
    }

    /// Reads all keys of the worker once more and closes its connections.
    pub(super) fn verify(&mut self) -> Result<(), String> {
        let server = Arc::clone(&self.server);
        let guard = server.clock.read().map_err(|_| "a thread panicked")?;
        self.apply_flushes(*guard);
        let mut batch = RequestBatch::default();
        for key in 0..self.keys.slots.len() {
            text::get(&self.keys.name(key), key, &mut batch);
            let item = self.keys.slots[key].item.as_ref();
            batch.replies_len += item.map_or(0, |item| item.value.len());
            if batch.steps.len() >= VERIFIED_STEPS || batch.replies_len >= BATCH_LEN_MAX {
                self.exchange(0, &std::mem::take(&mut batch), *guard)?;
            }
        }
        self.exchange(0, &batch, *guard)?;
        self.links.iter_mut().for_each(|link| link.connection = None);
        Ok(())
    }

    /// Returns the names and records that the server is expected to hold.
    pub(super) fn expected_records(&self, now: u64) -> impl Iterator<Item = (Vec<u8>, &ModelItem)> {
        let living =
            self.keys.slots.iter().enumerate().filter_map(|(key, slot)| Some((key, slot.item.as_ref()?)));
        living
            .filter(move |(_, item)| !item.expiry.is_over(now))
            .map(|(key, item)| (self.keys.name(key), item))
    }

    /// Returns true if it is unknown whether the server holds the record.
    pub(super) fn is_unsure(&self, name: &[u8]) -> bool {
        self.keys.find(name).is_some_and(|key| self.keys.slots[key].is_unsure)
    }

    /// Clears the model if the server was flushed since the last batch.
    fn apply_flushes(&mut self, clock: ClockState) {
        if self.flushes != clock.flushes {
            self.flushes = clock.flushes;
            self.keys.slots.iter_mut().for_each(KeyState::clear);
        }
    }

    fn send_batch(&mut self, link: usize, clock: ClockState) -> Result<(), String> {
        self.apply_flushes(clock);
        if self.random.u32(..150) == 0 {
            return self.disconnect(link);
        }
        self.connect(link)?;
        if let Some(shared) = self.shared.clone()
            && self.links[link].dialect == RequestDialect::Text
            && self.random.u32(..8) == 0
            && !matches!(self.links[link].address, ServerAddress::Udp(_))
            && let Some((connection, _)) = &mut self.links[link].connection
        {
            let done = shared
                .send_requests(connection, &mut self.random)
                .map_err(|error| format!("shared keys: {error}"))?;
            self.progress.count(TableSection::Requests, "shared keys", done);
            return Ok(());
        }
        let batch = self.draft(link, clock);
        let mut outcome = self.exchange(link, &batch, clock);
        // A request over UDP that gets no reply is not ordered before later requests over other
        // connections. A noop with a reply orders them.
        if outcome.is_ok() && matches!(self.links[link].address, ServerAddress::Udp(_)) {
            let noop = self.noop_batch(link, clock);
            outcome = self.exchange(link, &noop, clock);
        }
        let address = &self.links[link];
        if outcome.is_ok() {
            self.progress.count(TableSection::Requests, &address.name, batch.requests);
        }
        outcome
    }

    /// Closes a connection, sometimes with `quit`.
    fn disconnect(&mut self, link: usize) -> Result<(), String> {
        let Some((mut connection, _)) = self.links[link].connection.take() else { return Ok(()) };
        if self.links[link].dialect == RequestDialect::Text && !connection.is_udp() && self.random.bool() {
            let outcome = connection.send(b"quit\r\n").and_then(|()| connection.receive());
            return match outcome {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
                _ => Err("the server did not close the connection after quit".into()),
            };
        }
        Ok(())
    }

    /// Connects if the link has no connection; retries if the server refuses it.
    fn connect(&mut self, link: usize) -> Result<(), String> {
        let WorkerLink { address, dialect, connection, .. } = &mut self.links[link];
        if connection.as_ref().is_some_and(|(_, used)| used.elapsed() > IDLE) {
            *connection = None;
        }
        let start = Instant::now();
        while connection.is_none() {
            let attempt = ClientConnection::open(address).and_then(|mut connection| {
                match dialect {
                    _ if connection.is_udp() => return Ok(Some(connection)),
                    RequestDialect::Text => connection.send(b"mn\r\n")?,
                    RequestDialect::Binary => {
                        connection.send(&[&[0x80, 0x0a][..], &[0; NOOP_LEN - 2]].concat())?
                    }
                }
                connection.receive()?;
                if connection.unread.starts_with(b"ERROR") {
                    let line = connection.line()?;
                    return if line == REFUSED { Ok(None) } else { Err(io::Error::other(line)) };
                }
                let len = if *dialect == RequestDialect::Text { 4 } else { NOOP_LEN };
                connection.exactly(len)?;
                Ok(Some(connection))
            });
            let counts = &self.server.connection_counts;
            match attempt {
                Ok(Some(opened)) => *connection = Some((opened, Instant::now())),
                Ok(None) => drop(counts.refused.fetch_add(1, Ordering::Relaxed)),
                Err(error) if start.elapsed() > Duration::from_secs(60) => {
                    return Err(format!("cannot connect: {error}"));
                }
                Err(_) => drop(counts.perhaps_refused.fetch_add(1, Ordering::Relaxed)),
            }
            if connection.is_none() {
                if !self.server.is_alive() {
                    return Err("the server crashed".into());
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    fn request_draft(&mut self, is_udp: bool, clock: ClockState) -> RequestDraft<'_> {
        RequestDraft {
            random: &mut self.random,
            keys: &self.keys,
            versions: &self.versions,
            clock,
            serial: &mut self.serial,
            fullness: self.server.fullness,
            item_max: self.server.item_max,
            is_bulky: self.is_bulky,
            is_small: is_udp,
            allows_sliding: self.allows_sliding,
        }
    }

    /// Returns a batch with one noop request.
    fn noop_batch(&mut self, link: usize, clock: ClockState) -> RequestBatch {
        let mut batch = RequestBatch::default();
        match self.links[link].dialect {
            RequestDialect::Text => text::add_noop(&mut batch),
            RequestDialect::Binary => binary::add_noop(&mut self.request_draft(true, clock), &mut batch),
        }
        batch
    }

    fn draft(&mut self, link: usize, clock: ClockState) -> RequestBatch {
        let dialect = self.links[link].dialect;
        let is_udp = matches!(self.links[link].address, ServerAddress::Udp(_));
        let count = if is_udp { 1 } else { self.random.usize(1..=PIPELINE_MAX) };
        let mut batch = RequestBatch::default();
        let mut draft = self.request_draft(is_udp, clock);
        while batch.requests < count as u64 && batch.bytes.len() + batch.replies_len < BATCH_LEN_MAX {
            let (bytes, steps) = (batch.bytes.len(), batch.steps.len());
            match dialect {
                RequestDialect::Binary => binary::request(&mut draft, &mut batch),
                RequestDialect::Text if draft.chance(55) => text::request(&mut draft, &mut batch),
                RequestDialect::Text => meta::request(&mut draft, &mut batch),
            }
            let request = bytes..batch.bytes.len();
            batch.steps[steps..].iter_mut().for_each(|step| step.request = request.clone());
        }
        // Over UDP, each request of a datagram gets its own reply datagram.
        if !is_udp {
            match dialect {
                RequestDialect::Text => text::add_noop(&mut batch),
                RequestDialect::Binary => binary::add_noop(&mut draft, &mut batch),
            }
        }
        batch
    }

    /// Sends the requests of a batch and checks the replies.
    fn exchange(&mut self, link: usize, batch: &RequestBatch, clock: ClockState) -> Result<(), String> {
        self.connect(link)?;
        let Some((mut connection, _)) = self.links[link].connection.take() else { return Ok(()) };
        self.send(&mut connection, &batch.bytes).map_err(|error| format!("cannot send: {error}"))?;
        for step in &batch.steps {
            let request = &batch.bytes[step.request.clone()];
            match self.check(step, &mut connection, clock) {
                Ok(()) => {
                    if let Some(key) = step.key {
                        self.keys.slots[key].remember(clock.now, request);
                    }
                }
                Err(StepFailure::Lost) if connection.is_udp() => {
                    self.progress.count(TableSection::Outcomes, "datagrams lost", 1);
                    return match step.key {
                        Some(key) => self.delete_unknown(key, clock),
                        None => Ok(()),
                    };
                }
                Err(StepFailure::Lost) => return Err("no reply within the time limit".into()),
                Err(StepFailure::Other(what)) => {
                    let history = step.key.map(|key| &self.keys.slots[key].history);
                    let history = history.into_iter().flatten();
                    let history: String =
                        history.map(|(now, request)| format!("\n  at {now}: {}", cut(request))).collect();
                    return Err(format!(
                        "{what}\n  request  {} at {clock:?}\n  batch    {}\n  earlier requests for this key:{history}",
                        cut(request),
                        cut(&batch.bytes)
                    ));
                }
            }
        }
        if !connection.unread.is_empty() {
            return Err(format!(
                "bytes after the last reply: {}\n  batch    {}",
                cut(&connection.unread),
                cut(&batch.bytes)
            ));
        }
        self.links[link].connection = Some((connection, Instant::now()));
        Ok(())
    }

    /// Deletes a key whose record is unknown because a datagram was lost.
    fn delete_unknown(&mut self, key: usize, clock: ClockState) -> Result<(), String> {
        self.keys.slots[key].clear();
        let name = self.keys.name(key);
        let bytes = [b"delete ", &name[..], b" noreply\r\n"].concat();
        let mut batch = RequestBatch { bytes, ..RequestBatch::default() };
        text::add_noop(&mut batch);
        self.exchange(0, &batch, clock)
    }

    /// Sends the bytes at once, in pieces, or byte by byte.
    fn send(&mut self, connection: &mut ClientConnection, bytes: &[u8]) -> io::Result<()> {
        if connection.is_udp() {
            return connection.send(bytes);
        }
        match self.random.u32(..100) {
            0..=3 if bytes.len() < 800 => bytes.chunks(1).try_for_each(|byte| connection.send(byte)),
            4..=19 => {
                let mut rest = bytes;
                for _ in 0..self.random.usize(1..6) {
                    let (piece, more) = rest.split_at(self.random.usize(..=rest.len()));
                    rest = more;
                    if !piece.is_empty() {
                        connection.send(piece)?;
                        thread::sleep(Duration::from_micros(self.random.u64(..300)));
                    }
                }
                connection.send(rest)
            }
            _ => connection.send(bytes),
        }
    }

    /// Receives a reply and compares it with the valid replies for a step.
    fn check(
        &mut self,
        step: &ModelStep,
        connection: &mut ClientConnection,
        clock: ClockState,
    ) -> Result<(), StepFailure> {
        let mut candidates = self.candidates(step, clock);
        loop {
            let mut needs_more = false;
            let mut best: Option<(usize, usize, Vec<_>)> = None;
            for (number, candidate) in candidates.iter().enumerate() {
                match compare(&candidate.expected.reply, &connection.unread, &self.versions) {
                    ReplyMatch::Yes(len, bound) => {
                        if best.as_ref().is_none_or(|(_, longest, _)| len > *longest) {
                            best = Some((number, len, bound));
                        }
                    }
                    ReplyMatch::NeedsMore => needs_more = true,
                    ReplyMatch::No => {}
                }
            }
            match best {
                // An empty reply counts only if no other candidate may still arrive.
                Some((number, len, bound)) if len > 0 || !needs_more => {
                    connection.unread.drain(..len);
                    bound.into_iter().for_each(|(token, value)| self.versions.record_value(token, value));
                    let chosen = candidates.swap_remove(number);
                    if let Some(key) = step.key {
                        let slot = &mut self.keys.slots[key];
                        slot.item = chosen.expected.after;
                        // An empty reply does not show whether the record exists.
                        slot.is_unsure = chosen.is_unsure || (slot.is_unsure && len == 0);
                    }
                    if chosen.is_refusal {
                        self.progress.count(TableSection::Outcomes, "refused because memory is full", 1);
                    }
                    return Ok(());
                }
                _ if needs_more => connection.receive().map_err(|error| match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => StepFailure::Lost,
                    _ => StepFailure::Other(format!(
                        "{error}\n  unread   {}\n  expected {}",
                        cut(&connection.unread),
                        self.expected(&candidates)
                    )),
                })?,
                _ => {
                    return Err(StepFailure::Other(format!(
                        "unexpected reply for key {:?}\n  expected {}\n  got      {}",
                        step.key.map(|key| cut(&self.keys.name(key))),
                        self.expected(&candidates),
                        cut(&connection.unread)
                    )));
                }
            }
        }
    }

    fn expected(&self, candidates: &[ReplyCandidate]) -> String {
        let all = candidates.iter().map(|candidate| describe(&candidate.expected.reply, &self.versions));
        all.collect::<Vec<_>>().join("\n        or ")
    }

    /// Returns the valid replies for a step.
    fn candidates(&mut self, step: &ModelStep, clock: ClockState) -> Vec<ReplyCandidate> {
        let slot = step.key.map(|key| &self.keys.slots[key]);
        let old = slot.and_then(|slot| slot.item.as_ref()).filter(|item| !item.expiry.is_over(clock.now));
        let old = old.cloned();
        let fullness = self.server.fullness;
        let was_unsure = slot.is_some_and(|slot| slot.is_unsure) || fullness == FullMemoryPolicy::Evicts;
        let context = &mut ModelContext { now: clock.now, versions: &mut self.versions };
        let fails_unseen = step.is_silent && fullness != FullMemoryPolicy::Never;
        let mut candidates = vec![ReplyCandidate {
            expected: (step.rule)(old.as_ref(), context),
            is_unsure: fails_unseen,
            is_refusal: false,
        }];
        if old.is_some() && was_unsure {
            candidates.push(ReplyCandidate {
                expected: (step.rule)(None, context),
                is_unsure: fails_unseen,
                is_refusal: false,
            });
        }
        if fullness != FullMemoryPolicy::Never {
            candidates.extend(step.refusals.iter().map(|(reply, left)| {
                let after = if *left == RecordAfterRefusal::Absent { None } else { old.clone() };
                ReplyCandidate {
                    expected: ExpectedReply::new(vec![ReplyPiece::Bytes(reply.clone())], after),
                    is_unsure: *left == RecordAfterRefusal::Unknown || was_unsure,
                    is_refusal: true,
                }
            }));
        }
        candidates
    }
}

/// A valid reply.
struct ReplyCandidate {
    expected: ExpectedReply,
    /// It is unknown whether the record exists after this reply.
    is_unsure: bool,
    is_refusal: bool,
}

/// The reason why a step failed.
enum StepFailure {
    /// No reply arrived.
    Lost,
    Other(String),
}
