//! Executes Lua procedures: holds the program and the interpreters that run it in background jobs.

use crate::databases::pending_commits::DatabaseCommits;
use crate::execution::LocalDatabase;
use crate::shared::SharedState;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana::{Database, DatabaseName, Transaction, TransactionHolder};
use todana_core::{Error, ErrorKind, Result as ProcedureOutcome};
use todana_protocol::kyoto::{AnswerStatus, CallFailure};
use todana_script::{Interpreter, LoadError, Program, ScriptDatabase, ScriptOptions, codes};

/// The program as it was last read.
#[derive(Default)]
pub(crate) struct LuaProcedures {
    path: Option<PathBuf>,
    program: Mutex<Option<Program>>,
    /// The number of times that the program was read.
    readings: AtomicU64,
    machines: Mutex<ScriptMachines>,
}

/// Pairs of names and values.
pub(super) type ScriptPairs = Vec<(Vec<u8>, Vec<u8>)>;

impl LuaProcedures {
    /// Reads the program. Without a path there are no procedures. Fails if the file is not a Lua
    /// program.
    pub(crate) fn open(path: Option<&Path>) -> Result<LuaProcedures, LoadError> {
        let program = path.map(Program::load).transpose()?;
        Ok(LuaProcedures {
            path: path.map(Path::to_owned),
            program: Mutex::new(program),
            ..LuaProcedures::default()
        })
    }

    /// Reads the program again. Each machine loads the new program before its next call. If the
    /// program cannot be read, the old one stays in use.
    pub(crate) fn reload(&self) {
        match self.path.as_deref().map(Program::load) {
            None => {}
            Some(Ok(program)) => {
                *self.program.lock() = Some(program);
                self.readings.fetch_add(1, Ordering::Release);
                tracing::info!("script: reloaded");
            }
            Some(Err(error)) => {
                tracing::error!("script: not reloaded, the old one stays in use: {error}")
            }
        }
    }
}

/// A machine: an interpreter that has loaded the program. One call uses it at a time.
struct ScriptMachine {
    /// The thread number that scripts see.
    number: usize,
    /// The value of `readings` when this machine loaded the program.
    reading: u64,
    /// The interpreter; `None` if loading the program failed.
    interpreter: Option<Interpreter>,
    databases: Vec<LocalDatabase>,
}

/// The machines that no call uses at present.
#[derive(Default)]
struct ScriptMachines {
    idle: Vec<ScriptMachine>,
    made: usize,
    is_closed: bool,
}

impl ScriptDatabase for LocalDatabase {
    fn database(&self) -> &Database {
        TransactionHolder::database(self)
    }

    fn name(&self) -> &DatabaseName {
        &self.served().name
    }

    fn try_begin(&self) -> ProcedureOutcome<Option<Transaction<'static>>> {
        TransactionHolder::database(self).refuse_if_read_only()?;
        Ok(Transaction::try_begin_held(Arc::new(self.clone())))
    }

    fn clear(&self) -> ProcedureOutcome<()> {
        if !self.is_flush_allowed() {
            return Err(Error::new(ErrorKind::Invalid, "this server does not remove everything at once"));
        }
        LocalDatabase::clear(self)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        super::report::facts(self.served()).into()
    }
}

const FAILED: &str = "the scripting procedure failed";

impl LuaProcedures {
    /// Returns true if there is a program.
    pub(super) fn has_program(&self) -> bool {
        self.program.lock().is_some()
    }

    /// Drops all machines and accepts no more calls.
    pub(crate) fn close(&self) {
        let mut machines = self.machines.lock();
        machines.is_closed = true;
        let idle = std::mem::take(&mut machines.idle);
        drop(machines);
        drop(idle);
    }

    /// Returns a machine with the program as it was last read.
    fn machine(&self, shared: &Arc<SharedState>) -> Result<ScriptMachine, CallFailure<'static>> {
        let reading = self.readings.load(Ordering::Acquire);
        let (number, databases) = {
            let mut machines = self.machines.lock();
            match machines.idle.pop() {
                Some(machine) if machine.reading == reading => return Ok(machine),
                Some(machine) => (machine.number, machine.databases),
                None => {
                    machines.made += 1;
                    (machines.made - 1, Vec::new())
                }
            }
        };
        let databases = match databases {
            none if none.is_empty() => LocalDatabase::all(shared),
            databases => databases,
        };
        let program = self.program.lock().clone().ok_or(CallFailure::SCRIPTING_DISABLED)?;
        let sources =
            databases.iter().map(|local| Arc::new(local.clone()) as Arc<dyn ScriptDatabase>).collect();
        let options = ScriptOptions {
            files: shared.options.protocols.kyoto.files.clone(),
            time_max: shared.options.protocols.kyoto.script_time_max,
            memory_max: shared.options.protocols.kyoto.script_memory_max,
            ..ScriptOptions::default()
        };
        let loaded = Interpreter::new(&program, sources, number, &options);
        let loaded = loaded.inspect_err(|error| tracing::error!("script: cannot be loaded: {error}"));
        Ok(ScriptMachine { number, reading, interpreter: loaded.ok(), databases })
    }

    /// Calls a procedure and returns its output or its failure. Adds to `changes` the changes that
    /// must be durable before either is sent.
    pub(super) fn play(
        &self,
        shared: &Arc<SharedState>,
        name: &[u8],
        input: &ScriptPairs,
        cancelled: &Arc<AtomicBool>,
        changes: &mut DatabaseCommits,
    ) -> Result<ScriptPairs, CallFailure<'static>> {
        // A script may write, and its writes are known only while it runs.
        if shared.options.protocols.kyoto.read_only {
            let text = "scripts need a server that may be written to";
            return Err(CallFailure::Other { status: AnswerStatus::InternalError, text });
        }
        let mut machine = self.machine(shared)?;
        let outcome = machine.interpreter.as_mut().map(|interpreter| {
            let input = input.iter().map(|(name, value)| (&name[..], &value[..]));
            interpreter.call_unless(name, input, cancelled)
        });
        let databases = machine.databases.iter();
        changes.extend(databases.filter_map(|local| Some((local.number(), local.take_commit()?))));
        let mut machines = self.machines.lock();
        if !machines.is_closed {
            machines.idle.push(machine);
        }
        drop(machines);
        let Some(outcome) = outcome else {
            return Err(CallFailure::Other { status: AnswerStatus::InternalError, text: FAILED });
        };
        let outcome = outcome.ok_or(CallFailure::NO_SUCH_SCRIPT)?;
        let status = match outcome.code {
            codes::SUCCESS => return Ok(outcome.output.into_iter().collect()),
            codes::NOT_IMPLEMENTED => return Err(CallFailure::NO_SUCH_SCRIPT),
            codes::INVALID => AnswerStatus::BadRequest,
            codes::LOGIC => AnswerStatus::LogicalInconsistency,
            codes::TIMED_OUT => AnswerStatus::TimedOut,
            _ => AnswerStatus::InternalError,
        };
        Err(CallFailure::Other { status, text: FAILED })
    }
}
