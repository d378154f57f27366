//! The state of a key, as its only client knows it.

use std::collections::HashSet;

/// The value and the flags of a record.
pub(crate) type KnownRecord = Option<(String, u32)>;

/// The state of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KeyState {
    /// This record, or none.
    Exact(KnownRecord),
    /// Some write may have happened, now or at any later time.
    Unknown,
}

/// A key and what its client knows about it.
pub(crate) struct KeyModel {
    pub(crate) key: String,
    /// The number of the server that may fail, or `None` for a server that never fails.
    pub(crate) shaky: Option<usize>,
    pub(crate) is_counter: bool,
    pub(crate) state: KeyState,
    /// The version of the record, if a reply has shown it.
    pub(crate) cas: Option<u64>,
    /// The number of the next piece.
    next_piece: u32,
}

impl KeyModel {
    pub(crate) fn new(key: String, shaky: Option<usize>, is_counter: bool) -> KeyModel {
        KeyModel { key, shaky, is_counter, state: KeyState::Exact(None), cas: None, next_piece: 0 }
    }

    /// Returns a new value for the key, and its number, which also serves as flags.
    pub(crate) fn piece(&mut self, len: usize) -> (String, u32) {
        let number = self.next_piece;
        self.next_piece += 1;
        let value = match self.is_counter {
            true => (number * 1000).to_string(),
            false => format!("[{}#{number}#{len}#{}]", self.key, "x".repeat(len)),
        };
        (value, number)
    }

    /// Notes that the reply to a write has shown neither success nor failure.
    pub(crate) fn forget(&mut self) {
        self.state = KeyState::Unknown;
        self.cas = None;
    }

    /// Notes the record after a write.
    pub(crate) fn note(&mut self, record: KnownRecord) {
        self.cas = None;
        if self.state != KeyState::Unknown {
            self.state = KeyState::Exact(record);
        }
    }

    /// Returns true if some order of the writes to this key yields this record.
    pub(crate) fn is_plausible(&self, value: &str, flags: u32) -> bool {
        if flags >= self.next_piece.max(1) {
            return false;
        }
        if self.is_counter {
            return value.trim_end().bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty();
        }
        let mut seen = HashSet::new();
        let mut rest = value;
        while !rest.is_empty() {
            let piece = rest.strip_prefix('[').and_then(|rest| rest.strip_prefix(self.key.as_str()));
            let Some((number, tail)) = piece.and_then(|rest| rest.strip_prefix('#')?.split_once('#')) else {
                return false;
            };
            let Some((len, tail)) = tail.split_once('#') else { return false };
            let (Ok(number), Ok(len)) = (number.parse::<u32>(), len.parse::<usize>()) else { return false };
            let is_filled = tail.get(..len).is_some_and(|fill| fill.bytes().all(|byte| byte == b'x'));
            if number >= self.next_piece
                || !seen.insert(number)
                || !is_filled
                || !tail[len..].starts_with(']')
            {
                return false;
            }
            rest = &tail[len + 1..];
        }
        !value.is_empty()
    }
}
