//! Locks of keys. Each key has one of a few slots, and a lock excludes all keys of its slot.
//!
//! Calls of scripts take the locks that their clients ask for, and wait on their own threads.
//! memcached's commands that read a record before they change it take the lock of their key;
//! because no worker waits, the connection does.
//!
//! Invariant: a connection that waits is woken after the slot was unlocked, and tries again.

use crate::session::wake::{WaitingConnections, WakeHandle, WakeTicket};
use parking_lot::{Mutex, MutexGuard};

/// The number of slots, as in the original.
const SLOTS: usize = 31;

/// The slots of all keys.
pub(crate) struct KeySlots([KeySlot; SLOTS]);

#[derive(Default)]
struct KeySlot {
    lock: Mutex<()>,
    waiting: Mutex<Vec<WakeHandle>>,
}

/// A locked slot, which is unlocked on drop.
pub(crate) struct SlotLock<'s> {
    slot: &'s KeySlot,
    guard: Option<MutexGuard<'s, ()>>,
}

impl Drop for SlotLock<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let waiting = std::mem::take(&mut *self.slot.waiting.lock());
        waiting.iter().for_each(WakeHandle::wake);
    }
}

impl Default for KeySlots {
    fn default() -> KeySlots {
        KeySlots(std::array::from_fn(|_| KeySlot::default()))
    }
}

impl KeySlots {
    fn slot(&self, key: &[u8]) -> &KeySlot {
        let hash = key
            .iter()
            .fold(19_780_211_usize, |hash, &byte| hash.wrapping_mul(37).wrapping_add(usize::from(byte)));
        &self.0[hash % SLOTS]
    }

    /// Waits until the slot of a key is free, and locks it.
    pub(super) fn lock(&self, key: &[u8]) -> SlotLock<'_> {
        let slot = self.slot(key);
        SlotLock { slot, guard: Some(slot.lock.lock()) }
    }

    /// Waits until each slot is free, and locks all.
    pub(super) fn lock_all(&self) -> Vec<SlotLock<'_>> {
        self.0.iter().map(|slot| SlotLock { slot, guard: Some(slot.lock.lock()) }).collect()
    }

    /// Locks the slot of a key if it is free. Otherwise lets the connection that is being served
    /// wait, and returns its ticket.
    pub(crate) fn try_lock(
        &self,
        key: &[u8],
        waits: &mut WaitingConnections,
    ) -> Result<SlotLock<'_>, WakeTicket> {
        let slot = self.slot(key);
        // The list is locked before the attempt, so that an unlock after it finds the connection.
        let mut waiting = slot.waiting.lock();
        if let Some(guard) = slot.lock.try_lock() {
            return Ok(SlotLock { slot, guard: Some(guard) });
        }
        let handle = waits.enter_new();
        let ticket = handle.ticket;
        waiting.push(handle);
        Err(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::wake::WakeQueues;
    use std::sync::Arc;

    #[test]
    fn unlock_wakes_the_connections_that_wait() {
        let mut waits = WaitingConnections::new(Arc::new(WakeQueues::new(1)), 0);
        let slots = KeySlots::default();
        // A key and its slot's other keys: one more step of the last byte changes the slot.
        let held = slots.lock(b"a");
        assert!(slots.try_lock(b"b", &mut waits).is_ok());
        waits.connection = 7;
        let ticket = slots.try_lock(b"a", &mut waits).err().unwrap();
        assert_eq!(waits.take_ready(), []);
        drop(held);
        assert_eq!(waits.take_ready(), [(ticket, 7)]);
        waits.leave(ticket);
        assert!(slots.try_lock(b"a", &mut waits).is_ok());
        let all = slots.lock_all();
        let ticket = slots.try_lock(b"b", &mut waits).err().unwrap();
        drop(all);
        assert_eq!(waits.take_ready(), [(ticket, 7)]);
    }
}
