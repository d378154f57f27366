//! Parses durations as users write them: `90`, `5m`, `1h`, `2d`.

use std::time::{SystemTime, UNIX_EPOCH};

/// The largest number that memcached interprets as seconds from now. A larger number is a Unix
/// time.
const RELATIVE_MAX_S: i64 = 30 * 86_400;

const UNITS: [(char, i64); 5] = [('s', 1), ('m', 60), ('h', 3_600), ('d', 86_400), ('w', 604_800)];

/// Returns the time of the system's clock, in Unix seconds.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Parses a number of seconds with an optional unit.
pub(crate) fn seconds(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let unit = UNITS.iter().find_map(|(letter, seconds)| Some((text.strip_suffix(*letter)?, *seconds)));
    let (digits, unit) = unit.unwrap_or((text, 1));
    let number: i64 = match digits.parse() {
        Ok(number) => number,
        Err(_) if digits.parse::<i128>().is_ok() => return Err("out of range".into()),
        Err(_) => return Err("must be seconds, or a number with s, m, h, d or w (90, 5m, 1h, 2d)".into()),
    };
    number.checked_mul(unit).ok_or_else(|| "out of range".into())
}

/// Parses a time to live, and returns it in the form of memcached's protocol: seconds from now up
/// to 30 days, or a Unix time. A duration with a unit always counts from now, even if it is longer
/// than 30 days.
pub(crate) fn exptime(text: &str) -> Result<i64, String> {
    let seconds = seconds(text)?;
    let has_unit = text.trim().ends_with(|last: char| last.is_alphabetic());
    if has_unit && seconds > RELATIVE_MAX_S {
        return seconds.checked_add(now() as i64).ok_or_else(|| "out of range".into());
    }
    Ok(seconds)
}

/// Prints a warning if a record with this time to live expires at once.
pub(crate) fn warn_if_past(exptime: i64) {
    if exptime < 0 {
        eprintln!(
            "todana: --ttl {exptime}: the record expires immediately, unless the server has negative_exptime=sliding"
        );
    } else if exptime > RELATIVE_MAX_S && exptime < now() as i64 {
        eprintln!(
            "todana: --ttl {exptime}: values above 30 days are Unix times, and this one has passed; write 40d for a duration"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, read) in [("0", 0), ("90", 90), ("90s", 90), ("5m", 300), (" 1h", 3_600), ("2d", 172_800)]
        {
            assert_eq!((seconds(text), exptime(text)), (Ok(read), Ok(read)), "{text}");
        }
        assert_eq!(exptime("-1"), Ok(-1));
        assert_eq!(exptime("2000000000"), Ok(2_000_000_000));
        let soon = now() as i64;
        assert!((soon + 5_184_000..=soon + 5_184_060).contains(&exptime("60d").unwrap()));
        for text in ["", "abc", "m", "1.5h", "1y", "5 m", "+", "1h30m"] {
            assert!(exptime(text).unwrap_err().starts_with("must be seconds"), "{text:?}");
        }
        for text in ["99999999999999999999", "999999999999999999w"] {
            assert_eq!(exptime(text), Err("out of range".into()));
        }
    }
}
