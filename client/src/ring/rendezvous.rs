//! Weighted rendezvous hashing: each server has a score for each key, and the greatest score wins.
//!
//! ```text
//! u     = mix(XXH3-64(label) ^ XXH3-64(key)), read as a fraction of 2^64
//! score = weight / -log2(u)
//! ```
//!
//! A server that leaves moves only its own keys, and the share of a server is its weight divided by
//! the sum of weights. The order in which servers are listed is irrelevant. The logarithm comes
//! from a table of integers, so that every build on every machine agrees.

use super::ServerEntry;
use std::cmp::Ordering;
use xxhash_rust::xxh3::xxh3_64;

/// The servers of a rendezvous, in the order of their labels.
#[derive(Clone, Debug)]
pub(super) struct RendezvousTable {
    label_hashes: Vec<u64>,
    /// Empty if all weights are equal, because the greatest u is the greatest score then.
    weights: Vec<u32>,
    pub(super) servers: Vec<u16>,
}

/// The score of a server for a key. Equal scores are ordered by `u`.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightedScore {
    /// -log2(u) in units of 2^-32; never 0.
    cost: u64,
    weight: u32,
    pub(super) u: u64,
}

impl RendezvousTable {
    pub(super) fn new(servers: &[(u16, &ServerEntry)]) -> RendezvousTable {
        let mut labelled: Vec<_> =
            servers.iter().map(|(index, server)| (server.label(), server.weight, *index)).collect();
        labelled.sort();
        let label_hashes = labelled.iter().map(|(label, ..)| xxh3(label.as_bytes())).collect();
        let is_weighted = labelled.iter().any(|(_, weight, _)| *weight != labelled[0].1);
        let weights =
            labelled.iter().map(|(_, weight, _)| *weight).take(if is_weighted { usize::MAX } else { 0 });
        RendezvousTable {
            label_hashes,
            weights: weights.collect(),
            servers: labelled.iter().map(|(.., index)| *index).collect(),
        }
    }

    /// Returns the server with the greatest score, and its u.
    #[inline]
    pub(super) fn server_of(&self, key_hash: u64) -> (usize, u64) {
        let best = if self.weights.is_empty() {
            let all = self.label_hashes.iter().enumerate();
            // A loop that keeps the first of equal values; `max_by_key` keeps the last.
            all.fold((0, 0), |(best, best_u), (position, label_hash)| {
                let u = mixed(label_hash ^ key_hash);
                if u > best_u { (position, u) } else { (best, best_u) }
            })
        } else {
            let mut best = (0, self.score(0, key_hash));
            for (position, (label_hash, weight)) in self.label_hashes.iter().zip(&self.weights).enumerate() {
                let u = mixed(label_hash ^ key_hash);
                // -log2(u) is at least 1 - u, so most servers lose without a logarithm.
                let (least, leader) = ((!u >> 32) * u64::from(best.1.weight), best.1.cost);
                if least <= leader.saturating_mul(u64::from(*weight)) {
                    let score = WeightedScore { cost: negative_log2(u), weight: *weight, u };
                    if score > best.1 {
                        best = (position, score);
                    }
                }
            }
            (best.0, best.1.u)
        };
        (usize::from(self.servers[best.0]), best.1)
    }

    /// Returns the score of the server at a position of `servers`.
    #[inline]
    pub(super) fn score(&self, position: usize, key_hash: u64) -> WeightedScore {
        let u = mixed(self.label_hashes[position] ^ key_hash);
        let weight = self.weights.get(position).copied().unwrap_or(1);
        WeightedScore { cost: negative_log2(u), weight, u }
    }
}

impl Ord for WeightedScore {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        // weight / cost, compared without a division.
        let scaled = |cost: u64, weight: u32| u128::from(cost) * u128::from(weight);
        let (ours, theirs) = (scaled(other.cost, self.weight), scaled(self.cost, other.weight));
        ours.cmp(&theirs).then(self.u.cmp(&other.u))
    }
}

impl PartialOrd for WeightedScore {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for WeightedScore {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for WeightedScore {}

#[inline]
pub(super) fn xxh3(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The finalizer of SplitMix64, with the constants of David Stafford's "Mix13" (public domain).
#[inline]
pub(super) fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// log2(1 + i / 256) in units of 2^-32. Each squaring yields one bit of the logarithm.
const LOG2_TABLE: [u64; 257] = {
    let mut table = [0u64; 257];
    let mut index = 0;
    while index < 256 {
        // A number from 1 to 2 with 62 bits after the point.
        let mut number = (256 + index as u128) << 54;
        let mut bit = 32;
        while bit > 0 {
            bit -= 1;
            number = (number * number) >> 62;
            if number >= 1 << 63 {
                number >>= 1;
                table[index] |= 1 << bit;
            }
        }
        index += 1;
    }
    table[256] = 1 << 32;
    table
};

/// Returns -log2(u / 2^64) in units of 2^-32, with linear interpolation between 257 values. The
/// result is never 0. A `u` of 0 counts as 1.
#[inline]
fn negative_log2(u: u64) -> u64 {
    let u = u.max(1);
    let zeros = u.leading_zeros();
    let mantissa = u << zeros;
    let index = (mantissa >> 55 & 0xff) as usize;
    let rest = mantissa >> 23 & 0xffff_ffff;
    let log2 = LOG2_TABLE[index] + (((LOG2_TABLE[index + 1] - LOG2_TABLE[index]) * rest) >> 32);
    (u64::from(zeros + 1) << 32) - log2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_is_close_falling_and_fixed() {
        let unit = (1u64 << 32) as f64;
        for number in (1..20_000u64).map(mixed).chain((0..64).map(|bit| 1 << bit)) {
            let exact = 64.0 - (number as f64).log2();
            assert!((negative_log2(number) as f64 / unit - exact).abs() < 3e-6, "{number}");
            assert!(negative_log2(number) >= !number >> 32, "{number}");
        }
        assert!(LOG2_TABLE.is_sorted());
        assert_eq!(
            (negative_log2(0), negative_log2(1), negative_log2(1 << 63)),
            (64 << 32, 64 << 32, 1 << 32)
        );
        assert_eq!(negative_log2(u64::MAX), 1);
        assert_eq!(
            (LOG2_TABLE[1], LOG2_TABLE[128], LOG2_TABLE[255]),
            (24_157_254, 2_512_394_809, 4_282_853_258)
        );
    }
}
