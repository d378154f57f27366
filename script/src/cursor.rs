//! `Cursor`: a place among the records, as scripts have it.
//!
//! Where its record is gone it moves on to the next before anything is read or done there.

use crate::arguments::Number;
use crate::database::{DatabaseObject, no_visitor, pair};
use crate::interpreter::World;
use crate::source::Reach;
use crate::trouble::{Done, Told, Trouble};
use crate::visitor::{Seen, Visitor, time};
use mlua::{
    AnyUserData, IntoLuaMulti, Lua, LuaString, MetaMethod, MultiValue, Table, UserData, UserDataMethods,
    Value,
};
use parking_lot::Mutex;
use std::sync::Arc;
use todana::kyoto::{NEVER, time_of};
use todana::{Cursor, Records};

pub(crate) struct CursorObject {
    world: Arc<World>,
    /// `None` once it is disabled.
    cursor: Mutex<Option<Cursor<Reach>>>,
    trouble: Arc<Mutex<Trouble>>,
}

type Moved = todana::Result<bool>;

impl CursorObject {
    /// A cursor of a database object, which it remembers.
    pub(crate) fn open(lua: &Lua, database: &AnyUserData) -> mlua::Result<AnyUserData> {
        let object = {
            let database = database.borrow::<DatabaseObject>()?;
            let cursor = database.told(database.reach()).map(Cursor::new);
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
        self.moves(Cursor::first);
    }

    fn told<T>(&self, done: Done<T>) -> Option<T> {
        done.map_err(|trouble| *self.trouble.lock() = trouble).ok()
    }

    fn attempt<T>(&self, run: impl FnOnce(&mut Cursor<Reach>) -> todana::Result<Done<T>>) -> Option<T> {
        let done = match &mut *self.cursor.lock() {
            Some(cursor) => run(cursor).unwrap_or_else(|error| Err(Trouble::of(&error))),
            None => Err(Trouble::NOT_OPENED),
        };
        self.told(done)
    }

    fn moves(&self, go: impl FnOnce(&mut Cursor<Reach>) -> Moved) -> bool {
        let moved =
            |cursor: &mut Cursor<Reach>| Ok(if go(cursor)? { Ok(()) } else { Err(Trouble::NO_RECORD) });
        self.attempt(moved).is_some()
    }

    fn moves_back(&self, go: impl FnOnce(&mut Cursor<Reach>) -> Moved) -> bool {
        let is_ordered = |cursor: &mut Cursor<Reach>| {
            Ok(if cursor.records().is_ordered() { Ok(()) } else { Err(Trouble::NOT_HERE) })
        };
        self.attempt(is_ordered).is_some() && self.moves(go)
    }

    /// Key, value and time of the record where it stands.
    fn look(&self, steps: bool) -> Option<(Vec<u8>, Vec<u8>, u64)> {
        self.attempt(|cursor| {
            let found = each(cursor, |reach, key| {
                let time = |seen: &Seen| time_of(seen.expiry).unwrap_or(NEVER);
                Ok(Seen::read(reach, key)?.map(|seen| (key.to_vec(), time(&seen), seen.value)))
            })?;
            if steps && found.is_some() {
                cursor.step()?;
            }
            Ok(found.map(|(key, time, value)| (key, value, time)).ok_or(Trouble::NO_RECORD))
        })
    }

    /// Takes the record away where it stands, and moves on.
    fn take(&self) -> Option<(Vec<u8>, Vec<u8>, u64)> {
        self.attempt(|cursor| {
            let taken = each(cursor, |reach, key| {
                let mut taken = None;
                let mut see = |value: &[u8], time: Option<u64>| {
                    taken = Some((key.to_vec(), value.to_vec(), time.unwrap_or(NEVER)));
                };
                let was_there = reach.kyoto().seize(key, &mut see)?;
                Ok(taken.filter(|_| was_there))
            })?;
            if taken.is_some() {
                cursor.step()?;
            }
            Ok(taken.ok_or(Trouble::NO_RECORD))
        })
    }

    fn accept(&self, lua: &Lua, visitor: &Visitor, writes: bool, steps: bool) -> mlua::Result<bool> {
        let place = self.attempt(|cursor| {
            let found = each(cursor, |reach, key| {
                Ok(Seen::read(reach, key)?.map(|seen| (reach.clone(), key.to_vec(), seen)))
            });
            Ok(found?.ok_or(Trouble::NO_RECORD))
        });
        let Some((reach, key, seen)) = place else { return Ok(false) };
        // The cursor is free meanwhile, and may be moved by the visitor.
        let done = visitor.visit(lua, &self.world, &reach, &key, Some(seen), writes)?;
        let is_done = self.told(done).is_some();
        self.attempt(|cursor| {
            if cursor.key() == Some(&key) && (steps || !reach.contains(&key)?) {
                cursor.step()?;
            }
            Ok(Ok(()))
        });
        Ok(is_done)
    }
}

/// Does something at the record where a cursor stands or, as long as that turns out to be gone, at the next. `None`: there is none.
fn each<T>(
    cursor: &mut Cursor<Reach>,
    mut act: impl FnMut(&Reach, &[u8]) -> todana::Result<Option<T>>,
) -> todana::Result<Option<T>> {
    while let Some(key) = cursor.key() {
        let key = key.to_vec();
        if let Some(done) = act(cursor.records(), &key)? {
            return Ok(Some(done));
        }
        cursor.step()?;
    }
    Ok(None)
}

fn string(lua: &Lua, bytes: Option<Vec<u8>>) -> mlua::Result<Option<LuaString>> {
    bytes.map(|bytes| lua.create_string(bytes)).transpose()
}

/// Key, value and time; one `nil` for no record.
fn trio(lua: &Lua, found: Option<(Vec<u8>, Vec<u8>, u64)>) -> mlua::Result<MultiValue> {
    let Some((key, value, time)) = found else { return Value::Nil.into_lua_multi(lua) };
    let mut all = pair(lua, Some((value, time)))?;
    all.push_front(Value::String(lua.create_string(key)?));
    Ok(all)
}

impl UserData for CursorObject {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("disable", |_, this, ()| {
            this.disable();
            Ok(())
        });
        methods.add_function("db", |_, this: AnyUserData| this.user_value::<Value>());
        methods.add_method("error", |_, this, ()| Ok(Told::from(this.trouble.lock().clone())));
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
        methods.add_method("step", |_, this, ()| Ok(this.moves(Cursor::step)));
        methods.add_method("step_back", |_, this, ()| Ok(this.moves_back(Cursor::step_back)));
        methods
            .add_method("get", |lua, this, steps: Option<bool>| trio(lua, this.look(steps.unwrap_or(false))));
        methods.add_method("get_key", |lua, this, steps: Option<bool>| {
            string(lua, this.look(steps.unwrap_or(false)).map(|(key, ..)| key))
        });
        methods.add_method("get_value", |lua, this, steps: Option<bool>| {
            string(lua, this.look(steps.unwrap_or(false)).map(|(_, value, _)| value))
        });
        type Set = (LuaString, Number, Option<bool>);
        methods.add_method("set_value", |_, this, (value, said, steps): Set| {
            let stored = this.attempt(|cursor| {
                let stored = each(cursor, |reach, key| {
                    let time = time(said.0, reach.source().database().now().0);
                    Ok(reach.kyoto().replace(key, &value.as_bytes(), time)?.then_some(()))
                })?;
                if stored.is_some() && steps.unwrap_or(false) {
                    cursor.step()?;
                }
                Ok(stored.ok_or(Trouble::NO_RECORD))
            });
            Ok(stored.is_some())
        });
        methods.add_method("seize", |lua, this, ()| trio(lua, this.take()));
        methods.add_method("remove", |_, this, ()| Ok(this.take().is_some()));
        type Accept = (Value, Option<bool>, Option<bool>);
        methods.add_method("accept", |lua, this, (visitor, writable, steps): Accept| {
            let visitor = Visitor::of(visitor)?.ok_or_else(|| no_visitor("accept"))?;
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

/// The class.
pub(crate) fn class(lua: &Lua, _world: &Arc<World>) -> mlua::Result<Table> {
    let class = lua.create_table()?;
    let new = |lua: &Lua, (_, database): (Value, AnyUserData)| CursorObject::open(lua, &database);
    class.set("new", lua.create_function(new)?)?;
    Ok(class)
}
