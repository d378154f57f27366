//! Distinguishes an entry with one changed bit from a torn write, if no mark states that the entry
//! was on disk.
//!
//! A crash leaves blocks that were never written. They contain zeros, because a log only grows, and
//! a crash changes no bit in the middle of a written block. An entry with exactly one wrong bit was
//! therefore damaged later. The checksum of 32 bits identifies the bit: up to 2^31 bits, each
//! changed bit yields a different checksum.

use super::{CONTENT_LEN_MAX, FRAME_LEN, SegmentReader, entry};
use crate::update_log::LogPosition;
use todana_core::Result;

/// The polynomial of CRC32C, with the lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The number of bytes that a disk writes as a unit.
const DISK_BLOCK_LEN: u64 = 512;
/// A changed bit is certain in entries up to this size. In longer entries, a torn write would too
/// often look like one changed bit by chance (at this size, in one of 8,192 cases), so those must
/// not contain a block that may be torn.
const CERTAIN_SIZE_MAX: usize = 64 << 10;

impl SegmentReader {
    /// Checks whether the entry at `offset` would be complete if one bit were different. Returns
    /// the offset of the byte with that bit. Returns `None` if a torn write could have left zeros
    /// at that byte.
    pub(super) fn flipped_bit(&mut self, offset: u64, position: LogPosition) -> Result<Option<u64>> {
        self.load(offset, FRAME_LEN)?;
        let Some(frame) = self.window.at(offset).first_chunk::<FRAME_LEN>().copied() else { return Ok(None) };
        let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
        let crc = u32::from_le_bytes(frame[4..].try_into().expect("four bytes"));
        if let Some(actual) = self.checksum(offset, position, size)?
            && let Some(at) = changed_byte(actual ^ crc, size as usize)
        {
            let at = offset + at as u64;
            let is_torn = self.may_be_torn(at)?;
            let may_be_chance = size as usize > CERTAIN_SIZE_MAX && self.has_torn_block(offset, size)?;
            return Ok((!is_torn && !may_be_chance).then_some(at));
        }
        for bit in 0..32 {
            let at = offset + bit / 8;
            if self.checksum(offset, position, size ^ (1 << bit))? == Some(crc) && !self.may_be_torn(at)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Returns the checksum that an entry of this size would need, or `None` if the file is too
    /// short for it.
    fn checksum(&mut self, offset: u64, position: LogPosition, size: u32) -> Result<Option<u32>> {
        let len = FRAME_LEN + size as usize;
        if size == 0 || size > CONTENT_LEN_MAX || offset + len as u64 > self.file_len {
            return Ok(None);
        }
        self.load(offset, len)?;
        let Some(bytes) = self.window.at(offset).get(FRAME_LEN..len) else { return Ok(None) };
        Ok(Some(crc32c::crc32c_append(entry::crc_of_frame(self.seed, position, size), bytes)))
    }

    /// Returns true if all bytes from `at` to the end of the block are zeros.
    fn may_be_torn(&mut self, at: u64) -> Result<bool> {
        let end = ((at / DISK_BLOCK_LEN + 1) * DISK_BLOCK_LEN).min(self.file_len);
        self.load(at, (end - at) as usize)?;
        Ok(self.window.at(at).iter().take((end - at) as usize).all(|&byte| byte == 0))
    }

    /// Returns true if one of the entry's blocks ends in zeros, as an unwritten block does.
    fn has_torn_block(&mut self, offset: u64, size: u32) -> Result<bool> {
        let end = offset + (FRAME_LEN + size as usize) as u64;
        let mut block_end = (offset / DISK_BLOCK_LEN + 1) * DISK_BLOCK_LEN;
        while block_end < end {
            if self.may_be_torn((block_end - 8).max(offset))? {
                return Ok(true);
            }
            block_end += DISK_BLOCK_LEN;
        }
        self.may_be_torn(end - 1)
    }
}

/// Returns the index of the byte in which one bit has changed. `difference` is the XOR of both
/// checksums, and `size` the size of the content. Returns `None` if no single bit explains the
/// difference.
fn changed_byte(difference: u32, size: usize) -> Option<usize> {
    if difference.is_power_of_two() {
        return Some(4 + difference.trailing_zeros() as usize / 8);
    }
    // The CRC of a changed bit takes one step for each byte after it, so the search starts at the
    // last byte.
    let mut state = 1u32;
    for step in 1..=size * 8 {
        state = (state >> 1) ^ (if state & 1 == 1 { POLYNOMIAL } else { 0 });
        if state == difference {
            return Some(FRAME_LEN + size - 1 - (step - 1) / 8);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_identifies_the_changed_byte() {
        let content: Vec<u8> = (0..300).map(|n| (n * 7) as u8).collect();
        let crc = crc32c::crc32c(&content);
        for bit in 0..content.len() * 8 {
            let mut damaged = content.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let difference = crc32c::crc32c(&damaged) ^ crc;
            assert_eq!(changed_byte(difference, content.len()), Some(FRAME_LEN + bit / 8), "bit {bit}");
        }
        for bit in 0..32 {
            assert_eq!(changed_byte(1 << bit, 300), Some(4 + bit / 8));
        }
        let mut torn = content.clone();
        torn[200..].fill(0);
        assert_eq!(changed_byte(crc32c::crc32c(&torn) ^ crc, content.len()), None);
    }
}
