//! Parses numbers as C programs do: blanks before a number and any text after it are ignored.
//!
//! Deployments rely on both. Helm charts pass `-m 1024` as one word, so the value starts with a
//! blank. `-m 1024m` has always meant 1024.

/// Returns the integer at the start of a text, or 0 if there is none. A number that is too large
/// becomes the largest integer.
pub(crate) use todana_protocol::memcached::plugin::number as leading_integer;

/// Returns true if `text` starts with a number.
pub(crate) fn starts_with_number(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    text.strip_prefix(b"-")
        .or(text.strip_prefix(b"+"))
        .unwrap_or(text)
        .first()
        .is_some_and(u8::is_ascii_digit)
}

/// Returns the decimal fraction at the start of a text, or 0 if there is none.
pub(crate) fn leading_fraction(text: &[u8]) -> f64 {
    let text = text.trim_ascii_start();
    let len =
        text.iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'+' | b'-' | b'e' | b'E')).count();
    let text = std::str::from_utf8(&text[..len]).unwrap_or_default();
    // The longest prefix that is a number counts, so `2.0-1` yields 2.
    (1..=len).rev().find_map(|len| text[..len].parse().ok()).unwrap_or(0.0)
}

/// Parses a 32-bit integer. Apart from blanks around it, the text must contain nothing else.
pub(crate) fn whole(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surrounding_blanks_and_text_are_ignored() {
        for (text, value) in [
            ("64", 64),
            (" 8192", 8192),
            ("1024m", 1024),
            ("-1", -1),
            ("+5", 5),
            ("", 0),
            ("abc", 0),
            ("-", 0),
            ("99999999999999999999", i64::MAX),
        ] {
            assert_eq!(leading_integer(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_distinguished_from_missing_ones() {
        for text in ["0", " -1", "+7x"] {
            assert!(starts_with_number(text.as_bytes()), "{text:?}");
        }
        for text in ["", " ", "-", "x1"] {
            assert!(!starts_with_number(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn fractions_are_read_as_far_as_they_go() {
        for (text, value) in
            [("1.25", 1.25), (" 2", 2.0), ("2.0-1", 2.0), ("0.5x", 0.5), ("abc", 0.0), ("", 0.0)]
        {
            assert_eq!(leading_fraction(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn a_whole_number_has_nothing_else_in_it() {
        assert_eq!(whole(b" 64"), Some(64));
        for text in ["", "64k", "-1", "4294967296"] {
            assert_eq!(whole(text.as_bytes()), None, "{text:?}");
        }
    }
}
