//! Kyoto Cabinet's dump of a database.
//!
//! ```text
//! 4B 43 53 53 0A 00   { 00 key_len:varnum value_len:varnum key value }*   FF
//! ```

use super::framed::{self, FramedRecord};
use super::message::StoredValue;
use crate::ReplySink;

const MAGIC: [u8; 6] = *b"KCSS\n\0";
const RECORD: u8 = 0x00;
const END: u8 = 0xFF;

/// Writes what a dump begins with.
pub fn put_head(out: &mut impl ReplySink) {
    out.put(&MAGIC);
}

/// Writes a record. What Kyoto Tycoon stored has its time before the value; what was stored without it, has none.
pub fn put_record(key: &[u8], stored: &StoredValue<'_>, out: &mut impl ReplySink) {
    framed::put(RECORD, key, stored, out);
}

/// Writes what a dump ends with.
pub fn put_end(out: &mut impl ReplySink) {
    out.put(&[END]);
}

/// The reader of a dump: a few words of state, no buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpReader {
    /// Where in the file the unread bytes begin.
    at: u64,
}

/// The outcome of looking at the unread bytes of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpStep<'a> {
    /// What it begins with is there; the first `consumed` bytes of the input are done with.
    Begun {
        /// Bytes done with.
        consumed: usize,
    },
    /// A record; the first `consumed` bytes of the input are done with.
    Record {
        /// Bytes done with.
        consumed: usize,
        /// The key.
        key: &'a [u8],
        /// The value, behind its time if Kyoto Tycoon stored it and the database is not persistent.
        stored: StoredValue<'a>,
    },
    /// At least so many more bytes are needed; if there are none, the dump is cut.
    NeedMore {
        /// At least 1.
        at_least: usize,
    },
    /// That was all.
    End,
    /// It is damaged here.
    Damaged {
        /// Where, counted from the beginning of the file.
        offset: u64,
        /// How.
        what: &'static str,
    },
}

impl DumpReader {
    /// The next step from `input`, the unread bytes.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> DumpStep<'a> {
        if self.at == 0 {
            let Some(magic) = input.first_chunk::<6>() else {
                return DumpStep::NeedMore { at_least: MAGIC.len() - input.len() };
            };
            if *magic != MAGIC {
                return DumpStep::Damaged { offset: 0, what: "this is no dump of Kyoto Cabinet's" };
            }
            self.at = MAGIC.len() as u64;
            return DumpStep::Begun { consumed: MAGIC.len() };
        }
        match input.first() {
            None => return DumpStep::NeedMore { at_least: 1 },
            Some(&END) => return DumpStep::End,
            Some(_) => {}
        }
        match framed::read(RECORD, input) {
            FramedRecord::Whole { len, key, value } => {
                self.at += len as u64;
                DumpStep::Record { consumed: len, key, stored: StoredValue::raw(value) }
            }
            FramedRecord::Partial { at_least } => DumpStep::NeedMore { at_least },
            FramedRecord::Damaged(what) => DumpStep::Damaged { offset: self.at, what },
        }
    }

    /// Where in the file the unread bytes begin.
    pub fn offset(&self) -> u64 {
        self.at
    }
}
