//! Evicts records of different sizes by their credit, in the way of GDSF (Cherkasova, HP Labs
//! report HPL-98-69R1, 1998), applied to a few neighbouring buckets at a time.
//!
//! The credit of a record is its number of uses divided by its size. The record with the least
//! credit of these buckets is evicted, and its credit is subtracted from that of all others, so
//! that records that are not used any more lose theirs. A use renews the credit.
//!
//! A credit is stored in half octaves, so that 5 bits suffice: records of 185 KB and more have the
//! least one. Differences between half octaves are rounded at random. The number of uses is also
//! counted at random, in octaves (Morris, CACM 21, 1978): 1, 2, 4 or 8 uses. In simulations of
//! three traces, with 4 to 40 records compared at a time, this misses up to 2 % more often than
//! exact numbers (1 % with 40 records), and up to 3 % more often than one list of all records
//! (docs/engines.md, "Eviction").

use super::queue::UseMark;
use fastrand::Rng;

/// The approximate memory of a record besides its value.
const OVERHEAD: usize = 32;
/// The credit of a record without uses, plus its size in half octaves.
const BASE: u8 = 35;
/// The credit, in half octaves, that is subtracted from a record for an evicted one whose credit is
/// less by `index` half octaves, times 65,536: -2 log2(1 - 2^-((index + 1/2) / 2)).
const LOSSES: [u32; 24] = [
    347_598, 170_734, 103_152, 66_719, 44_628, 30_432, 21_000, 14_604, 10_209, 7_161, 5_036, 3_547, 2_501,
    1_765, 1_246, 880, 622, 440, 311, 220, 155, 110, 78, 55,
];

/// The size of a record in half octaves, at most 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SizeOctaves(pub(super) u8);

impl SizeOctaves {
    /// Returns the size of a record with a value of this length.
    #[inline]
    pub(super) fn of(value_len: usize) -> SizeOctaves {
        let size = value_len.saturating_add(OVERHEAD).min(u32::MAX as usize) as u64;
        let octaves = size.ilog2();
        // The square is compared with 2 to the power of an odd number, which has no exact root.
        let has_half = (size * size) >> (2 * octaves + 1) != 0;
        SizeOctaves((2 * octaves) as u8 + u8::from(has_half))
    }
}

fn credit_of(uses: u8, size: SizeOctaves) -> u8 {
    (BASE + 2 * uses).saturating_sub(size.0)
}

/// Returns the mark of a record with these uses, in octaves, and its full credit.
pub(super) fn fresh(uses: u8, is_read: bool, size: SizeOctaves) -> UseMark {
    UseMark::with_credit(uses, is_read, credit_of(uses, size))
}

/// Returns true if a use may change the mark.
#[inline]
pub(super) fn is_news(mark: UseMark, size: SizeOctaves) -> bool {
    mark.uses() < UseMark::USES_MAX
        || !mark.is_read()
        || mark.credit() < credit_of(mark.uses(), size).min(UseMark::CREDIT_MAX)
}

/// Returns the mark after one more use.
pub(super) fn used(mark: UseMark, size: SizeOctaves, random: &mut Rng) -> UseMark {
    let uses = mark.uses();
    // At 1, 2 and 4 uses, a use doubles the number with probability 1, 1/2 and 1/4.
    let doubles = random.u32(..1 << uses) == 0;
    fresh(uses + u8::from(doubles), true, size)
}

/// Returns the mark of a record after another one was evicted, whose credit was not more.
pub(super) fn after_eviction(mark: UseMark, evicted: UseMark, random: &mut Rng) -> UseMark {
    let ahead = mark.credit().saturating_sub(evicted.credit());
    let Some(&loss) = LOSSES.get(usize::from(ahead)) else { return mark };
    let rounded = (loss + u32::from(random.u16(..))) >> 16;
    let credit = mark.credit().saturating_sub(rounded as u8);
    UseMark::with_credit(mark.uses(), mark.is_read(), credit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_down_to_half_octaves() {
        let exact = |size: usize| (2.0 * (size as f64 + 32.0).log2()).floor() as u8;
        for size in (0..5000).chain([65_504, 65_536, 1 << 20, (1 << 30) - 33, 1 << 30]) {
            assert_eq!(SizeOctaves::of(size).0, exact(size), "{size}");
        }
        assert_eq!(SizeOctaves::of(usize::MAX), SizeOctaves(63));
    }

    #[test]
    fn smaller_and_more_used_records_have_more_credit() {
        let credit = |uses, size| fresh(uses, false, SizeOctaves::of(size)).credit();
        assert_eq!(
            [0, 100, 1000, 10_000, 185_000, 1 << 20].map(|size| credit(0, size)),
            [25, 21, 15, 9, 1, 0]
        );
        assert_eq!([0, 1, 2, 3].map(|uses| credit(uses, 1000)), [15, 17, 19, 21]);
        assert_eq!(credit(3, 0), UseMark::CREDIT_MAX);
    }

    /// The mean of many roundings is the exact loss, so that credits of any size decline alike.
    #[test]
    fn loss_is_exact_on_average() {
        let mut random = Rng::with_seed(1);
        for ahead in 0..24u8 {
            let evicted = UseMark::with_credit(0, false, 7);
            let mark = UseMark::with_credit(2, true, 7 + ahead);
            let mut sum = 0;
            for _ in 0..100_000 {
                let after = after_eviction(mark, evicted, &mut random);
                assert_eq!((after.uses(), after.is_read()), (2, true));
                sum += u32::from(mark.credit() - after.credit());
            }
            let exact = -2.0 * (1.0 - 0.5f64.powf((f64::from(ahead) + 0.5) / 2.0)).log2();
            assert!((f64::from(sum) / 100_000.0 - exact).abs() < 0.02, "{ahead}: {sum}, {exact}");
        }
    }

    #[test]
    fn uses_are_counted_in_octaves() {
        let (mut random, size) = (Rng::with_seed(1), SizeOctaves::of(1000));
        let mut needed = 0;
        for _ in 0..10_000 {
            let mut mark = fresh(0, false, size);
            while mark.uses() < UseMark::USES_MAX {
                assert!(is_news(mark, size));
                mark = used(mark, size, &mut random);
                needed += 1;
            }
            assert!(!is_news(mark, size));
            assert!(is_news(mark.stored(), size));
            assert!(is_news(after_eviction(mark, mark, &mut random), size));
        }
        // 1 + 2 + 4 on average.
        assert!((69_000..71_000).contains(&needed), "{needed}");
    }
}
