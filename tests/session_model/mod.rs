//! Complete sessions against a naive model, which maps each request to the expected reply.
//!
//! The model is written from the protocol, not from the code: a map of plain items, and an `if` for
//! each sentence of the protocol. It knows one thing of the design: versions count up from 1, and a
//! record gets its version when the version is first shown.

use std::collections::BTreeMap;
use std::sync::Arc;
use todana::{Clock, Database, ManualClock, WorkerCounters};
use todana_core::{Reply, UnixSeconds};
use todana_engine::{MemHash, MemHashOptions};
use todana_protocol::memcached::{
    MemcachedCommand, MemcachedDecoder, MemcachedLimits, MemcachedStep, encode,
};

const START: u64 = 1_700_000_000;
const THIRTY_DAYS: i64 = 2_592_000;

/// One step of a session, decoded from arbitrary bytes.
#[derive(Clone, Debug)]
enum Operation {
    Get(Vec<u8>, bool),
    Gat(u8, i64),
    Store { verb: &'static str, key: u8, flags: u32, ttl: i64, value: usize, quiet: bool },
    Cas { key: u8, value: usize, fresh: bool },
    Delete(u8, bool),
    Count { key: u8, up: bool, by: u64 },
    Touch(u8, i64),
    Flush(Option<u64>),
    Advance(u64),
    MetaGet { key: u8, touch: Option<i64>, vivify: Option<i64>, quiet: bool },
    MetaSet { key: u8, mode: char, value: usize, shown: bool, quiet: bool, compare: Option<bool> },
    MetaDelete { key: u8, stale: bool, drops: bool },
    MetaCount { key: u8, vivify: Option<i64>, initial: u64, delta: u64, up: bool },
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn ttl(&mut self) -> Option<i64> {
        Some(
            [0, 0, 0, 1, 5, 100, -1, THIRTY_DAYS, THIRTY_DAYS + 1, START as i64 + 50]
                [self.next()? as usize % 10],
        )
    }

    fn number(&mut self) -> Option<u64> {
        Some([0, 1, 1, 5, 10, 99, 1000, u64::MAX, u64::MAX - 3, 1 << 40][self.next()? as usize % 10])
    }

    fn maybe(&mut self) -> Option<bool> {
        Some(self.next()?.is_multiple_of(3))
    }

    fn operation(&mut self) -> Option<Operation> {
        let kind = self.next()?;
        let key = self.next()? % 6;
        Some(match kind % 22 {
            0..=2 => {
                let more = self.next()? % 4;
                Operation::Get((0..=more).map(|n| (key + n) % 6).collect(), self.maybe()?)
            }
            3 => Operation::Gat(key, self.ttl()?),
            4..=8 => {
                let verb = ["set", "add", "replace", "append", "prepend"][kind as usize % 22 - 4];
                let flags = [0, 0, 1, 65535, u32::MAX][self.next()? as usize % 5];
                let (ttl, value) = (self.ttl()?, self.next()? as usize);
                Operation::Store { verb, key, flags, ttl, value, quiet: self.maybe()? }
            }
            9 | 10 => Operation::Cas { key, value: self.next()? as usize, fresh: self.maybe()? },
            11 => Operation::Delete(key, self.maybe()?),
            12 | 13 => Operation::Count { key, up: kind % 22 == 12, by: self.number()? },
            14 => Operation::Touch(key, self.ttl()?),
            15 => match self.next()? % 8 {
                0 => Operation::Flush(None),
                1 => Operation::Flush(Some(u64::from(key) * 3 + 1)),
                other => Operation::Advance(u64::from(other)),
            },
            16 => Operation::Advance([1, 1, 2, 60, 100, 4000][key as usize]),
            17 | 18 => {
                let touch = if self.maybe()? { Some(self.ttl()?) } else { None };
                let vivify = if self.maybe()? { Some(self.ttl()?.max(0)) } else { None };
                Operation::MetaGet { key, touch, vivify, quiet: self.maybe()? }
            }
            19 => {
                let mode = ['S', 'E', 'A', 'P', 'R'][self.next()? as usize % 5];
                let (value, shown) = (self.next()? as usize, self.maybe()?);
                let compare = if self.maybe()? { Some(self.maybe()?) } else { None };
                Operation::MetaSet { key, mode, value, shown, quiet: self.maybe()?, compare }
            }
            20 => Operation::MetaDelete { key, stale: self.maybe()?, drops: self.maybe()? },
            _ => {
                let vivify = if self.maybe()? { Some(self.ttl()?.max(0)) } else { None };
                let (initial, delta) = (self.number()?, self.number()?);
                Operation::MetaCount { key, vivify, initial, delta, up: self.maybe()? }
            }
        })
    }
}

fn key_text(key: u8) -> &'static str {
    ["k", "00000042", "17", "user:1234:profile", "a-key-of-16-byte", "x"][key as usize]
}

