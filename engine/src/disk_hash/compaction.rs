//! MaintenanceState: what counts in a segment with much garbage is written once more, and the segment removed.
//!
//! ```text
//! target: what the index leads to of its entries goes to the end of the log -> "dropped" entry -> sync -> remove the file
//! ```
//!
//! A remove entry counts as long as an older segment may hold a record of its key; it goes along until then, or until there is a
//! record of the key again. The segment whose garbage is the largest share of it goes first, but before all others the oldest one
//! if nothing counts in it: so what a clear has cleared goes before the clear does. A segment is
//! never changed, so a crash at any time leaves either it or all that counted in it.

use super::DiskHash;
use super::entry::{self, PUT, REMOVE};
use super::index_file::IndexWriter;
use super::page::{EntryLocation, IndexSlot, class_of, least_len, tag_of};
use super::scratch::ThreadScratch;
use super::segment::{HEADER_LEN, LogPosition, Segment};
use super::shard::{IndexShard, PAGES, SHARDS, shard_of};
use super::walk::walk;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use todana_core::{Error, ErrorKind, Expiry, Result};

/// So much of a target is is_removed through in a step.
const STEP_LEN: u64 = 256 << 10;
/// The bytes of longer entries are not kept from the first look at them to the second.
const KEPT_MAX: usize = 16 << 10;
/// In so many steps what was written is handed to the system at least once.
const FLUSH_STEPS: u64 = 64;
/// So much of a target is read in a step.
const READ_LEN: u64 = 4 << 20;
/// No more than this of a segment that is not mapped is held in memory.
const COPIED_MAX: u64 = 16 << 20;
/// The index is is_removed through if it leads to no more than so many times what is looked for: a slot that leads elsewhere costs about a
/// nanosecond, an entry of the log that has to be looked up some tens.
const PAGES_SEARCHED: u64 = 100;
/// So many slots of the index are looked at in a step, however few of them lead to the target.
const SLOTS_MAX: usize = 64 << 10;
/// Of segments of less than a quarter of the shortest that are made on purpose, so many stay as they are.
const SMALL_MAX: usize = 8;
/// So many segments wait for the sync that they share before they are removed.
const DRAINED_MAX: usize = 2;
/// It is not worth a segment's rewriting to win less than this share of it.
const GARBAGE_SHARE_MIN: f64 = 0.05;

/// A record's entry in a stretch of a segment.
struct StretchEntry {
    hash: u64,
    at: u64,
    len: usize,
    expiry: Expiry,
    /// Where its bytes are kept; nowhere if they are many.
    bytes: Range<usize>,
}

/// The records' entries of a stretch of a segment.
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

/// How what counts in a segment is found.
enum CompactionMethod {
    /// There is nothing.
    DropOnly,
    /// Its entries are is_removed through, and each looked up in the index. That is all there is to do where the segment is a small part
    /// of the whole; and only so are its remove_bytes found.
    ScanLog { at: u64, removes_count: bool },
    /// The index is is_removed through, a page at a time: it is read in its own order and no key is hashed. `read`: so much of the segment
    /// has been read into memory before; where it is not mapped, into `copy`.
    ScanIndex { read: u64, copy: Vec<u8>, page: usize },
}

/// A segment that is compacted, and how far.
struct CompactionTarget {
    segment: Arc<Segment>,
    method: CompactionMethod,
}

#[derive(Default)]
pub(super) struct MaintenanceState {
    /// What is compacted now, and how far.
    target: Option<CompactionTarget>,
    /// What has been compacted: it can be removed once this position is on disk.
    drained: Vec<(Arc<Segment>, LogPosition)>,
    /// How often a step has been made, and what had been appended before the last one.
    steps: u64,
    seen: u64,
    /// No target is looked for before so many bytes have been appended.
    choose_at: u64,
    pub(super) index: Option<IndexWriter>,
    /// Bytes that had been appended when the index was last written down.
    pub(super) indexed_bytes: u64,
    /// Copies under method, which need all files that there are.
    pub(super) copies: usize,
}

