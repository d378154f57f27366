//! Tokens, which are stored in column `c` of a row. Each attempt to write a record has another
//! token, so the token in the row shows which attempt has succeeded.
//!
//! ```text
//! token = version (58 bits) | touches (4 bits) | stale (1 bit) | token_sent (1 bit)
//! ```
//!
//! Clients see the version. It is the time in microseconds and seven random bits, so that versions
//! of several servers differ and newer ones are higher. A touch keeps the version and adds 1 to
//! `touches`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use todana_core::StaleMarks;

const MARK_BITS: u32 = 2;
const TOUCH_BITS: u32 = 4;
/// The versions below this number can be stored.
pub(crate) const VERSION_END: u64 = 1 << (64 - MARK_BITS - TOUCH_BITS);
const RANDOM_BITS: u32 = 7;
/// 2020-01-01 in microseconds since 1970. The versions of 51 bits end in 2091.
const EPOCH_US: u64 = 1_577_836_800_000_000;

/// The token of a row. It is 0 if the row was written by another program without a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowToken(u64);

impl RowToken {
    pub(crate) fn new(version: u64, touches: u8, marks: StaleMarks) -> RowToken {
        let touches = u64::from(touches) & ((1 << TOUCH_BITS) - 1);
        let marks = u64::from(marks.stale) << 1 | u64::from(marks.token_sent);
        RowToken(version << (MARK_BITS + TOUCH_BITS) | touches << MARK_BITS | marks)
    }

    pub(crate) fn from_column(column: i64) -> RowToken {
        RowToken(column as u64)
    }

    pub(crate) fn column(self) -> i64 {
        self.0 as i64
    }

    pub(crate) fn version(self) -> u64 {
        self.0 >> (MARK_BITS + TOUCH_BITS)
    }

    pub(crate) fn touches(self) -> u8 {
        (self.0 >> MARK_BITS) as u8 & ((1 << TOUCH_BITS) - 1)
    }

    pub(crate) fn marks(self) -> StaleMarks {
        StaleMarks { stale: self.0 & 2 != 0, token_sent: self.0 & 1 != 0 }
    }
}

/// Returns the time in microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Assigns times and versions, each of which is higher than the previous one.
#[derive(Debug, Default)]
pub(crate) struct AttemptClock {
    last_us: AtomicU64,
    last_version: AtomicU64,
}

impl AttemptClock {
    /// Returns the time of a write in microseconds. Cassandra keeps the write with the later time.
    pub(crate) fn timestamp_us(&self) -> i64 {
        raise(&self.last_us, now_us()) as i64
    }

    /// Returns the number of microseconds from `now_us` to the end of the millisecond in which the
    /// last write was made, or 0 if it has ended.
    pub(crate) fn until_next_ms(&self, now_us: u64) -> u64 {
        let next_us = (self.last_us.load(Ordering::Relaxed) / 1000 + 1) * 1000;
        next_us.saturating_sub(now_us)
    }

    /// Returns a new version.
    pub(crate) fn version(&self) -> u64 {
        let since = now_us().saturating_sub(EPOCH_US);
        let random = fastrand::u64(0..1 << RANDOM_BITS);
        raise(&self.last_version, (since << RANDOM_BITS | random) % VERSION_END)
    }
}

/// Sets `last` to `wanted`, or to `last + 1` if that is higher. Returns the new number.
fn raise(last: &AtomicU64, wanted: u64) -> u64 {
    let next = |last: u64| wanted.max(last + 1);
    let previous = last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    next(previous.unwrap_or_else(|last| last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_keeps_version_touches_and_marks() {
        for stale in [false, true] {
            for token_sent in [false, true] {
                let marks = StaleMarks { stale, token_sent };
                let token = RowToken::new(VERSION_END - 1, 15, marks);
                assert_eq!(RowToken::from_column(token.column()), token);
                assert_eq!((token.version(), token.touches(), token.marks()), (VERSION_END - 1, 15, marks));
            }
        }
        let token = RowToken::new(7, 16, StaleMarks::default());
        assert_eq!((token.version(), token.touches()), (7, 0));
    }

    #[test]
    fn conditional_write_waits_for_the_next_millisecond() {
        let clock = AttemptClock { last_us: AtomicU64::new(5_300), ..AttemptClock::default() };
        assert_eq!([5_301, 5_999, 6_000, 9_000].map(|now_us| clock.until_next_ms(now_us)), [699, 1, 0, 0]);
    }

    #[test]
    fn versions_and_times_always_rise() {
        let clock = AttemptClock::default();
        let mut last = (0, 0);
        for _ in 0..10_000 {
            let next = (clock.version(), clock.timestamp_us());
            assert!(next.0 > last.0 && next.1 > last.1 && next.0 < VERSION_END);
            last = next;
        }
    }
}
