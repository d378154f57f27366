//! Closes leaves that are not being written to, and opens them again. A closed leaf is compressed
//! (closed.rs).

use super::super::closed::{self, LeafCopies};
use super::super::leaf::{Leaf, LeafEntryBody};
use super::{LeafLocation, Partition};
use crate::arena::{BlockHandle, BlockKind, MemoryNeed, NoRoom};
use parking_lot::Mutex;
use std::ops::Bound;
use std::sync::Arc;

/// The maximum number of leaves that one call visits.
const LOOKS_MAX: usize = 512;

/// The state of a partition whose leaves can be closed.
pub(super) struct ClosedLeaves {
    /// The maximum total size of open leaves.
    open_max: usize,
    /// The total size of closed leaves, compressed.
    closed_bytes: usize,
    /// The key at which the clock hand is. The hand selects the next leaf to close.
    hand: Vec<u8>,
    /// The total size of open leaves after a complete round of the hand that did not reach its
    /// target; otherwise 0. Another round is useless until the size has grown.
    stuck_at: usize,
    /// Open copies of closed leaves. The lock is not held during decompression.
    copies: Mutex<LeafCopies>,
}

impl ClosedLeaves {
    pub(super) fn new(open_max: usize, copies: LeafCopies) -> ClosedLeaves {
        ClosedLeaves { open_max, closed_bytes: 0, hand: Vec::new(), stuck_at: 0, copies: Mutex::new(copies) }
    }
}

impl Partition {
    #[inline]
    pub(super) fn is_closed(&self, handle: BlockHandle) -> bool {
        self.closing.is_some() && closed::is_closed(self.arena.bytes(handle))
    }

