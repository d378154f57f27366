//! Defines the methods and the class of `DB`. The object itself is in `database`.

use crate::arguments::{NumberArgument, TextArgument, text};
use crate::context::ScriptContext;
use crate::cursor::CursorObject;
use crate::database::{DatabaseObject, DatabasePointer, no_visitor, pair};
use crate::error::{CallResult, ErrorObject, ScriptError};
use crate::visitor::{ScriptVisitor, ShownRecord};
use crate::{bulk, entire_database, files, map_reduce};
use mlua::{AnyUserData, IntoLua, Lua, LuaString, MetaMethod, Table, UserData, UserDataMethods, Value};
use std::sync::Arc;
use todana::Records;
use todana::kyoto::{IncrementOrigin, NEVER};

const CONSTANTS: [(&str, u32); 15] = [
    ("OREADER", 1),
    ("OWRITER", 2),
    ("OCREATE", 4),
    ("OTRUNCATE", 8),
    ("OAUTOTRAN", 16),
    ("OAUTOSYNC", 32),
    ("ONOLOCK", 64),
    ("OTRYLOCK", 128),
    ("ONOREPAIR", 256),
    ("MSET", entire_database::MERGE_SET),
    ("MADD", entire_database::MERGE_ADD),
    ("MREPLACE", entire_database::MERGE_REPLACE),
    ("MAPPEND", entire_database::MERGE_APPEND),
    ("XNOLOCK", 1),
    ("XNOCOMP", 256),
];

fn yes(is_it: bool, error: ScriptError) -> CallResult<()> {
    if is_it { Ok(()) } else { Err(error) }
}

