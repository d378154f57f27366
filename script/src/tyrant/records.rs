//! Functions on one record. Numbers become decimal text; a failure is `false` or `nil`.

use super::decimal;
use super::listing::{TyrantHost, is_hidden};
use crate::source::DatabaseHandle;
use mlua::{FromLua, Lua, Value};
use std::sync::Arc;
use todana::Records;
use todana::tyrant::SumVisitor;
use todana_core::{Modify, Operation, Reply, ValueChange};
use todana_protocol::tyrant::TyrantPutMode;

/// The bytes of a string or a number; any other argument is an error of the script.
pub(super) struct Bytes(pub(super) Vec<u8>);

impl FromLua for Bytes {
    fn from_lua(value: Value, _: &Lua) -> mlua::Result<Bytes> {
        match value {
            Value::String(text) => Ok(Bytes(text.as_bytes().to_vec())),
            Value::Integer(number) => Ok(Bytes(number.to_string().into_bytes())),
            Value::Number(number) => Ok(Bytes(decimal(number).into_bytes())),
            other => {
                Err(mlua::Error::runtime(format!("invalid argument: {} is no string", other.type_name())))
            }
        }
    }
}

/// Returns the success of an operation on the database. A failure is logged, because the script
/// sees only that there was one.
pub(super) fn succeeded(done: todana::Result<bool>) -> bool {
    done.unwrap_or_else(|error| {
        tracing::warn!("script: {error}");
        false
    })
}

pub(super) fn define(lua: &Lua, handle: &DatabaseHandle, host: &Arc<dyn TyrantHost>) -> mlua::Result<()> {
    let globals = lua.globals();
    let store = |mode: TyrantPutMode, run: fn(&DatabaseHandle, &[u8], &[u8]) -> todana::Result<bool>| {
        let (handle, host) = (handle.clone(), Arc::clone(host));
        lua.create_function(move |_, (key, value): (Bytes, Bytes)| {
            Ok(match host.typed_records() {
                Some(typed) => typed.put(mode, &key.0, &value.0),
                None => succeeded(run(&handle, &key.0, &value.0)),
            })
        })
    };
    let set = |records: &DatabaseHandle, key: &[u8], value: &[u8]| records.set(key, value).map(|()| true);
    globals.set("_put", store(TyrantPutMode::Put, set)?)?;
    let add = |records: &DatabaseHandle, key: &[u8], value: &[u8]| records.add(key, value);
    globals.set("_putkeep", store(TyrantPutMode::Keep, add)?)?;
    globals.set("_putcat", store(TyrantPutMode::Cat, append)?)?;
    let (of, typed) = (handle.clone(), Arc::clone(host));
    let out = move |_: &Lua, key: Bytes| Ok(!is_hidden(&*typed, &key.0) && succeeded(of.remove(&key.0)));
    globals.set("_out", lua.create_function(out)?)?;
    let (of, typed) = (handle.clone(), Arc::clone(host));
    let get = move |lua: &Lua, key: Bytes| match of.get(&key.0) {
        Ok(Some(value)) if !is_hidden(&*typed, &key.0) => lua.create_string(value).map(Value::String),
        _ => Ok(Value::Nil),
    };
    globals.set("_get", lua.create_function(get)?)?;
    let (of, typed) = (handle.clone(), Arc::clone(host));
    let vsiz = move |_: &Lua, key: Bytes| {
        let mut len = -1;
        if !is_hidden(&*typed, &key.0) {
            let _ = of.view(&key.0, &mut |record| len = record.value.len() as i64);
        }
        Ok(len)
    };
    globals.set("_vsiz", lua.create_function(vsiz)?)?;
    let (of, typed) = (handle.clone(), Arc::clone(host));
    let add_int = move |_: &Lua, (key, delta): (Bytes, f64)| {
        if let Some(table) = typed.typed_records().filter(|typed| typed.is_table()) {
            return Ok(table.add_to_row(&key.0, f64::from(delta as i32)).map(|sum| sum as i32));
        }
        let mut visitor = SumVisitor::new(delta as i32);
        let is_done = succeeded(of.visit(&key.0, &mut visitor).map(|()| true));
        Ok(visitor.sum().filter(|_| is_done))
    };
    globals.set("_addint", lua.create_function(add_int)?)?;
    let (of, typed) = (handle.clone(), Arc::clone(host));
    let add_double = move |_: &Lua, (key, delta): (Bytes, f64)| {
        if let Some(table) = typed.typed_records().filter(|typed| typed.is_table()) {
            return Ok(table.add_to_row(&key.0, delta));
        }
        let mut visitor = SumVisitor::new(delta);
        let is_done = succeeded(of.visit(&key.0, &mut visitor).map(|()| true));
        Ok(visitor.sum().filter(|_| is_done))
    };
    globals.set("_adddouble", lua.create_function(add_double)?)
}

/// Appends, and creates a missing record.
fn append(records: &DatabaseHandle, key: &[u8], value: &[u8]) -> todana::Result<bool> {
    let operation = Operation::Modify(Modify { key, ttl: None, change: ValueChange::Append(value) });
    let mut is_stored = false;
    records.execute(&operation, &mut |reply| is_stored = matches!(reply, Reply::Stored(_)))?;
    Ok(is_stored)
}
