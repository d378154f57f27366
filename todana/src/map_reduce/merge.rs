//! Merges runs and tables in the order of their keys.

use super::run::{RunReader, SortedRun};
use super::table::{PairTable, ValueChain};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use todana_core::Result;

/// A source of keys in ascending order, each with its values.
pub(super) enum PairSource<'t> {
    Table {
        table: &'t PairTable,
        next: usize,
        key: &'t [u8],
        values: Option<ValueChain<'t>>,
        value: &'t [u8],
    },
    Run(Box<RunReader>),
}

impl<'t> PairSource<'t> {
    /// Creates a source from a table, which must be sorted.
    pub(super) fn of_table(table: &'t PairTable) -> PairSource<'t> {
        PairSource::Table { table, next: 0, key: &[], values: None, value: &[] }
    }

    pub(super) fn of_run(run: SortedRun) -> PairSource<'t> {
        PairSource::Run(Box::new(RunReader::new(run)))
    }

    fn next_key(&mut self) -> Result<bool> {
        match self {
            PairSource::Table { table, next, key, values, .. } => {
                let Some((its_key, its_values)) = table.entry(*next) else { return Ok(false) };
                (*next, *key, *values) = (*next + 1, its_key, Some(its_values));
                Ok(true)
            }
            PairSource::Run(reader) => reader.next_key(),
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            PairSource::Table { key, .. } => key,
            PairSource::Run(reader) => reader.key(),
        }
    }

    /// Moves to the next value of the current key. Returns false if there is none.
    fn next_value(&mut self) -> Result<bool> {
        match self {
            PairSource::Table { values, value, .. } => {
                let next = values.as_mut().and_then(Iterator::next);
                *value = next.unwrap_or_default();
                Ok(next.is_some())
            }
            PairSource::Run(reader) => reader.next_value(),
        }
    }

    fn value(&self) -> &[u8] {
        match self {
            PairSource::Table { value, .. } => value,
            PairSource::Run(reader) => reader.value(),
        }
    }
}

impl PartialEq for PairSource<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for PairSource<'_> {}

impl PartialOrd for PairSource<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Orders sources by their current keys in reverse, because the greatest element of a heap is on
/// top.
impl Ord for PairSource<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(self.key())
    }
}

pub(super) struct PairMerger<'t>(BinaryHeap<PairSource<'t>>);

impl<'t> PairMerger<'t> {
    pub(super) fn new(sources: Vec<PairSource<'t>>) -> Result<PairMerger<'t>> {
        let mut heap = BinaryHeap::new();
        for mut source in sources {
            if source.next_key()? {
                heap.push(source);
            }
        }
        Ok(PairMerger(heap))
    }

    /// Calls `see` for every key, with all its values.
    pub(super) fn each(
        mut self,
        see: &mut dyn FnMut(&[u8], &mut ReduceValues<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut key = Vec::new();
        let mut with_key: Vec<PairSource<'t>> = Vec::new();
        while let Some(first) = self.0.pop() {
            key.clear();
            key.extend_from_slice(first.key());
            with_key.push(first);
            while let Some(next) = self.0.peek()
                && next.key() == key
            {
                with_key.extend(self.0.pop());
            }
            let mut values = ReduceValues { sources: &mut with_key, at: 0 };
            see(&key, &mut values)?;
            // Values that `see` has not read are skipped.
            while values.next()?.is_some() {}
            for mut source in with_key.drain(..) {
                if source.next_key()? {
                    self.0.push(source);
                }
            }
        }
        Ok(())
    }
}

/// The values of one key, for its reduction. They are read one by one, because they may exceed
/// memory.
pub struct ReduceValues<'v> {
    sources: &'v mut dyn LendValues,
    at: usize,
}

impl fmt::Debug for ReduceValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").finish_non_exhaustive()
    }
}

impl ReduceValues<'_> {
    /// Returns the next value, or `None` after the last one. Fails with `Unavailable` if a
    /// temporary file cannot be read.
    #[allow(
        clippy::should_implement_trait,
        reason = "what it yields lives until the next call, which no iterator can say"
    )]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        self.sources.lend(&mut self.at)
    }
}

/// Hides the lifetime of the borrowed sources from `ReduceValues`.
trait LendValues {
    /// Returns the next value of the source `at`, or of a later source, to which `at` is then set.
    fn lend(&mut self, at: &mut usize) -> Result<Option<&[u8]>>;
}

impl LendValues for Vec<PairSource<'_>> {
    fn lend(&mut self, at: &mut usize) -> Result<Option<&[u8]>> {
        while *at < self.len() {
            if self[*at].next_value()? {
                return Ok(Some(self[*at].value()));
            }
            *at += 1;
        }
        Ok(None)
    }
}
