//! State that all interpreters of a server share: the stash, named locks, and chunks of code for
//! each of them.

use super::records::Bytes;
use crate::context::ScriptContext;
use crate::error::message;
use crate::limits::Deadline;
use mlua::{Function, Lua, Value};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The memory that a record of the stash uses besides its bytes.
const RECORD_OVERHEAD: usize = 64;
/// The largest number of names that are locked at once.
const LOCKS_MAX: usize = 1 << 16;
/// The largest number of chunks of code that `_eval` accepts.
const CHUNKS_MAX: usize = 1024;
/// The longest chunk of code.
const CHUNK_LEN_MAX: usize = 1 << 20;
/// The interval at which a waiting call checks its deadline.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// The state that all interpreters of a server share.
#[derive(Default)]
pub struct SharedScriptState {
    stash: Mutex<Stash>,
    locked: Mutex<BTreeSet<Vec<u8>>>,
    unlocked: Condvar,
    chunks: Mutex<Vec<Arc<[u8]>>>,
}

/// Records that are lost at the end of the server.
#[derive(Default)]
struct Stash {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

impl Stash {
    /// Stores a record; returns false if there is no room.
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>, bytes_max: usize) -> bool {
        let old = self.records.get(&key).map_or(0, |old| cost(&key, old));
        let bytes = self.bytes - old + cost(&key, &value);
        if bytes > bytes_max {
            return false;
        }
        self.bytes = bytes;
        self.records.insert(key, value);
        true
    }

    fn out(&mut self, key: &[u8]) -> bool {
        let removed = self.records.remove(key);
        self.bytes -= removed.as_ref().map_or(0, |value| cost(key, value));
        removed.is_some()
    }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + RECORD_OVERHEAD
}

impl SharedScriptState {
    /// Waits until a name is free and locks it. Returns false if too many names are locked.
    fn lock(&self, name: &[u8], deadline: &Deadline) -> mlua::Result<bool> {
        let mut locked = self.locked.lock();
        while locked.contains(name) {
            self.unlocked.wait_for(&mut locked, WAIT_MAX);
            deadline.check()?;
        }
        if locked.len() >= LOCKS_MAX {
            return Ok(false);
        }
        Ok(locked.insert(name.to_vec()))
    }

    fn unlock(&self, name: &[u8]) {
        self.locked.lock().remove(name);
        self.unlocked.notify_all();
    }
}

/// The part of one interpreter in the shared state.
pub(crate) struct InterpreterShare {
    shared: Arc<SharedScriptState>,
    /// The names that the current call has locked.
    locked: Mutex<BTreeSet<Vec<u8>>>,
    /// The number of chunks that this interpreter has run.
    evaluated: AtomicUsize,
}

impl InterpreterShare {
    pub(super) fn new(shared: &Arc<SharedScriptState>) -> InterpreterShare {
        let (locked, evaluated) = Default::default();
        InterpreterShare { shared: Arc::clone(shared), locked, evaluated }
    }

    /// Runs the chunks that other interpreters have evaluated since the last call.
    pub(super) fn evaluate(&self, lua: &Lua) {
        let chunks: Vec<Arc<[u8]>> = {
            let all = self.shared.chunks.lock();
            let done = self.evaluated.swap(all.len(), Ordering::Relaxed);
            all[done.min(all.len())..].to_vec()
        };
        for chunk in chunks {
            if let Err(error) = run(lua, &chunk) {
                tracing::warn!("_eval: {}", message(&error));
            }
        }
    }

    /// Unlocks the names that the call has left locked.
    pub(super) fn unlock_all(&self) {
        for name in std::mem::take(&mut *self.locked.lock()) {
            self.shared.unlock(&name);
        }
    }
}

impl Drop for InterpreterShare {
    fn drop(&mut self) {
        self.unlock_all();
    }
}

fn run(lua: &Lua, chunk: &[u8]) -> mlua::Result<()> {
    lua.load(chunk).set_name("=_eval").set_mode(mlua::chunk::ChunkMode::Text).exec()
}

