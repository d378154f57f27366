//! Packs decimal numbers written as text into few bytes and restores the exact text.
//!
//! Strings of 1 to 19 digits are numbered shortest first, then by value: "0" is 0, "9" is 9, "00"
//! is 10, "01" is 11 (bijective numeration). The number of a string therefore includes its length
//! and its leading zeros, and "00000042" takes four bytes. Small records often hold counters, IDs
//! or timestamps, so engines and their files store values in this form.

/// The maximum number of digits in a packed string: the numbers of 20 digits do not fit in 64 bits.
pub const DIGITS_MAX: usize = 19;

/// `OFFSETS[len]` is the number of the string of `len` zeros, which is the count of all shorter
/// strings.
const OFFSETS: [u64; DIGITS_MAX + 1] = {
    let mut offsets = [0u64; DIGITS_MAX + 1];
    let mut len = 2;
    let mut power = 10u64;
    while len <= DIGITS_MAX {
        offsets[len] = offsets[len - 1] + power;
        power = power.wrapping_mul(10);
        len += 1;
    }
    offsets
};

/// The number of the last string: 19 nines.
pub const NUMBER_MAX: u64 = OFFSETS[DIGITS_MAX] + 9_999_999_999_999_999_999;

/// Returns the number of this text if the text consists of 1 to 19 digits.
#[inline]
pub fn pack(text: &[u8]) -> Option<u64> {
    let len = text.len();
    if len == 0 || len > DIGITS_MAX || !text[0].is_ascii_digit() {
        return None;
    }
    let mut value = 0u64;
    let mut rest = text;
    while rest.len() >= 8 {
        let word = u64::from_le_bytes(rest[..8].try_into().expect("eight bytes"));
        value = value * 100_000_000 + eight_digits(word)?;
        rest = &rest[8..];
    }
    for &byte in rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    Some(OFFSETS[len] + value)
}

/// Returns the value of eight ASCII digits, with the first digit in the lowest byte. Uses the
/// well-known SWAR reduction: pairs, fours, eights.
#[inline]
fn eight_digits(word: u64) -> Option<u64> {
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    const HIGH: u64 = 0xF0F0_F0F0_F0F0_F0F0;
    if word & HIGH != ZEROS || word.wrapping_add(0x0606_0606_0606_0606) & HIGH != ZEROS {
        return None;
    }
    let digits = word - ZEROS;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00FF_00FF_00FF_00FF;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_FFFF_0000_FFFF;
    Some(fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xFFFF_FFFF)
}

/// Returns the number of digits in the text of this number.
#[inline]
pub fn text_len(number: u64) -> usize {
    // OFFSETS[len] = (10^len - 10) / 9, so len = floor(log10(9 n + 10)).
    if number < u64::MAX / 16 {
        (9 * number + 10).ilog10() as usize
    } else {
        OFFSETS.iter().rposition(|&offset| offset <= number).expect("OFFSETS[0] is 0").min(DIGITS_MAX)
    }
}

/// Returns the text of a number that `pack` returned, which is at most [`NUMBER_MAX`].
#[inline]
pub fn unpack(number: u64, text: &mut [u8; 20]) -> &[u8] {
    let len = text_len(number);
    let mut value = number - OFFSETS[len];
    let mut end = len;
    while end >= 8 {
        let (upper, eight) = (value / 100_000_000, (value % 100_000_000) as u32);
        text[end - 8..end].copy_from_slice(&eight_text(eight));
        (end, value) = (end - 8, upper);
    }
    for byte in text[..end].iter_mut().rev() {
        *byte = b'0' + (value % 10) as u8;
        value /= 10;
    }
    &text[..len]
}

/// Returns the text of a number below 10^8 with its leading zeros. This inverts the reduction of
/// `eight_digits`. It divides all halves at once, by multiplications that are exact for numbers of
/// this size.
#[inline]
fn eight_text(number: u32) -> [u8; 8] {
    let fours = u64::from(number / 10_000) | u64::from(number % 10_000) << 32;
    let hundreds = ((fours * 5_243) >> 19) & 0x0000_007F_0000_007F;
    let pairs = hundreds | (fours - hundreds * 100) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000F_000F_000F_000F;
    let digits = tens | (pairs - tens * 10) << 8;
    (digits | 0x3030_3030_3030_3030).to_le_bytes()
}

/// Returns the number of bytes that hold this number, 1 to 8.
#[inline]
pub fn byte_len(number: u64) -> usize {
    (71 - (number | 1).leading_zeros() as usize) / 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(text: &str) -> Option<String> {
        let number = pack(text.as_bytes())?;
        assert_eq!(text_len(number), text.len(), "{text}");
        Some(String::from_utf8(unpack(number, &mut [0; 20]).to_vec()).unwrap())
    }

    #[test]
    fn numbering_is_shortest_first_without_gaps() {
        let mut expected = 0;
        for len in 1..=4usize {
            for value in 0..10u64.pow(len as u32) {
                assert_eq!(pack(format!("{value:0len$}").as_bytes()), Some(expected));
                expected += 1;
            }
        }
    }

    #[test]
    fn shortest_and_longest_texts_round_trip() {
        for len in 1..=DIGITS_MAX {
            for text in ["0".repeat(len), "9".repeat(len), format!("{:0>len$}", 1), format!("{:0<len$}", 1)] {
                assert_eq!(round_trip(&text).as_deref(), Some(&*text));
            }
        }
    }

    #[test]
    fn nineteen_nines_have_the_largest_number() {
        assert_eq!(pack("9".repeat(DIGITS_MAX).as_bytes()), Some(NUMBER_MAX));
    }

    #[test]
    fn eight_digits_and_eight_text_are_inverse() {
        // Tests all values of each half, with the other half at its minimum and its maximum.
        for half in 0..10_000 {
            for number in [half, half * 10_000, half * 10_000 + 9_999, 99_990_000 + half] {
                let text = eight_text(number);
                assert_eq!(text, *format!("{number:08}").as_bytes());
                assert_eq!(eight_digits(u64::from_le_bytes(text)), Some(number.into()));
            }
        }
    }

    #[test]
    fn text_that_is_not_all_digits_is_refused() {
        let refused = [
            "",
            "a",
            "-1",
            "+1",
            " 1",
            "1 ",
            "1.5",
            "1234567a",
            "a2345678",
            "12345678:",
            "/2345678",
            "12345678901234567890",
        ];
        for text in refused {
            assert_eq!(pack(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(pack(b"\xb1\xb2"), None);
    }

    #[test]
    fn byte_len_is_minimal() {
        for (number, len) in [(0, 1), (255, 1), (256, 2), (65535, 2), (65536, 3), (u64::MAX, 8)] {
            assert_eq!(byte_len(number), len);
        }
    }

    proptest! {
        #[test]
        fn packed_digits_round_trip(text in "[0-9]{1,19}") {
            prop_assert_eq!(round_trip(&text), Some(text));
        }

        #[test]
        fn only_one_to_nineteen_digits_are_packed(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            let digits = !bytes.is_empty() && bytes.len() <= DIGITS_MAX && bytes.iter().all(u8::is_ascii_digit);
            prop_assert_eq!(pack(&bytes).is_some(), digits);
        }
    }
}
