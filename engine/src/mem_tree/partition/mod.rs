//! Defines one partition: segments from any part of the key range, the arena that contains their
//! leaves, and the huge records.
//!
//! All functions run under the lock of the partition, so this is sequential code. Invariants: the
//! block of a leaf is referenced only by the segment of the leaf, and a block that contains one
//! record is referenced only by the stub of the record. Each reference can be found from the first
//! key in the block, so any block may move at any time.

mod closing;
mod moving;
mod purge;
mod walk;
mod write;

pub(super) use walk::{RecordCallback, WalkOutcome};
pub(super) use write::VisitFailure;

use super::closed::{self, CodecPool, LeafCopies};
use super::leaf::{self, Leaf, LeafBuilder, LeafEntry, LeafEntryBody, LeafPosition};
use super::segment::LeafSegment;
use super::survey::TreeSample;
use crate::arena::{Arena, BlockHandle, BlockKind, CompactionEffort, MemoryBudget};
use crate::huge::HugeTable;
use crate::mem_hash::classes::{ClassBounds, ClassCounters};
use crate::mem_hash::departures::DepartureCounters;
use crate::record::{RecordParts, RecordReference};
use closing::ClosedLeaves;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use todana_core::{EngineStatus, Record};

/// The limits for the sizes of leaves and records.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafLimits {
    /// The maximum length of a leaf. A longer leaf is split, unless it has few records.
    pub(super) leaf_max: usize,
    /// The maximum length of a record in a leaf. A longer record has a block of its own.
    pub(super) record_max: usize,
    /// If leaves are compressed, the maximum total size of open leaves, and that of copies.
    pub(super) open_max: Option<usize>,
}

pub(super) struct Partition {
    pub(super) limits: LeafLimits,
    closing: Option<ClosedLeaves>,
    segments: Vec<Option<LeafSegment>>,
    /// The slots of `segments` that are not in use.
    free: Vec<u32>,
    /// The slots of the segments by the lowest keys of the segments. Segments of other partitions
    /// lie between them, so this map finds the right segment only for keys that belong to this
    /// partition.
    by_low: BTreeMap<Arc<[u8]>, u32>,
    pub(super) arena: Arena,
    pub(super) huge: HugeTable,
    pub(super) classes: ClassCounters,
    pub(super) budget: Arc<MemoryBudget>,
    /// The epoch in which the key ranges of this partition last changed. A caller that has used an
    /// older table must repeat its lookup.
    pub(super) changed_epoch: u64,
    pub(super) records: u64,
    /// The number of bytes in leaves.
    pub(super) leaf_bytes: usize,
    /// The number of bytes in blocks that contain one record.
    pub(super) block_bytes: usize,
    /// The size of the index that the budget counts.
    index_bytes: usize,
    departures: DepartureCounters,
    blocks_moved: u64,
    pages_emptied: u64,
    moved_when_last_maintained: u64,
    scratch: Vec<u8>,
    new: LeafBuilder,
    codecs: Arc<CodecPool>,
    sample: Arc<TreeSample>,
}

/// The number of cache lines of a leaf that are prefetched. Most leaves are not longer. Without the
/// prefetch, a search would wait for one cache line after another (100,000 records of 16 + 100
/// bytes, AMD EPYC, 2026-11-22: a get takes 0.65 us instead of 0.91; 0.75 if four lines are
/// prefetched).
const LEAF_LINES: usize = 16;

/// The location of a key's leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafLocation {
    pub(super) slot: u32,
    pub(super) leaf: usize,
    pub(super) handle: BlockHandle,
}

impl Partition {
    pub(super) fn new(
        budget: Arc<MemoryBudget>,
        bounds: Arc<ClassBounds>,
        limits: LeafLimits,
        codecs: Arc<CodecPool>,
        sample: Arc<TreeSample>,
    ) -> Partition {
        let closing = |open_max| ClosedLeaves::new(open_max, LeafCopies::new(open_max, Arc::clone(&budget)));
        Partition {
            limits,
            closing: limits.open_max.map(closing),
            segments: Vec::new(),
            free: Vec::new(),
            by_low: BTreeMap::new(),
            arena: Arena::new(Arc::clone(&budget)),
            huge: HugeTable::new(Arc::clone(&budget)),
            classes: ClassCounters::new(bounds),
            budget,
            changed_epoch: 0,
            records: 0,
            leaf_bytes: 0,
            block_bytes: 0,
            index_bytes: 0,
            departures: DepartureCounters::default(),
            blocks_moved: 0,
            pages_emptied: 0,
            moved_when_last_maintained: 0,
            scratch: Vec::new(),
            new: LeafBuilder::default(),
            codecs,
            sample,
        }
    }

