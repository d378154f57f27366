//! The reference that everyone knows: out goes what was used longest ago.

use super::policy::Policy;
use super::queue::Queue;

/// Least recently used.
pub(crate) struct Lru {
    queue: Queue,
    capacity: usize,
}

impl Lru {
    /// For ids below `ids`.
    pub(crate) fn new(capacity: usize, ids: usize) -> Lru {
        Lru { queue: Queue::new(ids), capacity }
    }
}

impl Policy for Lru {
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
    fn what_was_used_longest_ago_goes() {
        // After 0 1 2 and the hit on 0: from old to new 1 2 0. 3 puts out 1; 1 puts out 2; 0 hits; 2 puts out 3.
        let missed = misses(&mut Lru::new(3, 4), &[0, 1, 2, 0, 3, 1, 0, 2, 1, 3]);
        assert_eq!(missed, [0, 1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn a_loop_one_longer_than_the_capacity_never_hits() {
        let ids: Vec<u32> = (0..4).cycle().take(40).collect();
        assert_eq!(misses(&mut Lru::new(3, 4), &ids).len(), 40);
        assert_eq!(misses(&mut Lru::new(4, 4), &ids).len(), 4);
    }
}
