//! Measures how long requests take in the server: from the moment at which a worker learns of a
//! request until its reply is written. The time for which a reply waits for the disk or for other
//! servers is not included.
//!
//! Only a sample of the wake-ups of a worker is measured, because reading the clock twice takes a
//! hundredth of the time of a request.

use super::worker_counter::WorkerCounter;
use std::time::Duration;

/// One wake-up of this number is measured.
const MEASURED_EVERY: u32 = 16;
/// The times below this power of two, in nanoseconds, are in the first group.
const FIRST_BITS: u32 = 10;
/// Each doubling has four groups, so a percentile is exact to a quarter. The last group begins at
/// 15 seconds.
const GROUPS: usize = 96;

/// The times of one worker, which alone writes them.
pub(crate) struct TurnTimes([WorkerCounter; GROUPS]);

impl Default for TurnTimes {
    fn default() -> Self {
        TurnTimes(std::array::from_fn(|_| WorkerCounter::default()))
    }
}

impl TurnTimes {
    pub(crate) fn note(&self, time: Duration) {
        self.0[group(time)].add(1);
    }
}

/// Returns true if the times of this wake-up are measured, by the number of earlier ones.
pub(crate) fn is_measured(wake_up: u32) -> bool {
    wake_up.is_multiple_of(MEASURED_EVERY)
}

fn group(time: Duration) -> usize {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let bits = ns.max(1).ilog2();
    let Some(doubling) = bits.checked_sub(FIRST_BITS) else { return 0 };
    let quarter = ns >> (bits - 2) & 3;
    (doubling as usize * 4 + quarter as usize).min(GROUPS - 1)
}

/// The sums over all workers.
#[derive(Clone)]
pub(crate) struct TurnTimeSums([u64; GROUPS]);

impl TurnTimeSums {
    pub(crate) fn of<'t>(all: impl Iterator<Item = &'t TurnTimes>) -> TurnTimeSums {
        let mut sums = [0; GROUPS];
        for times in all {
            sums.iter_mut().zip(&times.0).for_each(|(sum, count)| *sum += count.get());
        }
        TurnTimeSums(sums)
    }

    /// Returns the times that were noted after the earlier sums.
    pub(crate) fn since(&self, earlier: &TurnTimeSums) -> TurnTimeSums {
        TurnTimeSums(std::array::from_fn(|group| self.0[group].wrapping_sub(earlier.0[group])))
    }

    /// Returns the upper bound of the times of this share, in thousandths; `None` without times.
    pub(crate) fn quantile(&self, thousandths: u64) -> Option<Duration> {
        let count: u64 = self.0.iter().sum();
        let wanted = (count * thousandths).div_ceil(1000).max(1);
        let mut before = 0;
        let group = self.0.iter().position(|of_group| {
            before += of_group;
            before >= wanted
        })?;
        let doubling = (1 << FIRST_BITS) << (group / 4);
        Some(Duration::from_nanos(doubling / 4 * (group as u64 % 4 + 5)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_a_quarter() {
        let (one, other) = (TurnTimes::default(), TurnTimes::default());
        let sums = || TurnTimeSums::of([&one, &other].into_iter());
        assert_eq!(sums().quantile(500), None);
        (0..990).for_each(|_| one.note(Duration::from_micros(20)));
        let earlier = sums();
        (0..10).for_each(|_| other.note(Duration::from_millis(3)));
        let within = |found: Option<Duration>, real: Duration| {
            let found = found.unwrap();
            assert!(found >= real && found <= real * 5 / 4, "{found:?} {real:?}");
        };
        within(sums().quantile(500), Duration::from_micros(20));
        within(sums().quantile(990), Duration::from_micros(20));
        within(sums().quantile(991), Duration::from_millis(3));
        within(sums().since(&earlier).quantile(1), Duration::from_millis(3));
    }

    #[test]
    fn all_times_have_a_group() {
        for (ns, expected) in [(0, 0), (1023, 0), (1024, 0), (1280, 1), (2047, 3), (2048, 4), (u64::MAX, 95)]
        {
            assert_eq!(group(Duration::from_nanos(ns)), expected, "{ns}");
        }
    }
}
