//! Tracks changes for snapshots: wraps an engine, and copies a record for every open snapshot
//! before the record changes.
//!
//! Invariant: before a record changes, each open snapshot has a copy of its old state. The record's
//! lock is held during the copy, so a reader that finds a changed record also finds the old state
//! in the snapshot.

use parking_lot::{Mutex, RwLock};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::{
    Action, Attributes, BoundedEngine, CheckpointedEngine, ContentsToken, DiskUsage, DurableEngine, Engine,
    EngineStatus, Error, ErrorKind, FrozenFile, ImagedEngine, IndexedEngine, NumberedEngine, OrderedEngine,
    Record, RecordRead, RecordSample, Result, ScanOrder, ScanPosition, SweepableEngine, ValueBuffer, Visitor,
};

/// The old state of a record.
#[derive(Clone)]
pub(super) struct OldRecord {
    value: Box<[u8]>,
    attributes: Attributes,
}

impl OldRecord {
    pub(super) fn record(&self) -> Record<'_> {
        Record::new(&self.value, self.attributes)
    }
}

/// The old states of all records that have changed since a snapshot was created. `None` stands for
/// a record that did not exist.
#[derive(Default)]
pub(super) struct SnapshotDelta {
    records: Mutex<BTreeMap<Box<[u8]>, Option<OldRecord>>>,
    /// True if all records were removed at once, which copies no old states.
    is_lost: AtomicBool,
}

impl SnapshotDelta {
    /// Returns the old state of a record, if the record has changed.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<OldRecord>> {
        self.records.lock().get(key).cloned()
    }

    /// Returns the next changed record, in the given direction, that existed when the snapshot was
    /// created.
    pub(super) fn next(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        is_up: bool,
    ) -> Option<(Box<[u8]>, OldRecord)> {
        let records = self.records.lock();
        if is_up {
            if is_empty(from, to) {
                return None;
            }
            records.range::<[u8], _>((from, to)).find_map(|(key, was)| Some((key.clone(), was.clone()?)))
        } else {
            if is_empty(to, from) {
                return None;
            }
            records
                .range::<[u8], _>((to, from))
                .rev()
                .find_map(|(key, was)| Some((key.clone(), was.clone()?)))
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }
}

/// Returns true if the range between the bounds is empty because they meet or cross.
/// `BTreeMap::range` panics for some of these ranges.
fn is_empty(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to) | Bound::Included(to)) => {
            from >= to
        }
        _ => false,
    }
}

/// The open snapshots of a database.
#[derive(Default)]
pub(super) struct SnapshotTracker {
    is_wanted: AtomicBool,
    open: RwLock<Vec<Arc<SnapshotDelta>>>,
}

impl SnapshotTracker {
    /// Registers a snapshot. No transaction may be open. Before writes may begin, the caller must
    /// wait for the visits in progress.
    pub(super) fn open(&self) -> Arc<SnapshotDelta> {
        let delta = Arc::<SnapshotDelta>::default();
        self.open.write().push(Arc::clone(&delta));
        self.is_wanted.store(true, Ordering::SeqCst);
        delta
    }

    pub(super) fn close(&self, delta: &Arc<SnapshotDelta>) {
        let mut open = self.open.write();
        open.retain(|other| !Arc::ptr_eq(other, delta));
        self.is_wanted.store(!open.is_empty(), Ordering::SeqCst);
    }

    #[inline]
    fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    #[cold]
    fn keep_old(&self, key: &[u8], old: Option<Record<'_>>) {
        for delta in &*self.open.read() {
            delta.records.lock().entry(key.into()).or_insert_with(|| {
                old.map(|old| {
                    let attributes = old.attributes;
                    old.with_plain_value(|old| OldRecord { value: old.value.into(), attributes })
                })
            });
        }
    }

    fn discard_all(&self) {
        for delta in &*self.open.read() {
            delta.is_lost.store(true, Ordering::Release);
            delta.records.lock().clear();
        }
    }
}

/// Wraps a visitor, and copies the record before the visitor changes it.
struct TrackingVisitor<'v> {
    inner: &'v mut dyn Visitor,
    key: &'v [u8],
    tracker: &'v SnapshotTracker,
    /// True if the engine was informed that the old value is not needed, so that it may not have
    /// been read.
    ignored_value: Cell<bool>,
}

impl Visitor for TrackingVisitor<'_> {
    #[inline]
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let action = self.inner.visit(old);
        // This check runs under the record's lock. No copy is needed if no snapshot was open when
        // the engine called `ignores_value`: a snapshot that was opened since then waits in
        // `wait_for_visits` for this visit, and sees its result.
        if self.tracker.is_wanted() && action != Action::Keep && !self.ignored_value.get() {
            self.tracker.keep_old(self.key, old);
        }
        action
    }

    fn overwrites(&self) -> bool {
        self.inner.overwrites()
    }

    fn ignores_value(&self) -> bool {
        self.ignored_value.set(!self.tracker.is_wanted() && self.inner.ignores_value());
        self.ignored_value.get()
    }

    fn reads_shared(&self) -> bool {
        // `keep_old` reads a long value in shared form, too.
        self.inner.reads_shared()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.inner.applied(now);
    }
}

/// An engine that tracks its changes for snapshots.
pub(super) struct TrackedEngine {
    pub(super) engine: Box<dyn Engine>,
    pub(super) tracker: Arc<SnapshotTracker>,
}

