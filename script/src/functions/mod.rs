//! Defines the functions that are independent of databases.
//!
//! ```text
//! numbers   atoi atoix atof bit
//! text      split strstr strfwm strbwm regex levdist
//! hash      hash_murmur hash_fnv
//! pack      pack unpack
//! codec     codec
//! dump      arraydump arrayload mapdump mapload
//! ```

mod codec;
mod dump;
mod hash;
mod numbers;
mod pack;
mod text;

pub(crate) use text::regex;

use crate::arguments::{NumberArgument, TextArgument};
use crate::context::ScriptContext;
use mlua::{Lua, LuaString, Table, Value};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest piece of a sleep. The deadline is checked between the pieces.
const SLEEP_MAX_S: f64 = 1e6;

/// Adds all functions to the table.
pub(crate) fn define(lua: &Lua, context: &Arc<ScriptContext>, kyoto: &Table) -> mlua::Result<()> {
    kyoto.set("log", lua.create_function(log)?)?;
    let time =
        |_: &Lua, ()| Ok(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    kyoto.set("time", lua.create_function(time)?)?;
    let deadline = context.deadline.clone();
    let sleep = move |_: &Lua, seconds: NumberArgument| {
        match seconds.0.filter(|&seconds| seconds > 0.0) {
            Some(seconds) => {
                let wanted = Duration::from_secs_f64(seconds.min(SLEEP_MAX_S));
                deadline.sleep(wanted);
            }
            None => std::thread::yield_now(),
        }
        deadline.check()
    };
    kyoto.set("sleep", lua.create_function(sleep)?)?;
    numbers::define(lua, kyoto)?;
    hash::define(lua, kyoto)?;
    text::define(lua, context, kyoto)?;
    pack::define(lua, kyoto)?;
    codec::define(lua, context, kyoto)?;
    dump::define(lua, kyoto)
}

fn log(_: &Lua, (kind, message): (LuaString, TextArgument)) -> mlua::Result<()> {
    let Some(message) = message.0 else { return Ok(()) };
    let message = message.to_string_lossy();
    match &*kind.as_bytes() {
        b"debug" => tracing::debug!("{message}"),
        b"error" => tracing::error!("{message}"),
        b"warn" => tracing::warn!("{message}"),
        _ => tracing::info!("{message}"),
    }
    Ok(())
}

/// Returns the bytes of a string or number argument, or no bytes for any other type.
fn bytes(lua: &Lua, value: Value) -> mlua::Result<Vec<u8>> {
    Ok(crate::arguments::text(lua, value)?.unwrap_or_default())
}
