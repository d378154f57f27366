//! A worker: sends requests on keys of its own, and knows what must come back.

use super::draft::{Batch, Draft, Keys, Slot};
use super::model::{Context, Item, Left, Piece, Play, Step, Versions};
use super::node::{Fullness, Moment, Node, REFUSED};
use super::reply::{Match, compare, cut, describe};
use super::shared::Shared;
use super::tally::{Part, Tally};
use super::wire::{Place, Wire};
use super::{binary, meta, text};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Requests sent together, at most.
const PIPELINE_MAX: usize = 24;
/// Bytes of requests and replies together beyond which nothing is added: neither side may block on
/// the other.
const BATCH_LEN_MAX: usize = 96 << 10;
/// Batches of a worker in a second, at most: the soak is to find faults, not limits.
const PACE: Duration = Duration::from_micros(1500);
/// A connection unused for so long is opened anew where idle ones are closed.
const IDLE: Duration = Duration::from_secs(2);
const NOOP_LEN: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Text,
    Binary,
}

/// A way to the server.
struct Lane {
    place: Place,
    dialect: Dialect,
    name: String,
    wire: Option<(Wire, Instant)>,
}

pub(super) struct Worker {
    pub(super) name: String,
    seed: u64,
    pub(super) node: Arc<Node>,
    pub(super) keys: Keys,
    versions: Versions,
    random: fastrand::Rng,
    serial: u64,
    lanes: Vec<Lane>,
    flushes: u64,
    is_bulky: bool,
    slides: bool,
    shared: Option<Arc<Shared>>,
    tally: Arc<Tally>,
}

/// How a worker is set up.
pub(super) struct Setting {
    pub(super) number: usize,
    pub(super) seed: u64,
    pub(super) node: Arc<Node>,
    pub(super) keys: usize,
    pub(super) is_bulky: bool,
    pub(super) slides: bool,
    pub(super) shared: Option<Arc<Shared>>,
    pub(super) tally: Arc<Tally>,
}

