//! Holds the figures of a replica that follows this server, for statistics and the log.

use super::replica_request::ReplicaRequest;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use todana_protocol::replication::{ReplicaHello, RequestedStart};

/// A replica that follows this server or has requested to follow it.
pub(crate) struct ConnectedReplica {
    pub(crate) server_id: u16,
    /// The address from which the replica connected.
    pub(crate) address: String,
    /// True once this server has accepted the replica.
    follows: AtomicBool,
    /// The last time stamp that the replica has acknowledged, or with which it began.
    position: AtomicU64,
    /// The bytes of the logs that the replica has not applied. `None` if its protocol has no
    /// positions.
    lag_bytes: Option<AtomicU64>,
    /// The last moment when the replica had all records of this server. Before its first complete
    /// round, this is the time of its position, or the time when it connected if it has no
    /// position.
    had_all_at: Mutex<Instant>,
    flags_lost: AtomicU64,
    values_lost: AtomicU64,
}

impl ConnectedReplica {
    /// Creates the entry of a replica that connects now. `now_s` is the current time in Unix
    /// seconds.
    pub(super) fn new(request: &ReplicaRequest, address: String, now_s: u64) -> ConnectedReplica {
        let (now, position) = (Instant::now(), request.position());
        let position_s = position / request.stamps(0, 1).per_second();
        let behind = if position == 0 { 0 } else { now_s.saturating_sub(position_s) };
        ConnectedReplica {
            server_id: request.server_id(),
            address,
            follows: AtomicBool::new(false),
            position: AtomicU64::new(position),
            lag_bytes: None,
            had_all_at: Mutex::new(now.checked_sub(Duration::from_secs(behind)).unwrap_or(now)),
            flags_lost: AtomicU64::new(0),
            values_lost: AtomicU64::new(0),
        }
    }

    /// Creates the entry of a replica that follows in Todana's own protocol.
    pub(super) fn native(hello: &ReplicaHello, address: String) -> ConnectedReplica {
        let position = match hello.databases.first().map(|request| request.start) {
            Some(RequestedStart::Place(place)) => place.position,
            _ => 0,
        };
        ConnectedReplica {
            server_id: hello.server_id,
            address,
            follows: AtomicBool::new(false),
            position: AtomicU64::new(position),
            lag_bytes: Some(AtomicU64::new(0)),
            had_all_at: Mutex::new(Instant::now()),
            flags_lost: AtomicU64::new(0),
            values_lost: AtomicU64::new(0),
        }
    }

    pub(super) fn accept(&self) {
        self.follows.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_been_accepted(&self) -> bool {
        self.follows.load(Ordering::Relaxed)
    }

    /// Notes that the replica has acknowledged all changes up to `position`. These were all changes
    /// of this server at `began_at`, when the round began.
    pub(super) fn note_complete_round(&self, position: u64, began_at: Instant) {
        self.position.store(position, Ordering::Relaxed);
        *self.had_all_at.lock().unwrap_or_else(PoisonError::into_inner) = began_at;
    }

    /// Notes that the replica has stated its position in the log of the first database.
    pub(super) fn note_position(&self, position: u64) {
        self.position.store(position, Ordering::Relaxed);
    }

    /// Notes the bytes of all logs that the replica has not applied at `when`.
    pub(super) fn note_lag(&self, lag_bytes: u64, when: Instant) {
        if let Some(figure) = &self.lag_bytes {
            figure.store(lag_bytes, Ordering::Relaxed);
        }
        if lag_bytes == 0 {
            *self.had_all_at.lock().unwrap_or_else(PoisonError::into_inner) = when;
        }
    }

    /// Counts records that were sent to the replica without their client flags. Returns true for
    /// the first such records.
    pub(super) fn count_lost_flags(&self, records: u64) -> bool {
        records > 0 && self.flags_lost.fetch_add(records, Ordering::Relaxed) == 0
    }

    /// Counts records that were sent to the replica with only the first of several values. Returns
    /// true for the first such records.
    pub(super) fn count_lost_values(&self, records: u64) -> bool {
        records > 0 && self.values_lost.fetch_add(records, Ordering::Relaxed) == 0
    }

    /// Returns the number of records that were sent with only the first of several values.
    pub(super) fn values_lost(&self) -> u64 {
        self.values_lost.load(Ordering::Relaxed)
    }

    /// Returns the last time stamp that the replica has acknowledged, or with which it began.
    pub(crate) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the logs that the replica has not applied. Returns `None` if its
    /// protocol has no positions.
    pub(crate) fn lag_bytes(&self) -> Option<u64> {
        self.lag_bytes.as_ref().map(|figure| figure.load(Ordering::Relaxed))
    }

    /// Returns the time since the replica last had all records of this server.
    pub(crate) fn delay(&self) -> Duration {
        self.had_all_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Returns the number of records that were sent to the replica without their client flags.
    pub(crate) fn flags_lost(&self) -> u64 {
        self.flags_lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_protocol::kyoto::binary::ReplicaRequest as KyotoRequest;

    #[test]
    fn delay_begins_with_position_and_ends_with_round() {
        let new = |timestamp| {
            let request = KyotoRequest { timestamp, server_id: 2, wants_only: false, takes_lists: false };
            ConnectedReplica::new(&ReplicaRequest::Kyoto(request), "127.0.0.1:9".into(), 1_000)
        };
        assert!(new(0).delay() < Duration::from_secs(1_000), "it begins with nothing");
        let replica = new(400 * todana::replication::STAMPS_PER_SECOND + 7);
        assert!(replica.delay() >= Duration::from_secs(600));
        assert_eq!(replica.position(), 400_000_000_007);
        let began_at = Instant::now();
        replica.note_complete_round(900_000_000_000, began_at);
        assert!(replica.delay() <= began_at.elapsed());
        assert_eq!(replica.position(), 900_000_000_000);
        assert_eq!([0, 3, 1].map(|records| replica.count_lost_flags(records)), [false, true, false]);
        assert_eq!(replica.flags_lost(), 4);
    }
}