impl UserData for DatabaseObject {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        type StoreArguments = (LuaString, LuaString, NumberArgument);
        methods.add_method("error", |_, this, ()| Ok(ErrorObject::from(this.error.lock().clone())));
        methods.add_method("open", |_, this, (path, mode): (TextArgument, NumberArgument)| {
            Ok(this.keep_error(this.open(path, mode)).is_some())
        });
        methods.add_method("close", |_, this, ()| Ok(this.keep_error(this.close()).is_some()));
        methods.add_method("get", |lua, this, key: LuaString| pair(lua, this.get(&key)));
        methods.add_method("set", |_, this, (key, value, time_argument): StoreArguments| {
            let set = this.attempt(|handle| {
                let time = this.time(handle, time_argument.0);
                Ok(Ok(handle.kyoto().set(&key.as_bytes(), &value.as_bytes(), time)?))
            });
            Ok(set.is_some())
        });
        methods.add_method("add", |_, this, (key, value, time_argument): StoreArguments| {
            let added = this.attempt(|handle| {
                let time = this.time(handle, time_argument.0);
                let is_new = handle.kyoto().add(&key.as_bytes(), &value.as_bytes(), time)?;
                Ok(yes(is_new, ScriptError::DUPLICATION))
            });
            Ok(added.is_some())
        });
        methods.add_method("replace", |_, this, (key, value, time_argument): StoreArguments| {
            let replaced = this.attempt(|handle| {
                let time = this.time(handle, time_argument.0);
                let was_there = handle.kyoto().replace(&key.as_bytes(), &value.as_bytes(), time)?;
                Ok(yes(was_there, ScriptError::NO_RECORD))
            });
            Ok(replaced.is_some())
        });
        methods.add_method("append", |_, this, (key, value, time_argument): StoreArguments| {
            let appended = this.attempt(|handle| {
                let time = this.time(handle, time_argument.0);
                Ok(Ok(handle.kyoto().append(&key.as_bytes(), &value.as_bytes(), time)?))
            });
            Ok(appended.is_some())
        });
        type IncrementArguments = (LuaString, NumberArgument, NumberArgument, NumberArgument);
        methods.add_method("increment", |_, this, (key, delta, from, time_argument): IncrementArguments| {
            let sum = this.attempt(|handle| {
                // An infinity becomes the limit of the range. The limits also represent the words
                // `try` and `set`.
                let origin = IncrementOrigin::from(from.0.unwrap_or_default() as i64);
                let delta = delta.0.unwrap_or_default() as i64;
                let sum = handle.kyoto().increment(
                    &key.as_bytes(),
                    delta,
                    origin,
                    this.time(handle, time_argument.0),
                )?;
                Ok(sum.ok_or(ScriptError::ILLOGICAL))
            });
            Ok(sum.map(|sum| sum as f64))
        });
        methods.add_method(
            "increment_double",
            |_, this, (key, delta, from, time_argument): IncrementArguments| {
                Ok(this.attempt(|handle| {
                    let (delta, time) = (delta.0.unwrap_or_default(), this.time(handle, time_argument.0));
                    let origin = IncrementOrigin::from(from.0.unwrap_or_default());
                    let sum = handle.kyoto().increment_double(&key.as_bytes(), delta, origin, time)?;
                    Ok(sum.ok_or(ScriptError::ILLOGICAL))
                }))
            },
        );
        type CasArguments = (LuaString, TextArgument, TextArgument, NumberArgument);
        methods.add_method("cas", |_, this, (key, old, new, time_argument): CasArguments| {
            let swapped = this.attempt(|handle| {
                let (old, new) =
                    (old.0.as_ref().map(LuaString::as_bytes), new.0.as_ref().map(LuaString::as_bytes));
                let time = this.time(handle, time_argument.0);
                let is_equal =
                    handle.kyoto().compare_and_swap(&key.as_bytes(), old.as_deref(), new.as_deref(), time)?;
                Ok(yes(is_equal, ScriptError::CONFLICT))
            });
            Ok(swapped.is_some())
        });
        methods.add_method("remove", |_, this, key: LuaString| {
            let removed = this
                .attempt(|handle| Ok(yes(handle.kyoto().remove(&key.as_bytes())?, ScriptError::NO_RECORD)));
            Ok(removed.is_some())
        });
        methods.add_method("check", |_, this, key: LuaString| {
            let len = this.attempt(|handle| {
                let mut len = None;
                handle.view(&key.as_bytes(), &mut |record| len = Some(record.value.len()))?;
                Ok(len.ok_or(ScriptError::NO_RECORD))
            });
            Ok(len.map_or(-1.0, |len| len as f64))
        });
        methods.add_method("seize", |lua, this, key: LuaString| {
            let found = this.attempt(|handle| {
                let mut found = None;
                let mut see = |value: &[u8], time: Option<u64>| {
                    found = Some((value.to_vec(), time.unwrap_or(NEVER)));
                };
                let was_there = handle.kyoto().seize(&key.as_bytes(), &mut see)?;
                Ok(found.filter(|_| was_there).ok_or(ScriptError::NO_RECORD))
            });
            pair(lua, found)
        });
        methods.add_method(
            "accept",
            |lua, this, (key, visitor, writable): (LuaString, Value, Option<bool>)| {
                let visitor = ScriptVisitor::of(visitor)?.ok_or_else(|| no_visitor("accept"))?;
                let done = this.attempt_calling(|handle| {
                    let key = key.as_bytes();
                    visitor.visit(lua, &this.context, handle, &key, None, writable.unwrap_or(true))
                });
                Ok(done?.is_some())
            },
        );
        methods.add_method("iterate", |lua, this, (visitor, writable): (Value, Option<bool>)| {
            let visitor = ScriptVisitor::of(visitor)?.ok_or_else(|| no_visitor("iterate"))?;
            visitor.call_method(&this.context, "visit_before")?;
            let done = this.attempt_calling(|handle| {
                for record in todana::RecordIter::new(handle.clone()).records() {
                    let (key, record) = match record {
                        Ok(record) => record,
                        Err(error) => return Ok(Err(ScriptError::of(&error))),
                    };
                    let seen = Some(ShownRecord { value: record.value, expiry: record.expiry });
                    let writes = writable.unwrap_or(true);
                    if let Err(error) = visitor.visit(lua, &this.context, handle, &key, seen, writes)? {
                        return Ok(Err(error));
                    }
                }
                Ok(Ok(()))
            })?;
            visitor.call_method(&this.context, "visit_after")?;
            Ok(done.is_some())
        });
        // Lua searches the methods before it calls this function.
        methods.add_meta_method(MetaMethod::Index, |lua, this, key: Value| match text(lua, key)? {
            Some(key) => Ok(pair(lua, this.get(&lua.create_string(key)?))?.into_iter().next()),
            None => Ok(None),
        });
        methods.add_meta_method(MetaMethod::NewIndex, |lua, this, (key, value): (LuaString, Value)| {
            let value = text(lua, value)?;
            this.attempt(|handle| match &value {
                Some(value) => Ok(Ok(handle.kyoto().set(&key.as_bytes(), value, NEVER)?)),
                None => Ok(yes(handle.kyoto().remove(&key.as_bytes())?, ScriptError::NO_RECORD)),
            });
            Ok(())
        });
        methods.add_meta_method(MetaMethod::ToString, |_, this, ()| {
            Ok(match this.handle() {
                Ok(handle) => {
                    let status = handle.source().database().status();
                    format!("{}: {}: {}", handle.path(), status.records, status.committed_bytes)
                }
                Err(_) => "(nil): -1: -1".to_owned(),
            })
        });
        methods.add_function("cursor", |lua, this: AnyUserData| CursorObject::open(lua, &this));
        methods.add_function("pairs", |lua, this: AnyUserData| {
            let cursor = CursorObject::open(lua, &this)?;
            cursor.borrow::<CursorObject>()?.jump_first();
            Ok((cursor, this))
        });
        methods.add_function("cursor_process", |lua, (this, process): (AnyUserData, mlua::Function)| {
            let cursor = CursorObject::open(lua, &this)?;
            let done = process.call::<()>(&cursor);
            cursor.borrow::<CursorObject>()?.disable();
            done
        });
        bulk::add_methods(methods);
        files::add_methods(methods);
        entire_database::add_methods(methods);
        map_reduce::add_methods(methods);
    }
}

