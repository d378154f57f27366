//! Defines the calls that affect an entire database: transactions, status, files, merges.

use crate::arguments::elements;
use crate::context::ScriptContext;
use crate::database::DatabaseObject;
use crate::error::{CallResult, ScriptError};
use crate::source::DatabaseHandle;
use mlua::{Function, Lua, Table, UserDataMethods, Value};
use std::ops::ControlFlow;
use todana::{OwnedRecord, RecordIter, Records, UpdateAction};

pub(crate) const MERGE_SET: u32 = 0;
pub(crate) const MERGE_ADD: u32 = 1;
pub(crate) const MERGE_REPLACE: u32 = 2;
pub(crate) const MERGE_APPEND: u32 = 3;

/// Passes the database to a function, or to the method `process` of an object. No other client can
/// use the database meanwhile.
fn process(
    lua: &Lua,
    context: &ScriptContext,
    handle: &DatabaseHandle,
    processor: &Value,
) -> mlua::Result<bool> {
    let status = handle.source().database().status();
    let path = lua.create_string(handle.path())?;
    let shown = (path, status.records as f64, status.committed_bytes as f64);
    let outcome = match processor {
        Value::Function(function) => function.call(shown),
        Value::Table(object) => match object.get::<Value>("process")? {
            Value::Function(process) => process.call((object, shown.0, shown.1, shown.2)),
            _ => Ok(false),
        },
        _ => Ok(true),
    };
    context.ignore_error(outcome, false)
}

fn clear(handle: &DatabaseHandle) -> todana::Result<CallResult<()>> {
    if !handle.is_in_transaction() {
        return Ok(Ok(handle.source().clear()?));
    }
    // A transaction has no clear, so the records are removed one by one.
    let mut keys = Vec::new();
    let mut place = None;
    loop {
        place = handle.scan(place, &mut |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        if place.is_none() {
            break;
        }
    }
    for key in keys {
        handle.remove(&key)?;
    }
    Ok(Ok(()))
}

/// Merges a record of another database into this database.
pub(crate) fn merge_record(
    handle: &DatabaseHandle,
    key: &[u8],
    record: &OwnedRecord,
    mode: u32,
) -> todana::Result<()> {
    handle.update(key, &mut |old| match (old, mode) {
        (Some(_), MERGE_ADD) | (None, MERGE_REPLACE) => UpdateAction::Keep,
        (Some(old), MERGE_APPEND) => UpdateAction::Value([old.value, &record.value].concat()),
        _ => UpdateAction::Record(record.clone()),
    })
}

pub(crate) fn add_methods<M: UserDataMethods<DatabaseObject>>(methods: &mut M) {
    methods.add_method("begin_transaction", |_, this, _: Value| {
        Ok(this.attempt_calling(|handle| handle.begin(&this.context))?.is_some())
    });
    methods.add_method("end_transaction", |_, this, commits: Option<bool>| {
        let end = |handle: DatabaseHandle| handle.end(commits.unwrap_or(true));
        Ok(this.keep_error(this.handle().and_then(end)).is_some())
    });
    methods.add_method("transaction", |_, this, (work, _): (Function, Value)| {
        let done = this.attempt_calling(|handle| {
            if let Err(error) = handle.begin(&this.context)? {
                return Ok(Err(error));
            }
            let outcome = work.call::<Value>(());
            // The function may have ended the transaction itself.
            let commits =
                matches!(&outcome, Ok(value) if !matches!(value, Value::Nil | Value::Boolean(false)));
            let ended = if handle.is_in_transaction() { handle.end(commits) } else { Ok(()) };
            outcome.map(|_| ended)
        });
        Ok(done?.is_some())
    });
    methods.add_method("clear", |_, this, ()| Ok(this.attempt(clear).is_some()));
    methods.add_method("count", |_, this, ()| {
        let count = this.attempt(|handle| Ok(Ok(handle.source().database().status().records)));
        Ok(count.map_or(-1.0, |count| count as f64))
    });
    methods.add_method("size", |_, this, ()| {
        let size = this.attempt(|handle| Ok(Ok(handle.source().database().status().committed_bytes)));
        Ok(size.map_or(-1.0, |size| size as f64))
    });
    methods.add_method("path", |_, this, ()| Ok(this.attempt(|handle| Ok(Ok(handle.path())))));
    methods.add_method("status", |lua, this, ()| {
        let facts = this.attempt(|handle| Ok(Ok(handle.source().facts())));
        facts.map(|facts| lua.create_table_from(facts)).transpose()
    });
    methods.add_method("synchronize", |lua, this, (_, processor): (Value, Value)| {
        let done = this.attempt_calling(|handle| {
            if let Err(error) = handle.source().database().sync() {
                return Ok(Err(ScriptError::of(&error)));
            }
            let is_fine = process(lua, &this.context, handle, &processor)?;
            Ok(if is_fine { Ok(()) } else { Err(ScriptError::POSTPROCESSING) })
        });
        Ok(done?.is_some())
    });
    methods.add_method("occupy", |lua, this, (writable, processor): (Option<bool>, Value)| {
        let done = this.attempt_calling(|handle| {
            let run = || {
                let is_fine = process(lua, &this.context, handle, &processor)?;
                Ok(if is_fine { Ok(()) } else { Err(ScriptError::PROCESSING) })
            };
            // No other client can write while a transaction is open.
            if writable.unwrap_or(false) { handle.atomically(&this.context, run) } else { run() }
        });
        Ok(done?.is_some())
    });
    methods.add_method("merge", |_, this, (sources, mode): (Table, Option<u32>)| {
        let mut others = Vec::new();
        for source in elements(&sources) {
            if let Some(object) = source?.as_userdata().filter(|object| object.is::<DatabaseObject>()) {
                others.push(object.borrow::<DatabaseObject>()?.handle());
            }
        }
        let done = this.attempt_calling(|handle| {
            for other in others {
                let other = match other {
                    Ok(other) => other,
                    Err(error) => return Ok(Err(error)),
                };
                for record in RecordIter::new(other).records() {
                    let brought = record.and_then(|(key, record)| {
                        merge_record(handle, &key, &record, mode.unwrap_or(MERGE_SET))
                    });
                    if let Err(error) = brought {
                        return Ok(Err(ScriptError::of(&error)));
                    }
                    this.context.deadline.check()?;
                }
            }
            Ok(Ok(()))
        });
        Ok(done?.is_some())
    });
}
