//! Defines a segment, which consists of some hundred neighbouring leaves and the keys that separate
//! them.

use super::separators::SeparatorList;
use crate::arena::BlockHandle;
use std::sync::Arc;

/// The maximum number of leaves. A segment with more leaves is divided.
pub(super) const LEAVES_MAX: usize = 256;

/// A segment. Invariants: all keys are at least `low` and below `high`; there is one leaf more than
/// there are separators; a leaf is [`BlockHandle::NONE`] only if it is the single leaf of the
/// segment.
pub(super) struct LeafSegment {
    pub(super) low: Arc<[u8]>,
    /// The end of the key range; `None` for the last segment.
    pub(super) high: Option<Arc<[u8]>>,
    pub(super) separators: SeparatorList,
    pub(super) leaves: Vec<BlockHandle>,
}

impl LeafSegment {
    /// Creates a segment without records.
    pub(super) fn empty(low: Arc<[u8]>, high: Option<Arc<[u8]>>) -> LeafSegment {
        LeafSegment { low, high, separators: SeparatorList::default(), leaves: vec![BlockHandle::NONE] }
    }

    /// Returns the lowest possible key of the leaf after this one. Returns `None` for the last leaf
    /// of the tree.
    pub(super) fn end_of(&self, leaf: usize) -> Option<Vec<u8>> {
        if leaf < self.separators.len() {
            return Some(self.separators.get(leaf));
        }
        self.high.as_ref().map(|high| high.to_vec())
    }

    /// Returns the lowest possible key of a leaf.
    pub(super) fn start_of(&self, leaf: usize) -> Vec<u8> {
        if leaf == 0 { self.low.to_vec() } else { self.separators.get(leaf - 1) }
    }

    /// Replaces a leaf by other leaves. `between` holds the keys that separate these.
    pub(super) fn replace(&mut self, leaf: usize, with: &[BlockHandle], between: &[Vec<u8>]) {
        debug_assert_eq!(with.len(), between.len() + 1);
        self.leaves.splice(leaf..=leaf, with.iter().copied());
        for (index, key) in between.iter().enumerate() {
            self.separators.insert(leaf + index, key);
        }
    }

    /// Removes a leaf without records. A neighbour of the leaf takes over its range of keys.
    pub(super) fn remove(&mut self, leaf: usize) {
        if self.leaves.len() == 1 {
            self.leaves[0] = BlockHandle::NONE;
            return;
        }
        self.leaves.remove(leaf);
        self.separators.remove(leaf.saturating_sub(1));
    }

    /// Returns the memory that the segment uses, including the keys at both ends.
    pub(super) fn bytes(&self) -> usize {
        let ends = self.low.len() + self.high.as_ref().map_or(0, |high| high.len());
        size_of::<LeafSegment>() + ends + self.leaves.capacity() * 4 + self.separators.bytes()
    }
}
