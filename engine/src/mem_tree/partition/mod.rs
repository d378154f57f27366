//! One partition: segments from anywhere in the order of the keys, the arena that their leaves lie in, long records.
//!
//! All that happens to it happens under its lock, so this is plain sequential code. Always true: a leaf's block is named by
//! its segment alone, a block of one record by its stub alone; each is found again from the first key in the block, so any
//! block may move at any time.

mod closing;
mod moving;
mod purge;
mod walk;
mod write;

pub(super) use walk::Walked;
pub(super) use write::Trouble;

use super::closed::{self, Codecs, Copies};
use super::leaf::{self, Body, Entry, Leaf, NewLeaf, Spot};
use super::segment::Segment;
use super::survey::Sampled;
use crate::arena::{Arena, Budget, Effort, Handle, Kind};
use crate::huge::HugeTable;
use crate::mem_hash::classes::{ClassBounds, Classes};
use crate::mem_hash::departures::Departures;
use crate::record::{Elsewhere, Parts};
use closing::Closing;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use todana_core::{EngineStatus, Record};

/// How large leaves are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// A longer leaf is split, unless it has few records.
    pub(super) leaf_max: usize,
    /// A longer record gets a block of its own.
    pub(super) record_max: usize,
    /// Leaves are compressed, and open ones may come to so many bytes, copies to as many again.
    pub(super) open_max: Option<usize>,
}

pub(super) struct Partition {
    pub(super) shape: Shape,
    closing: Option<Closing>,
    segments: Vec<Option<Segment>>,
    /// Numbers of segments that are not in use.
    free: Vec<u32>,
    /// The segments by their lowest keys. As those of other partitions lie between them, it leads to the right one only for
    /// keys that are here.
    by_low: BTreeMap<Arc<[u8]>, u32>,
    pub(super) arena: Arena,
    pub(super) huge: HugeTable,
    pub(super) classes: Classes,
    pub(super) budget: Arc<Budget>,
    /// The last change to which keys are here: who was led here before that must ask again.
    pub(super) changed: u64,
    pub(super) records: u64,
    /// Bytes in leaves.
    pub(super) leaf_bytes: usize,
    /// Bytes in blocks of one record.
    pub(super) block_bytes: usize,
    /// What the index takes of the budget.
    index_bytes: usize,
    departures: Departures,
    blocks_moved: u64,
    pages_emptied: u64,
    moved_when_last_maintained: u64,
    scratch: Vec<u8>,
    new: NewLeaf,
    codecs: Arc<Codecs>,
    sampled: Arc<Sampled>,
}

/// Cache lines of a leaf that are asked for at once: all of most leaves. One after the other, as a search comes to them, each would be waited
/// for (100,000 records of 16 + 100 bytes, AMD EPYC, 2026-11-22: a get takes 0.65 us rather than 0.91, 0.75 with four lines).
const LEAF_LINES: usize = 16;

/// Where a key's leaf is.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) slot: u32,
    pub(super) leaf: usize,
    pub(super) handle: Handle,
}

impl Partition {
    pub(super) fn new(
        budget: Arc<Budget>,
        bounds: Arc<ClassBounds>,
        shape: Shape,
        codecs: Arc<Codecs>,
        sampled: Arc<Sampled>,
    ) -> Partition {
        let closing = |open_max| Closing::new(open_max, Copies::new(open_max, Arc::clone(&budget)));
        Partition {
            shape,
            closing: shape.open_max.map(closing),
            segments: Vec::new(),
            free: Vec::new(),
            by_low: BTreeMap::new(),
            arena: Arena::new(Arc::clone(&budget)),
            huge: HugeTable::new(Arc::clone(&budget)),
            classes: Classes::new(bounds),
            budget,
            changed: 0,
            records: 0,
            leaf_bytes: 0,
            block_bytes: 0,
            index_bytes: 0,
            departures: Departures::default(),
            blocks_moved: 0,
            pages_emptied: 0,
            moved_when_last_maintained: 0,
            scratch: Vec::new(),
            new: NewLeaf::default(),
            codecs,
            sampled,
        }
    }

    /// Leaves an empty one, without any segment, in its place.
    pub(super) fn empty(&mut self, changed: u64) -> Partition {
        let mut empty = Partition::new(
            Arc::clone(&self.budget),
            self.classes.bounds(),
            self.shape,
            Arc::clone(&self.codecs),
            Arc::clone(&self.sampled),
        );
        empty.changed = changed;
        // What has gone stays counted.
        std::mem::swap(&mut empty.classes, &mut self.classes);
        empty.departures = self.departures;
        empty.departures.count_cleared(self.sampled.observer.as_deref(), &empty.classes.clear());
        std::mem::replace(self, empty)
    }

