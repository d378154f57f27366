//! Runs long work as background jobs on threads of their own, so that a connection that waits for
//! such work delays no other connection.
//!
//! ```text
//! a session     -> submits a job with the handle that wakes the session, and waits
//! a thread      -> performs the job, writes its answer, and wakes the session
//! the session   -> takes the answer and sends it
//! ```
//!
//! Invariants: the number of running and of waiting jobs is limited ([`JobLimits`]). The bytes that
//! all waiting jobs hold are limited, too, unless only one job waits. A cancelled job ends soon. A
//! thread that finds no job for one second ends. Not here: the work itself, which belongs to its
//! dialect.

use crate::databases::pending_commits::DatabaseCommits;
use crate::session::wake::WakeHandle;
use crate::transport::output::ConnectionOutput;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time for which an idle thread waits for another job.
const LINGER: Duration = Duration::from_secs(1);
/// The interval at which `close_unless` calls `gives_up`.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// An answer, and the changes that must be durable before the answer may be sent.
pub(crate) type JobAnswer = (ConnectionOutput, DatabaseCommits);

/// The work of a job.
pub(crate) trait BackgroundWork: Send + Sync {
    /// Returns the number of bytes that the work holds.
    fn len_bytes(&self) -> usize;
    /// Does the work and writes the answer. Returns `None` if the job was cancelled.
    fn perform(&self, is_cancelled: &Arc<AtomicBool>) -> Option<JobAnswer>;
    /// Writes the answer to a job whose work was not done.
    fn not_done(&self, why: JobNotDone) -> ConnectionOutput;
}

/// The reason why a job was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobNotDone {
    /// The work panicked.
    Failed,
    /// The job was cancelled.
    Cancelled,
}

/// A job that has been submitted.
pub(crate) struct BackgroundJob {
    work: Box<dyn BackgroundWork>,
    handle: WakeHandle,
    is_cancelled: Arc<AtomicBool>,
    answer: Mutex<Option<JobAnswer>>,
}

impl BackgroundJob {
    /// Returns the number of bytes that the work of the job holds.
    pub(crate) fn len_bytes(&self) -> usize {
        self.work.len_bytes()
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Cancels the job, which then ends soon.
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Takes the answer. Call it once, after the session was woken.
    pub(crate) fn take_answer(&self) -> JobAnswer {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        answer.unwrap_or_else(|| (self.work.not_done(JobNotDone::Cancelled), DatabaseCommits::default()))
    }
}

/// Limits of the jobs that run and wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobLimits {
    /// The number of jobs that run at the same time.
    pub(crate) threads: usize,
    /// The number of jobs that may wait for a thread.
    pub(crate) waiting: usize,
    /// The number of bytes that waiting jobs may hold together.
    pub(crate) bytes: usize,
    /// The stack size of a thread, if it is not the default.
    pub(crate) stack_bytes: Option<usize>,
}

/// The reason why a job is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobRefused {
    /// Too many jobs wait already.
    TooMany,
    /// The server is stopping.
    Closed,
}

/// A queue of jobs, and its threads.
pub(crate) struct BackgroundJobs {
    name: &'static str,
    limits: JobLimits,
    queue: Mutex<JobQueue>,
    /// Signals that a job was added, or that the queue was closed.
    changed: Condvar,
    done: AtomicU64,
}

#[derive(Default)]
struct JobQueue {
    waiting: VecDeque<Arc<BackgroundJob>>,
    running: Vec<Arc<BackgroundJob>>,
    bytes: usize,
    threads: usize,
    /// The number of threads that wait for a job.
    idle: usize,
    is_closed: bool,
}

impl BackgroundJobs {
    /// Creates a queue whose threads have this name.
    pub(crate) fn new(name: &'static str, limits: JobLimits) -> Arc<BackgroundJobs> {
        let (queue, changed, done) = Default::default();
        Arc::new(BackgroundJobs { name, limits, queue, changed, done })
    }

    fn queue(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits work. Once the work is done, its thread wakes the session through `handle`.
    pub(crate) fn submit(
        self: &Arc<Self>,
        work: Box<dyn BackgroundWork>,
        handle: WakeHandle,
    ) -> Result<Arc<BackgroundJob>, JobRefused> {
        let bytes = work.len_bytes();
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(JobRefused::Closed);
        }
        let is_alone = queue.waiting.is_empty();
        if queue.waiting.len() >= self.limits.waiting
            || (queue.bytes + bytes > self.limits.bytes && !is_alone)
        {
            return Err(JobRefused::TooMany);
        }
        if queue.idle <= queue.waiting.len() && queue.threads < self.limits.threads {
            let mut thread = std::thread::Builder::new().name(self.name.into());
            if let Some(bytes) = self.limits.stack_bytes {
                thread = thread.stack_size(bytes);
            }
            let jobs = Arc::clone(self);
            match thread.spawn(move || jobs.run()) {
                Ok(_) => queue.threads += 1,
                // A running thread takes the job.
                Err(_) if queue.threads > 0 => {}
                Err(error) => {
                    tracing::warn!(%error, "background job: cannot start a thread");
                    return Err(JobRefused::TooMany);
                }
            }
        }
        let (is_cancelled, answer) = Default::default();
        let job = Arc::new(BackgroundJob { work, handle, is_cancelled, answer });
        queue.bytes += bytes;
        queue.waiting.push_back(Arc::clone(&job));
        drop(queue);
        self.changed.notify_one();
        Ok(job)
    }

    /// Returns the number of jobs that wait or run.
    pub(crate) fn pending(&self) -> usize {
        let queue = self.queue();
        queue.waiting.len() + queue.running.len()
    }

    /// Returns the number of jobs done since the start.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Accepts no more jobs, cancels all jobs, and waits until their threads have ended. `gives_up`
    /// is called at intervals; once it returns true, the wait ends and the result is false.
    pub(crate) fn close_unless(&self, gives_up: &dyn Fn() -> bool) -> bool {
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.waiting.clear();
        queue.running.iter().for_each(|job| job.cancel());
        drop(queue);
        self.changed.notify_all();
        while self.queue().threads > 0 {
            if gives_up() {
                return false;
            }
            // This thread waits by polling, because the end of a server is not urgent.
            std::thread::park_timeout(CHECK_INTERVAL);
        }
        true
    }

    /// Returns the next job. Returns `None` if there was no job for a while. In that case the
    /// thread is no longer counted, and must end.
    fn next(&self) -> Option<Arc<BackgroundJob>> {
        let mut queue = self.queue();
        let until = Instant::now() + LINGER;
        loop {
            let Some(job) = queue.waiting.pop_front() else {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() || queue.is_closed {
                    queue.threads -= 1;
                    return None;
                }
                queue.idle += 1;
                queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
                queue.idle -= 1;
                continue;
            };
            queue.bytes -= job.work.len_bytes();
            if !job.is_cancelled() {
                queue.running.push(Arc::clone(&job));
                return Some(job);
            }
            // If the session still waits, it is woken and finds that the job will not be done.
            job.handle.wake();
        }
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            let perform = || job.work.perform(&job.is_cancelled);
            // The panic hook has already reported the panic.
            let answer = catch_unwind(AssertUnwindSafe(perform)).unwrap_or_else(|_| {
                Some((job.work.not_done(JobNotDone::Failed), DatabaseCommits::default()))
            });
            *job.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
            self.queue().running.retain(|other| !Arc::ptr_eq(other, &job));
            self.done.fetch_add(1, Ordering::Relaxed);
            job.handle.wake();
        }
    }
}
