//! Going from record to record.

use super::Partition;
use std::ops::{Bound, ControlFlow};
use todana_core::Record;

/// What is called with each record.
pub(in crate::mem_tree) type See<'a> = &'a mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>;

/// How a walk over one leaf has ended.
pub(in crate::mem_tree) enum Walked {
    /// `see` has had enough.
    Enough,
    /// Where to go on: at this key, going up, or before it, going down.
    On(Vec<u8>),
    /// There is nothing more in this direction.
    Done,
}

impl Partition {
    /// Shows the records of one leaf from a key on.
    pub(in crate::mem_tree) fn ascend(&self, slot: u32, from: Bound<&[u8]>, see: See<'_>) -> Walked {
        let key = match from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        let at = self.at(slot, key);
        if !at.handle.is_none() {
            let flow = self.with_leaf(at.handle, |leaf| {
                let spot = self.seek_in(leaf, key);
                let mut next = spot.at;
                if let (Some(found), Bound::Excluded(_)) = (&spot.found, from) {
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
                return Walked::Enough;
            }
        }
        self.segment(slot).end_of(at.leaf).map_or(Walked::Done, Walked::On)
    }

    /// Shows the records of one leaf from a key on, downwards. `leaf`: the one where those below the key end, if the key
    /// itself is not wanted.
    pub(in crate::mem_tree) fn descend(&self, slot: u32, from: Bound<&[u8]>, see: See<'_>) -> Walked {
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
                        let spot = self.seek_in(leaf, key);
                        spot.at + spot.found.map_or(0, |found| found.len)
                    }
                    Bound::Excluded(key) => self.seek_in(leaf, key).at,
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
                return Walked::Enough;
            }
        }
        let start = segment.start_of(leaf_index);
        if start.is_empty() { Walked::Done } else { Walked::On(start) }
    }
}
