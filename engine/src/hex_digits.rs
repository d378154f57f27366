//! Lower-case hexadecimal digits, two of which fit into a byte.

/// The value of each digit, and `NO_DIGIT` for other bytes.
const VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        values[DIGITS[value] as usize] = value as u8;
        value += 1;
    }
    values
};
const DIGITS: &[u8; 16] = b"0123456789abcdef";
const NO_DIGIT: u8 = 0xFF;

/// The two digits of each byte.
const PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

#[inline]
pub(crate) fn is_hex_digit(byte: u8) -> bool {
    VALUES[usize::from(byte)] != NO_DIGIT
}

/// Returns the two digits of a byte.
#[inline]
pub(crate) fn hex_digits_of(byte: u8) -> [u8; 2] {
    PAIRS[usize::from(byte)]
}

/// Appends digits, two in each byte. Their number must be even. Returns false if one of the bytes
/// is not a digit; what was appended then has no meaning.
#[inline]
pub(crate) fn pack_hex(digits: &[u8], out: &mut Vec<u8>) -> bool {
    let mut values = 0;
    out.extend(digits.as_chunks::<2>().0.iter().map(|&[high, low]| {
        let (high, low) = (VALUES[usize::from(high)], VALUES[usize::from(low)]);
        values |= high | low;
        high << 4 | low
    }));
    values < 16
}

/// Writes the digits of bytes. `digits` must be twice as long.
#[inline]
pub(crate) fn unpack_hex(packed: &[u8], digits: &mut [u8]) {
    packed.iter().zip(digits.as_chunks_mut::<2>().0).for_each(|(&byte, pair)| *pair = hex_digits_of(byte));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packed_digits_are_unpacked(text in "([0-9a-f]{2}){0,40}") {
            let mut packed = Vec::new();
            prop_assert!(pack_hex(text.as_bytes(), &mut packed));
            prop_assert_eq!(packed.len() * 2, text.len());
            let mut digits = vec![0; text.len()];
            unpack_hex(&packed, &mut digits);
            prop_assert_eq!(digits, text.into_bytes());
        }
    }

    #[test]
    fn other_bytes_are_no_digits() {
        for byte in 0..=255 {
            let is_digit = matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            assert_eq!(is_hex_digit(byte), is_digit);
            assert_eq!(pack_hex(&[b'0', byte], &mut Vec::new()), is_digit);
            assert_eq!(pack_hex(&[byte, b'0', b'1', b'2'], &mut Vec::new()), is_digit);
        }
    }
}
