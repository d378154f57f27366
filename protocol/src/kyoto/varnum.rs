//! Encodes numbers of variable length, in groups of seven bits with the most significant group
//! first. The top bit is set in all bytes except the last.

use crate::ReplySink;

/// The length of the longest encoded number, in bytes.
pub const LEN_MAX: usize = 10;

/// Writes a number.
#[inline]
pub fn put(number: u64, out: &mut impl ReplySink) {
    let mut bytes = [0; LEN_MAX];
    let mut at = LEN_MAX - 1;
    bytes[at] = (number & 0x7F) as u8;
    let mut rest = number >> 7;
    while rest > 0 {
        at -= 1;
        bytes[at] = 0x80 | (rest & 0x7F) as u8;
        rest >>= 7;
    }
    out.put(&bytes[at..]);
}

/// Returns the encoded length of a number.
pub fn len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// The result of reading a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarnumRead {
    /// A number, and its encoded length.
    Whole(u64, usize),
    /// More bytes are needed.
    Partial,
    /// The number does not fit in 64 bits.
    Malformed,
}

/// Reads the number at the beginning of `bytes`. Accepts leading zero groups, up to the maximum
/// length.
#[inline]
pub fn read(bytes: &[u8]) -> VarnumRead {
    let mut number = 0u64;
    for (index, &byte) in bytes.iter().take(LEN_MAX).enumerate() {
        if number >> 57 != 0 {
            return VarnumRead::Malformed;
        }
        number = number << 7 | u64::from(byte & 0x7F);
        if byte < 0x80 {
            return VarnumRead::Whole(number, index + 1);
        }
    }
    if bytes.len() < LEN_MAX { VarnumRead::Partial } else { VarnumRead::Malformed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_groups_of_seven_bits() {
        for (number, bytes) in [
            (0, &b"\x00"[..]),
            (127, b"\x7F"),
            (128, b"\x81\x00"),
            (150, b"\x81\x16"),
            (205, b"\x81\x4D"),
            (16383, b"\xFF\x7F"),
            (16384, b"\x81\x80\x00"),
            (u64::MAX, b"\x81\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F"),
        ] {
            let mut out = Vec::new();
            put(number, &mut out);
            assert_eq!(out, bytes);
            assert_eq!(len(number), bytes.len());
            assert_eq!(read(bytes), VarnumRead::Whole(number, bytes.len()));
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), VarnumRead::Partial);
            }
        }
    }

    #[test]
    fn number_beyond_64_bits_is_malformed() {
        assert_eq!(read(b"\x82\x80\x80\x80\x80\x80\x80\x80\x80\x00"), VarnumRead::Malformed);
        assert_eq!(read(&[0x80; 10]), VarnumRead::Malformed);
        assert_eq!(read(&[0xFF; 20]), VarnumRead::Malformed);
        assert_eq!(read(b"\x80\x80\x05"), VarnumRead::Whole(5, 3));
    }
}
