//! Converts times to live to the numbers of memcached.

use super::NotSpoken;
use todana_core::Ttl;

/// The longest time that is relative to now. A greater number is a Unix time.
const RELATIVE_MAX_S: u32 = 60 * 60 * 24 * 30;

/// Returns the number of the text and meta dialects, which has 32 bits and a sign.
pub(super) fn exptime(ttl: Ttl) -> Result<i32, NotSpoken> {
    // memcached would take a time after 2038 for a negative number.
    number_of(ttl, -1, i32::MAX as u32).map(|number| number as i32)
}

/// Returns the number of the binary dialect, which has 32 bits and no sign.
pub(super) fn packet_exptime(ttl: Ttl) -> Result<u32, NotSpoken> {
    // Without negative numbers, an expired record has a time that has passed long ago. The greatest
    // number has another meaning in `incr` and `decr`.
    number_of(ttl, i64::from(RELATIVE_MAX_S) + 1, u32::MAX - 1).map(|number| number as u32)
}

/// Returns the number of a time to live. `expired` is the number of one that is over.
fn number_of(ttl: Ttl, expired: i64, max: u32) -> Result<i64, NotSpoken> {
    match ttl {
        Ttl::Never => Ok(0),
        Ttl::Expired | Ttl::Seconds(0) => Ok(expired),
        Ttl::Seconds(seconds) if seconds <= RELATIVE_MAX_S => Ok(seconds.into()),
        Ttl::Seconds(_) => Err(NotSpoken::LongSpan),
        // A time in January 1970 would count as a number of seconds from now.
        Ttl::At(at) if at <= RELATIVE_MAX_S.into() => Ok(expired),
        Ttl::At(at) => Ok(u32::try_from(at).unwrap_or(max).min(max).into()),
        Ttl::Sliding(_) => Err(NotSpoken::Flag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_becomes_the_number_of_each_dialect() {
        let cases: [(Ttl, _, _); _] = [
            (Ttl::Never, Ok(0), Ok(0)),
            (Ttl::Expired, Ok(-1), Ok(2_592_001)),
            (Ttl::Seconds(0), Ok(-1), Ok(2_592_001)),
            (Ttl::Seconds(1), Ok(1), Ok(1)),
            (Ttl::Seconds(2_592_000), Ok(2_592_000), Ok(2_592_000)),
            (Ttl::Seconds(2_592_001), Err(NotSpoken::LongSpan), Err(NotSpoken::LongSpan)),
            (Ttl::At(0), Ok(-1), Ok(2_592_001)),
            (Ttl::At(2_592_000), Ok(-1), Ok(2_592_001)),
            (Ttl::At(2_592_001), Ok(2_592_001), Ok(2_592_001)),
            (Ttl::At(2_000_000_000), Ok(2_000_000_000), Ok(2_000_000_000)),
            (Ttl::At(3_000_000_000), Ok(i32::MAX), Ok(3_000_000_000)),
            (Ttl::At(u64::from(u32::MAX)), Ok(i32::MAX), Ok(u32::MAX - 1)),
            (Ttl::At(u64::MAX), Ok(i32::MAX), Ok(u32::MAX - 1)),
            (Ttl::Sliding(5), Err(NotSpoken::Flag), Err(NotSpoken::Flag)),
        ];
        for (ttl, text, packet) in cases {
            assert_eq!((exptime(ttl), packet_exptime(ttl)), (text, packet), "{ttl:?}");
        }
    }
}
