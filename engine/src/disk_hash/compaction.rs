//! Housekeeping: what counts in a segment with much garbage is written once more, and the segment removed.
//!
//! ```text
//! victim: walk its entries; those the index leads to go to the end of the log -> "dropped" entry -> sync -> remove the file
//! ```
//!
//! A remove entry counts as long as an older segment may hold a record of its key; it goes along until then, or until there is a
//! record of the key again. The segment whose garbage is the largest share of it goes first. A segment is
//! never changed, so a crash at any time leaves either it or all that counted in it.

use super::DiskHash;
use super::entry::{self, PUT, REMOVE};
use super::index_file::IndexWriter;
use super::page::{Location, Slot, class_of, tag_of};
use super::scratch::Scratch;
use super::segment::{Position, Segment};
use super::shard::{SHARDS, shard_of};
use super::walk::walk;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use todana_core::{Error, Expiry, Result};

/// So much of a victim is gone through in a step.
const STEP_LEN: u64 = 256 << 10;
/// The bytes of longer entries are not kept from the first look at them to the second.
const KEPT_MAX: usize = 16 << 10;
/// So many segments wait for the sync that they share before they are removed.
const DRAINED_MAX: usize = 2;
/// It is not worth a segment's rewriting to win less than this share of it.
const GAIN_MIN: f64 = 0.05;

/// A record's entry in a stretch of a segment.
struct Entry {
    hash: u64,
    at: u64,
    len: usize,
    expiry: Expiry,
    /// Where its bytes are kept; nowhere if they are many.
    bytes: Range<usize>,
}

/// The records' entries of a stretch of a segment.
struct Stretch {
    by_shard: [Vec<Entry>; SHARDS],
    bytes: Vec<u8>,
}

impl Default for Stretch {
    fn default() -> Stretch {
        Stretch { by_shard: std::array::from_fn(|_| Vec::new()), bytes: Vec::new() }
    }
}

impl Stretch {
    fn add(&mut self, hash: u64, at: u64, head: &entry::Head, bytes: &[u8]) {
        let start = self.bytes.len();
        if head.len <= KEPT_MAX && bytes.len() >= head.len {
            self.bytes.extend_from_slice(&bytes[..head.len]);
        }
        let bytes = start..self.bytes.len();
        let expiry = head.attributes.expiry;
        self.by_shard[shard_of(hash)].push(Entry { hash, at, len: head.len, expiry, bytes });
    }
}

#[derive(Default)]
pub(super) struct Housekeeping {
    /// What is compacted now, and how far.
    victim: Option<(Arc<Segment>, u64)>,
    /// What has been compacted: it can be removed once this position is on disk.
    drained: Vec<(Arc<Segment>, Position)>,
    /// No victim is looked for before so many bytes have been appended.
    choose_at: u64,
    pub(super) index: Option<IndexWriter>,
    /// Bytes that had been appended when the index was last written down.
    pub(super) indexed_bytes: u64,
    trouble: Option<Error>,
    /// Copies under way, which need all files that there are.
    pub(super) copies: usize,
}

impl Housekeeping {
    pub(super) fn trouble(&self) -> Option<Error> {
        self.trouble.clone()
    }
}

