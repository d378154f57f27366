//! Finds the rows that may match a query, step by step.

use super::plan::{Access, IndexRanges};
use super::posting::{Posting, dropped};
use super::searched_database::SearchedDatabase;
use crate::{Database, ScanDirection};
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};
use todana_core::{IndexEntry, Result};
use todana_engine::table::column;

/// The number of rows that the first step reads, and the most that a later step reads.
const ROWS_MIN: usize = 16;
const ROWS_MAX: usize = 1024;

/// Receives the key and the columns of a row.
type SeeRow<'s> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 's;

/// A walk over the rows that may match.
pub(super) struct CandidateRows<'d> {
    database: SearchedDatabase<'d>,
    source: CandidateSource,
    /// The keys of candidates whose rows have not been read yet.
    keys: VecDeque<Vec<u8>>,
    rows_max: usize,
}

enum CandidateSource {
    Rows(RowRange),
    Keys,
    Ranges(IndexRanges),
    /// The keys from this one on.
    Postings(Posting, Vec<u8>),
    End,
}

/// The rest of a walk over rows, in the order of their keys.
struct RowRange {
    prefix: Vec<u8>,
    is_descending: bool,
    /// The last row that was shown.
    last: Option<Vec<u8>>,
    /// Rows with this column are left out.
    without: Option<Vec<u8>>,
}

impl<'d> CandidateRows<'d> {
    pub(super) fn new(database: SearchedDatabase<'d>, access: Access) -> CandidateRows<'d> {
        database.get().flush_if_due(database.get().now());
        let mut keys = VecDeque::new();
        let source = match access {
            Access::Rows { prefix, is_descending } => {
                CandidateSource::Rows(RowRange { prefix, is_descending, last: None, without: None })
            }
            Access::Keys(all) => {
                keys = all.into();
                CandidateSource::Keys
            }
            Access::Ranges(mut ranges) => {
                ranges.ranges.reverse();
                CandidateSource::Ranges(ranges)
            }
            Access::Postings(posting) => CandidateSource::Postings(posting, Vec::new()),
        };
        CandidateRows { database, source, keys, rows_max: ROWS_MIN }
    }

    /// Passes the rows of the next step to `see`, or fewer if `see` breaks. Returns false at the
    /// end. `see` may run under a lock of the engine.
    pub(super) fn step(&mut self, see: &mut SeeRow<'_>) -> Result<bool> {
        let rows_max = self.rows_max;
        self.rows_max = (rows_max * 2).min(ROWS_MAX);
        if let CandidateSource::Rows(rows) = &mut self.source {
            return rows.step(self.database.get(), rows_max, see);
        }
        if self.keys.is_empty() {
            self.read_keys(rows_max)?;
        }
        let now = self.database.get().now();
        while let Some(key) = self.keys.pop_front() {
            let mut flow = ControlFlow::Continue(());
            if !key.is_empty() {
                self.database.get().peek(&key, &mut |record| {
                    if record.attributes.expiry.is_live(now) {
                        flow = see(&key, record.value);
                    }
                })?;
            }
            if flow.is_break() {
                break;
            }
        }
        Ok(self.has_more())
    }

    /// Returns true if all entries of the indexes belong to rows that exist and do not expire.
    pub(super) fn are_exact(&self) -> bool {
        self.database.indexed().has_exact_entries()
    }

    /// Returns the keys of the next step, at most `keys_max`, without reading their rows.
    pub(super) fn next_keys(&mut self, keys_max: u64) -> Result<impl Iterator<Item = Vec<u8>>> {
        let rows_max = self.rows_max;
        self.rows_max = (rows_max * 2).min(ROWS_MAX);
        if self.keys.is_empty() {
            self.read_keys(rows_max)?;
        }
        let count = usize::try_from(keys_max).unwrap_or(usize::MAX).min(self.keys.len());
        Ok(self.keys.drain(..count))
    }

    /// Returns true if there may be further candidates.
    pub(super) fn has_more(&self) -> bool {
        !self.keys.is_empty() || !matches!(self.source, CandidateSource::Keys | CandidateSource::End)
    }

    /// Reads the keys of further candidates.
    fn read_keys(&mut self, keys_max: usize) -> Result<()> {
        let indexed = self.database.indexed();
        match &mut self.source {
            CandidateSource::Ranges(ranges) => {
                let Some(range) = ranges.ranges.last_mut() else {
                    self.source = ranges.rest();
                    return Ok(());
                };
                let IndexRanges { column, kind, is_descending, .. } = ranges;
                let (bounds, mut entries) = (range.bounds(), Vec::new());
                if !indexed.index_entries(column, *kind, bounds, *is_descending, keys_max, &mut entries)? {
                    return Err(dropped());
                }
                match entries.last() {
                    Some(last) if entries.len() == keys_max => range.continue_after(last, *is_descending),
                    _ => drop(ranges.ranges.pop()),
                }
                self.keys.extend(entries.into_iter().map(IndexEntry::into_key));
            }
            CandidateSource::Postings(posting, from) => {
                while self.keys.len() < keys_max {
                    let Some(key) = posting.next_from(indexed, from)? else {
                        self.source = CandidateSource::End;
                        break;
                    };
                    from.clone_from(&key);
                    // The next key in the order of bytes.
                    from.push(0);
                    self.keys.push_back(key);
                }
            }
            CandidateSource::Rows(_) | CandidateSource::Keys | CandidateSource::End => {}
        }
        Ok(())
    }
}

impl IndexRanges {
    /// Returns the source of the rows that follow those in the index.
    fn rest(&mut self) -> CandidateSource {
        if !self.has_rest {
            return CandidateSource::End;
        }
        let without = Some(std::mem::take(&mut self.column));
        CandidateSource::Rows(RowRange { prefix: Vec::new(), is_descending: false, last: None, without })
    }
}

impl RowRange {
    fn step(&mut self, database: &Database, rows_max: usize, see: &mut SeeRow<'_>) -> Result<bool> {
        let (mut seen, mut last, mut is_at_end) = (0, None, true);
        let direction = if self.is_descending { ScanDirection::Down } else { ScanDirection::Up };
        let beyond = crate::db::successor(&self.prefix);
        let start = match (&self.last, self.is_descending) {
            (Some(last), _) => Bound::Excluded(last.as_slice()),
            (None, false) => Bound::Included(self.prefix.as_slice()),
            (None, true) => beyond.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
        };
        database.walk(direction, start, &mut |key, record| {
            if !key.starts_with(&self.prefix) {
                return ControlFlow::Break(());
            }
            seen += 1;
            let is_left_out = self.without.as_ref().is_some_and(|name| column(record.value, name).is_some());
            // The record with the empty key holds the definitions of the indexes.
            let mut flow = ControlFlow::Continue(());
            if !key.is_empty() && !is_left_out {
                flow = see(key, record.value);
            }
            if flow.is_break() || seen == rows_max {
                is_at_end = false;
                last = Some(key.to_vec());
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        self.last = last;
        Ok(!is_at_end)
    }
}
