//! A record as a row: columns `v` (value), `f` (flags), `c` (token), `e` (second of expiry, if the
//! row has a time to live), and the row's own time to live.

use crate::token::RowToken;
use todana_core::{Attributes, Expiry, Record, RefusalReason, Ttl, UnixSeconds};

/// Cassandra's longest time to live: 20 years.
const TTL_MAX_S: u64 = 20 * 365 * 24 * 3600;
/// The difference up to which the second in column `e` and the row's time to live are the same.
const EXPIRY_TOLERANCE_S: u64 = 2;

/// A row that was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredRow {
    pub(crate) value: Vec<u8>,
    pub(crate) flags: u32,
    pub(crate) token: RowToken,
    pub(crate) expiry: Expiry,
}

impl StoredRow {
    /// Creates the row from its columns, as they are read at the time `now`. Returns `None` if the
    /// row has no value.
    pub(crate) fn new(
        (value, flags, token, expiry_s, ttl_s): RowColumns,
        now: UnixSeconds,
    ) -> Option<StoredRow> {
        let expiry = ttl_s.map_or(Expiry::Never, |left| {
            let by_ttl = now.0 + left.max(0) as u64;
            // The time to live counts from the write, on another clock. The second in the row does
            // not drift when the row is rewritten.
            let stored = expiry_s.map(|at| at.max(0) as u64);
            // A time to live of more than 20 years was shortened.
            let is_beyond = |at: u64| at > now.0 + TTL_MAX_S;
            let at = stored.filter(|at| at.abs_diff(by_ttl) <= EXPIRY_TOLERANCE_S || is_beyond(*at));
            Expiry::At(UnixSeconds(at.unwrap_or(by_ttl).max(now.0 + 1)))
        });
        Some(StoredRow {
            value: value?,
            flags: flags.unwrap_or(0) as u32,
            token: RowToken::from_column(token.unwrap_or(0)),
            expiry,
        })
    }

    pub(crate) fn attributes(&self) -> Attributes {
        Attributes {
            flags: self.flags,
            expiry: self.expiry,
            version: self.token.version(),
            marks: self.token.marks(),
            ..Attributes::default()
        }
    }

    pub(crate) fn record(&self) -> Record<'_> {
        Record::new(&self.value, self.attributes())
    }
}

/// The columns `v`, `f`, `c`, `e` and `TTL(v)`.
pub(crate) type RowColumns = (Option<Vec<u8>>, Option<i32>, Option<i64>, Option<i64>, Option<i32>);

/// The time to live of a row that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowLifetime {
    /// The row has no time to live.
    Unlimited,
    /// The row has expired already, so it is removed in place of being written.
    Over,
    /// The row lives for `ttl_s` seconds, until the second `at`.
    Until { ttl_s: i32, at: i64 },
}

impl RowLifetime {
    pub(crate) fn of(expiry: Expiry, now: UnixSeconds) -> RowLifetime {
        let Some(at) = expiry.at() else { return RowLifetime::Unlimited };
        match at.0.saturating_sub(now.0) {
            0 => RowLifetime::Over,
            left => {
                RowLifetime::Until { ttl_s: left.min(TTL_MAX_S) as i32, at: at.0.min(i64::MAX as u64) as i64 }
            }
        }
    }

    /// Returns the lifetime that a client asks for. Fails for a sliding expiry, for which each read
    /// would have to write.
    pub(crate) fn asked(ttl: Ttl, now: UnixSeconds) -> Result<RowLifetime, RefusalReason> {
        Ok(RowLifetime::of(
            match ttl {
                Ttl::Never => Expiry::Never,
                Ttl::Expired => return Ok(RowLifetime::Over),
                Ttl::Seconds(seconds) => Expiry::At(UnixSeconds(now.0 + u64::from(seconds))),
                Ttl::At(at) => Expiry::At(UnixSeconds(at)),
                Ttl::Sliding(_) => return Err(RefusalReason::NotOnCluster),
            },
            now,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_000_000);

    fn expiry(stored: Option<i64>, left: Option<i32>) -> Expiry {
        StoredRow::new((Some(vec![]), None, None, stored, left), NOW).unwrap().expiry
    }

    #[test]
    fn stored_second_of_expiry_does_not_drift() {
        let at = |second| Expiry::At(UnixSeconds(second));
        assert_eq!(expiry(Some(1_000_060), Some(60)), at(1_000_060));
        assert_eq!(expiry(Some(1_000_060), Some(59)), at(1_000_060));
        assert_eq!(expiry(Some(1_000_060), Some(62)), at(1_000_060));
        // Another program has written the row without the column, or after it.
        assert_eq!(expiry(Some(1_000_060), Some(500)), at(1_000_500));
        assert_eq!(expiry(None, Some(5)), at(1_000_005));
        // The time to live was longer than Cassandra's longest.
        assert_eq!(expiry(Some(4_000_000_000), Some(TTL_MAX_S as i32)), at(4_000_000_000));
        // The second remains from an earlier record with a time to live.
        assert_eq!(expiry(Some(1_000_060), None), Expiry::Never);
    }

    #[test]
    fn lifetimes_are_whole_seconds_up_to_twenty_years() {
        let asked = |ttl| RowLifetime::asked(ttl, NOW);
        assert_eq!(asked(Ttl::Never), Ok(RowLifetime::Unlimited));
        assert_eq!(asked(Ttl::Expired), Ok(RowLifetime::Over));
        assert_eq!(asked(Ttl::Seconds(7)), Ok(RowLifetime::Until { ttl_s: 7, at: 1_000_007 }));
        assert_eq!(asked(Ttl::At(1_000_001)), Ok(RowLifetime::Until { ttl_s: 1, at: 1_000_001 }));
        assert_eq!(asked(Ttl::At(999_999)), Ok(RowLifetime::Over));
        let far = Ok(RowLifetime::Until { ttl_s: TTL_MAX_S as i32, at: i64::MAX });
        assert_eq!(asked(Ttl::At(u64::MAX)), far);
        assert_eq!(asked(Ttl::Sliding(9)), Err(RefusalReason::NotOnCluster));
    }
}
