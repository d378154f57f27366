//! Exports map-reduce with functions of the caller.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_NONE, TODANA_OK, TODANA_OTHER, answer, invalid};
use crate::attributes::ShownRecord;
use crate::open_database::{self, DatabaseHandle};
use crate::raw::{Bytes, CText};
use crate::transactions;
use crate::visitors::there;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana::{Error, ErrorKind, MapReduce, Result};

/// Options of map-reduce. If all fields are zero, they suit most programs.
#[repr(C)]
pub struct MapReduceOptions {
    /// The number of threads that call `map` at the same time, including the caller's thread. 0:
    /// one for each core.
    threads: usize,
    /// The maximum number of bytes of memory for emitted pairs. Further pairs are written to disk.
    /// 0: 64 MiB.
    memory_max: usize,
    /// The directory of temporary files, which have no names. NULL: the system's directory.
    temp_dir: CText,
    /// Combines several values of one key before they are written to disk, which saves space. NULL:
    /// values are not combined.
    combine: CombineFunction,
    /// Must be 0.
    reserved: [u64; 4],
}

/// Receives the pairs, or the combined values, that a function emits. Valid only until the function
/// returns, and only in the thread of the function.
pub struct PairEmitter<'e>(&'e mut dyn FnMut(&[u8], &[u8]));

/// The values of one key, one after another. Valid only until the function returns.
pub struct KeyValues<'v>(&'v mut dyn LentValues);

/// Receives each record, in several threads at the same time, and emits pairs by todana_emit(). A
/// result other than 0 ends the run.
pub type MapFunction =
    Option<extern "C" fn(context: *mut c_void, record: &ShownRecord, emitter: &mut PairEmitter<'_>) -> c_int>;

/// Receives each emitted key, in the order of the keys, and reads its values, in any order, by
/// todana_next_value(). Called in the thread that called todana_map_reduce(). A result other than 0
/// ends the run.
pub type ReduceFunction =
    Option<extern "C" fn(context: *mut c_void, key: Bytes, values: &mut KeyValues<'_>) -> c_int>;

/// Receives some values of a key, or results of earlier calls, and emits one value that replaces
/// them. Called in several threads at the same time.
pub type CombineFunction = Option<
    extern "C" fn(
        context: *mut c_void,
        key: Bytes,
        values: &mut KeyValues<'_>,
        emitter: &mut PairEmitter<'_>,
    ),
>;

/// Calls `map` with every record, in several threads at the same time, and then `reduce` with every
/// emitted key and its values. No lock is held meanwhile: the functions may call the library, and
/// must protect the data that they share through `context`. `work` may be NULL. TODANA_OTHER: a
/// function returned a result other than 0. TODANA_BUSY: this thread has an open transaction, whose
/// changes the other threads would not see.
#[unsafe(no_mangle)]
pub extern "C" fn todana_map_reduce(
    db: *mut DatabaseHandle,
    work: Option<&MapReduceOptions>,
    map: MapFunction,
    reduce: ReduceFunction,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let (map, reduce) = (there(map)?, there(reduce)?);
        let scope = open_database::with(db, |open_database| {
            if transactions::of_this_thread(open_database.number).is_some() {
                let message =
                    "the thread has a transaction open, which map-reduce does not see: end it first";
                return Err(Error::new(ErrorKind::Busy, message));
            }
            Ok(Arc::clone(open_database))
        })?;
        // Rust does not send pointers to other threads. The caller promises that the functions may
        // use the target in other threads.
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
                &mut KeyValues(&mut SomeValues(values, PhantomData)),
                &mut PairEmitter(&mut emit),
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
                go_on(map(own(), &ShownRecord::of(key, record), &mut PairEmitter(&mut emit)))
            },
            &mut |key, values| {
                let mut values = StreamedValues { values, error: None };
                let code = reduce(own(), Bytes::lend(key), &mut KeyValues(&mut values));
                // The function may have ignored an error of todana_next_value().
                values.error.map_or_else(|| go_on(code), Err)
            },
        );
        if was_ended.into_inner() {
            return Ok(TODANA_OTHER);
        }
        outcome.map(|()| TODANA_OK)
    })
}

/// Emits a pair, which is copied. In a `combine` function, emits a value and ignores the key. An
/// error of this call ends todana_map_reduce().
#[unsafe(no_mangle)]
pub extern "C" fn todana_emit(emitter: Option<&mut PairEmitter<'_>>, key: Bytes, value: Bytes) -> c_int {
    answer(|| {
        let emitter = emitter.ok_or_else(|| invalid("the emitter is NULL"))?;
        (emitter.0)(key.as_slice()?, value.as_slice()?);
        Ok(TODANA_OK)
    })
}

/// Shows the next value of a key. The view stays valid until the next call. TODANA_NONE: there are
/// no more values.
#[unsafe(no_mangle)]
pub extern "C" fn todana_next_value(
    values: Option<&mut KeyValues<'_>>,
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

impl MapReduceOptions {
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

/// A source of values, one after another.
trait LentValues {
    fn lend(&mut self) -> Result<Option<&[u8]>>;
}

/// All values of a key.
struct StreamedValues<'r, 'v> {
    values: &'r mut todana::ReduceValues<'v>,
    error: Option<Error>,
}

impl LentValues for StreamedValues<'_, '_> {
    fn lend(&mut self) -> Result<Option<&[u8]>> {
        let next = self.values.next();
        if let Err(error) = &next {
            self.error = Some(error.clone());
        }
        next
    }
}

/// Some values of a key, in memory.
struct SomeValues<'v, I>(I, PhantomData<&'v [u8]>);

impl<'v, I: Iterator<Item = &'v [u8]>> LentValues for SomeValues<'v, I> {
    fn lend(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.next())
    }
}
