//! Does the maintenance of a hash on disk. Its main part is compaction: it copies the live entries
//! of a segment with much garbage to the end of the log and removes the segment.
//!
//! ```text
//! target: its live entries are appended to the log -> "dropped" entry -> sync -> the file is removed
//! ```
//!
//! A remove entry is live as long as an older segment may contain a record of its key. Compaction
//! copies a live remove entry too, unless the key has a record again. The segment with the largest
//! share of garbage is compacted first. The oldest segment takes precedence if none of its records
//! are live, so that the records before a clear are removed before the clear entry. A segment is
//! never changed, so a crash leaves either the segment or copies of all of its live entries.

use super::DiskHash;
use super::entry::{self, PUT, REMOVE};
use super::index_file::IndexWriter;
use super::page::{EntryLocation, IndexSlot, class_of, least_len, tag_of};
use super::scratch::ThreadScratch;
use super::segment::{HEADER_LEN, LogPosition, PREFETCHED_MAX, Segment};
use super::shard::{IndexShard, PAGES, SHARDS, shard_of};
use super::walk::walk;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use todana_core::{Error, ErrorKind, Expiry, Result};

/// The length of the piece of a segment that one step of a log scan reads.
const STEP_LEN: u64 = 256 << 10;
/// Longer entries are not kept in memory after the scan, but read again when they are copied.
const KEPT_MAX: usize = 16 << 10;
/// The buffer of the log is written after at most this number of steps.
const FLUSH_STEPS: u64 = 64;
/// The length of a target that one step of an index scan reads into memory.
const READ_LEN: u64 = 4 << 20;
/// The longest segment that is read into memory if it is not mapped.
const COPIED_MAX: u64 = 16 << 20;
/// The index is scanned if all live bytes are at most this many times the live bytes of the target.
/// Otherwise the log is scanned. A slot that points elsewhere costs about a nanosecond; looking up
/// an entry of the log costs tens of nanoseconds.
const PAGES_SEARCHED: u64 = 100;
/// The number of slots that one step visits at most, even if few of them point to the target.
const SLOTS_MAX: usize = 64 << 10;
/// The number of small segments that are left alone. A segment is small if it is shorter than a
/// quarter of the minimum length.
const SMALL_MAX: usize = 8;
/// The number of compacted segments that share one sync before they are removed.
const DRAINED_MAX: usize = 2;
/// While disk space is short, the live entries of a target take at most the reserve divided by this
/// number. The remainder is left to removals and to the next opening.
const RESERVE_SHARE: u64 = 4;
/// The smallest share of garbage that makes compaction worthwhile.
const GARBAGE_SHARE_MIN: f64 = 0.05;

/// A put entry in a piece of a segment that was read ("stretch").
struct StretchEntry {
    hash: u64,
    at: u64,
    len: usize,
    expiry: Expiry,
    /// The range of its bytes in the stretch; empty if the entry is long.
    bytes: Range<usize>,
}

/// The put entries in a piece of a segment that was read.
struct SegmentStretch {
    by_shard: [Vec<StretchEntry>; SHARDS],
    bytes: Vec<u8>,
}

impl Default for SegmentStretch {
    fn default() -> SegmentStretch {
        SegmentStretch { by_shard: std::array::from_fn(|_| Vec::new()), bytes: Vec::new() }
    }
}

impl SegmentStretch {
    fn add(&mut self, hash: u64, at: u64, head: &entry::EntryHead, bytes: &[u8]) {
        let start = self.bytes.len();
        if head.len <= KEPT_MAX && bytes.len() >= head.len {
            self.bytes.extend_from_slice(&bytes[..head.len]);
        }
        let bytes = start..self.bytes.len();
        let expiry = head.attributes.expiry;
        self.by_shard[shard_of(hash)].push(StretchEntry { hash, at, len: head.len, expiry, bytes });
    }
}

/// The way in which the live entries of a segment are found.
enum CompactionMethod {
    /// The segment has no live entries, so it is only dropped.
    DropOnly,
    /// Reads the entries of the segment and looks each of them up in the index. This is cheaper if
    /// the segment is a small part of the log, and no other method finds remove entries.
    /// `are_removes_live` is true if some remove entries are live.
    ScanLog { at: u64, are_removes_live: bool },
    /// Scans the index, one page at a time: the index is read sequentially and no key is hashed.
    /// First the segment is read into memory, into `copy` if it is not mapped; `read` is the length
    /// that has been read so far.
    ScanIndex { read: u64, copy: Vec<u8>, page: usize },
}

