//! A segment: some hundred neighbouring leaves and the keys that separate them.

use super::separators::SeparatorList;
use crate::arena::BlockHandle;
use std::sync::Arc;

/// A segment with more leaves is divided.
pub(super) const LEAVES_MAX: usize = 256;

/// Invariants: all keys are at least `low` and below `high`; there is one leaf more than there are
/// separators. Only a single leaf may be [`BlockHandle::NONE`].
pub(super) struct LeafSegment {
    pub(super) low: Arc<[u8]>,
    /// `None` for the last segment.
    pub(super) high: Option<Arc<[u8]>>,
    pub(super) separators: SeparatorList,
    pub(super) leaves: Vec<BlockHandle>,
}

impl LeafSegment {
    /// Creates a segment without records.
    pub(super) fn empty(low: Arc<[u8]>, high: Option<Arc<[u8]>>) -> LeafSegment {
        LeafSegment { low, high, separators: SeparatorList::default(), leaves: vec![BlockHandle::NONE] }
    }

    /// Returns the lowest possible key of the next leaf; `None` after the last leaf of the tree.
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

    /// Replaces a leaf by others. `between` holds the keys that separate them.
    pub(super) fn replace(&mut self, leaf: usize, with: &[BlockHandle], between: &[Vec<u8>]) {
        debug_assert_eq!(with.len(), between.len() + 1);
        self.leaves.splice(leaf..=leaf, with.iter().copied());
        for (index, key) in between.iter().enumerate() {
            self.separators.insert(leaf + index, key);
        }
    }

    /// Removes a leaf without records. Its neighbour takes over its range.
    pub(super) fn remove(&mut self, leaf: usize) {
        if self.leaves.len() == 1 {
            self.leaves[0] = BlockHandle::NONE;
            return;
        }
        self.leaves.remove(leaf);
        self.separators.remove(leaf.saturating_sub(1));
    }

    /// Returns the memory used, including the keys at both ends.
    pub(super) fn bytes(&self) -> usize {
        let ends = self.low.len() + self.high.as_ref().map_or(0, |high| high.len());
        size_of::<LeafSegment>() + ends + self.leaves.capacity() * 4 + self.separators.bytes()
    }
}