    // Segments.

    #[inline]
    pub(super) fn segment(&self, slot: u32) -> &Segment {
        self.segments[slot as usize].as_ref().expect("whoever was led here has checked `changed`")
    }

    #[inline]
    pub(super) fn segment_mut(&mut self, slot: u32) -> &mut Segment {
        self.segments[slot as usize].as_mut().expect("whoever was led here has checked `changed`")
    }

    /// Adds a segment, whose leaves lie in this arena already; returns its number.
    pub(super) fn add_segment(&mut self, segment: Segment) -> u32 {
        let slot = self.free.pop().unwrap_or(self.segments.len() as u32);
        if slot as usize == self.segments.len() {
            self.segments.push(None);
        }
        self.by_low.insert(Arc::clone(&segment.low), slot);
        self.segments[slot as usize] = Some(segment);
        slot
    }

    /// Takes a segment out; its leaves stay in the arena.
    pub(super) fn take_segment(&mut self, slot: u32) -> Segment {
        let segment = self.segments[slot as usize].take().expect("only what is there is taken");
        self.by_low.remove(&segment.low);
        self.free.push(slot);
        segment
    }

    /// Has the budget know how large the index is.
    pub(super) fn weigh_index(&mut self, before: usize, now: usize) {
        if now > before {
            self.budget.commit_anyway(now - before);
        } else {
            self.budget.release(before - now);
        }
        self.index_bytes = self.index_bytes + now - before;
    }

    // Looking.

    #[inline]
    pub(super) fn at(&self, slot: u32, key: &[u8]) -> At {
        let segment = self.segment(slot);
        let leaf = segment.separators.up_to(key);
        At { slot, leaf, handle: segment.leaves[leaf] }
    }

