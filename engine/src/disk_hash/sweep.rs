//! Sweeps for expired records, segment by segment. Segments in which no record can have expired are
//! skipped.

use super::DiskHash;
use super::entry::PUT;
use super::page::EntryLocation;
use super::segment::{HEADER_LEN, Segment};
use super::shard::shard_of;
use super::walk::walk;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use todana_core::{Expiry, Result, ScanPosition, SweepAim, SweepProgress, SweepableEngine, UnixSeconds};

/// Segments shorter than this are always read.
const SKIPPED_LEN_MIN: u64 = 512 << 10;

/// Returns a scan position: the number of the segment in the upper 32 bits, and the offset / 8 in
/// the lower ones.
fn place(number: u64, offset: u64) -> Option<ScanPosition> {
    Some(ScanPosition::Number((number << 32) | (offset / 8)))
}

impl SweepableEngine for DiskHash {
    /// Calls `is_over` with the earliest expiry of a long segment before reading the segment. If
    /// the result is false, no record of the segment has expired, and the segment is skipped at no
    /// cost; its records are not counted as seen. Reading a segment costs tens of nanoseconds per
    /// entry.
    fn sweep(
        &self,
        from: Option<ScanPosition>,
        records_max: usize,
        _aim: SweepAim,
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> Result<SweepProgress> {
        self.refuse_if_closed()?;
        let from = from.map_or(0, |place| place.number());
        let (from_number, from_offset) = (from >> 32, (from & u64::from(u32::MAX)) * 8);
        self.log.flush()?;
        let mut swept = SweepProgress::default();
        for segment in self.log.table().0.by_age() {
            if segment.number < from_number {
                continue;
            }
            let offset = if segment.number == from_number { from_offset } else { 0 };
            let earliest_expiry = segment.earliest_expiry.load(Ordering::Relaxed);
            if earliest_expiry == u64::MAX {
                continue;
            }
            let may_skip = offset == 0 && segment.len() > SKIPPED_LEN_MIN;
            if may_skip && !is_over(Expiry::At(UnixSeconds(earliest_expiry))) {
                continue;
            }
            if let Some(end) = self.sweep_segment(&segment, offset, records_max, is_over, &mut swept)? {
                swept.next = place(segment.number, end);
                return Ok(swept);
            }
        }
        Ok(swept)
    }
}

impl DiskHash {
    /// Removes the expired records of a segment. Returns the offset at which to continue, or `None`
    /// at its end and if the remainder is unreadable.
    fn sweep_segment(
        &self,
        segment: &Arc<Segment>,
        from: u64,
        records_max: usize,
        is_over: &mut dyn FnMut(Expiry) -> bool,
        swept: &mut SweepProgress,
    ) -> Result<Option<u64>> {
        // `is_sealed` is read first: if it is true, `limit` is the final end of the segment. A
        // segment may be sealed while it is read, and entries after `limit` are not read.
        let is_sealed = segment.is_sealed.load(Ordering::Acquire);
        let limit = segment.flushed.load(Ordering::Acquire);
        // This is the earliest expiry of the records that remain in the segment.
        let mut earliest_expiry = u64::MAX;
        let start = from.max(HEADER_LEN as u64);
        let mut stopped = false;
        let end = walk(segment, start, limit, 64 << 10, &mut |at, head, bytes| {
            if swept.seen >= records_max as u64 {
                stopped = true;
                return Ok(false);
            }
            if head.kind != PUT {
                return Ok(true);
            }
            swept.seen += 1;
            let Some(expires) = head.attributes.expiry.at() else { return Ok(true) };
            let key = head.key(bytes);
            let hash = self.hash(key);
            let mut shard = self.lock_shard(shard_of(hash));
            let here = EntryLocation { slot: segment.slot, unit: (at / 8) as u32 };
            // Compaction may have dropped the segment meanwhile and reused its slot.
            if shard.table.get(segment.slot).is_none_or(|now| now.number != segment.number) {
                return Ok(true);
            }
            let Some(index) = shard.slot_at(hash, here) else { return Ok(true) };
            if is_over(head.attributes.expiry) {
                self.remove(&mut shard, hash, key, (index, head.len))?;
                swept.removed += 1;
            } else {
                earliest_expiry = earliest_expiry.min(expires.0);
            }
            Ok(true)
        })?;
        if end < limit && !stopped {
            // The remainder is unreadable, so continue with the other segments.
            return Ok(None);
        }
        // The earliest expiry is exact only if the complete segment was read in one call.
        if end == limit && start == HEADER_LEN as u64 && is_sealed {
            segment.earliest_expiry.store(earliest_expiry, Ordering::Relaxed);
        }
        Ok((end < limit).then_some(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_hash::DiskHashOptions;
    use todana_core::{Action, Attributes, Engine, Record, Visitor};

    struct Set(Expiry);

    impl Visitor for Set {
        fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
            Action::Put(Record::new(b"value", Attributes { expiry: self.0, ..Attributes::default() }))
        }
    }

    /// Returns a database with one record, and its segment.
    fn hash(folder: &std::path::Path, expiry: Expiry) -> (DiskHash, Arc<Segment>) {
        let hash =
            DiskHash::open(folder, DiskHashOptions { seed: Some(7), ..DiskHashOptions::default() }).unwrap();
        hash.visit(b"crane", &mut Set(expiry)).unwrap();
        hash.log.flush().unwrap();
        let segment = hash.log.table().0.by_age().pop().unwrap();
        (hash, segment)
    }

    #[test]
    fn dropped_segment_does_not_affect_its_slot() {
        let folder = tempfile::tempdir().unwrap();
        let (old, segment) = hash(&folder.path().join("old.hash"), Expiry::At(UnixSeconds(1)));
        let (new, now) = hash(&folder.path().join("new.hash"), Expiry::Never);
        assert_eq!((segment.slot, segment.number), (now.slot, now.number));
        let limit = segment.flushed.load(Ordering::Acquire);
        let file = old.log.disk.open(&segment.path, false).unwrap();
        let dropped = Segment::new(
            (segment.number + 9, segment.slot),
            segment.path.clone(),
            file,
            segment.seed,
            limit,
            true,
        );
        dropped.len.store(limit, Ordering::Relaxed);
        dropped.flushed.store(limit, Ordering::Release);

        let mut swept = SweepProgress::default();
        new.sweep_segment(&Arc::new(dropped), 0, 100, &mut |_| true, &mut swept).unwrap();
        assert_eq!((swept.seen, swept.removed), (1, 0));
        assert!(new.view(b"crane", &mut |_| ()).unwrap());
        // The same entry, in the live segment, is removed.
        old.sweep_segment(&segment, 0, 100, &mut |_| true, &mut swept).unwrap();
        assert_eq!(swept.removed, 1);
    }

    /// Records were appended while a sweep read the segment. The sweep then stored an earliest
    /// expiry later than theirs, so they were never removed.
    #[test]
    fn record_appended_during_sweep_keeps_its_expiry() {
        let folder = tempfile::tempdir().unwrap();
        let (hash, segment) = hash(folder.path(), Expiry::At(UnixSeconds(900)));
        let busy = shard_of(hash.hash(b"crane"));
        let key = (0u32..).map(u32::to_be_bytes).find(|key| shard_of(hash.hash(key)) != busy).unwrap();
        let mut is_over = |_| {
            // The sweep holds only the shard of the record that it has read.
            hash.visit(&key, &mut Set(Expiry::At(UnixSeconds(60)))).unwrap();
            hash.log.lock().begin_segment(0).unwrap();
            false
        };
        let mut swept = SweepProgress::default();
        assert_eq!(hash.sweep_segment(&segment, 0, 100, &mut is_over, &mut swept).unwrap(), None);
        assert!(segment.is_sealed.load(Ordering::Acquire));
        assert_eq!((swept.seen, segment.earliest_expiry.load(Ordering::Relaxed)), (1, 60));
    }
}
