//! The changes that replicas have confirmed, for replies that wait for them (`--ack`).
//!
//! A replica confirms a change once it has applied it, and its own database has made it durable as
//! its own `--sync` states. Invariant: a confirmation counts for ever, also when the replica
//! disconnects.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use todana::CommitPoint;
use todana::update_log::LogPosition;

/// The confirmations of all replicas.
#[derive(Default)]
pub(crate) struct ReplicaAcks {
    /// The number of replicas that must confirm a change. 0 if replies do not wait.
    needed: usize,
    time_max: Duration,
    databases: Vec<ConfirmedLog>,
}

/// The confirmed part of the log of one database.
#[derive(Default)]
struct ConfirmedLog {
    /// The position up to which enough replicas have the log.
    confirmed: AtomicU64,
    /// The position that each replica has stated, with its server ID.
    stated: Mutex<Vec<(u16, u64)>>,
}

impl ReplicaAcks {
    /// Creates the state for this number of databases. Each change needs `needed` confirmations
    /// within `time_max`.
    pub(crate) fn new(needed: usize, time_max: Duration, databases: usize) -> ReplicaAcks {
        let databases = (0..databases).map(|_| ConfirmedLog::default()).collect();
        ReplicaAcks { needed, time_max, databases }
    }

    /// Returns true if replies wait for replicas.
    #[inline]
    pub(crate) fn is_needed(&self) -> bool {
        self.needed > 0
    }

    /// Returns the time until which a change that is made now must be confirmed.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.time_max
    }

    /// Returns true if enough replicas have the changes of a database up to this point.
    #[inline]
    pub(crate) fn is_confirmed(&self, database: usize, point: CommitPoint) -> bool {
        let confirmed = || self.databases[database].confirmed.load(Ordering::Acquire);
        self.needed == 0 || confirmed() >= LogPosition::from(point).0
    }

    /// Notes the position up to which the replica with this server ID has the log of a database.
    /// Returns true if more changes are confirmed now.
    pub(super) fn note(&self, server_id: u16, database: usize, position: u64) -> bool {
        let Some(log) = self.databases.get(database).filter(|_| self.needed > 0) else { return false };
        let mut stated = log.stated.lock().unwrap_or_else(PoisonError::into_inner);
        match stated.iter_mut().find(|(id, _)| *id == server_id) {
            Some((_, before)) => *before = position,
            None => stated.push((server_id, position)),
        }
        let mut positions: Vec<u64> = stated.iter().map(|(_, position)| *position).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        let Some(&confirmed) = positions.get(self.needed - 1) else { return false };
        log.confirmed.fetch_max(confirmed, Ordering::AcqRel) < confirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_needs_the_confirmations_of_different_replicas() {
        let acks = ReplicaAcks::new(2, Duration::from_secs(1), 1);
        let at = |position| CommitPoint::from(LogPosition(position));
        assert!(!acks.note(1, 0, 10));
        assert!(!acks.note(1, 0, 20));
        assert!(!acks.is_confirmed(0, at(10)));
        assert!(acks.note(2, 0, 15));
        assert!(acks.is_confirmed(0, at(15)) && !acks.is_confirmed(0, at(16)));
        // A replica that begins again does not take back what it has confirmed.
        assert!(!acks.note(2, 0, 0));
        assert!(acks.is_confirmed(0, at(15)));
        assert!(acks.note(3, 0, 30));
        assert!(acks.is_confirmed(0, at(20)) && !acks.is_confirmed(0, at(21)));
        assert!(ReplicaAcks::default().is_confirmed(0, at(99)));
    }
}
