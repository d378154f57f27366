//! Writes the messages of a master, and decodes them for a replica.
//!
//! ```text
//! replica -> C8 A0 stamp(8) server id(4)                    TyrantRequest::Repl
//! master  -> server id(4)                                   0: the master has no log
//! master  -> C9 stamp(8) server id(4) len(4) body[len]      a record; `server id` is the server to
//!                                                           which a client sent the command
//! master  -> CA                                             no new record; sent each second
//! ```
//!
//! The replica sends no acknowledgements. It asks for the records from a time stamp on, and the
//! master omits the records that are known to have reached the replica before.

use super::update_log::{FramedLogRecord, RECORD, decode_framed};
use crate::ReplySink;

const IDLE: u8 = 0xca;

/// Writes the ID of the master, which precedes all messages.
pub fn put_server_id(server_id: u32, out: &mut impl ReplySink) {
    out.put(&server_id.to_be_bytes());
}

/// Writes the message that there is no new record.
pub fn put_idle(out: &mut impl ReplySink) {
    out.put(&[IDLE]);
}

/// Writes the part of a record before its body.
pub fn put_record_head(stamp_micros: u64, server_id: u32, body_len: u32, out: &mut impl ReplySink) {
    out.put(&[RECORD]);
    out.put(&stamp_micros.to_be_bytes());
    out.put(&server_id.to_be_bytes());
    out.put(&body_len.to_be_bytes());
}

/// The replica's decoder for the messages of a master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MasterDecoder {
    has_server_id: bool,
}

/// A message of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TyrantMasterMessage<'a> {
    /// The ID of the master. If it is 0, the master has no log, and nothing follows.
    ServerId(u32),
    /// There is no new record.
    Idle,
    /// A record of the master's log.
    Record {
        /// The time stamp: microseconds since 1970.
        stamp_micros: u64,
        /// The server to which a client sent the command.
        server_id: u32,
        /// The command and its outcome; [`LoggedCommand`](super::LoggedCommand) parses it.
        body: &'a [u8],
    },
}

/// The result of decoding the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterStep<'a> {
    /// A message of the master.
    Message {
        /// The length of the message, at least 1.
        consumed: usize,
        /// The message.
        message: TyrantMasterMessage<'a>,
    },
    /// The message is incomplete.
    NeedMore {
        /// The minimum number of missing bytes, at least 1.
        at_least: usize,
    },
    /// The peer is not a master, or its data is damaged.
    Malformed,
}

impl MasterDecoder {
    /// Decodes the next message from `input`, the unread bytes.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> MasterStep<'a> {
        if !self.has_server_id {
            let Some((server_id, _)) = input.split_first_chunk() else {
                return MasterStep::NeedMore { at_least: 4 - input.len() };
            };
            self.has_server_id = true;
            let message = TyrantMasterMessage::ServerId(u32::from_be_bytes(*server_id));
            return MasterStep::Message { consumed: 4, message };
        }
        if input.first() == Some(&IDLE) {
            return MasterStep::Message { consumed: 1, message: TyrantMasterMessage::Idle };
        }
        match decode_framed(input) {
            // Only one byte is certain to come, because an idle master sends messages of one byte.
            FramedLogRecord::NeedMore { .. } if input.is_empty() => MasterStep::NeedMore { at_least: 1 },
            FramedLogRecord::NeedMore { at_least } => MasterStep::NeedMore { at_least },
            FramedLogRecord::Complete { consumed, stamp_micros, ids, body } => {
                let message = TyrantMasterMessage::Record { stamp_micros, server_id: ids, body };
                MasterStep::Message { consumed, message }
            }
            FramedLogRecord::Malformed => MasterStep::Malformed,
        }
    }
}

/// Returns the content of a file with a replica's position: a number and a line end. The number has
/// 16 digits, as all stamps from 2001 to 2286 have, so that a newer position overwrites all bytes
/// of an older position.
pub fn format_position(stamp_micros: u64) -> String {
    format!("{stamp_micros:016}\n")
}
