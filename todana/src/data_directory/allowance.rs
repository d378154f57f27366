//! The higher memory limit that holds while data is restored.

use crate::Database;
use todana_core::{
    BoundedEngine, Error, ErrorKind, Expiry, MemoryLimit, RecordLoad, Result, SweepAim, UnixSeconds, WhenFull,
};

/// Raises the memory limit during a restoration, in which no record may be evicted. Restored
/// records may be packed less densely than before. The log also contains records that have expired
/// since, or that a later entry removes, and these need memory for a while.
pub(super) struct RaisedMemoryLimit<'d> {
    bounded: &'d dyn BoundedEngine,
    limit: MemoryLimit,
    bytes: u64,
}

impl RaisedMemoryLimit<'_> {
    pub(super) fn of(database: &Database) -> Option<RaisedMemoryLimit<'_>> {
        let bounded = database.engine().bounded()?;
        let limit = bounded.limit();
        let bytes = limit.bytes.filter(|_| limit.when_full == WhenFull::Refuse)?;
        let allowance = RaisedMemoryLimit { bounded, limit, bytes };
        allowance.extend(0);
        Some(allowance)
    }

    /// Returns the most memory that the restored data may take. It is above the configured limit,
    /// so that a server whose memory was full can be started again. Such a server accepts no more
    /// data until something is removed.
    fn most(&self) -> u64 {
        const PAGES: u64 = 1 << 20;
        self.bytes.saturating_add(self.bytes / 8).saturating_add(PAGES)
    }

    /// Raises the limit for the replay of a log with this number of bytes.
    pub(super) fn extend(&self, log_len: u64) {
        let bytes = self.most().saturating_add(log_len).saturating_add(log_len / 4);
        self.bounded.raise_limit(bytes);
    }

    /// Removes expired records, compacts the memory, and sets the configured limit again. Fails
    /// with `Full` if the live records need more than [`most`](Self::most).
    pub(super) fn end(self, database: &Database, now: UnixSeconds) -> Result<()> {
        const RECORDS: usize = 1 << 12;
        // The most bytes that one step of the engine's maintenance moves.
        const STEP: u64 = 64 << 10;
        let engine = database.engine();
        let excess = || engine.status().committed_bytes.saturating_sub(self.bytes);
        if excess() > 0 {
            database.compress_for_load(RecordLoad { next_bytes: excess(), ..RecordLoad::default() });
        }
        if excess() > 0
            && let Some(perishable) = engine.sweepable()
        {
            let mut place = None;
            loop {
                let is_over = &mut |expiry: Expiry| !expiry.is_live(now);
                place = perishable.sweep(place, RECORDS, SweepAim::Tidiness, is_over)?.next;
                if place.is_none() {
                    break;
                }
            }
        }
        let mut steps = engine.status().committed_bytes / STEP + 64;
        while excess() > 0 && steps > 0 && engine.maintain() {
            steps -= 1;
        }
        if engine.status().committed_bytes > self.most() {
            let message = format!("data: needs {} bytes more than the memory limit allows", excess());
            return Err(Error::new(ErrorKind::Full, message));
        }
        Ok(())
    }
}

impl Drop for RaisedMemoryLimit<'_> {
    fn drop(&mut self) {
        self.bounded.set_limit(self.limit);
    }
}
