//! Calls that affect an entire database: transactions, status, files, merges.

use crate::arguments::elements;
use crate::database::DatabaseObject;
use crate::error::{CallResult, ScriptError};
use crate::source::DatabaseHandle;
use crate::world::ScriptContext;
use mlua::{Function, Lua, Table, UserDataMethods, Value};
use std::ops::ControlFlow;
use todana::{OwnedRecord, RecordIter, Records, UpdateAction};

pub(crate) const MERGE_SET: u32 = 0;
pub(crate) const MERGE_ADD: u32 = 1;
pub(crate) const MERGE_REPLACE: u32 = 2;
pub(crate) const MERGE_APPEND: u32 = 3;

/// Passes the database to a function or to the method `process` of an object, while no other client
/// can use it.
fn process(
    lua: &Lua,
    world: &ScriptContext,
    reach: &DatabaseHandle,
    processor: &Value,
) -> mlua::Result<bool> {
    let status = reach.source().database().status();
    let path = lua.create_string(reach.path())?;
    let shown = (path, status.records as f64, status.committed_bytes as f64);
    let outcome = match processor {
        Value::Function(function) => function.call(shown),
        Value::Table(object) => match object.get::<Value>("process")? {
            Value::Function(process) => process.call((object, shown.0, shown.1, shown.2)),
            _ => Ok(false),
        },
        _ => Ok(true),
    };
    world.overlook(outcome, false)
}

fn clear(reach: &DatabaseHandle) -> todana::Result<CallResult<()>> {
    if !reach.is_in_transaction() {
        return Ok(Ok(reach.source().clear()?));
    }
    // A transaction removes the records one by one.
    let mut keys = Vec::new();
    let mut place = None;
    loop {
        place = reach.scan(place, &mut |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        if place.is_none() {
            break;
        }
    }
    for key in keys {
        reach.remove(&key)?;
    }
    Ok(Ok(()))
}

/// Merges a record of another database.
pub(crate) fn bring(
    reach: &DatabaseHandle,
    key: &[u8],
    record: &OwnedRecord,
    mode: u32,
) -> todana::Result<()> {
    reach.update(key, &mut |old| match (old, mode) {
        (Some(_), MERGE_ADD) | (None, MERGE_REPLACE) => UpdateAction::Keep,
        (Some(old), MERGE_APPEND) => UpdateAction::Value([old.value, &record.value].concat()),
        _ => UpdateAction::Record(record.clone()),
    })
}

pub(crate) fn add_methods<M: UserDataMethods<DatabaseObject>>(methods: &mut M) {
    methods.add_method("begin_transaction", |_, this, _: Value| {
        Ok(this.attempt_calling(|reach| reach.begin(&this.world))?.is_some())
    });
    methods.add_method("end_transaction", |_, this, commits: Option<bool>| {
        let end = |reach: DatabaseHandle| reach.end(commits.unwrap_or(true));
        Ok(this.told(this.reach().and_then(end)).is_some())
    });
    methods.add_method("transaction", |_, this, (work, _): (Function, Value)| {
        let done = this.attempt_calling(|reach| {
            if let Err(trouble) = reach.begin(&this.world)? {
                return Ok(Err(trouble));
            }
            let outcome = work.call::<Value>(());
            // The function may have ended the transaction itself.
            let commits =
                matches!(&outcome, Ok(value) if !matches!(value, Value::Nil | Value::Boolean(false)));
            let ended = if reach.is_in_transaction() { reach.end(commits) } else { Ok(()) };
            outcome.map(|_| ended)
        });
        Ok(done?.is_some())
    });
    methods.add_method("clear", |_, this, ()| Ok(this.attempt(clear).is_some()));
    methods.add_method("count", |_, this, ()| {
        let count = this.attempt(|reach| Ok(Ok(reach.source().database().status().records)));
        Ok(count.map_or(-1.0, |count| count as f64))
    });
    methods.add_method("size", |_, this, ()| {
        let size = this.attempt(|reach| Ok(Ok(reach.source().database().status().committed_bytes)));
        Ok(size.map_or(-1.0, |size| size as f64))
    });
    methods.add_method("path", |_, this, ()| Ok(this.attempt(|reach| Ok(Ok(reach.path())))));
    methods.add_method("status", |lua, this, ()| {
        let facts = this.attempt(|reach| Ok(Ok(reach.source().facts())));
        facts.map(|facts| lua.create_table_from(facts)).transpose()
    });
    methods.add_method("synchronize", |lua, this, (_, processor): (Value, Value)| {
        let done = this.attempt_calling(|reach| {
            if let Err(error) = reach.source().database().sync() {
                return Ok(Err(ScriptError::of(&error)));
            }
            let is_fine = process(lua, &this.world, reach, &processor)?;
            Ok(if is_fine { Ok(()) } else { Err(ScriptError::POSTPROCESSING) })
        });
        Ok(done?.is_some())
    });
    methods.add_method("occupy", |lua, this, (writable, processor): (Option<bool>, Value)| {
        let done = this.attempt_calling(|reach| {
            let run = || {
                let is_fine = process(lua, &this.world, reach, &processor)?;
                Ok(if is_fine { Ok(()) } else { Err(ScriptError::PROCESSING) })
            };
            // No other client can write while a transaction is open.
            if writable.unwrap_or(false) { reach.atomically(&this.world, run) } else { run() }
        });
        Ok(done?.is_some())
    });
    methods.add_method("merge", |_, this, (sources, mode): (Table, Option<u32>)| {
        let mut others = Vec::new();
        for source in elements(&sources) {
            if let Some(object) = source?.as_userdata().filter(|object| object.is::<DatabaseObject>()) {
                others.push(object.borrow::<DatabaseObject>()?.reach());
            }
        }
        let done = this.attempt_calling(|reach| {
            for other in others {
                let other = match other {
                    Ok(other) => other,
                    Err(trouble) => return Ok(Err(trouble)),
                };
                for record in RecordIter::new(other).records() {
                    let brought = record
                        .and_then(|(key, record)| bring(reach, &key, &record, mode.unwrap_or(MERGE_SET)));
                    if let Err(error) = brought {
                        return Ok(Err(ScriptError::of(&error)));
                    }
                    this.world.deadline.check()?;
                }
            }
            Ok(Ok(()))
        });
        Ok(done?.is_some())
    });
}
