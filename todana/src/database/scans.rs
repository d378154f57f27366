//! Scans over all live records, a stretch at a time between two commits.

use super::Database;
use crate::records::{self, ScanDirection};
use std::ops::{Bound, ControlFlow};
use todana_core::{Record, RecordDetails, Result, ScanPosition};

/// Records that a scan shows before it lets a commit run.
const STRETCH: usize = 256;

impl Database {
    /// Shows a record as it is stored, expired or not, between two commits. Returns false if there
    /// is none. Does not count as an access.
    pub fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let _no_commit = self.transaction_lock.block_commits();
        self.engine.peek(key, see)
    }

    /// Shows the live records from a position (`None`: the start) until `see` breaks. Returns the
    /// position to continue from, and `None` at the end. The promises of
    /// [`Engine::scan`](todana_core::Engine::scan) hold.
    pub fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let now = self.clock.now();
        self.flush_if_due(now);
        let (mut place, mut has_broken) = (from, false);
        loop {
            // A scan never shows a part of a commit, and a commit waits for at most one stretch.
            let _no_commit = self.transaction_lock.block_commits();
            let mut seen = 0;
            place = self.engine.scan(place, &mut |key, record| {
                seen += 1;
                if record.attributes.expiry.is_live(now) && see(key, record).is_break() {
                    has_broken = true;
                }
                if has_broken || seen == STRETCH { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if place.is_none() || has_broken {
                return Ok(place);
            }
        }
    }

    /// Shows the live records from a key on, in order, until `see` breaks. The promises of
    /// [`OrderedEngine`] hold. Fails with `Invalid` if the engine keeps no order.
    ///
    /// [`OrderedEngine`]: todana_core::OrderedEngine
    pub fn walk(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let now = self.clock.now();
        self.flush_if_due(now);
        let (mut from, mut has_broken) = (from.map(<[u8]>::to_vec), false);
        loop {
            let _no_commit = self.transaction_lock.block_commits();
            let (mut seen, mut last) = (0, Vec::new());
            let start = from.as_ref().map(Vec::as_slice);
            records::walk(&*self.engine, heading, start, &mut |key, record| {
                seen += 1;
                if record.attributes.expiry.is_live(now) && see(key, record).is_break() {
                    has_broken = true;
                }
                if seen == STRETCH {
                    last.extend_from_slice(key);
                }
                if has_broken || seen == STRETCH { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if has_broken || seen < STRETCH {
                return Ok(());
            }
            from = Bound::Excluded(last);
        }
    }

    /// Scans the attributes of records without their values.
    pub fn list(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], RecordDetails) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let now = self.clock.now();
        self.scan(from, &mut |key, record| {
            let attributes = record.attributes;
            let inspection = RecordDetails {
                expiry: attributes.expiry,
                access: attributes.access,
                version: attributes.version,
                flags: attributes.flags,
                key_len: key.len() as u64,
                value_len: record.value.len() as u64,
                now,
            };
            see(key, inspection)
        })
    }
}
