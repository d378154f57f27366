//! Reads and writes files of Kyoto Tycoon's update log.
//!
//! ```text
//! file   = A0 size:u64 newest:u64  record*        the head has 17 bytes
//! record = A1 timestamp:u64 len:u32 message A2
//! ```
//!
//! `size` is the length of the complete file. Bytes after `size` belong to an incomplete write and
//! are ignored. A file that is shorter than `size` is damaged.

use super::message::{LEN_MAX, UpdateMessage};
use crate::ReplySink;

const HEAD: u8 = 0xA0;
const RECORD: u8 = 0xA1;
const RECORD_END: u8 = 0xA2;

/// The length of a file's head, in bytes.
pub const HEAD_LEN: usize = 17;

/// The length of the head before a record's message, in bytes.
const RECORD_HEAD_LEN: usize = 13;

/// The number of bytes by which a record is longer than its message.
pub const RECORD_OVERHEAD: usize = RECORD_HEAD_LEN + 1;

/// The head of a file. A writer must write it again after adding records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFileHead {
    /// The length of the file including this head, in bytes.
    pub size: u64,
    /// The timestamp of the newest record.
    pub newest: u64,
}

impl LogFileHead {
    /// Returns the bytes of the head.
    pub fn to_bytes(self) -> [u8; HEAD_LEN] {
        let mut bytes = [HEAD; HEAD_LEN];
        bytes[1..9].copy_from_slice(&self.size.to_be_bytes());
        bytes[9..].copy_from_slice(&self.newest.to_be_bytes());
        bytes
    }

    /// Parses a head; returns `None` if it is invalid.
    pub fn parse(bytes: &[u8; HEAD_LEN]) -> Option<LogFileHead> {
        let (size, newest) = (number(&bytes[1..9]), number(&bytes[9..]));
        (bytes[0] == HEAD && size >= HEAD_LEN as u64).then_some(LogFileHead { size, newest })
    }
}

/// Returns the name of the file with this number; numbers start at 1.
pub fn file_name(number: u64) -> String {
    format!("{number:010}.ulog")
}

/// Returns the number in a file name.
pub fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".ulog")?;
    let is_number = digits.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// Writes a record.
pub fn put_record(timestamp: u64, message: &UpdateMessage<'_>, out: &mut impl ReplySink) {
    out.put(&[RECORD]);
    out.put(&timestamp.to_be_bytes());
    out.put(&(message.len() as u32).to_be_bytes());
    message.put(out);
    out.put(&[RECORD_END]);
}

/// The reader of one file: a few words of state, no buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogFileReader {
    head: Option<LogFileHead>,
    /// The offset of the unread bytes in the file.
    at: u64,
}

/// The result of decoding the unread bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFileStep<'a> {
    /// The head.
    Head {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The head.
        head: LogFileHead,
    },
    /// A record.
    Record {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The timestamp of the record.
        timestamp: u64,
        /// The update.
        message: UpdateMessage<'a>,
    },
    /// More bytes are needed. If there are no more bytes, the file is damaged.
    NeedMore {
        /// The number of bytes that are missing at least; never 0.
        at_least: usize,
    },
    /// The end of the records. Later bytes are ignored.
    End,
    /// The file is damaged at this offset.
    Damaged {
        /// The offset in the file.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
}

impl LogFileReader {
    /// Decodes the next step from `input`, which must contain all unread bytes.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> LogFileStep<'a> {
        let Some(head) = self.head else { return self.decode_head(input) };
        let left = head.size - self.at;
        if left == 0 {
            return LogFileStep::End;
        }
        let damaged = |what| LogFileStep::Damaged { offset: self.at, what };
        // The checks are in this order so that damage is reported by the same error, however few
        // bytes of the record have arrived.
        match input.first() {
            None => return LogFileStep::NeedMore { at_least: 1 },
            Some(&RECORD) if left < RECORD_OVERHEAD as u64 => {
                return damaged("a record reaches beyond the end that the head gives");
            }
            Some(&RECORD) => {}
            Some(_) => return damaged("no record begins here"),
        }
        let Some((record, rest)) = input.split_first_chunk::<RECORD_HEAD_LEN>() else {
            return LogFileStep::NeedMore { at_least: RECORD_HEAD_LEN - input.len() };
        };
        let timestamp = number(&record[1..9]);
        let len = number(&record[9..]) as usize;
        let total = (RECORD_OVERHEAD + len) as u64;
        if len > LEN_MAX {
            return damaged("a record is too long");
        }
        if total > left {
            return damaged("a record reaches beyond the end that the head gives");
        }
        let Some(message) = rest.get(..len + 1) else {
            return LogFileStep::NeedMore { at_least: len + 1 - rest.len() };
        };
        if message[len] != RECORD_END {
            return damaged("a record does not end after the length that it gives");
        }
        let Some(message) = UpdateMessage::parse(&message[..len]) else {
            return damaged("a message is cut off");
        };
        self.at += total;
        LogFileStep::Record { consumed: total as usize, timestamp, message }
    }

    /// Returns the offset of the unread bytes in the file.
    pub fn offset(&self) -> u64 {
        self.at
    }

    fn decode_head<'a>(&mut self, input: &'a [u8]) -> LogFileStep<'a> {
        let Some(head) = input.first_chunk::<HEAD_LEN>() else {
            return LogFileStep::NeedMore { at_least: HEAD_LEN - input.len() };
        };
        let Some(head) = LogFileHead::parse(head) else {
            return LogFileStep::Damaged { offset: 0, what: "not an update log of Kyoto Tycoon" };
        };
        (self.head, self.at) = (Some(head), HEAD_LEN as u64);
        LogFileStep::Head { consumed: HEAD_LEN, head }
    }
}

/// Returns a number of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
