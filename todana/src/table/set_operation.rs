//! Unions, intersections and differences of the rows that several queries find.

use super::condition::{CompiledCondition, expect_few_patterns};
use super::searched_database::SearchedDatabase;
use super::{Query, Row, RowRemover, Search, SearchOptions};
use crate::Database;
use std::collections::{HashSet, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// A set operation on the results of several queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SetOperation {
    /// Union: the rows of the first query in its order, then the rows that only later queries find.
    #[default]
    Union,
    /// The rows that all queries find, in the order of the last one.
    Intersection,
    /// The rows that only the first query finds, in its order.
    Difference,
}

impl SetOperation {
    /// Parses a name or a number of Tokyo Cabinet. Case does not matter.
    pub fn parse(word: &[u8]) -> Option<SetOperation> {
        Some(match word.to_ascii_uppercase().as_slice() {
            b"UNION" | b"OR" | b"0" => SetOperation::Union,
            b"ISECT" | b"INTERSECTION" | b"AND" | b"1" => SetOperation::Intersection,
            b"DIFF" | b"DIFFERENCE" | b"ANDNOT" | b"NOT" | b"2" => SetOperation::Difference,
            _ => return None,
        })
    }
}

/// The rows of a set operation: an iterator over keys and rows. The limit and the skip of the first
/// query apply. Those of the other queries apply only in a union.
#[derive(Debug)]
pub struct SetSearch<'d> {
    searches: VecDeque<Search<'d>>,
    filter: KeyFilter,
    skip: u64,
    left: u64,
    /// The descriptions of the plans of the searches that have ended.
    hint: String,
    ended: usize,
    is_single: bool,
    /// The conditions that a row must still satisfy when it is removed.
    conditions: Arc<[CompiledCondition]>,
}

/// Decides by its key whether a row belongs to the result.
#[derive(Debug)]
enum KeyFilter {
    /// In a union, a row that was not found before. The set contains the keys found so far and has
    /// a limit in bytes.
    New(KeySet),
    In(KeySet),
    NotIn(KeySet),
    /// Any row, because there is only one query.
    Any,
}

