//! Errands: procedures that take long, on threads of their own, while the connections that wait for them are parked and all others
//! are served.
//!
//! ```text
//! a call that takes long -> an errand in the queue; its connection is parked, with a ticket
//! a thread               -> does it, writes the answer, which may be long, too, and calls the ticket
//! the worker             -> looks at the call again, and sends that answer
//! ```
//!
//! Always true: no more than [`Limits`] says are under way or wait, and what waits takes no more bytes than it says unless it is alone;
//! one that nobody waits for any more ends soon. Threads live as long as there is something to do, and a second longer.
//! Scripts have a queue and threads of their own: however long they take, everything else goes on.

use super::answers::Answer;
use super::work::{Work, tell, tell_binary};
use crate::databases::awaits::Changes;
use crate::handle::Stopping;
use crate::session::tickets::Ticket;
use crate::shared::Shared;
use crate::transport::output::Output;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use todana_protocol::kyoto::{self, Banner, Failure, Form, Signal, Status};

/// How much is done at once, and waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How many are under way at once.
    threads: usize,
    /// How many may wait for a thread ...
    waiting: usize,
    /// ... and what they may hold together, in bytes.
    bytes: usize,
}

impl Limits {
    /// Searches, and what brings data to disk.
    pub(crate) const OF_WORK: Limits = Limits { threads: 4, waiting: 1024, bytes: 16 << 20 };

    /// Scripts: as many at once as the server has workers, as in the original.
    pub(crate) fn of_scripts(workers: usize) -> Limits {
        Limits { threads: workers.max(1), waiting: 65_536, bytes: 64 << 20 }
    }
}

/// How long a thread waits for more to do.
const LINGER: Duration = Duration::from_secs(1);

const TOO_MANY: Failure<'static> =
    Failure::Other { status: Status::InternalError, text: "too many procedures that take long are waiting" };
const CALLED_OFF: Failure<'static> =
    Failure::Other { status: Status::InternalError, text: "the server is stopping" };
const FAILED: Failure<'static> =
    Failure::Other { status: Status::InternalError, text: "the procedure has failed" };

/// How many commands run at once: others have a thread left.
const COMMANDS_MAX: usize = 2;

/// How it is answered.
pub(super) enum Manner {
    Call {
        form: Form,
        banner: Banner,
        /// The name of the signal that is given behind it, and whether to all.
        signal: Option<(Vec<u8>, bool)>,
    },
    /// A script of the binary protocol.
    Binary { is_silent: bool },
}

/// Something to be done on another thread.
pub(super) struct Errand {
    work: Work,
    manner: Manner,
    worker: usize,
    ticket: Ticket,
    is_called_off: Arc<AtomicBool>,
    answer: Mutex<Option<(Output, Changes)>>,
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

    /// Whether it is a script, which ends as it will although nobody waits for it.
    pub(super) fn is_script(&self) -> bool {
        self.work.is_script()
    }

    /// The answer, and what has to be settled before it may leave, once. Fails if there is none: it was called off.
    pub(super) fn answer(&self) -> Result<(Output, Changes), Failure<'static>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(CALLED_OFF)
    }

    /// Does it, and writes the answer; `None` if nobody is there any more to hear of it, nor to be signalled for it.
    fn perform(&self, shared: &Arc<Shared>) -> Option<(Output, Changes)> {
        let mut changes = Changes::default();
        let work = || self.work.perform(shared, &self.is_called_off, true, &mut changes);
        // A panic has been shown already.
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(FAILED));
        // What a script has come to is told although the server is stopping.
        if self.is_called_off() && !self.is_script() {
            return None;
        }
        let mut output = Output::default();
        match &self.manner {
            Manner::Call { form, banner, signal } => {
                let signal = signal.as_ref().map(|(name, all)| Signal { name, is_broadcast: *all });
                let mut answer = Answer {
                    form: *form,
                    banner,
                    signal,
                    signals: &shared.kyoto.signals,
                    output: &mut output,
                };
                tell(done, &mut kyoto::Output::default(), &mut answer);
            }
            Manner::Binary { is_silent: true } => {}
            Manner::Binary { is_silent: false } => tell_binary(done, &mut output),
        }
        Some((output, changes))
    }
}

