//! Searches: returns the rows that match a query, one after another.

use super::candidates::CandidateRows;
use super::condition::CompiledCondition;
use super::long_texts::LongTextGroup;
use super::plan::{Access, IndexRanges, QueryPlan};
use super::searched_database::SearchedDatabase;
use super::sorted::RowSorter;
use super::{IndexKind, Query, Row};
use crate::Database;
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::{Action, Error, ErrorKind, IndexedEngine, Record, Result, Visitor};

/// The most bytes of rows that are read ahead.
const BYTES_AHEAD: usize = 256 << 10;
/// The most rows of a sorted result that are read ahead.
const ROWS_AHEAD: usize = 64;

/// Options of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions<'o> {
    /// If this becomes true, the search fails with `Closed`.
    pub is_cancelled: Option<&'o AtomicBool>,
    /// The most bytes for rows that are sorted, or for the keys of a set operation.
    pub bytes_max: usize,
    /// True if rows are returned without their columns.
    pub keys_only: bool,
}

impl Default for SearchOptions<'_> {
    fn default() -> Self {
        SearchOptions { is_cancelled: None, bytes_max: usize::MAX, keys_only: false }
    }
}

/// The rows that match a query: an iterator over keys and rows.
///
/// Rows are read in steps while the iterator is used, and memory is needed only for one step. If
/// the rows must be sorted, memory is also needed for the keys of the first rows, as many as the
/// limit and the skip of the query require; without a limit, for the keys of all rows. After an
/// error the iterator ends.
pub struct Search<'d> {
    database: SearchedDatabase<'d>,
    conditions: Arc<[CompiledCondition]>,
    candidates: CandidateRows<'d>,
    options: SearchOptions<'d>,
    query: Query,
    plan: Vec<String>,
    is_sorted: bool,
    /// True if the indexes alone show which rows match, and only keys are wanted.
    reads_keys: bool,
    /// Set until the rows have been sorted.
    sorter: Option<RowSorter>,
    /// The keys of the sorted rows that have not been read yet.
    sorted: VecDeque<Vec<u8>>,
    found: VecDeque<(Vec<u8>, Row)>,
    /// Found rows that an index of texts does not order.
    long_texts: Option<LongTextGroup>,
    skipped: u64,
    returned: u64,
    matched: u64,
    has_more: bool,
}

impl fmt::Debug for Search<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Search").field("query", &self.query).finish_non_exhaustive()
    }
}

