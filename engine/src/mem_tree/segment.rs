//! A segment: some hundred neighbouring leaves and the keys that divide them.

use super::separators::Separators;
use crate::arena::Handle;
use std::sync::Arc;

/// A segment with more leaves than this is divided.
pub(super) const LEAVES_MAX: usize = 256;

/// Always true: its keys are at least `low` and below `high`, and there is one leaf more than there are separators. A lone
/// leaf may be [`Handle::NONE`], and no other.
pub(super) struct Segment {
    pub(super) low: Arc<[u8]>,
    /// `None`: there is no end.
    pub(super) high: Option<Arc<[u8]>>,
    pub(super) separators: Separators,
    pub(super) leaves: Vec<Handle>,
}

impl Segment {
    /// One without records.
    pub(super) fn empty(low: Arc<[u8]>, high: Option<Arc<[u8]>>) -> Segment {
        Segment { low, high, separators: Separators::default(), leaves: vec![Handle::NONE] }
    }

    /// Where the keys of the next leaf begin; `None` behind the last one of all.
    pub(super) fn end_of(&self, leaf: usize) -> Option<Vec<u8>> {
        if leaf < self.separators.len() {
            return Some(self.separators.get(leaf));
        }
        self.high.as_ref().map(|high| high.to_vec())
    }

    /// Where the keys of a leaf begin.
    pub(super) fn start_of(&self, leaf: usize) -> Vec<u8> {
        if leaf == 0 { self.low.to_vec() } else { self.separators.get(leaf - 1) }
    }

    /// Puts other leaves in the place of one; `between` are the keys that divide them.
    pub(super) fn replace(&mut self, leaf: usize, with: &[Handle], between: &[Vec<u8>]) {
        debug_assert_eq!(with.len(), between.len() + 1);
        self.leaves.splice(leaf..=leaf, with.iter().copied());
        for (index, key) in between.iter().enumerate() {
            self.separators.insert(leaf + index, key);
        }
    }

    /// Takes a leaf out that has no records; its neighbour has its range then.
    pub(super) fn remove(&mut self, leaf: usize) {
        if self.leaves.len() == 1 {
            self.leaves[0] = Handle::NONE;
            return;
        }
        self.leaves.remove(leaf);
        self.separators.remove(leaf.saturating_sub(1));
    }

    /// Bytes of memory, the keys at its ends included.
    pub(super) fn bytes(&self) -> usize {
        let ends = self.low.len() + self.high.as_ref().map_or(0, |high| high.len());
        size_of::<Segment>() + ends + self.leaves.capacity() * 4 + self.separators.bytes()
    }
}