impl Engine for TrackedEngine {
    #[inline]
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.engine.view(key, see)
    }

    fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.engine.peek(key, see)
    }

    #[inline]
    fn view_shared(&self, key: &[u8], counts: bool, see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.engine.view_shared(key, counts, see)
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.engine.visit(
            key,
            &mut TrackingVisitor {
                inner: visitor,
                key,
                tracker: &self.tracker,
                ignored_value: Cell::new(false),
            },
        )
    }

    fn wait_for_visits(&self) {
        self.engine.wait_for_visits();
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.engine.scan(from, see)
    }

    fn scan_shared(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.engine.scan_shared(from, see)
    }

    fn scan_skipping_damaged(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.engine.scan_skipping_damaged(from, see)
    }

    fn read_all(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.engine.read_all(from, see)
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        // No record can be read between its removal and this callback, so a reader that misses a
        // record finds the snapshot lost.
        self.engine.clear(&mut || {
            self.tracker.discard_all();
            cleared();
        })
    }

    fn status(&self) -> EngineStatus {
        self.engine.status()
    }

    fn sample_records(&self) -> RecordSample {
        self.engine.sample_records()
    }

    fn scan_order(&self) -> Option<ScanOrder> {
        self.engine.scan_order()
    }

    fn begin_ordered_load(&self, order: ScanOrder) {
        self.engine.begin_ordered_load(order);
    }

    fn end_ordered_load(&self) {
        self.engine.end_ordered_load();
    }

    fn prefetch(&self, key: &[u8]) {
        self.engine.prefetch(key);
    }

    fn prefetch_all(&self, keys: &[&[u8]]) {
        self.engine.prefetch_all(keys);
    }

    fn await_read(&self, key: &[u8], may_start: bool) -> RecordRead {
        self.engine.await_read(key, may_start)
    }

    fn has_cold_records(&self) -> bool {
        self.engine.has_cold_records()
    }

    fn maintain(&self) -> bool {
        self.engine.maintain()
    }

    fn recode(&self) {
        self.engine.recode();
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        self.engine.buffer(len)
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        self.engine.room(buffer, len)
    }

    fn bounded(&self) -> Option<&dyn BoundedEngine> {
        self.engine.bounded()
    }

    fn ordered(&self) -> Option<&dyn OrderedEngine> {
        self.engine.ordered()
    }

    fn checkpointed(&self) -> Option<&dyn CheckpointedEngine> {
        self.engine.checkpointed()
    }

    fn indexed(&self) -> Option<&dyn IndexedEngine> {
        self.engine.indexed()
    }

    fn numbered(&self) -> Option<&dyn NumberedEngine> {
        self.engine.numbered()
    }

    fn durable(&self) -> Option<&dyn DurableEngine> {
        self.engine.durable().map(|_| self as &dyn DurableEngine)
    }

    fn imaged(&self) -> Option<&dyn ImagedEngine> {
        self.engine.imaged()
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        self.engine.sweepable()
    }
}

impl TrackedEngine {
    fn files(&self) -> &dyn DurableEngine {
        self.engine.durable().expect("asked only where the engine has the power")
    }
}

impl DurableEngine for TrackedEngine {
    fn flush(&self) -> Result<()> {
        self.files().flush()
    }

    fn sync(&self) -> Result<()> {
        self.files().sync()
    }

    fn apply(&self, changes: &[(&[u8], Action<'_>)]) -> Result<()> {
        if self.tracker.is_wanted() {
            // During a commit, no other thread writes.
            for (key, _) in changes {
                match self.engine.peek(key, &mut |old| self.tracker.keep_old(key, Some(old))) {
                    Ok(true) => {}
                    Ok(false) => self.tracker.keep_old(key, None),
                    // A damaged record counts as missing, as for a single write.
                    Err(error) if error.kind() == ErrorKind::Corrupt => self.tracker.keep_old(key, None),
                    Err(error) => return Err(error),
                }
            }
        }
        self.files().apply(changes)
    }

    fn copy(&self, to: &Path) -> Result<()> {
        self.files().copy(to)
    }

    fn freeze(&self) -> Result<Vec<FrozenFile>> {
        self.files().freeze()
    }

    fn close(&self) -> Result<()> {
        self.files().close()
    }

    fn open_count(&self) -> u32 {
        self.files().open_count()
    }

    fn contents_token(&self) -> ContentsToken {
        self.files().contents_token()
    }

    fn contents_token_at_open(&self) -> Option<ContentsToken> {
        self.files().contents_token_at_open()
    }

    fn open_notes(&self) -> Vec<String> {
        self.files().open_notes()
    }

    fn remove_damaged(&self, count_max: u64) -> Result<u64> {
        self.files().remove_damaged(count_max)
    }

    fn disk_usage(&self) -> DiskUsage {
        self.files().disk_usage()
    }

    fn maintenance_error(&self) -> Option<Error> {
        self.files().maintenance_error()
    }

    fn refused_write_error(&self) -> Option<Error> {
        self.files().refused_write_error()
    }

    fn damaged_records(&self) -> Option<(u64, Error)> {
        self.files().damaged_records()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_engine::{DiskHash, DiskHashOptions};

    /// Snapshots once failed after a clear that was refused, for lack of disk space for example.
    #[test]
    fn refused_clear_keeps_snapshots() {
        let folder = tempfile::tempdir().unwrap();
        let hash = DiskHash::open(folder.path(), DiskHashOptions::default()).unwrap();
        let tracked = TrackedEngine { engine: Box::new(hash), tracker: Arc::default() };
        let delta = tracked.tracker.open();
        tracked.close().unwrap();
        let error = tracked.clear(&mut || ()).unwrap_err();
        assert_eq!((error.kind(), delta.is_lost()), (ErrorKind::Closed, false));
    }
}
