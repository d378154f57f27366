//! Scans the records of one leaf in order.

use super::Partition;
use std::ops::{Bound, ControlFlow};
use todana_core::Record;

/// A function that is called with each record.
pub(in crate::mem_tree) type RecordCallback<'a> = &'a mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>;

/// The reason why the scan of one leaf has ended.
pub(in crate::mem_tree) enum WalkOutcome {
    /// The callback has stopped the scan.
    Stopped,
    /// The scan continues at this key when ascending, or before it when descending.
    ContinueAt(Vec<u8>),
    /// There are no more records in this direction.
    Done,
}

impl Partition {
    /// Shows the records of one leaf from a key on.
    pub(in crate::mem_tree) fn ascend(
        &self,
        slot: u32,
        from: Bound<&[u8]>,
        see: RecordCallback<'_>,
    ) -> WalkOutcome {
        let key = match from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        let at = self.at(slot, key);
        if !at.handle.is_none() {
            let flow = self.with_leaf(at.handle, |leaf| {
                let position = self.find_in(leaf, key);
                let mut next = position.at;
                if let (Some(found), Bound::Excluded(_)) = (&position.found, from) {
                    next += found.len;
                }
                let (mut key, mut digits) = (Vec::new(), [0; 20]);
                while next < leaf.len() {
                    let entry = leaf.entry(next);
                    self.key_of(leaf, &entry, &mut key);
                    see(&key, self.record(leaf, &entry, &mut digits))?;
                    next += entry.len;
                }
                ControlFlow::Continue(())
            });
            if flow.is_break() {
                return WalkOutcome::Stopped;
            }
        }
        self.segment(slot).end_of(at.leaf).map_or(WalkOutcome::Done, WalkOutcome::ContinueAt)
    }

    /// Shows the records of one leaf from a key on in descending order. If the key itself is
    /// excluded, the leaf is the one that contains the keys just below it.
    pub(in crate::mem_tree) fn descend(
        &self,
        slot: u32,
        from: Bound<&[u8]>,
        see: RecordCallback<'_>,
    ) -> WalkOutcome {
        let segment = self.segment(slot);
        let leaf_index = match from {
            Bound::Included(key) => segment.separators.up_to(key),
            Bound::Excluded(key) => segment.separators.below(key),
            Bound::Unbounded => segment.separators.len(),
        };
        let handle = segment.leaves[leaf_index];
        if !handle.is_none() {
            let flow = self.with_leaf(handle, |leaf| {
                let end = match from {
                    Bound::Included(key) => {
                        let position = self.find_in(leaf, key);
                        position.at + position.found.map_or(0, |found| found.len)
                    }
                    Bound::Excluded(key) => self.find_in(leaf, key).at,
                    Bound::Unbounded => leaf.len(),
                };
                let places: Vec<u16> = leaf.places().take_while(|&at| at < end).map(|at| at as u16).collect();
                let (mut key, mut digits) = (Vec::new(), [0; 20]);
                for &at in places.iter().rev() {
                    let entry = leaf.entry(usize::from(at));
                    self.key_of(leaf, &entry, &mut key);
                    see(&key, self.record(leaf, &entry, &mut digits))?;
                }
                ControlFlow::Continue(())
            });
            if flow.is_break() {
                return WalkOutcome::Stopped;
            }
        }
        let start = segment.start_of(leaf_index);
        if start.is_empty() { WalkOutcome::Done } else { WalkOutcome::ContinueAt(start) }
    }
}
