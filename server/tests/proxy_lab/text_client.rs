//! A client with text and meta commands. It sends several requests at a time, and compares each
//! reply with the model of its keys.

use super::fake_server::REFUSAL;
use super::key_model::{KeyModel, KeyState, KnownRecord};
use fastrand::Rng;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use todana_client::ring::Ring;
use todana_server::WhenDown;

/// The time after which a reply counts as missing. No reply takes nearly as long.
const HANG: Duration = Duration::from_secs(60);
/// The maximum length of a value that the proxy keeps until it is complete.
const LONG_VALUE: usize = 64 << 10;
/// The number of keys of a client.
const KEYS: usize = 24;

/// The proxy and its servers, as clients know them.
pub(crate) struct Surroundings {
    pub(crate) proxy: SocketAddr,
    pub(crate) when_down: WhenDown,
    /// The ring over the servers that may fail.
    pub(crate) ring: Ring,
    pub(crate) labels: Vec<String>,
    /// The prefix of keys whose servers never fail.
    pub(crate) steady: Option<&'static str>,
    /// True if the servers that may fail lose their records.
    pub(crate) is_lossy: bool,
}

/// The form of a request that has no value of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RequestForm {
    Text,
    NoReply,
    Meta,
    Quiet,
}

/// A request that was sent.
#[derive(Debug)]
enum SentRequest {
    Get {
        keys: Vec<usize>,
        with_cas: bool,
    },
    MetaGet {
        key: usize,
        form: RequestForm,
        opaque: u32,
    },
    Store {
        key: usize,
        mode: &'static str,
        compare: Option<u64>,
        value: String,
        flags: u32,
        form: RequestForm,
    },
    Delete {
        key: usize,
        form: RequestForm,
    },
    Touch {
        key: usize,
    },
    Count {
        key: usize,
        is_up: bool,
        delta: u64,
        form: RequestForm,
    },
    /// A request that the proxy answers with this line.
    Fixed(&'static str),
}

/// A reply that is one line and perhaps a value.
struct LineReply {
    line: String,
    value: Option<String>,
}

pub(crate) struct TextClient {
    name: String,
    around: Arc<Surroundings>,
    random: Rng,
    keys: Vec<KeyModel>,
    generation: u32,
    connection: Option<BufReader<TcpStream>>,
    /// The requests of this turn.
    sent: Vec<SentRequest>,
    /// True if the connection ended within a value that is too long for the proxy to keep.
    is_long_value_cut: bool,
    /// The number of replies that faults of servers have changed.
    pub(crate) losses: u32,
}

impl TextClient {
    pub(crate) fn new(name: String, around: Arc<Surroundings>, random: Rng) -> TextClient {
        let mut client = TextClient {
            name,
            around,
            random,
            keys: Vec::new(),
            generation: 0,
            connection: None,
            sent: Vec::new(),
            is_long_value_cut: false,
            losses: 0,
        };
        client.keys = (0..KEYS).map(|slot| client.new_key(slot)).collect();
        client
    }

    fn new_key(&mut self, slot: usize) -> KeyModel {
        self.generation += 1;
        let steady = self.around.steady.filter(|_| slot.is_multiple_of(3));
        let prefix = steady.unwrap_or_default();
        let key = format!("{prefix}{}:{slot}:{}", self.name, self.generation);
        let shaky = steady.is_none().then(|| self.around.ring.server_of(key.as_bytes()));
        KeyModel::new(key, shaky, slot % 8 == 7)
    }

