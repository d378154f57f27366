//! Runs and tables merged in the order of their keys.

use super::run::{Run, RunReader};
use super::table::{Chain, Table};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use todana_core::Result;

/// Where keys come from in their order, each with its values.
pub(super) enum Source<'t> {
    Table { table: &'t Table, next: usize, key: &'t [u8], values: Option<Chain<'t>>, value: &'t [u8] },
    Run(Box<RunReader>),
}

impl<'t> Source<'t> {
    /// Of a table that is sorted.
    pub(super) fn of_table(table: &'t Table) -> Source<'t> {
        Source::Table { table, next: 0, key: &[], values: None, value: &[] }
    }

    pub(super) fn of_run(run: Run) -> Source<'t> {
        Source::Run(Box::new(RunReader::new(run)))
    }

    fn next_key(&mut self) -> Result<bool> {
        match self {
            Source::Table { table, next, key, values, .. } => {
                let Some((its_key, its_values)) = table.entry(*next) else { return Ok(false) };
                (*next, *key, *values) = (*next + 1, its_key, Some(its_values));
                Ok(true)
            }
            Source::Run(reader) => reader.next_key(),
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            Source::Table { key, .. } => key,
            Source::Run(reader) => reader.key(),
        }
    }

    /// Goes to the next value of the key. False if there is none.
    fn next_value(&mut self) -> Result<bool> {
        match self {
            Source::Table { values, value, .. } => {
                let next = values.as_mut().and_then(Iterator::next);
                *value = next.unwrap_or_default();
                Ok(next.is_some())
            }
            Source::Run(reader) => reader.next_value(),
        }
    }

    fn value(&self) -> &[u8] {
        match self {
            Source::Table { value, .. } => value,
            Source::Run(reader) => reader.value(),
        }
    }
}

impl PartialEq for Source<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Source<'_> {}

impl PartialOrd for Source<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The one with the least key is the greatest: a heap has it on top.
impl Ord for Source<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(self.key())
    }
}

pub(super) struct Merger<'t>(BinaryHeap<Source<'t>>);

impl<'t> Merger<'t> {
    pub(super) fn new(sources: Vec<Source<'t>>) -> Result<Merger<'t>> {
        let mut heap = BinaryHeap::new();
        for mut source in sources {
            if source.next_key()? {
                heap.push(source);
            }
        }
        Ok(Merger(heap))
    }

    /// Shows every key with all its values.
    pub(super) fn each(
        mut self,
        see: &mut dyn FnMut(&[u8], &mut ReduceValues<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut key = Vec::new();
        let mut with_key: Vec<Source<'t>> = Vec::new();
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
            // Those that were not asked for.
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

/// The values of one key, for its reduction. They are read as they are asked for: there may be more than memory holds.
pub struct ReduceValues<'v> {
    sources: &'v mut dyn Lends,
    at: usize,
}

impl fmt::Debug for ReduceValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").finish_non_exhaustive()
    }
}

impl ReduceValues<'_> {
    /// The next value; `None` when there are no more. Fails with `Unavailable` if a temporary file cannot be read.
    #[allow(
        clippy::should_implement_trait,
        reason = "what it yields lives until the next call, which no iterator can say"
    )]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        self.sources.lend(&mut self.at)
    }
}

/// Hides how long what the sources borrow lives.
trait Lends {
    /// The next value of the source `at` or one behind it.
    fn lend(&mut self, at: &mut usize) -> Result<Option<&[u8]>>;
}

impl Lends for Vec<Source<'_>> {
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