impl Worker {
    pub(super) fn new(setting: Setting) -> Worker {
        let Setting { number, seed, node, keys, is_bulky, slides, shared, tally } = setting;
        let mut lanes = Vec::new();
        for place in &node.places {
            for dialect in [Dialect::Text, Dialect::Binary] {
                let name = format!("{} over {}", format!("{dialect:?}").to_lowercase(), place.name());
                lanes.push(Lane { place: place.clone(), dialect, name, wire: None });
            }
        }
        let seed = seed.wrapping_add((number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Worker {
            name: format!("{number} at {:?}", node.name),
            seed,
            keys: Keys::new(format!("w{number}:"), keys),
            versions: Versions::default(),
            random: fastrand::Rng::with_seed(seed),
            serial: 0,
            lanes,
            flushes: 0,
            is_bulky,
            slides,
            shared,
            tally,
            node,
        }
    }

    /// Works until the end; what it knows is right then.
    pub(super) fn run(&mut self) {
        let node = Arc::clone(&self.node);
        while !self.tally.ends() {
            let start = Instant::now();
            let lane = self.random.usize(..self.lanes.len());
            // Held while requests are under way, so that the clock stands still.
            let Ok(guard) = node.moment.read() else { return };
            let outcome = self.turn(lane, *guard);
            drop(guard);
            if let Err(error) = outcome {
                let place = &self.lanes[lane].name;
                self.tally.fail(format!("worker {} (seed {}), {place}: {error}", self.name, self.seed));
                return;
            }
            thread::sleep(PACE.saturating_sub(start.elapsed()));
        }
        self.lanes.iter_mut().for_each(|lane| lane.wire = None);
    }

    /// Reads all of its keys once more, and forgets its connections.
    pub(super) fn verify(&mut self) -> Result<(), String> {
        let node = Arc::clone(&self.node);
        let guard = node.moment.read().map_err(|_| "a thread has failed")?;
        self.notice(*guard);
        for first in (0..self.keys.slots.len()).step_by(8) {
            let mut batch = Batch::default();
            for key in first..(first + 8).min(self.keys.slots.len()) {
                text::get(&self.keys.name(key), key, &mut batch);
            }
            self.exchange(0, &batch, *guard)?;
        }
        self.lanes.iter_mut().for_each(|lane| lane.wire = None);
        Ok(())
    }

    /// The expected records: name, item.
    pub(super) fn held(&self, now: u64) -> impl Iterator<Item = (Vec<u8>, &Item)> {
        let living =
            self.keys.slots.iter().enumerate().filter_map(|(key, slot)| Some((key, slot.item.as_ref()?)));
        living
            .filter(move |(_, item)| !item.expiry.is_over(now))
            .map(|(key, item)| (self.keys.name(key), item))
    }

    /// The existence of the record is unknown.
    pub(super) fn is_unsure(&self, name: &[u8]) -> bool {
        self.keys.find(name).is_some_and(|key| self.keys.slots[key].is_unsure)
    }

    /// Takes note of flushes.
    fn notice(&mut self, moment: Moment) {
        if self.flushes != moment.flushes {
            self.flushes = moment.flushes;
            self.keys.slots.iter_mut().for_each(Slot::clear);
        }
    }

    fn turn(&mut self, lane: usize, moment: Moment) -> Result<(), String> {
        self.notice(moment);
        if self.random.u32(..150) == 0 {
            return self.leave(lane);
        }
        self.open(lane)?;
        if let Some(shared) = self.shared.clone()
            && self.lanes[lane].dialect == Dialect::Text
            && self.random.u32(..8) == 0
            && !matches!(self.lanes[lane].place, Place::Udp(_))
            && let Some((wire, _)) = &mut self.lanes[lane].wire
        {
            let done =
                shared.play(wire, &mut self.random).map_err(|error| format!("shared keys: {error}"))?;
            self.tally.count(Part::Requests, "shared keys", done);
            return Ok(());
        }
        let batch = self.draft(lane, moment);
        let mut outcome = self.exchange(lane, &batch, moment);
        // Nothing orders what was sent over UDP without an answer and what follows over another
        // way.
        if outcome.is_ok() && matches!(self.lanes[lane].place, Place::Udp(_)) {
            let fence = self.fence(lane, moment);
            outcome = self.exchange(lane, &fence, moment);
        }
        let place = &self.lanes[lane];
        if outcome.is_ok() {
            self.tally.count(Part::Requests, &place.name, batch.requests);
        }
        outcome
    }

    /// Closes a connection, with and without saying so.
    fn leave(&mut self, lane: usize) -> Result<(), String> {
        let Some((mut wire, _)) = self.lanes[lane].wire.take() else { return Ok(()) };
        if self.lanes[lane].dialect == Dialect::Text && !wire.is_udp() && self.random.bool() {
            let told = wire.send(b"quit\r\n").and_then(|()| wire.receive());
            return match told {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
                _ => Err("after quit the connection was not just closed".into()),
            };
        }
        Ok(())
    }

    /// Connects, if it is not connected; more than once if it is refused.
    fn open(&mut self, lane: usize) -> Result<(), String> {
        let Lane { place, dialect, wire, .. } = &mut self.lanes[lane];
        if wire.as_ref().is_some_and(|(_, used)| used.elapsed() > IDLE) {
            *wire = None;
        }
        let start = Instant::now();
        while wire.is_none() {
            let attempt = Wire::open(place).and_then(|mut wire| {
                match dialect {
                    _ if wire.is_udp() => return Ok(Some(wire)),
                    Dialect::Text => wire.send(b"mn\r\n")?,
                    Dialect::Binary => wire.send(&[&[0x80, 0x0a][..], &[0; NOOP_LEN - 2]].concat())?,
                }
                wire.receive()?;
                if wire.unread.starts_with(b"ERROR") {
                    let line = wire.line()?;
                    return if line == REFUSED { Ok(None) } else { Err(io::Error::other(line)) };
                }
                let len = if *dialect == Dialect::Text { 4 } else { NOOP_LEN };
                wire.exactly(len)?;
                Ok(Some(wire))
            });
            let seen = &self.node.seen;
            match attempt {
                Ok(Some(opened)) => *wire = Some((opened, Instant::now())),
                Ok(None) => drop(seen.refused.fetch_add(1, Ordering::Relaxed)),
                Err(error) if start.elapsed() > Duration::from_secs(60) => {
                    return Err(format!("cannot connect: {error}"));
                }
                Err(_) => drop(seen.perhaps_refused.fetch_add(1, Ordering::Relaxed)),
            }
            if wire.is_none() {
                if !self.node.is_alive() {
                    return Err("the server has fallen".into());
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    fn drafting(&mut self, is_udp: bool, moment: Moment) -> Draft<'_> {
        Draft {
            random: &mut self.random,
            keys: &self.keys,
            versions: &self.versions,
            moment,
            serial: &mut self.serial,
            fullness: self.node.fullness,
            item_max: self.node.item_max,
            is_bulky: self.is_bulky,
            is_small: is_udp,
            slides: self.slides,
        }
    }

    /// A request that does nothing but be answered.
    fn fence(&mut self, lane: usize, moment: Moment) -> Batch {
        let mut batch = Batch::default();
        match self.lanes[lane].dialect {
            Dialect::Text => text::fence(&mut batch),
            Dialect::Binary => binary::fence(&mut self.drafting(true, moment), &mut batch),
        }
        batch
    }

    fn draft(&mut self, lane: usize, moment: Moment) -> Batch {
        let dialect = self.lanes[lane].dialect;
        let is_udp = matches!(self.lanes[lane].place, Place::Udp(_));
        let count = if is_udp { 1 } else { self.random.usize(1..=PIPELINE_MAX) };
        let mut batch = Batch::default();
        let mut draft = self.drafting(is_udp, moment);
        while batch.requests < count as u64 && batch.bytes.len() + batch.replies_len < BATCH_LEN_MAX {
            let (bytes, steps) = (batch.bytes.len(), batch.steps.len());
            match dialect {
                Dialect::Binary => binary::request(&mut draft, &mut batch),
                Dialect::Text if draft.chance(55) => text::request(&mut draft, &mut batch),
                Dialect::Text => meta::request(&mut draft, &mut batch),
            }
            let request = bytes..batch.bytes.len();
            batch.steps[steps..].iter_mut().for_each(|step| step.request = request.clone());
        }
        // Each request of a datagram has a reply of its own.
        if !is_udp {
            match dialect {
                Dialect::Text => text::fence(&mut batch),
                Dialect::Binary => binary::fence(&mut draft, &mut batch),
            }
        }
        batch
    }

    /// Sends requests and checks what comes back.
    fn exchange(&mut self, lane: usize, batch: &Batch, moment: Moment) -> Result<(), String> {
        self.open(lane)?;
        let Some((mut wire, _)) = self.lanes[lane].wire.take() else { return Ok(()) };
        self.send(&mut wire, &batch.bytes).map_err(|error| format!("cannot send: {error}"))?;
        for step in &batch.steps {
            let request = &batch.bytes[step.request.clone()];
            match self.check(step, &mut wire, moment) {
                Ok(()) => {
                    if let Some(key) = step.key {
                        self.keys.slots[key].remember(moment.now, request);
                    }
                }
                Err(Wrong::Lost) if wire.is_udp() => {
                    self.tally.count(Part::Outcomes, "datagrams lost", 1);
                    return match step.key {
                        Some(key) => self.forget(key, moment),
                        None => Ok(()),
                    };
                }
                Err(Wrong::Lost) => return Err("no answer came in time".into()),
                Err(Wrong::Other(what)) => {
                    let history = step.key.map(|key| &self.keys.slots[key].history);
                    let history = history.into_iter().flatten();
                    let history: String =
                        history.map(|(now, request)| format!("\n  at {now}: {}", cut(request))).collect();
                    return Err(format!(
                        "{what}\n  asked    {} at {moment:?}\n  amid     {}\n  before, of this key:{history}",
                        cut(request),
                        cut(&batch.bytes)
                    ));
                }
            }
        }
        if !wire.unread.is_empty() {
            return Err(format!(
                "more than was asked for: {}\n  after    {}",
                cut(&wire.unread),
                cut(&batch.bytes)
            ));
        }
        self.lanes[lane].wire = Some((wire, Instant::now()));
        Ok(())
    }

    /// Nobody knows what became of a key: it is deleted.
    fn forget(&mut self, key: usize, moment: Moment) -> Result<(), String> {
        self.keys.slots[key].clear();
        let name = self.keys.name(key);
        let bytes = [b"delete ", &name[..], b" noreply\r\n"].concat();
        let mut batch = Batch { bytes, ..Batch::default() };
        text::fence(&mut batch);
        self.exchange(0, &batch, moment)
    }

    /// Whole, in pieces, or byte by byte.
    fn send(&mut self, wire: &mut Wire, bytes: &[u8]) -> io::Result<()> {
        if wire.is_udp() {
            return wire.send(bytes);
        }
        match self.random.u32(..100) {
            0..=3 if bytes.len() < 800 => bytes.chunks(1).try_for_each(|byte| wire.send(byte)),
            4..=19 => {
                let mut rest = bytes;
                for _ in 0..self.random.usize(1..6) {
                    let (piece, more) = rest.split_at(self.random.usize(..=rest.len()));
                    rest = more;
                    if !piece.is_empty() {
                        wire.send(piece)?;
                        thread::sleep(Duration::from_micros(self.random.u64(..300)));
                    }
                }
                wire.send(rest)
            }
            _ => wire.send(bytes),
        }
    }

    /// Compares what comes with all that may come for a step.
    fn check(&mut self, step: &Step, wire: &mut Wire, moment: Moment) -> Result<(), Wrong> {
        let mut candidates = self.candidates(step, moment);
        loop {
            let mut needs_more = false;
            let mut best: Option<(usize, usize, Vec<_>)> = None;
            for (number, candidate) in candidates.iter().enumerate() {
                match compare(&candidate.play.reply, &wire.unread, &self.versions) {
                    Match::Yes(len, bound) => {
                        if best.as_ref().is_none_or(|(_, longest, _)| len > *longest) {
                            best = Some((number, len, bound));
                        }
                    }
                    Match::NeedsMore => needs_more = true,
                    Match::No => {}
                }
            }
            match best {
                // Silence is an answer only if nothing else comes.
                Some((number, len, bound)) if len > 0 || !needs_more => {
                    wire.unread.drain(..len);
                    bound.into_iter().for_each(|(token, value)| self.versions.bind(token, value));
                    let chosen = candidates.swap_remove(number);
                    if let Some(key) = step.key {
                        let slot = &mut self.keys.slots[key];
                        slot.item = chosen.play.after;
                        // A missing reply reveals nothing.
                        slot.is_unsure = chosen.is_unsure || (slot.is_unsure && len == 0);
                    }
                    if chosen.is_refusal {
                        self.tally.count(Part::Outcomes, "refused for want of memory", 1);
                    }
                    return Ok(());
                }
                _ if needs_more => wire.receive().map_err(|error| match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Wrong::Lost,
                    _ => Wrong::Other(format!(
                        "{error}, with unread {}, instead of {}",
                        cut(&wire.unread),
                        self.expected(&candidates)
                    )),
                })?,
                _ => {
                    return Err(Wrong::Other(format!(
                        "a wrong reply at key {:?}\n  expected {}\n  got      {}",
                        step.key.map(|key| cut(&self.keys.name(key))),
                        self.expected(&candidates),
                        cut(&wire.unread)
                    )));
                }
            }
        }
    }

    fn expected(&self, candidates: &[Candidate]) -> String {
        let all = candidates.iter().map(|candidate| describe(&candidate.play.reply, &self.versions));
        all.collect::<Vec<_>>().join("\n        or ")
    }

    /// All that may come.
    fn candidates(&mut self, step: &Step, moment: Moment) -> Vec<Candidate> {
        let slot = step.key.map(|key| &self.keys.slots[key]);
        let old = slot.and_then(|slot| slot.item.as_ref()).filter(|item| !item.expiry.is_over(moment.now));
        let old = old.cloned();
        let fullness = self.node.fullness;
        let was_unsure = slot.is_some_and(|slot| slot.is_unsure) || fullness == Fullness::Evicts;
        let context = &mut Context { now: moment.now, versions: &mut self.versions };
        let fails_unseen = step.is_silent && fullness != Fullness::Never;
        let mut candidates = vec![Candidate {
            play: (step.rule)(old.as_ref(), context),
            is_unsure: fails_unseen,
            is_refusal: false,
        }];
        if old.is_some() && was_unsure {
            candidates.push(Candidate {
                play: (step.rule)(None, context),
                is_unsure: fails_unseen,
                is_refusal: false,
            });
        }
        if fullness != Fullness::Never {
            candidates.extend(step.refusals.iter().map(|(reply, left)| {
                let after = if *left == Left::Nothing { None } else { old.clone() };
                Candidate {
                    play: Play::new(vec![Piece::Bytes(reply.clone())], after),
                    is_unsure: *left == Left::Unknown || was_unsure,
                    is_refusal: true,
                }
            }));
        }
        candidates
    }
}

/// A reply that may come.
struct Candidate {
    play: Play,
    /// The existence of the record afterwards is unknown.
    is_unsure: bool,
    is_refusal: bool,
}

/// Why a step failed.
enum Wrong {
    /// Nothing came.
    Lost,
    Other(String),
}
