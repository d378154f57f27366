//! Scans over all live records. Between two groups of records, a commit may take place.

use super::Database;
use crate::records::{self, ScanDirection};
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};
use todana_core::{Attributes, Record, RecordDetails, Result, ScanPosition};

/// The number of records that a scan returns before a commit may take place.
pub(super) const GROUP_RECORDS: usize = 256;

/// The order of a scan.
#[derive(Clone, Copy)]
enum ScanKind {
    /// Records that are changed meanwhile keep their places.
    Stable,
    /// The same, for a reader that reads a long value only in shared form.
    StableShared,
    /// All records are read as fast as possible.
    Fastest,
}

impl Database {
    /// Passes a record to `see` as it is stored, even if it has expired, but never in the middle of
    /// a commit. Returns false if there is no such record. Does not count as an access.
    pub fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.peek_stored(key, &mut |record| see(record.with_first_value()))
    }

    /// Does the same as [`peek`](Self::peek), but shows all values of a key
    /// ([`Record::values`]) instead of the first.
    pub fn peek_stored(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let _no_commit = self.transaction_lock.block_commits();
        if self.must_resolve(key) {
            let (mut text, commit) = ([0; 20], Cell::default());
            let key = self.resolved(self.space(&commit), key, self.clock.now(), &mut text)?;
            return self.engine.peek(key, see);
        }
        self.engine.peek(key, see)
    }

    /// Passes the live records from a position on (`None`: the start) to `see` until `see` breaks.
    /// Returns the position at which to continue, or `None` at the end. The guarantees of
    /// [`Engine::scan`](todana_core::Engine::scan) hold.
    pub fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_stored(from, &mut |key, record| see(key, record.with_first_value()))
    }

    /// Does the same as [`scan`](Self::scan), but shows all values of a key ([`Record::values`])
    /// instead of the first.
    pub fn scan_stored(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_groups(ScanKind::Stable, from, see)
    }

    /// Does the same as [`scan_stored`](Self::scan_stored), but in the order in which all records
    /// are read fastest. A record that is changed or moved meanwhile may be shown again, as it is
    /// then. This suits reads of all records that change none of them
    /// ([`Engine::read_all`](todana_core::Engine::read_all)).
    pub fn read_all_stored(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_groups(ScanKind::Fastest, from, see)
    }

    fn scan_groups(
        &self,
        kind: ScanKind,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let (mut place, has_broken) = (from, Cell::new(false));
        loop {
            place =
                self.scan_one_group(kind, place, &mut |key, record| noted(see(key, record), &has_broken))?;
            if place.is_none() || has_broken.get() {
                return Ok(place);
            }
        }
    }

    /// Does the same as [`scan`](Self::scan) with a bounded number of records, of which expired
    /// ones count too. Returns the position at which to continue, or `None` at the end.
    pub fn scan_group(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_one_group(ScanKind::Stable, from, &mut |key, record| see(key, record.with_first_value()))
    }

    /// Does the same as [`scan_group`](Self::scan_group), for a reader that needs only keys and
    /// attributes.
    pub fn scan_keys_group(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], &Attributes) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_one_group(ScanKind::StableShared, from, &mut |key, record| see(key, &record.attributes))
    }

    /// Does the same as [`scan_group`](Self::scan_group) in the order of
    /// [`read_all_stored`](Self::read_all_stored).
    pub fn read_group(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_one_group(ScanKind::Fastest, from, &mut |key, record| see(key, record.with_first_value()))
    }

    fn scan_one_group(
        &self,
        kind: ScanKind,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let now = self.clock.now();
        self.flush_if_due(now);
        // No commit takes place in the middle of a group, and a commit waits for one group at most.
        let _no_commit = self.transaction_lock.block_commits();
        let (mut seen, mut has_broken) = (0, false);
        let mut see = |key: &[u8], record: Record<'_>| {
            seen += 1;
            if record.attributes.expiry.is_live(now) && see(key, record).is_break() {
                has_broken = true;
            }
            if has_broken || seen == GROUP_RECORDS {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        match kind {
            ScanKind::Stable => self.engine.scan(from, &mut see),
            ScanKind::StableShared => self.engine.scan_shared(from, &mut see),
            ScanKind::Fastest => self.engine.read_all(from, &mut see),
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
        self.walk_stored(heading, from, &mut |key, record| see(key, record.with_first_value()))
    }

    /// Does the same as [`walk`](Self::walk), but shows all values of a key ([`Record::values`])
    /// instead of the first.
    pub fn walk_stored(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let has_broken = Cell::new(false);
        let mut see = |key: &[u8], record: Record<'_>| noted(see(key, record), &has_broken);
        let mut last = self.walk_group_stored(heading, from, &mut see)?;
        while let (Some(before), false) = (last, has_broken.get()) {
            last = self.walk_group_stored(heading, Bound::Excluded(&before), &mut see)?;
        }
        Ok(())
    }

    /// Does the same as [`walk`](Self::walk) with a bounded number of records, of which expired
    /// ones count too. Returns the key after which to continue, or `None` at the end.
    pub fn walk_group(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>> {
        self.walk_group_stored(heading, from, &mut |key, record| see(key, record.with_first_value()))
    }

    fn walk_group_stored(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>> {
        let now = self.clock.now();
        self.flush_if_due(now);
        let _no_commit = self.transaction_lock.block_commits();
        let (mut seen, mut last) = (0, None);
        records::walk(&*self.engine, heading, from, &mut |key, record| {
            seen += 1;
            let is_live = record.attributes.expiry.is_live(now);
            if is_live && see(key, record).is_break() || seen == GROUP_RECORDS {
                last = Some(key.to_vec());
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(last)
    }

    /// Scans the attributes of the live records, without their values. The guarantees of
    /// [`read_all_stored`](Self::read_all_stored) hold.
    pub fn list(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], RecordDetails) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let now = self.clock.now();
        // Only engines in memory hold values in compressed shared form.
        let is_on_disk = self.engine.durable().is_some();
        let kind = if is_on_disk { ScanKind::Fastest } else { ScanKind::StableShared };
        self.scan_groups(kind, from, &mut |key, stored| {
            let is_list = stored.attributes.has_value_list;
            let further_values = if is_list { stored.values().skip(1).count() as u64 } else { 0 };
            let record = stored.with_first_value();
            let attributes = record.attributes;
            let inspection = RecordDetails {
                expiry: attributes.expiry,
                access: attributes.access,
                version: attributes.version,
                flags: attributes.flags,
                key_len: key.len() as u64,
                value_len: record.value.len() as u64,
                further_values,
                now,
            };
            see(key, inspection)
        })
    }
}

/// Returns the outcome, and notes whether it is a break.
fn noted(outcome: ControlFlow<()>, has_broken: &Cell<bool>) -> ControlFlow<()> {
    has_broken.set(has_broken.get() || outcome.is_break());
    outcome
}
