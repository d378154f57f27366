//! Counts of records by size, kept as they come and go, so that statistics need no scan.

use super::sample::{Seen, Share};
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
    shares: Vec<Shares>,
}

/// How many of the records of a class that went had never been read.
#[derive(Clone, Copy, Default)]
struct Shares {
    evicted: Share,
    expired: Share,
}

impl Classes {
    pub(crate) fn new(bounds: Arc<ClassBounds>) -> Classes {
        let counts = vec![SizeClass::default(); bounds.bounds.len() + 1];
        let shares = vec![Shares::default(); counts.len()];
        Classes { bounds, counts, shares }
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

    pub(crate) fn len(&self) -> usize {
        self.counts.len()
    }

    /// The number of the class of this size.
    pub(crate) fn of(&self, size: usize) -> u8 {
        // There are at most 256.
        self.bounds.of(size) as u8
    }

    pub(crate) fn class_of(&mut self, size: usize) -> &mut SizeClass {
        &mut self.counts[self.bounds.of(size)]
    }

    /// Counts whether an evicted record had been read, and what was known of it.
    pub(crate) fn count_evicted(&mut self, size: usize, seen: Option<Seen>, now: u32) {
        let class = self.bounds.of(size);
        let count = &mut self.counts[class];
        count.evicted_unfetched += self.shares[class].evicted.one(seen.map(|seen| seen.fetched));
        if let Some(seen) = seen {
            count.evicted_idle_s = seen.idle_s(now);
        }
    }

    /// Counts whether a record that has expired had been read.
    pub(crate) fn count_expired(&mut self, size: usize, seen: Option<Seen>) {
        let class = self.bounds.of(size);
        self.counts[class].expired_unfetched += self.shares[class].expired.one(seen.map(|seen| seen.fetched));
    }

    /// A sweep has been over all records.
    pub(crate) fn count_round(&mut self) {
        self.counts.iter_mut().for_each(|class| class.swept_over += class.records);
    }

    /// All records are gone, and count as cleared; what has been evicted stays counted.
    pub(crate) fn clear(&mut self) {
        for class in &mut self.counts {
            class.cleared += class.records;
            (class.records, class.plain_bytes) = (0, 0);
        }
    }

    pub(crate) fn add_to(&self, sums: &mut Vec<SizeClass>) {
        sums.resize(self.counts.len(), SizeClass::default());
        for (sum, class) in sums.iter_mut().zip(&self.counts) {
            *sum += *class;
        }
    }
}