    /// Sends some requests and checks the replies. Returns the number of requests.
    pub(crate) fn turn(&mut self) -> Result<u32, String> {
        self.sent.clear();
        let mut bytes = Vec::new();
        let count_max = if self.random.bool() { 4 } else { 30 };
        let count = 1 + self.random.u32(..count_max);
        for _ in 0..count {
            self.draft(&mut bytes);
        }
        self.sent.push(SentRequest::Fixed("MN"));
        bytes.extend_from_slice(b"mn\r\n");
        if self.connection.is_none() || self.random.u8(..) == 0 {
            let stream = TcpStream::connect(self.around.proxy).map_err(|error| error.to_string())?;
            let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(HANG)));
            set.and_then(|()| stream.set_write_timeout(Some(HANG))).map_err(|error| error.to_string())?;
            self.connection = Some(BufReader::with_capacity(16 << 10, stream));
        }
        self.send(&bytes).map_err(|error| format!("cannot send: {error}"))?;
        if self.random.u8(..64) == 0 {
            // The client leaves without its replies.
            self.connection = None;
            self.keys.iter_mut().for_each(KeyModel::forget);
        } else {
            let sent = std::mem::take(&mut self.sent);
            for (at, request) in sent.iter().enumerate() {
                let Err(mistake) = self.check(request, &sent[at + 1..]) else { continue };
                // Once a long value has begun, a proxy cannot report the loss of the server.
                if std::mem::take(&mut self.is_long_value_cut) && self.reads_shaky(request) {
                    self.connection = None;
                    self.keys.iter_mut().for_each(KeyModel::forget);
                    self.losses += 1;
                    break;
                }
                return Err(format!("{mistake}\n{}", self.history(&sent[..=at])));
            }
        }
        for slot in 0..KEYS {
            if self.keys[slot].state == KeyState::Unknown && self.random.bool() {
                self.keys[slot] = self.new_key(slot);
            }
        }
        Ok(count)
    }

    /// Returns the last requests, and the state of their keys before the last one.
    fn history(&self, sent: &[SentRequest]) -> String {
        let first = sent.len().saturating_sub(4);
        let shown = sent[first..].iter().flat_map(|request| {
            let keys = self.keys_of(request);
            let states = keys.into_iter().map(|key| format!("    {}: {:?}", key.key, key.state));
            [format!("{request:?}")].into_iter().chain(states).collect::<Vec<_>>()
        });
        let cut = |line: String| line.chars().take(300).collect::<String>() + "\n";
        shown.map(cut).collect()
    }

    fn keys_of(&self, request: &SentRequest) -> Vec<&KeyModel> {
        let keys = match request {
            SentRequest::Fixed(_) => &[][..],
            SentRequest::Get { keys, .. } => keys,
            SentRequest::MetaGet { key, .. }
            | SentRequest::Store { key, .. }
            | SentRequest::Delete { key, .. }
            | SentRequest::Touch { key }
            | SentRequest::Count { key, .. } => std::slice::from_ref(key),
        };
        keys.iter().map(|&key| &self.keys[key]).collect()
    }

    fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let piece_len = if self.random.u8(..8) == 0 { 1 + self.random.usize(..40) } else { bytes.len() };
        let Some(connection) = &mut self.connection else { return Ok(()) };
        bytes.chunks(piece_len).try_for_each(|piece| connection.get_mut().write_all(piece))
    }

    /// Appends a random request.
    fn draft(&mut self, bytes: &mut Vec<u8>) {
        let key = self.random.usize(..KEYS);
        let form = match self.random.u8(..8) {
            0 => RequestForm::NoReply,
            1 => RequestForm::Quiet,
            2..5 => RequestForm::Meta,
            _ => RequestForm::Text,
        };
        let kind = self.random.u8(..16);
        let request = match kind {
            0..4 => self.draft_get(bytes),
            4..6 => self.draft_meta_get(key, form, bytes),
            6..12 if !self.keys[key].is_counter => self.draft_store(key, form, bytes),
            6..12 => self.draft_count(key, form, bytes),
            12..14 => self.draft_delete(key, form, bytes),
            14 => {
                bytes.extend_from_slice(format!("touch {} 0\r\n", self.keys[key].key).as_bytes());
                SentRequest::Touch { key }
            }
            _ => self.draft_fixed(bytes),
        };
        let is_quiet = matches!(
            request,
            SentRequest::MetaGet { form: RequestForm::Quiet, .. }
                | SentRequest::Store { form: RequestForm::Quiet, .. }
                | SentRequest::Delete { form: RequestForm::Quiet, .. }
                | SentRequest::Count { form: RequestForm::Quiet, .. }
        );
        self.sent.push(request);
        if is_quiet {
            // Without it, an error could belong to the next request.
            bytes.extend_from_slice(b"mn\r\n");
            self.sent.push(SentRequest::Fixed("MN"));
        }
    }

    fn draft_fixed(&mut self, bytes: &mut Vec<u8>) -> SentRequest {
        let long = format!("get {}\r\n", "k".repeat(251));
        let (line, reply) = match self.random.u8(..5) {
            0 => ("version\r\n", "VERSION 1.6.45"),
            1 => ("bogus\r\n", "ERROR"),
            2 => (&*long, "CLIENT_ERROR bad command line format"),
            3 => ("verbosity 1\r\n", "OK"),
            _ => ("mn\r\n", "MN"),
        };
        bytes.extend_from_slice(line.as_bytes());
        SentRequest::Fixed(reply)
    }

    fn draft_get(&mut self, bytes: &mut Vec<u8>) -> SentRequest {
        let count = if self.random.bool() { 1 } else { 2 + self.random.usize(..12) };
        let keys: Vec<usize> = (0..count).map(|_| self.random.usize(..KEYS)).collect();
        let word = ["get", "gets", "gat 0", "gats 0"][self.random.usize(..4)];
        bytes.extend_from_slice(word.as_bytes());
        keys.iter().for_each(|&key| bytes.extend_from_slice(format!(" {}", self.keys[key].key).as_bytes()));
        bytes.extend_from_slice(b"\r\n");
        SentRequest::Get { keys, with_cas: word.contains("ts") }
    }

    fn draft_meta_get(&mut self, key: usize, form: RequestForm, bytes: &mut Vec<u8>) -> SentRequest {
        let form = if form == RequestForm::Quiet { form } else { RequestForm::Meta };
        let opaque = self.random.u32(..);
        let quiet = if form == RequestForm::Quiet { " q" } else { "" };
        let line = format!("mg {} v f k c O{opaque}{quiet}\r\n", self.keys[key].key);
        bytes.extend_from_slice(line.as_bytes());
        SentRequest::MetaGet { key, form, opaque }
    }

    fn draft_store(&mut self, key: usize, form: RequestForm, bytes: &mut Vec<u8>) -> SentRequest {
        let modes = ["set", "set", "add", "replace", "append", "prepend", "cas"];
        let mode = modes[self.random.usize(..modes.len())];
        let len = match self.random.u32(..200) {
            0 => 100_000,
            1..20 => self.random.usize(..4000),
            _ => self.random.usize(..60),
        };
        let known = self.keys[key].cas;
        let compare = (mode == "cas").then(|| known.unwrap_or(0) + u64::from(self.random.u8(..4) == 0));
        let (value, flags) = self.keys[key].piece(len);
        let name = &self.keys[key].key;
        let line = match form {
            RequestForm::Text | RequestForm::NoReply => {
                let compare = compare.map_or(String::new(), |cas| format!(" {cas}"));
                let noreply = if form == RequestForm::NoReply { " noreply" } else { "" };
                format!("{mode} {name} {flags} 0 {}{compare}{noreply}\r\n", value.len())
            }
            RequestForm::Meta | RequestForm::Quiet => {
                let word = match mode {
                    "add" => " ME".to_string(),
                    "replace" => " MR".to_string(),
                    "append" => " MA".to_string(),
                    "prepend" => " MP".to_string(),
                    "cas" => format!(" C{}", compare.unwrap_or(0)),
                    _ => String::new(),
                };
                let quiet = if form == RequestForm::Quiet { " q" } else { "" };
                format!("ms {name} {} F{flags}{word}{quiet}\r\n", value.len())
            }
        };
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        SentRequest::Store { key, mode, compare, value, flags, form }
    }

    fn draft_count(&mut self, key: usize, form: RequestForm, bytes: &mut Vec<u8>) -> SentRequest {
        if self.random.u8(..3) == 0 {
            let (value, _) = self.keys[key].piece(0);
            let line = format!("set {} 0 0 {}\r\n", self.keys[key].key, value.len());
            bytes.extend_from_slice(line.as_bytes());
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
            let form = RequestForm::Text;
            return SentRequest::Store { key, mode: "set", compare: None, value, flags: 0, form };
        }
        let (is_up, delta, name) = (self.random.bool(), self.random.u64(1..50), &self.keys[key].key);
        let line = match (form, is_up) {
            (RequestForm::Text, true) => format!("incr {name} {delta}\r\n"),
            (RequestForm::Text, false) => format!("decr {name} {delta}\r\n"),
            (RequestForm::NoReply, true) => format!("incr {name} {delta} noreply\r\n"),
            (RequestForm::NoReply, false) => format!("decr {name} {delta} noreply\r\n"),
            (_, is_up) => {
                let mode = if is_up { "MI" } else { "MD" };
                let quiet = if form == RequestForm::Quiet { " q" } else { "" };
                format!("ma {name} v D{delta} {mode}{quiet}\r\n")
            }
        };
        bytes.extend_from_slice(line.as_bytes());
        SentRequest::Count { key, is_up, delta, form }
    }

    fn draft_delete(&mut self, key: usize, form: RequestForm, bytes: &mut Vec<u8>) -> SentRequest {
        let name = &self.keys[key].key;
        let line = match form {
            RequestForm::Text => format!("delete {name}\r\n"),
            RequestForm::NoReply => format!("delete {name} noreply\r\n"),
            RequestForm::Meta => format!("md {name}\r\n"),
            RequestForm::Quiet => format!("md {name} q\r\n"),
        };
        bytes.extend_from_slice(line.as_bytes());
        SentRequest::Delete { key, form }
    }

    fn line(&mut self) -> Result<String, String> {
        let connection = self.connection.as_mut().ok_or("there is no connection")?;
        let mut line = Vec::new();
        connection.read_until(b'\n', &mut line).map_err(|error| format!("no reply: {error}"))?;
        let line = String::from_utf8(line).map_err(|error| format!("not a text: {error}"))?;
        line.strip_suffix("\r\n").map(String::from).ok_or(format!("the reply ends after {line:?}"))
    }

    fn block(&mut self, len: &str) -> Result<String, String> {
        let connection = self.connection.as_mut().ok_or("there is no connection")?;
        let len: usize = len.parse().map_err(|_| format!("{len:?}: not a length"))?;
        let mut block = vec![0; len + 2];
        if let Err(error) = connection.read_exact(&mut block) {
            self.is_long_value_cut = error.kind() == ErrorKind::UnexpectedEof && len > LONG_VALUE;
            return Err(format!("no value: {error}"));
        }
        if block.split_off(len) != b"\r\n" {
            return Err("the value has no end".into());
        }
        String::from_utf8(block).map_err(|error| format!("not a text: {error}"))
    }

    /// Reads a reply of one line. Returns `None` if it belongs to the request after a quiet one.
    fn line_reply(&mut self, form: RequestForm) -> Result<Option<LineReply>, String> {
        if form == RequestForm::NoReply {
            return Ok(None);
        }
        if form == RequestForm::Quiet {
            let connection = self.connection.as_mut().ok_or("there is no connection")?;
            // The reply `MN` to the next request shows that this one has none.
            connection.fill_buf().map_err(|error| format!("no reply: {error}"))?;
            if connection.buffer().starts_with(b"M") {
                return Ok(None);
            }
        }
        let line = self.line()?;
        let value = match line.strip_prefix("VA ") {
            Some(rest) => Some(self.block(rest.split(' ').next().unwrap_or_default())?),
            None => None,
        };
        Ok(Some(LineReply { line, value }))
    }

    /// Returns true if the line is an error that a request for one of these keys may have.
    fn is_loss(&mut self, line: &str, keys: &[usize], is_read: bool) -> bool {
        let is_loss = self.may_be_lost(line, keys, is_read);
        self.losses += u32::from(is_loss);
        is_loss
    }

    fn may_be_lost(&self, line: &str, keys: &[usize], is_read: bool) -> bool {
        let mut servers = keys.iter().filter_map(|&key| self.keys[key].shaky);
        if line == REFUSAL {
            return servers.next().is_some();
        }
        match self.around.when_down {
            WhenDown::Gentle => {
                !is_read && servers.next().is_some() && line == "SERVER_ERROR out of memory storing object"
            }
            WhenDown::Miss if is_read => false,
            WhenDown::Moxi => {
                let names = |server: usize| line.ends_with(&self.around.labels[server]);
                !is_read && line.starts_with("SERVER_ERROR proxy ") && servers.any(names)
            }
            WhenDown::Miss | WhenDown::Error => servers.any(|server| {
                let reason =
                    line.strip_prefix(&format!("SERVER_ERROR server {}: ", self.around.labels[server]));
                let known =
                    ["refused", "unreachable", "timed out", "closed", "down", "busy", "not understood"];
                reason.is_some_and(|reason| known.contains(&reason))
            }),
        }
    }

    /// Checks a value. `later` are the requests after this one that were sent with it: a read that
    /// was sent again may have been executed after them.
    fn check_value(&self, key: usize, value: &str, flags: u32, later: &[SentRequest]) -> Result<(), String> {
        let key = &self.keys[key];
        let is_exact = key.state == KeyState::Exact(Some((value.to_string(), flags)));
        let is_later =
            key.shaky.is_some() && self.is_written(&key.key, later) || key.state == KeyState::Unknown;
        if is_exact || (is_later && key.is_plausible(value, flags)) {
            return Ok(());
        }
        let value: String = value.chars().take(200).collect();
        Err(format!("{}: {value} with flags {flags} where {:?} is expected", key.key, key.state))
    }

    /// Returns true if a read may be a miss. `is_loss_shown` is true if a server that fails causes
    /// an error instead.
    fn may_miss(&self, key: usize, later: &[SentRequest], is_loss_shown: bool) -> bool {
        let key = &self.keys[key];
        let is_lossy = self.around.is_lossy || !is_loss_shown;
        let may_fail = key.shaky.is_some() && (is_lossy || self.is_written(&key.key, later));
        may_fail || matches!(key.state, KeyState::Unknown | KeyState::Exact(None))
    }

    /// Returns true if the record may be gone, with the process of its server.
    fn is_lost_any_time(&self, key: &KeyModel) -> bool {
        self.around.is_lossy && key.shaky.is_some()
    }

    fn reads_shaky(&self, request: &SentRequest) -> bool {
        match request {
            SentRequest::Get { keys, .. } => keys.iter().any(|&key| self.keys[key].shaky.is_some()),
            SentRequest::MetaGet { key, .. } => self.keys[*key].shaky.is_some(),
            _ => false,
        }
    }

    fn is_written(&self, name: &str, later: &[SentRequest]) -> bool {
        later.iter().any(|request| match request {
            SentRequest::Store { key, .. }
            | SentRequest::Delete { key, .. }
            | SentRequest::Count { key, .. } => self.keys[*key].key == name,
            _ => false,
        })
    }

    fn check(&mut self, request: &SentRequest, later: &[SentRequest]) -> Result<(), String> {
        match request {
            SentRequest::Fixed(expected) => match self.line()? {
                line if line == *expected => Ok(()),
                line => Err(format!("{line:?} where {expected:?} is expected")),
            },
            SentRequest::Get { keys, with_cas } => self.check_get(keys, *with_cas, later),
            SentRequest::MetaGet { key, form, opaque } => {
                let Some(reply) = self.line_reply(*form)? else {
                    return self.check_miss(*key, later);
                };
                self.check_meta_get(*key, *opaque, reply, later)
            }
            SentRequest::Store { key, mode, compare, value, flags, form } => {
                let (reply, outcome) = self.stored(*key, mode, *compare, value, *flags);
                self.check_write(*key, *form, reply, outcome)
            }
            SentRequest::Delete { key, form } => {
                let was_there = match &self.keys[*key].state {
                    KeyState::Unknown => None,
                    KeyState::Exact(record) => Some(record.is_some()),
                };
                let is_steady = self.keys[*key].shaky.is_none();
                let is_later = !is_steady && self.is_written(&self.keys[*key].key, later);
                // A delete that was sent again finds nothing, or the effect of a later write.
                let reply: &[&str] = match was_there {
                    Some(true) if is_steady => &["DELETED"],
                    Some(false) if !is_later => &["NOT_FOUND"],
                    _ => &["DELETED", "NOT_FOUND"],
                };
                self.check_write(*key, *form, reply, Some(None))
            }
            SentRequest::Touch { key } => {
                let line = self.line()?;
                if self.is_loss(&line, &[*key], false) {
                    return Ok(());
                }
                let expected: &[&str] = match &self.keys[*key].state {
                    _ if self.keys[*key].shaky.is_some() && self.is_written(&self.keys[*key].key, later) => {
                        &["TOUCHED", "NOT_FOUND"]
                    }
                    KeyState::Exact(Some(_)) if self.is_lost_any_time(&self.keys[*key]) => {
                        &["TOUCHED", "NOT_FOUND"]
                    }
                    KeyState::Unknown => &["TOUCHED", "NOT_FOUND"],
                    KeyState::Exact(Some(_)) => &["TOUCHED"],
                    KeyState::Exact(None) => &["NOT_FOUND"],
                };
                if expected.contains(&&*line) { Ok(()) } else { Err(format!("{line:?}, not {expected:?}")) }
            }
            SentRequest::Count { key, is_up, delta, form } => self.check_count(*key, *is_up, *delta, *form),
        }
    }

    fn check_miss(&mut self, key: usize, later: &[SentRequest]) -> Result<(), String> {
        let is_loss_shown = self.around.when_down == WhenDown::Error;
        let may_miss = self.may_miss(key, later, is_loss_shown);
        let key = &self.keys[key];
        if may_miss {
            self.losses += u32::from(matches!(key.state, KeyState::Exact(Some(_))));
            return Ok(());
        }
        Err(format!("{}: a miss where {:?} is expected", key.key, key.state))
    }

    fn check_get(&mut self, keys: &[usize], with_cas: bool, later: &[SentRequest]) -> Result<(), String> {
        let mut rest = keys.iter();
        let mut missed = Vec::new();
        loop {
            let line = self.line()?;
            if line != "END" && !line.starts_with("VALUE ") {
                if !self.is_loss(&line, keys, true) {
                    return Err(format!("{line:?} is no reply to the request"));
                }
                missed.extend(rest);
                // Only the first of several errors is shown.
                return missed.into_iter().try_for_each(|&key| match self.may_miss(key, later, false) {
                    true => Ok(()),
                    false => self.check_miss(key, later),
                });
            }
            if line == "END" {
                missed.extend(rest);
                return missed.into_iter().try_for_each(|&key| self.check_miss(key, later));
            }
            let words: Vec<String> = line.split(' ').map(String::from).collect();
            if words.len() != 4 + usize::from(with_cas) {
                return Err(format!("{line:?} has {} words", words.len()));
            }
            let value = self.block(&words[3])?;
            let key = loop {
                match rest.next() {
                    Some(&key) if self.keys[key].key == words[1] => break key,
                    Some(key) => missed.push(key),
                    None => return Err(format!("{line:?} is not asked for, or not in order")),
                }
            };
            let flags = words[2].parse().map_err(|_| format!("{line:?}: has no flags"))?;
            self.check_value(key, &value, flags, later)?;
            if let Some(cas) = words.get(4) {
                self.note_cas(key, &value, flags, cas);
            }
        }
    }

    /// Notes the version of a record that a reply has shown, if it is the one that is expected.
    fn note_cas(&mut self, key: usize, value: &str, flags: u32, cas: &str) {
        let key = &mut self.keys[key];
        if key.state == KeyState::Exact(Some((value.to_string(), flags))) {
            key.cas = cas.parse().ok();
        }
    }

    fn check_meta_get(
        &mut self,
        key: usize,
        opaque: u32,
        reply: LineReply,
        later: &[SentRequest],
    ) -> Result<(), String> {
        let LineReply { line, value } = reply;
        if self.is_loss(&line, &[key], true) {
            return Ok(());
        }
        // The servers of some versions add the flags of the request to a miss.
        if line == "EN" || line == format!("EN k{} O{opaque}", self.keys[key].key) {
            return self.check_miss(key, later);
        }
        let words: Vec<&str> = line.split(' ').collect();
        let ["VA", _, flags, name, cas, mark] = words[..] else {
            return Err(format!("{line:?} is no reply to the request"));
        };
        let is_own = name.strip_prefix('k') == Some(&*self.keys[key].key) && mark == format!("O{opaque}");
        let flags = flags.strip_prefix('f').and_then(|flags| flags.parse().ok());
        let (Some(value), Some(flags), true) = (value, flags, is_own) else {
            return Err(format!("{line:?} is the reply to another request"));
        };
        self.check_value(key, &value, flags, later)?;
        self.note_cas(key, &value, flags, cas.trim_start_matches('c'));
        Ok(())
    }

    /// Returns the replies that a store may have, and the record after its success if it is known.
    fn stored(
        &self,
        key: usize,
        mode: &str,
        compare: Option<u64>,
        value: &str,
        flags: u32,
    ) -> (&'static [&'static str], Option<KnownRecord>) {
        let key = &self.keys[key];
        let stored: &[&str] = &["STORED"];
        let all: &[&str] = &["STORED", "NOT_STORED", "EXISTS", "NOT_FOUND"];
        let KeyState::Exact(old) = &key.state else { return (all, None) };
        if self.is_lost_any_time(key) && mode != "set" {
            return (all, None);
        }
        match (mode, old) {
            ("set", _) | ("add", None) | ("replace", Some(_)) => {
                (stored, Some(Some((value.to_string(), flags))))
            }
            ("append", Some((old, flags))) => (stored, Some(Some(([old.as_str(), value].concat(), *flags)))),
            ("prepend", Some((old, flags))) => (stored, Some(Some(([value, old.as_str()].concat(), *flags)))),
            ("cas", None) => (&["NOT_FOUND"], Some(None)),
            ("cas", Some(_)) => match key.cas {
                None => (&["STORED", "EXISTS"], None),
                cas if cas == compare => (stored, Some(Some((value.to_string(), flags)))),
                _ => (&["EXISTS"], Some(old.clone())),
            },
            _ => (&["NOT_STORED"], Some(old.clone())),
        }
    }

    /// Checks the reply to a write. `expected` are the words of the text dialect, and `outcome` is
    /// the record after the write.
    fn check_write(
        &mut self,
        key: usize,
        form: RequestForm,
        expected: &[&str],
        outcome: Option<KnownRecord>,
    ) -> Result<(), String> {
        let is_steady = self.keys[key].shaky.is_none();
        let reply = self.line_reply(form)?;
        let in_meta = |word: &str| match word {
            "STORED" | "DELETED" => "HD",
            "NOT_STORED" => "NS",
            "EXISTS" => "EX",
            _ => "NF",
        };
        let is_known = match reply {
            // Nothing shows the failure of such a request.
            None if form == RequestForm::NoReply => is_steady,
            None => {
                // A quiet delete also hides that there was no record.
                let is_delete = expected.iter().any(|word| matches!(*word, "DELETED" | "NOT_FOUND"));
                if !is_delete && !expected.contains(&"STORED") {
                    return Err(format!("no reply where one of {expected:?} is expected"));
                }
                true
            }
            Some(reply) if self.is_loss(&reply.line, &[key], false) => false,
            Some(LineReply { line, .. }) => {
                let is_meta = matches!(form, RequestForm::Meta | RequestForm::Quiet);
                let is_expected =
                    expected.iter().any(|word| line == if is_meta { in_meta(word) } else { word });
                if !is_expected {
                    return Err(format!("{line:?} where one of {expected:?} is expected"));
                }
                true
            }
        };
        match outcome {
            Some(record) if is_known => self.keys[key].note(record),
            _ => self.keys[key].forget(),
        }
        Ok(())
    }

    fn check_count(&mut self, key: usize, is_up: bool, delta: u64, form: RequestForm) -> Result<(), String> {
        let reply = self.line_reply(form)?;
        let is_steady = self.keys[key].shaky.is_none();
        let old = match &self.keys[key].state {
            KeyState::Unknown => None,
            KeyState::Exact(record) => Some(record.clone()),
        };
        let number = |value: &str| value.trim_end().parse::<u64>().ok();
        let expected = old.map(|old| {
            old.map(|(value, flags)| {
                let number = number(&value).unwrap_or(0);
                let number = if is_up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
                let mut text = number.to_string();
                if !is_up && text.len() < value.len() {
                    text.extend(vec![' '; value.len() - text.len()]);
                }
                (text, flags)
            })
        });
        let shown = match &reply {
            None => None,
            Some(reply) if self.is_loss(&reply.line, &[key], false) => {
                self.keys[key].forget();
                return Ok(());
            }
            Some(LineReply { line, .. }) if line == "NOT_FOUND" || line == "NF" => Some(None),
            Some(LineReply { value: Some(value), line }) if line.starts_with("VA ") => Some(number(value)),
            Some(LineReply { line, .. }) => {
                Some(Some(number(line).ok_or(format!("{line:?} is no reply to a count"))?))
            }
        };
        if self.is_lost_any_time(&self.keys[key]) {
            self.keys[key].forget();
            return Ok(());
        }
        let Some(expected) = expected else { return Ok(()) };
        let is_right = match (form, shown) {
            (RequestForm::NoReply, _) => true,
            (_, None) => true,
            (_, Some(shown)) => shown == expected.as_ref().and_then(|(value, _)| number(value)),
        };
        if !is_right {
            return Err(format!("{:?} where {expected:?} is expected", reply.map(|reply| reply.line)));
        }
        if form == RequestForm::NoReply && !is_steady {
            self.keys[key].forget();
        } else {
            self.keys[key].note(expected);
        }
        Ok(())
    }

    /// Ends the connection after the replies to all requests.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        let mut rest = Vec::new();
        let ended = connection.get_ref().shutdown(Shutdown::Write);
        ended.and_then(|()| connection.read_to_end(&mut rest)).map_err(|error| format!("no end: {error}"))?;
        if rest.is_empty() {
            Ok(())
        } else {
            Err(format!("more replies than requests: {}", rest.escape_ascii()))
        }
    }
}
