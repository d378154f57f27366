//! Functions of the server's script: calls by clients as background jobs, periodic calls, and those
//! at the start and the end.
//!
//! Calls that ask for it exclude each other: those on keys of one slot, or all of them.

use super::background_call::{TyrantAction, TyrantTask};
use super::iterator::IteratorStep;
use super::key_slots::{KeySlots, SlotLock};
use super::operations::is_table;
use super::session_state::{TyrantSession, TyrantWorker};
use super::{TyrantState, numbers, table};
use crate::databases::PRIMARY_DATABASE;
use crate::databases::pending_commits::DatabaseCommits;
use crate::execution::{Executor, LocalDatabase};
use crate::options::{ScriptText, TyrantOptions};
use crate::session::NextAction;
use crate::session::background_jobs::{BackgroundJobs, BackgroundWork, JobAnswer, JobLimits, JobNotDone};
use crate::session::worker_context::WorkerContext;
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana::table::visible_records;
use todana_core::Record;
use todana_protocol::tyrant::{FieldBuffer, FieldList, TyrantPutMode, reply};
use todana_script::tyrant::{MiscBounds, SharedScriptState, TypedRecords, TyrantHost, TyrantPlace};
use todana_script::{Interpreter, LoadError, Program, ScriptOptions};

/// Excludes calls on keys of the same slot.
const LOCK_RECORD: u32 = 1;
/// Excludes all other calls that lock.
const LOCK_ALL: u32 = 2;
/// The interval at which the end of the server is awaited.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The script, and what it needs.
pub(crate) struct TyrantScripts {
    text: Option<ScriptText>,
    program: Mutex<Option<Program>>,
    /// The number of times that the program was read.
    readings: AtomicU64,
    machines: Mutex<ScriptMachines>,
    state: Arc<SharedScriptState>,
    slots: KeySlots,
    pub(crate) calls: Arc<BackgroundJobs>,
    periodic: Mutex<Vec<JoinHandle<()>>>,
    is_over: Mutex<bool>,
    end: Condvar,
}

/// The machines that no call uses.
#[derive(Default)]
struct ScriptMachines {
    idle: Vec<ScriptMachine>,
    made: usize,
    is_closed: bool,
}

/// A machine with the program loaded, used by one call at a time.
struct ScriptMachine {
    number: usize,
    /// The value of `readings` when this machine loaded the program.
    reading: u64,
    interpreter: Interpreter,
    database: LocalDatabase,
    host: Arc<ScriptHost>,
}

fn limits(workers: usize) -> JobLimits {
    let stack_bytes = Some(todana_script::STACK_SIZE);
    JobLimits { threads: workers.max(1), waiting: 65_536, bytes: 64 << 20, stack_bytes }
}

fn read(text: &ScriptText) -> Result<Program, LoadError> {
    match text {
        ScriptText::File(path) => Program::load(path),
        ScriptText::Inline(text) => Program::new("-ext", text.as_bytes()),
    }
}

impl TyrantScripts {
    /// Reads the program. Fails if it is not Lua.
    pub(crate) fn open(options: &TyrantOptions, workers: usize) -> Result<TyrantScripts, LoadError> {
        let program = options.script.as_ref().map(read).transpose()?;
        let (readings, machines, state, periodic, is_over, end) = Default::default();
        Ok(TyrantScripts {
            text: options.script.clone(),
            program: Mutex::new(program),
            readings,
            machines,
            state,
            slots: KeySlots::default(),
            calls: BackgroundJobs::new("script", limits(workers)),
            periodic,
            is_over,
            end,
        })
    }

    /// Reads the program again; machines load it before the next call. If that fails, the old
    /// program stays.
    pub(crate) fn reload(&self) {
        match self.text.as_ref().map(read) {
            None => {}
            Some(Ok(program)) => {
                *self.program.lock() = Some(program);
                self.readings.fetch_add(1, Ordering::Release);
                tracing::info!("script: reloaded");
            }
            Some(Err(error)) => {
                tracing::error!("script: not reloaded, the old one stays in use: {error}");
            }
        }
    }

    /// Calls `_begin`, and starts the periodic calls.
    pub(crate) fn start(&self, shared: &Arc<SharedState>) -> io::Result<()> {
        if self.program.lock().is_none() {
            return Ok(());
        }
        self.call_with_stack(shared, b"_begin")?;
        for call in &shared.options.protocols.tyrant.periodic {
            let (shared, call) = (Arc::clone(shared), call.clone());
            let thread = std::thread::Builder::new().name("script timer".into());
            let run = move || shared.tyrant.scripts.call_each(&shared, call.name.as_bytes(), call.interval);
            self.periodic.lock().push(thread.stack_size(todana_script::STACK_SIZE).spawn(run)?);
        }
        Ok(())
    }

