//! Postings: the keys of the rows that have certain terms in their indexes, in ascending order.
//! Several postings can be intersected and united without reading the rows.

use super::IndexKind;
use todana_core::{IndexEntry, IndexedEngine, Result};
use todana_engine::table::TermRange;

/// The number of entries that are read at first, and the most that are read at once.
const ENTRIES_MIN: usize = 16;
const ENTRIES_MAX: usize = 1024;

/// A set of keys, as an expression of terms.
#[derive(Clone, Debug)]
pub(super) enum Posting {
    Term(TermPosting),
    /// The keys that are in all of these sets.
    All(Vec<Posting>),
    /// The keys that are in at least one of these sets.
    Any(Vec<Posting>),
}

/// The keys of the rows that have one term.
#[derive(Clone, Debug)]
pub(super) struct TermPosting {
    column: Vec<u8>,
    kind: IndexKind,
    range: TermRange,
    /// The entries that have been read, in the order of their keys, and the number of those that
    /// have been passed.
    entries: Vec<IndexEntry>,
    passed: usize,
    entries_max: usize,
    is_at_end: bool,
}

impl TermPosting {
    pub(super) fn new(column: &[u8], kind: IndexKind, term: TermRange) -> TermPosting {
        let (entries, passed, entries_max) = (Vec::new(), 0, ENTRIES_MIN);
        TermPosting {
            column: column.to_vec(),
            kind,
            range: term,
            entries,
            passed,
            entries_max,
            is_at_end: false,
        }
    }

    /// Returns the first key that is not less than `key`. From call to call, `key` must ascend.
    fn next_from(&mut self, indexed: &dyn IndexedEngine, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.passed += self.entries[self.passed..].partition_point(|entry| entry.key() < key);
        if self.passed == self.entries.len() && !self.is_at_end {
            let from = self.range.from_key(key);
            self.entries.clear();
            self.passed = 0;
            let max = self.entries_max;
            let entries = &mut self.entries;
            if !indexed.index_entries(&self.column, self.kind, from.bounds(), false, max, entries)? {
                return Err(dropped());
            }
            self.is_at_end = self.entries.len() < max;
            self.entries_max = (max * 2).min(ENTRIES_MAX);
        }
        Ok(self.entries.get(self.passed).map(|entry| entry.key().to_vec()))
    }

    fn estimate(&self, indexed: &dyn IndexedEngine, max: usize) -> Result<usize> {
        count_entries(indexed, &self.column, self.kind, &self.range, max)
    }
}

impl Posting {
    /// Returns the first key that is not less than `key`. From call to call, `key` must ascend.
    pub(super) fn next_from(&mut self, indexed: &dyn IndexedEngine, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self {
            Posting::Term(term) => term.next_from(indexed, key),
            Posting::All(all) => {
                let mut wanted = key.to_vec();
                let (mut agreeing, mut at) = (0, 0);
                while agreeing < all.len() {
                    let Some(found) = all[at].next_from(indexed, &wanted)? else { return Ok(None) };
                    agreeing = if found == wanted { agreeing + 1 } else { 1 };
                    wanted = found;
                    at = (at + 1) % all.len();
                }
                Ok((!all.is_empty()).then_some(wanted))
            }
            Posting::Any(any) => {
                let mut first: Option<Vec<u8>> = None;
                for posting in any {
                    let found = posting.next_from(indexed, key)?;
                    first = first.into_iter().chain(found).min();
                }
                Ok(first)
            }
        }
    }

    /// Returns the approximate number of keys, at most `max`.
    pub(super) fn estimate(&self, indexed: &dyn IndexedEngine, max: usize) -> Result<usize> {
        match self {
            Posting::Term(term) => term.estimate(indexed, max),
            Posting::All(all) => {
                let mut least = max;
                for posting in all {
                    least = posting.estimate(indexed, least)?.min(least);
                }
                Ok(least)
            }
            Posting::Any(any) => {
                let mut sum = 0;
                for posting in any {
                    sum += posting.estimate(indexed, max - sum)?;
                }
                Ok(sum)
            }
        }
    }
}

/// Returns the number of entries in a range, at most `max`.
pub(super) fn count_entries(
    indexed: &dyn IndexedEngine,
    column: &[u8],
    kind: IndexKind,
    range: &TermRange,
    max: usize,
) -> Result<usize> {
    let mut entries = Vec::new();
    if max == 0 {
        return Ok(0);
    }
    if !indexed.index_entries(column, kind, range.bounds(), false, max, &mut entries)? {
        return Err(dropped());
    }
    Ok(entries.len())
}

/// Returns the error for an index that was dropped during the search.
pub(super) fn dropped() -> todana_core::Error {
    todana_core::Error::new(todana_core::ErrorKind::Busy, "query: its index was dropped; search again")
}
