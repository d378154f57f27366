//! Reads and writes Kyoto Cabinet's dump of a database (`.kcss`).
//!
//! ```text
//! dump = 4B 43 53 53 0A 00   { 00 key_len:varnum value_len:varnum key value }*   FF
//! ```

use super::framed::{self, FramedRecord};
use super::message::StoredValue;
use crate::ReplySink;

const MAGIC: [u8; 6] = *b"KCSS\n\0";
const RECORD: u8 = 0x00;
const END: u8 = 0xFF;

/// Writes the beginning of a dump.
pub fn put_head(out: &mut impl ReplySink) {
    out.put(&MAGIC);
}

/// Writes a record. In a dump of Kyoto Tycoon's records, the expiry precedes the value; a record
/// without expiry has only the value.
pub fn put_record(key: &[u8], stored: &StoredValue<'_>, out: &mut impl ReplySink) {
    framed::put(RECORD, key, stored, out);
}

/// Writes the end of a dump.
pub fn put_end(out: &mut impl ReplySink) {
    out.put(&[END]);
}

/// The reader of a dump: a few words of state, no buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpReader {
    /// The offset of the unread bytes in the file.
    at: u64,
}

/// The result of decoding the unread bytes of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpStep<'a> {
    /// The beginning of the dump.
    Begun {
        /// The consumed bytes of the input.
        consumed: usize,
    },
    /// A record.
    Record {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The key.
        key: &'a [u8],
        /// The value. The expiry precedes it if Kyoto Tycoon stored the record in a database that
        /// is not persistent.
        stored: StoredValue<'a>,
    },
    /// More bytes are needed. If there are no more bytes, the dump is truncated.
    NeedMore {
        /// The number of bytes that are missing at least; never 0.
        at_least: usize,
    },
    /// The end of the dump.
    End,
    /// The dump is damaged at this offset.
    Damaged {
        /// The offset in the file.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
}

impl DumpReader {
    /// Decodes the next step from `input`, which must contain all unread bytes.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> DumpStep<'a> {
        if self.at == 0 {
            let Some(magic) = input.first_chunk::<6>() else {
                return DumpStep::NeedMore { at_least: MAGIC.len() - input.len() };
            };
            if *magic != MAGIC {
                return DumpStep::Damaged { offset: 0, what: "not a dump of Kyoto Cabinet" };
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

    /// Returns the offset of the unread bytes in the file.
    pub fn offset(&self) -> u64 {
        self.at
    }
}
