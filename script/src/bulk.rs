//! Defines the methods of database objects that affect many records.

use crate::arguments::{CountLimit, elements, listed};
use crate::context::ScriptContext;
use crate::database::{DatabaseObject, no_visitor};
use crate::error::{CallResult, ScriptError};
use crate::functions::regex;
use crate::source::DatabaseHandle;
use crate::visitor::ScriptVisitor;
use mlua::{Lua, LuaString, Table, UserDataMethods, Value};
use todana::{KeySymbols, RecordIter, Records};

/// The number of keys that are checked between two checks of the deadline.
const KEYS_AT_ONCE: usize = 1000;

/// Returns the keys in an array.
fn keys(lua: &Lua, array: &Table) -> mlua::Result<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    for value in elements(array) {
        keys.extend(listed(lua, value?)?);
    }
    Ok(keys)
}

/// Runs in a transaction if `atomic` is true, which is the default.
fn together<T>(
    handle: &DatabaseHandle,
    context: &ScriptContext,
    atomic: Option<bool>,
    mut run: impl FnMut() -> todana::Result<T>,
) -> mlua::Result<CallResult<T>> {
    let mut run = || Ok(run().map_err(|error| ScriptError::of(&error)));
    if atomic.unwrap_or(true) { handle.atomically(context, run) } else { run() }
}

/// Returns up to `max` matching keys. Fails if their total size exceeds the memory limit of an
/// interpreter.
fn find(
    context: &ScriptContext,
    all: RecordIter<DatabaseHandle>,
    max: CountLimit,
    matches: impl Fn(&[u8]) -> bool,
) -> mlua::Result<CallResult<Vec<Vec<u8>>>> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    for (count, key) in all.keys().enumerate() {
        if found.len() >= max.0 {
            break;
        }
        let key = match key {
            Ok(key) => key,
            Err(error) => return Ok(Err(ScriptError::of(&error))),
        };
        if matches(&key) {
            bytes += key.len() + size_of::<Vec<u8>>();
            if bytes > context.options.memory_max {
                return Err(mlua::Error::MemoryError("more keys match than fit into memory".into()));
            }
            found.push(key);
        }
        if count % KEYS_AT_ONCE == 0 {
            context.deadline.check()?;
        }
    }
    Ok(Ok(found))
}

fn array(lua: &Lua, keys: Option<Vec<Vec<u8>>>) -> mlua::Result<Option<Table>> {
    let Some(keys) = keys else { return Ok(None) };
    let keys = keys.into_iter().map(|key| lua.create_string(key)).collect::<mlua::Result<Vec<_>>>()?;
    lua.create_sequence_from(keys).map(Some)
}

pub(crate) fn add_methods<M: UserDataMethods<DatabaseObject>>(methods: &mut M) {
    methods.add_method(
        "set_bulk",
        |lua, this, (table, time_argument, atomic): (Table, Value, Option<bool>)| {
            // Some scripts pass the flag `atomic` in the place of the time.
            let (time_argument, atomic) = match time_argument {
                Value::Boolean(atomic) => (None, Some(atomic)),
                time_argument => (lua.coerce_number(time_argument)?, atomic),
            };
            let mut records = Vec::new();
            for pair in table.pairs::<Value, Value>() {
                let (key, value) = pair?;
                records.extend(listed(lua, key)?.zip(listed(lua, value)?));
            }
            let stored = this.attempt_calling(|handle| {
                let time = this.time(handle, time_argument);
                let kyoto = handle.kyoto();
                together(handle, &this.context, atomic, || {
                    records.iter().try_for_each(|(key, value)| kyoto.set(key, value, time))
                })
            });
            Ok(stored?.map_or(-1.0, |()| records.len() as f64))
        },
    );
    methods.add_method("remove_bulk", |lua, this, (table, atomic): (Table, Option<bool>)| {
        let keys = keys(lua, &table)?;
        let removed = this.attempt_calling(|handle| {
            let kyoto = handle.kyoto();
            together(handle, &this.context, atomic, || {
                keys.iter().try_fold(0u64, |count, key| Ok(count + u64::from(kyoto.remove(key)?)))
            })
        });
        Ok(removed?.map_or(-1.0, |removed| removed as f64))
    });
    methods.add_method("get_bulk", |lua, this, (table, atomic): (Table, Option<bool>)| {
        let (keys, mut found) = (keys(lua, &table)?, Vec::new());
        let memory_max = this.context.options.memory_max;
        let done = this.attempt_calling(|handle| {
            let done = together(handle, &this.context, atomic, || {
                let mut bytes = 0;
                for key in &keys {
                    handle.view(key, &mut |record| {
                        bytes += record.value.len();
                        if bytes <= memory_max {
                            found.push((key, record.value.to_vec()));
                        }
                    })?;
                }
                Ok(bytes <= memory_max)
            })?;
            match done {
                Ok(false) => Err(mlua::Error::MemoryError("these records do not fit into memory".into())),
                done => Ok(done),
            }
        });
        if done?.is_none() {
            return Ok(None);
        }
        let table = lua.create_table()?;
        for (key, value) in found {
            table.raw_set(lua.create_string(key)?, lua.create_string(value)?)?;
        }
        Ok(Some(table))
    });
    type AcceptArguments = (Table, Value, Option<bool>);
    methods.add_method("accept_bulk", |lua, this, (table, visitor, writable): AcceptArguments| {
        let visitor = ScriptVisitor::of(visitor)?.ok_or_else(|| no_visitor("accept_bulk"))?;
        let (keys, writes) = (keys(lua, &table)?, writable.unwrap_or(true));
        visitor.call_method(&this.context, "visit_before")?;
        let done = this.attempt_calling(|handle| {
            let each = || {
                for key in &keys {
                    if let Err(error) = visitor.visit(lua, &this.context, handle, key, None, writes)? {
                        return Ok(Err(error));
                    }
                }
                Ok(Ok(()))
            };
            if writes { handle.atomically(&this.context, each) } else { each() }
        })?;
        visitor.call_method(&this.context, "visit_after")?;
        Ok(done.is_some())
    });
    methods.add_method("match_prefix", |lua, this, (prefix, max): (LuaString, CountLimit)| {
        let found = this.attempt_calling(|handle| {
            let all = RecordIter::with_prefix(handle.clone(), &prefix.as_bytes());
            find(&this.context, all, max, |_| true)
        });
        array(lua, found?)
    });
    methods.add_method("match_regex", |lua, this, (pattern, max): (LuaString, CountLimit)| {
        let found = this.attempt_calling(|handle| {
            let Some(regex) = regex(&pattern.as_bytes()) else {
                return Ok(Err(ScriptError::COMPILATION));
            };
            find(&this.context, RecordIter::new(handle.clone()), max, |key| regex.is_match(key))
        });
        array(lua, found?)
    });
    type SimilarArguments = (LuaString, CountLimit, Option<bool>, CountLimit);
    methods.add_method("match_similar", |lua, this, (origin, range, utf, max): SimilarArguments| {
        let found = this.attempt(|handle| {
            let symbols = if utf.unwrap_or(false) { KeySymbols::Characters } else { KeySymbols::Bytes };
            Ok(Ok(handle.match_similar(&origin.as_bytes(), range.0, symbols, max.0)?))
        });
        array(lua, found.map(|found| found.into_iter().map(|(key, _)| key).collect()))
    });
}
