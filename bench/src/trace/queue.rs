//! Implements a queue of object IDs that supports removal from the middle: a doubly linked list in
//! arrays, indexed by ID.

use std::sync::Arc;

const NONE: u32 = u32::MAX;

/// A queue that holds each ID at most once.
pub(crate) struct IdQueue {
    /// The neighbour towards the newest end.
    newer: Vec<u32>,
    /// The neighbour towards the oldest end.
    older: Vec<u32>,
    holds: Vec<bool>,
    newest: u32,
    oldest: u32,
    sizes: Arc<[u32]>,
    /// The sum of the sizes of the objects that the queue holds.
    held: u64,
}

impl IdQueue {
    /// Creates an empty queue for objects of these sizes.
    pub(crate) fn new(sizes: &Arc<[u32]>) -> IdQueue {
        let ids = sizes.len();
        IdQueue {
            newer: vec![NONE; ids],
            older: vec![NONE; ids],
            holds: vec![false; ids],
            newest: NONE,
            oldest: NONE,
            sizes: Arc::clone(sizes),
            held: 0,
        }
    }

    /// Returns the sum of the sizes of all objects in the queue.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    pub(crate) fn holds(&self, id: u32) -> bool {
        self.holds[id as usize]
    }

    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Returns the ID that was added after `id`.
    pub(crate) fn newer_than(&self, id: u32) -> Option<u32> {
        let newer = self.newer[id as usize];
        (newer != NONE).then_some(newer)
    }

    /// Adds an ID as the newest. The queue must not hold it.
    pub(crate) fn push(&mut self, id: u32) {
        debug_assert!(!self.holds(id));
        self.older[id as usize] = self.newest;
        self.newer[id as usize] = NONE;
        match self.newest {
            NONE => self.oldest = id,
            newest => self.newer[newest as usize] = id,
        }
        self.newest = id;
        self.holds[id as usize] = true;
        self.held += u64::from(self.sizes[id as usize]);
    }

    /// Removes an ID. The queue must hold it.
    pub(crate) fn remove(&mut self, id: u32) {
        debug_assert!(self.holds(id));
        let (newer, older) = (self.newer[id as usize], self.older[id as usize]);
        match newer {
            NONE => self.newest = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
        self.holds[id as usize] = false;
        self.held -= u64::from(self.sizes[id as usize]);
    }

    /// Removes and returns the oldest ID.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let oldest = self.oldest()?;
        self.remove(oldest);
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_leave_in_order_after_removals() {
        for removed in 0..4 {
            let sizes: Arc<[u32]> = Arc::new([1, 10, 100, 1000]);
            let mut queue = IdQueue::new(&sizes);
            (0..4).for_each(|id| queue.push(id));
            queue.remove(removed);
            assert!(!queue.holds(removed));
            assert_eq!(queue.held(), 1111 - 10u64.pow(removed));
            queue.push(removed);
            let mut expected: Vec<u32> = (0..4).filter(|id| *id != removed).collect();
            expected.push(removed);
            let by_links: Vec<u32> =
                std::iter::successors(queue.oldest(), |id| queue.newer_than(*id)).collect();
            assert_eq!(by_links, expected);
            assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), expected);
            assert_eq!((queue.held(), queue.oldest()), (0, None));
        }
    }
}
