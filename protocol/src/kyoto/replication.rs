//! Writes the messages of replication for both sides, and decodes the messages of a master for a
//! replica.
//!
//! ```text
//! replica -> B1 flags:u32 timestamp:u64 server_id:u16     a request (ReplicaRequest)
//! master  -> B1                                           the request is accepted
//! master  -> BF                                           or refused; the connection ends
//! master  -> B1 timestamp:u64 size:u32 message[size]      an update; if `size` is 0, only the
//!                                                         replica's position advances
//! master  -> B0 timestamp:u64                             the replica has caught up
//! replica -> B1                                           an acknowledgement of each B0
//! ```

use super::binary::{REPLICATION, ReplicaRequest, TAKES_LISTS, WANTS_ONLY};
use super::message::{LEN_MAX, UpdateMessage};
use crate::ReplySink;

const CAUGHT_UP: u8 = 0xB0;
const ERROR: u8 = 0xBF;

impl ReplicaRequest {
    /// Writes the request.
    pub fn put(&self, out: &mut impl ReplySink) {
        out.put(&[REPLICATION]);
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(self.wants_only, WANTS_ONLY) | flag(self.takes_lists, TAKES_LISTS);
        out.put(&flags.to_be_bytes());
        out.put(&self.timestamp.to_be_bytes());
        out.put(&self.server_id.to_be_bytes());
    }

    /// Returns true if the replica wants the updates that originated at this server.
    pub fn wants(&self, server_id: u16) -> bool {
        (server_id == self.server_id) == self.wants_only
    }
}

/// Writes the master's acceptance of a replica.
pub fn put_accepted(out: &mut impl ReplySink) {
    out.put(&[REPLICATION]);
}

/// Writes the master's refusal of a replica. The caller must close the connection after it.
pub fn put_refused(out: &mut impl ReplySink) {
    out.put(&[ERROR]);
}

/// Writes an update of the master.
pub fn put_update(timestamp: u64, message: &UpdateMessage<'_>, out: &mut impl ReplySink) {
    put_update_head(timestamp, message.len() as u32, out);
    message.put(out);
}

/// Writes a timestamp before which there is no more update for this replica. The replica's position
/// advances to it.
pub fn put_progress(timestamp: u64, out: &mut impl ReplySink) {
    put_update_head(timestamp, 0, out);
}

/// Writes a timestamp before which there is no more update at all. The master must then wait for
/// the replica's acknowledgement.
pub fn put_caught_up(timestamp: u64, out: &mut impl ReplySink) {
    out.put(&[CAUGHT_UP]);
    out.put(&timestamp.to_be_bytes());
}

/// Writes the replica's acknowledgement that it has caught up.
pub fn put_acknowledgement(out: &mut impl ReplySink) {
    out.put(&[REPLICATION]);
}

/// Writes the part of an update before its message.
pub fn put_update_head(timestamp: u64, len: u32, out: &mut impl ReplySink) {
    out.put(&[REPLICATION]);
    out.put(&timestamp.to_be_bytes());
    out.put(&len.to_be_bytes());
}

/// The replica's decoder for the messages of a master.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplicaDecoder {
    is_accepted: bool,
}

/// A message of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterMessage<'a> {
    /// The replica is accepted.
    Accepted,
    /// The replica is refused. The connection ends.
    Refused,
    /// An update.
    Update {
        /// The timestamp of the update.
        timestamp: u64,
        /// The update.
        message: UpdateMessage<'a>,
    },
    /// A new position without an update.
    Progress {
        /// The position.
        timestamp: u64,
    },
    /// No update is left. The replica must acknowledge this message.
    CaughtUp {
        /// The position.
        timestamp: u64,
    },
}

/// The result of decoding the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaStep<'a> {
    /// A message of the master.
    Message {
        /// The consumed bytes of the input, at least 1.
        consumed: usize,
        /// The message.
        master_message: MasterMessage<'a>,
    },
    /// The message is incomplete.
    NeedMore {
        /// The number of bytes that are missing at least; never 0.
        at_least: usize,
    },
    /// The peer is not a master, or its data is damaged.
    Malformed,
}

impl ReplicaDecoder {
    /// Decodes the next step from `input`, which must contain all unread bytes.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> ReplicaStep<'a> {
        let Some(&magic) = input.first() else { return ReplicaStep::NeedMore { at_least: 1 } };
        if !self.is_accepted {
            let master_message = match magic {
                REPLICATION => MasterMessage::Accepted,
                ERROR => MasterMessage::Refused,
                _ => return ReplicaStep::Malformed,
            };
            self.is_accepted = magic == REPLICATION;
            return ReplicaStep::Message { consumed: 1, master_message };
        }
        let head_len = match magic {
            REPLICATION => 13,
            CAUGHT_UP => 9,
            _ => return ReplicaStep::Malformed,
        };
        let Some((head, rest)) = input.split_at_checked(head_len) else {
            return ReplicaStep::NeedMore { at_least: head_len - input.len() };
        };
        let timestamp = u64::from_be_bytes(head[1..9].try_into().expect("eight bytes"));
        if magic == CAUGHT_UP {
            return ReplicaStep::Message {
                consumed: head_len,
                master_message: MasterMessage::CaughtUp { timestamp },
            };
        }
        let len = u32::from_be_bytes(head[9..13].try_into().expect("four bytes")) as usize;
        if len == 0 {
            return ReplicaStep::Message {
                consumed: head_len,
                master_message: MasterMessage::Progress { timestamp },
            };
        }
        if len > LEN_MAX {
            return ReplicaStep::Malformed;
        }
        let Some(message) = rest.get(..len) else {
            return ReplicaStep::NeedMore { at_least: len - rest.len() };
        };
        match UpdateMessage::parse(message) {
            Some(message) => {
                let master_message = MasterMessage::Update { timestamp, message };
                ReplicaStep::Message { consumed: head_len + len, master_message }
            }
            None => ReplicaStep::Malformed,
        }
    }
}

/// Returns the content of a file with a replica's position: 20 digits and a line end.
pub fn format_position(timestamp: u64) -> String {
    format!("{timestamp:020}\n")
}

/// Parses the content of a file with a replica's position. Returns `None` unless the content
/// consists of digits.
pub fn parse_position(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
