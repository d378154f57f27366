//! `DB`: the script object for a database.

use crate::arguments::{NumberArgument, TextArgument};
use crate::error::{CallResult, ScriptError};
use crate::source::DatabaseHandle;
use crate::visitor::time;
use crate::world::ScriptContext;
use mlua::{IntoLuaMulti, Lua, LuaString, MultiValue, UserData, Value};
use parking_lot::Mutex;
use std::sync::Arc;
use todana::kyoto::NEVER;
use todana::{Db, Name};

/// The database that is opened if no name is given, as in the original.
const DEFAULT: &str = ":";

/// A database object, which may have a database open.
pub(crate) struct DatabaseObject {
    pub(crate) world: Arc<ScriptContext>,
    home: Arc<DatabaseSlot>,
    pub(crate) trouble: Arc<Mutex<ScriptError>>,
}

/// The open database, which several objects can share.
#[derive(Default)]
pub(crate) struct DatabaseSlot {
    pub(crate) reach: Mutex<Option<DatabaseHandle>>,
    /// True for a database of the server: scripts can neither close nor replace it.
    is_given: bool,
}

/// The result of `new_ptr`: objects created from it share the database that one of them opens.
pub(crate) struct DatabasePointer(pub(crate) Arc<DatabaseSlot>);

impl UserData for DatabasePointer {}

impl DatabaseObject {
    /// Creates the object of a database of the server.
    pub(crate) fn given(world: &Arc<ScriptContext>, reach: DatabaseHandle) -> DatabaseObject {
        DatabaseObject::at(Arc::new(DatabaseSlot { reach: Mutex::new(Some(reach)), is_given: true }), world)
    }

    /// Creates the object of a script's own database.
    pub(crate) fn at(home: Arc<DatabaseSlot>, world: &Arc<ScriptContext>) -> DatabaseObject {
        let trouble = Arc::new(Mutex::new(ScriptError::NONE));
        DatabaseObject { world: Arc::clone(world), home, trouble }
    }

    pub(crate) fn reach(&self) -> CallResult<DatabaseHandle> {
        self.home.reach.lock().clone().ok_or(ScriptError::NOT_OPENED)
    }

    /// Returns the value; stores an error for the method `error` and returns `None`.
    pub(crate) fn told<T>(&self, done: CallResult<T>) -> Option<T> {
        done.map_err(|trouble| *self.trouble.lock() = trouble).ok()
    }

    /// Runs an operation on the database.
    pub(crate) fn attempt<T>(
        &self,
        run: impl FnOnce(&DatabaseHandle) -> todana::Result<CallResult<T>>,
    ) -> Option<T> {
        let run = |reach: DatabaseHandle| run(&reach).unwrap_or_else(|error| Err(ScriptError::of(&error)));
        self.told(self.reach().and_then(run))
    }

    /// Runs an operation on the database that calls functions of the script.
    pub(crate) fn attempt_calling<T>(
        &self,
        run: impl FnOnce(&DatabaseHandle) -> mlua::Result<CallResult<T>>,
    ) -> mlua::Result<Option<T>> {
        let done = match self.reach() {
            Ok(reach) => run(&reach)?,
            Err(trouble) => Err(trouble),
        };
        Ok(self.told(done))
    }

    pub(crate) fn open(&self, path: TextArgument, mode: NumberArgument) -> CallResult<()> {
        let path = path.0.map_or_else(|| DEFAULT.to_owned(), |path| path.to_string_lossy());
        if self.home.is_given {
            return Err(ScriptError::FORBIDDEN);
        }
        if self.home.reach.lock().is_some() {
            return Err(ScriptError::new(2, "already opened"));
        }
        let name = Name::parse(&path).map_err(|_| ScriptError::new(2, "unknown database type"))?;
        if name.path.is_some() && !self.world.options.is_unsafe {
            return Err(ScriptError::FORBIDDEN);
        }
        let mode = mode.0.map_or(6, |mode| mode as u32);
        let letters = match mode {
            mode if mode & 2 == 0 => "r",
            mode if mode & 8 != 0 => "wct",
            mode if mode & 4 != 0 => "wc",
            _ => "w",
        };
        let open = if name.path.is_some() {
            Db::open(&format!("{path}#mode={letters}"))
        } else {
            let memory_max = self.world.options.memory_max as u64;
            todana::DbOptions::default().memory_max(memory_max).open(&path)
        };
        let db = open.map_err(|error| ScriptError::of(&error))?;
        *self.home.reach.lock() = Some(DatabaseHandle::new(Arc::new(db), &self.world));
        Ok(())
    }

    pub(crate) fn close(&self) -> CallResult<()> {
        if self.home.is_given {
            return Err(ScriptError::FORBIDDEN);
        }
        let reach = self.home.reach.lock().take().ok_or(ScriptError::NOT_OPENED)?;
        if reach.is_in_transaction() {
            reach.end(false)?;
        }
        Ok(())
    }

    /// Converts a time argument of a script to an absolute time.
    pub(crate) fn time(&self, reach: &DatabaseHandle, said: Option<f64>) -> u64 {
        time(said, reach.source().database().now().0)
    }

    pub(crate) fn get(&self, key: &LuaString) -> Option<(Vec<u8>, u64)> {
        self.attempt(|reach| {
            let mut found = None;
            let mut see = |value: &[u8], time: Option<u64>| {
                found = Some((value.to_vec(), time.unwrap_or(NEVER)));
            };
            reach.kyoto().view(&key.as_bytes(), &mut see)?;
            Ok(found.ok_or(ScriptError::NO_RECORD))
        })
    }
}

/// Returns a value and its time; one `nil` for no record.
pub(crate) fn pair(lua: &Lua, found: Option<(Vec<u8>, u64)>) -> mlua::Result<MultiValue> {
    match found {
        Some((value, time)) => (lua.create_string(value)?, time as f64).into_lua_multi(lua),
        None => Value::Nil.into_lua_multi(lua),
    }
}

pub(crate) fn no_visitor(method: &str) -> mlua::Error {
    mlua::Error::runtime(format!("{method}: neither a function nor a visitor was given"))
}
