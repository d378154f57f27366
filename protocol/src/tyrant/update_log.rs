//! Reads and writes the records of Tokyo Tyrant's update log, and the commands in them.
//!
//! ```text
//! file   = record*
//! record = C9 | stamp(8) | server id(2) | master id(2) | len(4) | body[len]
//! body   = C8 | command(1) | fields | status(1)       status 0: done, 1: failed
//! ```
//!
//! Numbers are big-endian. The fields are those of the request ([`TyrantRequest`]), but `misc` has
//! no options. Records have no checksum. A file ends at the first byte that does not begin a
//! record, or within a record.

use super::binary::{TyrantDecoder, TyrantLimits, TyrantStep};
use super::command::TyrantCommand;
use super::fields::{FieldBuffer, FieldList, FieldReader};
use super::request::{TyrantPutMode, TyrantRequest};
use super::{COUNT_MAX, FIRST_BYTE, LEN_MAX, NAME_LEN_MAX, reply};
use crate::ReplySink;

/// The first byte of each record.
pub const RECORD: u8 = 0xc9;

/// The length of a record without its body, in bytes.
pub const HEAD_LEN: usize = 17;

/// The longest body, in bytes: a command with the longest key and the longest value.
pub const BODY_LEN_MAX: usize = 2 * LEN_MAX + 64;

/// Returns the name of the file with this number; numbers start at 1.
pub fn file_name(number: u32) -> String {
    format!("{number:08}.ulog")
}

/// Returns the number in a file name.
pub fn file_number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".ulog")?;
    let is_number = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// A record of a log. Its body may be damaged ([`LoggedCommand::parse`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// The time stamp: microseconds since 1970.
    pub stamp_micros: u64,
    /// The server to which a client sent the command.
    pub server_id: u16,
    /// The server from which this server received the command, or 0 if a client sent it.
    pub master_id: u16,
    /// The command and its outcome.
    pub body: &'a [u8],
}

impl LogRecord<'_> {
    /// Writes the record. Its body has at most [`BODY_LEN_MAX`] bytes.
    pub fn put(&self, out: &mut impl ReplySink) {
        out.put(&[RECORD]);
        out.put(&self.stamp_micros.to_be_bytes());
        out.put(&self.server_id.to_be_bytes());
        out.put(&self.master_id.to_be_bytes());
        out.put(&(self.body.len() as u32).to_be_bytes());
        out.put(self.body);
    }
}

/// The result of decoding the unread bytes of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStep<'a> {
    /// A record.
    Record {
        /// The length of the record.
        consumed: usize,
        /// The record.
        record: LogRecord<'a>,
    },
    /// The record is incomplete. If there are no more bytes, the file ends here.
    NeedMore {
        /// The number of missing bytes, at least 1.
        at_least: usize,
    },
    /// No record begins here, or the record is too long. The records of the file end here.
    Malformed,
}

/// Decodes the record at the beginning of `input`, which must contain all unread bytes of a log.
pub fn decode_record(input: &[u8]) -> RecordStep<'_> {
    match decode_framed(input) {
        FramedLogRecord::Complete { consumed, stamp_micros, ids, body } => {
            let (server_id, master_id) = ((ids >> 16) as u16, ids as u16);
            RecordStep::Record { consumed, record: LogRecord { stamp_micros, server_id, master_id, body } }
        }
        FramedLogRecord::NeedMore { at_least } => RecordStep::NeedMore { at_least },
        FramedLogRecord::Malformed => RecordStep::Malformed,
    }
}

/// A record of a file or of the replication stream. Both have a head of the same length.
pub(super) enum FramedLogRecord<'a> {
    Complete {
        consumed: usize,
        stamp_micros: u64,
        /// The two IDs of a file's record, or the one ID of a message.
        ids: u32,
        body: &'a [u8],
    },
    NeedMore {
        at_least: usize,
    },
    Malformed,
}

pub(super) fn decode_framed(input: &[u8]) -> FramedLogRecord<'_> {
    if input.first().is_some_and(|&first| first != RECORD) {
        return FramedLogRecord::Malformed;
    }
    let Some((head, rest)) = input.split_first_chunk::<HEAD_LEN>() else {
        return FramedLogRecord::NeedMore { at_least: HEAD_LEN - input.len() };
    };
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    let len = number(&head[13..]) as usize;
    if len > BODY_LEN_MAX {
        return FramedLogRecord::Malformed;
    }
    let Some(body) = rest.get(..len) else {
        return FramedLogRecord::NeedMore { at_least: len - rest.len() };
    };
    let stamp_micros = u64::from_be_bytes(head[1..9].try_into().expect("eight bytes"));
    FramedLogRecord::Complete { consumed: HEAD_LEN + len, stamp_micros, ids: number(&head[9..13]), body }
}

