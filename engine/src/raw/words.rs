//! Processes sixteen words at once with the processor's vector instructions.
//!
//! No branch depends on the values of the words. With such a branch, a processor that waits for
//! memory would guess, often wrongly, and then discard its later work. Without such a branch, the
//! processor continues and waits for this table and the next one at the same time.
//!
//! Each function has a plain twin for processors without AVX2.

/// The number of words that are processed together.
pub(crate) const WINDOW: usize = 16;

/// Returns a bit mask. Bit n is set if word n, shifted right by `shift` and masked by `mask`,
/// equals `wanted`.
#[inline]
pub(crate) fn equal(words: &[u64; WINDOW], shift: u32, mask: u64, wanted: u64) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the instructions, as was checked above.
        return unsafe { by_instruction::equal(words, shift, mask, wanted) };
    }
    plain::equal(words, shift, mask, wanted)
}

/// Finds the position of a word among words that ascend by their bits from `shift` on. Returns two
/// bit masks. Bit n of the first mask is set if word n is 0 or its bits are greater than `bits`.
/// Bit n of the second mask is set if word n is 0. `shift` must not be 0.
#[inline]
pub(crate) fn greater_or_zero(words: &[u64; WINDOW], shift: u32, bits: u64) -> (u32, u32) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: as in `equal`.
        return unsafe { by_instruction::greater_or_zero(words, shift, bits) };
    }
    plain::greater_or_zero(words, shift, bits)
}

/// Writes `word` at `at`. The words from `at` up to before `gap` are moved by one position, which
/// overwrites the word at `gap`.
#[inline]
pub(crate) fn insert(words: &mut [u64; WINDOW], at: usize, gap: usize, word: u64) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: as in `equal`.
        return unsafe { by_instruction::insert(words, at, gap, word) };
    }
    plain::insert(words, at, gap, word);
}

mod plain {
    use super::WINDOW;

    pub(super) fn equal(words: &[u64; WINDOW], shift: u32, mask: u64, wanted: u64) -> u32 {
        let bits = words.iter().map(|word| u32::from(word >> shift & mask == wanted));
        bits.rev().fold(0, |bits, bit| bits << 1 | bit)
    }

    pub(super) fn greater_or_zero(words: &[u64; WINDOW], shift: u32, bits: u64) -> (u32, u32) {
        let both =
            words.iter().map(|&word| (u32::from(word == 0 || word >> shift > bits), u32::from(word == 0)));
        both.rev().fold((0, 0), |(greater, zero), (one, other)| (greater << 1 | one, zero << 1 | other))
    }

    pub(super) fn insert(words: &mut [u64; WINDOW], at: usize, gap: usize, word: u64) {
        let (mut now, mut before) = (*words, 0);
        for (n, (new, old)) in now.iter_mut().zip(words.iter()).enumerate() {
            let moved = if n > at && n <= gap { before } else { *old };
            *new = if n == at { word } else { moved };
            before = *old;
        }
        *words = now;
    }
}

#[cfg(target_arch = "x86_64")]
mod by_instruction {
    use super::WINDOW;
    use std::arch::x86_64::{
        __m256i, _mm_cvtsi64_si128, _mm256_add_epi64, _mm256_and_si256, _mm256_andnot_si256,
        _mm256_blendv_epi8, _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_cmpgt_epi64, _mm256_movemask_pd,
        _mm256_permute4x64_epi64, _mm256_set_epi64x, _mm256_set1_epi64x, _mm256_setzero_si256,
        _mm256_srl_epi64,
    };