    /// Replaces this partition by an empty one without segments. Returns the old one.
    pub(super) fn empty(&mut self, changed_epoch: u64) -> Partition {
        let mut empty = Partition::new(
            Arc::clone(&self.budget),
            self.classes.bounds(),
            self.limits,
            Arc::clone(&self.codecs),
            Arc::clone(&self.sample),
        );
        empty.changed_epoch = changed_epoch;
        // The new partition keeps the counts of removed records.
        std::mem::swap(&mut empty.classes, &mut self.classes);
        empty.departures = self.departures;
        empty.departures.count_cleared(self.sample.observer.as_deref(), &empty.classes.clear());
        std::mem::replace(self, empty)
    }

    #[inline]
    pub(super) fn segment(&self, slot: u32) -> &LeafSegment {
        self.segments[slot as usize].as_ref().expect("callers check `changed_epoch`")
    }

    #[inline]
    pub(super) fn segment_mut(&mut self, slot: u32) -> &mut LeafSegment {
        self.segments[slot as usize].as_mut().expect("callers check `changed_epoch`")
    }

    /// Adds a segment whose leaves are already in this arena. Returns its slot.
    pub(super) fn add_segment(&mut self, segment: LeafSegment) -> u32 {
        let slot = self.free.pop().unwrap_or(self.segments.len() as u32);
        if slot as usize == self.segments.len() {
            self.segments.push(None);
        }
        self.by_low.insert(Arc::clone(&segment.low), slot);
        self.segments[slot as usize] = Some(segment);
        slot
    }

    /// Removes a segment. Its leaves stay in the arena.
    pub(super) fn take_segment(&mut self, slot: u32) -> LeafSegment {
        let segment = self.segments[slot as usize].take().expect("only existing records are taken");
        self.by_low.remove(&segment.low);
        self.free.push(slot);
        segment
    }

    /// Changes the size of the index that the budget counts.
    pub(super) fn update_index_bytes(&mut self, before: usize, now: usize) {
        if now > before {
            self.budget.commit_anyway(now - before);
        } else {
            self.budget.release(before - now);
        }
        self.index_bytes = self.index_bytes + now - before;
    }

    #[inline]
    pub(super) fn at(&self, slot: u32, key: &[u8]) -> LeafLocation {
        let segment = self.segment(slot);
        let leaf = segment.separators.up_to(key);
        LeafLocation { slot, leaf, handle: segment.leaves[leaf] }
    }

