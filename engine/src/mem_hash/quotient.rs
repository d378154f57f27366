//! Defines the part of a key that a bucket need not store.
//!
//! ```text
//! decimal text -- class by its length --> number within the class -- permutation --> quotient
//! other text   -- first 3 bytes, exclusive or with a hash of the rest -- permutation --> quotient
//! quotient = remainder (stored) | bucket | shard         lowest bits last
//! ```
//!
//! The permutation is a Feistel network of four rounds whose keys are secret. It spreads any keys
//! evenly, and clients cannot choose keys that share a bucket. The lowest bits of the result select
//! the shard and the bucket. A record therefore stores only the bits above these. A split of a
//! bucket drops the lowest stored bit, and a merge restores it.
//!
//! Invariant: the domain of each class is a power of two. The numbers of a class fill more than
//! half of it, so a permutation of exactly the numbers of the class (by cycle walking) would not
//! save a bit.

use super::bits::mask;
use todana_core::decimal;

/// The number of classes of decimal texts. Texts of 1 to 4 digits are one class, because they are
/// few. Texts of 5 to 7 digits are one class, so that keys counted from 0 to some millions form one
/// group. Longer texts have a class for each length.
pub(super) const CLASSES: usize = 14;
/// The class of the quotients of all other texts.
pub(super) const TEXT_CLASS: u8 = CLASSES as u8;
/// The number of bytes at the begin of a text that its quotient replaces. Shorter texts are filled
/// up with zeros.
pub(super) const HEAD_LEN: usize = 3;

/// Texts of some lengths.
#[derive(Clone, Copy)]
struct NumberClass {
    /// The number of the first text of the class, as `decimal` numbers texts.
    first: u64,
    /// The number of texts.
    count: u64,
    /// The number of bits of a quotient.
    bits: u32,
}

const CLASS_OF_LEN: [u8; decimal::DIGITS_MAX + 1] = {
    let mut classes = [0; decimal::DIGITS_MAX + 1];
    let mut len = 5;
    while len < classes.len() {
        classes[len] = if len < 8 { 1 } else { len as u8 - 6 };
        len += 1;
    }
    classes
};

const NUMBER_CLASSES: [NumberClass; CLASSES + 1] = {
    let text = NumberClass { first: 0, count: 1 << (8 * HEAD_LEN), bits: 8 * HEAD_LEN as u32 };
    let none = NumberClass { first: u64::MAX, count: 0, bits: 0 };
    let mut classes = [none; CLASSES + 1];
    classes[CLASSES] = text;
    let (mut len, mut first, mut count) = (1, 0, 10u64);
    while len <= decimal::DIGITS_MAX {
        let class = &mut classes[CLASS_OF_LEN[len] as usize];
        if class.count == 0 {
            class.first = first;
        }
        class.count += count;
        class.bits = 64 - (class.count - 1).leading_zeros();
        first += count;
        count = count.wrapping_mul(10);
        len += 1;
    }
    classes
};

/// Returns the number of bits of the quotients of a class.
#[inline]
pub(super) fn quotient_bits(class: u8) -> u32 {
    NUMBER_CLASSES[usize::from(class)].bits
}

/// The secret permutation of numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberPermutation {
    add: [u64; 4],
    multiply: [u64; 4],
}

impl NumberPermutation {
    /// Creates the permutation from secret numbers. `derive` returns another one for each argument.
    pub(super) fn new(derive: impl Fn(u64) -> u64) -> NumberPermutation {
        NumberPermutation {
            add: std::array::from_fn(|round| derive(2 + round as u64)),
            multiply: std::array::from_fn(|round| derive(6 + round as u64) | 1),
        }
    }

    #[inline]
    fn round(&self, round: usize, half: u64) -> u64 {
        half.wrapping_add(self.add[round]).wrapping_mul(self.multiply[round]) >> 32
    }

    /// Permutes the numbers of this many bits.
    #[inline]
    fn permute(&self, bits: u32, number: u64) -> u64 {
        let low_bits = bits / 2;
        let (low_mask, high_mask) = (mask(low_bits), mask(bits - low_bits));
        let (mut high, mut low) = (number >> low_bits, number & low_mask);
        high ^= self.round(0, low) & high_mask;
        low ^= self.round(1, high) & low_mask;
        high ^= self.round(2, low) & high_mask;
        low ^= self.round(3, high) & low_mask;
        high << low_bits | low
    }