impl<'d> Search<'d> {
    /// Starts a search. Fails with `Invalid` if the database is not a table, if a pattern is too
    /// long or needs too much memory, or if there are more than 16 patterns.
    pub fn new(database: &'d Database, query: &Query, options: SearchOptions<'d>) -> Result<Search<'d>> {
        Search::start(SearchedDatabase::Lent(database), query, options)
    }

    pub(super) fn start(
        database: SearchedDatabase<'d>,
        query: &Query,
        options: SearchOptions<'d>,
    ) -> Result<Search<'d>> {
        let indexed = indexed(database.get())?;
        let conditions = query.compile()?;
        let rows = database.get().engine().status().records;
        let QueryPlan { access, sorts, is_exact, lines } = QueryPlan::new(query, &conditions, indexed, rows)?;
        let sorter =
            query.order.as_ref().filter(|_| sorts).map(|(column, order)| {
                RowSorter::new(column, *order, query.matches_max(), options.bytes_max)
            });
        let is_lexical = matches!(&access, Access::Ranges(IndexRanges { kind: IndexKind::Lexical, .. }));
        let ordered = query.order.as_ref().filter(|_| !sorts && is_lexical);
        let long_texts = ordered
            .map(|(column, order)| LongTextGroup::new(column, order.is_descending(), options.bytes_max));
        let candidates = CandidateRows::new(database.clone(), access);
        Ok(Search {
            database,
            conditions: conditions.into(),
            candidates,
            options,
            query: query.clone(),
            plan: lines,
            is_sorted: sorts,
            reads_keys: is_exact && options.keys_only && !sorts && long_texts.is_none(),
            sorter,
            sorted: VecDeque::new(),
            found: VecDeque::new(),
            long_texts,
            skipped: 0,
            returned: 0,
            matched: 0,
            has_more: query.limit != Some(0),
        })
    }

    /// Returns the description of the plan in Tokyo Cabinet's words, with the number of rows found
    /// so far.
    pub fn hint(&self) -> String {
        let mut text = self.plan.join("\n");
        if let Some(max) = self.query.matches_max().filter(|_| !self.is_sorted) {
            let _ = write!(text, "\nlimited matching: {max}");
        }
        let _ = write!(text, "\nresult set size: {}", self.matched);
        match &self.query.order {
            Some((column, _)) if self.is_sorted => {
                let _ = write!(text, "\nsorting the result set: \"{}\"", String::from_utf8_lossy(column));
            }
            Some(_) => text.push_str("\nleaving the index order"),
            None => text.push_str("\nleaving the natural order"),
        }
        text.push('\n');
        text
    }

    /// Reads all results and returns their number.
    pub fn count_rows(&mut self) -> Result<u64> {
        let mut rows = 0;
        for found in self {
            found?;
            rows += 1;
        }
        Ok(rows)
    }

    /// Returns a visitor that removes a row if it still matches.
    pub fn remover(&self, key: &[u8]) -> RowRemover {
        RowRemover::new(&self.conditions, key)
    }
}

