//! Closing leaves that nobody writes to, and opening them again.

use super::super::closed::{self, Copies};
use super::super::leaf::{Body, Leaf};
use super::{At, Partition};
use crate::arena::{Handle, Kind, Need, NoRoom};
use parking_lot::Mutex;
use std::ops::Bound;
use std::sync::Arc;

/// Leaves that the hand looks at in one go.
const LOOKS_MAX: usize = 512;

/// What a partition of a compressed database has besides.
pub(super) struct Closing {
    /// Open leaves may come to so many bytes.
    open_max: usize,
    /// Bytes in closed leaves, as compressed.
    closed_bytes: usize,
    /// The key at which the hand is.
    hand: Vec<u8>,
    /// What was open after a whole round that has not come below `open_max`; else 0. Until there is more, another would be
    /// for nothing.
    stuck_at: usize,
    /// Never held while anything is decompressed.
    copies: Mutex<Copies>,
}

impl Closing {
    pub(super) fn new(open_max: usize, copies: Copies) -> Closing {
        Closing { open_max, closed_bytes: 0, hand: Vec::new(), stuck_at: 0, copies: Mutex::new(copies) }
    }
}

impl Partition {
    #[inline]
    pub(super) fn is_closed(&self, handle: Handle) -> bool {
        self.closing.is_some() && closed::is_closed(self.arena.bytes(handle))
    }

    /// Runs `look` on a leaf, open or not.
    #[inline]
    pub(super) fn with_leaf<T>(&self, handle: Handle, look: impl FnOnce(Leaf<'_>) -> T) -> T {
        match &self.closing {
            Some(closing) if closed::is_closed(self.arena.bytes(handle)) => {
                look(Leaf::new(&self.copy_of(handle, closing)))
            }
            _ => look(self.leaf(handle)),
        }
    }

    /// An open copy of a closed leaf.
    fn copy_of(&self, handle: Handle, closing: &Closing) -> Arc<[u8]> {
        if let Some(copy) = closing.copies.lock().get(handle.0) {
            return copy;
        }
        let copy: Arc<[u8]> = closed::open(self.arena.bytes(handle), &self.codecs).into();
        closing.copies.lock().put(handle.0, Arc::clone(&copy));
        copy
    }

    /// The length of a leaf's block.
    pub(super) fn block_len(&self, handle: Handle) -> usize {
        if self.is_closed(handle) { closed::len(self.arena.bytes(handle)) } else { self.leaf(handle).len() }
    }

    /// A closed leaf leaves this partition or its block.
    pub(super) fn forget_closed(&mut self, handle: Handle) {
        if self.is_closed(handle) {
            let len = closed::len(self.arena.bytes(handle));
            let closing = self.closing.as_mut().expect("it has closed leaves");
            closing.closed_bytes -= len;
            closing.copies.get_mut().remove(handle.0);
        }
    }

    /// A closed leaf has come to this partition.
    pub(super) fn learn_closed(&mut self, handle: Handle) {
        if self.is_closed(handle) {
            let len = closed::len(self.arena.bytes(handle));
            self.closing.as_mut().expect("it has closed leaves").closed_bytes += len;
        }
    }

    /// A closed leaf's block has moved.
    pub(super) fn closed_has_moved(&mut self, from: Handle) {
        if let Some(closing) = &mut self.closing {
            closing.copies.get_mut().remove(from.0);
        }
    }

    /// The leaf of a key, open.
    #[inline]
    pub(super) fn open_at(&mut self, slot: u32, key: &[u8]) -> Result<At, NoRoom> {
        let at = self.at(slot, key);
        if at.handle.is_none() || !self.is_closed(at.handle) {
            return Ok(at);
        }
        let copy = self.closing.as_ref().and_then(|closing| closing.copies.lock().get(at.handle.0));
        let bytes = copy.unwrap_or_else(|| closed::open(self.arena.bytes(at.handle), &self.codecs).into());
        let image = Leaf::new(&bytes).image();
        let handle = self.arena.alloc(image.len(), Kind::Bucket, Need::Upkeep)?;
        self.arena.write(handle, 0, image);
        self.put_in_place(at, handle, image.len());
        Ok(At { handle, ..at })
    }

    /// Gives a leaf another block, of `len` bytes, and the old one back.
    fn put_in_place(&mut self, at: At, handle: Handle, len: usize) {
        let old_len = self.block_len(at.handle);
        self.forget_closed(at.handle);
        self.arena.free(at.handle, old_len, Kind::Bucket);
        self.leaf_bytes = self.leaf_bytes + len - old_len;
        self.segment_mut(at.slot).leaves[at.leaf] = handle;
    }

    /// Bytes in open leaves.
    fn open_bytes(&self) -> usize {
        self.leaf_bytes - self.closing.as_ref().map_or(0, |closing| closing.closed_bytes)
    }

    /// Closes leaves while too much is open, but not that of `key`.
    #[inline]
    pub(super) fn close_some(&mut self, key: &[u8]) {
        let Some(closing) = &self.closing else { return };
        if self.open_bytes() <= closing.open_max.max(closing.stuck_at + closing.open_max / 4) {
            return;
        }
        // Well below, so that this is not for every write.
        let target = closing.open_max / 8 * 7;
        let spared = self.at(self.slot_of(key), key).handle;
        let is_round = self.go_round(spared, target);
        let stuck_at = if is_round { self.open_bytes() } else { 0 };
        if let Some(closing) = &mut self.closing {
            closing.stuck_at = stuck_at;
        }
    }

    /// Closes all leaves that can be, and forgets the copies; true if that has won anything.
    pub(super) fn close_all(&mut self) -> bool {
        let before = self.leaf_bytes;
        let Some(closing) = &mut self.closing else { return false };
        let had_copies = closing.copies.get_mut().clear();
        self.go_round(Handle::NONE, 0);
        had_copies || self.leaf_bytes < before
    }

    /// Goes from leaf to leaf and closes them until no more than `target` bytes are open; true if it has been at all of them
    /// before that.
    fn go_round(&mut self, spared: Handle, target: usize) -> bool {
        let all: usize = self.segments.iter().flatten().map(|segment| segment.leaves.len() + 2).sum();
        let looks_max = if target == 0 { all } else { all.min(LOOKS_MAX) };
        let mut hand = match &mut self.closing {
            Some(closing) => std::mem::take(&mut closing.hand),
            None => return false,
        };
        let mut looks = 0;
        while looks < looks_max && self.open_bytes() > target {
            looks += 1;
            // The segment of the hand, or the next one that is here.
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
                    self.close(At { slot, leaf, handle });
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

    fn close(&mut self, at: At) {
        let leaf = self.leaf(at.handle);
        if leaf.entries().any(|entry| matches!(entry.body, Body::Stub { .. })) {
            return;
        }
        let image = closed::close(leaf, &self.codecs);
        // Without a block for it, it stays open.
        let Ok(handle) = self.arena.alloc(image.len(), Kind::Bucket, Need::Upkeep) else { return };
        self.arena.write(handle, 0, &image);
        self.put_in_place(at, handle, image.len());
        self.learn_closed(handle);
    }
}