    /// Inverts `permute`.
    #[inline]
    fn restore(&self, bits: u32, quotient: u64) -> u64 {
        let low_bits = bits / 2;
        let (low_mask, high_mask) = (mask(low_bits), mask(bits - low_bits));
        let (mut high, mut low) = (quotient >> low_bits, quotient & low_mask);
        low ^= self.round(3, high) & low_mask;
        high ^= self.round(2, low) & high_mask;
        low ^= self.round(1, high) & low_mask;
        high ^= self.round(0, low) & high_mask;
        high << low_bits | low
    }

    /// Returns the class and the quotient of a text of this length with this number.
    #[inline]
    pub(super) fn quotient(&self, len: usize, number: u64) -> (u8, u64) {
        let class = CLASS_OF_LEN[len];
        let NumberClass { first, bits, .. } = NUMBER_CLASSES[usize::from(class)];
        (class, self.permute(bits, number - first))
    }

    /// Returns the number of the text with this quotient. Returns `None` if there is no such text.
    #[inline]
    pub(super) fn number(&self, class: u8, quotient: u64) -> Option<u64> {
        let NumberClass { first, count, bits } = NUMBER_CLASSES[usize::from(class)];
        let within = self.restore(bits, quotient);
        (within < count).then(|| first + within)
    }

    /// Returns the quotient of a text that is not decimal. `rest` is a hash of the bytes after the
    /// first ones.
    #[inline]
    pub(super) fn text_quotient(&self, head: [u8; HEAD_LEN], rest: u64) -> u64 {
        let bits = quotient_bits(TEXT_CLASS);
        self.permute(bits, Self::head_number(head) ^ rest & mask(bits))
    }

    /// Inverts `text_quotient`.
    #[inline]
    pub(super) fn text_head(&self, quotient: u64, rest: u64) -> [u8; HEAD_LEN] {
        let bits = quotient_bits(TEXT_CLASS);
        let number = (self.restore(bits, quotient) ^ rest & mask(bits)) as u32;
        let [head @ .., _] = number.to_le_bytes();
        head
    }

    #[inline]
    fn head_number([a, b, c]: [u8; HEAD_LEN]) -> u64 {
        u64::from(u32::from_le_bytes([a, b, c, 0]))
    }

    /// Returns the hash of a quotient. Its highest bits select the shard and its lowest bits the
    /// bucket. `rest` is that of a text, or 0.
    #[inline]
    pub(super) fn hash(&self, class: u8, quotient: u64, rest: u64, shard_bits: u32) -> u64 {
        let bits = quotient_bits(class);
        // The bits above those of the quotient select a bucket, too, if there are more buckets than
        // quotients of the class. Statistics and eviction use them in any case.
        let others = (quotient ^ rest ^ self.add[0]).wrapping_mul(self.multiply[0]);
        let others = (others ^ others >> 32).checked_shl(bits).unwrap_or(0);
        (quotient | others).rotate_right(shard_bits)
    }
}

/// The place of a bucket: the bits that the quotients of its records have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketAddress {
    pub(super) shard: u32,
    pub(super) shard_bits: u32,
    pub(super) bucket: u32,
    /// The number of low bits of the hash that select the bucket.
    pub(super) bits: u32,
}

impl BucketAddress {
    /// Returns the number of bits that a remainder of this class has.
    #[inline]
    pub(super) fn remainder_bits(&self, class: u8) -> u32 {
        quotient_bits(class).saturating_sub(self.shard_bits + self.bits)
    }

    /// Returns the part of a quotient that the bucket stores.
    #[inline]
    pub(super) fn remainder(&self, quotient: u64) -> u64 {
        quotient >> (self.shard_bits + self.bits)
    }

