//! Defines `Cursor`, the script object for a position among the records. `KyotoCursor` implements
//! its movement.

use crate::arguments::NumberArgument;
use crate::context::ScriptContext;
use crate::database::{DatabaseObject, no_visitor, pair};
use crate::error::{CallResult, ErrorObject, ScriptError};
use crate::source::DatabaseHandle;
use crate::visitor::{ScriptVisitor, ShownRecord, time};
use mlua::{
    AnyUserData, IntoLuaMulti, Lua, LuaString, MetaMethod, MultiValue, Table, UserData, UserDataMethods,
    Value,
};
use parking_lot::Mutex;
use std::sync::Arc;
use todana::Records;
use todana::kyoto::{CursorEntry, KyotoCursor};

pub(crate) struct CursorObject {
    context: Arc<ScriptContext>,
    /// The cursor, or `None` after the script has disabled it.
    cursor: Mutex<Option<KyotoCursor<DatabaseHandle>>>,
    error: Arc<Mutex<ScriptError>>,
}

type MoveResult = todana::Result<bool>;

impl CursorObject {
    /// Creates a cursor of a database object, and keeps a reference to that object.
    pub(crate) fn open(lua: &Lua, database: &AnyUserData) -> mlua::Result<AnyUserData> {
        let object = {
            let database = database.borrow::<DatabaseObject>()?;
            let open = |handle: DatabaseHandle| {
                let name = handle.source().name().clone();
                KyotoCursor::new(handle, &name)
            };
            let cursor = database.keep_error(database.handle()).map(open);
            CursorObject {
                context: Arc::clone(&database.context),
                cursor: Mutex::new(cursor),
                error: Arc::clone(&database.error),
            }
        };
        let cursor = lua.create_userdata(object)?;
        cursor.set_user_value(database)?;
        Ok(cursor)
    }

    pub(crate) fn disable(&self) {
        *self.cursor.lock() = None;
    }

    pub(crate) fn jump_first(&self) {
        self.moves(KyotoCursor::first);
    }

    fn keep_error<T>(&self, done: CallResult<T>) -> Option<T> {
        done.map_err(|error| *self.error.lock() = error).ok()
    }

    fn attempt<T>(
        &self,
        run: impl FnOnce(&mut KyotoCursor<DatabaseHandle>) -> todana::Result<CallResult<T>>,
    ) -> Option<T> {
        let done = match &mut *self.cursor.lock() {
            Some(cursor) => run(cursor).unwrap_or_else(|error| Err(ScriptError::of(&error))),
            None => Err(ScriptError::NOT_OPENED),
        };
        self.keep_error(done)
    }

    fn moves(&self, go: impl FnOnce(&mut KyotoCursor<DatabaseHandle>) -> MoveResult) -> bool {
        let moved = |cursor: &mut KyotoCursor<DatabaseHandle>| {
            Ok(if go(cursor)? { Ok(()) } else { Err(ScriptError::NO_RECORD) })
        };
        self.attempt(moved).is_some()
    }

    fn moves_back(&self, go: impl FnOnce(&mut KyotoCursor<DatabaseHandle>) -> MoveResult) -> bool {
        let is_ordered = |cursor: &mut KyotoCursor<DatabaseHandle>| {
            Ok(if cursor.records().is_ordered() { Ok(()) } else { Err(ScriptError::NOT_HERE) })
        };
        self.attempt(is_ordered).is_some() && self.moves(go)
    }

    /// Reads the record at the cursor.
    fn read(&self, steps: bool) -> Option<CursorEntry> {
        self.attempt(|cursor| Ok(cursor.read(steps)?.ok_or(ScriptError::NO_RECORD)))
    }

    /// Removes the record at the cursor, and moves the cursor to the next record.
    fn take(&self) -> Option<CursorEntry> {
        self.attempt(|cursor| Ok(cursor.take()?.ok_or(ScriptError::NO_RECORD)))
    }

    fn accept(&self, lua: &Lua, visitor: &ScriptVisitor, writes: bool, steps: bool) -> mlua::Result<bool> {
        let place = self.attempt(|cursor| {
            let found = cursor.at_record(|handle, key| {
                Ok(ShownRecord::read(handle, key)?.map(|seen| (handle.clone(), key.to_vec(), seen)))
            });
            Ok(found?.ok_or(ScriptError::NO_RECORD))
        });
        let Some((handle, key, seen)) = place else { return Ok(false) };
        // The cursor is not locked here, so the visitor may move it.
        let done = visitor.visit(lua, &self.context, &handle, &key, Some(seen), writes)?;
        let is_done = self.keep_error(done).is_some();
        self.attempt(|cursor| {
            if cursor.key() == Some(&key) && (steps || !handle.contains(&key)?) {
                cursor.advance()?;
            }
            Ok(Ok(()))
        });
        Ok(is_done)
    }
}