pub(super) fn define(
    lua: &Lua,
    context: &Arc<ScriptContext>,
    share: &Arc<InterpreterShare>,
) -> mlua::Result<()> {
    define_stash(lua, context, share)?;
    let globals = lua.globals();
    let (of, deadline) = (Arc::clone(share), context.deadline.clone());
    let lock = move |_: &Lua, name: Bytes| {
        if of.locked.lock().contains(&name.0) {
            return Err(mlua::Error::runtime("_lock: this call has locked the name already"));
        }
        let is_locked = of.shared.lock(&name.0, &deadline)?;
        if is_locked {
            of.locked.lock().insert(name.0);
        }
        Ok(is_locked)
    };
    globals.set("_lock", lua.create_function(lock)?)?;
    let of = Arc::clone(share);
    let unlock = move |_: &Lua, name: Bytes| {
        let was_locked = of.locked.lock().remove(&name.0);
        if was_locked {
            of.shared.unlock(&name.0);
        }
        Ok(was_locked)
    };
    globals.set("_unlock", lua.create_function(unlock)?)?;
    let of = Arc::clone(share);
    let eval = move |lua: &Lua, chunk: Bytes| {
        if chunk.0.len() > CHUNK_LEN_MAX || of.shared.chunks.lock().len() >= CHUNKS_MAX {
            return Ok(false);
        }
        of.evaluate(lua);
        if let Err(error) = run(lua, &chunk.0) {
            tracing::warn!("_eval: {}", message(&error));
            return Ok(false);
        }
        let mut all = of.shared.chunks.lock();
        // Another interpreter may have added a chunk meanwhile; this one then runs its own again.
        if of.evaluated.load(Ordering::Relaxed) == all.len() {
            of.evaluated.store(all.len() + 1, Ordering::Relaxed);
        }
        all.push(chunk.0.into());
        Ok(true)
    };
    globals.set("_eval", lua.create_function(eval)?)
}

fn define_stash(lua: &Lua, context: &Arc<ScriptContext>, share: &Arc<InterpreterShare>) -> mlua::Result<()> {
    let globals = lua.globals();
    let bytes_max = context.options.memory_max;
    // The mode: replace, keep or append.
    for (name, mode) in [("_stashput", 0), ("_stashputkeep", 1), ("_stashputcat", 2)] {
        let of = Arc::clone(share);
        let put = move |_: &Lua, (key, value): (Bytes, Bytes)| {
            let mut stash = of.shared.stash.lock();
            let value = match (mode, stash.records.get(&key.0)) {
                (1, Some(_)) => return Ok(false),
                (2, Some(old)) => [&old[..], &value.0].concat(),
                _ => value.0,
            };
            Ok(stash.put(key.0, value, bytes_max))
        };
        globals.set(name, lua.create_function(put)?)?;
    }
    let of = Arc::clone(share);
    let out = move |_: &Lua, key: Bytes| Ok(of.shared.stash.lock().out(&key.0));
    globals.set("_stashout", lua.create_function(out)?)?;
    let of = Arc::clone(share);
    let get = move |lua: &Lua, key: Bytes| match of.shared.stash.lock().records.get(&key.0) {
        Some(value) => lua.create_string(value).map(Value::String),
        None => Ok(Value::Nil),
    };
    globals.set("_stashget", lua.create_function(get)?)?;
    let of = Arc::clone(share);
    let vanish = move |_: &Lua, ()| {
        *of.shared.stash.lock() = Stash::default();
        Ok(true)
    };
    globals.set("_stashvanish", lua.create_function(vanish)?)?;
    let (of, context) = (Arc::clone(share), Arc::clone(context));
    let each = move |lua: &Lua, visit: Function| {
        let keys: Vec<Vec<u8>> = of.shared.stash.lock().records.keys().cloned().collect();
        for key in keys {
            // The function may change the stash.
            let Some(value) = of.shared.stash.lock().records.get(&key).cloned() else { continue };
            if !visit.call::<bool>((lua.create_string(key)?, lua.create_string(value)?))? {
                break;
            }
            context.deadline.check()?;
        }
        Ok(true)
    };
    globals.set("_stashforeach", lua.create_function(each)?)
}
