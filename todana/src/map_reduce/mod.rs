//! Map-reduce over all records of a database, with a limit on memory.
//!
//! ```text
//! records --in batches--> map, on each thread --(key, value)--> a table of that thread
//!         a table groups values by key; if it is full, the values of each key are combined
//!         if that does not free enough memory: the table --sorted--> a run on disk
//! runs and tables --merged in the order of keys--> reduce, key by key, on the calling thread
//! ```
//!
//! Runs are temporary files without a name, so they disappear with the process. Up to
//! [`RUNS_AT_ONCE`] runs are merged at once. If there are more, some of them are merged into one
//! first.

mod merge;
mod run;
mod table;

use crate::db::{distribute, thread_count};
use crate::{Record, Records};
use merge::{PairMerger, PairSource};
use parking_lot::Mutex;
use run::{RunWriter, SortedRun};
use std::fmt;
use std::path::{Path, PathBuf};
use table::PairTable;
use todana_core::{Error, ErrorKind, Result};

pub use merge::ReduceValues;

const MEMORY_MAX: usize = 64 << 20;
/// The least memory of a thread, in bytes.
const MEMORY_MIN: usize = 64 << 10;
/// The most runs that are merged at once. Each of them needs a buffer.
const RUNS_AT_ONCE: usize = 64;

/// Combines several values of a key into one: `(key, values, combined)`. The bytes that are written
/// to `combined` replace the values.
type CombineValues<'c> = dyn Fn(&[u8], &mut dyn Iterator<Item = &[u8]>, &mut Vec<u8>) + Sync + 'c;

/// Receives each record, and emits pairs of key and value.
type MapRecord<'m> = dyn Fn(&[u8], Record<'_>, &mut PairEmitter<'_>) -> Result<()> + Sync + 'm;

/// Map-reduce over all records of a database. This example counts words:
///
/// ```
/// use todana::{Db, MapReduce, Records};
///
/// let db = Db::open("mem:hash")?;
/// db.set_many(&[(b"1", b"the cat and the dog"), (b"2", b"the end")])?;
/// let mut counts = Vec::new();
/// MapReduce::new().run(
///     &db,
///     &|_, record, emit| {
///         for word in record.value.split(|byte| byte.is_ascii_whitespace()) {
///             emit.emit(word, b"1");
///         }
///         Ok(())
///     },
///     &mut |word, values| {
///         let mut count = 0;
///         while let Some(_) = values.next()? {
///             count += 1;
///         }
///         counts.push((String::from_utf8_lossy(word).into_owned(), count));
///         Ok(())
///     },
/// )?;
/// let counts: Vec<_> = counts.iter().map(|(word, count)| (word.as_str(), *count)).collect();
/// assert_eq!(counts, [("and", 1), ("cat", 1), ("dog", 1), ("end", 1), ("the", 3)]);
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Default)]
pub struct MapReduce<'c> {
    threads: Option<usize>,
    memory_max: Option<usize>,
    temp_dir: Option<PathBuf>,
    combine: Option<&'c CombineValues<'c>>,
}