fn string(lua: &Lua, bytes: Option<Vec<u8>>) -> mlua::Result<Option<LuaString>> {
    bytes.map(|bytes| lua.create_string(bytes)).transpose()
}

/// Returns the key, the value and the time of a record, or a single `nil` if there is no record.
fn key_value_time(lua: &Lua, found: Option<CursorEntry>) -> mlua::Result<MultiValue> {
    let Some(entry) = found else { return Value::Nil.into_lua_multi(lua) };
    let time = entry.time_number();
    let mut all = pair(lua, Some((entry.value, time)))?;
    all.push_front(Value::String(lua.create_string(entry.key)?));
    Ok(all)
}

impl UserData for CursorObject {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("disable", |_, this, ()| {
            this.disable();
            Ok(())
        });
        methods.add_function("db", |_, this: AnyUserData| this.user_value::<Value>());
        methods.add_method("error", |_, this, ()| Ok(ErrorObject::from(this.error.lock().clone())));
        methods.add_method("jump", |_, this, key: Option<LuaString>| {
            Ok(this.moves(|cursor| match &key {
                Some(key) => cursor.jump(&key.as_bytes()),
                None => cursor.first(),
            }))
        });
        methods.add_method("jump_back", |_, this, key: Option<LuaString>| {
            Ok(this.moves_back(|cursor| match &key {
                Some(key) => cursor.jump_back(&key.as_bytes()),
                None => cursor.last(),
            }))
        });
        methods.add_method("step", |_, this, ()| Ok(this.moves(KyotoCursor::step)));
        methods.add_method("step_back", |_, this, ()| Ok(this.moves_back(KyotoCursor::step_back)));
        methods.add_method("get", |lua, this, steps: Option<bool>| {
            key_value_time(lua, this.read(steps.unwrap_or(false)))
        });
        methods.add_method("get_key", |lua, this, steps: Option<bool>| {
            string(lua, this.read(steps.unwrap_or(false)).map(|entry| entry.key))
        });
        methods.add_method("get_value", |lua, this, steps: Option<bool>| {
            string(lua, this.read(steps.unwrap_or(false)).map(|entry| entry.value))
        });
        type SetValueArguments = (LuaString, NumberArgument, Option<bool>);
        methods.add_method("set_value", |_, this, (value, time_argument, steps): SetValueArguments| {
            let stored = this.attempt(|cursor| {
                let time = time(time_argument.0, cursor.records().source().database().now().0);
                let stored = cursor.replace(&value.as_bytes(), time, steps.unwrap_or(false))?;
                Ok(if stored { Ok(()) } else { Err(ScriptError::NO_RECORD) })
            });
            Ok(stored.is_some())
        });
        methods.add_method("seize", |lua, this, ()| key_value_time(lua, this.take()));
        methods.add_method("remove", |_, this, ()| Ok(this.take().is_some()));
        type AcceptArguments = (Value, Option<bool>, Option<bool>);
        methods.add_method("accept", |lua, this, (visitor, writable, steps): AcceptArguments| {
            let visitor = ScriptVisitor::of(visitor)?.ok_or_else(|| no_visitor("accept"))?;
            this.accept(lua, &visitor, writable.unwrap_or(true), steps.unwrap_or(false))
        });
        methods.add_meta_method(MetaMethod::Call, |lua, this, _: MultiValue| {
            let mut all = key_value_time(lua, this.read(true))?;
            all.truncate(2);
            Ok(all)
        });
        methods.add_meta_method(MetaMethod::ToString, |_, this, ()| {
            let cursor = this.cursor.lock();
            let Some(cursor) = &*cursor else { return Ok("(disabled)".to_owned()) };
            let (path, key) = (cursor.records().path(), cursor.key());
            let key = key.map_or("(nil)".into(), |key| String::from_utf8_lossy(key));
            Ok(format!("{path}: {key}"))
        });
    }
}

/// Creates the class `Cursor`.
pub(crate) fn class(lua: &Lua, _context: &Arc<ScriptContext>) -> mlua::Result<Table> {
    let class = lua.create_table()?;
    let new = |lua: &Lua, (_, database): (Value, AnyUserData)| CursorObject::open(lua, &database);
    class.set("new", lua.create_function(new)?)?;
    Ok(class)
}
