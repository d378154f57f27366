//! Procedures in Lua with Tokyo Tyrant's API: the second vocabulary of the interpreter.
//!
//! ```text
//! records     _put _putkeep _putcat _out _get _vsiz _addint _adddouble
//! listing     _iterinit _iternext _fwmkeys _foreach _vanish _rnum _size, and _misc
//! map_reduce  _mapreduce
//! sharing     _stash... _lock _unlock _eval: state that all interpreters share
//! coding      _codec _hash _ucs _pack _unpack _bit
//! sets        _isect _union
//! files       _stat _glob _remove _mkdir, within one directory
//! ```
//!
//! A procedure is a global function of the program with a key and a value. Names that begin with
//! `_` are not called by clients; `_begin` and `_end` are called at the start and end of the
//! server.
//!
//! Invariants: as in the first vocabulary, a call is bounded in time and memory; a name that it has
//! locked is free afterwards.

mod coding;
mod files;
mod listing;
mod map_reduce;
mod records;
mod sets;
mod sharing;

pub use listing::{MiscBounds, TypedRecords, TyrantHost};
pub(crate) use sharing::InterpreterShare;
pub use sharing::SharedScriptState;

use crate::context::{ScriptContext, ScriptOptions};
use crate::error::message;
use crate::functions;
use crate::interpreter::Interpreter;
use crate::source::{DatabaseHandle, ScriptDatabase};
use crate::{LoadError, Program};
use mlua::{Lua, MultiValue, Table, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The version that scripts see, which is the original's.
const VERSION: &str = "1.1.41";

/// The properties of one interpreter of a server.
pub struct TyrantPlace {
    /// The database.
    pub database: Arc<dyn ScriptDatabase>,
    /// The functions of the server.
    pub host: Arc<dyn TyrantHost>,
    /// The state that all interpreters share.
    pub shared: Arc<SharedScriptState>,
    /// The number of this interpreter.
    pub thread: usize,
    /// The number of interpreters of workers.
    pub threads: usize,
    /// The ID of the server.
    pub server_id: u32,
}

impl Interpreter {
    /// Loads a program with Tokyo Tyrant's functions. Statements outside of functions run now, and
    /// their errors are returned.
    pub fn of_tyrant(
        program: &Program,
        place: TyrantPlace,
        options: &ScriptOptions,
    ) -> Result<Interpreter, LoadError> {
        let share = Arc::new(InterpreterShare::new(&place.shared));
        let mut interpreter = Interpreter::load(program, options, |lua, context| {
            define(lua, context, place, &share)?;
            Ok(())
        })?;
        interpreter.share = Some(share);
        Ok(interpreter)
    }

    /// Calls a procedure with a key and a value, and returns its result. Returns `None` if no
    /// procedure has this name, if it fails, or if its result is nil, false or an empty table. Ends
    /// it within about a second after `called_off` is set.
    pub fn call_with_key(
        &mut self,
        name: &[u8],
        key: &[u8],
        value: &[u8],
        called_off: Option<&Arc<AtomicBool>>,
    ) -> Option<Vec<u8>> {
        let procedure = self.procedure(name)?;
        let share = self.share.clone();
        let outcome = self.bounded(called_off, |lua| {
            if let Some(share) = &share {
                share.evaluate(lua);
            }
            let arguments = (lua.create_string(key)?, lua.create_string(value)?);
            let results: MultiValue = procedure.call(arguments)?;
            result(results.into_iter().next().unwrap_or(Value::Nil))
        });
        if let Some(share) = &self.share {
            share.unlock_all();
        }
        outcome.unwrap_or_else(|error| {
            tracing::error!("script function \"{}\": {}", name.escape_ascii(), message(&error));
            None
        })
    }
}

/// Converts the result of a procedure.
fn result(value: Value) -> mlua::Result<Option<Vec<u8>>> {
    Ok(match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Number(number) => Some(decimal(number).into_bytes()),
        Value::Boolean(true) => Some(b"true".to_vec()),
        Value::Table(table) => match table.raw_get::<Value>(1)? {
            // A table within a table is no result, so that the depth is bounded.
            Value::Table(_) => None,
            first => result(first)?,
        },
        _ => None,
    })
}

/// Returns a number as Lua 5.1 prints it, with up to 14 digits.
fn decimal(number: f64) -> String {
    if number.is_nan() {
        return if number.is_sign_negative() { "-nan".into() } else { "nan".into() };
    }
    if number.is_infinite() {
        return if number < 0.0 { "-inf".into() } else { "inf".into() };
    }
    let scientific = format!("{number:.13e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..14).contains(&exponent) {
        return trimmed(&format!("{number:.*}", usize::try_from(13 - exponent).unwrap_or(0)));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
}

/// Defines all functions as globals.
fn define(
    lua: &Lua,
    context: &Arc<ScriptContext>,
    place: TyrantPlace,
    share: &Arc<InterpreterShare>,
) -> mlua::Result<()> {
    let globals = lua.globals();
    globals.set("_version", VERSION)?;
    globals.set("_pid", std::process::id())?;
    globals.set("_sid", place.server_id)?;
    globals.set("_thnum", place.threads)?;
    globals.set("_thid", place.thread)?;
    // Functions that both vocabularies have.
    let kyoto: Table = lua.create_table()?;
    functions::define(lua, context, &kyoto)?;
    for (own, of_kyoto) in [
        ("_split", "split"),
        ("_strstr", "strstr"),
        ("_regex", "regex"),
        ("_dist", "levdist"),
        ("_pack", "pack"),
        ("_unpack", "unpack"),
        ("_bit", "bit"),
        ("_time", "time"),
        ("_sleep", "sleep"),
    ] {
        globals.set(own, kyoto.get::<Value>(of_kyoto)?)?;
    }
    let handle = DatabaseHandle::new(place.database, context);
    records::define(lua, &handle, &place.host)?;
    map_reduce::define(lua, context, &handle, &place.host)?;
    listing::define(lua, context, &handle, place.host)?;
    sharing::define(lua, context, share)?;
    coding::define(lua, context, kyoto.get("codec")?)?;
    sets::define(lua, context)?;
    files::define(lua, context)?;
    globals.set("_log", lua.create_function(log)?)
}

/// `_log(text, level)`: 0 debug, 1 information, 2 error, 3 system.
fn log(_: &Lua, (text, level): (mlua::LuaString, Option<f64>)) -> mlua::Result<()> {
    let text = text.to_string_lossy();
    match level.unwrap_or(1.0) as i64 {
        0 => tracing::trace!("{text}"),
        2 => tracing::error!("{text}"),
        3 => tracing::info!("{text}"),
        _ => tracing::debug!("{text}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::decimal;

    #[test]
    fn numbers_have_fourteen_digits() {
        for (number, text) in [
            (0.0, "0"),
            (5.0, "5"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (1.0 / 3.0, "0.33333333333333"),
            (123_456_789_012.0, "123456789012"),
            (1e14, "1e+14"),
            (1.5e300, "1.5e+300"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(decimal(number), text);
        }
    }
}
