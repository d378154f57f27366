//! Implements S3-FIFO (Yang and others, SOSP 2023) with the parameters of the paper. A small queue
//! has a tenth of the capacity, a main queue has the rest, and a ghost queue has as many IDs as the
//! main queue has objects, or IDs of as many bytes.
//!
//! A new object enters the small queue, or the main queue if its ID is in the ghost queue. An
//! object that leaves the small queue moves to the main queue if it was used more than once;
//! otherwise its ID moves to the ghost queue. The main queue evicts an object whose use count is 0.
//! It inserts other objects again, with a count that is lower by one.

use super::policy::CachePolicy;
use super::queue::IdQueue;
use std::sync::Arc;

/// The maximum of the use count.
const USES_MAX: u8 = 3;
/// The number of uses that move an object from the small queue to the main queue.
const USES_TO_MAIN: u8 = 2;

/// A cache with the S3-FIFO policy.
pub(crate) struct S3FifoCache {
    small: IdQueue,
    main: IdQueue,
    ghosts: IdQueue,
    uses: Vec<u8>,
    sizes: Arc<[u32]>,
    capacity: u64,
    small_capacity: u64,
}

impl S3FifoCache {
    /// Creates a cache for objects of these sizes.
    pub(crate) fn new(capacity: u64, sizes: &Arc<[u32]>) -> S3FifoCache {
        S3FifoCache {
            small: IdQueue::new(sizes),
            main: IdQueue::new(sizes),
            ghosts: IdQueue::new(sizes),
            uses: vec![0; sizes.len()],
            sizes: Arc::clone(sizes),
            capacity,
            small_capacity: (capacity / 10).max(1),
        }
    }

    fn evict(&mut self) {
        let is_full = self.small.held() >= self.small_capacity || self.main.held() == 0;
        if !(is_full && self.evict_small()) {
            self.evict_main();
        }
    }

    /// Evicts an object from the small queue. Returns false if all its objects moved to the main
    /// queue.
    fn evict_small(&mut self) -> bool {
        while let Some(id) = self.small.pop() {
            if self.uses[id as usize] >= USES_TO_MAIN {
                self.uses[id as usize] = 0;
                self.main.push(id);
                // The objects that moved to the main queue may have brought the small queue within
                // its capacity.
                if self.small.held() < self.small_capacity {
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
        while self.ghosts.held() > self.capacity - self.small_capacity {
            self.ghosts.pop();
        }
    }
}

impl CachePolicy for S3FifoCache {
    fn request(&mut self, id: u32) -> bool {
        if self.small.holds(id) || self.main.holds(id) {
            let uses = &mut self.uses[id as usize];
            *uses = (*uses + 1).min(USES_MAX);
            return true;
        }
        let size = u64::from(self.sizes[id as usize]);
        if size > self.capacity {
            return false;
        }
        // This check comes before the eviction, because the eviction may drop the ghost.
        let is_remembered = self.ghosts.holds(id);
        if is_remembered {
            self.ghosts.remove(id);
        }
        while self.small.held() + self.main.held() + size > self.capacity {
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
    use crate::trace::policy::{equal_sizes, misses};

    fn content(queue: &IdQueue) -> Vec<u32> {
        std::iter::successors(queue.oldest(), |id| queue.newer_than(*id)).collect()
    }

    #[test]
    fn only_objects_used_twice_enter_the_main_queue() {
        // A capacity of 3 means one object in the small queue, two in the main queue, and two
        // ghosts.
        let mut cache = S3FifoCache::new(3, &equal_sizes(9));
        misses(&mut cache, &[0, 1, 2, 0, 0, 1]);
        assert_eq!(content(&cache.small), [0, 1, 2]);
        // 0 was used twice and moves to the main queue. 1 was used once and becomes a ghost.
        assert_eq!(misses(&mut cache, &[3]), [3]);
        assert_eq!((content(&cache.small), content(&cache.main)), (vec![2, 3], vec![0]));
        assert_eq!(content(&cache.ghosts), [1]);
        // 1 is a ghost, so it enters the main queue. 2 is evicted.
        assert_eq!(misses(&mut cache, &[1]), [1]);
        assert_eq!((content(&cache.small), content(&cache.main)), (vec![3], vec![0, 1]));
        assert_eq!(content(&cache.ghosts), [2]);
    }

    #[test]
    fn scan_passes_through_the_small_queue() {
        let mut cache = S3FifoCache::new(3, &equal_sizes(9));
        misses(&mut cache, &[0, 1, 0, 0, 1, 1, 2]);
        assert_eq!(misses(&mut cache, &[3, 4, 5, 6, 7, 0, 1]), [3, 4, 5, 6, 7]);
        assert_eq!(content(&cache.main), [0, 1]);
        assert_eq!(content(&cache.ghosts), [5, 6]);
    }

    #[test]
    fn main_queue_spends_one_use_per_round() {
        let mut cache = S3FifoCache::new(3, &equal_sizes(9));
        // 0, 1 and 2 all move to the main queue when 3 arrives. Each of them loses one use per
        // visit. 0 is the first to reach zero and is evicted.
        misses(&mut cache, &[0, 1, 2, 0, 0, 1, 1, 2, 2, 3]);
        assert_eq!((content(&cache.small), content(&cache.main)), (vec![3], vec![1, 2]));
        // An object that is evicted from the main queue does not become a ghost.
        assert!(content(&cache.ghosts).is_empty());
        misses(&mut cache, &[1, 3, 3, 4]);
        // 3 moves to the main queue, and the small queue becomes empty. The main queue evicts 2,
        // because 1 was used.
        assert_eq!((content(&cache.small), content(&cache.main)), (vec![4], vec![3, 1]));
    }
}