    /// Returns the quotient of this remainder.
    #[inline]
    pub(super) fn quotient(&self, class: u8, remainder: u64) -> u64 {
        let low = u64::from(self.bucket) << self.shard_bits | u64::from(self.shard);
        let quotient = remainder.checked_shl(self.shard_bits + self.bits).unwrap_or(0) | low;
        quotient & mask(quotient_bits(class))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn permutation(seed: u64) -> NumberPermutation {
        NumberPermutation::new(|n| fastrand::Rng::with_seed(seed ^ n << 32).u64(..))
    }

    #[test]
    fn quotients_of_short_texts_are_distinct() {
        for seed in 0..3 {
            let permutation = permutation(seed);
            let mut seen = vec![vec![false; 1 << 24]; 2];
            for len in 1..=5usize {
                for value in 0..10u64.pow(len as u32) {
                    let number = decimal::pack(format!("{value:0len$}").as_bytes()).unwrap();
                    let (class, quotient) = permutation.quotient(len, number);
                    assert!(quotient >> quotient_bits(class) == 0);
                    let seen = &mut seen[usize::from(class)][quotient as usize];
                    assert!(!std::mem::replace(seen, true), "{value:0len$}");
                    assert_eq!(permutation.number(class, quotient), Some(number));
                }
            }
        }
    }

    #[test]
    fn every_quotient_belongs_to_at_most_one_text() {
        // All quotients of the first class, also those that no text has.
        let permutation = permutation(9);
        let numbers: Vec<u64> = (0..1 << 14).filter_map(|quotient| permutation.number(0, quotient)).collect();
        let distinct: std::collections::BTreeSet<u64> = numbers.iter().copied().collect();
        assert_eq!((numbers.len(), distinct.len(), distinct.last()), (11_110, 11_110, Some(&11_109)));
    }

    #[test]
    fn classes_cover_all_texts_without_gaps() {
        let mut next = 0u64;
        for class in &NUMBER_CLASSES[..CLASSES] {
            assert_eq!(class.first, next);
            assert!(
                u128::from(class.count) <= 1 << class.bits && u128::from(class.count) > 1 << (class.bits - 1)
            );
            next = class.first.wrapping_add(class.count);
        }
        assert_eq!(next.wrapping_sub(1), decimal::NUMBER_MAX);
        assert_eq!(quotient_bits(2), 27, "eight digits");
    }

    #[test]
    fn neighbouring_numbers_are_spread_evenly() {
        let permutation = permutation(1);
        let mut counts = [0u32; 256];
        for number in decimal::pack(b"00000000").unwrap()..decimal::pack(b"00100000").unwrap() {
            let (_, quotient) = permutation.quotient(8, number);
            counts[quotient as usize % 256] += 1;
        }
        // The mean is 391, and the standard deviation 20.
        assert!(counts.iter().all(|count| (291..491).contains(count)), "{counts:?}");
    }

    #[test]
    fn heads_of_texts_with_one_rest_are_restored() {
        let permutation = permutation(4);
        let mut seen = vec![false; 1 << 24];
        for number in 0..1u32 << 24 {
            let [a, b, c, _] = number.to_le_bytes();
            let quotient = permutation.text_quotient([a, b, c], 0x1234_5678_9ABC_DEF0);
            assert!(!std::mem::replace(&mut seen[quotient as usize], true));
            assert_eq!(permutation.text_head(quotient, 0x1234_5678_9ABC_DEF0), [a, b, c]);
        }
    }

    proptest! {
        #[test]
        fn quotient_is_restored_from_its_remainder(
            text in "[0-9]{1,19}", seed in 0..100u64, shard_bits in 0..=12u32, bits in 0..=31u32,
        ) {
            let permutation = permutation(seed);
            let number = decimal::pack(text.as_bytes()).unwrap();
            let (class, quotient) = permutation.quotient(text.len(), number);
            let hash = permutation.hash(class, quotient, 0, shard_bits);
            let address = BucketAddress {
                shard: (hash.rotate_left(shard_bits) & mask(shard_bits)) as u32,
                shard_bits,
                bucket: (hash & mask(bits)) as u32,
                bits,
            };
            let remainder = address.remainder(quotient);
            prop_assert!(remainder <= mask(address.remainder_bits(class)));
            prop_assert_eq!(address.quotient(class, remainder), quotient);
            prop_assert_eq!(permutation.number(class, quotient), Some(number));
        }
    }
}
