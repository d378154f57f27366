//! Implements SIEVE (Zhang and others, NSDI 2024): a queue in the order of arrival, and a hand that
//! moves from old objects to new objects. The hand passes objects that were used since its last
//! visit, and evicts the first object that was not.

use super::policy::CachePolicy;
use super::queue::IdQueue;
use std::sync::Arc;

/// A cache with the SIEVE policy.
pub(crate) struct SieveCache {
    queue: IdQueue,
    visited: Vec<bool>,
    /// The next object that the hand visits. `None` means the oldest object.
    hand: Option<u32>,
    sizes: Arc<[u32]>,
    capacity: u64,
}

impl SieveCache {
    /// Creates a cache for objects of these sizes.
    pub(crate) fn new(capacity: u64, sizes: &Arc<[u32]>) -> SieveCache {
        SieveCache {
            queue: IdQueue::new(sizes),
            visited: vec![false; sizes.len()],
            hand: None,
            sizes: Arc::clone(sizes),
            capacity,
        }
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

impl CachePolicy for SieveCache {
    fn request(&mut self, id: u32) -> bool {
        if self.queue.holds(id) {
            self.visited[id as usize] = true;
            return true;
        }
        let size = u64::from(self.sizes[id as usize]);
        if size > self.capacity {
            return false;
        }
        while self.queue.held() + size > self.capacity {
            self.evict();
        }
        self.queue.push(id);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::policy::{equal_sizes, misses};

    #[test]
    fn hand_spares_used_objects_and_keeps_its_position() {
        // 0 was used. 3 clears the mark of 0 and evicts 1, and the hand is at 2. 4 evicts 2, and
        // the hand is at 3, which was used. 5 clears the mark of 3 and evicts 4. The cache holds 0
        // 3 5.
        let missed = misses(&mut SieveCache::new(3, &equal_sizes(6)), &[0, 1, 2, 0, 3, 4, 3, 5, 0, 3, 5]);
        assert_eq!(missed, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn hand_wraps_from_newest_to_oldest() {
        // All objects were used. 3 clears all marks, returns to the oldest object and evicts 0. Now
        // 1 and 2 have no mark, so 0 evicts 1.
        let missed = misses(&mut SieveCache::new(3, &equal_sizes(4)), &[0, 1, 2, 0, 1, 2, 3, 0, 2, 3]);
        assert_eq!(missed, [0, 1, 2, 3, 0]);
    }
}
