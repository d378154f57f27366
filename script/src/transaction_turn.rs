//! Lets only one script at a time have open transactions.
//!
//! A script can open transactions in several databases, and another script could open them in
//! another order. Both would then wait forever. A call of a client has only one transaction at a
//! time and waits for nothing else meanwhile, so it needs no turn.

use crate::limits::Deadline;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::Duration;

static IS_TAKEN: Mutex<bool> = Mutex::new(false);
static IS_FREE: Condvar = Condvar::new();

/// The interval at which a waiting call checks its deadline.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// The right of a script to have transactions open. The transactions of the script share the turn,
/// and the last one releases it.
pub(crate) struct TransactionTurn(());

impl TransactionTurn {
    /// Waits for the turn. Returns `None` at the deadline.
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

/// The turn of an interpreter, if it has one.
#[derive(Default)]
pub(crate) struct TurnHolder(Mutex<Weak<TransactionTurn>>);

impl TurnHolder {
    /// Returns the current turn, or waits for a new turn. Returns `None` at the deadline.
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
