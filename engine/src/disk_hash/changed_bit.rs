//! Detects an entry in which a single bit has changed, and distinguishes this damage from the
//! result of a crash. It is used for entries of which no mark states that they were on disk.
//!
//! A crash leaves blocks that were never written. These blocks contain zeros because a segment only
//! grows. A crash never changes a bit amid written data, so an entry that is intact except for one
//! bit was damaged later.

use super::entry::{self, HEAD_MAX};
use super::segment::Segment;
use todana_core::Result;

/// Disks write blocks of this size completely or not at all. Only the first and the last block of a
/// write may be partial.
const BLOCK: u64 = 512;
/// Only entries up to this length are checked. Longer torn entries would too often look like
/// entries with one changed bit by accident.
const LEN_MAX: usize = 64 << 10;

/// Returns the offset of the byte in which one bit has changed. Returns `None` if more than one bit
/// of the entry is wrong, or if a torn write can have left the bit 0.
pub(crate) fn flipped_bit(segment: &Segment, offset: u64) -> Result<Option<u64>> {
    let mut bytes = vec![0; LEN_MAX + BLOCK as usize];
    let there = segment.read_at(offset, &mut bytes)?;
    let bytes = &mut bytes[..there];
    let Some(bit) = bit_of(bytes, segment.seed_at(offset)) else { return Ok(None) };
    let at = offset + bit as u64 / 8;
    let block_end = usize::try_from((at / BLOCK + 1) * BLOCK - offset).unwrap_or(usize::MAX).min(there);
    let is_torn = bytes[bit / 8..block_end].iter().all(|&byte| byte == 0);
    Ok((!is_torn).then_some(at))
}

fn bit_of(bytes: &mut [u8], seed: u32) -> Option<usize> {
    let is_short = |len: usize| (entry::ALIGN..=LEN_MAX).contains(&len);
    if let Some(bytes) =
        entry::parse(bytes).filter(|head| is_short(head.len)).and_then(|head| bytes.get(..head.len))
        && let Some(bit) = changed_bit(bytes, seed)
    {
        return Some(bit);
    }
    // The changed bit may belong to a length, so try each bit of the beginning.
    (32..bytes.len().min(HEAD_MAX) * 8).find(|bit| {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let is_it = entry::decode(bytes, seed).is_some_and(|(head, _)| is_short(head.len));
        bytes[bit / 8] ^= 1 << (bit % 8);
        is_it
    })
}

/// Returns the index of the changed bit if exactly one bit of an entry has changed, otherwise
/// `None`. The checksum identifies the bit because each bit affects the checksum in a different
/// way.
pub(crate) fn changed_bit(entry: &[u8], seed: u32) -> Option<usize> {
    let wrong = crc32c::crc32c_append(seed, &entry[4..]) ^ entry::u32_at(entry, 0);
    if wrong.is_power_of_two() {
        return Some(wrong.trailing_zeros() as usize);
    }
    // The effect of each bit of a byte on the checksum, from the last byte to the first.
    let of_byte = |byte: u8| crc32c::crc32c(&[byte]) ^ crc32c::crc32c(&[0]);
    let table: Vec<u32> = (0..=255).map(of_byte).collect();
    let mut effects: [u32; 8] = std::array::from_fn(|bit| table[1 << bit]);
    for at in (4..entry.len()).rev() {
        if let Some(bit) = effects.iter().position(|&effect| effect == wrong) {
            return Some(at * 8 + bit);
        }
        for effect in &mut effects {
            *effect = *effect >> 8 ^ table[(*effect & 0xff) as usize];
        }
    }
    None
}
