//! The operations that wait for their turn, and the tasks that execute one after the other. Idle
//! tasks wait for further operations, up to a limit.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// The most tasks that wait for operations. Each takes about 10 KB.
const IDLE_MAX: usize = 128;

/// A queue of operations, and the tasks that take them.
pub(crate) struct TurnQueue<T> {
    state: Mutex<TurnState<T>>,
    /// Has a permit for each idle task that must look at the queue again.
    woken: Semaphore,
    tasks_max: usize,
}

struct TurnState<T> {
    waiting: VecDeque<T>,
    tasks: usize,
    /// The number of tasks that wait and are not woken yet.
    idle: usize,
}

impl<T> TurnQueue<T> {
    /// Creates a queue whose operations are executed by up to this number of tasks.
    pub(crate) fn new(tasks_max: usize) -> TurnQueue<T> {
        let state = Mutex::new(TurnState { waiting: VecDeque::new(), tasks: 0, idle: 0 });
        TurnQueue { state, woken: Semaphore::new(0), tasks_max }
    }

    fn state(&self) -> MutexGuard<'_, TurnState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation. Returns true if the caller must start another task.
    pub(crate) fn add(&self, item: T) -> bool {
        let mut state = self.state();
        state.waiting.push_back(item);
        if state.idle > 0 {
            state.idle -= 1;
            drop(state);
            self.woken.add_permits(1);
            return false;
        }
        let is_new = state.tasks < self.tasks_max;
        state.tasks += usize::from(is_new);
        is_new
    }

    /// Takes the operations that no task has taken, because no task will.
    pub(crate) fn take_all(&self) -> VecDeque<T> {
        std::mem::take(&mut self.state().waiting)
    }

    /// Returns the next operation for a task, once there is one. Returns `None` if the task must
    /// end.
    pub(crate) async fn next(&self) -> Option<T> {
        loop {
            {
                let mut state = self.state();
                if let Some(item) = state.waiting.pop_front() {
                    return Some(item);
                }
                if state.idle >= IDLE_MAX {
                    state.tasks -= 1;
                    return None;
                }
                state.idle += 1;
            }
            // The semaphore is never closed.
            self.woken.acquire().await.ok()?.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::runtime::Builder;
    use tokio::task::yield_now;

    #[test]
    fn reused_tasks_take_all_operations_in_order() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let (queue, started) = (Arc::new(TurnQueue::new(2)), AtomicUsize::new(0));
        let taken = Arc::new(Mutex::new(Vec::new()));
        let add = |number: usize| {
            if !queue.add(number) {
                return;
            }
            started.fetch_add(1, Ordering::Relaxed);
            let (queue, taken) = (Arc::clone(&queue), Arc::clone(&taken));
            tokio::spawn(async move {
                while let Some(number) = queue.next().await {
                    taken.lock().unwrap().push(number);
                    yield_now().await;
                }
            });
        };
        runtime.block_on(async {
            for round in 0..3 {
                (round * 10..round * 10 + 10).for_each(add);
                while taken.lock().unwrap().len() < (round + 1) * 10 || queue.state().idle < 2 {
                    yield_now().await;
                }
            }
        });
        assert_eq!(*taken.lock().unwrap(), (0..30).collect::<Vec<_>>());
        assert_eq!(started.load(Ordering::Relaxed), 2);
    }
}
