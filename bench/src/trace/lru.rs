//! Implements the best-known reference cache, which evicts the least recently used object.

use super::policy::CachePolicy;
use super::queue::IdQueue;
use std::sync::Arc;

/// A cache that evicts the least recently used object.
pub(crate) struct LruCache {
    queue: IdQueue,
    sizes: Arc<[u32]>,
    capacity: u64,
}

impl LruCache {
    /// Creates a cache for objects of these sizes.
    pub(crate) fn new(capacity: u64, sizes: &Arc<[u32]>) -> LruCache {
        LruCache { queue: IdQueue::new(sizes), sizes: Arc::clone(sizes), capacity }
    }
}

impl CachePolicy for LruCache {
    fn request(&mut self, id: u32) -> bool {
        let (hit, size) = (self.queue.holds(id), u64::from(self.sizes[id as usize]));
        if hit {
            self.queue.remove(id);
        } else if size > self.capacity {
            return false;
        }
        while self.queue.held() + size > self.capacity {
            self.queue.pop();
        }
        self.queue.push(id);
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::policy::{equal_sizes, misses};

    #[test]
    fn least_recently_used_object_is_evicted() {
        // After 0 1 2 and a hit on 0, the order from old to new is 1 2 0. Then 3 evicts 1, 1 evicts
        // 2, 0 hits, and 2 evicts 3.
        let missed = misses(&mut LruCache::new(3, &equal_sizes(4)), &[0, 1, 2, 0, 3, 1, 0, 2, 1, 3]);
        assert_eq!(missed, [0, 1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn loop_longer_than_the_capacity_never_hits() {
        let ids: Vec<u32> = (0..4).cycle().take(40).collect();
        assert_eq!(misses(&mut LruCache::new(3, &equal_sizes(4)), &ids).len(), 40);
        assert_eq!(misses(&mut LruCache::new(4, &equal_sizes(4)), &ids).len(), 4);
    }

    #[test]
    fn large_object_evicts_several_others() {
        let sizes: Arc<[u32]> = Arc::new([1, 1, 1, 3, 5]);
        // 3 evicts 0 and 1. 4 is larger than the cache, and evicts nothing.
        let missed = misses(&mut LruCache::new(4, &sizes), &[0, 1, 2, 2, 3, 2, 4, 3, 2, 0]);
        assert_eq!(missed, [0, 1, 2, 3, 4, 0]);
    }
}