impl DiskHash {
    /// A step of housekeeping; true if there is more to do at once.
    pub(super) fn keep_house(&self) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let Some(mut house) = self.house.try_lock() else { return false };
        let outcome = self.step(&mut house);
        match outcome {
            Ok(has_more) => {
                if !has_more
                    && house
                        .trouble
                        .as_ref()
                        .is_some_and(|error| error.kind() != todana_core::ErrorKind::Corrupt)
                {
                    house.trouble = None;
                }
                has_more
            }
            Err(error) => {
                house.trouble = Some(error);
                false
            }
        }
    }

    fn step(&self, house: &mut Housekeeping) -> Result<bool> {
        self.log.flush()?;
        // Looking for one means asking all shards: not before something has been written that could have made one.
        let is_due = self.log.appended() >= house.choose_at;
        if house.victim.is_none() && is_due {
            house.victim = self.choose().map(|segment| (segment, 0));
            if house.victim.is_none() {
                house.choose_at = self.log.appended() + self.log.slack() / 16;
            }
        }
        if house.victim.is_none() || house.drained.len() >= DRAINED_MAX {
            self.remove_drained(house)?;
        }
        let Some((segment, at)) = house.victim.clone() else { return self.index_step(house) };
        match self.compact(&segment, at) {
            Ok(next) if next == segment.len() => {
                house.victim = None;
                let left = self.live_by_slot().get(segment.slot as usize).copied().unwrap_or(0);
                if left > 0 {
                    segment.damaged.store(true, Ordering::Relaxed);
                    return Err(
                        segment.corrupt(0, "what counts in the segment was not found in it; it stays")
                    );
                }
                let position = self.log.lock().drop_segment(&segment)?;
                house.drained.push((segment, position));
            }
            Ok(next) => house.victim = Some((segment, next)),
            Err(error) => {
                house.victim = None;
                return Err(error);
            }
        }
        // So that the index is written down now and then where compaction never ends.
        self.index_step(house)?;
        Ok(true)
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
    fn choose(&self) -> Option<Arc<Segment>> {
        let (table, _) = self.log.table();
        let live = self.live_by_slot();
        let (total, live_total) = (self.log.bytes(), live.iter().sum::<u64>());
        if total as f64 <= live_total as f64 * self.space_factor + self.log.slack() as f64 {
            return None;
        }
        let segments = table.by_age();
        let (mut best, mut best_share) = (None, GAIN_MIN);
        let (mut removes_total, mut oldest) = (0, None);
        for (age, segment) in segments.iter().enumerate() {
            let is_sealed = segment.sealed.load(Ordering::Acquire);
            let removes = segment.removes.load(Ordering::Relaxed);
            removes_total += removes;
            if !is_sealed || segment.damaged.load(Ordering::Relaxed) {
                continue;
            }
            let kept =
                live.get(segment.slot as usize).copied().unwrap_or(0) + if age == 0 { 0 } else { removes };
            let share = 1.0 - (kept as f64 / segment.len() as f64).min(1.0);
            if share > best_share {
                (best, best_share) = (Some(segment), share);
            }
            oldest = oldest.or((age == 0).then_some(segment));
        }
        if best_share < 0.2 && removes_total as f64 > total as f64 * GAIN_MIN {
            // Only with the oldest segments do removes go.
            best = oldest.or(best);
        }
        best.cloned()
    }

    /// Writes once more what counts in a stretch of a segment; returns where to go on.
    fn compact(&self, segment: &Arc<Segment>, from: u64) -> Result<u64> {
        let is_oldest = self.log.table().0.slots.iter().flatten().all(|other| other.number >= segment.number);
        let removes_count = !is_oldest && segment.removes.load(Ordering::Relaxed) > 0;
        let counts = self.live_by_slot().get(segment.slot as usize).is_some_and(|&live| live > 0);
        if !counts && !removes_count {
            return Ok(segment.len());
        }
        let from = from.max(super::segment::HEADER_LEN as u64);
        let until = from + STEP_LEN;
        let mut scratch = Scratch::take();
        let mut is_enough = false;
        // By shard, so that each is locked once.
        let mut stretch = Stretch::default();
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
            segment.damaged.store(true, Ordering::Relaxed);
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
        entries: &[Entry],
        bytes: &[u8],
        old: &mut Vec<u8>,
    ) -> Result<()> {
        let mut guard = self.alone(index);
        let shard = &mut *guard;
        // The index is at another place for each: the memory for several is asked for at once.
        const AHEAD: usize = 8;
        entries.iter().take(AHEAD).for_each(|entry| shard.prefetch(entry.hash));
        let mut appender = None;
        for (nth, entry) in entries.iter().enumerate() {
            if let Some(ahead) = entries.get(nth + AHEAD) {
                shard.prefetch(ahead.hash);
            }
            let place = Location { slot: segment.slot, unit: (entry.at / 8) as u32 };
            let Some(index) = shard.slot_at(entry.hash, place) else { continue };
            if entry.bytes.is_empty() {
                // Too long to have been kept; read without the lock on the end of the log.
                drop(appender.take());
                self.log.fetch(segment, place.unit, class_of(entry.len), old)?;
            }
            let bytes = if entry.bytes.is_empty() { &old[..entry.len] } else { &bytes[entry.bytes.clone()] };
            let appender = appender.get_or_insert_with(|| self.log.lock());
            appender.prepare(entry.len, entry.len)?;
            let appended = if appender.is_long(entry.len) {
                appender.append_long(bytes, &[], &[])?
            } else {
                appender.append_small(|buffer| buffer.extend_from_slice(bytes))
            };
            appender.segment().note_expiry(entry.expiry);
            let slot = Slot::new(tag_of(entry.hash), class_of(appended.len), appended.at);
            shard.enter(entry.hash, slot, appended.len, Some((index, entry.len)));
        }
        Ok(())
    }

    fn move_remove(&self, key: &[u8], old: &mut Vec<u8>) -> Result<()> {
        let hash = self.hash(key);
        let shard = self.alone(shard_of(hash));
        if self.find(&shard, hash, key, old)?.is_some() {
            return Ok(());
        }
        let mut appender = self.log.lock();
        appender.prepare(entry::padded(10 + key.len()), 0)?;
        let appended = appender.append_small(|buffer| entry::put_remove(buffer, key));
        appender.segment().removes.fetch_add(appended.len as u64, Ordering::Relaxed);
        Ok(())
    }

    fn remove_drained(&self, house: &mut Housekeeping) -> Result<()> {
        let Some(last) = house.drained.iter().map(|(_, position)| *position).max() else { return Ok(()) };
        if house.copies > 0 {
            return Ok(());
        }
        if self.log.synced() < last {
            self.log.sync()?;
        }
        for (segment, _) in house.drained.drain(..) {
            // A file that cannot be removed now is left over, and is removed by the next opening.
            let _ = self.log.disk.remove(&segment.path);
        }
        self.log.note_name();
        Ok(())
    }
}
