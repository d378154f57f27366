//! More memory while data is restored and nothing may be evicted.

use crate::Database;
use todana_core::{
    BoundedEngine, Error, ErrorKind, Expiry, MemoryLimit, Result, SweepAim, UnixSeconds, WhenFull,
};

/// A higher memory limit during a restoration, where nothing may be evicted. Records may be packed
/// less densely than before, and those that have expired since or that another thread is about to
/// remove need memory that they did not need when the log was written.
pub(super) struct Allowance<'d> {
    bounded: &'d dyn BoundedEngine,
    limit: MemoryLimit,
    bytes: u64,
}

impl Allowance<'_> {
    pub(super) fn of(database: &Database) -> Option<Allowance<'_>> {
        let bounded = database.engine().bounded()?;
        let limit = bounded.limit();
        let bytes = limit.bytes.filter(|_| limit.when_full == WhenFull::Refuse)?;
        let allowance = Allowance { bounded, limit, bytes };
        allowance.extend(0);
        Some(allowance)
    }

    /// Returns the most that the restored data may take in the end, so that a full server can be
    /// started again. It then has no room for more until something is removed.
    fn most(&self) -> u64 {
        const PAGES: u64 = 1 << 20;
        self.bytes.saturating_add(self.bytes / 8).saturating_add(PAGES)
    }

    /// Raises the limit for the replay of a log of this length.
    pub(super) fn extend(&self, log_len: u64) {
        let bytes = self.most().saturating_add(log_len).saturating_add(log_len / 4);
        self.bounded.set_limit(MemoryLimit { bytes: Some(bytes), ..self.limit });
    }

    /// Restores the limit. Fails with `Full` if live records exceed it by much.
    pub(super) fn end(self, database: &Database, now: UnixSeconds) -> Result<()> {
        const RECORDS: usize = 1 << 12;
        // The most bytes that one step moves.
        const STEP: u64 = 64 << 10;
        let engine = database.engine();
        let excess = || engine.status().committed_bytes.saturating_sub(self.bytes);
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
            let message = format!("the data needs {} bytes more than the memory limit leaves", excess());
            return Err(Error::new(ErrorKind::Full, message));
        }
        Ok(())
    }
}

impl Drop for Allowance<'_> {
    fn drop(&mut self) {
        self.bounded.set_limit(self.limit);
    }
}
