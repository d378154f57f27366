//! Map and reduce with functions of the caller.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{Out, TODANA_NONE, TODANA_OK, TODANA_OTHER, answer, invalid};
use crate::attributes::Shown;
use crate::home::{self, Database};
use crate::raw::{Bytes, Text};
use crate::transactions;
use crate::visitors::there;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana::{Error, ErrorKind, MapReduce, Result};

/// How map-reduce works. All zero is right for most.
#[repr(C)]
pub struct Work {
    /// So many threads call `map` at once, the caller's among them. 0: as many as there are cores.
    threads: usize,
    /// What is emitted takes at most so many bytes of memory, the rest goes to disk. 0: 64 MiB.
    memory_max: usize,
    /// Where temporary files go, which have no names. NULL: where the system has them.
    temp_dir: Text,
    /// Makes one value of several of a key's before memory runs out: far less goes to disk then. NULL: nothing does.
    combine: Combine,
    /// 0.
    reserved: [u64; 4],
}

/// What takes the pairs, or the combined values, that a function emits; only until the function returns, and for its thread alone.
pub struct Emitter<'e>(&'e mut dyn FnMut(&[u8], &[u8]));

/// The values of one key, one after the other; only until the function returns that is shown them.
pub struct Values<'v>(&'v mut dyn Lends);

/// Is shown each record, by several threads at once, and emits what it makes of it: todana_emit(). What is not 0 ends it all.
pub type Map =
    Option<extern "C" fn(context: *mut c_void, record: &Shown, emitter: &mut Emitter<'_>) -> c_int>;

/// Is shown each key that was emitted, in their order, and its values, in none: todana_next_value(). It is called by the thread that called
/// todana_map_reduce(). What is not 0 ends it all.
pub type Reduce = Option<extern "C" fn(context: *mut c_void, key: Bytes, values: &mut Values<'_>) -> c_int>;

/// Is shown some values of a key, or what it has made of others, and emits one value that stands for all of them. Several threads call it at
/// once.
pub type Combine = Option<
    extern "C" fn(context: *mut c_void, key: Bytes, values: &mut Values<'_>, emitter: &mut Emitter<'_>),
>;

/// Calls `map` with every record, on several threads at once, and then `reduce` with every key that it has emitted and all its values. No lock
/// is held meanwhile: all of them may call the library, and what they share through `context` is theirs to guard. `work` may be NULL.
/// TODANA_OTHER: one of them has returned something else than 0. TODANA_BUSY: the thread has a transaction open, which the other threads would
/// not see.
#[unsafe(no_mangle)]
pub extern "C" fn todana_map_reduce(
    db: *mut Database,
    work: Option<&Work>,
    map: Map,
    reduce: Reduce,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let (map, reduce) = (there(map)?, there(reduce)?);
        let scope = home::with(db, |home| {
            if transactions::of_this_thread(home.number).is_some() {
                let message =
                    "the thread has a transaction open, which map-reduce does not see: end it first";
                return Err(Error::new(ErrorKind::Busy, message));
            }
            Ok(Arc::clone(home))
        })?;
        // A pointer would not go to other threads. That what it points at may be used there is for the caller to see to.
        let context = context.expose_provenance();
        let own = || ptr::with_exposed_provenance_mut(context);
        let was_ended = AtomicBool::new(false);
        let go_on = |code: c_int| {
            if code == 0 {
                return Ok(());
            }
            was_ended.store(true, Ordering::Relaxed);
            Err(invalid("a function of map-reduce has ended it"))
        };
        let combine = work.and_then(|work| work.combine);
        let combined = |key: &[u8], values: &mut dyn Iterator<Item = &[u8]>, out: &mut Vec<u8>| {
            let Some(combine) = combine else { return };
            let mut emit = |_: &[u8], value: &[u8]| out.extend_from_slice(value);
            combine(
                own(),
                Bytes::lend(key),
                &mut Values(&mut Few(values, PhantomData)),
                &mut Emitter(&mut emit),
            );
        };
        let mut run = MapReduce::new();
        if let Some(work) = work {
            run = work.configure(run)?;
        }
        if combine.is_some() {
            run = run.combine(&combined);
        }
        let outcome = run.run(
            &scope,
            &|key, record, emitter| {
                let mut emit = |key: &[u8], value: &[u8]| emitter.emit(key, value);
                go_on(map(own(), &Shown::of(key, record), &mut Emitter(&mut emit)))
            },
            &mut |key, values| {
                let mut values = Streamed { values, trouble: None };
                let code = reduce(own(), Bytes::lend(key), &mut Values(&mut values));
                // It may not have looked at what todana_next_value() has returned.
                values.trouble.map_or_else(|| go_on(code), Err)
            },
        );
        if was_ended.into_inner() {
            return Ok(TODANA_OTHER);
        }
        outcome.map(|()| TODANA_OK)
    })
}

/// Emits a pair, which is copied; from within a `todana_combine`, a value, whatever the key. What goes wrong with that ends todana_map_reduce().
#[unsafe(no_mangle)]
pub extern "C" fn todana_emit(emitter: Option<&mut Emitter<'_>>, key: Bytes, value: Bytes) -> c_int {
    answer(|| {
        let emitter = emitter.ok_or_else(|| invalid("the emitter is NULL"))?;
        (emitter.0)(key.as_slice()?, value.as_slice()?);
        Ok(TODANA_OK)
    })
}

/// Shows the next value of a key; it stays where it is until the next call. TODANA_NONE: there are no more.
#[unsafe(no_mangle)]
pub extern "C" fn todana_next_value(
    values: Option<&mut Values<'_>>,
    value: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    answer(|| {
        let (values, value) = (values.ok_or_else(|| invalid("the values are NULL"))?, value.must()?);
        match values.0.lend()? {
            Some(next) => {
                value.put(Bytes::lend(next));
                Ok(TODANA_OK)
            }
            None => {
                value.put(Bytes::NONE);
                Ok(TODANA_NONE)
            }
        }
    })
}

impl Work {
    fn configure<'c>(&self, mut run: MapReduce<'c>) -> Result<MapReduce<'c>> {
        if self.threads > 0 {
            run = run.threads(self.threads);
        }
        if self.memory_max > 0 {
            run = run.memory_max(self.memory_max);
        }
        if let Some(directory) = self.temp_dir.as_str()? {
            run = run.temp_dir(directory);
        }
        Ok(run)
    }
}

/// Shows values one after the other.
trait Lends {
    fn lend(&mut self) -> Result<Option<&[u8]>>;
}

/// Of one key, all of them.
struct Streamed<'r, 'v> {
    values: &'r mut todana::ReduceValues<'v>,
    trouble: Option<Error>,
}

impl Lends for Streamed<'_, '_> {
    fn lend(&mut self) -> Result<Option<&[u8]>> {
        let next = self.values.next();
        if let Err(error) = &next {
            self.trouble = Some(error.clone());
        }
        next
    }
}

/// Some of them, in memory.
struct Few<'v, I>(I, PhantomData<&'v [u8]>);

impl<'v, I: Iterator<Item = &'v [u8]>> Lends for Few<'v, I> {
    fn lend(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.next())
    }
}
