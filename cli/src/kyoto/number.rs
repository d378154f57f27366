//! Parses the numbers of ktserver's options. Text after a number is an error, although ktserver
//! ignores it.

/// Parses an integer. A suffix k, m, g or t, in either case, multiplies it by a power of 1024.
pub(super) fn whole(text: &str) -> Option<i64> {
    let text = text.trim();
    let shift = match text.bytes().last()?.to_ascii_lowercase() {
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        b't' => 40,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].trim_end().parse::<i64>().ok()?.checked_mul(1 << shift)
}

/// Parses a decimal number that is not negative.
pub(super) fn seconds(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_multiples() {
        for (text, number) in
            [("5", 5), (" 256m", 256 << 20), ("1K", 1024), ("-1", -1), ("2 g", 2 << 30), ("1t", 1 << 40)]
        {
            assert_eq!(whole(text), Some(number), "{text:?}");
        }
        for text in ["", "m", "5x", "1.5", "99999999999999999999", "9999999999t"] {
            assert_eq!(whole(text), None, "{text:?}");
        }
    }

    #[test]
    fn times_are_real_numbers() {
        assert_eq!((seconds("0.04"), seconds("30")), (Some(0.04), Some(30.0)));
        for text in ["", "x", "-1", "nan", "inf"] {
            assert_eq!(seconds(text), None, "{text:?}");
        }
    }
}