    /// Calls `view` with a leaf, which may be open or closed.
    #[inline]
    pub(super) fn with_leaf<T>(&self, handle: BlockHandle, view: impl FnOnce(Leaf<'_>) -> T) -> T {
        match &self.closing {
            Some(closing) if closed::is_closed(self.arena.bytes(handle)) => {
                view(Leaf::new(&self.copy_of(handle, closing)))
            }
            _ => view(self.leaf(handle)),
        }
    }

    /// Returns an open copy of a closed leaf.
    fn copy_of(&self, handle: BlockHandle, closing: &ClosedLeaves) -> Arc<[u8]> {
        if let Some(copy) = closing.copies.lock().get(handle.0) {
            return copy;
        }
        let copy: Arc<[u8]> = closed::open(self.arena.bytes(handle), &self.codecs).into();
        closing.copies.lock().put(handle.0, Arc::clone(&copy));
        copy
    }

    /// Returns the length of a leaf's block.
    pub(super) fn block_len(&self, handle: BlockHandle) -> usize {
        if self.is_closed(handle) { closed::len(self.arena.bytes(handle)) } else { self.leaf(handle).len() }
    }

    /// Subtracts a closed leaf that leaves this partition or is replaced.
    pub(super) fn uncount_closed(&mut self, handle: BlockHandle) {
        if self.is_closed(handle) {
            let len = closed::len(self.arena.bytes(handle));
            let closing = self.closing.as_mut().expect("it has closed leaves");
            closing.closed_bytes -= len;
            closing.copies.get_mut().remove(handle.0);
        }
    }

    /// Adds a closed leaf to the counts of this partition.
    pub(super) fn count_closed(&mut self, handle: BlockHandle) {
        if self.is_closed(handle) {
            let len = closed::len(self.arena.bytes(handle));
            self.closing.as_mut().expect("it has closed leaves").closed_bytes += len;
        }
    }

    /// Removes the copy of a closed leaf whose block has moved.
    pub(super) fn forget_moved_copy(&mut self, from: BlockHandle) {
        if let Some(closing) = &mut self.closing {
            closing.copies.get_mut().remove(from.0);
        }
    }

    /// Returns the location of the leaf of a key. If the leaf is closed, opens it first.
    #[inline]
    pub(super) fn open_at(&mut self, slot: u32, key: &[u8]) -> Result<LeafLocation, NoRoom> {
        let at = self.at(slot, key);
        if at.handle.is_none() || !self.is_closed(at.handle) {
            return Ok(at);
        }
        let copy = self.closing.as_ref().and_then(|closing| closing.copies.lock().get(at.handle.0));
        let bytes = copy.unwrap_or_else(|| closed::open(self.arena.bytes(at.handle), &self.codecs).into());
        let image = Leaf::new(&bytes).image();
        let handle = self.arena.alloc(image.len(), BlockKind::Bucket, MemoryNeed::Upkeep)?;
        self.arena.write(handle, 0, image);
        self.replace_block(at, handle, image.len());
        Ok(LeafLocation { handle, ..at })
    }

    /// Replaces the block of a leaf by a block of `len` bytes and frees the old block.
    fn replace_block(&mut self, at: LeafLocation, handle: BlockHandle, len: usize) {
        let old_len = self.block_len(at.handle);
        self.uncount_closed(at.handle);
        self.arena.free(at.handle, old_len, BlockKind::Bucket);
        self.leaf_bytes = self.leaf_bytes + len - old_len;
        self.segment_mut(at.slot).leaves[at.leaf] = handle;
    }

    /// Returns the total size of open leaves.
    fn open_bytes(&self) -> usize {
        self.leaf_bytes - self.closing.as_ref().map_or(0, |closing| closing.closed_bytes)
    }

    /// While too many leaves are open, closes leaves other than that of `key`.
    #[inline]
    pub(super) fn close_excess(&mut self, key: &[u8]) {
        let Some(closing) = &self.closing else { return };
        if self.open_bytes() <= closing.open_max.max(closing.stuck_at + closing.open_max / 4) {
            return;
        }
        // The target is well below the maximum, so that not every write has to close leaves.
        let target = closing.open_max / 8 * 7;
        let spared = self.at(self.slot_of(key), key).handle;
        let is_round = self.close_leaves(spared, target);
        let stuck_at = if is_round { self.open_bytes() } else { 0 };
        if let Some(closing) = &mut self.closing {
            closing.stuck_at = stuck_at;
        }
    }

    /// Closes all leaves that can be closed, and removes the copies. Returns true if that has freed
    /// anything.
    pub(super) fn close_all_leaves(&mut self) -> bool {
        let before = self.leaf_bytes;
        let Some(closing) = &mut self.closing else { return false };
        let had_copies = closing.copies.get_mut().clear();
        self.close_leaves(BlockHandle::NONE, 0);
        had_copies || self.leaf_bytes < before
    }

    /// Closes one leaf after another until at most `target` bytes of leaves are open. Returns true
    /// if all leaves were visited without reaching the target. The leaf `spared` stays open.
    fn close_leaves(&mut self, spared: BlockHandle, target: usize) -> bool {
        let all: usize = self.segments.iter().flatten().map(|segment| segment.leaves.len() + 2).sum();
        let looks_max = if target == 0 { all } else { all.min(LOOKS_MAX) };
        let mut hand = match &mut self.closing {
            Some(closing) => std::mem::take(&mut closing.hand),
            None => return false,
        };
        let mut looks = 0;
        while looks < looks_max && self.open_bytes() > target {
            looks += 1;
            // The hand is in the segment that contains its key, or otherwise moves to the next
            // segment of this partition.
            let range = (Bound::Unbounded, Bound::Included(&hand[..]));
            let before = self.by_low.range::<[u8], _>(range).next_back();
            let here = before
                .map(|(_, &slot)| slot)
                .filter(|&slot| self.segment(slot).high.as_ref().is_none_or(|high| **high > hand[..]));
            let Some(slot) = here else {
                let range = (Bound::Excluded(&hand[..]), Bound::Unbounded);
                let next = self.by_low.range::<[u8], _>(range).next();
                match next.or_else(|| self.by_low.iter().next()) {
                    Some((low, _)) => hand = low.to_vec(),
                    None => break,
                }
                continue;
            };
            let first = self.segment(slot).separators.up_to(&hand);
            for leaf in first..self.segment(slot).leaves.len() {
                looks += 1;
                let handle = self.segment(slot).leaves[leaf];
                if !handle.is_none() && handle != spared && !self.is_closed(handle) {
                    self.close(LeafLocation { slot, leaf, handle });
                }
                if looks >= looks_max || self.open_bytes() <= target {
                    hand = self.segment(slot).end_of(leaf).unwrap_or_default();
                    break;
                }
                if leaf + 1 == self.segment(slot).leaves.len() {
                    hand = self.segment(slot).end_of(leaf).unwrap_or_default();
                }
            }
        }
        if let Some(closing) = &mut self.closing {
            closing.hand = hand;
        }
        looks >= all && self.open_bytes() > target
    }

    fn close(&mut self, at: LeafLocation) {
        let leaf = self.leaf(at.handle);
        if leaf.entries().any(|entry| matches!(entry.body, LeafEntryBody::Stub { .. })) {
            return;
        }
        let image = closed::close(leaf, &self.codecs);
        // If there is no memory for the closed leaf, the leaf stays open.
        let Ok(handle) = self.arena.alloc(image.len(), BlockKind::Bucket, MemoryNeed::Upkeep) else { return };
        self.arena.write(handle, 0, &image);
        self.replace_block(at, handle, image.len());
        self.count_closed(handle);
    }
}
