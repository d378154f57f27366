//! Map and reduce over all records of a database, with a bound on memory.
//!
//! ```text
//! records --batches--> map, on each thread --(key, value)--> a table of that thread, values grouped by key
//!                      a table that is full: combined; if that does not help, sorted into a run on disk
//! runs and tables --merged in the order of their keys--> reduce, key by key, on the thread that called
//! ```
//!
//! Runs are temporary files without a name, gone with the process. At most [`RUNS_AT_ONCE`] are merged at a time; where there are more,
//! some are merged into one first.

mod merge;
mod run;
mod table;

use crate::db::{distribute, thread_count};
use crate::{Record, Records};
use merge::{Merger, Source};
use parking_lot::Mutex;
use run::{Run, RunWriter};
use std::fmt;
use std::path::{Path, PathBuf};
use table::Table;
use todana_core::{Error, ErrorKind, Result};

pub use merge::ReduceValues;

const MEMORY_MAX: usize = 64 << 20;
/// Less than that a thread cannot do anything with.
const MEMORY_MIN: usize = 64 << 10;
/// Each takes a buffer while it is read.
const RUNS_AT_ONCE: usize = 64;

/// Makes one value of several of a key's: `(key, values, combined)`; what it writes to `combined` stands for all of them.
type Combine<'c> = dyn Fn(&[u8], &mut dyn Iterator<Item = &[u8]>, &mut Vec<u8>) + Sync + 'c;

/// Is shown each record, and emits what it makes of it.
type Map<'m> = dyn Fn(&[u8], Record<'_>, &mut PairEmitter<'_>) -> Result<()> + Sync + 'm;

/// Map and reduce over all records of a database. Here it counts words:
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
    combine: Option<&'c Combine<'c>>,
}

impl fmt::Debug for MapReduce<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapReduce").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl<'c> MapReduce<'c> {
    /// On all cores, in 64 MiB of memory, with temporary files where the system has them.
    pub fn new() -> MapReduce<'c> {
        MapReduce::default()
    }

    /// On so many threads.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// What is emitted takes at most so many bytes of memory, by all threads together; the rest goes to disk. Each thread has
    /// besides some MiB for the records that it maps.
    pub fn memory_max(mut self, bytes: usize) -> Self {
        self.memory_max = Some(bytes);
        self
    }

    /// Where temporary files go. They have no names, and are gone when it is over, however that is.
    pub fn temp_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.temp_dir = Some(directory.as_ref().into());
        self
    }

    /// Makes one value of several of one key, before memory runs out: far less goes to disk then. It is called as often as need be
    /// with any of the key's values, and with what it has made itself, on many threads; `reduce` gets what is left.
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
    ///         record.value.split(|&byte| byte == b' ').for_each(|word| emit.emit(word, &1u64.to_le_bytes()));
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
    pub fn combine(mut self, combine: &'c Combine<'c>) -> Self {
        self.combine = Some(combine);
        self
    }

    /// Runs `map` on every live record, on many threads at once, and then `reduce` on every key that was emitted, in the order of the keys,
    /// with all its values in no order. Each may call the database. The first error that one of them returns ends it. Fails with
    /// `Unavailable` if temporary files cannot be written, with `Invalid` if what is emitted at once does not fit into memory.
    pub fn run(
        &self,
        records: &(impl Records + Sync),
        map: &Map<'_>,
        reduce: &mut dyn FnMut(&[u8], &mut ReduceValues<'_>) -> Result<()>,
    ) -> Result<()> {
        let threads = thread_count(self.threads);
        let memory_max = (self.memory_max.unwrap_or(MEMORY_MAX) / threads).max(MEMORY_MIN);
        let left = Mutex::new(Vec::new());
        let own = |_| PairEmitter {
            table: Table::new(memory_max),
            combine: self.combine,
            temp_dir: self.temp_dir.as_deref(),
            runs: Vec::new(),
            trouble: None,
        };
        let see = |emitter: &mut PairEmitter<'_>, key: &[u8], record: Record<'_>| {
            map(key, record, emitter)?;
            emitter.trouble.take().map_or(Ok(()), Err)
        };
        let finish = |mut emitter: PairEmitter<'_>| {
            emitter.settle()?;
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
            let united = self.unite(runs.drain(..RUNS_AT_ONCE).collect())?;
            runs.push(united);
        }
        let sources = tables.iter().map(Source::of_table).chain(runs.into_iter().map(Source::of_run));
        Merger::new(sources.collect())?.each(reduce)
    }

    /// Merges runs into one.
    fn unite(&self, runs: Vec<Run>) -> Result<Run> {
        let mut writer = RunWriter::new(self.temp_dir.as_deref())?;
        Merger::new(runs.into_iter().map(Source::of_run).collect())?.each(&mut |key, values| {
            writer.key(key)?;
            while let Some(value) = values.next()? {
                writer.value(value)?;
            }
            writer.end()
        })?;
        writer.finish()
    }
}

/// Takes what a map emits.
pub struct PairEmitter<'e> {
    table: Table,
    combine: Option<&'e Combine<'e>>,
    temp_dir: Option<&'e Path>,
    runs: Vec<Run>,
    trouble: Option<Error>,
}

impl fmt::Debug for PairEmitter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emitter").field("runs", &self.runs.len()).finish_non_exhaustive()
    }
}

impl PairEmitter<'_> {
    /// Emits a pair for the reduction. What goes wrong ends the whole when `map` returns.
    #[inline]
    pub fn emit(&mut self, key: &[u8], value: &[u8]) {
        if !self.table.push(key, value, self.combine) {
            self.make_room(key, value);
        }
    }

    #[cold]
    fn make_room(&mut self, key: &[u8], value: &[u8]) {
        if self.trouble.is_some() {
            return;
        }
        self.trouble = self.try_again(|emitter| emitter.table.push(key, value, emitter.combine)).err();
    }

    /// Makes room, and does again what has found none.
    fn try_again(&mut self, run: impl Fn(&mut Self) -> bool) -> Result<()> {
        self.empty()?;
        if run(self) {
            return Ok(());
        }
        // Combining may have made just enough room for some of what waited.
        self.spill()?;
        if run(self) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Invalid, "a pair is longer than the memory of map-reduce"))
    }

    /// Combines what is there; if that does not make much room, it goes to disk.
    fn empty(&mut self) -> Result<()> {
        if let Some(combine) = self.combine {
            self.table.combine(combine);
            if self.table.has_much_room() {
                return Ok(());
            }
        }
        self.spill()
    }

    /// Writes what is there to disk, and has all room again.
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

    /// There is no more to come.
    fn settle(&mut self) -> Result<()> {
        if !self.table.take_in(self.combine) {
            self.try_again(|emitter| emitter.table.take_in(emitter.combine))?;
        }
        if let Some(combine) = self.combine {
            self.table.combine(combine);
        }
        self.table.sort();
        Ok(())
    }
}
