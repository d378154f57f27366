//! A sample of a shard's records, of which more is known than records tell: when each was last used, and whether it was
//! ever read. For statistics alone.
//!
//! A record is in the sample if some bits of its key's hash are zero: none at first, so that all records are in it, and one
//! more each time that a shard has too many. So the sample is chosen evenly, needs no random numbers, costs a fixed few KiB
//! a shard and not a bit a record, and a read whose key is not in it pays nothing (`Budget::attention`).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The most records of one shard in the sample: what a hash map of 128 places holds.
const SEEN_MAX: usize = 112;
/// The bits of the hash that decide begin here, above those that tell buckets of all but large shards.
const FIRST_BIT: u32 = 12;
/// With so many bits one of a million records is in the sample.
const BITS_MAX: u32 = 20;

/// The bits of a hash that are zero in a sample half as large as the one of this mask.
pub(crate) fn thinner(mask: u32) -> u32 {
    let bits = (mask.count_ones() + 1).min(BITS_MAX);
    ((1 << bits) - 1) << FIRST_BIT
}

/// What is known of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The low bits of the Unix seconds of its last use.
    pub(crate) used_at: u32,
    pub(crate) plain_size: u64,
    pub(crate) fetched: bool,
}

impl Seen {
    pub(crate) fn idle_s(self, now: u32) -> u64 {
        now.saturating_sub(self.used_at).into()
    }
}

/// The same, where readers side by side may note it.
struct Kept {
    used_at: AtomicU32,
    plain_size: u64,
    fetched: AtomicBool,
}

impl Kept {
    fn seen(&self) -> Seen {
        let (used_at, fetched) = (self.used_at.load(Ordering::Relaxed), self.fetched.load(Ordering::Relaxed));
        Seen { used_at, plain_size: self.plain_size, fetched }
    }
}

/// The records of one shard that are in the sample, by the low bits of their keys' hashes.
#[derive(Default)]
pub(crate) struct Sample {
    seen: HashMap<u32, Kept, BuildHasherDefault<Spread>>,
    mask: u32,
}

impl Sample {
    /// Whether it is the sample by this mask.
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

    /// A record has been stored, in place of another one or not. Returns whether there are now too many.
    pub(crate) fn stored(&mut self, hash: u32, plain_size: usize, now: u32) -> bool {
        let (used_at, fetched) = (AtomicU32::new(now), AtomicBool::new(false));
        self.seen.insert(hash, Kept { used_at, plain_size: plain_size as u64, fetched });
        self.seen.len() >= SEEN_MAX
    }

    /// A record has been read. Under a shared lock: the writes are hardly ever more than one a second.
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

    pub(crate) fn get(&self, hash: u32) -> Option<Seen> {
        self.seen.get(&hash).map(Kept::seen)
    }

    /// A record is gone.
    pub(crate) fn gone(&mut self, hash: u32) {
        if self.takes(hash) {
            self.seen.remove(&hash);
        }
    }

    /// Leaves those that belong to this sample.
    pub(crate) fn thin(&mut self, mask: u32) {
        self.mask = mask;
        self.seen.retain(|hash, _| hash & mask == 0);
    }

    pub(crate) fn clear(&mut self) {
        *self = Sample::default();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Seen)> {
        self.seen.iter().map(|(hash, seen)| (*hash, seen.seen()))
    }
}

/// How many of the records to which something happened had never been read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    /// Of those in the sample; the old ones count for less and less.
    unfetched: f32,
    known: f32,
    /// What has been estimated and not told yet, less than one.
    rest: f32,
}

impl Share {
    /// As many of the sample count at most, so that what is estimated follows what happens.
    const KNOWN_MAX: f32 = 64.0;

    /// One more, of which it is known whether it had been read, or not. Returns how many more had not been: one or none, so
    /// that the sum is never above the number of all and never shrinks.
    pub(crate) fn one(&mut self, fetched: Option<bool>) -> u64 {
        let Some(fetched) = fetched else {
            // Of none that are known, half.
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

/// Spreads hashes, some bits of which are zero in all of a sample.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
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
    fn a_thinner_sample_is_part_of_the_thicker_one() {
        let mut sample = Sample::default();
        assert!((0..SEEN_MAX as u32 - 1).all(|n| !sample.stored(n << FIRST_BIT, 3, 100)));
        assert!(sample.stored(0x8000_0001, 3, 100), "enough");
        sample.thin(thinner(0));
        assert_eq!(sample.iter().count(), SEEN_MAX / 2 + 1);
        assert!(sample.takes(2 << FIRST_BIT) && !sample.takes(1 << FIRST_BIT));
        assert!(sample.get(2 << FIRST_BIT).is_some() && sample.get(1 << FIRST_BIT).is_none());
    }

    #[test]
    fn a_read_makes_read_and_a_store_unread() {
        let mut sample = Sample::default();
        sample.used(7, 99);
        assert_eq!(sample.get(7), None);
        sample.stored(7, 3, 99);
        sample.used(7, 100);
        assert_eq!(sample.get(7), Some(Seen { used_at: 100, plain_size: 3, fetched: true }));
        assert_eq!(sample.get(7).unwrap().idle_s(160), 60);
        sample.stored(7, 3, 102);
        assert_eq!(sample.get(7), Some(Seen { used_at: 102, plain_size: 3, fetched: false }));
        sample.gone(7);
        assert_eq!(sample.get(7), None);
    }

    #[test]
    fn what_is_not_known_is_taken_to_be_like_what_is() {
        let mut share = Share::default();
        // One in four of the sample had been read.
        let sampled: u64 = (0..400).map(|n| share.one(Some(n % 4 == 0))).sum();
        assert_eq!(sampled, 300);
        let others: u64 = (0..10_000).map(|_| share.one(None)).sum();
        assert!((7_000..8_000).contains(&others), "{others}");
    }
}
