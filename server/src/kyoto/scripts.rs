//! Procedures of the script: the program that all workers share, and the machine of each.

use super::executor::{Answer, Scope};
use super::procedures::Ended;
use super::reach::Reach;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use todana::{Database, Holder, Lane, Name, Transaction};
use todana_core::{Error, ErrorKind, Result as Outcome};
use todana_protocol::kyoto::{self, Call, Failure, Script, Status, binary};
use todana_script::{Interpreter, LoadError, Options, Program, Source, codes};

/// The program, as it was last read.
#[derive(Default)]
pub(crate) struct Scripts {
    path: Option<PathBuf>,
    program: Mutex<Option<Program>>,
    /// Goes up with each reading.
    readings: AtomicU64,
}

/// Names and values.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

impl Scripts {
    /// Reads the program; without a path there are no procedures. Fails if it is no Lua.
    pub(crate) fn open(path: Option<&Path>) -> Result<Scripts, LoadError> {
        let program = path.map(Program::load).transpose()?;
        Ok(Scripts { path: path.map(Path::to_owned), program: Mutex::new(program), ..Scripts::default() })
    }

    /// Reads it again: workers load it before the next call. One that cannot be read changes nothing.
    pub(crate) fn reload(&self) {
        match self.path.as_deref().map(Program::load) {
            None => {}
            Some(Ok(program)) => {
                *self.program.lock() = Some(program);
                self.readings.fetch_add(1, Ordering::Release);
                tracing::info!("the script was read again");
            }
            Some(Err(error)) => tracing::error!("the script in use stays: {error}"),
        }
    }
}

/// The machine of a worker, and which reading of the program it has; `None` if that did not load.
#[derive(Default)]
pub(crate) struct Machine(Mutex<Option<(u64, Option<Interpreter>)>>);

impl Holder for Reach {
    fn database(&self) -> &Database {
        &self.served().database
    }

    fn lane(&self) -> &Lane {
        Reach::lane(self)
    }
}

impl Source for Reach {
    fn database(&self) -> &Database {
        &self.served().database
    }

    fn name(&self) -> &Name {
        &self.served().name
    }

    fn try_begin(&self) -> Outcome<Option<Transaction<'static>>> {
        Ok(Transaction::try_begin_held(Arc::new(self.clone())))
    }

    fn clear(&self) -> Outcome<()> {
        if !self.flush_allowed() {
            return Err(Error::new(ErrorKind::Invalid, "this server does not remove everything at once"));
        }
        self.served().database.clear(Reach::lane(self))
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        super::report::facts(self).into()
    }
}

const FAILED: &str = "the scripting procedure failed";

impl Scope {
    /// Calls a procedure: its output, or why there is none.
    fn run<'i>(
        &self,
        name: &[u8],
        input: impl Iterator<Item = (&'i [u8], &'i [u8])>,
    ) -> Result<Pairs, Failure<'static>> {
        let scripts = &self.shared.scripts;
        let readings = scripts.readings.load(Ordering::Acquire);
        let mut machine = self.machine.0.lock();
        if !matches!(&*machine, Some((of, _)) if *of == readings) {
            let Some(program) = scripts.program.lock().clone() else {
                return Err(Failure::SCRIPTING_DISABLED);
            };
            let reach = |reach: &Reach| Arc::new(reach.clone()) as Arc<dyn Source>;
            let databases = self.reaches().iter().map(reach).collect();
            let options = Options { files: self.shared.options.kyoto_files.clone(), ..Options::default() };
            let loaded = Interpreter::new(&program, databases, self.worker, &options);
            let loaded = loaded.inspect_err(|error| tracing::error!("the script cannot be run: {error}"));
            *machine = Some((readings, loaded.ok()));
        }
        let Some((_, Some(interpreter))) = &mut *machine else {
            return Err(Failure::Other { status: Status::InternalError, text: FAILED });
        };
        // A script writes as it likes, and cannot be told beforehand to do it not.
        if self.is_read_only() {
            return Err(Failure::Other {
                status: Status::InternalError,
                text: "scripts need a server that may be written to",
            });
        }
        let outcome = interpreter.call(name, input).ok_or(Failure::NO_SUCH_SCRIPT)?;
        let status = match outcome.code {
            codes::SUCCESS => return Ok(outcome.output.into_iter().collect()),
            codes::NOT_IMPLEMENTED => return Err(Failure::NO_SUCH_SCRIPT),
            codes::INVALID => Status::BadRequest,
            codes::LOGIC => Status::LogicalInconsistency,
            codes::TIMED_OUT => Status::TimedOut,
            _ => Status::InternalError,
        };
        Err(Failure::Other { status, text: FAILED })
    }

    /// `play_script`.
    pub(super) fn play_script(
        &self,
        call: &Call<'_>,
        pairs: &mut kyoto::Output,
        answer: &mut Answer<'_>,
    ) -> Ended {
        self.counters().script.add(1);
        let name = call.required(b"name")?;
        if name.is_empty() || !name.iter().all(u8::is_ascii_alphanumeric) {
            return Err(Failure::InvalidParameters);
        }
        let output = self.run(name, call.records())?;
        pairs.clear();
        output.iter().for_each(|(name, value)| pairs.push_record(name, value));
        answer.done_with(pairs);
        Ok(())
    }

    /// The same of the binary protocol.
    pub(super) fn script(&self, script: &Script<'_>, output: &mut crate::output::Output) {
        self.counters().script.add(1);
        let outcome = self.run(script.name, script.input.iter());
        match outcome {
            _ if script.is_silent => {}
            Ok(pairs) => {
                let pairs = pairs.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
                binary::put_script_answer(pairs, output);
            }
            Err(_) => binary::put_error(output),
        }
    }
}
