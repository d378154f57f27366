//! Keeps a sample of a shard's records with additional data for statistics: the time of the last
//! use, and whether the record was ever read.
//!
//! A record is in the sample if certain bits of the hash of its key are zero. Initially there are
//! no such bits, so all records are in the sample. Each time the sample of a shard becomes too
//! large, one more bit must be zero. The sample is therefore evenly distributed and needs no random
//! numbers. It costs a fixed few KiB per shard and nothing per record, and reading a key outside of
//! the sample costs nothing (`MemoryBudget::attention`).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The maximum number of records of one shard in the sample. It is the capacity of a hash map that
/// allocates 128 slots.
const SEEN_MAX: usize = 112;
/// The lowest of the bits that decide whether a record is in the sample. It lies above the bits
/// that select a bucket, except in large shards.
const FIRST_BIT: u32 = 12;
/// The maximum number of deciding bits. With this number of bits, one record in a million is in the
/// sample.
const BITS_MAX: u32 = 20;

/// Returns a mask with one more bit than `mask`. Its sample is half as large.
pub(crate) fn thinner(mask: u32) -> u32 {
    let bits = (mask.count_ones() + 1).min(BITS_MAX);
    ((1 << bits) - 1) << FIRST_BIT
}

/// The data of a sampled record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampledUse {
    /// The low bits of the Unix second of the record's last use.
    pub(crate) used_at: u32,
    pub(crate) plain_size: u64,
    pub(crate) fetched: bool,
}

impl SampledUse {
    pub(crate) fn idle_s(self, now: u32) -> u64 {
        now.saturating_sub(self.used_at).into()
    }
}

/// The data of a sampled record in a form that concurrent readers can change.
struct SampleEntry {
    used_at: AtomicU32,
    plain_size: u64,
    fetched: AtomicBool,
}

impl SampleEntry {
    fn seen(&self) -> SampledUse {
        let (used_at, fetched) = (self.used_at.load(Ordering::Relaxed), self.fetched.load(Ordering::Relaxed));
        SampledUse { used_at, plain_size: self.plain_size, fetched }
    }
}

/// The sampled records of one shard, by the low bits of the hashes of their keys.
#[derive(Default)]
pub(crate) struct UseSample {
    seen: HashMap<u32, SampleEntry, BuildHasherDefault<SpreadHasher>>,
    mask: u32,
}

impl UseSample {
    /// Returns true if this sample was taken with this mask.
    #[inline]
    pub(crate) fn is_by(&self, mask: u32) -> bool {
        self.mask == mask
    }

    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    #[inline]
    pub(crate) fn takes(&self, hash: u32) -> bool {
        hash & self.mask == 0
    }

    /// Notes that a record was stored. Returns true if this makes the sample too large.
    pub(crate) fn stored(&mut self, hash: u32, plain_size: usize, now: u32) -> bool {
        let (used_at, fetched) = (AtomicU32::new(now), AtomicBool::new(false));
        self.seen.insert(hash, SampleEntry { used_at, plain_size: plain_size as u64, fetched });
        self.seen.len() >= SEEN_MAX
    }

    /// Notes that a record was read. This is called under a shared lock, so it writes at most about
    /// once a second.
    pub(crate) fn used(&self, hash: u32, now: u32) {
        if let Some(kept) = self.seen.get(&hash) {
            if kept.used_at.load(Ordering::Relaxed) != now {
                kept.used_at.store(now, Ordering::Relaxed);
            }
            if !kept.fetched.load(Ordering::Relaxed) {
                kept.fetched.store(true, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn get(&self, hash: u32) -> Option<SampledUse> {
        self.seen.get(&hash).map(SampleEntry::seen)
    }

    /// Notes that a record was removed.
    pub(crate) fn removed(&mut self, hash: u32) {
        if self.takes(hash) {
            self.seen.remove(&hash);
        }
    }

    /// Removes the records that do not belong to the sample of this mask.
    pub(crate) fn thin(&mut self, mask: u32) {
        self.mask = mask;
        self.seen.retain(|hash, _| hash & mask == 0);
    }

    pub(crate) fn clear(&mut self) {
        *self = UseSample::default();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, SampledUse)> {
        self.seen.iter().map(|(hash, seen)| (*hash, seen.seen()))
    }
}

/// Estimates how many of the counted records had never been read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnreadEstimate {
    /// The number of sampled records that had not been read, and of all sampled records. Older
    /// records have less and less weight.
    unfetched: f32,
    known: f32,
    /// The fraction of a record that has been estimated but not returned yet.
    rest: f32,
}

impl UnreadEstimate {
    /// The maximum weight of past samples. It lets the estimate follow changes.
    const KNOWN_MAX: f32 = 64.0;

    /// Counts a record. `fetched` states whether the record had been read; `None` means that this
    /// is not known. Returns 1 if the record counts as never read, otherwise 0. The sum of the
    /// results therefore never exceeds the number of records and never decreases.
    pub(crate) fn one(&mut self, fetched: Option<bool>) -> u64 {
        let Some(fetched) = fetched else {
            // Without any samples, half of the records count as never read.
            self.rest += (self.unfetched + 0.5) / (self.known + 1.0);
            let whole = u64::from(self.rest >= 1.0);
            self.rest -= whole as f32;
            return whole;
        };
        if self.known >= Self::KNOWN_MAX {
            (self.known, self.unfetched) = (self.known / 2.0, self.unfetched / 2.0);
        }
        self.known += 1.0;
        self.unfetched += f32::from(u8::from(!fetched));
        u64::from(!fetched)
    }
}

/// A hasher for hashes of which some bits are always zero. It spreads them evenly.
#[derive(Default)]
pub(crate) struct SpreadHasher(u64);

impl Hasher for SpreadHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the key is a number of 32 bits");
    }

    fn write_u32(&mut self, hash: u32) {
        self.0 = u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinned_sample_is_a_subset() {
        let mut sample = UseSample::default();
        assert!((0..SEEN_MAX as u32 - 1).all(|n| !sample.stored(n << FIRST_BIT, 3, 100)));
        assert!(sample.stored(0x8000_0001, 3, 100), "enough");
        sample.thin(thinner(0));
        assert_eq!(sample.iter().count(), SEEN_MAX / 2 + 1);
        assert!(sample.takes(2 << FIRST_BIT) && !sample.takes(1 << FIRST_BIT));
        assert!(sample.get(2 << FIRST_BIT).is_some() && sample.get(1 << FIRST_BIT).is_none());
    }

    #[test]
    fn a_read_makes_read_and_a_store_unread() {
        let mut sample = UseSample::default();
        sample.used(7, 99);
        assert_eq!(sample.get(7), None);
        sample.stored(7, 3, 99);
        sample.used(7, 100);
        assert_eq!(sample.get(7), Some(SampledUse { used_at: 100, plain_size: 3, fetched: true }));
        assert_eq!(sample.get(7).unwrap().idle_s(160), 60);
        sample.stored(7, 3, 102);
        assert_eq!(sample.get(7), Some(SampledUse { used_at: 102, plain_size: 3, fetched: false }));
        sample.removed(7);
        assert_eq!(sample.get(7), None);
    }

    #[test]
    fn estimate_follows_the_sampled_records() {
        let mut share = UnreadEstimate::default();
        // One in four of the sampled records had been read.
        let sampled: u64 = (0..400).map(|n| share.one(Some(n % 4 == 0))).sum();
        assert_eq!(sampled, 300);
        let others: u64 = (0..10_000).map(|_| share.one(None)).sum();
        assert!((7_000..8_000).contains(&others), "{others}");
    }
}