fn value_of(choice: usize) -> Vec<u8> {
    match choice % 16 {
        0 => b"".to_vec(),
        1 => b"1".to_vec(),
        2 => b"99".to_vec(),
        3 => b"007".to_vec(),
        4 => b"5  ".to_vec(),
        5 => b"18446744073709551615".to_vec(),
        6 => b"12x".to_vec(),
        7 => b"-5".to_vec(),
        8 => b"a\r\nEND\r\nb".to_vec(),
        9 => vec![b'v'; 200],
        10 => vec![b'w'; 1100],
        11 => (0..3000u32).map(|n| (n * 7) as u8).collect(),
        12 if choice > 200 => vec![b'z'; 70_000],
        13 => b"1234567890123456789".to_vec(),
        _ => format!("value {choice}").into_bytes(),
    }
}

#[derive(Clone, Debug, Default)]
struct Item {
    value: Vec<u8>,
    flags: u32,
    /// The second from which the item is expired.
    gone_at: Option<u64>,
    version: u64,
    stale: bool,
    token_sent: bool,
}

#[derive(Default)]
struct Model {
    items: BTreeMap<u8, Item>,
    now: u64,
    flush_at: Option<u64>,
    versions: u64,
}

impl Model {
    fn item(&mut self, key: u8) -> Option<&mut Item> {
        if self.flush_at.is_some_and(|at| at <= self.now) {
            self.items.clear();
            self.flush_at = None;
        }
        let now = self.now;
        self.items.retain(|_, item| item.gone_at.is_none_or(|at| at > now));
        self.items.get_mut(&key)
    }

    fn gone_at(&self, ttl: i64) -> Option<u64> {
        match ttl {
            0 => None,
            i64::MIN..0 => Some(1),
            1..=THIRTY_DAYS => Some(self.now + ttl as u64),
            _ => Some(ttl as u64),
        }
    }

