//! Implements map-reduce with functions of the script. It runs in one thread, because an
//! interpreter has only one.

use crate::arguments::TextArgument;
use crate::context::ScriptContext;
use crate::database::DatabaseObject;
use crate::error::{CallResult, ScriptError};
use crate::source::DatabaseHandle;
use mlua::{Function, Lua, MultiValue, UserDataMethods, Value};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use todana::RecordIter;

/// The number of bytes of memory that a pair uses in addition to its own bytes.
const OVERHEAD: usize = 64;

/// The emitted values, by key. They are stored outside of the interpreter, but count toward its
/// memory limit.
pub(crate) struct EmittedPairs {
    context: Arc<ScriptContext>,
    values: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    bytes: usize,
}

impl EmittedPairs {
    pub(crate) fn new(context: &Arc<ScriptContext>) -> EmittedPairs {
        EmittedPairs { context: Arc::clone(context), values: BTreeMap::new(), bytes: 0 }
    }

    /// Takes all values, by key.
    pub(crate) fn take(&mut self) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
        std::mem::take(&mut self.values)
    }

    pub(crate) fn push(&mut self, lua: &Lua, key: &[u8], value: &[u8]) -> mlua::Result<()> {
        let bytes = key.len() + value.len() + OVERHEAD;
        self.context.take_outside(lua, bytes)?;
        self.bytes += bytes;
        self.values.entry(key.to_vec()).or_default().push(value.to_vec());
        Ok(())
    }
}

impl Drop for EmittedPairs {
    fn drop(&mut self) {
        self.context.give_back(self.bytes);
    }
}

/// The functions of the script that the job calls.
struct JobFunctions {
    map: Function,
    reduce: Function,
    log: Option<Function>,
    process: Option<Function>,
}

impl JobFunctions {
    fn run(
        &self,
        lua: &Lua,
        context: &Arc<ScriptContext>,
        handle: &DatabaseHandle,
    ) -> mlua::Result<CallResult<()>> {
        let emitted = Arc::new(Mutex::new(EmittedPairs::new(context)));
        let emit = {
            // The script may keep this function longer than the emitted values exist.
            let emitted = Arc::downgrade(&emitted);
            lua.create_function(move |lua, (key, value): (TextArgument, TextArgument)| {
                let (Some(emitted), Some(key), Some(value)) = (emitted.upgrade(), key.0, value.0) else {
                    return Ok(false);
                };
                emitted.lock().push(lua, &key.as_bytes(), &value.as_bytes())?;
                Ok(true)
            })?
        };
        if !(self.report_progress("mapping")? && self.intervene(Some(&emit))?) {
            return Ok(Err(ScriptError::CHECKER));
        }
        for record in RecordIter::new(handle.clone()) {
            let (key, value) = match record {
                Ok(record) => record,
                Err(error) => return Ok(Err(ScriptError::of(&error))),
            };
            let mapped = self.map.call((lua.create_string(key)?, lua.create_string(value)?, &emit));
            if !context.ignore_error(mapped, false)? {
                return Ok(Err(ScriptError::CHECKER));
            }
        }
        if !(self.intervene(Some(&emit))? && self.report_progress("reducing")?) {
            return Ok(Err(ScriptError::CHECKER));
        }
        let values = emitted.lock().take();
        for (key, values) in values {
            let values = Mutex::new(values.into_iter());
            let next = lua.create_function(move |lua, _: MultiValue| {
                values.lock().next().map(|value| lua.create_string(value)).transpose()
            })?;
            if !context.ignore_error(self.reduce.call((lua.create_string(key)?, next)), false)? {
                return Ok(Err(ScriptError::CHECKER));
            }
        }
        let is_fine = self.intervene(None)? && self.report_progress("done")?;
        Ok(if is_fine { Ok(()) } else { Err(ScriptError::CHECKER) })
    }

    /// Reports the progress to the script. Returns false if the script ends the job, which only the
    /// result `false` does.
    fn report_progress(&self, text: &str) -> mlua::Result<bool> {
        let Some(log) = &self.log else { return Ok(true) };
        Ok(log.call::<Value>(text)? != Value::Boolean(false))
    }

    /// Calls the function that the script has set for the time between two steps.
    fn intervene(&self, emit: Option<&Function>) -> mlua::Result<bool> {
        let Some(process) = &self.process else { return Ok(true) };
        Ok(process.call::<Value>(emit)? != Value::Boolean(false))
    }
}

pub(crate) fn add_methods<M: UserDataMethods<DatabaseObject>>(methods: &mut M) {
    // Arguments 3 to 7 (a directory, options, numbers of databases, bytes and buckets) have no
    // effect here.
    methods.add_method("mapreduce", |lua, this, given: MultiValue| {
        let function = |number: usize| match given.get(number) {
            None | Some(Value::Nil) => Ok(None),
            Some(Value::Function(function)) => Ok(Some(function.clone())),
            Some(_) => {
                Err(mlua::Error::runtime(format!("mapreduce: argument {} is no function", number + 1)))
            }
        };
        let missing = || mlua::Error::runtime("mapreduce: it takes a function to map and one to reduce");
        let work = JobFunctions {
            map: function(0)?.ok_or_else(missing)?,
            reduce: function(1)?.ok_or_else(missing)?,
            log: function(7)?,
            process: function(8)?,
        };
        Ok(this.attempt_calling(|handle| work.run(lua, &this.context, handle))?.is_some())
    });
}
