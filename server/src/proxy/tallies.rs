//! Counters and times of which each worker has its own copy, so that counting needs no lock and no
//! locked instruction. Readers add the copies up.

use crate::observation::worker_counter::WorkerCounter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The upper bounds of the groups of times, in microseconds. Longer times are in one more group.
pub(crate) const TIME_BOUNDS_US: [u32; 16] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000,
];
const GROUPS: usize = TIME_BOUNDS_US.len() + 1;

/// The counters of one worker, and the times that it has measured.
#[repr(align(128))]
pub(crate) struct Tally<const N: usize> {
    counts: [WorkerCounter; N],
    /// The number of times in each group.
    groups: [WorkerCounter; GROUPS],
    time_sum_us: WorkerCounter,
}

impl<const N: usize> Tally<N> {
    fn new() -> Tally<N> {
        Tally {
            counts: std::array::from_fn(|_| WorkerCounter::default()),
            groups: Default::default(),
            time_sum_us: WorkerCounter::default(),
        }
    }

    /// Adds to the counter with this number.
    #[inline]
    pub(crate) fn add(&self, number: usize, by: u64) {
        self.counts[number].add(by);
    }

    /// Notes that `count` requests have each taken this time.
    #[inline]
    pub(crate) fn note_times(&self, time_us: u32, count: u64) {
        let group = TIME_BOUNDS_US.partition_point(|bound| *bound < time_us);
        self.groups[group].add(count);
        self.time_sum_us.add(u64::from(time_us) * count);
    }

    fn sums(&self) -> TallySums<N> {
        TallySums {
            counts: self.counts.each_ref().map(WorkerCounter::get),
            times: TimeSums {
                groups: self.groups.each_ref().map(WorkerCounter::get),
                sum_us: self.time_sum_us.get(),
            },
        }
    }
}

/// The copies of all workers.
pub(crate) struct Tallies<const N: usize>(Mutex<TallyCopies<N>>);

struct TallyCopies<const N: usize> {
    workers: Vec<Arc<Tally<N>>>,
    /// The sums at the last reset.
    at_reset: TallySums<N>,
}

impl<const N: usize> Default for Tallies<N> {
    fn default() -> Self {
        Tallies(Mutex::new(TallyCopies { workers: Vec::new(), at_reset: TallySums::default() }))
    }
}

impl<const N: usize> Tallies<N> {
    /// Adds the copy of a worker, which no other thread may write.
    pub(crate) fn join(&self) -> Arc<Tally<N>> {
        let tally = Arc::new(Tally::new());
        self.lock().workers.push(Arc::clone(&tally));
        tally
    }

    /// Returns the sums since the last reset.
    pub(crate) fn sums(&self) -> TallySums<N> {
        let copies = self.lock();
        let mut sums = copies.sums();
        sums.combine(&copies.at_reset, u64::saturating_sub);
        sums
    }

    /// Sets the sums to 0.
    pub(crate) fn reset(&self) {
        let mut copies = self.lock();
        copies.at_reset = copies.sums();
    }

    /// Returns the sum of a counter since the start. A difference of two counters must not depend
    /// on resets.
    pub(crate) fn total(&self, number: usize) -> u64 {
        self.lock().workers.iter().map(|tally| tally.counts[number].get()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, TallyCopies<N>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<const N: usize> TallyCopies<N> {
    fn sums(&self) -> TallySums<N> {
        let mut sums = TallySums::default();
        self.workers.iter().for_each(|tally| sums.combine(&tally.sums(), u64::wrapping_add));
        sums
    }
}

/// The sums of all copies.
#[derive(Clone, Debug)]
pub(crate) struct TallySums<const N: usize> {
    pub(crate) counts: [u64; N],
    pub(crate) times: TimeSums,
}

impl<const N: usize> Default for TallySums<N> {
    fn default() -> Self {
        TallySums { counts: [0; N], times: TimeSums::default() }
    }
}

impl<const N: usize> TallySums<N> {
    fn combine(&mut self, other: &TallySums<N>, combine: fn(u64, u64) -> u64) {
        let counts = self.counts.iter_mut().zip(&other.counts);
        let groups = self.times.groups.iter_mut().zip(&other.times.groups);
        counts.chain(groups).for_each(|(one, other)| *one = combine(*one, *other));
        self.times.sum_us = combine(self.times.sum_us, other.times.sum_us);
    }
}

/// Times in groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimeSums {
    groups: [u64; GROUPS],
    sum_us: u64,
}

impl TimeSums {
    /// Returns the number of times.
    pub(crate) fn count(&self) -> u64 {
        self.groups.iter().sum()
    }

    /// Returns the sum of the times.
    pub(crate) fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us)
    }

    /// Returns each bound with the number of times up to it.
    pub(crate) fn up_to_bounds(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut count = 0;
        TIME_BOUNDS_US.iter().zip(&self.groups).map(move |(bound, group)| {
            count += group;
            (Duration::from_micros(u64::from(*bound)), count)
        })
    }

    /// Returns the time that this share of all times, in percent, does not exceed. It is estimated
    /// within its group. `None` means that there are no times.
    pub(crate) fn percentile(&self, percent: u64) -> Option<Duration> {
        let wanted = (self.count() * percent).div_ceil(100);
        let (mut before, mut lower_us) = (0, 0);
        for (group, upper) in self.groups.iter().zip(TIME_BOUNDS_US.iter().chain(TIME_BOUNDS_US.last())) {
            let upper_us = u64::from(*upper);
            if *group > 0 && before + group >= wanted {
                let share = (upper_us - lower_us) * (wanted - before) / group;
                return Some(Duration::from_micros(lower_us + share));
            }
            (before, lower_us) = (before + group, upper_us);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_add_up_until_a_reset() {
        let tallies = Tallies::<2>::default();
        let (one, other) = (tallies.join(), tallies.join());
        one.add(0, 3);
        other.add(0, 4);
        other.add(1, 1);
        one.note_times(50, 2);
        other.note_times(51, 1);
        let sums = tallies.sums();
        assert_eq!((sums.counts, sums.times.count(), sums.times.sum_us), ([7, 1], 3, 151));
        let bounds: Vec<_> = sums.times.up_to_bounds().take(2).map(|(_, count)| count).collect();
        assert_eq!(bounds, [2, 3]);
        tallies.reset();
        one.add(1, 5);
        assert_eq!((tallies.sums().counts, tallies.total(0)), ([0, 5], 7));
    }

    #[test]
    fn percentiles_lie_in_the_group_of_their_time() {
        let tallies = Tallies::<0>::default();
        let tally = tallies.join();
        assert_eq!(tallies.sums().times.percentile(50), None);
        tally.note_times(70, 98);
        tally.note_times(1_500, 1);
        tally.note_times(u32::MAX, 1);
        let times = tallies.sums().times;
        let micros = [1, 50, 98, 99, 100].map(|percent| times.percentile(percent).unwrap().as_micros());
        assert_eq!(micros, [50, 75, 100, 2_000, 5_000_000]);
    }
}