    fn fresh(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    fn show_version(&mut self, key: u8) -> u64 {
        let known = self.item(key).map_or(0, |item| item.version);
        if known != 0 {
            return known;
        }
        let fresh = self.fresh();
        if let Some(item) = self.item(key) {
            item.version = fresh;
        }
        fresh
    }

    fn value_lines(&mut self, key: u8, with_version: bool, out: &mut Vec<u8>) {
        let Some(item) = self.item(key).cloned() else { return };
        let version = if with_version { format!(" {}", self.show_version(key)) } else { String::new() };
        let head = format!("VALUE {} {} {}{version}\r\n", key_text(key), item.flags, item.value.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&item.value);
        out.extend_from_slice(b"\r\n");
    }

    fn count(&mut self, key: u8, by: u64, up: bool) -> Option<Result<u64, ()>> {
        let item = self.item(key)?;
        let text = String::from_utf8_lossy(&item.value).into_owned();
        let digits = text.trim_matches(' ');
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let Some(old) = digits.parse::<u64>().ok().filter(|_| is_number) else { return Some(Err(())) };
        let new = if up { old.wrapping_add(by) } else { old.saturating_sub(by) };
        let len = item.value.len();
        // A number that fits is changed in place and keeps its marks. A longer one is a new item.
        let in_place = new.to_string().len() <= len;
        *item = Item {
            value: format!("{new:<len$}").into_bytes(),
            version: 0,
            stale: in_place && item.stale,
            token_sent: in_place && item.token_sent,
            ..item.clone()
        };
        Some(Ok(new))
    }

    /// Returns the bytes of the request and of its expected reply.
    fn play(&mut self, operation: &Operation) -> (Vec<u8>, Vec<u8>) {
        let (mut request, mut reply) = (Vec::new(), Vec::new());
        let line = |reply: &mut Vec<u8>, text: &str| {
            reply.extend_from_slice(text.as_bytes());
            reply.extend_from_slice(b"\r\n");
        };
        match operation.clone() {
            Operation::Get(keys, with_version) => {
                let words: Vec<&str> = keys.iter().map(|&key| key_text(key)).collect();
                request = format!("{} {}\r\n", if with_version { "gets" } else { "get" }, words.join(" "))
                    .into_bytes();
                keys.iter().for_each(|&key| self.value_lines(key, with_version, &mut reply));
                line(&mut reply, "END");
            }
            Operation::Gat(key, ttl) => {
                request = format!("gat {ttl} {}\r\n", key_text(key)).into_bytes();
                let gone_at = self.gone_at(ttl);
                self.value_lines(key, false, &mut reply);
                if let Some(item) = self.item(key) {
                    item.gone_at = gone_at;
                }
                line(&mut reply, "END");
            }
            Operation::Store { verb, key, flags, ttl, value, quiet } => {
                let value = value_of(value);
                let noreply = if quiet { " noreply" } else { "" };
                request = format!("{verb} {} {flags} {ttl} {}{noreply}\r\n", key_text(key), value.len())
                    .into_bytes();
                request.extend_from_slice(&value);
                request.extend_from_slice(b"\r\n");
                let gone_at = self.gone_at(ttl);
                let stored = match (verb, self.item(key)) {
                    ("add", Some(_)) | ("replace" | "append" | "prepend", None) => false,
                    ("append" | "prepend", Some(item)) => {
                        let joined = if verb == "append" {
                            [item.value.clone(), value].concat()
                        } else {
                            [value, item.value.clone()].concat()
                        };
                        let kept = item.clone();
                        *item = Item {
                            value: joined,
                            flags: kept.flags,
                            gone_at: kept.gone_at,
                            ..Item::default()
                        };
                        true
                    }
                    _ => {
                        self.items.insert(key, Item { value, flags, gone_at, ..Item::default() });
                        true
                    }
                };
                if !quiet {
                    line(&mut reply, if stored { "STORED" } else { "NOT_STORED" });
                }
            }
            Operation::Cas { key, value, fresh } => {
                let value = value_of(value);
                // Either the version that was shown, or a version that never was.
                let stored = self.item(key).map(|item| item.version);
                let asked = if fresh {
                    stored.filter(|&version| version != 0).unwrap_or(u64::MAX)
                } else {
                    u64::MAX - 1
                };
                request = format!("cas {} 3 0 {} {asked}\r\n", key_text(key), value.len()).into_bytes();
                request.extend_from_slice(&value);
                request.extend_from_slice(b"\r\n");
                match stored {
                    None => line(&mut reply, "NOT_FOUND"),
                    Some(version) if version == asked => {
                        self.items.insert(key, Item { value, flags: 3, ..Item::default() });
                        line(&mut reply, "STORED");
                    }
                    Some(_) => line(&mut reply, "EXISTS"),
                }
            }
            Operation::Delete(key, quiet) => {
                request = format!("delete {}{}\r\n", key_text(key), if quiet { " noreply" } else { "" })
                    .into_bytes();
                let found = self.item(key).is_some();
                self.items.remove(&key);
                if !quiet {
                    line(&mut reply, if found { "DELETED" } else { "NOT_FOUND" });
                }
            }
            Operation::Count { key, up, by } => {
                request =
                    format!("{} {} {by}\r\n", if up { "incr" } else { "decr" }, key_text(key)).into_bytes();
                match self.count(key, by, up) {
                    None => line(&mut reply, "NOT_FOUND"),
                    Some(Ok(number)) => line(&mut reply, &number.to_string()),
                    Some(Err(())) => {
                        line(&mut reply, "CLIENT_ERROR cannot increment or decrement non-numeric value");
                    }
                }
            }
            Operation::Touch(key, ttl) => {
                request = format!("touch {} {ttl}\r\n", key_text(key)).into_bytes();
                let gone_at = self.gone_at(ttl);
                match self.item(key) {
                    Some(item) => {
                        item.gone_at = gone_at;
                        line(&mut reply, "TOUCHED");
                    }
                    None => line(&mut reply, "NOT_FOUND"),
                }
            }
            Operation::Flush(delay) => {
                self.item(0);
                request = delay
                    .map_or("flush_all\r\n".into(), |delay| format!("flush_all {delay}\r\n"))
                    .into_bytes();
                match delay {
                    None => {
                        self.items.clear();
                        self.flush_at = None;
                    }
                    Some(delay) => self.flush_at = Some(self.now + delay),
                }
                line(&mut reply, "OK");
            }
            Operation::Advance(seconds) => self.now += seconds,
            Operation::MetaGet { key, touch, vivify, quiet } => {
                let flag = |letter: char, ttl: Option<i64>| {
                    ttl.map_or(String::new(), |ttl| format!(" {letter}{ttl}"))
                };
                request = format!(
                    "mg {} v f s c{}{}{}\r\n",
                    key_text(key),
                    flag('T', touch),
                    flag('N', vivify),
                    if quiet { " q" } else { "" }
                )
                .into_bytes();
                let touched = touch.map(|ttl| self.gone_at(ttl));
                if self.item(key).is_some() {
                    let version = self.show_version(key);
                    let item = self.item(key).expect("it was there");
                    let (won, stale, token_sent) =
                        (item.stale && !item.token_sent, item.stale, item.token_sent);
                    item.token_sent |= won;
                    if let Some(gone_at) = touched {
                        item.gone_at = gone_at;
                    }
                    let mut head =
                        format!("VA {} f{} s{} c{version}", item.value.len(), item.flags, item.value.len());
                    for (marked, letter) in [(token_sent, " Z"), (stale, " X"), (won, " W")] {
                        head.push_str(if marked { letter } else { "" });
                    }
                    let value = item.value.clone();
                    line(&mut reply, &head);
                    reply.extend_from_slice(&value);
                    reply.extend_from_slice(b"\r\n");
                } else if let Some(ttl) = vivify {
                    let version = self.fresh();
                    let gone_at = self.gone_at(ttl);
                    self.items.insert(key, Item { gone_at, version, token_sent: true, ..Item::default() });
                    line(&mut reply, &format!("VA 0 f0 s0 c{version} W\r\n"));
                } else if !quiet {
                    line(&mut reply, "EN");
                }
            }
            Operation::MetaSet { key, mode, value, shown, quiet, compare } => {
                let value = value_of(value);
                let stored = self.item(key).cloned();
                let known = stored.as_ref().map_or(0, |item| item.version);
                let asked = compare.map(|right| if right && known != 0 { known } else { u64::MAX });
                request = format!("ms {} {} M{mode}", key_text(key), value.len()).into_bytes();
                request
                    .extend_from_slice(asked.map_or(String::new(), |asked| format!(" C{asked}")).as_bytes());
                request.extend_from_slice(if shown { b" c" } else { b"" });
                request.extend_from_slice(if quiet { b" q" } else { b"" });
                request.extend_from_slice(b"\r\n");
                request.extend_from_slice(&value);
                request.extend_from_slice(b"\r\n");
                let code = match (mode, &stored) {
                    ('E', Some(_)) | ('A' | 'P', None) => "NS",
                    ('S' | 'R', None) if asked.is_some() => "NF",
                    ('R', None) => "NS",
                    (_, Some(_)) if asked.is_some_and(|asked| asked != known) => "EX",
                    _ => "HD",
                };
                let mut version = 0;
                if code == "HD" {
                    version = if shown { self.fresh() } else { 0 };
                    let mut item = Item { version, ..Item::default() };
                    item.value = match (mode, stored) {
                        ('A' | 'P', Some(old)) => {
                            (item.flags, item.gone_at) = (old.flags, old.gone_at);
                            if mode == 'A' {
                                [old.value, value].concat()
                            } else {
                                [value, old.value].concat()
                            }
                        }
                        _ => value,
                    };
                    self.items.insert(key, item);
                }
                if !(quiet && code == "HD") {
                    line(
                        &mut reply,
                        &format!("{code}{}", if shown { format!(" c{version}") } else { String::new() }),
                    );
                }
            }
            Operation::MetaDelete { key, stale, drops } => {
                request = format!(
                    "md {}{}{}\r\n",
                    key_text(key),
                    if stale { " I" } else { "" },
                    if drops { " x" } else { "" }
                )
                .into_bytes();
                match self.item(key).cloned() {
                    None => line(&mut reply, "NF"),
                    Some(mut item) => {
                        line(&mut reply, "HD");
                        if drops {
                            item = Item { version: item.version, ..Item::default() };
                        }
                        if stale {
                            (item.stale, item.token_sent, item.version) = (true, false, self.fresh());
                        }
                        if stale || drops {
                            self.items.insert(key, item);
                        } else {
                            self.items.remove(&key);
                        }
                    }
                }
            }
            Operation::MetaCount { key, vivify, initial, delta, up } => {
                request =
                    format!("ma {} v J{initial} D{delta} M{}", key_text(key), if up { 'I' } else { 'D' })
                        .into_bytes();
                request.extend_from_slice(vivify.map_or(String::new(), |ttl| format!(" N{ttl}")).as_bytes());
                request.extend_from_slice(b"\r\n");
                let number = match (self.count(key, delta, up), vivify) {
                    (Some(Err(())), _) => {
                        line(&mut reply, "CLIENT_ERROR cannot increment or decrement non-numeric value");
                        None
                    }
                    (Some(Ok(number)), _) => Some(number),
                    (None, None) => {
                        line(&mut reply, "NF");
                        None
                    }
                    (None, Some(ttl)) => {
                        let gone_at = self.gone_at(ttl);
                        let value = initial.to_string().into_bytes();
                        self.items.insert(key, Item { value, gone_at, ..Item::default() });
                        Some(initial)
                    }
                };
                if let Some(number) = number {
                    let text = number.to_string();
                    line(&mut reply, &format!("VA {}\r\n{text}", text.len()));
                }
            }
        }
        (request, reply)
    }
}

/// A session without a socket.
struct Session {
    dialect: MemcachedDecoder,
    limits: MemcachedLimits,
    database: Database,
    worker_counters: Arc<WorkerCounters>,
    clock: Arc<ManualClock>,
    unread: Vec<u8>,
}

impl Session {
    fn new() -> Session {
        let options = MemHashOptions { seed: Some(1), shards: Some(1), ..MemHashOptions::default() };
        let engine = MemHash::new(options).expect("valid options");
        let clock = Arc::new(ManualClock::new(UnixSeconds(START)));
        let database = Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>);
        let worker_counters = database.worker_counters();
        Session {
            dialect: MemcachedDecoder::default(),
            limits: MemcachedLimits::default(),
            database,
            worker_counters,
            clock,
            unread: Vec::new(),
        }
    }

    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.unread.extend_from_slice(bytes);
        let mut at = 0;
        let mut scratch = Vec::new();
        loop {
            match self.dialect.decode(&self.limits, &self.unread[at..], &mut scratch) {
                MemcachedStep::Request { consumed, request } => {
                    at += consumed;
                    let mut reply = |reply: Reply<'_>| encode(&request.form, &reply, out);
                    match request.command {
                        MemcachedCommand::Quit | MemcachedCommand::Stats { .. } => panic!("not sent"),
                        MemcachedCommand::Operation(operation) => {
                            self.database.execute(&self.worker_counters, &operation, &mut reply);
                        }
                        MemcachedCommand::Faulty { message } => reply(Reply::Faulty(message)),
                        _ => reply(Reply::Unknown),
                    }
                }
                MemcachedStep::NeedMore { consumed, .. } => {
                    at += consumed;
                    break;
                }
                MemcachedStep::Block { .. } | MemcachedStep::Close => panic!("closed"),
            }
        }
        self.unread.drain(..at);
    }
}

/// Plays a session on both. Panics if the replies differ.
pub(crate) fn check(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let mut model = Model { now: START, ..Model::default() };
    let mut session = Session::new();
    let mut history: Vec<String> = Vec::new();
    while let Some(operation) = bytes.operation() {
        if history.len() > 400 {
            break;
        }
        if let Operation::Advance(seconds) = operation {
            session.clock.advance(seconds);
            session.database.maintain();
        }
        let (request, expected) = model.play(&operation);
        history.push(format!("{operation:?}"));
        let mut got = Vec::new();
        // Cut in the middle, because a session must not depend on how its bytes arrive.
        let cut = request.len() / 2;
        session.feed(&request[..cut], &mut got);
        session.feed(&request[cut..], &mut got);
        assert!(
            got == expected,
            "after {}\nsent     {}\nexpected {}\ngot      {}",
            history.join("\n      "),
            request.escape_ascii(),
            expected.escape_ascii(),
            got.escape_ascii()
        );
    }
}
