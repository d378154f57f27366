//! A lock and a condition for threads that may sleep for long, with the interface of parking_lot.
//!
//! parking_lot keeps the sleeping threads of a process in one table. The child of a fork inherits
//! the table but not the threads, and the system may give the memory of such a thread to a new one
//! of the child. The new thread is then in the table twice, and may never be woken. So threads of
//! the library, which programs in Python and C embed, sleep on the locks of the standard library,
//! which have no table. Short locks are still those of parking_lot.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// A lock, which works also after a thread has panicked while it held the lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

/// Unlocks its mutex when it is dropped.
pub struct MutexGuard<'m, T> {
    mutex: &'m Mutex<T>,
    /// `None` only while a function of this file waits.
    held: Option<std::sync::MutexGuard<'m, T>>,
}

/// A condition to wait for, together with a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Waits until no other thread holds the lock, and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, held: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
    }
}

impl<T> MutexGuard<'_, T> {
    /// Calls `run` without the lock, and takes the lock again.
    pub fn unlocked<R>(guard: &mut Self, run: impl FnOnce() -> R) -> R {
        drop(guard.held.take());
        let result = run();
        *guard = guard.mutex.lock();
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.held.as_ref().expect("held outside of waits")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("held outside of waits")
    }
}

impl Condvar {
    /// Creates a condition.
    pub const fn new() -> Condvar {
        Condvar(std::sync::Condvar::new())
    }

    /// Unlocks the mutex, waits for a notification, and locks the mutex again. May also return
    /// without a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.held.take() {
            guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Waits as [`wait`](Self::wait) does, but at most this long. Returns true if the time was
    /// over.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> bool {
        let Some(held) = guard.held.take() else { return false };
        let (held, result) = self.0.wait_timeout(held, limit).unwrap_or_else(PoisonError::into_inner);
        guard.held = Some(held);
        result.timed_out()
    }

    /// Waits as [`wait_for`](Self::wait_for) does, until a moment.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, moment: Instant) -> bool {
        self.wait_for(guard, moment.saturating_duration_since(Instant::now()))
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_by_notification_or_time() {
        let (mutex, condition) = (Mutex::new(1), Condvar::new());
        let mut value = mutex.lock();
        assert!(condition.wait_for(&mut value, Duration::ZERO));
        assert!(condition.wait_until(&mut value, Instant::now()));
        std::thread::scope(|scope| {
            // This thread holds the lock until it waits.
            scope.spawn(|| {
                *mutex.lock() = 2;
                condition.notify_all();
            });
            while *value == 1 {
                condition.wait(&mut value);
            }
        });
        assert_eq!(*value, 2);
    }

    #[test]
    fn unlocked_call_leaves_the_lock_to_others() {
        let mutex = Mutex::new(1);
        let mut value = mutex.lock();
        MutexGuard::unlocked(&mut value, || *mutex.lock() += 1);
        assert_eq!(*value, 2);
    }

    #[test]
    fn lock_of_a_panicked_thread_can_be_taken() {
        let mutex = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _held = mutex.lock();
                    panic!("on purpose");
                })
                .join()
        });
        assert!(panicked.is_err());
        assert_eq!(*mutex.lock(), 1);
    }
}
