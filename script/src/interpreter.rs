//! Runs the procedures of a program in a Lua interpreter. Each worker has an interpreter of its
//! own.

use crate::arguments::text;
use crate::context::{ScriptContext, ScriptOptions};
use crate::database::DatabaseObject;
use crate::error::{self, message};
use crate::source::{DatabaseHandle, ScriptDatabase};
use crate::tyrant::InterpreterShare;
use crate::{LoadError, Program, cursor, database_methods, functions, sandbox, visitor};
use mlua::{Function, Lua, Table, Value};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The return codes of procedures.
pub mod codes {
    /// Success.
    pub const SUCCESS: u32 = 0;
    /// The function does not exist.
    pub const NOT_IMPLEMENTED: u32 = 1;
    /// The input is invalid.
    pub const INVALID: u32 = 2;
    /// The stored data does not satisfy the condition.
    pub const LOGIC: u32 = 3;
    /// The wait ended without a signal.
    pub const TIMED_OUT: u32 = 4;
    /// An internal error. A procedure that ends with a Lua error has this code, too.
    pub const INTERNAL: u32 = 5;
}

/// The stack size that a thread needs to call an [`Interpreter`]. Functions that call back can be
/// nested as deep as Lua permits, about 200 calls, which takes 3 to 4 MiB in an unoptimised build.
/// With a smaller stack such a script ends the process.
pub const STACK_SIZE: usize = 8 << 20;

/// The version that scripts can read. It is the version of the original.
const VERSION: &str = "0.9.56";

/// The outcome of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcedureOutcome {
    /// The return code of the procedure ([`codes`]), or [`codes::INTERNAL`] if it failed.
    pub code: u32,
    /// The error of a failed procedure, with file and line. The error has been logged.
    pub output: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The error of a failed procedure, with file and line. It has been logged.
    pub error: Option<String>,
}

/// A loaded program with access to databases.
pub struct Interpreter {
    lua: Lua,
    context: Arc<ScriptContext>,
    /// The names that existed before the program was loaded. They are not procedures.
    words: Table,
    program: Program,
    /// The part in the state that interpreters with Tokyo Tyrant's functions share.
    pub(crate) share: Option<Arc<InterpreterShare>>,
}

impl fmt::Debug for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interpreter").field("program", &self.program.name).finish_non_exhaustive()
    }
}

impl Interpreter {
    /// Loads a program for a worker. `thread` is the number of the worker, which scripts can query.
    /// `databases` are the databases to which the script has access; the first of them is `db`. The
    /// statements outside of functions run now. If one of them fails, returns the error.
    pub fn new(
        program: &Program,
        databases: Vec<Arc<dyn ScriptDatabase>>,
        thread: usize,
        options: &ScriptOptions,
    ) -> Result<Interpreter, LoadError> {
        Interpreter::load(program, options, |lua, context| {
            let reaches: Vec<_> =
                databases.into_iter().map(|source| DatabaseHandle::new(source, context)).collect();
            let kyoto = vocabulary(lua, context, &reaches, thread)?;
            lua.globals().set("__kyototycoon__", kyoto)
        })
    }

    /// Loads a program with the vocabulary that `define` adds to the globals.
    pub(crate) fn load(
        program: &Program,
        options: &ScriptOptions,
        define: impl FnOnce(&Lua, &Arc<ScriptContext>) -> mlua::Result<()>,
    ) -> Result<Interpreter, LoadError> {
        let load = || -> mlua::Result<Interpreter> {
            let lua = sandbox::new_interpreter(options)?;
            let context = Arc::new(ScriptContext::new(options));
            define(&lua, &context)?;
            sandbox::close(&lua, &context)?;
            let words = lua.create_table()?;
            for pair in lua.globals().pairs::<Value, Value>() {
                let (name, word) = pair?;
                words.raw_set(name, word)?;
            }
            let mut interpreter = Interpreter { lua, context, words, program: program.clone(), share: None };
            interpreter.bounded(None, |lua| program.chunk(lua).exec())?;
            Ok(interpreter)
        };
        load().map_err(|error| LoadError(message(&error)))
    }

    /// Runs code of the script within all limits. If a transaction is still open afterwards, aborts
    /// it and fails, because a successful call promises that its changes are stored.
    pub(crate) fn bounded<T>(
        &mut self,
        called_off: Option<&Arc<AtomicBool>>,
        run: impl FnOnce(&Lua) -> mlua::Result<T>,
    ) -> mlua::Result<T> {
        self.context.deadline.begin(self.context.options.time_max, called_off.cloned());
        self.context.reset_ignored_errors();
        self.lua.set_memory_limit(self.context.options.memory_max)?;
        let outcome = run(&self.lua);
        self.context.deadline.end();
        // The code that runs after the script has no memory limit.
        self.lua.set_memory_limit(0)?;
        let was_open = self.context.abort_all();
        let outcome = outcome.and_then(|value| match was_open {
            false => Ok(value),
            true => Err(mlua::Error::runtime(
                "it has left a transaction open, which is aborted: a transaction lasts for one call at most",
            )),
        });
        if outcome.is_err() {
            self.lua.gc_collect()?;
        }
        outcome
    }

