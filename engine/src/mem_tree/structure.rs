//! Changes the set of segments and their partitions, one change at a time.
//!
//! Such a change locks `MemTree::structure` and then the partitions concerned. Before it releases
//! the partitions, it sets their `changed_epoch` and installs the new table of the router. A thread
//! that has used an old table therefore notices the change.

use super::MemTree;
use super::partition::Partition;
use super::router::{RoutingTable, SegmentLocation};
use super::segment::{LEAVES_MAX, LeafSegment};
use super::separators::SeparatorList;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The number of segments that one step of maintenance merges at most.
const MERGED_AT_ONCE: usize = 8;

impl MemTree {
    /// Divides the segment of this key if it has become too long.
    pub(super) fn divide_segment(&self, key: &[u8]) {
        let _structure = self.structure.lock();
        let table = self.router.table();
        let index = table.separators.up_to(key);
        let from = table.locations[index];
        // Moving a segment briefly needs the memory of the segment twice.
        let is_scarce = self.budget.is_tight();
        let into = if is_scarce { from.partition } else { self.least_loaded(from.partition) };
        self.with_two_locks(from.partition, into, |from_partition, into_partition| {
            let segment = from_partition.segment_mut(from.slot);
            if segment.leaves.len() <= LEAVES_MAX {
                return;
            }
            let before = segment.bytes();
            let leaf = segment.separators.up_to(key);
            // If keys arrive in ascending order, only the last leaf is moved to the new segment,
            // which receives the keys that follow.
            let half = if leaf + 1 == segment.leaves.len() { leaf } else { segment.leaves.len() / 2 };
            let middle: Arc<[u8]> = segment.separators.get(half - 1).into();
            let separators = segment.separators.split_off(half);
            segment.separators.remove(half - 1);
            let leaves = segment.leaves.split_off(half);
            let high = segment.high.replace(Arc::clone(&middle));
            let mut upper = LeafSegment { low: Arc::clone(&middle), high, separators, leaves };
            let now = segment.bytes();
            let epoch = table.epoch + 1;
            from_partition.update_index_bytes(before, now);
            from_partition.changed_epoch = epoch;
            // If there is no memory for its leaves, the new segment stays in this partition.
            let mut other = into_partition;
            if other.as_mut().is_some_and(|other| !from_partition.move_segment(&mut upper, other)) {
                other = None;
            }
            let (home, home_number) = match other {
                Some(other) => (other, into),
                None => (from_partition, from.partition),
            };
            home.changed_epoch = epoch;
            home.update_index_bytes(0, upper.bytes());
            let slot = home.add_segment(upper);
            let mut table = RoutingTable::clone(&table);
            table.epoch = epoch;
            table.separators.insert(index, &middle);
            table.locations.insert(index + 1, SegmentLocation { partition: home_number, slot });
            self.router.install(table);
        });
    }

    /// Merges neighbouring short segments, up to a number of them per call. Returns true if any
    /// were merged.
    pub(super) fn merge_segments(&self) -> bool {
        // Only removals make segments short, and removals set this flag.
        if !self.may_merge.swap(false, Ordering::Relaxed) {
            return false;
        }
        let (mut index, mut merged) = (0, 0);
        loop {
            let table = self.router.table();
            if index + 1 >= table.locations.len() || merged == MERGED_AT_ONCE {
                break;
            }
            if self.merge_two(index) {
                merged += 1;
            } else {
                index += 1;
            }
        }
        if merged > 0 {
            self.may_merge.store(true, Ordering::Relaxed);
        }
        merged > 0
    }

    /// Merges a segment with the next one if both are short.
    fn merge_two(&self, index: usize) -> bool {
        let _structure = self.structure.lock();
        let table = self.router.table();
        let (Some(&into), Some(&from)) = (table.locations.get(index), table.locations.get(index + 1)) else {
            return false;
        };
        let length = |location: SegmentLocation| {
            let partition = self.partitions[location.partition as usize].0.read();
            partition.segment(location.slot).leaves.len()
        };
        let is_costly = into.partition != from.partition && self.budget.is_tight();
        if length(into) + length(from) > LEAVES_MAX / 2 || is_costly {
            return false;
        }
        let mut done = false;
        self.with_two_locks(into.partition, from.partition, |partition, other| {
            let epoch = table.epoch + 1;
            let mut upper = match other {
                None => partition.take_segment(from.slot),
                Some(other) => {
                    let mut upper = other.take_segment(from.slot);
                    let size = upper.bytes();
                    if !other.move_segment(&mut upper, partition) {
                        let slot = other.add_segment(upper);
                        debug_assert_eq!(slot, from.slot, "the number that was given back last");
                        return;
                    }
                    other.update_index_bytes(size, 0);
                    other.changed_epoch = epoch;
                    partition.update_index_bytes(0, size);
                    upper
                }
            };
            let segment = partition.segment_mut(into.slot);
            let before = segment.bytes() + upper.bytes();
            segment.high = upper.high.take();
            if !upper.leaves[0].is_none() {
                if segment.leaves[0].is_none() {
                    segment.leaves = upper.leaves;
                    segment.separators = upper.separators;
                } else {
                    segment.separators.append(&upper.low, &upper.separators);
                    segment.leaves.append(&mut upper.leaves);
                }
            }
            let now = segment.bytes();
            partition.update_index_bytes(before, now);
            partition.changed_epoch = epoch;
            let mut table = RoutingTable::clone(&table);
            table.epoch = epoch;
            table.separators.remove(index);
            table.locations.remove(index + 1);
            self.router.install(table);
            done = true;
        });
        done
    }

    /// Returns the partition with the least data. Returns `this` if it holds hardly more than that.
    fn least_loaded(&self, this: u32) -> u32 {
        let load = |number: u32| {
            let partition = self.partitions[number as usize].0.read();
            partition.leaf_bytes + partition.block_bytes + partition.huge.bytes()
        };
        let least = (0..self.partitions.len() as u32).map(|number| (load(number), number)).min();
        match least {
            Some((least, number)) if least + least / 4 < load(this) => number,
            _ => this,
        }
    }

    /// Runs `change` with one or two partitions locked.
    fn with_two_locks(
        &self,
        one: u32,
        two: u32,
        change: impl FnOnce(&mut Partition, Option<&mut Partition>),
    ) {
        let lock = |number: u32| self.partitions[number as usize].0.write();
        let removed = if one == two {
            let mut one = lock(one);
            change(&mut one, None);
            vec![one.huge.take_removed()]
        } else {
            let mut first = lock(one.min(two));
            let mut second = lock(one.max(two));
            if one < two {
                change(&mut first, Some(&mut second));
            } else {
                change(&mut second, Some(&mut first));
            }
            vec![first.huge.take_removed(), second.huge.take_removed()]
        };
        drop(removed);
    }

    /// Replaces all segments by an empty one. Returns the old contents, so that the caller can drop
    /// them after releasing the locks.
    pub(super) fn empty(&self, cleared: &mut dyn FnMut()) -> Vec<Partition> {
        let _structure = self.structure.lock();
        let mut partitions: Vec<_> = self.partitions.iter().map(|partition| partition.0.write()).collect();
        let epoch = self.router.table().epoch + 1;
        let removed = partitions.iter_mut().map(|partition| partition.empty(epoch)).collect();
        let slot = partitions[0].add_segment(LeafSegment::empty(Arc::from(&[][..]), None));
        let location = SegmentLocation { partition: 0, slot };
        self.router.install(RoutingTable {
            epoch,
            separators: SeparatorList::default(),
            locations: vec![location],
        });
        self.sample.clear();
        cleared();
        removed
    }
}
