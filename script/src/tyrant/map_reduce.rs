//! `_mapreduce`: pairs that one function emits for each record are grouped by key for another one.

use super::listing::{TyrantHost, is_hidden};
use super::records::Bytes;
use crate::context::ScriptContext;
use crate::map_reduce::EmittedPairs;
use crate::source::DatabaseHandle;
use mlua::{Function, Lua, Table};
use parking_lot::Mutex;
use std::sync::Arc;
use todana::{RecordIter, Records};

pub(super) fn define(
    lua: &Lua,
    context: &Arc<ScriptContext>,
    handle: &DatabaseHandle,
    host: &Arc<dyn TyrantHost>,
) -> mlua::Result<()> {
    let (context, handle, host) = (Arc::clone(context), handle.clone(), Arc::clone(host));
    let run = move |lua: &Lua, (map, reduce, keys): (Function, Function, Option<Table>)| {
        let pairs = Arc::new(Mutex::new(EmittedPairs::new(&context)));
        // The script may keep this function longer than the pairs exist.
        let weak = Arc::downgrade(&pairs);
        let emit = lua.create_function(move |lua, (key, value): (Bytes, Bytes)| {
            let Some(pairs) = weak.upgrade() else { return Ok(false) };
            pairs.lock().push(lua, &key.0, &value.0)?;
            Ok(true)
        })?;
        let map = |key: &[u8], value: &[u8]| -> mlua::Result<bool> {
            context.deadline.check()?;
            map.call((lua.create_string(key)?, lua.create_string(value)?, &emit))
        };
        if let Some(keys) = keys {
            for key in keys.sequence_values::<Bytes>() {
                let key = key?.0;
                let Ok(found) = handle.get(&key) else { return Ok(false) };
                if let Some(value) = found
                    && !map(&key, &value)?
                {
                    return Ok(false);
                }
            }
        } else {
            for record in RecordIter::new(handle.clone()) {
                let Ok((key, value)) = record else { return Ok(false) };
                if is_hidden(&*host, &key) {
                    continue;
                }
                if !map(&key, &value)? {
                    return Ok(false);
                }
            }
        }
        let values = pairs.lock().take();
        for (key, values) in values {
            let array = lua.create_table()?;
            for value in values {
                array.push(lua.create_string(value)?)?;
            }
            if !reduce.call::<bool>((lua.create_string(key)?, array))? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    lua.globals().set("_mapreduce", lua.create_function(run)?)
}
