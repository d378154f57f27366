//! Parses and formats numbers in Kyoto Tycoon's parameters. Parsing never fails: the valid prefix
//! of a text counts, and the rest is ignored.

/// Parses an integer: blanks, a sign, and digits up to the first other byte. Returns 0 if there are
/// no digits, and the nearest number of 64 bits if the integer is too large.
pub fn integer(text: &[u8]) -> i64 {
    let (is_negative, digits) = signed(text);
    let mut magnitude = 0i64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        // The magnitude is computed as a negative number, because the negative range is larger by
        // one.
        magnitude = magnitude.saturating_mul(10).saturating_sub(i64::from(digit));
    }
    if is_negative { magnitude } else { magnitude.checked_neg().unwrap_or(i64::MAX) }
}

/// Parses a hexadecimal number with or without `0x`. Returns the nearest number of 64 bits if it is
/// too large.
pub(super) fn hexadecimal(text: &[u8]) -> i64 {
    let text = without_blanks(text);
    let digits = match text {
        [b'0', b'x' | b'X', digits @ ..] => digits,
        digits => digits,
    };
    let mut number = 0i64;
    for &byte in digits {
        let Some(digit) = char::from(byte).to_digit(16) else { break };
        number = number.saturating_mul(16).saturating_add(i64::from(digit));
    }
    number
}

/// Parses a real number: like [`integer`], with a fraction, an exponent, `inf` and `nan`.
pub fn real(text: &[u8]) -> f64 {
    let (is_negative, rest) = signed(text);
    let sign = if is_negative { -1.0 } else { 1.0 };
    if starts_with(rest, b"inf") {
        return f64::INFINITY * sign;
    }
    if starts_with(rest, b"nan") {
        return f64::NAN;
    }
    let whole = digits_len(rest);
    let mut len = whole;
    if rest.get(len) == Some(&b'.') {
        len += 1 + digits_len(&rest[len + 1..]);
    }
    let has_digits = rest[..len].iter().any(u8::is_ascii_digit);
    if has_digits && matches!(rest.get(len), Some(b'e' | b'E')) {
        let after = &rest[len + 1..];
        let sign_len = usize::from(matches!(after.first(), Some(b'+' | b'-')));
        let exponent_len = digits_len(&after[sign_len..]);
        if exponent_len > 0 {
            len += 1 + sign_len + exponent_len;
        }
    }
    let number = std::str::from_utf8(&rest[..len]).ok().and_then(|text| text.parse::<f64>().ok());
    number.unwrap_or(0.0) * sign
}

/// Formats a real number for answers: six decimals, or `inf`, `-inf`, `nan`.
pub fn format_real(number: f64) -> String {
    if number.is_finite() {
        format!("{number:.6}")
    } else if number.is_nan() {
        "nan".into()
    } else {
        String::from(if number > 0.0 { "inf" } else { "-inf" })
    }
}

/// Returns true if `text` begins with `start`, which is in lower case; the case of `text` is
/// ignored.
pub(super) fn starts_with(text: &[u8], start: &[u8]) -> bool {
    text.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}

pub(super) fn without_blanks(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|&&byte| (1..=b' ').contains(&byte)).count();
    &text[blanks..]
}

fn signed(text: &[u8]) -> (bool, &[u8]) {
    match without_blanks(text) {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    }
}

fn digits_len(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_prefix_of_an_integer_counts() {
        for (text, number) in [
            ("", 0),
            ("12", 12),
            (" \t-7x", -7),
            ("+3.9", 3),
            ("--3", 0),
            ("x", 0),
            ("9223372036854775807", i64::MAX),
            ("9223372036854775808", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("-99999999999999999999", i64::MIN),
        ] {
            assert_eq!(integer(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn valid_prefix_of_a_real_number_counts() {
        for (text, number) in [
            ("", 0.0),
            ("1.5", 1.5),
            (" -3.25 ", -3.25),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("1e", 1.0),
            ("1e+", 1.0),
            ("2E-1x", 0.2),
            (".", 0.0),
            ("e5", 0.0),
            ("INFinity", f64::INFINITY),
            ("-inf", f64::NEG_INFINITY),
            ("1e999", f64::INFINITY),
        ] {
            assert_eq!(real(text.as_bytes()), number, "{text:?}");
        }
        assert!(real(b"nan").is_nan());
        assert!(real(b"-NaN").is_nan());
    }

    #[test]
    fn reals_are_shown_with_six_decimals() {
        for (number, text) in [
            (1.5, "1.500000"),
            (-1.75, "-1.750000"),
            (0.0000005, "0.000000"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(format_real(number), text);
        }
    }

    #[test]
    fn hexadecimal_numbers_may_carry_their_prefix() {
        for (text, number) in [("1f", 31), ("0X1F", 31), (" 0x10;x", 16), ("", 0), ("g", 0)] {
            assert_eq!(hexadecimal(text.as_bytes()), number, "{text:?}");
        }
        assert_eq!(hexadecimal(b"ffffffffffffffffffff"), i64::MAX);
    }
}