impl<'d> SetSearch<'d> {
    /// Starts the searches. Fails with `Invalid` if there is no query, and as [`Search::new`] does.
    pub fn new(
        database: &'d Database,
        queries: &[Query],
        operation: SetOperation,
        options: SearchOptions<'d>,
    ) -> Result<SetSearch<'d>> {
        SetSearch::start(&SearchedDatabase::Lent(database), queries, operation, options)
    }

    pub(super) fn start(
        database: &SearchedDatabase<'d>,
        queries: &[Query],
        operation: SetOperation,
        options: SearchOptions<'d>,
    ) -> Result<SetSearch<'d>> {
        let search = |query: &Query, options| Search::start(database.clone(), query, options);
        let Some((first, others)) = queries.split_first() else {
            return Err(Error::new(ErrorKind::Invalid, "query: a set operation needs a query"));
        };
        expect_few_patterns(queries.iter().flat_map(|query| &query.conditions))?;
        let mut combined = SetSearch {
            searches: VecDeque::new(),
            filter: KeyFilter::Any,
            skip: first.skip,
            left: first.limit.unwrap_or(u64::MAX),
            hint: String::new(),
            ended: 0,
            is_single: others.is_empty(),
            conditions: Arc::default(),
        };
        let unlimited = |query: &Query| Query { limit: None, skip: 0, ..query.clone() };
        let keys_only = SearchOptions { keys_only: true, ..options };
        if others.is_empty() {
            (combined.skip, combined.left) = (0, u64::MAX);
            let only = search(first, options)?;
            combined.conditions = only.conditions();
            combined.searches.push_back(only);
            return Ok(combined);
        }
        match operation {
            SetOperation::Union => {
                for query in queries {
                    let query = Query { limit: query.matches_max(), skip: 0, ..query.clone() };
                    combined.searches.push_back(search(&query, options)?);
                }
                combined.filter = KeyFilter::New(KeySet::new(options.bytes_max));
            }
            SetOperation::Intersection => {
                let mut keys: Option<KeySet> = None;
                for query in &queries[..others.len()] {
                    let query = Query { order: None, ..unlimited(query) };
                    let mut found = KeySet::new(options.bytes_max);
                    combined.collect_keys(search(&query, keys_only)?, &mut |key| {
                        if keys.as_ref().is_none_or(|keys| keys.contains(&key)) {
                            found.insert(key)
                        } else {
                            Ok(true)
                        }
                    })?;
                    keys = Some(found);
                }
                combined.filter = KeyFilter::In(keys.unwrap_or_else(|| KeySet::new(0)));
                let last = unlimited(&queries[others.len()]);
                combined.searches.push_back(search(&last, options)?);
            }
            SetOperation::Difference => {
                let mut keys = KeySet::new(options.bytes_max);
                combined.ended = 1;
                for query in others {
                    let query = Query { order: None, ..unlimited(query) };
                    combined.collect_keys(search(&query, keys_only)?, &mut |key| keys.insert(key))?;
                }
                combined.ended = 0;
                combined.filter = KeyFilter::NotIn(keys);
                combined.searches.push_back(search(&unlimited(first), options)?);
            }
        }
        Ok(combined)
    }

    /// Reads all keys of a search.
    fn collect_keys(
        &mut self,
        mut search: Search<'_>,
        see: &mut dyn FnMut(Vec<u8>) -> Result<bool>,
    ) -> Result<()> {
        for found in search.by_ref() {
            see(found?.0)?;
        }
        self.note_end(&search);
        Ok(())
    }

    fn note_end(&mut self, search: &Search<'_>) {
        let hint = search.hint();
        if self.is_single {
            self.hint.push_str(&hint);
        } else {
            for line in hint.lines() {
                let _ = writeln!(self.hint, "[{}] {line}", self.ended);
            }
        }
        self.ended += 1;
    }

    /// Returns the descriptions of the plans of all queries. Complete when all results have been
    /// read.
    pub fn hint(&mut self) -> String {
        while let Some(search) = self.searches.pop_front() {
            self.note_end(&search);
        }
        self.hint.clone()
    }

    /// Returns a visitor that removes a row. If there is only one query, the row must still match.
    pub fn remover(&self, key: &[u8]) -> RowRemover {
        RowRemover::new(&self.conditions, key)
    }
}

impl Iterator for SetSearch<'_> {
    type Item = Result<(Vec<u8>, Row)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            let search = self.searches.front_mut()?;
            let Some(found) = search.next() else {
                if self.searches.len() == 1 {
                    return None;
                }
                if let Some(search) = self.searches.pop_front() {
                    self.note_end(&search);
                }
                continue;
            };
            let is_member = match &found {
                Ok((key, _)) => self.filter.is_member(key),
                Err(error) => Err(error.clone()),
            };
            match is_member {
                Err(error) => {
                    self.left = 0;
                    return Some(Err(error));
                }
                Ok(false) => {}
                Ok(true) if self.skip > 0 => self.skip -= 1,
                Ok(true) => {
                    self.left -= 1;
                    return Some(found);
                }
            }
        }
        None
    }
}

impl KeyFilter {
    fn is_member(&mut self, key: &[u8]) -> Result<bool> {
        match self {
            KeyFilter::Any => Ok(true),
            KeyFilter::New(keys) => keys.insert(key.to_vec()),
            KeyFilter::In(keys) => Ok(keys.contains(key)),
            KeyFilter::NotIn(keys) => Ok(!keys.contains(key)),
        }
    }
}

/// A set of keys with a limit in bytes.
#[derive(Debug)]
struct KeySet {
    keys: HashSet<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
}

impl KeySet {
    fn new(bytes_max: usize) -> KeySet {
        KeySet { keys: HashSet::new(), bytes: 0, bytes_max }
    }

    fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains(key)
    }

    /// Adds a key. Returns false if it was already in the set. Fails with `Full` at the limit.
    fn insert(&mut self, key: Vec<u8>) -> Result<bool> {
        let len = size_of::<Vec<u8>>() + key.len();
        let is_new = self.keys.insert(key);
        self.bytes += if is_new { len } else { 0 };
        if self.bytes > self.bytes_max {
            let message = format!("query: the set operation needs more than {} bytes", self.bytes_max);
            return Err(Error::new(ErrorKind::Full, message));
        }
        Ok(is_new)
    }
}
