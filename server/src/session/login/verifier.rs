//! Checks passwords that need a slow hash, one at a time, on a thread of its own. Connections whose
//! logins are checked are parked; all others are served.
//!
//! Invariants: the queue holds at most [`QUEUE_BYTES_MAX`] bytes, and at most one attempt of each
//! connection. An attempt is not checked if its connection has closed.

use super::passwords::PasswordFile;
use super::reloadable_file::ReloadableFile;
use crate::session::wake::{WakeHandle, WakeTicket};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// The maximum number of bytes of all waiting attempts. A usual attempt takes about 150 bytes.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// A client's attempt to log in.
pub(crate) struct LoginAttempt {
    user: Vec<u8>,
    password: Vec<u8>,
    verdict: OnceLock<bool>,
    /// Wakes the connection of the attempt.
    handle: WakeHandle,
}

impl LoginAttempt {
    pub(super) fn new(user: &[u8], password: &[u8], handle: WakeHandle) -> Arc<LoginAttempt> {
        let (user, password) = (user.to_vec(), password.to_vec());
        Arc::new(LoginAttempt { user, password, verdict: OnceLock::new(), handle })
    }

    pub(super) fn ticket(&self) -> WakeTicket {
        self.handle.ticket
    }

    /// Returns true if the password is correct, and `None` until the check is complete.
    pub(super) fn verdict(&self) -> Option<bool> {
        self.verdict.get().copied()
    }

    fn bytes(&self) -> usize {
        size_of::<LoginAttempt>() + self.user.len() + self.password.len()
    }
}

/// The queue of attempts and its thread.
#[derive(Default)]
pub(super) struct PasswordVerifier {
    queue: Mutex<AttemptQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct AttemptQueue {
    waiting: VecDeque<(Weak<LoginAttempt>, usize)>,
    bytes: usize,
    is_closed: bool,
}

impl PasswordVerifier {
    fn queue(&self) -> MutexGuard<'_, AttemptQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an attempt to the queue. Returns false if the queue is full.
    pub(super) fn submit(&self, attempt: &Arc<LoginAttempt>) -> bool {
        let bytes = attempt.bytes();
        let mut queue = self.queue();
        if queue.bytes + bytes > QUEUE_BYTES_MAX {
            return false;
        }
        queue.bytes += bytes;
        queue.waiting.push_back((Arc::downgrade(attempt), bytes));
        drop(queue);
        self.changed.notify_one();
        true
    }

    /// Checks the attempts one after another until the queue is closed.
    pub(super) fn run(&self, passwords: &ReloadableFile<PasswordFile>) {
        // The thread has normal priority. At a niceness of 10, a login on a busy machine took more
        // than a second, and clients gave up. There is only one such thread, which limits the load.
        while let Some(attempt) = self.next() {
            let verdict = passwords.get().check(&attempt.user, &attempt.password);
            let _ = attempt.verdict.set(verdict);
            attempt.handle.wake();
        }
    }

    fn next(&self) -> Option<Arc<LoginAttempt>> {
        let mut queue = self.queue();
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some((attempt, bytes)) = queue.waiting.pop_front() {
                queue.bytes -= bytes;
                match attempt.upgrade() {
                    Some(attempt) => return Some(attempt),
                    None => continue,
                }
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends [`run`](Self::run).
    pub(super) fn close(&self) {
        self.queue().is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::wake::{WaitingConnections, WakeQueues};

    fn attempts(count: usize, password: &[u8]) -> Vec<Arc<LoginAttempt>> {
        let mut waits = WaitingConnections::new(Arc::new(WakeQueues::new(1)), 0);
        (0..count).map(|_| LoginAttempt::new(b"u", password, waits.enter_new())).collect()
    }

    #[test]
    fn attempts_of_closed_connections_are_skipped() {
        let verifier = PasswordVerifier::default();
        let attempts = attempts(3, b"p");
        let last = Arc::clone(&attempts[2]);
        assert!(attempts.iter().all(|attempt| verifier.submit(attempt)));
        let mut attempts = attempts.into_iter();
        let first = attempts.next().unwrap();
        drop(attempts.next());
        assert!(Arc::ptr_eq(&verifier.next().unwrap(), &first));
        assert!(Arc::ptr_eq(&verifier.next().unwrap(), &last));
        assert_eq!(verifier.queue().bytes, 0);
        verifier.close();
        assert!(verifier.next().is_none());
    }

    #[test]
    fn queue_is_bounded_by_its_bytes() {
        let verifier = PasswordVerifier::default();
        let attempts = attempts(4, &vec![b'p'; QUEUE_BYTES_MAX / 4]);
        let taken: Vec<bool> = attempts.iter().map(|attempt| verifier.submit(attempt)).collect();
        assert_eq!(taken, [true, true, true, false]);
        assert!(verifier.next().is_some());
        assert!(verifier.submit(&attempts[3]));
    }
}
