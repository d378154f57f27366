//! The right to have transactions open: one script at a time.
//!
//! A script can open transactions in several databases, and another script could open them in a
//! different order: both would wait forever. Calls of clients have one transaction at a time, and
//! wait for nothing else during it.

use crate::limits::Deadline;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::Duration;

static IS_TAKEN: Mutex<bool> = Mutex::new(false);
static IS_FREE: Condvar = Condvar::new();

/// The interval at which a waiting call checks its deadline.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// The turn of a script. Its transactions share it, and the last one releases it.
pub(crate) struct TransactionTurn(());

impl TransactionTurn {
    /// Waits for the turn; returns `None` at the deadline.
    fn take(deadline: &Deadline) -> Option<TransactionTurn> {
        let mut is_taken = IS_TAKEN.lock();
        while *is_taken {
            let left = deadline.left();
            if left.is_zero() {
                return None;
            }
            IS_FREE.wait_for(&mut is_taken, left.min(WAIT_MAX));
        }
        *is_taken = true;
        Some(TransactionTurn(()))
    }
}

impl Drop for TransactionTurn {
    fn drop(&mut self) {
        *IS_TAKEN.lock() = false;
        IS_FREE.notify_one();
    }
}

/// The turn of an interpreter, while it has one.
#[derive(Default)]
pub(crate) struct TurnHolder(Mutex<Weak<TransactionTurn>>);

impl TurnHolder {
    /// Returns the current turn, or waits for a new one; returns `None` at the deadline.
    pub(crate) fn get(&self, deadline: &Deadline) -> Option<Arc<TransactionTurn>> {
        let mut own = self.0.lock();
        if let Some(turn) = own.upgrade() {
            return Some(turn);
        }
        let turn = Arc::new(TransactionTurn::take(deadline)?);
        *own = Arc::downgrade(&turn);
        Some(turn)
    }
}
