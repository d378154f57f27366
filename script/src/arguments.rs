//! Arguments as scripts give them. As in the original, what is of another type is as if it were not there, or nought: a script that has
//! always got along with that shall go on.

use mlua::{FromLua, Lua, LuaString, Value};

/// The bytes of a string or a number.
pub(crate) fn text(lua: &Lua, value: Value) -> mlua::Result<Option<Vec<u8>>> {
    Ok(match value {
        Value::String(_) | Value::Integer(_) | Value::Number(_) => {
            lua.coerce_string(value)?.map(|text| text.as_bytes().to_vec())
        }
        _ => None,
    })
}

/// The text of a string or a number; `None` for anything else.
pub(crate) struct Text(pub(crate) Option<LuaString>);

impl FromLua for Text {
    fn from_lua(value: Value, lua: &Lua) -> mlua::Result<Text> {
        Ok(Text(match value {
            Value::String(text) => Some(text),
            Value::Integer(_) | Value::Number(_) => lua.coerce_string(value)?,
            _ => None,
        }))
    }
}

/// A number, or text that is one; `None` for anything else.
pub(crate) struct Number(pub(crate) Option<f64>);

impl FromLua for Number {
    fn from_lua(value: Value, lua: &Lua) -> mlua::Result<Number> {
        Ok(Number(lua.coerce_number(value).unwrap_or_default()))
    }
}

/// How many at most; any number, if that is left out or negative. What is no number allows none.
pub(crate) struct Most(pub(crate) usize);

impl FromLua for Most {
    fn from_lua(value: Value, lua: &Lua) -> mlua::Result<Most> {
        if value.is_nil() {
            return Ok(Most(usize::MAX));
        }
        let number = Number::from_lua(value, lua)?.0.unwrap_or_default();
        Ok(Most(if number < 0.0 { usize::MAX } else { number as usize }))
    }
}

/// The bytes of a string or a number in a table. Numbers with a fraction have six digits behind the point there.
pub(crate) fn listed(lua: &Lua, value: Value) -> mlua::Result<Option<Vec<u8>>> {
    match value {
        Value::Number(number) if number.fract() != 0.0 => Ok(Some(format!("{number:.6}").into_bytes())),
        value => text(lua, value),
    }
}

/// The elements of an array; what is not there in between is `Nil`.
pub(crate) fn elements(array: &mlua::Table) -> impl Iterator<Item = mlua::Result<Value>> {
    (1..=array.raw_len()).map(|place| array.raw_get(place))
}
