//! Slow checks of passwords, on a thread of their own: one at a time, while the connections that wait for them are parked
//! and all others are served.
//!
//! Always true: the queue holds at most [`QUEUE_BYTES_MAX`], and of a connection at most one attempt; an attempt whose
//! connection is gone is not made.

use super::current::Current;
use super::passwords::Passwords;
use mio::Waker;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// What attempts may take together while they wait. A client's own takes some 150 bytes.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// One client's attempt to log in.
pub(crate) struct Attempt {
    user: Vec<u8>,
    password: Vec<u8>,
    verdict: OnceLock<bool>,
    /// Its connection's place in the worker.
    token: usize,
    decided: Arc<Decided>,
}

impl Attempt {
    pub(super) fn new(user: &[u8], password: &[u8], token: usize, decided: Arc<Decided>) -> Arc<Attempt> {
        let (user, password) = (user.to_vec(), password.to_vec());
        Arc::new(Attempt { user, password, verdict: OnceLock::new(), token, decided })
    }

    /// Whether the password is the user's; `None` until that has been found out.
    pub(super) fn verdict(&self) -> Option<bool> {
        self.verdict.get().copied()
    }

    fn bytes(&self) -> usize {
        size_of::<Attempt>() + self.user.len() + self.password.len()
    }
}

/// A worker's connections whose attempts have been decided.
pub(crate) struct Decided {
    tokens: Mutex<Vec<usize>>,
    waker: Arc<Waker>,
}

impl Decided {
    pub(crate) fn new(waker: Arc<Waker>) -> Arc<Decided> {
        Arc::new(Decided { tokens: Mutex::new(Vec::new()), waker })
    }

    /// Takes them out. A connection may have gone meanwhile, and another have taken its place.
    pub(crate) fn take(&self) -> Vec<usize> {
        std::mem::take(&mut *self.tokens.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, token: usize) {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).push(token);
        // A loop that is gone needs no waking.
        let _ = self.waker.wake();
    }
}

/// The queue, and the thread's side of it.
#[derive(Default)]
pub(super) struct Verifier {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Weak<Attempt>, usize)>,
    bytes: usize,
    is_closed: bool,
}

impl Verifier {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lines an attempt up; false if there is no room.
    pub(super) fn submit(&self, attempt: &Arc<Attempt>) -> bool {
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

    /// Decides one attempt after the other, until it is closed.
    pub(super) fn run(&self, passwords: &Current<Passwords>) {
        // At the priority of all others. At a niceness of 10 a login on a busy machine took more than a second, at which
        // clients give up; and being one thread is bound enough.
        while let Some(attempt) = self.next() {
            let verdict = passwords.get().check(&attempt.user, &attempt.password);
            let _ = attempt.verdict.set(verdict);
            attempt.decided.add(attempt.token);
        }
    }

    fn next(&self) -> Option<Arc<Attempt>> {
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
    use mio::{Poll, Token};

    fn decided() -> (Poll, Arc<Decided>) {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), Token(0)).unwrap();
        (poll, Decided::new(Arc::new(waker)))
    }

    #[test]
    fn attempts_wait_in_order_and_those_of_the_gone_are_not_made() {
        let (_poll, decided) = decided();
        let verifier = Verifier::default();
        let attempts: Vec<_> =
            (0..3).map(|token| Attempt::new(b"u", b"p", token, Arc::clone(&decided))).collect();
        assert!(attempts.iter().all(|attempt| verifier.submit(attempt)));
        let mut attempts = attempts.into_iter();
        let first = attempts.next().unwrap();
        drop(attempts.next());
        assert!(Arc::ptr_eq(&verifier.next().unwrap(), &first));
        assert_eq!(verifier.next().unwrap().token, 2);
        assert_eq!(verifier.queue().bytes, 0);
        verifier.close();
        assert!(verifier.next().is_none());
    }

    #[test]
    fn the_queue_is_bounded_by_its_bytes() {
        let (_poll, decided) = decided();
        let verifier = Verifier::default();
        let long = vec![b'p'; QUEUE_BYTES_MAX / 4];
        let attempts: Vec<_> =
            (0..4).map(|token| Attempt::new(b"u", &long, token, Arc::clone(&decided))).collect();
        let taken: Vec<bool> = attempts.iter().map(|attempt| verifier.submit(attempt)).collect();
        assert_eq!(taken, [true, true, true, false]);
        assert!(verifier.next().is_some());
        assert!(verifier.submit(&attempts[3]));
    }
}
