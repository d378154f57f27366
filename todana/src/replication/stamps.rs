//! Time stamps in nanoseconds since 1970; below the second they count bytes of the log.
//!
//! ```text
//! second * 10^9 + (position - position of the second's first mark) * databases + database number
//! ```
//!
//! They increase along the log, those of several databases are never equal, and reading the log
//! again from an earlier second yields the same ones.

/// The number of time stamps of a second.
pub const STAMPS_PER_SECOND: u64 = 1_000_000_000;

/// Returns the first time stamp of a second.
pub fn first_of_second(second: u64) -> u64 {
    second.saturating_mul(STAMPS_PER_SECOND)
}

/// Assigns time stamps to the entries of a log, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct StampAssigner {
    number: u64,
    databases: u64,
    /// The latest second that a mark has stated.
    second: u64,
    /// The position of the first mark that stated it.
    first: u64,
    last: u64,
}

impl StampAssigner {
    /// For database `number` of `databases`.
    pub(super) fn new(number: u64, databases: u64) -> StampAssigner {
        StampAssigner {
            number,
            databases: databases.max(1).next_power_of_two(),
            second: 0,
            first: 0,
            last: 0,
        }
    }

    /// Records that a mark at this position states this time. An earlier time, as after a restart
    /// with the clock set back, counts as the same second as before.
    pub(super) fn mark(&mut self, position: u64, time_ms: u64) {
        let second = time_ms / 1000;
        if second > self.second {
            (self.second, self.first) = (second, position);
        }
    }

    /// Returns the time stamp of the entry at this position.
    pub(super) fn at(&mut self, position: u64) -> u64 {
        let offset = position.saturating_sub(self.first).saturating_mul(self.databases);
        let offset = offset.min(STAMPS_PER_SECOND - self.databases) + self.number;
        // A second with more bytes than time stamps uses some of the next second.
        let next = if self.last == 0 { 0 } else { self.last.saturating_add(self.databases) };
        self.last = first_of_second(self.second).saturating_add(offset).max(next);
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
            let mut stamps = StampAssigner::new(1, 3);
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
        let mut stamps = StampAssigner::new(0, 1);
        stamps.mark(0, 5_000);
        let far = [STAMPS_PER_SECOND - 2, STAMPS_PER_SECOND + 7, 2 * STAMPS_PER_SECOND]
            .map(|position| stamps.at(position));
        assert_eq!(far, [6 * STAMPS_PER_SECOND - 2, 6 * STAMPS_PER_SECOND - 1, 6 * STAMPS_PER_SECOND]);
        stamps.mark(2 * STAMPS_PER_SECOND + 5, 6_000);
        assert_eq!(stamps.at(2 * STAMPS_PER_SECOND + 5), 6 * STAMPS_PER_SECOND + 1);
    }
}
