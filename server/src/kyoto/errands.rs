//! Errands: procedures that take long, on threads of their own, while the connections that wait for them are parked and all others
//! are served.
//!
//! ```text
//! a call that takes long -> an errand in the queue; its connection is parked, with a ticket
//! a thread               -> does it, writes the answer, which may be long, too, and calls the ticket
//! the worker             -> looks at the call again, and sends that answer
//! ```
//!
//! Always true: at most [`THREADS_MAX`] are under way, and [`WAITING_MAX`] wait; what they are given takes at most [`BYTES_MAX`]
//! together; one that nobody waits for any more ends soon. Threads live as long as there is something to do.

use super::executor::Answer;
use super::signals::Ticket;
use super::work::{Work, tell};
use crate::handle::Stopping;
use crate::output::Output;
use crate::shared::Shared;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use todana_protocol::kyoto::{self, Banner, Failure, Form, Signal, Status};

/// How many are under way at once.
const THREADS_MAX: usize = 4;
/// How many may wait for a thread ...
const WAITING_MAX: usize = 1024;
/// ... and what they may hold together, in bytes.
const BYTES_MAX: usize = 16 << 20;

const TOO_MANY: Failure<'static> =
    Failure::Other { status: Status::InternalError, text: "too many procedures that take long are waiting" };
const CALLED_OFF: Failure<'static> =
    Failure::Other { status: Status::InternalError, text: "the server is stopping" };
const FAILED: Failure<'static> =
    Failure::Other { status: Status::InternalError, text: "the procedure has failed" };

/// How many commands run at once: others have a thread left.
const COMMANDS_MAX: usize = 2;

/// How it is answered.
pub(super) struct Manner {
    pub(super) form: Form,
    pub(super) banner: Banner,
    /// The name of the signal that is given behind it, and whether to all.
    pub(super) signal: Option<(Vec<u8>, bool)>,
}

/// Something to be done on another thread.
pub(super) struct Errand {
    work: Work,
    manner: Manner,
    worker: usize,
    ticket: Ticket,
    is_called_off: AtomicBool,
    answer: Mutex<Option<Output>>,
}

impl Errand {
    /// Whether whoever is at it shall stop.
    pub(super) fn is_called_off(&self) -> bool {
        self.is_called_off.load(Ordering::Relaxed)
    }

    pub(super) fn call_off(&self) {
        self.is_called_off.store(true, Ordering::Relaxed);
    }

    /// Whether it leaves nothing behind but its answer.
    pub(super) fn only_looks(&self) -> bool {
        self.work.only_looks()
    }

    /// The answer, once. Fails if there is none: it was called off.
    pub(super) fn answer(&self) -> Result<Output, Failure<'static>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(CALLED_OFF)
    }

    /// Does it, and writes the answer; `None` if nobody is there any more to hear of it, nor to be signalled for it.
    fn perform(&self, shared: &Shared) -> Option<Output> {
        let work = || self.work.perform(shared, &|| self.is_called_off());
        // A panic has been shown already.
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(FAILED));
        if self.is_called_off() {
            return None;
        }
        let Manner { form, banner, signal } = &self.manner;
        let signal = signal.as_ref().map(|(name, is_broadcast)| Signal { name, is_broadcast: *is_broadcast });
        let mut output = Output::default();
        let mut answer =
            Answer { form: *form, banner, signal, signals: &shared.signals, output: &mut output };
        tell(done, &mut kyoto::Output::default(), &mut answer);
        Some(output)
    }
}

/// Those of a server.
#[derive(Default)]
pub(crate) struct Errands {
    queue: Mutex<Queue>,
    /// Done since the start.
    done: AtomicU64,
    /// Commands under way.
    commands: AtomicUsize,
}

/// A command's turn.
pub(super) struct Turn<'t>(&'t AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<Errand>>,
    under_way: Vec<Arc<Errand>>,
    bytes: usize,
    threads: usize,
    is_closed: bool,
}

impl Errands {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has something done for a worker, which hears of the ticket then.
    pub(super) fn submit(
        shared: &Arc<Shared>,
        work: Work,
        manner: Manner,
        worker: usize,
        ticket: Ticket,
    ) -> Result<Arc<Errand>, Failure<'static>> {
        let errands = &shared.errands;
        let bytes = work.len();
        let errand = Arc::new(Errand {
            work,
            manner,
            worker,
            ticket,
            is_called_off: AtomicBool::default(),
            answer: Mutex::default(),
        });
        let mut queue = errands.queue();
        if queue.is_closed || shared.stopping() != Stopping::No {
            return Err(CALLED_OFF);
        }
        if queue.waiting.len() >= WAITING_MAX || queue.bytes + bytes > BYTES_MAX {
            return Err(TOO_MANY);
        }
        if queue.threads < THREADS_MAX {
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("errand".into());
            match thread.spawn(move || run(&shared)) {
                Ok(_) => queue.threads += 1,
                // Whoever is at work comes to it.
                Err(_) if queue.threads > 0 => {}
                Err(error) => {
                    tracing::warn!(%error, "no thread for a procedure that takes long");
                    return Err(TOO_MANY);
                }
            }
        }
        queue.bytes += bytes;
        queue.waiting.push_back(Arc::clone(&errand));
        Ok(errand)
    }

    /// How many are waiting or under way.
    pub(crate) fn pending(&self) -> usize {
        let queue = self.queue();
        queue.waiting.len() + queue.under_way.len()
    }

    /// A turn for a command, until it is dropped; `None` if there are enough.
    pub(super) fn may_command(&self) -> Option<Turn<'_>> {
        let count = self.commands.fetch_add(1, Ordering::Relaxed);
        let turn = Turn(&self.commands);
        (count < COMMANDS_MAX).then_some(turn)
    }

    /// How many have been done since the start.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// No more of them: calls off all there are, and waits for their threads unless `gives_up`, which is asked now and then,
    /// says so. False then.
    pub(crate) fn close_unless(&self, gives_up: &dyn Fn() -> bool) -> bool {
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.waiting.clear();
        queue.under_way.iter().for_each(|errand| errand.call_off());
        drop(queue);
        while self.queue().threads > 0 {
            if gives_up() {
                return false;
            }
            // Unparked by nobody: there is no hurry at the end of a server.
            std::thread::park_timeout(Duration::from_millis(5));
        }
        true
    }

    /// The next one, until there are no more: then the thread is none of ours any more.
    fn next(&self) -> Option<Arc<Errand>> {
        let mut queue = self.queue();
        loop {
            let Some(errand) = queue.waiting.pop_front() else {
                queue.threads -= 1;
                return None;
            };
            queue.bytes -= errand.work.len();
            if !errand.is_called_off() {
                queue.under_way.push(Arc::clone(&errand));
                return Some(errand);
            }
        }
    }
}

/// Tells whoever waits, however the work has ended.
struct Telling<'t> {
    shared: &'t Shared,
    errand: &'t Arc<Errand>,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let (errands, errand) = (&self.shared.errands, self.errand);
        errands.queue().under_way.retain(|other| !Arc::ptr_eq(other, errand));
        errands.done.fetch_add(1, Ordering::Relaxed);
        self.shared.signals.call(errand.worker, errand.ticket);
    }
}

fn run(shared: &Arc<Shared>) {
    while let Some(errand) = shared.errands.next() {
        let telling = Telling { shared, errand: &errand };
        let answer = errand.perform(shared);
        *errand.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
        drop(telling);
    }
}
