//! S3-FIFO (Yang and others, SOSP 2023) with the paper's parameters: a small queue of a tenth, a main queue of the rest,
//! and a ghost queue that remembers as many ids as the main queue has room for.
//!
//! New objects go to the small queue, remembered ones to the main queue. From the small queue goes to main what was
//! used more than once since it came, the rest is remembered only. From the main queue goes what was not used since it
//! was last looked at; the rest goes round once more, one use less on its account.

use super::policy::Policy;
use super::queue::Queue;

/// Uses are counted up to this.
const USES_MAX: u8 = 3;
/// So many uses lead from the small queue to the main one.
const USES_TO_MAIN: u8 = 2;

/// S3-FIFO.
pub(crate) struct S3Fifo {
    small: Queue,
    main: Queue,
    ghosts: Queue,
    uses: Vec<u8>,
    capacity: usize,
    small_capacity: usize,
}

impl S3Fifo {
    /// For ids below `ids`.
    pub(crate) fn new(capacity: usize, ids: usize) -> S3Fifo {
        S3Fifo {
            small: Queue::new(ids),
            main: Queue::new(ids),
            ghosts: Queue::new(ids),
            uses: vec![0; ids],
            capacity,
            small_capacity: (capacity / 10).max(1),
        }
    }

    fn evict(&mut self) {
        let is_full = self.small.len() >= self.small_capacity || self.main.len() == 0;
        if !(is_full && self.evict_small()) {
            self.evict_main();
        }
    }

    /// False if all went to the main queue.
    fn evict_small(&mut self) -> bool {
        while let Some(id) = self.small.pop() {
            if self.uses[id as usize] >= USES_TO_MAIN {
                self.uses[id as usize] = 0;
                self.main.push(id);
                // What went to main may have left the small queue within its bounds.
                if self.small.len() < self.small_capacity {
                    return false;
                }
            } else {
                self.remember(id);
                return true;
            }
        }
        false
    }

    fn evict_main(&mut self) {
        while let Some(id) = self.main.pop() {
            let uses = &mut self.uses[id as usize];
            if *uses == 0 {
                return;
            }
            *uses -= 1;
            self.main.push(id);
        }
    }

    fn remember(&mut self, id: u32) {
        self.ghosts.push(id);
        if self.ghosts.len() > self.capacity - self.small_capacity {
            self.ghosts.pop();
        }
    }
}

impl Policy for S3Fifo {
    fn request(&mut self, id: u32) -> bool {
        if self.small.holds(id) || self.main.holds(id) {
            let uses = &mut self.uses[id as usize];
            *uses = (*uses + 1).min(USES_MAX);
            return true;
        }
        // Before the eviction, which may put out the ghost.
        let is_remembered = self.ghosts.holds(id);
        if is_remembered {
            self.ghosts.remove(id);
        }
        if self.small.len() + self.main.len() >= self.capacity {
            self.evict();
        }
        self.uses[id as usize] = 0;
        if is_remembered {
            self.main.push(id)
        } else {
            self.small.push(id)
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::policy::misses;

    fn content(queue: &Queue) -> Vec<u32> {
        std::iter::successors(queue.oldest(), |id| queue.newer_than(*id)).collect()
    }

    #[test]
    fn only_what_was_used_twice_goes_to_main_and_the_rest_is_remembered() {
        // Capacity 3: one in the small queue, two in main, two ghosts.
        let mut cache = S3Fifo::new(3, 9);
        misses(&mut cache, &[0, 1, 2, 0, 0, 1]);
        assert_eq!(content(&cache.small), [0, 1, 2]);
        // 0 was used twice: to main. 1 once: out, remembered.
        assert_eq!(misses(&mut cache, &[3]), [3]);
        assert_eq!((content(&cache.small), content(&cache.main)), (vec![2, 3], vec![0]));
        assert_eq!(content(&cache.ghosts), [1]);
        // 1 is remembered and comes to main; 2 leaves.
        assert_eq!(misses(&mut cache, &[1]), [1]);
        assert_eq!((content(&cache.small), content(&cache.main)), (vec![3], vec![0, 1]));
        assert_eq!(content(&cache.ghosts), [2]);
    }

    #[test]
    fn a_scan_passes_through_the_small_queue() {
        let mut cache = S3Fifo::new(3, 9);
        misses(&mut cache, &[0, 1, 0, 0, 1, 1, 2]);
        assert_eq!(misses(&mut cache, &[3, 4, 5, 6, 7, 0, 1]), [3, 4, 5, 6, 7]);
        assert_eq!(content(&cache.main), [0, 1]);
        assert_eq!(content(&cache.ghosts), [5, 6]);
    }

    #[test]
    fn in_main_each_use_is_worth_one_more_round() {
        let mut cache = S3Fifo::new(3, 9);
        // 0, 1 and 2 all go to main when 3 comes; the used ones lose a use each, and 0, first again without one, goes.
        misses(&mut cache, &[0, 1, 2, 0, 0, 1, 1, 2, 2, 3]);
        assert_eq!((content(&cache.small), content(&cache.main)), (vec![3], vec![1, 2]));
        // What leaves main is not remembered.
        assert!(content(&cache.ghosts).is_empty());
        misses(&mut cache, &[1, 3, 3, 4]);
        // 3 goes to main and the small queue is empty: main gives up 2, as 1 was used.
        assert_eq!((content(&cache.small), content(&cache.main)), (vec![4], vec![3, 1]));
    }
}
