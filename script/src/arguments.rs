//! Converts arguments of scripts. As in the original, an argument of the wrong type counts as
//! absent or as zero, so that existing scripts keep working.

use mlua::{FromLua, Lua, LuaString, Value};

/// Returns the bytes of a string or a number.
pub(crate) fn text(lua: &Lua, value: Value) -> mlua::Result<Option<Vec<u8>>> {
    Ok(match value {
        Value::String(_) | Value::Integer(_) | Value::Number(_) => {
            lua.coerce_string(value)?.map(|text| text.as_bytes().to_vec())
        }
        _ => None,
    })
}

/// The text of a string or a number; `None` for any other value.
pub(crate) struct TextArgument(pub(crate) Option<LuaString>);

impl FromLua for TextArgument {
    fn from_lua(value: Value, lua: &Lua) -> mlua::Result<TextArgument> {
        Ok(TextArgument(match value {
            Value::String(text) => Some(text),
            Value::Integer(_) | Value::Number(_) => lua.coerce_string(value)?,
            _ => None,
        }))
    }
}

/// The number of a number argument or of a text that contains one; `None` for any other value.
pub(crate) struct NumberArgument(pub(crate) Option<f64>);

impl FromLua for NumberArgument {
    fn from_lua(value: Value, lua: &Lua) -> mlua::Result<NumberArgument> {
        Ok(NumberArgument(lua.coerce_number(value).unwrap_or_default()))
    }
}

/// A maximum count. An absent or negative argument means no limit. An argument that is not a number
/// means 0.
pub(crate) struct CountLimit(pub(crate) usize);

impl FromLua for CountLimit {
    fn from_lua(value: Value, lua: &Lua) -> mlua::Result<CountLimit> {
        if value.is_nil() {
            return Ok(CountLimit(usize::MAX));
        }
        let number = NumberArgument::from_lua(value, lua)?.0.unwrap_or_default();
        Ok(CountLimit(if number < 0.0 { usize::MAX } else { number as usize }))
    }
}

/// Returns the bytes of a string or a number in a table. A number with a fraction is written with
/// six decimals.
pub(crate) fn listed(lua: &Lua, value: Value) -> mlua::Result<Option<Vec<u8>>> {
    match value {
        Value::Number(number) if number.fract() != 0.0 => Ok(Some(format!("{number:.6}").into_bytes())),
        value => text(lua, value),
    }
}

/// Returns the elements of an array; gaps are `Nil`.
pub(crate) fn elements(array: &mlua::Table) -> impl Iterator<Item = mlua::Result<Value>> {
    (1..=array.raw_len()).map(|place| array.raw_get(place))
}
