//! Keeps a database within a number of records or bytes, by evicting records, if its engine does
//! not.
//!
//! Eviction passes over all records in a cycle, in the order of the engine's scans, so it does not
//! depend on their use: noting uses on disk would cost a write per read.

use super::Database;
use crate::{DatabaseName, Transaction, WorkerCounters};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{EngineStatus, ErrorKind, Result, ScanPosition};

/// The most records that are removed in one step.
const STEP_RECORDS: u64 = 64;
/// The most records that one write removes. Upkeep removes the others.
const EVICTIONS_PER_WRITE: u64 = 16 * STEP_RECORDS;
/// The most writes between two checks of the limit. A check is cheap, but not free.
const WRITES_MAX: u64 = 64;
const BYTES_LARGE: u64 = 64 << 20;

/// Keeps a database within the number of records or bytes that its name sets, if its engine does
/// not do that.
pub(super) struct SizeLimiter {
    records_max: u64,
    bytes_max: u64,
    /// The number of writes between two checks.
    every: u64,
    writes: AtomicU64,
    /// Writes that may have stored a record, but have not yet enforced the limit.
    in_progress: AtomicU64,
    cursor: Mutex<Option<ScanPosition>>,
}

impl SizeLimiter {
    /// Returns the limiter for a database of this name. Returns `None` if the name sets no limit,
    /// or if the engine keeps it.
    pub(super) fn of(name: &DatabaseName) -> Option<SizeLimiter> {
        let records_max = name.tuning.records_max.filter(|_| !name.kind.limits_records());
        let bytes_max = name.tuning.bytes_max.filter(|_| !name.kind.limits_bytes());
        SizeLimiter::new(records_max, bytes_max)
    }

    /// Creates a limiter. Returns `None` without a limit.
    fn new(records_max: Option<u64>, bytes_max: Option<u64>) -> Option<SizeLimiter> {
        if records_max.is_none() && bytes_max.is_none() {
            return None;
        }
        let by_records = records_max.map_or(WRITES_MAX, |max| (max / 1024).clamp(1, WRITES_MAX));
        let every = match bytes_max {
            Some(max) if max < BYTES_LARGE => 1,
            Some(_) => by_records.min(16),
            None => by_records,
        };
        // The writes before the next check must fit, too.
        let records_max = records_max.map_or(u64::MAX, |max| max - (every - 1).min(max));
        let bytes_max = bytes_max.unwrap_or(u64::MAX);
        Some(SizeLimiter {
            records_max,
            bytes_max,
            every,
            writes: AtomicU64::new(0),
            in_progress: AtomicU64::new(0),
            cursor: Mutex::default(),
        })
    }

    /// Registers a write until the result is dropped: upkeep, which cannot know the record that is
    /// written, leaves the eviction to the write.
    pub(super) fn begin_write(&self) -> WriteInProgress<'_> {
        self.in_progress.fetch_add(1, Ordering::AcqRel);
        WriteInProgress(&self.in_progress)
    }

    /// Evicts other records if a write exceeded the limit, mostly a few at each write. Called after
    /// each write. The record `written` stays, unless it is too large on its own.
    ///
    /// The write itself is never undone. If nothing can be evicted, the next write is refused, or
    /// evicts more.
    #[cold]
    pub(super) fn enforce(&self, database: &Database, worker_counters: &WorkerCounters, written: &[u8]) {
        if self.writes.fetch_add(1, Ordering::Relaxed) % self.every != self.every - 1 {
            return;
        }
        let is_spared = |key: &[u8]| key == written;
        let mut evict =
            |victims: &[Vec<u8>]| victims.iter().try_for_each(|key| database.evict(worker_counters, key));
        loop {
            match self.relieve(database, EVICTIONS_PER_WRITE, &is_spared, &mut evict) {
                // A transaction is open. Its commit needs the cursor, so the cursor is unlocked
                // during this wait.
                Err(error)
                    if error.kind() == ErrorKind::Busy && database.transaction_lock().wait().is_ok() => {}
                _ => return,
            }
        }
    }

    /// Evicts records after this many changes of a commit, while other writers wait. `remove`
    /// removes records at once. Spared records stay if evicting others is enough.
    pub(super) fn enforce_after_commit(
        &self,
        database: &Database,
        changes: usize,
        is_spared: &dyn Fn(&[u8]) -> bool,
        remove: &mut dyn FnMut(&[Vec<u8>]) -> Result<()>,
    ) {
        let at_most = EVICTIONS_PER_WRITE.saturating_add(changes as u64);
        // The commit itself is never undone.
        if let Ok(removed) = self.relieve(database, at_most, is_spared, remove) {
            let _ = self.relieve(database, at_most - removed, &|_| false, remove);
        }
    }

    /// Removes some tens of records if there are too many and no write is in progress, in a
    /// transaction that has changed nothing. Returns the number of removed records.
    pub(super) fn remove_surplus(&self, transaction: &Transaction<'_>) -> Result<u64> {
        if self.in_progress.load(Ordering::Acquire) > 0 {
            return Ok(0);
        }
        self.relieve(transaction.database(), STEP_RECORDS, &|_| false, &mut |victims| {
            transaction.remove_at_once(victims).map(|_| ())
        })
    }

    /// Returns true if the database has too many records or bytes.
    pub(super) fn is_exceeded(&self, database: &Database) -> bool {
        self.surplus(&database.engine().status()) > 0
    }

    /// Returns the least number of records above the limit. Only a later status shows whether the
    /// bytes are within it.
    fn surplus(&self, status: &EngineStatus) -> u64 {
        let too_long = u64::from(status.plain_bytes() > self.bytes_max && status.records > 1);
        status.records.saturating_sub(self.records_max).max(too_long)
    }

    /// Returns half of the number of records that would make up the surplus of bytes if all records
    /// had the same length.
    fn records_of_surplus_bytes(&self, status: &EngineStatus) -> u64 {
        let too_many = u128::from(status.plain_bytes().saturating_sub(self.bytes_max));
        let records = too_many * u128::from(status.records) / 2 / u128::from(status.plain_bytes().max(1));
        u64::try_from(records).unwrap_or(u64::MAX)
    }

    /// Removes records until the limit is kept or only spared records remain, but not many more
    /// than `at_most`. Returns the number of removed records.
    fn relieve(
        &self,
        database: &Database,
        at_most: u64,
        is_spared: &dyn Fn(&[u8]) -> bool,
        remove: &mut dyn FnMut(&[Vec<u8>]) -> Result<()>,
    ) -> Result<u64> {
        let mut removed = 0;
        if !self.is_exceeded(database) {
            return Ok(removed);
        }
        let mut cursor = self.cursor.lock();
        while removed < at_most {
            // The status is read again, because other threads may have removed records in the
            // meantime.
            let status = database.engine().status();
            let surplus = self.surplus(&status);
            if surplus == 0 {
                break;
            }
            let count =
                surplus.max(self.records_of_surplus_bytes(&status)).min(STEP_RECORDS).min(at_most - removed);
            let (mut victims, gone) = victims(database, &mut cursor, count, is_spared)?;
            if victims.is_empty() && gone == 0 {
                break;
            }
            victims.truncate(count.saturating_sub(gone) as usize);
            remove(&victims)?;
            removed += (gone + victims.len() as u64).min(count);
        }
        Ok(removed)
    }
}

