//! The functions of mcrouter, pymemcache and memcached's proxy that choose among servers.

use super::key_hash::little_endian;

/// The seed of mcrouter's hashes.
const MCROUTER_SEED: u64 = 4_193_360_111;
const MCROUTER_KEY_SEED: u64 = 2_718_281_828;

/// MurmurHash64A by Austin Appleby (public domain).
fn murmur64a(bytes: &[u8], seed: u64) -> u64 {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    let (blocks, rest) = bytes.as_chunks::<8>();
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(FACTOR);
    for block in blocks {
        let mut word = u64::from_le_bytes(*block).wrapping_mul(FACTOR);
        word = (word ^ (word >> 47)).wrapping_mul(FACTOR);
        hash = (hash ^ word).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        hash = (hash ^ little_endian(rest)).wrapping_mul(FACTOR);
    }
    hash = (hash ^ (hash >> 47)).wrapping_mul(FACTOR);
    hash ^ (hash >> 47)
}

/// Returns the hash of a key from which [`ch3`] derives its bits.
pub(super) fn ch3_hash(key: &[u8]) -> u64 {
    murmur64a(key, MCROUTER_SEED)
}

/// mcrouter's consistent hash of a key over up to 16,384 servers.
///
/// It draws numbers below the next power of two from a stream of bits, until one is below `count`.
pub(super) fn ch3(first_word: u64, count: usize) -> usize {
    const TRIES: usize = 32;
    const STEP: usize = 23;
    // Each try reads at most 14 bits, `STEP` apart.
    const WORDS: usize = (TRIES * STEP * 14 + 14) / 64 + 1;
    let mut words = [0u64; WORDS];
    words[0] = first_word;
    let mut known = 1;
    let mut bit = |at: usize| {
        while known <= at / 64 {
            words[known] = murmur64a(&words[known - 1].to_le_bytes(), MCROUTER_SEED);
            known += 1;
        }
        (words[at / 64] >> (at % 64) & 1) as usize
    };
    let mut depth = (usize::BITS - count.saturating_sub(1).leading_zeros()) as usize;
    let mut at = depth;
    for _ in 0..TRIES {
        if depth == 0 {
            return 0;
        }
        while bit(at) == 0 {
            depth -= 1;
            if depth == 0 {
                return 0;
            }
            at = depth;
        }
        at += STEP;
        let mut number = 1;
        for _ in 1..depth {
            number = number << 1 | bit(at);
            at += STEP;
        }
        if number < count {
            return number;
        }
    }
    0
}

/// Returns the hash of a server for [`mcrouter_score`].
pub(super) fn mcrouter_server_hash(text: &str) -> u64 {
    murmur64a(text.as_bytes(), MCROUTER_SEED)
}

/// Returns the hash of a key for [`mcrouter_score`].
pub(super) fn mcrouter_key_hash(key: &[u8]) -> u64 {
    murmur64a(key, MCROUTER_KEY_SEED)
}

/// Returns the score of a server in mcrouter's rendezvous: CityHash's Hash128to64, rounded to a
/// float of 64 bits. The bits of positive floats have the order of the floats.
pub(super) fn mcrouter_score(server_hash: u64, key_hash: u64) -> u64 {
    const FACTOR: u64 = 0x9ddf_ea08_eb38_2d69;
    let step = |a: u64, b: u64| {
        let product = (a ^ b).wrapping_mul(FACTOR);
        product ^ (product >> 47)
    };
    let mixed = step(server_hash, step(key_hash, server_hash)).wrapping_mul(FACTOR);
    (mixed as f64).to_bits()
}

/// MurmurHash3 with 32 bits by Austin Appleby (public domain), after a prefix of the text.
#[derive(Clone, Debug)]
pub(super) struct PrefixedMurmur3 {
    hash: u32,
    /// The last bytes of the prefix, which do not fill a block.
    rest: Vec<u8>,
    len: usize,
}

impl PrefixedMurmur3 {
    pub(super) fn new(prefix: &[u8]) -> PrefixedMurmur3 {
        let (blocks, rest) = prefix.as_chunks::<4>();
        let hash = blocks.iter().fold(0, |hash, block| Self::with_block(hash, u32::from_le_bytes(*block)));
        PrefixedMurmur3 { hash, rest: rest.to_vec(), len: prefix.len() }
    }

    /// Returns the hash of prefix and text.
    pub(super) fn hash_of(&self, text: &[u8]) -> u32 {
        let (mut hash, mut block, mut filled) =
            (self.hash, little_endian(&self.rest) as u32, self.rest.len());
        for byte in text {
            block |= u32::from(*byte) << (8 * filled);
            filled += 1;
            if filled == 4 {
                hash = Self::with_block(hash, block);
                (block, filled) = (0, 0);
            }
        }
        if filled > 0 {
            hash ^= Self::scrambled(block);
        }
        hash ^= (self.len + text.len()) as u32;
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
        hash ^ (hash >> 16)
    }

    fn with_block(hash: u32, block: u32) -> u32 {
        (hash ^ Self::scrambled(block)).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    }

    fn scrambled(block: u32) -> u32 {
        block.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593)
    }
}

/// Jump consistent hash (Lamping and Veach, arXiv 1406.2294).
pub(super) fn jump(mut hash: u64, count: usize) -> usize {
    let (mut bucket, mut next) = (0, 0);
    while next < count as u64 {
        bucket = next;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((bucket + 1) as f64 * ((1u64 << 31) as f64 / ((hash >> 33) + 1) as f64)) as u64;
    }
    bucket as usize
}
