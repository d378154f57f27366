//! Walks over neighbouring records: leaf by leaf, with no lock held in between.

use super::MemTree;
use super::partition::Walked;
use std::ops::{Bound, ControlFlow};
use todana_core::{OrderedEngine, Record, Result};

impl OrderedEngine for MemTree {
    fn ascend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let step = |from: Bound<&[u8]>, see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>| {
            let (partition, slot) = self.read(|router| match from {
                Bound::Included(key) | Bound::Excluded(key) => router.find(key),
                Bound::Unbounded => router.find(&[]),
            });
            partition.ascend(slot, from, see)
        };
        // The next leaf begins at a key that divides them, wherever it may be by then.
        let mut walked = step(from, see);
        while let Walked::On(key) = &walked {
            walked = step(Bound::Included(key), see);
        }
        Ok(())
    }

    fn descend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let step = |from: Bound<&[u8]>, see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>| {
            let (partition, slot) = self.read(|router| match from {
                Bound::Included(key) => router.find(key),
                Bound::Excluded(key) => router.find_below(key),
                Bound::Unbounded => router.find_last(),
            });
            partition.descend(slot, from, see)
        };
        let mut walked = step(from, see);
        while let Walked::On(key) = &walked {
            walked = step(Bound::Excluded(key), see);
        }
        Ok(())
    }
}