impl DiskHash {
    /// A step of housekeeping; true if there is more to do at once.
    pub(super) fn run_maintenance(&self) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let Some(mut maintenance) = self.maintenance.try_lock() else { return false };
        let outcome = self.step(&mut maintenance);
        if !matches!(outcome, Ok(true)) || maintenance.steps.is_multiple_of(FLUSH_STEPS) {
            // If they do not take it, they are still refusing, and say so.
            let _ = self.retry_refused();
        }
        match outcome {
            Ok(has_more) => {
                let is_over = |error: &Error| {
                    let is_damaged = |segment: &Arc<Segment>| segment.has_damage.load(Ordering::Relaxed);
                    error.kind() != ErrorKind::Corrupt
                        || !self.log.table().0.slots.iter().flatten().any(is_damaged)
                };
                let mut trouble = self.trouble.lock();
                if !has_more && trouble.as_ref().is_some_and(is_over) {
                    *trouble = None;
                }
                has_more
            }
            Err(error) => {
                *self.trouble.lock() = Some(error);
                false
            }
        }
    }

    fn step(&self, maintenance: &mut MaintenanceState) -> Result<bool> {
        // While more and more comes it is written in whole stretches of the file, and by itself; what has come to rest, or for long
        // enough has not, is written now.
        let appended = self.log.appended();
        maintenance.steps += 1;
        if appended == maintenance.seen || maintenance.steps.is_multiple_of(FLUSH_STEPS) {
            self.log.flush()?;
        }
        maintenance.seen = appended;
        // Looking for one means asking all shards: not before something has been written that could have made one.
        let is_due = self.log.appended() >= maintenance.choose_at || self.log.reserve.is_spent();
        if maintenance.target.is_none() && is_due {
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
        // So that the index is written down now and then where compaction never ends.
        self.index_step(maintenance)?;
        Ok(true)
    }

    /// Whether there is more counted in a segment than its entries were; the index is asked then, which knows.
    fn needs_index_scan(&self, target: &mut CompactionTarget) -> bool {
        let slot = target.segment.slot as usize;
        let asks = !matches!(target.method, CompactionMethod::ScanIndex { .. })
            && self.live_by_slot().get(slot).is_some_and(|&left| left > 0);
        if asks {
            target.method = CompactionMethod::ScanIndex { read: 0, copy: Vec::new(), page: 0 };
        }
        asks
    }

    /// Lets a segment go in which nothing counts any more.
    fn drop_target(&self, target: &CompactionTarget) -> Result<LogPosition> {
        let segment = &target.segment;
        if matches!(target.method, CompactionMethod::ScanIndex { .. }) {
            // The index leads to nothing in it; how long an entry was that was damaged, and then removed, is not known.
            let slot = segment.slot as usize;
            let lives = self.shards.iter().map(|shard| shard.0.write());
            lives.for_each(|mut shard| shard.live.get_mut(slot).into_iter().for_each(|live| *live = 0));
        }
        self.log.lock().drop_segment(segment)
    }

    /// Bytes that count in each segment, by slot.
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

    /// The segment to be compacted next, if it is worth it.
    fn choose_target(&self) -> Option<CompactionTarget> {
        let (table, _) = self.log.table();
        let mut segments = table.by_age();
        // Asked before what counts is, so that a clear in one of these has been carried out.
        segments.retain(|segment| segment.is_sealed.load(Ordering::Acquire));
        let live = self.live_by_slot();
        let counts = |segment: &Segment| live.get(segment.slot as usize).copied().unwrap_or(0);
        // A clear is not written once more: it goes only when all that it cleared, in the segments before it, has is_removed. These are the
        // oldest then, and nothing counts in them.
        if let Some(oldest) = segments.first().filter(|oldest| counts(oldest) == 0) {
            return Some(self.target(oldest, &segments, &live));
        }
        let (total, live_total) = (self.log.bytes(), live.iter().sum::<u64>());
        // On a full disk all that can be won is.
        let is_full = self.log.reserve.is_spent();
        if !is_full && total as f64 <= live_total as f64 * self.space_factor + self.log.slack() as f64 {
            return self.choose_small_segment(&segments, &live);
        }
        let (mut best, mut best_share) = (None, GARBAGE_SHARE_MIN);
        let (mut removes_total, mut oldest) = (0, None);
        for (age, segment) in segments.iter().enumerate() {
            let remove_bytes = segment.remove_bytes.load(Ordering::Relaxed);
            removes_total += remove_bytes;
            if age == 0 && remove_bytes > 0 && segment.has_damage.swap(false, Ordering::Relaxed) {
                // Its remove_bytes do not count any more. If they are all that could not be read it can go now: that is tried once.
                segment.remove_bytes.store(0, Ordering::Relaxed);
            }
            let is_empty = counts(segment) + remove_bytes == 0;
            if segment.has_damage.load(Ordering::Relaxed) && !is_empty {
                continue;
            }
            let kept = counts(segment) + if age == 0 { 0 } else { remove_bytes };
            let share = 1.0 - (kept as f64 / segment.len() as f64).min(1.0);
            if share > best_share {
                (best, best_share) = (Some(segment), share);
            }
            oldest = oldest.or((age == 0).then_some(segment));
        }
        if best_share < 0.2 && removes_total as f64 > total as f64 * GARBAGE_SHARE_MIN {
            // Only with the oldest segments do remove_bytes go.
            best = oldest.or(best);
        }
        Some(self.target(best?, &segments, &live))
    }

    /// Each opening begins a segment: when there are many that have stayed small, the oldest of them joins the last one.
    fn choose_small_segment(&self, segments: &[Arc<Segment>], live: &[u64]) -> Option<CompactionTarget> {
        let is_small = |segment: &&Arc<Segment>| {
            !segment.has_damage.load(Ordering::Relaxed) && segment.len() < self.log.slack() / 8
        };
        let mut small = segments.iter().filter(is_small);
        let oldest = small.next()?;
        (small.count() >= SMALL_MAX).then(|| self.target(oldest, segments, live))
    }

    /// How to compact a segment. `live`: what counts in each, by slot.
    fn target(&self, segment: &Arc<Segment>, segments: &[Arc<Segment>], live: &[u64]) -> CompactionTarget {
        let segment = Arc::clone(segment);
        let live_total: u64 = live.iter().sum();
        let counts = live.get(segment.slot as usize).copied().unwrap_or(0);
        let is_oldest = segments.first().is_some_and(|oldest| oldest.number == segment.number);
        let removes_count = !is_oldest && segment.remove_bytes.load(Ordering::Relaxed) > 0;
        let method = if counts == 0 && !removes_count {
            match segment.is_live_estimated.load(Ordering::Relaxed) {
                // The index knows; the segment is not read before, as hardly anything in it will be wanted.
                true => CompactionMethod::ScanIndex { read: segment.len(), copy: Vec::new(), page: 0 },
                false => CompactionMethod::DropOnly,
            }
        } else if removes_count
            || counts.saturating_mul(PAGES_SEARCHED) < live_total
            || segment.len() > COPIED_MAX && !segment.is_mapped()
        {
            CompactionMethod::ScanLog { at: HEADER_LEN as u64, removes_count }
        } else {
            CompactionMethod::ScanIndex { read: 0, copy: Vec::new(), page: 0 }
        };
        CompactionTarget { segment, method }
    }

    /// Writes once more some of what counts in a segment; false when that is done.
    fn compact(&self, target: &mut CompactionTarget) -> Result<bool> {
        let segment = &target.segment;
        match &mut target.method {
            CompactionMethod::DropOnly => Ok(false),
            CompactionMethod::ScanLog { at, removes_count } => {
                match self.compact_stretch(segment, *at, *removes_count) {
                    Ok(next) => {
                        *at = next;
                        Ok(next < segment.len())
                    }
                    // Perhaps what is damaged counts no more.
                    Err(error) if error.kind() == ErrorKind::Corrupt && !*removes_count => {
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

    /// Writes once more those of a page's records that lie in a segment; returns how many bytes they are, and how many slots were
    /// looked at. `copy`: the segment, or nothing.
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
            segment.prefetch(u64::from(slot.location().unit) * 8, slot.class());
        }
        let (mut appender, mut moved) = (None, 0);
        for (index, slot) in found {
            let at = slot.location();
            let offset = u64::from(at.unit) * 8;
            let copied =
                copy.get(offset as usize..).and_then(|bytes| entry::whole(bytes, segment.seed_at(offset)));
            let (head, bytes) = match copied {
                Some(found) => found,
                None => {
                    let fetched = self.log.fetch(segment, at.unit, slot.class(), old);
                    let fetched = fetched.inspect_err(|error| {
                        // Until it is overwritten.
                        let is_damage = error.kind() == ErrorKind::Corrupt;
                        segment.has_damage.fetch_or(is_damage, Ordering::Relaxed);
                        if is_damage && part.live.get(at.slot as usize).is_none_or(|&live| live == 0) {
                            // One in which nothing seems to count would be the next to be tried again, before all others.
                            part.gain(at.slot, least_len(slot.class()));
                        }
                    })?;
                    (fetched.head, fetched.bytes(old))
                }
            };
            let appender = appender.get_or_insert_with(|| self.log.lock());
            let appended = appender.append_copy(bytes)?;
            appender.segment().note_expiry(head.attributes.expiry);
            let slot = IndexSlot::new(slot.tag(), class_of(appended.len), appended.at);
            part.enter_at((page % PAGES, index), slot, appended.len, head.len);
            moved += head.len as u64;
        }
        Ok((moved, part.pages[page % PAGES].len()))
    }

    /// Writes once more what counts in a stretch of a segment; returns where to go on.
    fn compact_stretch(&self, segment: &Arc<Segment>, from: u64, removes_count: bool) -> Result<u64> {
        let until = from + STEP_LEN;
        let mut scratch = ThreadScratch::take();
        let mut is_enough = false;
        // By shard, so that each is locked once.
        let mut stretch = SegmentStretch::default();
        let end = walk(segment, from, segment.len(), STEP_LEN as usize, &mut |at, head, bytes| {
            if at >= until {
                is_enough = true;
                return Ok(false);
            }
            match head.kind {
                PUT => stretch.add(self.hash(head.key(bytes)), at, head, bytes),
                REMOVE if removes_count => self.move_remove(head.key(bytes), &mut scratch.old)?,
                _ => {}
            }
            Ok(true)
        })?;
        if end < segment.len() && !is_enough {
            // Without remove_bytes the index tells what counts.
            segment.has_damage.fetch_or(removes_count, Ordering::Relaxed);
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

    /// Writes once more those of a shard's records that the index leads to.
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
        // The index is at another place for each: the memory for several is asked for at once.
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
                // Too long to have been kept; read without the lock on the end of the log.
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
        // A record that is damaged and may be the key's came after the remove: as long as that counts, there is none before it.
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
            // A file that cannot be removed now is left over, and is removed by the next opening.
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
    use todana_core::{Action, Attributes, Durable, Engine, Record, Visitor};

    struct Set;

    impl Visitor for Set {
        fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
            Action::Put(Record::new(b"value", Attributes::default()))
        }
    }

    #[test]
    fn a_step_through_a_long_index_ends_though_nothing_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let open = || DiskHash::open(folder.path(), DiskHashOptions::default()).unwrap();
        let hash = open();
        hash.visit(b"crane", &mut Set).unwrap();
        hash.close().unwrap();
        drop(hash);
        let hash = open();
        for n in 0..2 * SLOTS_MAX as u32 {
            hash.visit(&n.to_be_bytes(), &mut Set).unwrap();
        }
        let segment = hash.log.table().0.by_age().swap_remove(0);
        let method = CompactionMethod::ScanIndex { read: segment.len(), copy: Vec::new(), page: 0 };
        let mut target = CompactionTarget { segment, method };
        let mut steps = 1;
        while hash.compact(&mut target).unwrap() {
            steps += 1;
        }
        // Without a bound it is one.
        assert_eq!(steps, 2);
        assert!(hash.view(b"crane", &mut |_| ()).unwrap());
    }
}
