//! Counts records by size class. The counts are updated with each change, so that statistics need
//! no scan.

use std::sync::Arc;
use todana_core::SizeClass;

/// The classes of sizes below this are in a table. The class of a larger size is searched for.
const DIRECT: usize = 1024;

/// The bounds of size classes: there is one class for each bound, and one for all sizes above the
/// last bound.
#[derive(Debug)]
pub struct ClassBounds {
    bounds: Vec<u32>,
    /// The class of each size below `DIRECT`.
    direct: Vec<u16>,
}

impl ClassBounds {
    /// Creates the classes with these bounds, which are sorted first. If there are more than 65,535
    /// bounds, the largest are ignored.
    pub fn new(mut bounds: Vec<u32>) -> ClassBounds {
        bounds.sort_unstable();
        bounds.truncate(usize::from(u16::MAX));
        let of = |size: usize| bounds.partition_point(|&bound| (bound as usize) < size);
        let direct = (0..DIRECT).map(|size| of(size) as u16).collect();
        ClassBounds { bounds, direct }
    }

    /// Returns the number of classes.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.bounds.len() + 1
    }

    /// Returns the class of a record of this size.
    #[inline]
    pub fn of(&self, size: usize) -> usize {
        match self.direct.get(size) {
            Some(&class) => usize::from(class),
            None => self.bounds.partition_point(|&bound| (bound as usize) < size),
        }
    }
}

/// The counts of one shard by size class.
pub(crate) struct ClassCounters {
    bounds: Arc<ClassBounds>,
    counts: Vec<SizeClass>,
}

impl ClassCounters {
    pub(crate) fn new(bounds: Arc<ClassBounds>) -> ClassCounters {
        let counts = vec![SizeClass::default(); bounds.len()];
        ClassCounters { bounds, counts }
    }

    #[inline]
    pub(crate) fn add(&mut self, size: usize) {
        let class = &mut self.counts[self.bounds.of(size)];
        class.records += 1;
        class.plain_bytes += size as u64;
    }

    #[inline]
    pub(crate) fn remove(&mut self, size: usize) {
        let class = &mut self.counts[self.bounds.of(size)];
        class.records -= 1;
        class.plain_bytes -= size as u64;
    }

    pub(crate) fn bounds(&self) -> Arc<ClassBounds> {
        Arc::clone(&self.bounds)
    }

    /// Returns the sum of all sizes.
    pub(crate) fn plain_bytes(&self) -> u64 {
        self.counts.iter().map(|class| class.plain_bytes).sum()
    }

    /// Returns the variance of the sizes over the square of their mean. The sizes of a class count
    /// as equal.
    pub(crate) fn variation(&self) -> f64 {
        let (mut records, mut bytes, mut squares) = (0.0, 0.0, 0.0);
        for class in self.counts.iter().filter(|class| class.records > 0) {
            let (own_records, own_bytes) = (class.records as f64, class.plain_bytes as f64);
            records += own_records;
            bytes += own_bytes;
            squares += own_bytes * own_bytes / own_records;
        }
        if bytes > 0.0 { squares * records / (bytes * bytes) - 1.0 } else { 0.0 }
    }

    /// Sets all counts to zero and returns the old ones.
    pub(crate) fn clear(&mut self) -> Vec<SizeClass> {
        let none = vec![SizeClass::default(); self.counts.len()];
        std::mem::replace(&mut self.counts, none)
    }

    pub(crate) fn add_to(&self, sums: &mut Vec<SizeClass>) {
        sums.resize(self.counts.len(), SizeClass::default());
        for (sum, class) in sums.iter_mut().zip(&self.counts) {
            *sum += *class;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_on_a_bound_is_in_the_class() {
        let classes = ClassBounds::new(vec![10, 1023, 1024, 5000]);
        let expected = [(0, 0), (10, 0), (11, 1), (1023, 1), (1024, 2), (1025, 3), (5000, 3), (5001, 4)];
        for (size, class) in expected {
            assert_eq!(classes.of(size), class, "{size}");
        }
        assert_eq!((classes.len(), ClassBounds::new(Vec::new()).of(7)), (5, 0));
    }

    #[test]
    fn variation_is_that_between_classes() {
        let mut counters = ClassCounters::new(Arc::new(ClassBounds::new(vec![10, 100])));
        assert_eq!(counters.variation(), 0.0);
        [10, 8, 6].into_iter().for_each(|size| counters.add(size));
        assert_eq!(counters.variation(), 0.0);
        [24; 3].into_iter().for_each(|size| counters.add(size));
        // Means of 8 and 24, whose distance from 16 is half of it.
        assert_eq!(counters.variation(), 0.25);
    }
}
