//! The operations that wait for their turn on the same key. While one task works on a key, further
//! operations on that key wait, and the task then executes all of them with one write.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;
/// The most operations that are executed with one write.
const BATCH_MAX: usize = 256;

/// The waiting operations of one part of the keys.
type QueueShard<T> = HashMap<Vec<u8>, Vec<T>>;

/// The queues of all keys on which a task works.
pub(crate) struct KeyQueues<T> {
    shards: Vec<Mutex<QueueShard<T>>>,
    hasher: RandomState,
}

impl<T> KeyQueues<T> {
    pub(crate) fn new() -> KeyQueues<T> {
        KeyQueues { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, QueueShard<T>> {
        let shard = &self.shards[self.hasher.hash_one(key) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a task works on this key.
    pub(crate) fn is_busy(&self, key: &[u8]) -> bool {
        self.shard(key).contains_key(key)
    }

    /// Adds an operation to the queue of a key. If no task works on the key, returns the operation;
    /// the caller must execute it and then call `next` until that returns nothing.
    pub(crate) fn enter(&self, key: &[u8], item: T) -> Option<T> {
        let mut shard = self.shard(key);
        match shard.get_mut(key) {
            Some(waiting) => {
                waiting.push(item);
                None
            }
            None => {
                shard.insert(key.to_vec(), Vec::new());
                Some(item)
            }
        }
    }

    /// Takes the operations that wait for this key, in their order. If there are none, ends the
    /// work on the key.
    pub(crate) fn next(&self, key: &[u8]) -> Vec<T> {
        let mut shard = self.shard(key);
        let Some(waiting) = shard.get_mut(key) else { return Vec::new() };
        if waiting.is_empty() {
            shard.remove(key);
            return Vec::new();
        }
        let rest = waiting.split_off(waiting.len().min(BATCH_MAX));
        std::mem::replace(waiting, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_operations_are_taken_together_in_order() {
        let queues = KeyQueues::new();
        assert_eq!(queues.enter(b"a", 0), Some(0));
        assert_eq!(queues.enter(b"b", 9), Some(9));
        for number in 1..=300 {
            assert_eq!(queues.enter(b"a", number), None);
        }
        assert!(queues.is_busy(b"a") && !queues.is_busy(b"c"));
        assert_eq!(queues.next(b"a"), (1..=256).collect::<Vec<_>>());
        assert_eq!(queues.next(b"a"), (257..=300).collect::<Vec<_>>());
        assert!(queues.next(b"a").is_empty());
        assert_eq!((queues.is_busy(b"a"), queues.enter(b"a", 5)), (false, Some(5)));
        assert!(queues.next(b"b").is_empty());
    }
}
