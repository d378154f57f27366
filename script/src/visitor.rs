//! Visitors: functions of the script's that decide on a record.
//!
//! They run outside of the engine: what one has decided is stored if the record is still as it was shown; else it decides again.

use crate::arguments::text;
use crate::source::Reach;
use crate::trouble::{Done, Trouble};
use crate::world::World;
use mlua::{Function, LightUserData, Lua, MultiValue, Table, Value};
use todana::kyoto::{NEVER, time_of};
use todana::{Action, Expiry, Record, Records, UnixSeconds};
use todana_core::Attributes;

/// So often a visitor decides on one record that others change all the time.
const TRIES: usize = 100;

/// Scripts tell these two by what they point at: nothing is there.
const NOP: usize = 0;
const REMOVE: usize = 1;

fn magic(number: usize) -> Value {
    Value::LightUserData(LightUserData(std::ptr::without_provenance_mut(number)))
}

/// The classes `Visitor` and `FileProcessor`.
pub(crate) fn define(lua: &Lua, kyoto: &Table) -> mlua::Result<()> {
    let class: Table = lua.load(include_str!("visitor.lua")).set_name("=visitor").call(())?;
    class.set("NOP", magic(NOP))?;
    class.set("REMOVE", magic(REMOVE))?;
    kyoto.set("Visitor", class)?;
    let class: Table = lua.load(include_str!("file_processor.lua")).set_name("=file_processor").call(())?;
    kyoto.set("FileProcessor", class)
}

/// The time of what a script says: a number of seconds from now, the negative of an absolute time, or nothing.
pub(crate) fn time(said: Option<f64>, now: u64) -> u64 {
    let time = match said {
        None => NEVER,
        Some(said) if said < 0.0 => -said as u64,
        Some(said) => now.saturating_add(said as u64),
    };
    time.min(NEVER)
}

/// What has been decided.
enum Decision {
    Keep,
    /// With another time, if it was said.
    Put(Vec<u8>, Option<f64>),
    Remove,
}

/// A function, or an object with methods.
pub(crate) struct Visitor {
    object: Option<Table>,
    full: Option<Function>,
    empty: Option<Function>,
}

impl Visitor {
    /// `None` for what is no visitor.
    pub(crate) fn of(value: Value) -> mlua::Result<Option<Visitor>> {
        Ok(match value {
            Value::Function(function) => {
                Some(Visitor { object: None, full: Some(function.clone()), empty: Some(function) })
            }
            Value::Table(table) => {
                let (full, empty) = (table.get("visit_full")?, table.get("visit_empty")?);
                Some(Visitor { object: Some(table), full, empty })
            }
            _ => None,
        })
    }

    /// Before many records, and after them.
    pub(crate) fn tell(&self, world: &World, method: &str) -> mlua::Result<()> {
        let Some(object) = &self.object else { return Ok(()) };
        match object.get::<Option<Function>>(method)? {
            Some(function) => world.overlook(function.call(object), ()),
            None => Ok(()),
        }
    }

    fn decide(&self, lua: &Lua, world: &World, key: &[u8], seen: Option<&Seen>) -> mlua::Result<Decision> {
        let Some(function) = (if seen.is_some() { &self.full } else { &self.empty }) else {
            return Ok(Decision::Keep);
        };
        let mut arguments = MultiValue::new();
        arguments.extend(self.object.clone().map(Value::Table));
        arguments.push_back(Value::String(lua.create_string(key)?));
        if let Some(seen) = seen {
            arguments.push_back(Value::String(lua.create_string(&seen.value)?));
            arguments.push_back(Value::Number(time_of(seen.expiry).unwrap_or(NEVER) as f64));
        } else if self.object.is_none() {
            arguments.push_back(Value::Nil);
        }
        let outcome = function.call(arguments);
        let (value, time): (Value, Value) = world.overlook(outcome, (Value::Nil, Value::Nil))?;
        Ok(match value {
            value if value == magic(REMOVE) => Decision::Remove,
            value => match text(lua, value)? {
                Some(value) => Decision::Put(value, lua.coerce_number(time).unwrap_or_default()),
                None => Decision::Keep,
            },
        })
    }

    /// Has it decide on a record, and does as it says if `writes`. `seen` is what has been read of it already; one that is gone
    /// meanwhile is none then, and not shown.
    pub(crate) fn visit(
        &self,
        lua: &Lua,
        world: &World,
        reach: &Reach,
        key: &[u8],
        mut seen: Option<Seen>,
        writes: bool,
    ) -> mlua::Result<Done<()>> {
        let is_listed = seen.is_some();
        for attempt in 0..TRIES {
            if !is_listed || attempt > 0 {
                match Seen::read(reach, key) {
                    Ok(None) if is_listed => return Ok(Ok(())),
                    Ok(found) => seen = found,
                    Err(error) => return Ok(Err(Trouble::of(&error))),
                }
            }
            let decision = self.decide(lua, world, key, seen.as_ref())?;
            world.deadline.check()?;
            let new = match decision {
                _ if !writes => return Ok(Ok(())),
                Decision::Keep => return Ok(Ok(())),
                Decision::Remove if seen.is_none() => return Ok(Ok(())),
                Decision::Remove => None,
                Decision::Put(value, said) => {
                    let expiry = match (&seen, said) {
                        _ if reach.source().name().tuning.persistent => Expiry::Never,
                        (Some(seen), None) => seen.expiry,
                        (_, said) => expiry(time(said, reach.source().database().now().0)),
                    };
                    Some((value, expiry))
                }
            };
            let new = new.as_ref().map(|(value, expiry)| (value.as_slice(), *expiry));
            let mut swap = Swap { old: seen.as_ref(), new, is_equal: false };
            match reach.visit(key, &mut swap) {
                Ok(()) if swap.is_equal => return Ok(Ok(())),
                Ok(()) => {}
                Err(error) => return Ok(Err(Trouble::of(&error))),
            }
        }
        Ok(Err(Trouble::RESTLESS))
    }
}

fn expiry(time: u64) -> Expiry {
    if time >= NEVER { Expiry::Never } else { Expiry::At(UnixSeconds(time + 1)) }
}

/// A record as it was read.
pub(crate) struct Seen {
    pub(crate) value: Vec<u8>,
    pub(crate) expiry: Expiry,
}

impl Seen {
    pub(crate) fn read(reach: &Reach, key: &[u8]) -> todana::Result<Option<Seen>> {
        let mut seen = None;
        reach.view(key, &mut |record| {
            seen = Some(Seen { value: record.value.to_vec(), expiry: record.attributes.expiry });
        })?;
        Ok(seen)
    }
}

/// Replaces a record that is still as it was read.
struct Swap<'s> {
    old: Option<&'s Seen>,
    new: Option<(&'s [u8], Expiry)>,
    is_equal: bool,
}

impl todana::Visitor for Swap<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_equal = match (old, self.old) {
            (Some(now), Some(then)) => now.value == then.value && now.attributes.expiry == then.expiry,
            (now, then) => now.is_none() && then.is_none(),
        };
        match self.new {
            _ if !self.is_equal => Action::Keep,
            None => Action::Remove,
            Some((value, expiry)) => {
                let flags = old.map_or(0, |record| record.attributes.flags);
                Action::Put(Record::new(value, Attributes { flags, expiry, ..Attributes::default() }))
            }
        }
    }
}
