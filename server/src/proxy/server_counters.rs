//! Counts the requests to a server, its bytes, its connections and its failures.

use super::tallies::{Tallies, Tally, TallySums};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use todana_client::pool::{LossReason, ReplyPart};

/// A counter of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerCount {
    /// Requests of clients that were sent, or wait for their connection.
    Requests,
    /// Requests that were answered or given up.
    Ended,
    /// Replies.
    Replies,
    /// Values in replies.
    Values,
    /// Bytes of requests that were sent.
    WrittenBytes,
    /// Bytes of replies.
    ReadBytes,
    /// Connections that were begun.
    Connected,
    /// Connections that have ended.
    Disconnected,
    /// Connections that could not be opened.
    NotConnected,
    /// Connections that the server has closed.
    ClosedByServer,
    /// Requests that were not answered in time.
    TimedOut,
    /// Requests that were not sent, because the server was down or too many waited for it.
    NotSent,
    /// Requests that have waited too long for a connection.
    QueueTimedOut,
    /// Requests that were sent again after their connection was lost.
    Repeated,
    /// Times at which the server went down.
    Downs,
}

/// The packets whose replies have the value of a record: get and gat, with and without key.
const READ_OPCODES: [u8; 8] = [0x00, 0x09, 0x0c, 0x0d, 0x1d, 0x1e, 0x23, 0x24];

/// The first of the counters of failures by their reason.
const FAILURES: usize = ServerCount::Downs as usize + 1;
const LEN: usize = FAILURES + LossReason::ALL.len();

/// The counters of a server in one worker, and the times until its replies.
pub(super) type ServerTally = Tally<LEN>;

impl ServerTally {
    #[inline]
    pub(super) fn count(&self, count: ServerCount, by: u64) {
        self.add(count as usize, by);
    }

    /// Counts a failure.
    pub(super) fn count_failure(&self, reason: LossReason) {
        self.add(FAILURES + reason as usize, 1);
    }
}

/// The replies of one read. The counters are changed once for all of them.
#[derive(Default)]
pub(super) struct ReadCounts {
    bytes: u64,
    values: u64,
    replies: u64,
    /// Replies whose times are not measured: those that nobody waits for, and those of several
    /// clients.
    pub(super) untimed: u64,
    /// Replies that nobody waits for any more.
    pub(super) late: u64,
    /// The time of the last replies, and their number. Replies of one read often belong to requests
    /// of one write.
    time_us: u32,
    same: u64,
}

impl ReadCounts {
    /// Notes a part of a reply.
    #[inline]
    pub(super) fn note(&mut self, part: &ReplyPart<'_>) {
        self.bytes += part.bytes.len() as u64;
        // A long value comes in several parts.
        self.values += u64::from(!part.continues && (part.key.is_some() || is_value(part.bytes)));
    }

    /// Notes the end of a reply to a client.
    #[inline]
    pub(super) fn note_reply(&mut self, tally: &ServerTally, time_us: u32) {
        if time_us != self.time_us {
            self.end_times(tally);
            self.time_us = time_us;
        }
        self.same += 1;
    }

    /// Adds everything to the counters of the server.
    pub(super) fn end(&mut self, tally: &ServerTally) {
        self.end_times(tally);
        let ended = self.replies + self.untimed;
        tally.count(ServerCount::Replies, ended);
        tally.count(ServerCount::Ended, ended);
        tally.count(ServerCount::ReadBytes, self.bytes);
        tally.count(ServerCount::Values, self.values);
    }

    fn end_times(&mut self, tally: &ServerTally) {
        if self.same > 0 {
            tally.note_times(self.time_us, self.same);
            self.replies += std::mem::take(&mut self.same);
        }
    }
}

/// Returns true if a meta reply or a packet has the value of a record.
#[inline]
fn is_value(reply: &[u8]) -> bool {
    match reply {
        [b'V', b'A', b' ', ..] => true,
        [0x81, opcode, _, _, _, _, 0, 0, ..] => READ_OPCODES.contains(opcode),
        _ => false,
    }
}

/// The sums of the counters of a server.
pub(crate) type ServerSums = TallySums<LEN>;

impl ServerSums {
    pub(crate) fn of(&self, count: ServerCount) -> u64 {
        self.counts[count as usize]
    }

    /// Returns the number of failures with this reason.
    pub(crate) fn failures_of(&self, reason: LossReason) -> u64 {
        self.counts[FAILURES + reason as usize]
    }

    /// Returns the number of failures.
    pub(crate) fn failures(&self) -> u64 {
        self.counts[FAILURES..].iter().sum()
    }
}

/// The counters of a server in all workers.
#[derive(Default)]
pub(crate) struct ServerCounters {
    pub(super) tallies: Tallies<LEN>,
    last_failure: Mutex<Option<(LossReason, Instant)>>,
}

impl ServerCounters {
    /// Returns the sums since the last reset.
    pub(crate) fn sums(&self) -> ServerSums {
        self.tallies.sums()
    }

    /// Returns the number of requests without a reply.
    pub(crate) fn in_flight(&self) -> u64 {
        self.difference(ServerCount::Requests, ServerCount::Ended)
    }

    /// Returns the number of connections.
    pub(crate) fn connections(&self) -> u64 {
        self.difference(ServerCount::Connected, ServerCount::Disconnected)
    }

    /// Returns the reason and the time of the last failure.
    pub(crate) fn last_failure(&self) -> Option<(LossReason, Instant)> {
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the last failure.
    pub(super) fn note_failure(&self, reason: LossReason, now: Instant) {
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some((reason, now));
    }

    pub(super) fn reset(&self) {
        self.tallies.reset();
    }

    fn difference(&self, all: ServerCount, part: ServerCount) -> u64 {
        // The part is read first, so that it does not exceed the rest.
        let part = self.tallies.total(part as usize);
        self.tallies.total(all as usize).saturating_sub(part)
    }
}
