//! Decides whether the records of a database are as new as a reader requires.
//!
//! ```text
//! replica --- its own time t ---> master: looks for changes, sends them
//! replica <-- the changes, then t -------
//! ```
//!
//! When t comes back, the replica has all changes that the master made before t. Only the clock of
//! the replica takes part, so the clocks of the two may differ.

use super::native::FollowedDatabase;
use crate::handle::StopStage;
use crate::shared::SharedState;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use todana_core::RefusalReason;
use todana_protocol::freshness::{LogToken, RequiredFreshness};
use todana_protocol::replication::LogPlace;

/// The longest time that a reader waits for changes of the master.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The time at which the process began to measure time.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the time since the start in microseconds, at least 1.
pub(super) fn now_us() -> u64 {
    since_start_us(Instant::now())
}

fn since_start_us(when: Instant) -> u64 {
    let since = when.saturating_duration_since(*START);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX).saturating_add(1)
}

/// The databases that follow a master in Todana's own protocol: the first ones of the server.
#[derive(Default)]
pub(crate) struct FollowedPositions {
    all: Mutex<Vec<FollowedPosition>>,
    /// The server ID of the master that was followed last.
    master_id: AtomicU16,
}

/// How far a database has followed its master.
#[derive(Clone, Copy)]
struct FollowedPosition {
    /// The place in the master's log, once all records are those of one moment of the master.
    place: Option<LogToken>,
    /// The place that a reader may have seen, which is not before the other one.
    seen: Option<LogToken>,
    /// All changes that the master made before this time are here. 0 if no such time is known.
    fresh_at_us: u64,
}

/// The result of a check.
pub(crate) enum FreshnessCheck {
    /// The records are new enough.
    Fresh,
    /// The records are too old.
    TooOld,
    /// No wait can help.
    Never(RefusalReason),
}

impl FollowedPositions {
    fn lock(&self) -> MutexGuard<'_, Vec<FollowedPosition>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, index: usize) -> Option<FollowedPosition> {
        self.lock().get(index).copied()
    }

    /// Notes the progress of all followed databases.
    pub(super) fn note(&self, databases: &[FollowedDatabase]) {
        let token = |place: LogPlace| LogToken::new(place.database_id, place.position);
        let positions = databases.iter().map(|followed| FollowedPosition {
            place: followed.complete_place().map(token),
            seen: followed.received_place().map(token),
            fresh_at_us: followed.fresh_at_us,
        });
        let mut all = self.lock();
        all.clear();
        all.extend(positions);
    }

    /// Notes the server ID of the master that has accepted this replica.
    pub(super) fn note_master(&self, master_id: u16) {
        self.master_id.store(master_id, Ordering::Relaxed);
    }

    /// Returns the age in microseconds of the oldest of these databases for a replica with this
    /// server ID: 0 without a master, or if the replica itself is the master, and `u64::MAX` if it
    /// is unknown.
    pub(super) fn age_us(&self, numbers: &[u16], replica_id: u16) -> u64 {
        let all = self.lock();
        if !all.is_empty() && self.master_id.load(Ordering::Relaxed) == replica_id {
            return 0;
        }
        let followed = numbers.iter().filter_map(|number| all.get(usize::from(*number)));
        let now_us = now_us();
        let age = |one: &FollowedPosition| match one.fresh_at_us {
            0 => u64::MAX,
            at_us => now_us.saturating_sub(at_us),
        };
        followed.map(age).max().unwrap_or(0)
    }
}

/// Returns whether a database is as new as required. `arrived` is the time at which the request
/// arrived.
pub(crate) fn check(
    shared: &SharedState,
    index: usize,
    required: RequiredFreshness,
    arrived: Instant,
) -> FreshnessCheck {
    let link = &shared.master_link;
    let followed = link.followed.of(index);
    let is_fresh = match (required, followed) {
        (RequiredFreshness::Any, _) => true,
        (RequiredFreshness::MaxAge { ms }, Some(followed)) => {
            let oldest_us = since_start_us(arrived).saturating_sub(ms.saturating_mul(1000));
            followed.fresh_at_us >= oldest_us.max(1)
        }
        (RequiredFreshness::MaxAge { .. }, None) if shared.databases[index].database.is_superseded() => {
            // Another server has become the master, and this one does not follow it.
            return FreshnessCheck::Never(RefusalReason::TooOld);
        }
        (RequiredFreshness::MaxAge { .. }, None) if link.follows_originals() => {
            // The protocol of this master has no age.
            return FreshnessCheck::Never(RefusalReason::TooOld);
        }
        (RequiredFreshness::MaxAge { .. }, None) => true,
        (RequiredFreshness::Position(token), followed) => {
            let own = own_position(shared, index).filter(|own| own.log == token.log);
            let masters = followed.and_then(|followed| followed.place).filter(|place| place.log == token.log);
            let is_replica = shared.databases[index].database.is_replica();
            match if is_replica { masters.or(own) } else { own.or(masters) } {
                Some(reached) => reached.position >= token.position,
                // The copy of the records may come from this log.
                None if followed.is_some_and(|followed| followed.place.is_none()) => false,
                None => return FreshnessCheck::Never(RefusalReason::OtherLog),
            }
        }
    };
    if is_fresh { FreshnessCheck::Fresh } else { FreshnessCheck::TooOld }
}

/// Returns false if a full copy has begun since the check, so that what was read may not count.
pub(crate) fn still_holds(shared: &SharedState, index: usize, required: RequiredFreshness) -> bool {
    let Some(followed) = shared.master_link.followed.of(index) else { return true };
    match required {
        RequiredFreshness::Any => true,
        RequiredFreshness::MaxAge { .. } => followed.fresh_at_us > 0,
        RequiredFreshness::Position(_) => {
            followed.place.is_some() || !shared.databases[index].database.is_replica()
        }
    }
}

/// Returns the time after which a reader that has waited since `arrived` is checked again.
pub(crate) fn next_check(arrived: Instant) -> Instant {
    let pause = (arrived.elapsed() / 4).clamp(Duration::from_millis(5), Duration::from_millis(50));
    Instant::now() + pause
}

/// Returns true if a reader that arrived at this time may go on waiting.
pub(crate) fn may_wait(shared: &SharedState, arrived: Instant) -> bool {
    arrived.elapsed() < WAIT_MAX && shared.lifecycle.stopping() == StopStage::No
}

/// Returns the position that a reader can require later to see what it has seen or written by now:
/// the one in the log of the master if this server is its replica, and otherwise in its own log.
pub(crate) fn position(shared: &SharedState, index: usize) -> Option<LogToken> {
    match shared.databases[index].database.is_replica() {
        true => shared.master_link.followed.of(index).and_then(|followed| followed.seen),
        false => own_position(shared, index),
    }
}

fn own_position(shared: &SharedState, index: usize) -> Option<LogToken> {
    let log = shared.databases[index].database.log()?;
    let directory = shared.persistence.exports.directory(index)?;
    Some(LogToken::new(directory.identity().database_id, log.end().0))
}
