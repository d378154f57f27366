//! State that all interpreters of a server share: the stash, named locks, and chunks of code for
//! each of them.

use super::records::Bytes;
use crate::context::ScriptContext;
use crate::error::message;
use crate::limits::Deadline;
use mlua::{Function, Lua, Value};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The memory that a record of the stash, or a locked name, uses besides its bytes.
const OVERHEAD: usize = 128;
/// The largest number of chunks of code that `_eval` accepts. Each new interpreter runs all of
/// them.
const CHUNKS_MAX: usize = 1024;
/// The interval at which a waiting call checks its deadline.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// The state that all interpreters of a server share. Stash, names and chunks each take at most as
/// much memory as a call.
#[derive(Default)]
pub struct SharedScriptState {
    stash: Mutex<Stash>,
    locked: Mutex<LockedNames>,
    unlocked: Condvar,
    chunks: Mutex<EvaluatedChunks>,
}

/// The names that calls have locked.
#[derive(Default)]
struct LockedNames {
    names: BTreeSet<Vec<u8>>,
    bytes: usize,
}

/// The chunks of code that `_eval` has accepted.
#[derive(Default)]
struct EvaluatedChunks {
    chunks: Vec<Arc<[u8]>>,
    bytes: usize,
}

impl EvaluatedChunks {
    fn has_room(&self, len: usize, bytes_max: usize) -> bool {
        self.chunks.len() < CHUNKS_MAX && self.bytes.saturating_add(len) <= bytes_max
    }
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
    key.len() + value.len() + OVERHEAD
}

impl SharedScriptState {
    /// Waits until a name is free and locks it. Returns false if the locked names take too much
    /// memory.
    fn lock(&self, name: &[u8], bytes_max: usize, deadline: &Deadline) -> mlua::Result<bool> {
        let mut locked = self.locked.lock();
        while locked.names.contains(name) {
            self.unlocked.wait_for(&mut locked, WAIT_MAX);
            deadline.check()?;
        }
        let bytes = locked.bytes + cost_of_name(name);
        if bytes > bytes_max {
            return Ok(false);
        }
        locked.bytes = bytes;
        Ok(locked.names.insert(name.to_vec()))
    }

    fn unlock(&self, name: &[u8]) {
        let mut locked = self.locked.lock();
        if locked.names.remove(name) {
            locked.bytes -= cost_of_name(name);
        }
        drop(locked);
        self.unlocked.notify_all();
    }
}

/// Returns the memory of a locked name, which its interpreter has too.
fn cost_of_name(name: &[u8]) -> usize {
    2 * (name.len() + OVERHEAD)
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
            let done = self.evaluated.swap(all.chunks.len(), Ordering::Relaxed);
            all.chunks[done.min(all.chunks.len())..].to_vec()
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
    let bytes_max = context.options.memory_max;
    let (of, deadline) = (Arc::clone(share), context.deadline.clone());
    let lock = move |_: &Lua, name: Bytes| {
        if of.locked.lock().contains(&name.0) {
            return Err(mlua::Error::runtime("_lock: this call has locked the name already"));
        }
        let is_locked = of.shared.lock(&name.0, bytes_max, &deadline)?;
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
        let len = chunk.0.len();
        if !of.shared.chunks.lock().has_room(len, bytes_max) {
            return Ok(false);
        }
        of.evaluate(lua);
        if let Err(error) = run(lua, &chunk.0) {
            tracing::warn!("_eval: {}", message(&error));
            return Ok(false);
        }
        let mut all = of.shared.chunks.lock();
        if !all.has_room(len, bytes_max) {
            return Ok(false);
        }
        // Another interpreter may have added a chunk meanwhile; this one then runs its own again.
        if of.evaluated.load(Ordering::Relaxed) == all.chunks.len() {
            of.evaluated.store(all.chunks.len() + 1, Ordering::Relaxed);
        }
        all.bytes += len;
        all.chunks.push(chunk.0.into());
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
        let mut from = Bound::Unbounded;
        loop {
            // The function may change the stash.
            let next = {
                let stash = of.shared.stash.lock();
                let after = from.as_ref().map(Vec::as_slice);
                let mut records = stash.records.range::<[u8], _>((after, Bound::Unbounded));
                records.next().map(|(key, value)| (key.clone(), value.clone()))
            };
            let Some((key, value)) = next else { break };
            if !visit.call::<bool>((lua.create_string(&key)?, lua.create_string(value)?))? {
                break;
            }
            context.deadline.check()?;
            from = Bound::Excluded(key);
        }
        Ok(true)
    };
    globals.set("_stashforeach", lua.create_function(each)?)
}
