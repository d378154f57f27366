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

impl MemTree {
    /// Divides the segment of this key if it has become too long.
    pub(super) fn divide(&self, key: &[u8]) {
        let _structure = self.structure.lock();
        let table = self.router.table();
        let index = table.separators.up_to(key);
        let from = table.locations[index];
        let into = self.least_loaded(from.partition);
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
        cleared();
        gone
    }
}
