//! Drafts of requests: chooses keys and values, and collects the bytes of a batch with its expected
//! replies.

use super::model::{ModelItem, ModelStep, RequestTtl, VersionTable};
use super::server::{ClockState, FullMemoryPolicy};
use std::collections::VecDeque;
use std::sync::Arc;

const HISTORY_LEN: usize = 6;
const HISTORY_REQUEST_LEN: usize = 340;

/// Requests that are sent together, and their expected replies.
#[derive(Default)]
pub(super) struct RequestBatch {
    pub(super) bytes: Vec<u8>,
    pub(super) steps: Vec<ModelStep>,
    pub(super) requests: u64,
    /// An upper bound for the length of the long replies.
    pub(super) replies_len: usize,
}

/// The state of a key in its worker's model.
#[derive(Default)]
pub(super) struct KeyState {
    pub(super) item: Option<ModelItem>,
    /// The server may not hold the record any more.
    pub(super) is_unsure: bool,
    /// The time and the first bytes of the last requests for this key, for error reports.
    pub(super) history: VecDeque<(u64, Vec<u8>)>,
}

impl KeyState {
    /// Appends a request to the history.
    pub(super) fn remember(&mut self, now: u64, request: &[u8]) {
        if self.history.len() == HISTORY_LEN {
            self.history.pop_front();
        }
        self.history.push_back((now, request[..request.len().min(HISTORY_REQUEST_LEN)].to_vec()));
    }

    /// Records that the key has no record.
    pub(super) fn clear(&mut self) {
        (self.item, self.is_unsure) = (None, false);
    }
}

/// The keys of a worker.
pub(super) struct WorkerKeys {
    prefix: String,
    pub(super) slots: Vec<KeyState>,
}

impl WorkerKeys {
    pub(super) fn new(prefix: String, count: usize) -> WorkerKeys {
        WorkerKeys { prefix, slots: std::iter::repeat_with(KeyState::default).take(count).collect() }
    }

    /// Returns the common prefix of the names.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the name of a key. Names are of all kinds: short, with decimal digits, of maximum
    /// length, or with bytes that are not text.
    pub(super) fn name(&self, key: usize) -> Vec<u8> {
        let prefix = &self.prefix;
        match key % 9 {
            0 => format!("{prefix}{key:08}").into_bytes(),
            1 => format!("{prefix}{key}:{:x<1$}", "", 250 - prefix.len() - 1 - key.to_string().len())
                .into_bytes(),
            2 => [format!("{prefix}{key}:").as_bytes(), b"\x01\x7f\xc3\xa4\xff%\x80"].concat(),
            3..=5 => format!("{prefix}user:{key}:profile").into_bytes(),
            _ => format!("{prefix}{key}").into_bytes(),
        }
    }

    /// Returns the key with this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        let rest = name.strip_prefix(self.prefix.as_bytes())?;
        let rest = rest.strip_prefix(b"user:").unwrap_or(rest);
        let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let key = std::str::from_utf8(&rest[..len]).ok()?.parse().ok()?;
        (key < self.slots.len() && self.name(key) == name).then_some(key)
    }
}

/// The inputs from which a request is drafted.
pub(super) struct RequestDraft<'a> {
    pub(super) random: &'a mut fastrand::Rng,
    pub(super) keys: &'a WorkerKeys,
    pub(super) versions: &'a VersionTable,
    pub(super) clock: ClockState,
    /// Makes values and opaques unique.
    pub(super) serial: &'a mut u64,
    pub(super) fullness: FullMemoryPolicy,
    pub(super) item_max: usize,
    /// Values are large on average.
    pub(super) is_bulky: bool,
    /// Request and reply must fit into a datagram.
    pub(super) is_small: bool,
    /// In text commands, a negative time is a sliding expiry.
    pub(super) allows_sliding: bool,
}