    /// Returns an open leaf.
    #[inline]
    pub(super) fn leaf(&self, handle: BlockHandle) -> Leaf<'_> {
        debug_assert!(!self.is_closed(handle));
        Leaf::new(self.arena.bytes(handle))
    }

    #[inline]
    pub(super) fn find(&self, handle: BlockHandle, key: &[u8]) -> LeafPosition {
        if handle.is_none() {
            return LeafPosition::ABSENT;
        }
        self.find_in(self.leaf(handle), key)
    }

    #[inline]
    pub(super) fn find_in<'a>(&'a self, leaf: Leaf<'a>, key: &[u8]) -> LeafPosition {
        leaf.find(key, |reference| self.referenced_key(reference))
    }

    #[inline]
    pub(super) fn view<T>(&self, slot: u32, key: &[u8], see: impl FnOnce(Record<'_>) -> T) -> Option<T> {
        let at = self.at(slot, key);
        if at.handle.is_none() {
            return None;
        }
        self.prefetch_leaf(at.handle);
        self.with_leaf(at.handle, |leaf| {
            let entry = self.find_in(leaf, key).found?;
            self.note_huge_use(&entry);
            Some(see(self.record(leaf, &entry, &mut [0; 20])))
        })
    }

    /// Notes the use of a value for its compression.
    #[inline]
    fn note_huge_use(&self, entry: &LeafEntry) {
        if let LeafEntryBody::Stub { reference: RecordReference::Huge(index), .. } = entry.body {
            self.huge.get(index).note_use();
        }
    }

    /// Prefetches a leaf that is about to be searched.
    #[inline]
    fn prefetch_leaf(&self, handle: BlockHandle) {
        self.arena.prefetch_lines(handle, LEAF_LINES);
    }

    #[inline]
    pub(super) fn prefetch(&self, slot: u32, key: &[u8]) {
        let at = self.at(slot, key);
        if !at.handle.is_none() {
            self.arena.prefetch(at.handle);
        }
    }

    #[inline]
    pub(super) fn record<'a>(
        &'a self,
        leaf: Leaf<'a>,
        entry: &LeafEntry,
        digits: &'a mut [u8; 20],
    ) -> Record<'a> {
        match &entry.body {
            LeafEntryBody::Inline(parts) => {
                let bytes = leaf.bytes();
                Record::new(parts.value_text(bytes, digits), parts.attributes(bytes))
            }
            LeafEntryBody::Stub { reference, .. } => self.referenced_record(*reference, digits),
        }
    }

    fn referenced_record<'a>(&'a self, reference: RecordReference, digits: &'a mut [u8; 20]) -> Record<'a> {
        match reference {
            RecordReference::Block(handle) => {
                let bytes = self.arena.bytes(BlockHandle(handle));
                let parts = inline_record(bytes);
                Record::new(parts.value_text(bytes, digits), parts.attributes(bytes))
            }
            RecordReference::Huge(index) => self.huge.get(index).record(),
        }
    }

    /// Returns the complete key of a record that is stored outside of its leaf.
    fn referenced_key(&self, reference: RecordReference) -> &[u8] {
        match reference {
            RecordReference::Block(handle) => {
                let bytes = self.arena.bytes(BlockHandle(handle));
                &bytes[inline_record(bytes).key]
            }
            RecordReference::Huge(index) => &self.huge.get(index).key,
        }
    }

    /// Writes the complete key of a record to `key`.
    pub(super) fn key_of(&self, leaf: Leaf<'_>, entry: &LeafEntry, key: &mut Vec<u8>) {
        key.clear();
        match &entry.body {
            LeafEntryBody::Stub { reference, is_cut: true } => {
                key.extend_from_slice(self.referenced_key(*reference))
            }
            _ => {
                key.extend_from_slice(leaf.prefix());
                key.extend_from_slice(&leaf.bytes()[entry.key.clone()]);
            }
        }
    }

    /// Returns the plain size of a record: the lengths of the key and the value, + 4 if there are
    /// flags.
    pub(super) fn plain_size(&self, leaf: Leaf<'_>, entry: &LeafEntry) -> usize {
        let bytes = leaf.bytes();
        match &entry.body {
            LeafEntryBody::Inline(parts) => {
                leaf.prefix().len() + entry.key.len() + parts.value_text_len(bytes) + parts.flags_size()
            }
            LeafEntryBody::Stub { reference: RecordReference::Block(handle), .. } => {
                let bytes = self.arena.bytes(BlockHandle(*handle));
                let parts = inline_record(bytes);
                parts.key.len() + parts.value_text_len(bytes) + parts.flags_size()
            }
            LeafEntryBody::Stub { reference: RecordReference::Huge(index), .. } => {
                self.huge.get(*index).plain_size()
            }
        }
    }

    /// Does one step of compaction. Returns true if the step has freed anything.
    pub(super) fn compact(&mut self, effort: CompactionEffort) -> bool {
        let Partition { arena, segments, by_low, .. } = self;
        // Stubs lie in the arena themselves, so their references are corrected after the step. The
        // references are not read before that.
        let (mut moved_leaves, mut moved_records) = (Vec::new(), Vec::new());
        let done = arena.compact(effort, &mut |bytes, kind, from, to| match kind {
            // A moved leaf may contain the stub of another moved block, so its key is searched for
            // after the step.
            BlockKind::Bucket if closed::is_closed(bytes) => {
                moved_leaves.push((closed::key(bytes).to_vec(), from, to))
            }
            BlockKind::Bucket => {
                let leaf = Leaf::new(bytes);
                let first = leaf.entry(leaf.records_at());
                let key = [leaf.prefix(), &bytes[first.key.clone()]].concat();
                moved_leaves.push((key, from, to));
            }
            BlockKind::Record => moved_records.push((bytes[inline_record(bytes).key].to_vec(), from, to)),
        });
        let mut renamed = Vec::new();
        for (key, from, to) in moved_leaves {
            // If the key is cut, only its beginning is known, so the leaf may be a later one.
            let range = (Bound::Unbounded, Bound::Included(&key[..]));
            let low = by_low.range::<[u8], _>(range).next_back().map_or(&[][..], |(low, _)| low);
            let (slot, leaf) = by_low
                .range::<[u8], _>((Bound::Included(low), Bound::Unbounded))
                .find_map(|(_, &slot)| {
                    let segment = segments[slot as usize].as_ref().expect("it is listed");
                    let first = segment.separators.up_to(&key);
                    let behind = segment.leaves[first..].iter().position(|&handle| handle == from);
                    behind.map(|behind| (slot, first + behind))
                })
                .expect("a leaf's block belongs to a segment");
            renamed.push((slot, leaf, from, to));
        }
        self.blocks_moved += (renamed.len() + moved_records.len()) as u64;
        for (slot, leaf, from, to) in renamed {
            self.forget_moved_copy(from);
            self.segment_mut(slot).leaves[leaf] = to;
        }
        for (key, from, to) in moved_records {
            let slot = self.slot_of(&key);
            let at = self.at(slot, &key);
            let leaf = self.leaf(at.handle);
            let stub = leaf.entries().find(|entry| {
                matches!(entry.body, LeafEntryBody::Stub { reference: RecordReference::Block(block), .. } if block == from.0)
            });
            let stub = stub.expect("a record's block has a stub");
            self.arena.write(at.handle, stub.at + stub.len - 4, &to.0.to_le_bytes());
        }
        self.pages_emptied += u64::from(done);
        done
    }

    /// Returns the slot of the segment that contains a key of this partition.
    fn slot_of(&self, key: &[u8]) -> u32 {
        let range = (Bound::Unbounded, Bound::Included(key));
        *self.by_low.range::<[u8], _>(range).next_back().expect("some segment begins before").1
    }

    /// Does one step of freeing memory without evicting records. Returns true if the step has freed
    /// anything.
    pub(super) fn pack(&mut self) -> bool {
        self.close_all_leaves() || self.arena.trim() || self.compact(CompactionEffort::Leisurely)
    }

    /// Does one thorough step of maintenance. Returns true if there may be more to do.
    pub(super) fn maintain(&mut self) -> bool {
        // Memory that is being written to keeps some slack; idle memory is compacted completely.
        let is_at_rest = self.arena.moved() == self.moved_when_last_maintained;
        let effort = if is_at_rest { CompactionEffort::Leisurely } else { CompactionEffort::Thorough };
        // While memory is scarce, idle leaves are closed.
        let closed = is_at_rest && self.budget.is_tight() && self.close_all_leaves();
        let done = self.compact(effort) || self.arena.trim() || closed;
        self.moved_when_last_maintained = self.arena.moved();
        done
    }

    pub(super) fn add_to(&self, status: &mut EngineStatus) {
        status.records += self.records;
        status.live_bytes += (self.leaf_bytes + self.block_bytes + self.huge.bytes()) as u64;
        self.huge.add_to(&mut status.encoding);
        self.departures.add_to(status);
        status.index.buckets +=
            self.segments.iter().flatten().map(|segment| segment.leaves.len() as u64).sum::<u64>();
        status.index.bytes += self.index_bytes as u64;
        status.blocks_moved += self.blocks_moved;
        status.pages_emptied += self.pages_emptied;
        self.classes.add_to(&mut status.classes);
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        self.budget.release(self.index_bytes);
    }
}

/// Decodes the record in a block that contains only this record.
fn inline_record(bytes: &[u8]) -> RecordParts {
    match leaf::entry(bytes, 0).body {
        LeafEntryBody::Inline(parts) => parts,
        LeafEntryBody::Stub { .. } => unreachable!("a block of one record holds a whole record"),
    }
}