/// Those of a server.
pub(crate) struct Errands {
    limits: Limits,
    queue: Mutex<Queue>,
    /// There is more to do, or there will be no more.
    has_come: Condvar,
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
    /// Threads that wait for more to do.
    idle: usize,
    is_closed: bool,
}

impl Errands {
    pub(crate) fn new(limits: Limits) -> Errands {
        Errands {
            limits,
            queue: Mutex::default(),
            has_come: Condvar::new(),
            done: AtomicU64::new(0),
            commands: AtomicUsize::new(0),
        }
    }

    /// Those that do such work.
    fn of<'s>(shared: &'s Shared, work: &Work) -> &'s Errands {
        if work.is_script() { &shared.kyoto.script_errands } else { &shared.kyoto.errands }
    }

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
        let errands = Errands::of(shared, &work);
        let bytes = work.len();
        let errand = Arc::new(Errand {
            work,
            manner,
            worker,
            ticket,
            is_called_off: Arc::default(),
            answer: Mutex::default(),
        });
        let mut queue = errands.queue();
        if queue.is_closed || shared.lifecycle.stopping() != Stopping::No {
            return Err(CALLED_OFF);
        }
        let is_alone = queue.waiting.is_empty();
        if queue.waiting.len() >= errands.limits.waiting
            || (queue.bytes + bytes > errands.limits.bytes && !is_alone)
        {
            return Err(TOO_MANY);
        }
        if queue.idle <= queue.waiting.len() && queue.threads < errands.limits.threads {
            let shared = Arc::clone(shared);
            let is_script = errand.is_script();
            let thread = std::thread::Builder::new();
            let thread = match is_script {
                true => thread.name("script".into()).stack_size(todana_script::STACK_SIZE),
                false => thread.name("errand".into()),
            };
            let run = move || {
                let errands = if is_script { &shared.kyoto.script_errands } else { &shared.kyoto.errands };
                run(&shared, errands);
            };
            match thread.spawn(run) {
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
        drop(queue);
        errands.has_come.notify_one();
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
        self.has_come.notify_all();
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
    fn next(&self, shared: &Shared) -> Option<Arc<Errand>> {
        let mut queue = self.queue();
        let until = Instant::now() + LINGER;
        loop {
            let Some(errand) = queue.waiting.pop_front() else {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() || queue.is_closed {
                    queue.threads -= 1;
                    return None;
                }
                queue.idle += 1;
                queue = self.has_come.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
                queue.idle -= 1;
                continue;
            };
            queue.bytes -= errand.work.len();
            if !errand.is_called_off() {
                queue.under_way.push(Arc::clone(&errand));
                return Some(errand);
            }
            // Whoever waits all the same hears that it will not be done.
            shared.kyoto.signals.call(errand.worker, errand.ticket);
        }
    }
}

/// Tells whoever waits, however the work has ended.
struct Telling<'t> {
    shared: &'t Shared,
    errands: &'t Errands,
    errand: &'t Arc<Errand>,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let (errands, errand) = (self.errands, self.errand);
        errands.queue().under_way.retain(|other| !Arc::ptr_eq(other, errand));
        errands.done.fetch_add(1, Ordering::Relaxed);
        self.shared.kyoto.signals.call(errand.worker, errand.ticket);
    }
}

fn run(shared: &Arc<Shared>, errands: &Errands) {
    while let Some(errand) = errands.next(shared) {
        let telling = Telling { shared, errands, errand: &errand };
        let answer = errand.perform(shared);
        *errand.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
        drop(telling);
    }
}