impl Search<'_> {
    /// Reads further rows into `found`.
    fn fill(&mut self) -> Result<()> {
        self.expect_not_cancelled()?;
        match self.sorter.take() {
            Some(sorter) => self.sort(sorter),
            None if self.is_sorted => self.read_sorted(),
            None if self.reads_keys && self.candidates.are_exact() => self.read_keys(),
            None => self.read_matching(),
        }?;
        // Conditions that were cancelled may be wrong.
        self.expect_not_cancelled()
    }

    fn expect_not_cancelled(&self) -> Result<()> {
        if self.options.is_cancelled.is_some_and(|is_cancelled| is_cancelled.load(Ordering::Relaxed)) {
            return Err(Error::new(ErrorKind::Closed, "query: was cancelled"));
        }
        Ok(())
    }

    /// Returns the conditions, which are parsed.
    pub(super) fn conditions(&self) -> Arc<[CompiledCondition]> {
        Arc::clone(&self.conditions)
    }

    /// Reads the keys of candidates, which all match.
    fn read_keys(&mut self) -> Result<()> {
        let matches_max = self.query.matches_max().unwrap_or(u64::MAX);
        let before = self.found.len();
        let keys = self.candidates.next_keys(matches_max - self.matched)?;
        self.found.extend(keys.map(|key| (key, Row::default())));
        self.matched += (self.found.len() - before) as u64;
        self.has_more = self.matched < matches_max && self.candidates.has_more();
        Ok(())
    }

    /// Reads matching rows in the order of the candidates.
    fn read_matching(&mut self) -> Result<()> {
        let matches_max = self.query.matches_max().unwrap_or(u64::MAX);
        let (mut bytes, mut outcome) = (0, Ok(()));
        let Search { conditions, matched, found, options, long_texts, .. } = self;
        let has_more = self.candidates.step(&mut |key, value| {
            if !conditions.iter().all(|condition| condition.matches(key, value, options.is_cancelled)) {
                return ControlFlow::Continue(());
            }
            *matched += 1;
            let row = if options.keys_only { Row::default() } else { Row::stored(value) };
            bytes += key.len() + row.as_bytes().len();
            match long_texts {
                Some(group) => outcome = group.add(key, value, row, found),
                None => found.push_back((key.to_vec(), row)),
            }
            let has_group = long_texts.as_ref().is_some_and(|group| !group.is_empty());
            if *matched >= matches_max && !has_group || bytes > BYTES_AHEAD || outcome.is_err() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        outcome?;
        let has_group = long_texts.as_ref().is_some_and(|group| !group.is_empty());
        self.has_more = has_more && (*matched < matches_max || has_group);
        if let (Some(group), false) = (long_texts, self.has_more) {
            group.release(found);
        }
        // The last group may have more rows than are wanted.
        self.matched = self.matched.min(matches_max);
        Ok(())
    }

    /// Adds the rows of one step of the candidates to the sorter.
    fn sort(&mut self, mut sorter: RowSorter) -> Result<()> {
        let mut outcome = Ok(());
        let Search { conditions, matched, options, .. } = self;
        let has_more = self.candidates.step(&mut |key, row| {
            if conditions.iter().all(|condition| condition.matches(key, row, options.is_cancelled)) {
                *matched += 1;
                outcome = sorter.add(key, row);
            }
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
        if has_more {
            self.sorter = Some(sorter);
        } else {
            self.sorted.extend(sorter.finish());
        }
        Ok(())
    }

    /// Reads the next rows of the sorted result. Rows that no longer match are left out.
    fn read_sorted(&mut self) -> Result<()> {
        let now = self.database.get().now();
        let (mut rows, mut bytes) = (0, 0);
        while rows < ROWS_AHEAD && bytes < BYTES_AHEAD {
            let Some(key) = self.sorted.pop_front() else {
                self.has_more = false;
                return Ok(());
            };
            rows += 1;
            if self.options.keys_only {
                self.found.push_back((key, Row::default()));
                continue;
            }
            let mut row = None;
            self.database.get().peek(&key, &mut |record| {
                let matches = |condition: &CompiledCondition| {
                    condition.matches(&key, record.value, self.options.is_cancelled)
                };
                let is_match = self.conditions.iter().all(matches);
                row = (record.attributes.expiry.is_live(now) && is_match).then(|| Row::stored(record.value));
            })?;
            bytes += key.len() + row.as_ref().map_or(0, |row| row.as_bytes().len());
            self.found.extend(row.map(|row| (key, row)));
        }
        Ok(())
    }
}

impl Iterator for Search<'_> {
    type Item = Result<(Vec<u8>, Row)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.query.limit.is_some_and(|limit| self.returned == limit) {
                return None;
            }
            if let Some(found) = self.found.pop_front() {
                if self.skipped < self.query.skip {
                    self.skipped += 1;
                    continue;
                }
                self.returned += 1;
                return Some(Ok(found));
            }
            if !self.has_more {
                return None;
            }
            if let Err(error) = self.fill() {
                self.has_more = false;
                return Some(Err(error));
            }
        }
    }
}

/// Removes a row if it still matches the query.
#[derive(Debug)]
pub struct RowRemover {
    conditions: Arc<[CompiledCondition]>,
    key: Vec<u8>,
    /// The row, if it was removed.
    pub removed: Option<Row>,
}

impl RowRemover {
    pub(super) fn new(conditions: &Arc<[CompiledCondition]>, key: &[u8]) -> RowRemover {
        RowRemover { conditions: Arc::clone(conditions), key: key.to_vec(), removed: None }
    }
}

impl Visitor for RowRemover {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let is_match = |old: &Record<'_>| {
            self.conditions.iter().all(|condition| condition.matches(&self.key, old.value, None))
        };
        self.removed = old.filter(is_match).map(|old| Row::stored(old.value));
        if self.removed.is_some() { Action::Remove } else { Action::Keep }
    }
}

/// Returns the indexes of a table. Fails with `Invalid` for a database that is not a table.
pub(super) fn indexed(database: &Database) -> Result<&dyn IndexedEngine> {
    database.engine().indexed().ok_or_else(|| {
        Error::new(ErrorKind::Invalid, "database: is not a table; use mem:table or PATH.table")
    })
}