    /// An open leaf.
    #[inline]
    pub(super) fn leaf(&self, handle: Handle) -> Leaf<'_> {
        debug_assert!(!self.is_closed(handle));
        Leaf::new(self.arena.bytes(handle))
    }

    #[inline]
    pub(super) fn seek(&self, handle: Handle, key: &[u8]) -> Spot {
        if handle.is_none() {
            return Spot::NOWHERE;
        }
        self.seek_in(self.leaf(handle), key)
    }

    #[inline]
    pub(super) fn seek_in<'a>(&'a self, leaf: Leaf<'a>, key: &[u8]) -> Spot {
        leaf.seek(key, |elsewhere| self.key_elsewhere(elsewhere))
    }

    #[inline]
    pub(super) fn view<T>(&self, slot: u32, key: &[u8], see: impl FnOnce(Record<'_>) -> T) -> Option<T> {
        let at = self.at(slot, key);
        if at.handle.is_none() {
            return None;
        }
        self.prefetch_leaf(at.handle);
        self.with_leaf(at.handle, |leaf| {
            let entry = self.seek_in(leaf, key).found?;
            Some(see(self.record(leaf, &entry, &mut [0; 20])))
        })
    }

    /// Brings a leaf that is about to be searched closer.
    #[inline]
    fn prefetch_leaf(&self, handle: Handle) {
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
        entry: &Entry,
        digits: &'a mut [u8; 20],
    ) -> Record<'a> {
        match &entry.body {
            Body::Whole(parts) => {
                let bytes = leaf.bytes();
                Record::new(parts.value_text(bytes, digits), parts.attributes(bytes))
            }
            Body::Stub { elsewhere, .. } => self.record_elsewhere(*elsewhere, digits),
        }
    }

    fn record_elsewhere<'a>(&'a self, elsewhere: Elsewhere, digits: &'a mut [u8; 20]) -> Record<'a> {
        match elsewhere {
            Elsewhere::Block(handle) => {
                let bytes = self.arena.bytes(Handle(handle));
                let parts = whole(bytes);
                Record::new(parts.value_text(bytes, digits), parts.attributes(bytes))
            }
            Elsewhere::Huge(index) => self.huge.get(index).record(),
        }
    }

    /// The whole key of a record outside its leaf.
    fn key_elsewhere(&self, elsewhere: Elsewhere) -> &[u8] {
        match elsewhere {
            Elsewhere::Block(handle) => {
                let bytes = self.arena.bytes(Handle(handle));
                &bytes[whole(bytes).key]
            }
            Elsewhere::Huge(index) => &self.huge.get(index).key,
        }
    }

    /// Writes the whole key of a record to `key`.
    pub(super) fn key_of(&self, leaf: Leaf<'_>, entry: &Entry, key: &mut Vec<u8>) {
        key.clear();
        match &entry.body {
            Body::Stub { elsewhere, is_cut: true } => key.extend_from_slice(self.key_elsewhere(*elsewhere)),
            _ => {
                key.extend_from_slice(leaf.prefix());
                key.extend_from_slice(&leaf.bytes()[entry.key.clone()]);
            }
        }
    }

    /// key + value + 4 if there are flags.
    pub(super) fn plain_size(&self, leaf: Leaf<'_>, entry: &Entry) -> usize {
        let bytes = leaf.bytes();
        match &entry.body {
            Body::Whole(parts) => {
                leaf.prefix().len() + entry.key.len() + parts.value_text_len(bytes) + parts.flags_size()
            }
            Body::Stub { elsewhere: Elsewhere::Block(handle), .. } => {
                let bytes = self.arena.bytes(Handle(*handle));
                let parts = whole(bytes);
                parts.key.len() + parts.value_text_len(bytes) + parts.flags_size()
            }
            Body::Stub { elsewhere: Elsewhere::Huge(index), .. } => self.huge.get(*index).plain_size(),
        }
    }

    // Keeping in shape.

    /// One step of compaction; true if something was won.
    pub(super) fn compact(&mut self, effort: Effort) -> bool {
        let Partition { arena, segments, by_low, .. } = self;
        // Stubs lie in the arena themselves, so they are mended after the step. Until then nobody looks.
        let (mut moved_leaves, mut moved_records) = (Vec::new(), Vec::new());
        let done = arena.compact(effort, &mut |bytes, kind, from, to| match kind {
            // A leaf of the step may have held a stub of another block of the step: its key is looked for later.
            Kind::Bucket if closed::is_closed(bytes) => {
                moved_leaves.push((closed::key(bytes).to_vec(), from, to))
            }
            Kind::Bucket => {
                let leaf = Leaf::new(bytes);
                let first = leaf.entry(leaf.records_at());
                let key = [leaf.prefix(), &bytes[first.key.clone()]].concat();
                moved_leaves.push((key, from, to));
            }
            Kind::Record => moved_records.push((bytes[whole(bytes).key].to_vec(), from, to)),
        });
        let mut renamed = Vec::new();
        for (key, from, to) in moved_leaves {
            // Of a key that is cut only its beginning is known: then the leaf may be a later one.
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
            self.closed_has_moved(from);
            self.segment_mut(slot).leaves[leaf] = to;
        }
        for (key, from, to) in moved_records {
            let slot = self.slot_of(&key);
            let at = self.at(slot, &key);
            let leaf = self.leaf(at.handle);
            let stub = leaf.entries().find(|entry| {
                matches!(entry.body, Body::Stub { elsewhere: Elsewhere::Block(block), .. } if block == from.0)
            });
            let stub = stub.expect("a record's block has a stub");
            self.arena.write(at.handle, stub.at + stub.len - 4, &to.0.to_le_bytes());
        }
        self.pages_emptied += u64::from(done);
        done
    }

    /// The segment of a key that is here.
    fn slot_of(&self, key: &[u8]) -> u32 {
        let range = (Bound::Unbounded, Bound::Included(key));
        *self.by_low.range::<[u8], _>(range).next_back().expect("some segment begins before").1
    }

    /// One step of getting by with less; true if something was won.
    pub(super) fn pack(&mut self) -> bool {
        self.close_all() || self.arena.trim() || self.compact(Effort::Leisurely)
    }

    /// Background housekeeping: one thorough step; true if there may be more to do.
    pub(super) fn maintain(&mut self) -> bool {
        // What is written to is best left with some slack; what rests is packed to the last page.
        let is_at_rest = self.arena.moved() == self.moved_when_last_maintained;
        let effort = if is_at_rest { Effort::Leisurely } else { Effort::Thorough };
        // Where memory is scarce, what rests is best closed.
        let closed = is_at_rest && self.budget.is_tight() && self.close_all();
        let done = self.compact(effort) || self.arena.trim() || closed;
        self.moved_when_last_maintained = self.arena.moved();
        done
    }

    pub(super) fn add_to(&self, status: &mut EngineStatus) {
        status.records += self.records;
        status.live_bytes += (self.leaf_bytes + self.block_bytes + self.huge.bytes()) as u64;
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

/// The whole record that a block of one record holds.
fn whole(bytes: &[u8]) -> Parts {
    match leaf::entry(bytes, 0).body {
        Body::Whole(parts) => parts,
        Body::Stub { .. } => unreachable!("a block of one record holds a whole record"),
    }
}
