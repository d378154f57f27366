//! `Cursor`: the script object for a position among the records.
//!
//! Its movement is implemented by `KyotoCursor`.

use crate::arguments::NumberArgument;
use crate::database::{DatabaseObject, no_visitor, pair};
use crate::error::{CallResult, ErrorObject, ScriptError};
use crate::source::DatabaseHandle;
use crate::visitor::{ScriptVisitor, ShownRecord, time};
use crate::world::ScriptContext;
use mlua::{
    AnyUserData, IntoLuaMulti, Lua, LuaString, MetaMethod, MultiValue, Table, UserData, UserDataMethods,
    Value,
};
use parking_lot::Mutex;
use std::sync::Arc;
use todana::Records;
use todana::kyoto::{CursorEntry, KyotoCursor};

pub(crate) struct CursorObject {
    world: Arc<ScriptContext>,
    /// `None` after the cursor is disabled.
    cursor: Mutex<Option<KyotoCursor<DatabaseHandle>>>,
    trouble: Arc<Mutex<ScriptError>>,
}

type Moved = todana::Result<bool>;

impl CursorObject {
    /// Creates a cursor of a database object and stores a reference to that object.
    pub(crate) fn open(lua: &Lua, database: &AnyUserData) -> mlua::Result<AnyUserData> {
        let object = {
            let database = database.borrow::<DatabaseObject>()?;
            let open = |reach: DatabaseHandle| {
                let name = reach.source().name().clone();
                KyotoCursor::new(reach, &name)
            };
            let cursor = database.told(database.reach()).map(open);
            CursorObject {
                world: Arc::clone(&database.world),
                cursor: Mutex::new(cursor),
                trouble: Arc::clone(&database.trouble),
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

    fn told<T>(&self, done: CallResult<T>) -> Option<T> {
        done.map_err(|trouble| *self.trouble.lock() = trouble).ok()
    }

    fn attempt<T>(
        &self,
        run: impl FnOnce(&mut KyotoCursor<DatabaseHandle>) -> todana::Result<CallResult<T>>,
    ) -> Option<T> {
        let done = match &mut *self.cursor.lock() {
            Some(cursor) => run(cursor).unwrap_or_else(|error| Err(ScriptError::of(&error))),
            None => Err(ScriptError::NOT_OPENED),
        };
        self.told(done)
    }

    fn moves(&self, go: impl FnOnce(&mut KyotoCursor<DatabaseHandle>) -> Moved) -> bool {
        let moved = |cursor: &mut KyotoCursor<DatabaseHandle>| {
            Ok(if go(cursor)? { Ok(()) } else { Err(ScriptError::NO_RECORD) })
        };
        self.attempt(moved).is_some()
    }

    fn moves_back(&self, go: impl FnOnce(&mut KyotoCursor<DatabaseHandle>) -> Moved) -> bool {
        let is_ordered = |cursor: &mut KyotoCursor<DatabaseHandle>| {
            Ok(if cursor.records().is_ordered() { Ok(()) } else { Err(ScriptError::NOT_HERE) })
        };
        self.attempt(is_ordered).is_some() && self.moves(go)
    }

    /// Reads the record at the cursor.
    fn look(&self, steps: bool) -> Option<CursorEntry> {
        self.attempt(|cursor| Ok(cursor.read(steps)?.ok_or(ScriptError::NO_RECORD)))
    }

    /// Removes the record at the cursor, and moves to the next one.
    fn take(&self) -> Option<CursorEntry> {
        self.attempt(|cursor| Ok(cursor.take()?.ok_or(ScriptError::NO_RECORD)))
    }

    fn accept(&self, lua: &Lua, visitor: &ScriptVisitor, writes: bool, steps: bool) -> mlua::Result<bool> {
        let place = self.attempt(|cursor| {
            let found = cursor.at_record(|reach, key| {
                Ok(ShownRecord::read(reach, key)?.map(|seen| (reach.clone(), key.to_vec(), seen)))
            });
            Ok(found?.ok_or(ScriptError::NO_RECORD))
        });
        let Some((reach, key, seen)) = place else { return Ok(false) };
        // The cursor is not locked here, so the visitor may move it.
        let done = visitor.visit(lua, &self.world, &reach, &key, Some(seen), writes)?;
        let is_done = self.told(done).is_some();
        self.attempt(|cursor| {
            if cursor.key() == Some(&key) && (steps || !reach.contains(&key)?) {
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

/// Returns key, value and time; one `nil` for no record.
fn trio(lua: &Lua, found: Option<CursorEntry>) -> mlua::Result<MultiValue> {
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
        methods.add_method("error", |_, this, ()| Ok(ErrorObject::from(this.trouble.lock().clone())));
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
        methods
            .add_method("get", |lua, this, steps: Option<bool>| trio(lua, this.look(steps.unwrap_or(false))));
        methods.add_method("get_key", |lua, this, steps: Option<bool>| {
            string(lua, this.look(steps.unwrap_or(false)).map(|entry| entry.key))
        });
        methods.add_method("get_value", |lua, this, steps: Option<bool>| {
            string(lua, this.look(steps.unwrap_or(false)).map(|entry| entry.value))
        });
        type Set = (LuaString, NumberArgument, Option<bool>);
        methods.add_method("set_value", |_, this, (value, said, steps): Set| {
            let stored = this.attempt(|cursor| {
                let time = time(said.0, cursor.records().source().database().now().0);
                let stored = cursor.replace(&value.as_bytes(), time, steps.unwrap_or(false))?;
                Ok(if stored { Ok(()) } else { Err(ScriptError::NO_RECORD) })
            });
            Ok(stored.is_some())
        });
        methods.add_method("seize", |lua, this, ()| trio(lua, this.take()));
        methods.add_method("remove", |_, this, ()| Ok(this.take().is_some()));
        type Accept = (Value, Option<bool>, Option<bool>);
        methods.add_method("accept", |lua, this, (visitor, writable, steps): Accept| {
            let visitor = ScriptVisitor::of(visitor)?.ok_or_else(|| no_visitor("accept"))?;
            this.accept(lua, &visitor, writable.unwrap_or(true), steps.unwrap_or(false))
        });
        methods.add_meta_method(MetaMethod::Call, |lua, this, _: MultiValue| {
            let mut all = trio(lua, this.look(true))?;
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

/// Creates the class.
pub(crate) fn class(lua: &Lua, _world: &Arc<ScriptContext>) -> mlua::Result<Table> {
    let class = lua.create_table()?;
    let new = |lua: &Lua, (_, database): (Value, AnyUserData)| CursorObject::open(lua, &database);
    class.set("new", lua.create_function(new)?)?;
    Ok(class)
}
