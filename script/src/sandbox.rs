//! What is there of Lua's own words.

use crate::strings;
use crate::trouble::message;
use crate::world::{Options, World};
use mlua::{Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};
use std::sync::Arc;

/// Words through which a script gets at files, or at the insides of the machine.
const FORBIDDEN: [&str; 4] = ["dofile", "loadfile", "require", "module"];

/// Words of `os` that only ask for the time.
const HARMLESS: [&str; 4] = ["clock", "date", "difftime", "time"];

/// A machine with those of Lua's libraries that are allowed.
pub(crate) fn machine(options: &Options) -> mlua::Result<Lua> {
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

/// Takes away and replaces what a script shall not have; to be done once everything of ours is there.
pub(crate) fn close(lua: &Lua, world: &Arc<World>) -> mlua::Result<()> {
    let globals = lua.globals();
    if !world.options.is_unsafe {
        for word in FORBIDDEN {
            globals.set(word, Value::Nil)?;
        }
        let (all, harmless) = (globals.get::<Table>("os")?, lua.create_table()?);
        for word in HARMLESS {
            harmless.set(word, all.get::<Value>(word)?)?;
        }
        globals.set("os", harmless)?;
    }
    strings::replace(lua, world)?;
    globals.get::<Table>("string")?.set("dump", Value::Nil)?;
    // What it makes may have a say when it is collected, outside of all calls.
    globals.set("newproxy", Value::Nil)?;
    globals.set(
        "print",
        lua.create_function(|lua, values: MultiValue| {
            let tell: Function = lua.globals().get("tostring")?;
            let words = values.into_iter().map(|value| tell.call::<LuaString>(value));
            let words: Vec<_> = words.map(|word| Ok(word?.to_string_lossy())).collect::<mlua::Result<_>>()?;
            tracing::info!("{}", words.join("\t"));
            Ok(())
        })?,
    )?;
    let deadline = world.deadline.clone();
    let in_time = lua.create_function(move |_, ()| deadline.check())?;
    let plain = lua.create_function(|lua, value: Value| match value {
        Value::Error(error) => Ok(Value::String(lua.create_string(message(&error))?)),
        other => Ok(other),
    })?;
    let chunk = lua.load(include_str!("sandbox.lua")).set_name("=sandbox");
    chunk.into_function()?.call::<()>((in_time, plain))?;
    world.deadline.watch(lua)
}