/// A command with its outcome, as a log contains it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoggedCommand<'a> {
    /// The command. The options of `misc` are 0.
    pub request: TyrantRequest<'a>,
    /// True if the command succeeded on the server that logged it.
    pub is_done: bool,
}

impl<'a> LoggedCommand<'a> {
    /// Parses a body. Returns `None` if it is damaged or contains a command that is never logged.
    pub fn parse(body: &'a [u8]) -> Option<LoggedCommand<'a>> {
        let (&status, fields) = body.split_last()?;
        let request = match fields.get(1) {
            Some(&byte) if byte == TyrantCommand::Misc.byte() => parse_misc(fields)?,
            _ => match TyrantDecoder::default().decode(&TyrantLimits::default(), fields) {
                TyrantStep::Request { consumed, request } if consumed == fields.len() => request,
                _ => return None,
            },
        };
        let command = LoggedCommand { request, is_done: status == reply::SUCCESS };
        is_logged(&request).then_some(command)
    }

    /// Writes the body.
    pub fn put(&self, out: &mut impl ReplySink) {
        match self.request {
            TyrantRequest::Misc { name, arguments, .. } => {
                out.put(&[FIRST_BYTE, TyrantCommand::Misc.byte()]);
                out.put(&(name.len() as u32).to_be_bytes());
                out.put(&(arguments.len() as u32).to_be_bytes());
                out.put(name);
                out.put(arguments.as_bytes());
            }
            request => request.encode(out),
        }
        reply::put_status(self.is_done, out);
    }
}

/// A change of one record, or of all, that needs no old value, except for `Add`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsoluteChange<'a> {
    /// The record has this value.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// The record does not exist.
    Remove {
        /// The key.
        key: &'a [u8],
    },
    /// The key has these values after those that it had.
    Add {
        /// The key.
        key: &'a [u8],
        /// The values.
        values: &'a [&'a [u8]],
    },
    /// No record exists.
    Clear,
}

impl AbsoluteChange<'_> {
    /// Writes the body of a record that succeeds whatever the old state is. A removal is the
    /// function `outlist` of `misc`, because the command `out` fails without a record, and replicas
    /// compare outcomes.
    pub fn put_body(self, out: &mut impl ReplySink) {
        let mut fields = FieldBuffer::default();
        let request = match self {
            AbsoluteChange::Put { key, value } => TyrantRequest::Put { mode: TyrantPutMode::Put, key, value },
            AbsoluteChange::Remove { key } => {
                fields.push(key);
                TyrantRequest::Misc { name: b"outlist", options: 0, arguments: fields.list() }
            }
            AbsoluteChange::Add { key, values } => {
                for value in values {
                    fields.push(key);
                    fields.push(value);
                }
                TyrantRequest::Misc { name: b"putlist", options: 0, arguments: fields.list() }
            }
            AbsoluteChange::Clear => TyrantRequest::Vanish,
        };
        LoggedCommand { request, is_done: true }.put(out);
    }
}

/// Returns true for a command that logs contain. `putnr` is logged as `put`.
fn is_logged(request: &TyrantRequest<'_>) -> bool {
    match request {
        TyrantRequest::Put { mode, .. } => *mode != TyrantPutMode::NoReply,
        TyrantRequest::PutShl { .. }
        | TyrantRequest::Out { .. }
        | TyrantRequest::AddInt { .. }
        | TyrantRequest::AddDouble { .. }
        | TyrantRequest::Sync
        | TyrantRequest::Vanish
        | TyrantRequest::Optimize { .. }
        | TyrantRequest::Misc { .. } => true,
        _ => false,
    }
}

/// Parses the command `misc`, without its status.
fn parse_misc(fields: &[u8]) -> Option<TyrantRequest<'_>> {
    if fields.first() != Some(&FIRST_BYTE) {
        return None;
    }
    let mut reader = FieldReader::new(fields, 2);
    let name_len = reader.len(NAME_LEN_MAX).ok()?;
    let count = reader.len(COUNT_MAX as usize).ok()?;
    let name = reader.take(name_len).ok()?;
    let begin = reader.at;
    for _ in 0..count {
        let len = reader.len(LEN_MAX).ok()?;
        reader.take(len).ok()?;
    }
    let arguments = FieldList::new(count as u32, &fields[begin..reader.at]);
    (reader.at == fields.len()).then_some(TyrantRequest::Misc { name, options: 0, arguments })
}
