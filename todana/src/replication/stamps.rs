//! Computes time stamps for the changes of a log, as the replication protocols of Kyoto Tycoon
//! (`bytes`) and Tokyo Tyrant (`changes`) need them.
//!
//! ```text
//! bytes    nanoseconds   second * 10^9 + (position - position of the second's first mark) * databases
//!                        + database number
//! changes  microseconds  second * 10^6 + number of changes since the second's first mark
//! ```
//!
//! Time stamps never decrease along the log. If the log is read again from an earlier second, the
//! same time stamps result. Those of the scheme `bytes` are never equal, even between databases. In
//! the scheme `changes`, the changes after the first million of a second share its last time stamp.

/// The number of time stamps of a second, in nanoseconds.
pub const STAMPS_PER_SECOND: u64 = 1_000_000_000;

/// Returns the first time stamp of a second, in nanoseconds.
pub fn first_of_second(second: u64) -> u64 {
    StampScheme::default().first_of_second(second)
}

/// The time stamps of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampScheme {
    /// Nanoseconds. The digits below the second count bytes of the log.
    Bytes {
        /// The number of the database.
        number: u64,
        /// The number of all databases, whose stamps differ.
        databases: u64,
    },
    /// Microseconds. The digits below the second count changes.
    Changes,
}

impl Default for StampScheme {
    fn default() -> Self {
        StampScheme::Bytes { number: 0, databases: 1 }
    }
}

impl StampScheme {
    /// Returns the number of time stamps of a second.
    pub const fn per_second(self) -> u64 {
        match self {
            StampScheme::Bytes { .. } => STAMPS_PER_SECOND,
            StampScheme::Changes => 1_000_000,
        }
    }

    /// Returns the first time stamp of a second.
    pub fn first_of_second(self, second: u64) -> u64 {
        second.saturating_mul(self.per_second())
    }

    /// Returns true if several changes may share this stamp.
    pub fn is_shared(self, stamp: u64) -> bool {
        self == StampScheme::Changes && stamp % self.per_second() == self.per_second() - 1
    }
}

/// Assigns time stamps to the entries of a log, in order.
#[derive(Clone, Copy, Debug)]
pub struct StampAssigner {
    scheme: StampScheme,
    /// The latest second of all marks so far.
    second: u64,
    /// The position of the first mark of this second.
    first: u64,
    /// The number of changes since that mark.
    changes: u64,
    last: u64,
}

impl StampAssigner {
    /// Creates the assigner for a log that is read from its beginning, or from an earlier second.
    pub fn new(scheme: StampScheme) -> StampAssigner {
        StampAssigner { scheme, second: 0, first: 0, changes: 0, last: 0 }
    }

    /// Notes the position and the time of a mark. If the time is earlier than before, because the
    /// clock was set back, it counts as the same second.
    pub fn mark(&mut self, position: u64, time_ms: u64) {
        let second = time_ms / 1000;
        if second > self.second {
            (self.second, self.first, self.changes) = (second, position, 0);
        }
    }

    /// Returns the time stamp of the next change, whose entry is at this position.
    pub fn at(&mut self, position: u64) -> u64 {
        let first_stamp = self.scheme.first_of_second(self.second);
        self.changes += 1;
        self.last = match self.scheme {
            StampScheme::Bytes { number, databases } => {
                let databases = databases.max(1).next_power_of_two();
                let offset = position.saturating_sub(self.first).saturating_mul(databases);
                let offset = offset.min(STAMPS_PER_SECOND - databases) + number;
                // If a second has more bytes than time stamps, it uses some of the next second.
                let next = if self.last == 0 { 0 } else { self.last.saturating_add(databases) };
                first_stamp.saturating_add(offset).max(next)
            }
            StampScheme::Changes => {
                first_stamp.saturating_add((self.changes - 1).min(self.scheme.per_second() - 1))
            }
        };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_do_not_depend_on_the_start() {
        let log = [(0, 7_000), (100, 8_000), (500, 8_000), (900, 6_000), (1_000, 9_000)];
        let stamps_from = |skipped: usize| {
            let mut stamps = StampAssigner::new(StampScheme::Bytes { number: 1, databases: 3 });
            let stamp = |&(position, time_ms): &(u64, u64)| {
                stamps.mark(position, time_ms);
                stamps.at(position + 25)
            };
            log[skipped..].iter().map(stamp).collect::<Vec<_>>()
        };
        let all = stamps_from(0);
        assert_eq!(
            all,
            [7_000_000_101, 8_000_000_101, 8_000_001_701, 8_000_003_301, 9_000_000_101],
            "four databases' worth each, the second's own first mark being the beginning"
        );
        assert_eq!(stamps_from(1), all[1..]);
        assert!(all.is_sorted());
    }

    #[test]
    fn crowded_second_uses_stamps_of_the_next() {
        let mut stamps = StampAssigner::new(StampScheme::default());
        stamps.mark(0, 5_000);
        let far = [STAMPS_PER_SECOND - 2, STAMPS_PER_SECOND + 7, 2 * STAMPS_PER_SECOND]
            .map(|position| stamps.at(position));
        assert_eq!(far, [6 * STAMPS_PER_SECOND - 2, 6 * STAMPS_PER_SECOND - 1, 6 * STAMPS_PER_SECOND]);
        stamps.mark(2 * STAMPS_PER_SECOND + 5, 6_000);
        assert_eq!(stamps.at(2 * STAMPS_PER_SECOND + 5), 6 * STAMPS_PER_SECOND + 1);
    }
    #[test]
    fn counted_changes_share_a_stamp() {
        let mut stamps = StampAssigner::new(StampScheme::Changes);
        stamps.mark(0, 5_000);
        let counted: Vec<u64> = (0..1_000_002).map(|position| stamps.at(position)).collect();
        assert_eq!(counted[..2], [5_000_000, 5_000_001]);
        assert_eq!(counted[999_998..], [5_999_998, 5_999_999, 5_999_999, 5_999_999]);
        assert!(StampScheme::Changes.is_shared(5_999_999) && !StampScheme::Changes.is_shared(5_999_998));
        stamps.mark(1_000_003, 6_000);
        assert_eq!([stamps.at(1_000_004), stamps.at(1_000_009)], [6_000_000, 6_000_001]);
    }
}
