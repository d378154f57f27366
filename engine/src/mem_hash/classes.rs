//! Counts of records by size, kept as they come and go, so that statistics need no scan.

use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result, SizeClass};

const DIRECT: usize = 1024;

/// Which class a size belongs to; shared by all shards.
pub(crate) struct ClassBounds {
    bounds: Vec<u32>,
    /// The class of each small size.
    direct: Vec<u8>,
}

impl ClassBounds {
    /// Ascending upper bounds, at most 255; what is above the last is one more class. Fails with `Invalid` for others.
    pub(crate) fn new(bounds: Vec<u32>) -> Result<ClassBounds> {
        if bounds.len() > 255 || !bounds.is_sorted() {
            return Err(Error::new(ErrorKind::Invalid, "class bounds must ascend and be at most 255"));
        }
        let of = |size: usize| bounds.partition_point(|&bound| (bound as usize) < size);
        let direct = (0..DIRECT).map(|size| of(size) as u8).collect();
        Ok(ClassBounds { bounds, direct })
    }

    #[inline]
    fn of(&self, size: usize) -> usize {
        match self.direct.get(size) {
            Some(&class) => usize::from(class),
            None => self.bounds.partition_point(|&bound| (bound as usize) < size),
        }
    }
}

/// The counts of one shard.
pub(crate) struct Classes {
    bounds: Arc<ClassBounds>,
    counts: Vec<SizeClass>,
}

impl Classes {
    pub(crate) fn new(bounds: Arc<ClassBounds>) -> Classes {
        let counts = vec![SizeClass::default(); bounds.bounds.len() + 1];
        Classes { bounds, counts }
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

    /// Begins anew with no records; returns what there was.
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
