//! Changes to which segments there are, and in which partition: one at a time.
//!
//! Such a change holds `MemTree::structure`, then the locks of the partitions concerned, notes the change's number in those,
//! and installs the router's new table before it lets go of them. So whoever comes into a partition by an old table sees it.

use super::MemTree;
use super::partition::Partition;
use super::router::{Location, Table};
use super::segment::{LEAVES_MAX, Segment};
use super::separators::Separators;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Segments united by one step of housekeeping.
const UNITED_AT_ONCE: usize = 8;

impl MemTree {
    /// Divides the segment of this key if it has become too long.
    pub(super) fn divide(&self, key: &[u8]) {
        let _structure = self.structure.lock();
        let table = self.router.table();
        let index = table.separators.up_to(key);
        let from = table.locations[index];
        // To move it takes the memory twice for a moment.
        let is_scarce = self.budget.is_tight();
        let into = if is_scarce { from.partition } else { self.least_loaded(from.partition) };
        self.with_two(from.partition, into, |from_partition, into_partition| {
            let segment = from_partition.segment_mut(from.slot);
            if segment.leaves.len() <= LEAVES_MAX {
                return;
            }
            let before = segment.bytes();
            let leaf = segment.separators.up_to(key);
            // What comes in order goes on in a new segment; nothing is moved for that but the last leaf.
            let half = if leaf + 1 == segment.leaves.len() { leaf } else { segment.leaves.len() / 2 };
            let middle: Arc<[u8]> = segment.separators.get(half - 1).into();
            let separators = segment.separators.split_off(half);
            segment.separators.remove(half - 1);
            let leaves = segment.leaves.split_off(half);
            let high = segment.high.replace(Arc::clone(&middle));
            let mut upper = Segment { low: Arc::clone(&middle), high, separators, leaves };
            let now = segment.bytes();
            let epoch = table.epoch + 1;
            from_partition.weigh_index(before, now);
            from_partition.changed = epoch;
            // Without memory for its leaves there it stays here.
            let mut other = into_partition;
            if other.as_mut().is_some_and(|other| !from_partition.hand_over(&mut upper, other)) {
                other = None;
            }
            let (home, home_number) = match other {
                Some(other) => (other, into),
                None => (from_partition, from.partition),
            };
            home.changed = epoch;
            home.weigh_index(0, upper.bytes());
            let slot = home.add_segment(upper);
            let mut table = Table::clone(&table);
            table.epoch = epoch;
            table.separators.insert(index, &middle);
            table.locations.insert(index + 1, Location { partition: home_number, slot });
            self.router.install(table);
        });
    }

    /// Makes one segment of neighbours that have become short; looks at so many of them at most. True if any were.
    pub(super) fn unite(&self) -> bool {
        // Short segments come of removals, which say so.
        if !self.may_unite.swap(false, Ordering::Relaxed) {
            return false;
        }
        let (mut index, mut united) = (0, 0);
        loop {
            let table = self.router.table();
            if index + 1 >= table.locations.len() || united == UNITED_AT_ONCE {
                break;
            }
            if self.unite_two(index) {
                united += 1;
            } else {
                index += 1;
            }
        }
        if united > 0 {
            self.may_unite.store(true, Ordering::Relaxed);
        }
        united > 0
    }

    /// Makes one segment of this one and the next, if both are short.
    fn unite_two(&self, index: usize) -> bool {
        let _structure = self.structure.lock();
        let table = self.router.table();
        let (Some(&into), Some(&from)) = (table.locations.get(index), table.locations.get(index + 1)) else {
            return false;
        };
        let length = |location: Location| {
            let partition = self.partitions[location.partition as usize].0.read();
            partition.segment(location.slot).leaves.len()
        };
        let is_costly = into.partition != from.partition && self.budget.is_tight();
        if length(into) + length(from) > LEAVES_MAX / 2 || is_costly {
            return false;
        }
        let mut done = false;
        self.with_two(into.partition, from.partition, |partition, other| {
            let epoch = table.epoch + 1;
            let mut upper = match other {
                None => partition.take_segment(from.slot),
                Some(other) => {
                    let mut upper = other.take_segment(from.slot);
                    let size = upper.bytes();
                    if !other.hand_over(&mut upper, partition) {
                        let slot = other.add_segment(upper);
                        debug_assert_eq!(slot, from.slot, "the number that was given back last");
                        return;
                    }
                    other.weigh_index(size, 0);
                    other.changed = epoch;
                    partition.weigh_index(0, size);
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
            partition.weigh_index(before, now);
            partition.changed = epoch;
            let mut table = Table::clone(&table);
            table.epoch = epoch;
            table.separators.remove(index);
            table.locations.remove(index + 1);
            self.router.install(table);
            done = true;
        });
        done
    }

    /// The partition with the least in it, unless this one has hardly more.
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

    /// Runs `change` with the locks of one partition or two.
    fn with_two(&self, one: u32, two: u32, change: impl FnOnce(&mut Partition, Option<&mut Partition>)) {
        let lock = |number: u32| self.partitions[number as usize].0.write();
        let gone = if one == two {
            let mut one = lock(one);
            change(&mut one, None);
            vec![one.huge.take_gone()]
        } else {
            let mut first = lock(one.min(two));
            let mut second = lock(one.max(two));
            if one < two {
                change(&mut first, Some(&mut second));
            } else {
                change(&mut second, Some(&mut first));
            }
            vec![first.huge.take_gone(), second.huge.take_gone()]
        };
        drop(gone);
    }

    /// Makes the tree one empty segment; returns what it held, to be dropped behind the locks.
    pub(super) fn empty(&self, cleared: &mut dyn FnMut()) -> Vec<Partition> {
        let _structure = self.structure.lock();
        let mut partitions: Vec<_> = self.partitions.iter().map(|partition| partition.0.write()).collect();
        let epoch = self.router.table().epoch + 1;
        let gone = partitions.iter_mut().map(|partition| partition.empty(epoch)).collect();
        let slot = partitions[0].add_segment(Segment::empty(Arc::from(&[][..]), None));
        let location = Location { partition: 0, slot };
        self.router.install(Table { epoch, separators: Separators::default(), locations: vec![location] });
        self.sampled.clear();
        cleared();
        gone
    }
}
