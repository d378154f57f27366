//! Implements the best-known reference cache, which evicts the least recently used object.

use super::policy::CachePolicy;
use super::queue::IdQueue;

/// A cache that evicts the least recently used object.
pub(crate) struct LruCache {
    queue: IdQueue,
    capacity: usize,
}

impl LruCache {
    /// Creates a cache for IDs below `ids`.
    pub(crate) fn new(capacity: usize, ids: usize) -> LruCache {
        LruCache { queue: IdQueue::new(ids), capacity }
    }
}

impl CachePolicy for LruCache {
    fn request(&mut self, id: u32) -> bool {
        let hit = self.queue.holds(id);
        if hit {
            self.queue.remove(id);
        } else if self.queue.len() == self.capacity {
            self.queue.pop();
        }
        self.queue.push(id);
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::policy::misses;

    #[test]
    fn least_recently_used_object_is_evicted() {
        // After 0 1 2 and a hit on 0, the order from old to new is 1 2 0. Then 3 evicts 1, 1 evicts
        // 2, 0 hits, and 2 evicts 3.
        let missed = misses(&mut LruCache::new(3, 4), &[0, 1, 2, 0, 3, 1, 0, 2, 1, 3]);
        assert_eq!(missed, [0, 1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn loop_longer_than_the_capacity_never_hits() {
        let ids: Vec<u32> = (0..4).cycle().take(40).collect();
        assert_eq!(misses(&mut LruCache::new(3, 4), &ids).len(), 40);
        assert_eq!(misses(&mut LruCache::new(4, 4), &ids).len(), 4);
    }
}
