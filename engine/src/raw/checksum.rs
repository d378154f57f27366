//! Computes CRC32C by the processor's instruction, on three blocks in parallel. Each step depends
//! on the previous step of the same block, but the blocks are independent of each other. The three
//! results are combined by one multiplication each.
//!
//! The crate `crc32c`, the plain twin of this code, computes blocks in parallel only from 768 bytes
//! on. Shorter records profit too, because every update of a record on disk computes the checksum
//! at least twice.

/// Returns the CRC32C of the bytes with the CRC `seed` followed by `bytes`.
#[inline]
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") && std::arch::is_x86_feature_detected!("pclmulqdq") {
        // SAFETY: the processor has the instructions, as was checked above.
        return unsafe { by_instruction(seed, bytes) };
    }
    crc32c::crc32c_append(seed, bytes)
}

/// The maximum length of a block, in words.
const BLOCK_WORDS_MAX: usize = 128;
/// The minimum length of a block, in words. Dividing shorter input is not worthwhile.
const BLOCK_WORDS_MIN: usize = 6;

/// The factor by which a CRC is multiplied to append n words of zeros: x^(64 n - 33) modulo the
/// polynomial, bits reversed.
#[cfg(target_arch = "x86_64")]
static SKIP_FACTORS: [u32; 2 * BLOCK_WORDS_MAX + 1] = {
    let mut table = [0; 2 * BLOCK_WORDS_MAX + 1];
    // The first factor, for one word, is x^31.
    let (mut power, mut words) = (1u32, 1);
    while words < table.len() {
        table[words] = power;
        let mut step = 0;
        while step < 64 {
            power = (power >> 1) ^ (0x82F6_3B78 & 0u32.wrapping_sub(power & 1));
            step += 1;
        }
        words += 1;
    }
    table
};

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn by_instruction(seed: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};
    let mut crc = !seed;
    let mut rest = bytes;
    // An entry of the log begins with its CRC of four bytes, so the length of the bytes to be
    // checked is four more than a multiple of eight.
    if rest.len() % 8 >= 4
        && let Some((four, behind)) = rest.split_first_chunk()
    {
        (crc, rest) = (_mm_crc32_u32(crc, u32::from_le_bytes(*four)), behind);
    }
    let (mut words, tail) = rest.as_chunks::<8>();
    while words.len() >= 3 * BLOCK_WORDS_MIN {
        let len = (words.len() / 3).min(BLOCK_WORDS_MAX);
        let (first, behind) = words.split_at(len);
        let (second, behind) = behind.split_at(len);
        let (third, behind) = behind.split_at(len);
        words = behind;
        let (mut one, mut two, mut three) = (u64::from(crc), 0, 0);
        for ((a, b), c) in first.iter().zip(second).zip(third) {
            one = _mm_crc32_u64(one, u64::from_le_bytes(*a));
            two = _mm_crc32_u64(two, u64::from_le_bytes(*b));
            three = _mm_crc32_u64(three, u64::from_le_bytes(*c));
        }
        let product = multiply(one as u32, SKIP_FACTORS[2 * len]) ^ multiply(two as u32, SKIP_FACTORS[len]);
        crc = (_mm_crc32_u64(0, product) ^ three) as u32;
    }
    let mut long = u64::from(crc);
    for word in words {
        long = _mm_crc32_u64(long, u64::from_le_bytes(*word));
    }
    crc = long as u32;
    for &byte in tail {
        crc = _mm_crc32_u8(crc, byte);
    }
    !crc
}

/// Returns the carry-less product of two polynomials.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn multiply(one: u32, two: u32) -> u64 {
    use std::arch::x86_64::{_mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64};
    let (one, two) = (_mm_cvtsi64_si128(i64::from(one)), _mm_cvtsi64_si128(i64::from(two)));
    _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(one, two)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_equals_its_plain_twin() {
        let mut random = fastrand::Rng::with_seed(1);
        let bytes: Vec<u8> = (0..9000).map(|_| random.u8(..)).collect();
        let lens = (0..1200).chain([3071, 3072, 3080, 6150, 8999]);
        for len in lens {
            let (start, seed) = (random.usize(..=bytes.len() - len), random.u32(..));
            let part = &bytes[start..start + len];
            assert_eq!(crc32c(seed, part), crc32c::crc32c_append(seed, part), "{len} bytes");
        }
    }

    #[test]
    fn the_value_of_the_standard() {
        assert_eq!(crc32c(0, b"123456789"), 0xE306_9283);
    }
}