/// A write that has not yet enforced the limit.
pub(super) struct WriteInProgress<'a>(&'a AtomicU64);

impl Drop for WriteInProgress<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns up to `count` keys from the cursor on, and the number of damaged records that were
/// removed on the way. The definitions of a table are never among them. A damaged record cannot be
/// removed by its key, and cannot be read, so it is removed first.
fn victims(
    database: &Database,
    cursor: &mut Option<ScanPosition>,
    count: u64,
    is_spared: &dyn Fn(&[u8]) -> bool,
) -> Result<(Vec<Vec<u8>>, u64)> {
    let mut victims = Vec::new();
    // This record of a table holds the definitions of the indexes and the reserved row numbers.
    let is_definitions = |key: &[u8]| key.is_empty() && database.engine().indexed().is_some();
    for round in 0..2 {
        let outcome = database.engine().scan_skipping_damaged(cursor.take(), &mut |key, _| {
            if !is_spared(key) && !is_definitions(key) {
                victims.push(key.to_vec());
            }
            if victims.len() as u64 >= count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match outcome {
            Ok(place) => *cursor = place,
            Err(error) if victims.is_empty() && round > 0 => return Err(error),
            // The damage cannot be removed yet, so readable records are removed. The cursor starts
            // again.
            Err(_) => {}
        }
        if !victims.is_empty() {
            break;
        }
    }
    // A scan returns neighbouring records together, perhaps more than requested.
    victims.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    let gone = database.engine().durable().map_or(Ok(0), |durable| durable.remove_damaged(count))?;
    Ok((victims, gone))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;
    use crate::open::EngineOptions;
    use crate::{CachedClock, OverwriteVisitor};
    use std::sync::Arc;
    use todana_core::{Action, Attributes, Record};

    /// Upkeep between a write and its own evictions evicted the record that was just written.
    #[test]
    fn upkeep_leaves_evictions_to_writes_in_progress() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tree");
        let name = DatabaseName::parse(&format!("{}#capcnt=2", path.display())).unwrap();
        let engine = name.open_engine_at(&path, Arc::new(SystemDisk), EngineOptions::default()).unwrap();
        let mut database = Database::new(engine, Arc::new(CachedClock::new()));
        let worker_counters = database.worker_counters();
        for key in [b"a", b"b", b"c"] {
            let put = &mut OverwriteVisitor(Action::Put(Record::new(b"v", Attributes::default())));
            database.visit_record(&worker_counters, key, put).unwrap();
        }
        database = database.with_limits_of(&name);
        let records = || database.engine().status().records;
        let write = database.limiter.as_ref().unwrap().begin_write();
        database.keep_to_limits(&worker_counters, || true);
        assert_eq!(records(), 3);
        drop(write);
        database.keep_to_limits(&worker_counters, || true);
        assert_eq!(records(), 2);
    }
}