    #[inline]
    #[target_feature(enable = "avx2")]
    fn four(words: &[u64]) -> __m256i {
        _mm256_set_epi64x(words[3] as i64, words[2] as i64, words[1] as i64, words[0] as i64)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn bits(lanes: __m256i) -> u32 {
        _mm256_movemask_pd(_mm256_castsi256_pd(lanes)) as u32
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn equal(words: &[u64; WINDOW], shift: u32, mask: u64, wanted: u64) -> u32 {
        let (shift, mask) = (_mm_cvtsi64_si128(i64::from(shift)), _mm256_set1_epi64x(mask as i64));
        let wanted = _mm256_set1_epi64x(wanted as i64);
        let mut found = 0;
        for n in 0..WINDOW / 4 {
            let shifted = _mm256_and_si256(_mm256_srl_epi64(four(&words[4 * n..]), shift), mask);
            found |= bits(_mm256_cmpeq_epi64(shifted, wanted)) << (4 * n);
        }
        found
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn greater_or_zero(words: &[u64; WINDOW], shift: u32, wanted: u64) -> (u32, u32) {
        let (shift, wanted) = (_mm_cvtsi64_si128(i64::from(shift)), _mm256_set1_epi64x(wanted as i64));
        let (mut greater, mut zero) = (0, 0);
        for n in 0..WINDOW / 4 {
            let four = four(&words[4 * n..]);
            // After a shift by at least one, no word is negative.
            greater |= bits(_mm256_cmpgt_epi64(_mm256_srl_epi64(four, shift), wanted)) << (4 * n);
            zero |= bits(_mm256_cmpeq_epi64(four, _mm256_setzero_si256())) << (4 * n);
        }
        (greater | zero, zero)
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn insert(words: &mut [u64; WINDOW], at: usize, gap: usize, word: u64) {
        let (at, gap) = (_mm256_set1_epi64x(at as i64), _mm256_set1_epi64x(gap as i64));
        let word = _mm256_set1_epi64x(word as i64);
        // The last four words are moved first, because each group takes the word before it.
        for n in (0..WINDOW / 4).rev() {
            let lane = _mm256_add_epi64(_mm256_set1_epi64x(4 * n as i64), _mm256_set_epi64x(3, 2, 1, 0));
            let now = four(&words[4 * n..]);
            // The first group has no word before it, so no word moves into its first position.
            let before = if n == 0 {
                _mm256_permute4x64_epi64::<0b10_01_00_00>(now)
            } else {
                four(&words[4 * n - 1..])
            };
            let moves = _mm256_andnot_si256(_mm256_cmpgt_epi64(lane, gap), _mm256_cmpgt_epi64(lane, at));
            let moved = _mm256_blendv_epi8(now, before, moves);
            let new = _mm256_blendv_epi8(moved, word, _mm256_cmpeq_epi64(lane, at));
            // SAFETY: both types have 32 bytes without padding, and any value is valid.
            let new: [u64; 4] = unsafe { std::mem::transmute(new) };
            words[4 * n..4 * n + 4].copy_from_slice(&new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_functions_equal_their_plain_twins() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let (shift, spread) = (random.u32(1..60), random.u64(1..50));
            let mut words: [u64; WINDOW] = std::array::from_fn(|_| {
                let word = random.u64(..spread) << shift | random.u64(..) & ((1 << shift) - 1);
                if random.u8(..) < 60 { 0 } else { word }
            });
            let wanted = random.u64(..spread);
            for mask in [u64::MAX, 7] {
                let found = equal(&words, shift, mask, wanted);
                assert_eq!(found, plain::equal(&words, shift, mask, wanted));
                assert_eq!(found >> 3 & 1 == 1, words[3] >> shift & mask == wanted);
            }
            let found = greater_or_zero(&words, shift, wanted);
            assert_eq!(found, plain::greater_or_zero(&words, shift, wanted));
            assert_eq!(found.1 >> 9 & 1 == 1, words[9] == 0);
            assert_eq!(found.0 >> 9 & 1 == 1, words[9] == 0 || words[9] >> shift > wanted);
            let gap = random.usize(..WINDOW);
            let at = random.usize(..=gap);
            let mut model = words.to_vec();
            model.remove(gap);
            model.insert(at, 77);
            let mut twin = words;
            plain::insert(&mut twin, at, gap, 77);
            insert(&mut words, at, gap, 77);
            assert_eq!((&words[..], &twin[..]), (&model[..], &model[..]));
        }
    }
}
