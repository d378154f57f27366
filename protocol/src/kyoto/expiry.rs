//! Converts the expiry of records: the signed numbers in calls, and the first five bytes of stored
//! values.

/// The largest time, in seconds since 1970. A record with this time never expires.
pub const NEVER: u64 = (1 << 40) - 1;

/// The number that the binary protocol reports as the expiry of a record in a persistent database,
/// where records have no expiry.
pub const PERSISTENT: i64 = i64::MAX;

/// The length of the expiry that precedes a stored value, in bytes.
pub const STORED_LEN: usize = 5;

/// Returns the absolute expiry for the number in a call. A positive number is relative to `now`, a
/// negative number is the absolute time with its sign reversed, and an absent or large number is
/// [`NEVER`]. A record has expired when the clock is past this time.
pub fn resolve(xt: Option<i64>, now: u64) -> u64 {
    let time = match xt {
        None => NEVER,
        Some(xt) if xt < 0 => xt.unsigned_abs(),
        Some(xt) => now.saturating_add(xt.unsigned_abs()),
    };
    time.min(NEVER)
}

/// Returns the expiry in the form in which it precedes a stored value.
pub fn stored(time: u64) -> [u8; STORED_LEN] {
    let bytes = time.min(NEVER).to_be_bytes();
    [bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]
}

/// Splits stored bytes into the expiry and the value. Returns `None` if the bytes are too short.
pub fn split_stored(stored: &[u8]) -> Option<(u64, &[u8])> {
    let (time, value) = stored.split_first_chunk::<STORED_LEN>()?;
    Some((time.iter().fold(0, |time, &byte| time << 8 | u64::from(byte)), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positive_is_relative_and_negative_absolute() {
        for (xt, time) in [
            (None, NEVER),
            (Some(0), 1000),
            (Some(5), 1005),
            (Some(-5), 5),
            (Some(i64::MAX), NEVER),
            (Some(i64::MIN), NEVER),
            (Some(-2_000_000_000), 2_000_000_000),
        ] {
            assert_eq!(resolve(xt, 1000), time, "{xt:?}");
        }
        assert_eq!(resolve(Some(i64::MAX), u64::MAX), NEVER);
    }

    #[test]
    fn stored_times_are_five_bytes() {
        assert_eq!(stored(2_000_000_000), [0, 0x77, 0x35, 0x94, 0]);
        assert_eq!(stored(u64::MAX), [0xFF; 5]);
        assert_eq!(split_stored(b"\x00\x77\x35\x94\x00v"), Some((2_000_000_000, &b"v"[..])));
        assert_eq!(split_stored(b"\xFF\xFF\xFF\xFF\xFF"), Some((NEVER, &b""[..])));
        assert_eq!(split_stored(b"\xFF\xFF\xFF\xFF"), None);
    }
}
