//! SIEVE (Zhang and others, NSDI 2024): a queue in order of arrival and a hand that moves from old to new. What was
//! used since the hand last came by stays where it is; the first that was not goes.

use super::policy::Policy;
use super::queue::Queue;

/// SIEVE.
pub(crate) struct Sieve {
    queue: Queue,
    visited: Vec<bool>,
    /// Where the hand looks next; `None`: at the oldest.
    hand: Option<u32>,
    capacity: usize,
}

impl Sieve {
    /// For ids below `ids`.
    pub(crate) fn new(capacity: usize, ids: usize) -> Sieve {
        Sieve { queue: Queue::new(ids), visited: vec![false; ids], hand: None, capacity }
    }

    fn evict(&mut self) {
        while let Some(id) = self.hand.or(self.queue.oldest()) {
            self.hand = self.queue.newer_than(id);
            if !std::mem::take(&mut self.visited[id as usize]) {
                self.queue.remove(id);
                return;
            }
        }
    }
}

impl Policy for Sieve {
    fn request(&mut self, id: u32) -> bool {
        if self.queue.holds(id) {
            self.visited[id as usize] = true;
            return true;
        }
        if self.queue.len() == self.capacity {
            self.evict();
        }
        self.queue.push(id);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::policy::misses;

    #[test]
    fn the_hand_spares_what_was_used_and_goes_on_where_it_stopped() {
        // 0* 1 2: 3 clears 0 and puts out 1, the hand is at 2. 4 puts out 2. The hand is at 3, which was used: 5 clears
        // 3 and puts out 4. Left: 0 3 5.
        let missed = misses(&mut Sieve::new(3, 6), &[0, 1, 2, 0, 3, 4, 3, 5, 0, 3, 5]);
        assert_eq!(missed, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn behind_the_newest_the_hand_begins_anew_at_the_oldest() {
        // All are used: 3 clears them all, comes back to the oldest and puts out 0. 1 and 2 are clear now: 0 puts out 1.
        let missed = misses(&mut Sieve::new(3, 4), &[0, 1, 2, 0, 1, 2, 3, 0, 2, 3]);
        assert_eq!(missed, [0, 1, 2, 3, 0]);
    }
}