    /// Ends the periodic calls and those of clients, and calls `_end`. Returns false if `gives_up`
    /// returns true first.
    pub(crate) fn end(&self, shared: &Arc<SharedState>, gives_up: &dyn Fn() -> bool) -> bool {
        *self.is_over.lock() = true;
        self.end.notify_all();
        for thread in std::mem::take(&mut *self.periodic.lock()) {
            while !thread.is_finished() {
                if gives_up() {
                    return false;
                }
                std::thread::park_timeout(CHECK_INTERVAL);
            }
        }
        if !self.calls.close_unless(gives_up) {
            return false;
        }
        if self.program.lock().is_some()
            && let Err(error) = self.call_with_stack(shared, b"_end")
        {
            tracing::warn!(%error, "script: cannot call _end");
        }
        let mut machines = self.machines.lock();
        machines.is_closed = true;
        let idle = std::mem::take(&mut machines.idle);
        drop(machines);
        drop(idle);
        true
    }

    /// Calls a function on a thread whose stack is large enough, and waits for it.
    fn call_with_stack(&self, shared: &Arc<SharedState>, name: &'static [u8]) -> io::Result<()> {
        let shared = Arc::clone(shared);
        let run = move || {
            shared.tyrant.scripts.call(&shared, name, b"", b"", 0, &Arc::default(), &mut Vec::new());
        };
        let thread = std::thread::Builder::new().name("script".into()).stack_size(todana_script::STACK_SIZE);
        // The panic of a script has been reported already.
        let _ = thread.spawn(run)?.join();
        Ok(())
    }

    /// Calls a function at intervals until the end.
    fn call_each(&self, shared: &Arc<SharedState>, name: &[u8], interval: Duration) {
        let mut is_over = self.is_over.lock();
        let mut next = Instant::now() + interval;
        while !*is_over {
            if !self.end.wait_until(&mut is_over, next).timed_out() {
                continue;
            }
            MutexGuard::unlocked(&mut is_over, || {
                self.call(shared, name, b"", b"", 0, &Arc::default(), &mut Vec::new());
            });
            next = (next + interval).max(Instant::now());
        }
    }

    /// Returns a machine with the program as it was last read; `None` if it does not load.
    fn machine(&self, shared: &Arc<SharedState>) -> Option<ScriptMachine> {
        let reading = self.readings.load(Ordering::Acquire);
        let number = {
            let mut machines = self.machines.lock();
            match machines.idle.pop() {
                Some(machine) if machine.reading == reading => return Some(machine),
                Some(machine) => machine.number,
                None => {
                    machines.made += 1;
                    machines.made - 1
                }
            }
        };
        let program = self.program.lock().clone()?;
        let database = LocalDatabase::all(shared).swap_remove(PRIMARY_DATABASE);
        let host = Arc::new(ScriptHost::new(shared));
        let place = TyrantPlace {
            database: Arc::new(database.clone()),
            host: Arc::clone(&host) as Arc<dyn TyrantHost>,
            shared: Arc::clone(&self.state),
            thread: number,
            threads: shared.options.limits.threads,
            server_id: shared.options.databases.replication.server_id.into(),
        };
        let of_tyrant = &shared.options.protocols.tyrant;
        let options = ScriptOptions {
            files: of_tyrant.files.clone(),
            time_max: of_tyrant.script_time_max,
            memory_max: of_tyrant.script_memory_max,
            ..ScriptOptions::default()
        };
        let interpreter = Interpreter::of_tyrant(&program, place, &options);
        let interpreter =
            interpreter.inspect_err(|error| tracing::error!("script: cannot be loaded: {error}"));
        Some(ScriptMachine { number, reading, interpreter: interpreter.ok()?, database, host })
    }

    /// Returns the slots that calls lock, if there is a program.
    #[inline]
    pub(crate) fn slots(&self) -> Option<&KeySlots> {
        self.text.as_ref().map(|_| &self.slots)
    }

    /// Locks the slots that the options ask for.
    fn lock(&self, key: &[u8], options: u32) -> Vec<SlotLock<'_>> {
        match options {
            options if options & LOCK_ALL != 0 => self.slots.lock_all(),
            options if options & LOCK_RECORD != 0 => vec![self.slots.lock(key)],
            _ => Vec::new(),
        }
    }

    /// Calls a function, and returns its result. `changes` receives the changes that must be
    /// durable before the result is sent.
    #[expect(clippy::too_many_arguments, reason = "they are the arguments of `ext`, and its surroundings")]
    fn call(
        &self,
        shared: &Arc<SharedState>,
        name: &[u8],
        key: &[u8],
        value: &[u8],
        options: u32,
        is_cancelled: &Arc<AtomicBool>,
        changes: &mut DatabaseCommits,
    ) -> Option<Vec<u8>> {
        let mut machine = self.machine(shared)?;
        let result = {
            let _locks = self.lock(key, options);
            machine.interpreter.call_with_key(name, key, value, Some(is_cancelled))
        };
        let own = machine.database.take_commit().map(|commit| (PRIMARY_DATABASE, commit));
        changes.extend(own);
        changes.extend(machine.host.context.lock().executor.take_commits());
        let mut machines = self.machines.lock();
        if !machines.is_closed {
            machines.idle.push(machine);
        }
        result
    }
}

/// The functions of the server that a script calls. It executes functions of `misc` as a client's
/// session would, and waits for them.
struct ScriptHost {
    context: Mutex<WorkerContext>,
}

