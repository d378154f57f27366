//! Encodes arrays and maps of text as bytes: `len:varnum ... bytes ...` for each element.

use crate::arguments::{elements, listed};
use mlua::{Lua, LuaString, Table, Value};

fn put_number(number: usize, out: &mut Vec<u8>) {
    let groups = (usize::BITS - number.leading_zeros()).div_ceil(7).max(1);
    out.extend((0..groups).rev().map(|group| {
        let bits = (number >> (7 * group)) as u8 & 0x7F;
        if group > 0 { bits | 0x80 } else { bits }
    }));
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0usize;
    while let [byte, rest @ ..] = *bytes {
        *bytes = rest;
        number = number.checked_mul(128)? | usize::from(byte & 0x7F);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Removes this number of bytes from the start of the input and returns them.
fn take<'b>(bytes: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn array_dump(lua: &Lua, array: Table) -> mlua::Result<LuaString> {
    let mut out = Vec::new();
    for value in elements(&array) {
        if let Some(value) = listed(lua, value?)? {
            put_number(value.len(), &mut out);
            out.extend_from_slice(&value);
        }
    }
    lua.create_string(out)
}

/// An incomplete element at the end is ignored.
fn array_load(lua: &Lua, dumped: LuaString) -> mlua::Result<Table> {
    let (array, dumped) = (lua.create_table()?, dumped.as_bytes());
    let mut rest: &[u8] = &dumped;
    while let Some(len) = take_number(&mut rest) {
        let Some(value) = take(&mut rest, len) else { break };
        array.push(lua.create_string(value)?)?;
    }
    Ok(array)
}

fn map_dump(lua: &Lua, map: Table) -> mlua::Result<LuaString> {
    let mut out = Vec::new();
    for pair in map.pairs::<Value, Value>() {
        let (key, value) = pair?;
        if let (Some(key), Some(value)) = (listed(lua, key)?, listed(lua, value)?) {
            put_number(key.len(), &mut out);
            put_number(value.len(), &mut out);
            out.extend_from_slice(&key);
            out.extend_from_slice(&value);
        }
    }
    lua.create_string(out)
}

fn map_load(lua: &Lua, dumped: LuaString) -> mlua::Result<Table> {
    let (map, dumped) = (lua.create_table()?, dumped.as_bytes());
    let mut rest: &[u8] = &dumped;
    while let (Some(key_len), Some(value_len)) = (take_number(&mut rest), take_number(&mut rest)) {
        let (Some(key), Some(value)) = (take(&mut rest, key_len), take(&mut rest, value_len)) else { break };
        map.raw_set(lua.create_string(key)?, lua.create_string(value)?)?;
    }
    Ok(map)
}

pub(super) fn define(lua: &Lua, kyoto: &Table) -> mlua::Result<()> {
    kyoto.set("arraydump", lua.create_function(array_dump)?)?;
    kyoto.set("arrayload", lua.create_function(array_load)?)?;
    kyoto.set("mapdump", lua.create_function(map_dump)?)?;
    kyoto.set("mapload", lua.create_function(map_load)?)
}
