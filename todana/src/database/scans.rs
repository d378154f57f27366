//! Scans over all live records. Between two groups of records, a commit may take place.

use super::Database;
use crate::records::{self, ScanDirection};
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};
use todana_core::{Record, RecordDetails, Result, ScanPosition};

/// The number of records that a scan returns before a commit may take place.
pub(super) const GROUP_RECORDS: usize = 256;

impl Database {
    /// Passes a record to `see` as it is stored, even if it has expired, but never in the middle of
    /// a commit. Returns false if there is no such record. Does not count as an access.
    pub fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let _no_commit = self.transaction_lock.block_commits();
        if self.must_resolve(key) {
            let (mut text, commit) = ([0; 20], Cell::default());
            let key = self.resolved(self.space(&commit), key, self.clock.now(), &mut text)?;
            return self.engine.peek(key, &mut |record| see(record.with_first_value()));
        }
        self.engine.peek(key, &mut |record| see(record.with_first_value()))
    }

    /// Passes the live records from a position on (`None`: the start) to `see` until `see` breaks.
    /// Returns the position at which to continue, or `None` at the end. The guarantees of
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
            // No commit takes place in the middle of a group, and a commit waits for one group at
            // most.
            let _no_commit = self.transaction_lock.block_commits();
            let mut seen = 0;
            place = self.engine.scan(place, &mut |key, record| {
                seen += 1;
                if record.attributes.expiry.is_live(now) && see(key, record.with_first_value()).is_break() {
                    has_broken = true;
                }
                if has_broken || seen == GROUP_RECORDS {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            if place.is_none() || has_broken {
                return Ok(place);
            }
        }
    }

    /// Passes the live records from a key on to `see`, in the order of their keys, until `see`
    /// breaks. The guarantees of [`OrderedEngine`] hold. Fails with `Invalid` if the engine is not
    /// ordered.
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
                if record.attributes.expiry.is_live(now) && see(key, record.with_first_value()).is_break() {
                    has_broken = true;
                }
                if seen == GROUP_RECORDS {
                    last.extend_from_slice(key);
                }
                if has_broken || seen == GROUP_RECORDS {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            if has_broken || seen < GROUP_RECORDS {
                return Ok(());
            }
            from = Bound::Excluded(last);
        }
    }

    /// Scans the attributes of the live records, without their values.
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