/// Creates the class `DB`.
pub(crate) fn class(lua: &Lua, context: &Arc<ScriptContext>) -> mlua::Result<Table> {
    let class = lua.create_table()?;
    for (name, number) in CONSTANTS {
        class.set(name, number)?;
    }
    let of = Arc::clone(context);
    let new = move |_: &Lua, (_, pointer): (Value, Value)| {
        let pointer = pointer.as_userdata().and_then(|pointer| pointer.borrow::<DatabasePointer>().ok());
        let slot = pointer.map_or_else(Arc::default, |pointer| Arc::clone(&pointer.0));
        Ok(DatabaseObject::at(slot, &of))
    };
    class.set("new", lua.create_function(new)?)?;
    class.set("new_ptr", lua.create_function(|_, _: Value| Ok(DatabasePointer(Arc::default())))?)?;
    // The database is closed when the last object that shares it is dropped.
    let delete = |_: &Lua, (_, pointer): (Value, Value)| {
        if let Some(pointer) = pointer.as_userdata().filter(|pointer| pointer.is::<DatabasePointer>()) {
            pointer.borrow::<DatabasePointer>()?.0.handle.lock().take();
        }
        Ok(Value::Nil)
    };
    class.set("delete_ptr", lua.create_function(delete)?)?;
    let of = Arc::clone(context);
    type ProcessArguments = (Value, mlua::Function, TextArgument, NumberArgument);
    let process = move |lua: &Lua, (_, work, path, mode): ProcessArguments| {
        let object = DatabaseObject::at(Arc::default(), &of);
        if let Err(error) = object.open(path, mode) {
            return ErrorObject::from(error).into_lua(lua);
        }
        let object = lua.create_userdata(object)?;
        let done = work.call::<()>(&object);
        let closed = object.borrow::<DatabaseObject>()?.close();
        done?;
        match closed {
            Err(error) => ErrorObject::from(error).into_lua(lua),
            Ok(()) => Ok(Value::Nil),
        }
    };
    class.set("process", lua.create_function(process)?)?;
    Ok(class)
}
