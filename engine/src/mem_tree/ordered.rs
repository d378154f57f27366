//! Scans records in order, one leaf at a time. No lock is held between two leaves.

use super::MemTree;
use super::partition::{RecordCallback, WalkOutcome};
use crate::huge;
use std::ops::{Bound, ControlFlow};
use todana_core::{OrderedEngine, Record, Result};

impl OrderedEngine for MemTree {
    fn ascend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.ascend_shared(from, &mut huge::see_plain(see));
        Ok(())
    }

    fn descend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let see: RecordCallback<'_> = &mut huge::see_plain(see);
        let step = |from: Bound<&[u8]>, see: RecordCallback<'_>| {
            let (partition, slot) = self.read(|router| match from {
                Bound::Included(key) => router.find(key),
                Bound::Excluded(key) => router.find_below(key),
                Bound::Unbounded => router.find_last(),
            });
            partition.descend(slot, from, see)
        };
        let mut walked = step(from, see);
        while let WalkOutcome::ContinueAt(key) = &walked {
            walked = step(Bound::Excluded(key), see);
        }
        Ok(())
    }
}

impl MemTree {
    /// Does what `ascend` does, for a reader that reads the bytes of a long value only through
    /// [`Record::shared`].
    pub(super) fn ascend_shared(&self, from: Bound<&[u8]>, see: RecordCallback<'_>) {
        let step = |from: Bound<&[u8]>, see: RecordCallback<'_>| {
            let (partition, slot) = self.read(|router| match from {
                Bound::Included(key) | Bound::Excluded(key) => router.find(key),
                Bound::Unbounded => router.find(&[]),
            });
            partition.ascend(slot, from, see)
        };
        // The next leaf begins at a separator. Leaves may be split or merged meanwhile, but the
        // separator still says where to continue.
        let mut walked = step(from, see);
        while let WalkOutcome::ContinueAt(key) = &walked {
            walked = step(Bound::Included(key), see);
        }
    }
}
