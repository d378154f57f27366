//! Replication: what a master sends, and what a replica makes of it.
//!
//! ```text
//! replica -> B1 flags:u32 timestamp:u64 server_id:u16      Hello; the master's side reads it as a request
//! master  -> B1, or BF and the end
//! master  -> B1 timestamp:u64 size:u32 message[size]       an update; of size 0 only a new position
//! master  -> B0 timestamp:u64                              caught up
//! replica -> B1                                            to each B0
//! ```

use super::binary::{REPLICATION, ReplicaRequest};
use super::message::{LEN_MAX, UpdateMessage};
use crate::ReplySink;

const CAUGHT_UP: u8 = 0xB0;
const ERROR: u8 = 0xBF;

impl ReplicaRequest {
    /// Writes it.
    pub fn put(&self, out: &mut impl ReplySink) {
        out.put(&[REPLICATION]);
        out.put(&u32::from(self.wants_only).to_be_bytes());
        out.put(&self.timestamp.to_be_bytes());
        out.put(&self.server_id.to_be_bytes());
    }

    /// Whether the replica wants the updates that were born at this server.
    pub fn wants(&self, server_id: u16) -> bool {
        (server_id == self.server_id) == self.wants_only
    }
}

/// The master: writes that the replica is accepted.
pub fn put_accepted(out: &mut impl ReplySink) {
    out.put(&[REPLICATION]);
}

/// The master: writes that the replica is refused; the connection is closed behind it.
pub fn put_refused(out: &mut impl ReplySink) {
    out.put(&[ERROR]);
}

/// The master: writes an update.
pub fn put_update(timestamp: u64, message: &UpdateMessage<'_>, out: &mut impl ReplySink) {
    put_update_head(timestamp, message.len() as u32, out);
    message.put(out);
}

/// The master: writes that nothing for this replica is before this time stamp, so that it moves on.
pub fn put_progress(timestamp: u64, out: &mut impl ReplySink) {
    put_update_head(timestamp, 0, out);
}

/// The master: writes that nothing is left before this time stamp; then it waits to hear that this has been read.
pub fn put_caught_up(timestamp: u64, out: &mut impl ReplySink) {
    out.put(&[CAUGHT_UP]);
    out.put(&timestamp.to_be_bytes());
}

/// The replica: writes that it has read that it has caught up.
pub fn put_acknowledgement(out: &mut impl ReplySink) {
    out.put(&[REPLICATION]);
}

fn put_update_head(timestamp: u64, len: u32, out: &mut impl ReplySink) {
    out.put(&[REPLICATION]);
    out.put(&timestamp.to_be_bytes());
    out.put(&len.to_be_bytes());
}

/// The replica's decoder of what a master sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplicaDecoder {
    is_accepted: bool,
}

/// What a master says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterMessage<'a> {
    /// The replica is accepted.
    Accepted,
    /// It is not; the connection ends.
    Refused,
    /// An update.
    Update {
        /// Its time stamp.
        timestamp: u64,
        /// What it does.
        message: UpdateMessage<'a>,
    },
    /// Nothing but a new position.
    Progress {
        /// The position.
        timestamp: u64,
    },
    /// Nothing is left; to be acknowledged.
    CaughtUp {
        /// The position.
        timestamp: u64,
    },
}

/// The outcome of looking at the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaStep<'a> {
    /// The master says something; the first `consumed` bytes of the input are done with.
    News {
        /// Bytes done with, at least 1.
        consumed: usize,
        /// What it says.
        news: MasterMessage<'a>,
    },
    /// Nothing whole yet: at least so many more bytes are needed.
    NeedMore {
        /// At least 1.
        at_least: usize,
    },
    /// It is no master, or what it sends is damaged.
    Malformed,
}

impl ReplicaDecoder {
    /// The next step from `input`, the unread bytes.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> ReplicaStep<'a> {
        let Some(&magic) = input.first() else { return ReplicaStep::NeedMore { at_least: 1 } };
        if !self.is_accepted {
            let news = match magic {
                REPLICATION => MasterMessage::Accepted,
                ERROR => MasterMessage::Refused,
                _ => return ReplicaStep::Malformed,
            };
            self.is_accepted = magic == REPLICATION;
            return ReplicaStep::News { consumed: 1, news };
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
            return ReplicaStep::News { consumed: head_len, news: MasterMessage::CaughtUp { timestamp } };
        }
        let len = u32::from_be_bytes(head[9..13].try_into().expect("four bytes")) as usize;
        if len == 0 {
            return ReplicaStep::News { consumed: head_len, news: MasterMessage::Progress { timestamp } };
        }
        if len > LEN_MAX {
            return ReplicaStep::Malformed;
        }
        let Some(message) = rest.get(..len) else {
            return ReplicaStep::NeedMore { at_least: len - rest.len() };
        };
        match UpdateMessage::parse(message) {
            Some(message) => {
                let news = MasterMessage::Update { timestamp, message };
                ReplicaStep::News { consumed: head_len + len, news }
            }
            None => ReplicaStep::Malformed,
        }
    }
}

/// The text of a file that keeps a replica's position: 20 digits and a line end.
pub fn format_position(timestamp: u64) -> String {
    format!("{timestamp:020}\n")
}

/// The position that such a file keeps: the digits that it begins with.
pub fn parse_position(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
