//! Who may have transactions open: one script at a time.
//!
//! A script may have them open in several databases, and another one in the same databases in another order: both would wait for ever. The
//! calls of clients have one transaction at a time, and wait for nothing else meanwhile.

use crate::limits::Deadline;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::Duration;

static IS_TAKEN: Mutex<bool> = Mutex::new(false);
static IS_FREE: Condvar = Condvar::new();

/// How often it is looked whether the call is still wanted.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// It is this script's turn, as long as one of the transactions has it.
pub(crate) struct Turn(());

impl Turn {
    /// Waits for it; `None` if time is over before.
    fn take(deadline: &Deadline) -> Option<Turn> {
        let mut is_taken = IS_TAKEN.lock();
        while *is_taken {
            let left = deadline.left();
            if left.is_zero() {
                return None;
            }
            IS_FREE.wait_for(&mut is_taken, left.min(WAIT_MAX));
        }
        *is_taken = true;
        Some(Turn(()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *IS_TAKEN.lock() = false;
        IS_FREE.notify_one();
    }
}

/// The turn of a machine, while it has it.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Weak<Turn>>);

impl Turns {
    /// The turn that it has, or gets now; `None` if time is over before.
    pub(crate) fn get(&self, deadline: &Deadline) -> Option<Arc<Turn>> {
        let mut own = self.0.lock();
        if let Some(turn) = own.upgrade() {
            return Some(turn);
        }
        let turn = Arc::new(Turn::take(deadline)?);
        *own = Arc::downgrade(&turn);
        Some(turn)
    }
}
