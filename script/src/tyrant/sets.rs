//! `_isect` and `_union`: sets of the values of arrays, in the order of their first occurrence.

use super::records::Bytes;
use crate::arguments::elements;
use crate::context::{OutsideBytes, ScriptContext};
use mlua::{FromLua, Lua, MultiValue, Table, Value};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub(super) fn define(lua: &Lua, shared_context: &Arc<ScriptContext>) -> mlua::Result<()> {
    for (name, is_intersection) in [("_isect", true), ("_union", false)] {
        let context = Arc::clone(shared_context);
        let run = move |lua: &Lua, given: MultiValue| combine(lua, &context, given, is_intersection);
        lua.globals().set(name, lua.create_function(run)?)?;
    }
    Ok(())
}

fn combine(
    lua: &Lua,
    context: &ScriptContext,
    given: MultiValue,
    is_intersection: bool,
) -> mlua::Result<Table> {
    let arrays: Vec<Table> = given
        .into_iter()
        .filter_map(|value| if let Value::Table(array) = value { Some(array) } else { None })
        .collect();
    let mut counts: HashMap<Vec<u8>, usize> = HashMap::new();
    let (mut in_order, mut outside) = (Vec::new(), OutsideBytes::new(context));
    for array in &arrays {
        let mut seen = HashSet::new();
        for value in elements(array) {
            let bytes = Bytes::from_lua(value?, lua)?.0;
            context.deadline.check()?;
            if !seen.contains(&bytes) {
                // The sets and the list have a copy each.
                outside.take(lua, 3 * (bytes.len() + size_of::<Vec<u8>>()))?;
                seen.insert(bytes.clone());
                let count = counts.entry(bytes.clone()).or_insert(0);
                *count += 1;
                if *count == 1 {
                    in_order.push(bytes);
                }
            }
        }
    }
    let result = lua.create_table()?;
    for bytes in in_order {
        if !is_intersection || counts[&bytes] == arrays.len() {
            result.push(lua.create_string(bytes)?)?;
            context.deadline.check()?;
        }
    }
    Ok(result)
}
