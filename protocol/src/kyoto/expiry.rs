//! When records die: the signed numbers of calls, and the five bytes of what is stored.

/// The largest time there is, in seconds since 1970; a record with it never dies.
pub const NEVER: u64 = (1 << 40) - 1;

/// What the binary protocol answers for records of a persistent database, which know no times.
pub const PERSISTENT: i64 = i64::MAX;

/// The length of the time before a stored value.
pub const STORED_LEN: usize = 5;

/// The time that is stored for what a call says: a number of seconds from `now` if it is positive, the negative of an
/// absolute time if it is negative, [`NEVER`] if it is absent or large. A record is dead once the clock is past it.
pub fn resolve(said: Option<i64>, now: u64) -> u64 {
    let time = match said {
        None => NEVER,
        Some(said) if said < 0 => said.unsigned_abs(),
        Some(said) => now.saturating_add(said.unsigned_abs()),
    };
    time.min(NEVER)
}

/// The time as it is stored before a value.
pub fn stored(time: u64) -> [u8; STORED_LEN] {
    let bytes = time.min(NEVER).to_be_bytes();
    [bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]
}

/// The time and the value of what is stored; `None` if it is too short to hold a time.
pub fn split_stored(stored: &[u8]) -> Option<(u64, &[u8])> {
    let (time, value) = stored.split_first_chunk::<STORED_LEN>()?;
    Some((time.iter().fold(0, |time, &byte| time << 8 | u64::from(byte)), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positive_is_relative_and_negative_absolute() {
        for (said, time) in [
            (None, NEVER),
            (Some(0), 1000),
            (Some(5), 1005),
            (Some(-5), 5),
            (Some(i64::MAX), NEVER),
            (Some(i64::MIN), NEVER),
            (Some(-2_000_000_000), 2_000_000_000),
        ] {
            assert_eq!(resolve(said, 1000), time, "{said:?}");
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
