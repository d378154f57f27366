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

    /// Adds an operation to the queue of a key. If no task works on the key, returns the operation
    /// and the turn on the key; the caller must execute it and then those of [`KeyTurn::next`],
    /// until there are none.
    pub(crate) fn enter<'q>(&'q self, key: &[u8], item: T) -> Option<(T, KeyTurn<'q, T>)> {
        let mut shard = self.shard(key);
        match shard.get_mut(key) {
            Some(waiting) => {
                waiting.push(item);
                None
            }
            None => {
                shard.insert(key.to_vec(), Vec::new());
                Some((item, KeyTurn { queues: self, key: key.to_vec(), has_ended: false }))
            }
        }
    }
}

/// The work of one task on a key. If the task is dropped before its end, the waiting operations are
/// dropped, too: they would wait for ever, because each of them keeps the queues alive.
pub(crate) struct KeyTurn<'q, T> {
    queues: &'q KeyQueues<T>,
    key: Vec<u8>,
    has_ended: bool,
}

impl<T> KeyTurn<'_, T> {
    /// Takes the operations that wait for this key, in their order. If there are none, ends the
    /// work on the key.
    pub(crate) fn next(&mut self) -> Vec<T> {
        let mut shard = self.queues.shard(&self.key);
        let Some(waiting) = shard.get_mut(&self.key).filter(|_| !self.has_ended) else { return Vec::new() };
        if waiting.is_empty() {
            self.has_ended = true;
            shard.remove(&self.key);
            return Vec::new();
        }
        let rest = waiting.split_off(waiting.len().min(BATCH_MAX));
        std::mem::replace(waiting, rest)
    }
}

impl<T> Drop for KeyTurn<'_, T> {
    fn drop(&mut self) {
        if !self.has_ended {
            let waiting = self.queues.shard(&self.key).remove(&self.key);
            // Unlocked: operations are answered when they are dropped.
            drop(waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_operations_are_taken_together_in_order() {
        let queues = KeyQueues::new();
        let (first, mut turn) = queues.enter(b"a", 0).unwrap();
        let (other, mut other_turn) = queues.enter(b"b", 9).unwrap();
        assert_eq!((first, other), (0, 9));
        for number in 1..=300 {
            assert!(queues.enter(b"a", number).is_none());
        }
        assert!(queues.is_busy(b"a") && !queues.is_busy(b"c"));
        assert_eq!(turn.next(), (1..=256).collect::<Vec<_>>());
        assert_eq!(turn.next(), (257..=300).collect::<Vec<_>>());
        assert!(turn.next().is_empty() && !queues.is_busy(b"a"));
        let (next, _next_turn) = queues.enter(b"a", 5).unwrap();
        drop(turn);
        assert_eq!((next, queues.is_busy(b"a")), (5, true));
        assert!(other_turn.next().is_empty());
    }

    /// A database is closed while an operation on a key waits for the cluster.
    #[test]
    fn operations_of_an_abandoned_turn_are_dropped() {
        let (queues, item) = (KeyQueues::new(), std::sync::Arc::new(()));
        let (first, turn) = queues.enter(b"a", item.clone()).unwrap();
        for _ in 0..3 {
            assert!(queues.enter(b"a", item.clone()).is_none());
        }
        assert_eq!(std::sync::Arc::strong_count(&item), 5);
        drop((first, turn));
        assert_eq!((std::sync::Arc::strong_count(&item), queues.is_busy(b"a")), (1, false));
    }
}
