//! Functions on all records, and functions of the server.

use super::records::{Bytes, succeeded};
use crate::arguments::elements;
use crate::context::{OutsideBytes, ScriptContext};
use crate::source::DatabaseHandle;
use mlua::{FromLua, Function, Lua, MultiValue, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use todana::{RecordIter, Records};
use todana_protocol::tyrant::TyrantPutMode;

/// The functions of the server that scripts call.
pub trait TyrantHost: Send + Sync {
    /// Moves the iterator of the database, which all clients share, to the first record.
    fn restart_iterator(&self) -> bool;

    /// Returns the next key of the iterator. Gives up once `is_over` returns true.
    fn next_key(&self, is_over: &dyn Fn() -> bool) -> Option<Vec<u8>>;

    /// Calls a function of `misc`. Returns `None` if it fails.
    fn misc(&self, name: &[u8], arguments: &[Vec<u8>], bounds: &MiscBounds) -> Option<Vec<Vec<u8>>>;

    /// Returns the size of the database.
    fn size(&self) -> u64;

    /// Returns the commands that differ from those on plain records. `None` means that the
    /// database has plain records.
    fn typed_records(&self) -> Option<&dyn TypedRecords> {
        None
    }
}

/// The bounds of a function of `misc`.
#[derive(Clone, Debug)]
pub struct MiscBounds {
    /// Set once the time of the script's call is over.
    pub is_cancelled: Arc<AtomicBool>,
    /// The longest list, in bytes.
    pub list_len_max: usize,
}

impl MiscBounds {
    /// Returns bounds for the rest of a call.
    fn of(lua: &Lua, context: &ScriptContext, is_cancelled: &Arc<AtomicBool>) -> MiscBounds {
        let list_len_max = context.options.memory_max.saturating_sub(lua.used_memory());
        MiscBounds { is_cancelled: Arc::clone(is_cancelled), list_len_max }
    }
}

/// The functions of `misc` that may read many records.
const LONG_FUNCTIONS: [&[u8]; 5] = [b"regex", b"range", b"search", b"metasearch", b"iterinit"];

/// Commands on a table, whose values are rows, or on a database whose keys are numbers. They have
/// the effect of a client's commands.
pub trait TypedRecords {
    /// Returns true if the database is a table.
    fn is_table(&self) -> bool;

    /// Stores a value: the joined columns of a row, or a value that is cut to the width. Returns
    /// true if the value was stored.
    fn put(&self, mode: TyrantPutMode, key: &[u8], value: &[u8]) -> bool;

    /// Adds to the number of a row. Returns the sum.
    fn add_to_row(&self, key: &[u8], delta: f64) -> Option<f64>;

    /// Returns the keys that `fwmkeys` lists.
    fn keys(&self, prefix: &[u8], limit: usize, bounds: &MiscBounds) -> Option<Vec<Vec<u8>>>;

    /// Returns the number of records that clients see.
    fn count(&self) -> u64;
}

/// Returns true if a key is that of a table's definitions, which scripts do not see.
pub(super) fn is_hidden(host: &dyn TyrantHost, key: &[u8]) -> bool {
    key.is_empty() && host.typed_records().is_some_and(TypedRecords::is_table)
}

pub(super) fn define(
    lua: &Lua,
    shared_context: &Arc<ScriptContext>,
    handle: &DatabaseHandle,
    host: Arc<dyn TyrantHost>,
) -> mlua::Result<()> {
    let globals = lua.globals();
    let of = Arc::clone(&host);
    globals.set("_iterinit", lua.create_function(move |_, ()| Ok(of.restart_iterator()))?)?;
    let (of, context) = (Arc::clone(&host), Arc::clone(shared_context));
    let next = move |lua: &Lua, ()| {
        let key = of.next_key(&|| context.deadline.left().is_zero());
        key.map(|key| lua.create_string(key)).transpose()
    };
    globals.set("_iternext", lua.create_function(next)?)?;
    let of = Arc::clone(&host);
    globals.set("_size", lua.create_function(move |_, ()| Ok(of.size() as f64))?)?;
    let (of, typed) = (handle.clone(), Arc::clone(&host));
    let count = move |_: &Lua, ()| {
        let count = typed.typed_records().map(TypedRecords::count);
        Ok(count.unwrap_or_else(|| of.source().database().status().records) as f64)
    };
    globals.set("_rnum", lua.create_function(count)?)?;
    let of = handle.clone();
    let vanish = move |_: &Lua, ()| Ok(succeeded(of.source().clear().map(|()| true)));
    globals.set("_vanish", lua.create_function(vanish)?)?;
    let (of, typed, context) = (handle.clone(), Arc::clone(&host), Arc::clone(shared_context));
    let prefixed = move |lua: &Lua, (prefix, limit): (Bytes, Option<f64>)| {
        let limit = limit.filter(|&limit| limit >= 0.0).map_or(usize::MAX, |limit| limit as usize);
        let found = lua.create_table()?;
        if limit == 0 {
            return Ok(found);
        }
        if let Some(typed) = typed.typed_records() {
            let keys = context.deadline.cancel_late(|is_cancelled| {
                typed.keys(&prefix.0, limit, &MiscBounds::of(lua, &context, is_cancelled))
            });
            context.deadline.check()?;
            for key in keys.unwrap_or_default() {
                found.push(lua.create_string(key)?)?;
                context.deadline.check()?;
            }
            return Ok(found);
        }
        for key in of.prefix(&prefix.0).keys() {
            found.push(lua.create_string(key.map_err(mlua::Error::external)?)?)?;
            context.deadline.check()?;
            if found.raw_len() >= limit {
                break;
            }
        }
        Ok(found)
    };
    globals.set("_fwmkeys", lua.create_function(prefixed)?)?;
    let (of, typed, context) = (handle.clone(), Arc::clone(&host), Arc::clone(shared_context));
    let each = move |lua: &Lua, visit: Function| {
        for record in RecordIter::new(of.clone()) {
            let Ok((key, value)) = record else { return Ok(false) };
            if is_hidden(&*typed, &key) {
                continue;
            }
            if !visit.call::<bool>((lua.create_string(key)?, lua.create_string(value)?))? {
                break;
            }
            context.deadline.check()?;
        }
        Ok(true)
    };
    globals.set("_foreach", lua.create_function(each)?)?;
    let context = Arc::clone(shared_context);
    let misc = move |lua: &Lua, given: MultiValue| misc(lua, &context, &*host, given);
    globals.set("_misc", lua.create_function(misc)?)
}

/// `_misc(name, ...)`: the arguments are values, or arrays of them.
fn misc(lua: &Lua, context: &ScriptContext, host: &dyn TyrantHost, given: MultiValue) -> mlua::Result<Value> {
    let (mut arguments, mut outside) = (Vec::new(), OutsideBytes::new(context));
    for value in given {
        match value {
            Value::Table(array) => {
                for value in elements(&array) {
                    let bytes = Bytes::from_lua(value?, lua)?.0;
                    // The host copies the arguments.
                    outside.take(lua, 2 * (bytes.len() + size_of::<Vec<u8>>()))?;
                    arguments.push(bytes);
                }
            }
            Value::Boolean(value) => arguments.push(value.to_string().into_bytes()),
            value => arguments.push(Bytes::from_lua(value, lua)?.0),
        }
    }
    let Some((name, arguments)) = arguments.split_first() else {
        return Err(mlua::Error::runtime("_misc: needs the name of a function"));
    };
    // `$` keeps the call out of the update log of the original. Here it is logged like all others,
    // because the log keeps the records safe.
    let name = name.strip_prefix(b"$").unwrap_or(name);
    let call = |is_cancelled: &Arc<AtomicBool>| {
        host.misc(name, arguments, &MiscBounds::of(lua, context, is_cancelled))
    };
    let found = if LONG_FUNCTIONS.contains(&name) {
        context.deadline.cancel_late(call)
    } else {
        call(&Arc::default())
    };
    context.deadline.check()?;
    let Some(found) = found else { return Ok(Value::Nil) };
    let array = lua.create_table()?;
    for element in found {
        array.push(lua.create_string(element)?)?;
        context.deadline.check()?;
    }
    Ok(Value::Table(array))
}