/// The segment that is being compacted, and the progress of its compaction.
struct CompactionTarget {
    segment: Arc<Segment>,
    method: CompactionMethod,
    /// True if the copies need little space, so that they are made even if disk space is short.
    is_small: bool,
}

#[derive(Default)]
pub(super) struct MaintenanceState {
    /// The compaction in progress.
    target: Option<CompactionTarget>,
    /// Compacted segments with the position of their "dropped" entry. A segment can be removed when
    /// that position is on disk.
    drained: Vec<(Arc<Segment>, LogPosition)>,
    /// The number of steps so far, and the value of `RecordLog::appended` at the last step.
    steps: u64,
    seen: u64,
    /// The next target is chosen when this number of bytes has been appended.
    choose_at: u64,
    pub(super) index: Option<IndexWriter>,
    /// The number of bytes that had been appended when the index was last written.
    pub(super) indexed_bytes: u64,
    /// The number of copies of the database in progress. They need all current files, so no file is
    /// removed meanwhile.
    pub(super) copies: usize,
}

impl DiskHash {
    /// Does one step of maintenance. Returns true if there is more to do at once.
    pub(super) fn run_maintenance(&self) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let Some(mut maintenance) = self.maintenance.try_lock() else { return false };
        let outcome = self.step(&mut maintenance);
        if !matches!(outcome, Ok(true)) || maintenance.steps.is_multiple_of(FLUSH_STEPS) {
            // If the files still refuse writes, `refused_write` reports the error.
            let _ = self.retry_refused();
        }
        match outcome {
            Ok(has_more) => {
                let is_over = |error: &Error| {
                    let is_damaged = |segment: &Arc<Segment>| segment.has_damage.load(Ordering::Relaxed);
                    error.kind() != ErrorKind::Corrupt
                        || !self.log.table().0.slots.iter().flatten().any(is_damaged)
                };
                let mut maintenance_error = self.maintenance_error.lock();
                if !has_more && maintenance_error.as_ref().is_some_and(is_over) {
                    *maintenance_error = None;
                }
                has_more
            }
            Err(error) => {
                *self.maintenance_error.lock() = Some(error);
                false
            }
        }
    }

    fn step(&self, maintenance: &mut MaintenanceState) -> Result<bool> {
        // During continuous writing the log writes full stretches of the buffer by itself. So this
        // step writes the buffer only if nothing was appended since the last step, or after a
        // number of steps.
        let appended = self.log.appended();
        maintenance.steps += 1;
        if appended == maintenance.seen || maintenance.steps.is_multiple_of(FLUSH_STEPS) {
            self.log.flush()?;
        }
        maintenance.seen = appended;
        let is_short = self.is_space_short();
        if is_short {
            // A target that was chosen before could take the space that removals need.
            maintenance.target.take_if(|target| !target.is_small);
            // The space of a compacted segment is freed before more is used. A copy of the database
            // in progress may prevent that.
            self.remove_drained(maintenance)?;
            // There may be space again for the part of the reserve that could not be held.
            if !self.log.reserve.is_spent() && maintenance.steps.is_multiple_of(FLUSH_STEPS) {
                self.log.reserve.hold(self.log.reserve_bytes);
            }
        }
        // Choosing a target reads all shards. It is done only after enough writes to have created a
        // target.
        let is_due = self.log.appended() >= maintenance.choose_at || self.log.reserve.is_spent();
        let may_choose = !is_short || maintenance.drained.is_empty();
        if maintenance.target.is_none() && is_due && may_choose {
            maintenance.target = self.choose_target();
            if maintenance.target.is_none() {
                maintenance.choose_at = self.log.appended() + self.log.slack() / 16;
            }
        }
        if maintenance.target.is_none() || maintenance.drained.len() >= DRAINED_MAX {
            self.remove_drained(maintenance)?;
        }
        let Some(mut target) = maintenance.target.take() else { return self.index_step(maintenance) };
        if self.compact(&mut target)? || self.needs_index_scan(&mut target) {
            maintenance.target = Some(target);
        } else {
            let position = self.drop_target(&target)?;
            maintenance.drained.push((target.segment, position));
        }
        // The index must be written now and then, even if there is always a segment to compact.
        self.index_step(maintenance)?;
        Ok(true)
    }

    /// Returns true while the disk is full, or was recently so full that the reserve is incomplete.
    fn is_space_short(&self) -> bool {
        self.log.reserve.is_reduced(self.log.reserve_bytes)
    }

    /// Returns true if a segment still counts live bytes although all live entries that were found
    /// are copied. Then changes the method of the target to a scan of the index, which is exact.
    fn needs_index_scan(&self, target: &mut CompactionTarget) -> bool {
        let slot = target.segment.slot as usize;
        let asks = !matches!(target.method, CompactionMethod::ScanIndex { .. })
            && self.live_by_slot().get(slot).is_some_and(|&left| left > 0);
        if asks {
            target.method = CompactionMethod::ScanIndex { read: 0, copy: Vec::new(), page: 0 };
        }
        asks
    }

    /// Drops a segment without live entries.
    fn drop_target(&self, target: &CompactionTarget) -> Result<LogPosition> {
        let segment = &target.segment;
        if matches!(target.method, CompactionMethod::ScanIndex { .. }) {
            // No slot points to the segment, but damaged records that were removed may have left a
            // count of live bytes.
            let slot = segment.slot as usize;
            let lives = self.shards.iter().map(|shard| shard.0.write());
            lives.for_each(|mut shard| shard.live.get_mut(slot).into_iter().for_each(|live| *live = 0));
        }
        self.log.lock().drop_segment(segment)
    }

    /// Returns the live bytes of each segment, indexed by the segment's slot.
    fn live_by_slot(&self) -> Vec<u64> {
        let mut sums: Vec<u64> = Vec::new();
        for shard in &self.shards {
            let shard = shard.0.read();
            if sums.len() < shard.live.len() {
                sums.resize(shard.live.len(), 0);
            }
            sums.iter_mut().zip(&shard.live).for_each(|(sum, live)| *sum += live);
        }
        sums
    }

    /// Returns the segment to compact next, if compacting any segment is worthwhile.
    fn choose_target(&self) -> Option<CompactionTarget> {
        let (table, _) = self.log.table();
        let mut segments = table.by_age();
        // The sealed segments are selected before the live bytes are read, so that the live bytes
        // reflect a clear in one of these segments.
        segments.retain(|segment| segment.is_sealed.load(Ordering::Acquire));
        let live = self.live_by_slot();
        let counts = |segment: &Segment| live.get(segment.slot as usize).copied().unwrap_or(0);
        // A clear entry is not copied. It may be dropped only after everything that it cleared,
        // which lies in the segments before it. After a clear these segments are the oldest, and
        // none of their records are live.
        if let Some(oldest) = segments.first().filter(|oldest| counts(oldest) == 0) {
            return Some(self.target(oldest, &segments, &live));
        }
        let (total, live_total) = (self.log.bytes(), live.iter().sum::<u64>());
        // Any gain is worthwhile if disk space is short, but it must need little space.
        let is_short = self.is_space_short();
        if !is_short && total as f64 <= live_total as f64 * self.space_factor + self.log.slack() as f64 {
            return self.choose_small_segment(&segments, &live);
        }
        let reserve = &self.log.reserve;
        let reserve_len = if reserve.is_spent() { self.log.reserve_bytes } else { reserve.len() };
        let kept_max = if is_short { reserve_len / RESERVE_SHARE } else { u64::MAX };
        let (mut best, mut best_share) = (None, GARBAGE_SHARE_MIN);
        let (mut removes_total, mut oldest) = (0, None);
        for (age, segment) in segments.iter().enumerate() {
            let remove_bytes = segment.remove_bytes.load(Ordering::Relaxed);
            removes_total += remove_bytes;
            if age == 0 && remove_bytes > 0 && segment.has_damage.swap(false, Ordering::Relaxed) {
                // Remove entries in the oldest segment have become unnecessary. If the damage in
                // this segment is only in remove entries, the segment can be dropped now; this is
                // tried once.
                segment.remove_bytes.store(0, Ordering::Relaxed);
            }
            let is_empty = counts(segment) + remove_bytes == 0;
            if segment.has_damage.load(Ordering::Relaxed) && !is_empty {
                continue;
            }
            let kept = counts(segment) + if age == 0 { 0 } else { remove_bytes };
            if kept > kept_max {
                continue;
            }
            let share = 1.0 - (kept as f64 / segment.len() as f64).min(1.0);
            if share > best_share {
                (best, best_share) = (Some(segment), share);
            }
            oldest = oldest.or((age == 0).then_some(segment));
        }
        if best_share < 0.2 && removes_total as f64 > total as f64 * GARBAGE_SHARE_MIN {
            // Remove entries become garbage only when the segments before them are gone, so compact
            // the oldest.
            best = oldest.or(best);
        }
        let best = best?;
        if is_short {
            // Compaction must leave as much space as it takes.
            let kept = counts(best) + best.remove_bytes.load(Ordering::Relaxed);
            self.log.lock().check_space(kept.saturating_mul(2)).ok()?;
        }
        Some(CompactionTarget { is_small: is_short, ..self.target(best, &segments, &live) })
    }

    /// Chooses the oldest of the small segments if there are many. Each opening begins a segment,
    /// so segments can remain small.
    fn choose_small_segment(&self, segments: &[Arc<Segment>], live: &[u64]) -> Option<CompactionTarget> {
        let is_small = |segment: &&Arc<Segment>| {
            !segment.has_damage.load(Ordering::Relaxed) && segment.len() < self.log.slack() / 8
        };
        let mut small = segments.iter().filter(is_small);
        let oldest = small.next()?;
        (small.count() >= SMALL_MAX).then(|| self.target(oldest, segments, live))
    }

    /// Decides how to compact a segment. `live` holds the live bytes of each segment, indexed by
    /// the segment's slot.
    fn target(&self, segment: &Arc<Segment>, segments: &[Arc<Segment>], live: &[u64]) -> CompactionTarget {
        let segment = Arc::clone(segment);
        let live_total: u64 = live.iter().sum();
        let counts = live.get(segment.slot as usize).copied().unwrap_or(0);
        let is_oldest = segments.first().is_some_and(|oldest| oldest.number == segment.number);
        let are_removes_live = !is_oldest && segment.remove_bytes.load(Ordering::Relaxed) > 0;
        let method = if counts == 0 && !are_removes_live {
            match segment.is_live_estimated.load(Ordering::Relaxed) {
                // The counts are estimates, but the index is exact. The segment is not read
                // beforehand because the scan will need hardly any of its entries.
                true => CompactionMethod::ScanIndex { read: segment.len(), copy: Vec::new(), page: 0 },
                false => CompactionMethod::DropOnly,
            }
        } else if are_removes_live
            || counts.saturating_mul(PAGES_SEARCHED) < live_total
            || segment.len() > COPIED_MAX && !segment.is_mapped()
        {
            CompactionMethod::ScanLog { at: HEADER_LEN as u64, are_removes_live }
        } else {
            CompactionMethod::ScanIndex { read: 0, copy: Vec::new(), page: 0 }
        };
        CompactionTarget { segment, method, is_small: counts == 0 && !are_removes_live }
    }

    /// Copies some of the live entries of a segment. Returns false when all of them are copied.
    fn compact(&self, target: &mut CompactionTarget) -> Result<bool> {
        let segment = &target.segment;
        match &mut target.method {
            CompactionMethod::DropOnly => Ok(false),
            CompactionMethod::ScanLog { at, are_removes_live } => {
                match self.compact_stretch(segment, *at, *are_removes_live) {
                    Ok(next) => {
                        *at = next;
                        Ok(next < segment.len())
                    }
                    // The damaged entry may be garbage. The scan of the index will show whether it
                    // is.
                    Err(error) if error.kind() == ErrorKind::Corrupt && !*are_removes_live => {
                        target.method = CompactionMethod::ScanIndex { read: 0, copy: Vec::new(), page: 0 };
                        Ok(true)
                    }
                    Err(error) => Err(error),
                }
            }
            CompactionMethod::ScanIndex { read, copy, .. } if *read < segment.len() => {
                let until = (*read + READ_LEN).min(segment.len());
                if segment.populated(*read, until).is_none() && segment.len() <= COPIED_MAX {
                    copy.resize(until as usize, 0);
                    if segment.read_at(*read, &mut copy[*read as usize..])? < (until - *read) as usize {
                        copy.clear();
                    }
                }
                *read = until;
                Ok(true)
            }
            CompactionMethod::ScanIndex { copy, page, .. } => {
                let (mut moved, mut seen, mut scratch) = (0, 0, ThreadScratch::take());
                while *page < SHARDS * PAGES && moved < STEP_LEN && seen < SLOTS_MAX {
                    let (bytes, slots) = self.move_page(segment, copy, *page, &mut scratch.old)?;
                    (moved, seen) = (moved + bytes, seen + slots);
                    *page += 1;
                }
                Ok(*page < SHARDS * PAGES)
            }
        }
    }

    /// Copies those records of a page of the index that lie in the segment. Returns the length of
    /// these records and the number of slots visited. `copy` holds the bytes of the segment, or is
    /// empty.
    fn move_page(
        &self,
        segment: &Segment,
        copy: &[u8],
        page: usize,
        old: &mut Vec<u8>,
    ) -> Result<(u64, usize)> {
        let mut guard = self.lock_shard(page / PAGES);
        let IndexShard { part, .. } = &mut *guard;
        let mut found = Vec::with_capacity(64);
        part.pages[page % PAGES].slots_of_segment(segment.slot, &mut found);
        for (_, slot) in &found {
            segment.prefetch(u64::from(slot.location().unit) * 8, slot.class(), PREFETCHED_MAX);
        }
        let (mut appender, mut moved) = (None, 0);
        for (index, slot) in found {
            let at = slot.location();
            let offset = u64::from(at.unit) * 8;
            let copied =
                copy.get(offset as usize..).and_then(|bytes| entry::decode(bytes, segment.seed_at(offset)));
            let (head, bytes) = match copied {
                Some(found) => found,
                None => {
                    let fetched = self.log.fetch(segment, at.unit, slot.class(), old);
                    let fetched = fetched.inspect_err(|error| {
                        // This flag stays set until the damaged record is overwritten.
                        let is_damage = error.kind() == ErrorKind::Corrupt;
                        segment.has_damage.fetch_or(is_damage, Ordering::Relaxed);
                        if is_damage && part.live.get(at.slot as usize).is_none_or(|&live| live == 0) {
                            // A segment without live bytes would be chosen again before all others.
                            part.add_live(at.slot, least_len(slot.class()));
                        }
                    })?;
                    (fetched.head, fetched.bytes(old))
                }
            };
            let appender = appender.get_or_insert_with(|| self.log.lock());
            let appended = appender.append_copy(bytes)?;
            appender.segment().note_expiry(head.attributes.expiry);
            let slot = IndexSlot::new(slot.tag(), class_of(appended.len), appended.at);
            part.move_entry((page % PAGES, index), slot, appended.len, head.len);
            moved += head.len as u64;
        }
        Ok((moved, part.pages[page % PAGES].len()))
    }

    /// Copies the live entries of a stretch of a segment. Returns the offset of the next stretch.
    fn compact_stretch(&self, segment: &Arc<Segment>, from: u64, are_removes_live: bool) -> Result<u64> {
        let until = from + STEP_LEN;
        let mut scratch = ThreadScratch::take();
        let mut is_enough = false;
        // The entries are grouped by shard, so that each shard is locked once.
        let mut stretch = SegmentStretch::default();
        let end = walk(segment, from, segment.len(), STEP_LEN as usize, &mut |at, head, bytes| {
            if at >= until {
                is_enough = true;
                return Ok(false);
            }
            match head.kind {
                PUT => stretch.add(self.hash(head.key(bytes)), at, head, bytes),
                REMOVE if are_removes_live => self.move_remove(head.key(bytes), &mut scratch.old)?,
                _ => {}
            }
            Ok(true)
        })?;
        if end < segment.len() && !is_enough {
            // If no remove entry is live, a scan of the index can find the live entries despite the
            // damage.
            segment.has_damage.fetch_or(are_removes_live, Ordering::Relaxed);
            return Err(
                segment.corrupt(end, "the checksum of the entry differs; the segment is not compacted")
            );
        }
        for (index, entries) in stretch.by_shard.iter().enumerate().filter(|(_, entries)| !entries.is_empty())
        {
            self.move_records(segment, index, entries, &stretch.bytes, &mut scratch.old)?;
        }
        Ok(end)
    }

    /// Copies those records of a shard that the index still points to.
    fn move_records(
        &self,
        segment: &Segment,
        index: usize,
        entries: &[StretchEntry],
        bytes: &[u8],
        old: &mut Vec<u8>,
    ) -> Result<()> {
        let mut guard = self.lock_shard(index);
        let shard = &mut *guard;
        // The slots of these records are far apart in memory, so several slots are prefetched at
        // once.
        const AHEAD: usize = 8;
        entries.iter().take(AHEAD).for_each(|entry| shard.prefetch(entry.hash));
        let mut appender = None;
        for (nth, entry) in entries.iter().enumerate() {
            if let Some(ahead) = entries.get(nth + AHEAD) {
                shard.prefetch(ahead.hash);
            }
            let place = EntryLocation { slot: segment.slot, unit: (entry.at / 8) as u32 };
            let Some(index) = shard.slot_at(entry.hash, place) else { continue };
            let mut long: &[u8] = &[];
            if entry.bytes.is_empty() {
                // The entry is too long to have been kept in memory. Read it without holding the
                // lock on the end of the log.
                drop(appender.take());
                let fetched = self.log.fetch(segment, place.unit, class_of(entry.len), old)?;
                long = fetched.bytes(old);
            }
            let bytes = if entry.bytes.is_empty() { long } else { &bytes[entry.bytes.clone()] };
            let appender = appender.get_or_insert_with(|| self.log.lock());
            let appended = appender.append_copy(bytes)?;
            appender.segment().note_expiry(entry.expiry);
            let slot = IndexSlot::new(tag_of(entry.hash), class_of(appended.len), appended.at);
            shard.enter(entry.hash, slot, appended.len, Some((index, entry.len)));
        }
        Ok(())
    }

    fn move_remove(&self, key: &[u8], old: &mut Vec<u8>) -> Result<()> {
        let hash = self.hash(key);
        let shard = self.lock_shard(shard_of(hash));
        let mut damage = None;
        // A damaged record that may belong to the key is later than the remove entry and has its
        // effect: as long as the damaged record is live, older records of the key are not.
        if self.find(&shard.part, &shard.table, hash, key, old, &mut damage)?.is_some() || damage.is_some() {
            return Ok(());
        }
        let mut appender = self.log.lock();
        appender.prepare(entry::padded(10 + key.len()), 0)?;
        let appended = appender.append_small(|buffer| entry::put_remove(buffer, key));
        appender.segment().remove_bytes.fetch_add(appended.len as u64, Ordering::Relaxed);
        Ok(())
    }

    fn remove_drained(&self, maintenance: &mut MaintenanceState) -> Result<()> {
        let Some(last) = maintenance.drained.iter().map(|(_, position)| *position).max() else {
            return Ok(());
        };
        if maintenance.copies > 0 {
            return Ok(());
        }
        if self.log.synced() < last {
            self.log.sync()?;
        }
        for (segment, _) in maintenance.drained.drain(..) {
            // A file that cannot be removed now is removed by the next opening.
            if self.log.disk.remove(&segment.path).is_ok() {
                segment.is_removed.store(true, Ordering::Relaxed);
            }
            self.log.dropped_bytes.fetch_sub(segment.len(), Ordering::Relaxed);
        }
        self.log.note_name();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_hash::DiskHashOptions;
    use crate::visitor::Set;
    use todana_core::{DurableEngine, Engine};

    #[test]
    fn compaction_step_over_long_index_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let open = || DiskHash::open(folder.path(), DiskHashOptions::default()).unwrap();
        let hash = open();
        hash.visit(b"crane", &mut Set(b"value")).unwrap();
        hash.close().unwrap();
        drop(hash);
        let hash = open();
        for n in 0..2 * SLOTS_MAX as u32 {
            hash.visit(&n.to_be_bytes(), &mut Set(b"value")).unwrap();
        }
        let segment = hash.log.table().0.by_age().swap_remove(0);
        let method = CompactionMethod::ScanIndex { read: segment.len(), copy: Vec::new(), page: 0 };
        let mut target = CompactionTarget { segment, method, is_small: false };
        let mut steps = 1;
        while hash.compact(&mut target).unwrap() {
            steps += 1;
        }
        // Without `SLOTS_MAX` one step would visit all slots.
        assert_eq!(steps, 2);
        assert!(hash.view(b"crane", &mut |_| ()).unwrap());
    }
}
