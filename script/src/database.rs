//! Defines `DB`, the script object for a database.

use crate::arguments::{NumberArgument, TextArgument};
use crate::context::ScriptContext;
use crate::error::{CallResult, ScriptError};
use crate::source::DatabaseHandle;
use crate::visitor::time;
use mlua::{IntoLuaMulti, Lua, LuaString, MultiValue, UserData, Value};
use parking_lot::Mutex;
use std::sync::Arc;
use todana::kyoto::NEVER;
use todana::{DatabaseName, Db};

/// The name of the database that is opened if the script states no name, as in the original.
const DEFAULT: &str = ":";

/// A database object. It may have a database open.
pub(crate) struct DatabaseObject {
    pub(crate) context: Arc<ScriptContext>,
    slot: Arc<DatabaseSlot>,
    pub(crate) error: Arc<Mutex<ScriptError>>,
}

/// An open database, which several objects can share.
#[derive(Default)]
pub(crate) struct DatabaseSlot {
    pub(crate) handle: Mutex<Option<DatabaseHandle>>,
    /// True for a database of the server, which scripts can neither close nor replace.
    is_given: bool,
}

/// The result of `new_ptr`. The objects created from it share the database that one of them opens.
pub(crate) struct DatabasePointer(pub(crate) Arc<DatabaseSlot>);

impl UserData for DatabasePointer {}

impl DatabaseObject {
    /// Creates the object of a database of the server.
    pub(crate) fn given(context: &Arc<ScriptContext>, handle: DatabaseHandle) -> DatabaseObject {
        DatabaseObject::at(
            Arc::new(DatabaseSlot { handle: Mutex::new(Some(handle)), is_given: true }),
            context,
        )
    }

    /// Creates the object for a database that the script opens itself.
    pub(crate) fn at(slot: Arc<DatabaseSlot>, context: &Arc<ScriptContext>) -> DatabaseObject {
        let error = Arc::new(Mutex::new(ScriptError::NONE));
        DatabaseObject { context: Arc::clone(context), slot, error }
    }

    pub(crate) fn handle(&self) -> CallResult<DatabaseHandle> {
        self.slot.handle.lock().clone().ok_or(ScriptError::NOT_OPENED)
    }

    /// Returns the value, or stores the error for the method `error` and returns `None`.
    pub(crate) fn keep_error<T>(&self, done: CallResult<T>) -> Option<T> {
        done.map_err(|error| *self.error.lock() = error).ok()
    }

    /// Runs an operation on the database.
    pub(crate) fn attempt<T>(
        &self,
        run: impl FnOnce(&DatabaseHandle) -> todana::Result<CallResult<T>>,
    ) -> Option<T> {
        let run = |handle: DatabaseHandle| run(&handle).unwrap_or_else(|error| Err(ScriptError::of(&error)));
        self.keep_error(self.handle().and_then(run))
    }

    /// Runs an operation on the database. The operation may call functions of the script.
    pub(crate) fn attempt_calling<T>(
        &self,
        run: impl FnOnce(&DatabaseHandle) -> mlua::Result<CallResult<T>>,
    ) -> mlua::Result<Option<T>> {
        let done = match self.handle() {
            Ok(handle) => run(&handle)?,
            Err(error) => Err(error),
        };
        Ok(self.keep_error(done))
    }

    pub(crate) fn open(&self, path: TextArgument, mode: NumberArgument) -> CallResult<()> {
        let path = path.0.map_or_else(|| DEFAULT.to_owned(), |path| path.to_string_lossy());
        if self.slot.is_given {
            return Err(ScriptError::FORBIDDEN);
        }
        if self.slot.handle.lock().is_some() {
            return Err(ScriptError::new(2, "already opened"));
        }
        let name = DatabaseName::parse(&path).map_err(|_| ScriptError::new(2, "unknown database type"))?;
        if name.path.is_some() && !self.context.options.is_unsafe {
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
            let memory_max = self.context.options.memory_max as u64;
            todana::DbOptions::default().memory_max(memory_max).open(&path)
        };
        let db = open.map_err(|error| ScriptError::of(&error))?;
        *self.slot.handle.lock() = Some(DatabaseHandle::new(Arc::new(db), &self.context));
        Ok(())
    }

    pub(crate) fn close(&self) -> CallResult<()> {
        if self.slot.is_given {
            return Err(ScriptError::FORBIDDEN);
        }
        let handle = self.slot.handle.lock().take().ok_or(ScriptError::NOT_OPENED)?;
        if handle.is_in_transaction() {
            handle.end(false)?;
        }
        Ok(())
    }

    /// Converts a time argument of a script to an absolute time.
    pub(crate) fn time(&self, handle: &DatabaseHandle, time_argument: Option<f64>) -> u64 {
        time(time_argument, handle.source().database().now().0)
    }

    pub(crate) fn get(&self, key: &LuaString) -> Option<(Vec<u8>, u64)> {
        self.attempt(|handle| {
            let mut found = None;
            let mut see = |value: &[u8], time: Option<u64>| {
                found = Some((value.to_vec(), time.unwrap_or(NEVER)));
            };
            handle.kyoto().view(&key.as_bytes(), &mut see)?;
            Ok(found.ok_or(ScriptError::NO_RECORD))
        })
    }
}

/// Returns a value and its time, or a single `nil` if there is no record.
pub(crate) fn pair(lua: &Lua, found: Option<(Vec<u8>, u64)>) -> mlua::Result<MultiValue> {
    match found {
        Some((value, time)) => (lua.create_string(value)?, time as f64).into_lua_multi(lua),
        None => Value::Nil.into_lua_multi(lua),
    }
}

pub(crate) fn no_visitor(method: &str) -> mlua::Error {
    mlua::Error::runtime(format!("{method}: neither a function nor a visitor was given"))
}
