//! Calls visitors, which are functions of the script that decide on a record.
//!
//! Visitors run outside of the engine. A decision is stored if the record has not changed since it
//! was shown. Otherwise the visitor decides again.

use crate::arguments::text;
use crate::context::ScriptContext;
use crate::error::{CallResult, ScriptError};
use crate::source::DatabaseHandle;
use mlua::{Function, LightUserData, Lua, MultiValue, Table, Value};
use todana::kyoto::{NEVER, time_of};
use todana::{Action, Expiry, Record, Records, UnixSeconds};
use todana_core::Attributes;

/// The maximum number of decisions on one record. Other clients may keep changing the record.
const TRIES: usize = 100;

/// Scripts compare this value and the next one with results. They are pointers that are never
/// dereferenced.
const NOP: usize = 0;
const REMOVE: usize = 1;

fn magic(number: usize) -> Value {
    Value::LightUserData(LightUserData(std::ptr::without_provenance_mut(number)))
}

/// Defines the classes `ScriptVisitor` and `FileProcessor`.
pub(crate) fn define(lua: &Lua, kyoto: &Table) -> mlua::Result<()> {
    let class: Table = lua.load(include_str!("visitor.lua")).set_name("=visitor").call(())?;
    class.set("NOP", magic(NOP))?;
    class.set("REMOVE", magic(REMOVE))?;
    kyoto.set("Visitor", class)?;
    let class: Table = lua.load(include_str!("file_processor.lua")).set_name("=file_processor").call(())?;
    kyoto.set("FileProcessor", class)
}

/// Converts a time argument: a positive number is seconds from now, a negative number is an
/// absolute time with its sign reversed, and `None` means no expiry.
pub(crate) fn time(time_argument: Option<f64>, now: u64) -> u64 {
    let time = match time_argument {
        None => NEVER,
        Some(time_argument) if time_argument < 0.0 => -time_argument as u64,
        Some(time_argument) => now.saturating_add(time_argument as u64),
    };
    time.min(NEVER)
}

/// The decision of a visitor.
enum VisitorDecision {
    Keep,
    /// The new value, and a new time if the visitor returned one.
    Put(Vec<u8>, Option<f64>),
    Remove,
}

/// A function, or an object with methods.
pub(crate) struct ScriptVisitor {
    object: Option<Table>,
    full: Option<Function>,
    empty: Option<Function>,
}

impl ScriptVisitor {
    /// Creates a visitor. Returns `None` for a value that is neither a function nor an object.
    pub(crate) fn of(value: Value) -> mlua::Result<Option<ScriptVisitor>> {
        Ok(match value {
            Value::Function(function) => {
                Some(ScriptVisitor { object: None, full: Some(function.clone()), empty: Some(function) })
            }
            Value::Table(table) => {
                let (full, empty) = (table.get("visit_full")?, table.get("visit_empty")?);
                Some(ScriptVisitor { object: Some(table), full, empty })
            }
            _ => None,
        })
    }

    /// Calls a method of the visitor before or after it visits many records.
    pub(crate) fn call_method(&self, context: &ScriptContext, method: &str) -> mlua::Result<()> {
        let Some(object) = &self.object else { return Ok(()) };
        match object.get::<Option<Function>>(method)? {
            Some(function) => context.ignore_error(function.call(object), ()),
            None => Ok(()),
        }
    }

    fn decide(
        &self,
        lua: &Lua,
        context: &ScriptContext,
        key: &[u8],
        seen: Option<&ShownRecord>,
    ) -> mlua::Result<VisitorDecision> {
        let Some(function) = (if seen.is_some() { &self.full } else { &self.empty }) else {
            return Ok(VisitorDecision::Keep);
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
        let (value, time): (Value, Value) = context.ignore_error(outcome, (Value::Nil, Value::Nil))?;
        Ok(match value {
            value if value == magic(REMOVE) => VisitorDecision::Remove,
            value => match text(lua, value)? {
                Some(value) => VisitorDecision::Put(value, lua.coerce_number(time).unwrap_or_default()),
                None => VisitorDecision::Keep,
            },
        })
    }

    /// Shows a record to the visitor, and applies its decision if `writes`. If the record was read
    /// before, `seen` is that record; if it was removed since, it is not shown.
    pub(crate) fn visit(
        &self,
        lua: &Lua,
        context: &ScriptContext,
        handle: &DatabaseHandle,
        key: &[u8],
        mut seen: Option<ShownRecord>,
        writes: bool,
    ) -> mlua::Result<CallResult<()>> {
        let is_listed = seen.is_some();
        for attempt in 0..TRIES {
            if !is_listed || attempt > 0 {
                match ShownRecord::read(handle, key) {
                    Ok(None) if is_listed => return Ok(Ok(())),
                    Ok(found) => seen = found,
                    Err(error) => return Ok(Err(ScriptError::of(&error))),
                }
            }
            let decision = self.decide(lua, context, key, seen.as_ref())?;
            context.deadline.check()?;
            let new = match decision {
                _ if !writes => return Ok(Ok(())),
                VisitorDecision::Keep => return Ok(Ok(())),
                VisitorDecision::Remove if seen.is_none() => return Ok(Ok(())),
                VisitorDecision::Remove => None,
                VisitorDecision::Put(value, time_argument) => {
                    let expiry = match (&seen, time_argument) {
                        _ if handle.source().name().tuning.persistent => Expiry::Never,
                        (Some(seen), None) => seen.expiry,
                        (_, time_argument) => expiry(time(time_argument, handle.source().database().now().0)),
                    };
                    Some((value, expiry))
                }
            };
            let new = new.as_ref().map(|(value, expiry)| (value.as_slice(), *expiry));
            let mut swap = ReplaceUnchanged { old: seen.as_ref(), new, is_equal: false };
            match handle.visit(key, &mut swap) {
                Ok(()) if swap.is_equal => return Ok(Ok(())),
                Ok(()) => {}
                Err(error) => return Ok(Err(ScriptError::of(&error))),
            }
        }
        Ok(Err(ScriptError::RESTLESS))
    }
}

fn expiry(time: u64) -> Expiry {
    if time >= NEVER { Expiry::Never } else { Expiry::At(UnixSeconds(time + 1)) }
}

/// A record as the visitor was shown it.
pub(crate) struct ShownRecord {
    pub(crate) value: Vec<u8>,
    pub(crate) expiry: Expiry,
}

impl ShownRecord {
    pub(crate) fn read(handle: &DatabaseHandle, key: &[u8]) -> todana::Result<Option<ShownRecord>> {
        let mut seen = None;
        handle.view(key, &mut |record| {
            seen = Some(ShownRecord { value: record.value.to_vec(), expiry: record.attributes.expiry });
        })?;
        Ok(seen)
    }
}

/// Replaces a record if it has not changed since it was read.
struct ReplaceUnchanged<'s> {
    old: Option<&'s ShownRecord>,
    new: Option<(&'s [u8], Expiry)>,
    is_equal: bool,
}

impl todana::Visitor for ReplaceUnchanged<'_> {
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