impl fmt::Debug for MapReduce<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapReduce").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl<'c> MapReduce<'c> {
    /// Creates a job that uses all cores, 64 MiB of memory, and temporary files in the system's
    /// directory.
    pub fn new() -> MapReduce<'c> {
        MapReduce::default()
    }

    /// Sets the number of threads.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Limits the memory of emitted pairs of all threads together. Further pairs are written to
    /// disk. Each thread needs some MiB more for the records that it maps.
    pub fn memory_max(mut self, bytes: usize) -> Self {
        self.memory_max = Some(bytes);
        self
    }

    /// Sets the directory of temporary files. The files have no names, so they disappear however
    /// the job ends.
    pub fn temp_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.temp_dir = Some(directory.as_ref().into());
        self
    }

    /// Sets a function that combines several values of a key into one before memory runs out, so
    /// that far less goes to disk. It is called as often as necessary, on many threads, with any of
    /// the values of a key and with earlier results. `reduce` receives the remaining values.
    ///
    /// ```
    /// # use todana::{Db, MapReduce, Records};
    /// fn number(bytes: &[u8]) -> u64 {
    ///     bytes.try_into().map_or(0, u64::from_le_bytes)
    /// }
    ///
    /// let db = Db::open("mem:hash")?;
    /// db.set(b"1", b"to be or not to be")?;
    /// let mut most = (0, Vec::new());
    /// let sum = |_: &[u8], values: &mut dyn Iterator<Item = &[u8]>, sum: &mut Vec<u8>| {
    ///     sum.extend_from_slice(&values.map(number).sum::<u64>().to_le_bytes());
    /// };
    /// MapReduce::new().combine(&sum).run(
    ///     &db,
    ///     &|_, record, emit| {
    ///         let words = record.value.split(|&byte| byte == b' ');
    ///         words.for_each(|word| emit.emit(word, &1u64.to_le_bytes()));
    ///         Ok(())
    ///     },
    ///     &mut |word, values| {
    ///         let mut count = 0;
    ///         while let Some(value) = values.next()? {
    ///             count += number(value);
    ///         }
    ///         most = most.clone().max((count, word.to_vec()));
    ///         Ok(())
    ///     },
    /// )?;
    /// assert_eq!(most, (2, b"to".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn combine(mut self, combine: &'c CombineValues<'c>) -> Self {
        self.combine = Some(combine);
        self
    }

    /// Calls `map` for every live record, on many threads. Then calls `reduce` for every emitted
    /// key in ascending order, with all its values in no particular order. Both may call the
    /// database. The first error that one of them returns ends the job. Fails with `Unavailable` if
    /// temporary files cannot be written, and with `Invalid` if a single pair exceeds the memory
    /// limit.
    pub fn run(
        &self,
        records: &(impl Records + Sync),
        map: &MapRecord<'_>,
        reduce: &mut dyn FnMut(&[u8], &mut ReduceValues<'_>) -> Result<()>,
    ) -> Result<()> {
        let threads = thread_count(self.threads);
        let memory_max = (self.memory_max.unwrap_or(MEMORY_MAX) / threads).max(MEMORY_MIN);
        let left = Mutex::new(Vec::new());
        let own = |_| PairEmitter {
            table: PairTable::new(memory_max),
            combine: self.combine,
            temp_dir: self.temp_dir.as_deref(),
            runs: Vec::new(),
            error: None,
        };
        let see = |emitter: &mut PairEmitter<'_>, key: &[u8], record: Record<'_>| {
            map(key, record, emitter)?;
            emitter.error.take().map_or(Ok(()), Err)
        };
        let finish = |mut emitter: PairEmitter<'_>| {
            emitter.finish()?;
            left.lock().push((emitter.table, emitter.runs));
            Ok(())
        };
        distribute(records, Some(threads), &see, &own, &finish)?;

        let (mut tables, mut runs) = (Vec::new(), Vec::new());
        for (table, of_thread) in left.into_inner() {
            tables.push(table);
            runs.extend(of_thread);
        }
        while runs.len() > RUNS_AT_ONCE {
            let merged = self.merge_runs(runs.drain(..RUNS_AT_ONCE).collect())?;
            runs.push(merged);
        }
        let sources = tables.iter().map(PairSource::of_table).chain(runs.into_iter().map(PairSource::of_run));
        PairMerger::new(sources.collect())?.each(reduce)
    }

    /// Merges several runs into one.
    fn merge_runs(&self, runs: Vec<SortedRun>) -> Result<SortedRun> {
        let mut writer = RunWriter::new(self.temp_dir.as_deref())?;
        PairMerger::new(runs.into_iter().map(PairSource::of_run).collect())?.each(&mut |key, values| {
            writer.key(key)?;
            while let Some(value) = values.next()? {
                writer.value(value)?;
            }
            writer.end()
        })?;
        writer.finish()
    }
}

/// Receives the pairs that a map emits.
pub struct PairEmitter<'e> {
    table: PairTable,
    combine: Option<&'e CombineValues<'e>>,
    temp_dir: Option<&'e Path>,
    runs: Vec<SortedRun>,
    error: Option<Error>,
}

impl fmt::Debug for PairEmitter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emitter").field("runs", &self.runs.len()).finish_non_exhaustive()
    }
}

impl PairEmitter<'_> {
    /// Emits a pair for the reduction. If that fails, the job ends when `map` returns.
    #[inline]
    pub fn emit(&mut self, key: &[u8], value: &[u8]) {
        if !self.table.push(key, value, self.combine) {
            self.make_room(key, value);
        }
    }

    #[cold]
    fn make_room(&mut self, key: &[u8], value: &[u8]) {
        if self.error.is_some() {
            return;
        }
        self.error = self.retry_with_room(|emitter| emitter.table.push(key, value, emitter.combine)).err();
    }

    /// Calls `run`. If it finds no room, frees memory and calls it again.
    fn retry_with_room(&mut self, run: impl Fn(&mut Self) -> bool) -> Result<()> {
        self.free_memory()?;
        if run(self) {
            return Ok(());
        }
        // Combining has freed too little memory for all waiting pairs.
        self.spill()?;
        if run(self) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Invalid, "map-reduce: a pair exceeds the memory limit"))
    }

    /// Combines the values of each key. If that frees little memory, writes the table to disk.
    fn free_memory(&mut self) -> Result<()> {
        if let Some(combine) = self.combine {
            self.table.combine(combine);
            if self.table.has_much_room() {
                return Ok(());
            }
        }
        self.spill()
    }

    /// Writes the table to disk as a run, and empties it.
    fn spill(&mut self) -> Result<()> {
        let mut writer = RunWriter::new(self.temp_dir)?;
        self.table.sort();
        self.table.each(&mut |key, values| {
            writer.key(key)?;
            for value in values {
                writer.value(value)?;
            }
            writer.end()
        })?;
        self.runs.push(writer.finish()?);
        self.table.clear();
        Ok(())
    }

    /// Adds the pairs that still wait after the last record.
    fn finish(&mut self) -> Result<()> {
        if !self.table.add_waiting(self.combine) {
            self.retry_with_room(|emitter| emitter.table.add_waiting(emitter.combine))?;
        }
        if let Some(combine) = self.combine {
            self.table.combine(combine);
        }
        self.table.sort();
        Ok(())
    }
}