impl RequestDraft<'_> {
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.random.u32(..100) < percent
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.usize(..all.len())]
    }

    pub(super) fn is_never_full(&self) -> bool {
        self.fullness == FullMemoryPolicy::Never
    }

    pub(super) fn serial(&mut self) -> u64 {
        *self.serial += 1;
        *self.serial
    }

    /// Chooses a key. Some keys are chosen far more often than others.
    pub(super) fn key(&mut self) -> usize {
        let count = self.keys.slots.len();
        loop {
            let key = if self.chance(30) { self.random.usize(..40) } else { self.random.usize(..count) };
            let is_long = self.len_max(key) > 300
                || self.keys.slots[key].item.as_ref().is_some_and(|item| item.value.len() > 300);
            if !(self.is_small && is_long) {
                return key;
            }
        }
    }

    /// Returns true if the key may get a sliding expiry. Such keys get no requests that treat
    /// sliding records differently.
    pub(super) fn is_sliding_key(key: usize) -> bool {
        key % 8 == 7
    }

    pub(super) fn is_number_key(key: usize) -> bool {
        key.is_multiple_of(4)
    }

    /// Returns the exclusive maximum length of a key's values.
    fn len_max(&self, key: usize) -> usize {
        match key {
            _ if RequestDraft::is_number_key(key) => 30,
            1 => self.item_max - 400,
            _ if key % 100 == 7 => (1 << 20) - 400,
            _ if self.is_bulky && key % 3 == 1 => 200 << 10,
            _ if key % 20 == 3 => 20 << 10,
            _ if key % 5 == 2 => 2000,
            _ => 200,
        }
    }

    /// Returns a value that contains its key and a serial number.
    pub(super) fn value(&mut self, key: usize) -> Arc<Vec<u8>> {
        if RequestDraft::is_number_key(key) {
            let number = match self.random.u32(..8) {
                0 => "18446744073709551615".into(),
                1 => "0".into(),
                2 => format!("{:06}", self.random.u32(..1000)),
                3 => "12x".into(),
                4 => String::new(),
                _ => self.random.u64(..1 << 40).to_string(),
            };
            return Arc::new(number.into_bytes());
        }
        let max = self.len_max(key);
        // The longest values are rare; otherwise they would take most of the time.
        let max = if max > 2 << 20 && self.chance(90) { 100 << 10 } else { max };
        let len = if self.chance(5) { max } else { self.random.usize(..max) };
        if len == 0 {
            return Arc::default();
        }
        let mut value = self.keys.name(key);
        value.extend_from_slice(format!("#{}|\r\n", self.serial()).as_bytes());
        value.reserve(len.saturating_sub(value.len()) + 8);
        while value.len() < len {
            value.extend_from_slice(&self.random.u64(..).to_le_bytes());
        }
        value.truncate(len);
        Arc::new(value)
    }

    /// Returns a few bytes to append.
    pub(super) fn piece(&mut self, key: usize) -> Arc<Vec<u8>> {
        let expected_records = self.keys.slots[key].item.as_ref().map_or(0, |item| item.value.len());
        // Without this limit, the value would grow until the server refuses it.
        if expected_records > self.len_max(key) {
            return Arc::default();
        }
        if RequestDraft::is_number_key(key) {
            return Arc::new(self.random.u32(..10).to_string().into_bytes());
        }
        Arc::new(format!("<{}>", self.serial()).into_bytes())
    }

    /// Returns a time to live that is not sliding.
    pub(super) fn plain_ttl(&mut self) -> RequestTtl {
        RequestTtl::Plain(match self.random.u32(..20) {
            0..=11 => 0,
            12..=14 => self.random.i64(1..60),
            15..=17 => self.random.i64(60..900),
            18 => self.clock.now as i64 + self.random.i64(1..500),
            _ => 2_592_000,
        })
    }

    /// Returns a time to live for a text command, and its number in the request.
    pub(super) fn text_ttl(&mut self, key: usize) -> (i64, RequestTtl) {
        if self.chance(2) && !self.allows_sliding {
            return (-1, RequestTtl::Plain(-1));
        }
        if self.allows_sliding && RequestDraft::is_sliding_key(key) && self.chance(50) {
            let seconds = self.random.u64(5..300);
            return (-(seconds as i64), RequestTtl::Sliding(seconds));
        }
        let ttl = self.plain_ttl();
        match ttl {
            RequestTtl::Plain(seconds) => (seconds, ttl),
            RequestTtl::Sliding(_) => (0, RequestTtl::Plain(0)),
        }
    }

    /// Returns a version to compare with: usually the record's, sometimes another.
    pub(super) fn version(&mut self, key: usize) -> u64 {
        let item = self.keys.slots[key].item.as_ref();
        let known = item.and_then(|item| item.version).and_then(|token| self.versions.value(token));
        match known {
            Some(version) if self.chance(75) => version,
            // Zero is not a version: the binary protocol does not compare it.
            Some(version) if version > 1 && self.chance(30) => version - 1,
            _ => (1 << 50) + self.random.u64(..1000),
        }
    }

    /// Returns an upper bound for the length of a reply with the key's value.
    pub(super) fn reply_len(&self, key: usize) -> usize {
        self.keys.slots[key].item.as_ref().map_or(0, |item| item.value.len()) + 300
    }
}
