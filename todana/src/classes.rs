//! Size classes, by which some things are counted.
//!
//! The size of a record is key + value + 4 if it carries flags, as in [`SizeClass`](todana_core::SizeClass).

use todana_core::Record;

/// Sizes below this are looked up, the others searched for.
const LOOKED_UP: usize = 1024;

/// The bounds of the classes; one more class is for all above.
#[derive(Debug)]
pub(crate) struct SizeClasses {
    bounds: Vec<u32>,
    /// The class of each small size.
    small: Vec<u16>,
}

impl SizeClasses {
    /// Classes of records up to each of `bounds`, which ascend. Of the bounds those that a `u16` cannot number are left
    /// out.
    pub(crate) fn new(mut bounds: Vec<u32>) -> SizeClasses {
        bounds.truncate(usize::from(u16::MAX));
        let class = |size: usize| bounds.partition_point(|&bound| (bound as usize) < size);
        let small = (0..LOOKED_UP).map(|size| class(size) as u16).collect();
        SizeClasses { bounds, small }
    }

    pub(crate) fn len(&self) -> usize {
        self.bounds.len() + 1
    }

    /// The class of a record of this size.
    #[inline]
    pub(crate) fn of(&self, size: usize) -> usize {
        match self.small.get(size) {
            Some(&class) => class.into(),
            None => self.bounds.partition_point(|&bound| (bound as usize) < size),
        }
    }
}

/// The size of a record by which it is classed.
#[inline]
pub(crate) fn plain_size(key: &[u8], record: &Record<'_>) -> usize {
    size_of(key, record.value, record.attributes.flags)
}

#[inline]
pub(crate) fn size_of(key: &[u8], value: &[u8], flags: u32) -> usize {
    key.len() + value.len() + if flags != 0 { 4 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_on_a_bound_is_the_last_of_its_class() {
        let classes = SizeClasses::new(vec![10, 1023, 1024, 5000]);
        let expected = [(0, 0), (10, 0), (11, 1), (1023, 1), (1024, 2), (1025, 3), (5000, 3), (5001, 4)];
        for (size, class) in expected {
            assert_eq!(classes.of(size), class, "{size}");
        }
        assert_eq!((classes.len(), SizeClasses::new(Vec::new()).of(7)), (5, 0));
    }
}