impl ScriptHost {
    fn new(shared: &Arc<SharedState>) -> ScriptHost {
        ScriptHost { context: Mutex::new(WorkerContext::new(shared, 0)) }
    }
}

impl TyrantHost for ScriptHost {
    fn restart_iterator(&self) -> bool {
        TyrantState::restart_iterator(&self.context.lock().shared)
    }

    fn next_key(&self, is_over: &dyn Fn() -> bool) -> Option<Vec<u8>> {
        let (shared, mut next) = (Arc::clone(&self.context.lock().shared), None);
        let see = &mut |key: &[u8], _: Record<'_>| next = Some(key.to_vec());
        while TyrantState::step_iterator(&shared, see) == Ok(IteratorStep::Unfinished) && !is_over() {}
        next
    }

    fn misc(&self, name: &[u8], arguments: &[Vec<u8>], bounds: &MiscBounds) -> Option<Vec<Vec<u8>>> {
        let arguments: FieldBuffer = arguments.iter().map(Vec::as_slice).collect();
        let mut output = ConnectionOutput::default();
        let mut worker = TyrantWorker::for_script(bounds.list_len_max);
        let mut session = TyrantSession::for_script(bounds.clone());
        session.misc(&mut worker, &mut self.context.lock(), name, arguments.list(), &mut output);
        match output.into_bytes().as_slice() {
            [reply::SUCCESS, list @ ..] => {
                FieldList::from_reply(list).map(|list| list.iter().map(<[u8]>::to_vec).collect())
            }
            _ => None,
        }
    }

    fn size(&self) -> u64 {
        super::statistics::size(self.context.lock().shared.databases.primary())
    }

    fn typed_records(&self) -> Option<&dyn TypedRecords> {
        let context = self.context.lock();
        (is_table(&context) || numbers::width(&context).is_some()).then_some(self)
    }
}

impl TypedRecords for ScriptHost {
    fn is_table(&self) -> bool {
        is_table(&self.context.lock())
    }

    fn put(&self, mode: TyrantPutMode, key: &[u8], value: &[u8]) -> bool {
        let context = &mut *self.context.lock();
        if is_table(context) {
            return table::put_value(context, mode, key, value);
        }
        TyrantSession::default().store(context, mode, key, value)
    }

    fn add_to_row(&self, key: &[u8], delta: f64) -> Option<f64> {
        table::add(&self.context.lock(), key, delta)
    }

    fn keys(&self, prefix: &[u8], limit: usize, bounds: &MiscBounds) -> Option<Vec<Vec<u8>>> {
        let mut output = ConnectionOutput::default();
        let action = TyrantAction::Prefix { prefix: prefix.to_vec(), limit };
        let task = TyrantTask { action, is_misc: false };
        TyrantSession::for_script(bounds.clone()).perform(&mut self.context.lock(), task, &mut output);
        match output.into_bytes().as_slice() {
            [reply::SUCCESS, list @ ..] => {
                FieldList::from_reply(list).map(|list| list.iter().map(<[u8]>::to_vec).collect())
            }
            _ => None,
        }
    }

    fn count(&self) -> u64 {
        visible_records(&self.context.lock().shared.databases.primary().database)
    }
}

/// A call of `ext` as a background job.
struct ScriptCall {
    shared: Arc<SharedState>,
    name: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    options: u32,
}

impl BackgroundWork for ScriptCall {
    fn len_bytes(&self) -> usize {
        size_of::<ScriptCall>() + self.name.len() + self.key.len() + self.value.len()
    }

    fn perform(&self, is_cancelled: &Arc<AtomicBool>) -> Option<JobAnswer> {
        let ScriptCall { shared, name, key, value, options } = self;
        let (mut output, mut changes) = (ConnectionOutput::default(), Vec::new());
        let scripts = &shared.tyrant.scripts;
        match scripts.call(shared, name, key, value, *options, is_cancelled, &mut changes) {
            Some(result) => reply::put_value(&result, None, &mut output),
            None => reply::put_status(false, &mut output),
        }
        Some((output, changes))
    }

    fn not_done(&self, _why: JobNotDone) -> ConnectionOutput {
        let mut output = ConnectionOutput::default();
        reply::put_status(false, &mut output);
        output
    }
}

impl TyrantSession {
    /// `ext`: calls a function of the script.
    pub(super) fn call_script(
        &mut self,
        context: &mut WorkerContext,
        [name, key, value]: [&[u8]; 3],
        options: u32,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let scripts = &context.shared.tyrant.scripts;
        let is_hidden = name.starts_with(b"_") || scripts.program.lock().is_none();
        let calls = Arc::clone(&scripts.calls);
        let call = ScriptCall {
            shared: Arc::clone(&context.shared),
            name: name.to_vec(),
            key: key.to_vec(),
            value: value.to_vec(),
            options,
        };
        let submitted =
            if is_hidden { None } else { self.submit(context, &calls, Box::new(call), true, false) };
        submitted.unwrap_or_else(|| {
            reply::put_status(false, output);
            NextAction::Continue
        })
    }
}