    /// Calls a procedure, which is a function of the program. Returns `None` if the program has no
    /// such function.
    pub fn call<'i>(
        &mut self,
        name: &[u8],
        input: impl IntoIterator<Item = (&'i [u8], &'i [u8])>,
    ) -> Option<ProcedureOutcome> {
        self.run(name, input, None)
    }

    /// Calls a procedure like `call`, and ends it within about a second after `called_off` becomes
    /// true.
    pub fn call_unless<'i>(
        &mut self,
        name: &[u8],
        input: impl IntoIterator<Item = (&'i [u8], &'i [u8])>,
        called_off: &Arc<AtomicBool>,
    ) -> Option<ProcedureOutcome> {
        self.run(name, input, Some(called_off))
    }

    fn run<'i>(
        &mut self,
        name: &[u8],
        input: impl IntoIterator<Item = (&'i [u8], &'i [u8])>,
        called_off: Option<&Arc<AtomicBool>>,
    ) -> Option<ProcedureOutcome> {
        let procedure = self.procedure(name)?;
        let outcome = self.bounded(called_off, |lua| {
            let (given, taken) = (lua.create_table()?, lua.create_table()?);
            for (name, value) in input {
                given.raw_set(lua.create_string(name)?, lua.create_string(value)?)?;
            }
            let code: Value = procedure.call((given, &taken))?;
            let mut output = BTreeMap::new();
            for pair in taken.pairs::<Value, Value>() {
                let (name, value) = pair?;
                if let (Some(name), Some(value)) = (text(lua, name)?, text(lua, value)?) {
                    output.insert(name, value);
                }
            }
            Ok(ProcedureOutcome { code: code_of(lua, code)?, output, error: None })
        });
        Some(outcome.unwrap_or_else(|error| {
            let error = message(&error);
            let name = name.escape_ascii();
            tracing::error!("procedure \"{name}\" of {} has failed: {error}", self.program.name);
            ProcedureOutcome { code: codes::INTERNAL, output: BTreeMap::new(), error: Some(error) }
        }))
    }

    pub(crate) fn procedure(&self, name: &[u8]) -> Option<Function> {
        let name = self.lua.create_string(name).ok()?;
        let value: Value = self.lua.globals().raw_get(&name).ok()?;
        let word: Value = self.words.raw_get(name).ok()?;
        match value {
            Value::Function(procedure) if word != Value::Function(procedure.clone()) => Some(procedure),
            _ => None,
        }
    }
}

/// Converts a return value to a code. A value that is not a number counts as success, as in the
/// original.
fn code_of(lua: &Lua, value: Value) -> mlua::Result<u32> {
    let Some(number) = lua.coerce_number(value).unwrap_or_default() else { return Ok(codes::SUCCESS) };
    Ok(if (0.0..1e9).contains(&number) { number as u32 } else { codes::INTERNAL })
}

fn vocabulary(
    lua: &Lua,
    context: &Arc<ScriptContext>,
    databases: &[DatabaseHandle],
    thread: usize,
) -> mlua::Result<Table> {
    let kyoto = lua.create_table()?;
    for (name, code) in [
        ("RVSUCCESS", codes::SUCCESS),
        ("RVENOIMPL", codes::NOT_IMPLEMENTED),
        ("RVEINVALID", codes::INVALID),
        ("RVELOGIC", codes::LOGIC),
        ("RVEINTERNAL", codes::INTERNAL),
    ] {
        kyoto.set(name, code)?;
    }
    kyoto.set("VERSION", VERSION)?;
    kyoto.set("thid", thread)?;
    functions::define(lua, context, &kyoto)?;
    kyoto.set("Error", error::class(lua)?)?;
    visitor::define(lua, &kyoto)?;
    kyoto.set("Cursor", cursor::class(lua, context)?)?;
    kyoto.set("DB", database_methods::class(lua, context)?)?;
    let all = lua.create_table()?;
    for database in databases {
        let object = lua.create_userdata(DatabaseObject::given(context, database.clone()))?;
        // Each database is also available by its name. If two databases have the same name, the
        // last one counts.
        let name = database.source().name();
        let base = name.path.as_deref().and_then(|path| path.file_name()).map(OsStr::as_encoded_bytes);
        for alias in base.into_iter().chain([name.label().as_bytes()]) {
            all.raw_set(lua.create_string(alias)?, &object)?;
        }
        all.push(object)?;
    }
    kyoto.set("db", all.raw_get::<Value>(1)?)?;
    kyoto.set("dbs", all)?;
    Ok(kyoto)
}
