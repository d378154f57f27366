//! `DB`: a database, as scripts have it.

use crate::arguments::{Number, Text};
use crate::source::Reach;
use crate::trouble::{Done, Trouble};
use crate::visitor::time;
use crate::world::World;
use mlua::{IntoLuaMulti, Lua, LuaString, MultiValue, UserData, Value};
use parking_lot::Mutex;
use std::sync::Arc;
use todana::kyoto::NEVER;
use todana::{Db, Name};

/// What is opened where no name is given, as in the original.
const DEFAULT: &str = ":";

/// A database, if one is open here.
pub(crate) struct DatabaseObject {
    pub(crate) world: Arc<World>,
    home: Arc<Home>,
    pub(crate) trouble: Arc<Mutex<Trouble>>,
}

/// Where a database may be open, for all objects that share it.
#[derive(Default)]
pub(crate) struct Home {
    pub(crate) reach: Mutex<Option<Reach>>,
    /// It is the server's: scripts neither close it nor put another in its place.
    is_given: bool,
}

/// What `new_ptr` gives: objects made from it share what one of them opens.
pub(crate) struct Pointer(pub(crate) Arc<Home>);

impl UserData for Pointer {}

impl DatabaseObject {
    /// One of the server's.
    pub(crate) fn given(world: &Arc<World>, reach: Reach) -> DatabaseObject {
        DatabaseObject::at(Arc::new(Home { reach: Mutex::new(Some(reach)), is_given: true }), world)
    }

    /// One of the script's own.
    pub(crate) fn at(home: Arc<Home>, world: &Arc<World>) -> DatabaseObject {
        let trouble = Arc::new(Mutex::new(Trouble::NONE));
        DatabaseObject { world: Arc::clone(world), home, trouble }
    }

    pub(crate) fn reach(&self) -> Done<Reach> {
        self.home.reach.lock().clone().ok_or(Trouble::NOT_OPENED)
    }

    /// The value, or none and the trouble for `error`.
    pub(crate) fn told<T>(&self, done: Done<T>) -> Option<T> {
        done.map_err(|trouble| *self.trouble.lock() = trouble).ok()
    }

    /// Does something with the database.
    pub(crate) fn attempt<T>(&self, run: impl FnOnce(&Reach) -> todana::Result<Done<T>>) -> Option<T> {
        let run = |reach: Reach| run(&reach).unwrap_or_else(|error| Err(Trouble::of(&error)));
        self.told(self.reach().and_then(run))
    }

    /// Does something with the database that runs functions of the script's.
    pub(crate) fn attempt_calling<T>(
        &self,
        run: impl FnOnce(&Reach) -> mlua::Result<Done<T>>,
    ) -> mlua::Result<Option<T>> {
        let done = match self.reach() {
            Ok(reach) => run(&reach)?,
            Err(trouble) => Err(trouble),
        };
        Ok(self.told(done))
    }

    pub(crate) fn open(&self, path: Text, mode: Number) -> Done<()> {
        let path = path.0.map_or_else(|| DEFAULT.to_owned(), |path| path.to_string_lossy());
        if self.home.is_given {
            return Err(Trouble::FORBIDDEN);
        }
        if self.home.reach.lock().is_some() {
            return Err(Trouble::new(2, "already opened"));
        }
        let name = Name::parse(&path).map_err(|_| Trouble::new(2, "unknown database type"))?;
        if name.path.is_some() && !self.world.options.is_unsafe {
            return Err(Trouble::FORBIDDEN);
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
        let db = open.map_err(|error| Trouble::of(&error))?;
        *self.home.reach.lock() = Some(Reach::new(Arc::new(db), &self.world));
        Ok(())
    }

    pub(crate) fn close(&self) -> Done<()> {
        if self.home.is_given {
            return Err(Trouble::FORBIDDEN);
        }
        let reach = self.home.reach.lock().take().ok_or(Trouble::NOT_OPENED)?;
        if reach.is_in_transaction() {
            reach.end(false)?;
        }
        Ok(())
    }

    /// The time for what a script says.
    pub(crate) fn time(&self, reach: &Reach, said: Option<f64>) -> u64 {
        time(said, reach.source().database().now().0)
    }

    pub(crate) fn get(&self, key: &LuaString) -> Option<(Vec<u8>, u64)> {
        self.attempt(|reach| {
            let mut found = None;
            let mut see = |value: &[u8], time: Option<u64>| {
                found = Some((value.to_vec(), time.unwrap_or(NEVER)));
            };
            reach.kyoto().view(&key.as_bytes(), &mut see)?;
            Ok(found.ok_or(Trouble::NO_RECORD))
        })
    }
}

/// A value and its time; one `nil` for no record.
pub(crate) fn pair(lua: &Lua, found: Option<(Vec<u8>, u64)>) -> mlua::Result<MultiValue> {
    match found {
        Some((value, time)) => (lua.create_string(value)?, time as f64).into_lua_multi(lua),
        None => Value::Nil.into_lua_multi(lua),
    }
}

pub(crate) fn no_visitor(method: &str) -> mlua::Error {
    mlua::Error::runtime(format!("{method}: neither a function nor a visitor was given"))
}
