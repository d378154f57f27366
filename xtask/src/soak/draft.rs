//! Requests in the making: which keys, which values, and the bytes with what must come back.

use super::model::{Item, Step, Ttl, Versions};
use super::node::{Fullness, Moment};
use std::collections::VecDeque;
use std::sync::Arc;

const HISTORY_LEN: usize = 6;
const HISTORY_REQUEST_LEN: usize = 340;

/// Requests that are sent together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) steps: Vec<Step>,
    pub(super) requests: u64,
    /// At least as long as the replies to requests that have long ones.
    pub(super) replies_len: usize,
}

/// The state of a key as its worker knows it.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) item: Option<Item>,
    /// It may be gone in truth.
    pub(super) is_unsure: bool,
    /// The beginnings of the last requests that meant it, and when they came; for reports.
    pub(super) history: VecDeque<(u64, Vec<u8>)>,
}

impl Slot {
    /// Notes a request.
    pub(super) fn remember(&mut self, now: u64, request: &[u8]) {
        if self.history.len() == HISTORY_LEN {
            self.history.pop_front();
        }
        self.history.push_back((now, request[..request.len().min(HISTORY_REQUEST_LEN)].to_vec()));
    }

    /// It holds nothing.
    pub(super) fn clear(&mut self) {
        (self.item, self.is_unsure) = (None, false);
    }
}

/// The keys of a worker.
pub(super) struct Keys {
    prefix: String,
    pub(super) slots: Vec<Slot>,
}

impl Keys {
    pub(super) fn new(prefix: String, count: usize) -> Keys {
        Keys { prefix, slots: std::iter::repeat_with(Slot::default).take(count).collect() }
    }

    /// The common prefix of their names.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Keys of all kinds: short, of decimal digits, long, with bytes that are no text.
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

    /// Which key has this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        let rest = name.strip_prefix(self.prefix.as_bytes())?;
        let rest = rest.strip_prefix(b"user:").unwrap_or(rest);
        let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let key = std::str::from_utf8(&rest[..len]).ok()?.parse().ok()?;
        (key < self.slots.len() && self.name(key) == name).then_some(key)
    }
}

/// The inputs of a request.
pub(super) struct Draft<'a> {
    pub(super) random: &'a mut fastrand::Rng,
    pub(super) keys: &'a Keys,
    pub(super) versions: &'a Versions,
    pub(super) moment: Moment,
    /// Makes values and opaques unique.
    pub(super) serial: &'a mut u64,
    pub(super) fullness: Fullness,
    pub(super) item_max: usize,
    /// Records are large in the mean.
    pub(super) is_bulky: bool,
    /// All must fit into a datagram.
    pub(super) is_small: bool,
    /// A negative time over text is a sliding one.
    pub(super) slides: bool,
}

impl Draft<'_> {
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.random.u32(..100) < percent
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.usize(..all.len())]
    }

    pub(super) fn is_exact(&self) -> bool {
        self.fullness == Fullness::Never
    }

    pub(super) fn serial(&mut self) -> u64 {
        *self.serial += 1;
        *self.serial
    }

    /// Some are asked for far more often than others.
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

    /// Keys that may slide; they are kept from what treats sliding records in ways of its own.
    pub(super) fn may_slide(key: usize) -> bool {
        key % 8 == 7
    }

    pub(super) fn is_number(key: usize) -> bool {
        key.is_multiple_of(4)
    }

    /// The exclusive maximum length of its values.
    fn len_max(&self, key: usize) -> usize {
        match key {
            _ if Draft::is_number(key) => 30,
            1 => self.item_max - 400,
            _ if key % 100 == 7 => (1 << 20) - 400,
            _ if self.is_bulky && key % 3 == 1 => 200 << 10,
            _ if key % 20 == 3 => 20 << 10,
            _ if key % 5 == 2 => 2000,
            _ => 200,
        }
    }

    /// A value that says whose it is, and which.
    pub(super) fn value(&mut self, key: usize) -> Arc<Vec<u8>> {
        if Draft::is_number(key) {
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
        // The longest are rare, or nothing else would get its turn.
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

    /// A little to append.
    pub(super) fn piece(&mut self, key: usize) -> Arc<Vec<u8>> {
        let held = self.keys.slots[key].item.as_ref().map_or(0, |item| item.value.len());
        // A value that only grows would exceed every limit.
        if held > self.len_max(key) {
            return Arc::default();
        }
        if Draft::is_number(key) {
            return Arc::new(self.random.u32(..10).to_string().into_bytes());
        }
        Arc::new(format!("<{}>", self.serial()).into_bytes())
    }

    /// A time to live that is no sliding one.
    pub(super) fn plain_ttl(&mut self) -> Ttl {
        Ttl::Plain(match self.random.u32(..20) {
            0..=11 => 0,
            12..=14 => self.random.i64(1..60),
            15..=17 => self.random.i64(60..900),
            18 => self.moment.now as i64 + self.random.i64(1..500),
            _ => 2_592_000,
        })
    }

    /// A time to live over text.
    pub(super) fn text_ttl(&mut self, key: usize) -> (i64, Ttl) {
        if self.chance(2) && !self.slides {
            return (-1, Ttl::Plain(-1));
        }
        if self.slides && Draft::may_slide(key) && self.chance(50) {
            let seconds = self.random.u64(5..300);
            return (-(seconds as i64), Ttl::Sliding(seconds));
        }
        let ttl = self.plain_ttl();
        match ttl {
            Ttl::Plain(seconds) => (seconds, ttl),
            Ttl::Sliding(_) => (0, Ttl::Plain(0)),
        }
    }

    /// A version to compare with: the one that is there, or another.
    pub(super) fn version(&mut self, key: usize) -> u64 {
        let item = self.keys.slots[key].item.as_ref();
        let known = item.and_then(|item| item.version).and_then(|token| self.versions.value(token));
        match known {
            Some(version) if self.chance(75) => version,
            // Zero is no version: over the binary protocol it would not be compared.
            Some(version) if version > 1 && self.chance(30) => version - 1,
            _ => (1 << 50) + self.random.u64(..1000),
        }
    }

    /// How many bytes are believed to come back for a key.
    pub(super) fn reply_len(&self, key: usize) -> usize {
        self.keys.slots[key].item.as_ref().map_or(0, |item| item.value.len()) + 300
    }
}
