//! Selects the libraries of Lua that scripts may use.

use crate::context::{ScriptContext, ScriptOptions};
use crate::error::message;
use crate::strings;
use mlua::{Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};
use std::sync::Arc;

/// Functions that give access to files or to the internals of the interpreter.
const FORBIDDEN: [&str; 4] = ["dofile", "loadfile", "require", "module"];

/// The functions of `os` that only query the time.
const HARMLESS: [&str; 4] = ["clock", "date", "difftime", "time"];

/// Creates an interpreter with the allowed libraries of Lua.
pub(crate) fn new_interpreter(options: &ScriptOptions) -> mlua::Result<Lua> {
    let mut libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
    #[cfg(feature = "luajit")]
    {
        libraries |= StdLib::BIT;
    }
    libraries |= StdLib::OS;
    if options.is_unsafe {
        libraries |= StdLib::IO | StdLib::PACKAGE;
    }
    Lua::new_with(libraries, LuaOptions::default())
}

/// Removes or replaces forbidden functions. Must be called after all functions of Todana were
/// defined.
pub(crate) fn close(lua: &Lua, context: &Arc<ScriptContext>) -> mlua::Result<()> {
    let globals = lua.globals();
    if !context.options.is_unsafe {
        for word in FORBIDDEN {
            globals.set(word, Value::Nil)?;
        }
        let (all, harmless) = (globals.get::<Table>("os")?, lua.create_table()?);
        for word in HARMLESS {
            harmless.set(word, all.get::<Value>(word)?)?;
        }
        globals.set("os", harmless)?;
    }
    strings::replace(lua, context)?;
    globals.get::<Table>("string")?.set("dump", Value::Nil)?;
    // The objects that `newproxy` creates can run code when they are collected, outside of any
    // call.
    globals.set("newproxy", Value::Nil)?;
    globals.set(
        "print",
        lua.create_function(|lua, values: MultiValue| {
            let to_string: Function = lua.globals().get("tostring")?;
            let words = values.into_iter().map(|value| to_string.call::<LuaString>(value));
            let words: Vec<_> = words.map(|word| Ok(word?.to_string_lossy())).collect::<mlua::Result<_>>()?;
            tracing::info!("{}", words.join("\t"));
            Ok(())
        })?,
    )?;
    let deadline = context.deadline.clone();
    let in_time = lua.create_function(move |_, ()| deadline.check())?;
    let plain = lua.create_function(|lua, value: Value| match value {
        Value::Error(error) => Ok(Value::String(lua.create_string(message(&error))?)),
        other => Ok(other),
    })?;
    let chunk = lua.load(include_str!("sandbox.lua")).set_name("=sandbox");
    chunk.into_function()?.call::<()>((in_time, plain))?;
    context.deadline.watch(lua)
}
