//! Searches in tables: the instructions of `misc search` and `misc metasearch`.
//!
//! Each argument is an instruction, whose words are separated by NUL bytes. Instructions that are
//! not understood are ignored, as in the original.

use crate::Database;
use crate::table::{
    Condition, ConditionOperator, Query, QueryOrder, Row, RowRemover, SearchOptions, SetOperation, SetSearch,
};
use std::ops::ControlFlow;
use todana_core::Result;
use todana_protocol::memcached::plugin::number;
use todana_protocol::tyrant::FieldList;

/// The most queries of a search, and their conditions.
const QUERIES_MAX: usize = 64;
const CONDITIONS_MAX: usize = 1024;
/// The most columns that are returned.
const COLUMNS_MAX: usize = 1024;
/// The longest instructions of a simple search.
const SIMPLE_LEN_MAX: usize = 256;
/// The beginning of the element with the hint.
const HINT: &[u8] = b"\0\0[[HINT]]\n";

/// A search, as a client requests it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableSearch {
    queries: Vec<Query>,
    operation: SetOperation,
    /// The names of the columns that are returned, none for all; `None`: keys are returned.
    columns: Option<Vec<Vec<u8>>>,
    counts: bool,
    removes: bool,
    has_hint: bool,
    len: usize,
}

impl TableSearch {
    /// Parses the instructions. Returns `None` if there are too many.
    pub fn parse(instructions: FieldList<'_>) -> Option<TableSearch> {
        let mut search = TableSearch { queries: vec![Query::new()], ..TableSearch::default() };
        let mut conditions = 0;
        for instruction in instructions {
            search.len += instruction.len();
            let words: Vec<&[u8]> = instruction.splitn(WORDS_MAX, |&byte| byte == 0).collect();
            let query = search.queries.last_mut()?;
            match words.as_slice() {
                [b"addcond" | b"cond", column, operator, expression, ..] => {
                    if let Some(operator) = ConditionOperator::parse(operator) {
                        query.conditions.push(Condition::parsed(column, operator, expression));
                        conditions += 1;
                    }
                }
                [b"setorder" | b"order", column, order, ..] => {
                    if let Some(order) = QueryOrder::parse(order) {
                        query.order = Some((column.to_vec(), order));
                    }
                }
                [b"setlimit" | b"limit" | b"setmax" | b"max", limit, rest @ ..] => {
                    query.limit = u64::try_from(number(limit)).ok();
                    let skip = rest.first().map_or(0, |skip| number(skip));
                    query.skip = u64::try_from(skip).unwrap_or(0);
                }
                [b"get" | b"columns", ..] => {
                    let mut columns: Vec<Vec<u8>> = Vec::new();
                    for name in instruction.split(|&byte| byte == 0).skip(1) {
                        if columns.iter().all(|other| other != name) {
                            columns.push(name.to_vec());
                        }
                        if columns.len() > COLUMNS_MAX {
                            return None;
                        }
                    }
                    search.columns = Some(columns);
                }
                [b"count", ..] => search.counts = true,
                [b"out" | b"remove", ..] => search.removes = true,
                [b"hint", ..] => search.has_hint = true,
                [b"next", ..] => search.queries.push(Query::new()),
                [b"mstype", operation, ..] => {
                    search.operation = SetOperation::parse(operation).unwrap_or(search.operation);
                }
                _ => {}
            }
            if conditions > CONDITIONS_MAX || search.queries.len() > QUERIES_MAX {
                return None;
            }
        }
        Some(search)
    }

    /// Returns true if the time of the search depends on little but the number of rows and their
    /// lengths.
    pub fn is_simple(&self) -> bool {
        let is_simple = |condition: &Condition| condition.operator != ConditionOperator::MatchesPattern;
        self.len <= SIMPLE_LEN_MAX
            && self.queries.len() == 1
            && self.queries[0].conditions.iter().all(is_simple)
    }

    /// Returns the number of bytes that the search holds.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Returns true if the rows that are found are removed.
    pub fn removes(&self) -> bool {
        self.removes
    }

    /// Searches, and shows each element of the reply until `push` breaks. `remove` runs a visitor
    /// that removes a row. Fails with `Invalid` if the search needs too much memory.
    pub fn perform(
        &self,
        database: &Database,
        options: SearchOptions<'_>,
        remove: &mut dyn FnMut(&[u8], &mut RowRemover) -> Result<()>,
        push: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let options = SearchOptions { keys_only: self.counts || self.columns.is_none(), ..options };
        let mut search = SetSearch::new(database, &self.queries, self.operation, options)?;
        let (mut found_rows, mut rows) = (0u64, 0u64);
        while let Some(found) = search.next() {
            let (key, mut row) = found?;
            found_rows += 1;
            if self.removes {
                let mut remover = search.remover(&key);
                remove(&key, &mut remover)?;
                let Some(removed) = remover.removed else { continue };
                row = removed;
            }
            rows += 1;
            let is_returned = !self.counts && (!self.removes || self.columns.is_some());
            if is_returned && push(&self.element(&key, &row)).is_break() {
                break;
            }
        }
        if self.counts {
            let _ = push(rows.to_string().as_bytes());
        }
        if self.has_hint {
            let mut hint = [HINT, search.hint().as_bytes()].concat();
            if self.removes {
                hint.extend(format!("post treatment: get={found_rows}, put=0, out={rows}\n").bytes());
            }
            let _ = push(&hint);
        }
        Ok(())
    }

    /// Returns the key or the columns of a row, as clients want them.
    fn element(&self, key: &[u8], row: &Row) -> Vec<u8> {
        let Some(names) = &self.columns else { return key.to_vec() };
        let mut element: Vec<u8> = Vec::new();
        let mut put = |name: &[u8], value: &[u8], is_first: bool| {
            if !is_first {
                element.push(0);
            }
            element.extend_from_slice(name);
            element.push(0);
            element.extend_from_slice(value);
        };
        if names.is_empty() {
            put(b"", key, true);
            row.columns().for_each(|(name, value)| put(name, value, false));
            return element;
        }
        let value = |name: &Vec<u8>| if name.is_empty() { Some(key) } else { row.get(name) };
        let found = names.iter().filter_map(|name| Some((name, value(name)?)));
        found.enumerate().for_each(|(at, (name, value))| put(name, value, at == 0));
        element
    }
}

/// Words that are separated; the rest of an instruction belongs to the last one.
const WORDS_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use todana_protocol::tyrant::FieldBuffer;

    fn parse(instructions: &[&str]) -> TableSearch {
        let fields = FieldBuffer::from_iter(instructions.iter().map(|text| text.as_bytes()));
        TableSearch::parse(fields.list()).unwrap()
    }

    #[test]
    fn instructions_that_are_not_understood_are_ignored() {
        let plain = TableSearch { len: 0, ..parse(&[]) };
        for ignored in
            ["cond\0c\0EQ", "addcond\0c\0BOGUS\0x", "setorder\0c", "ADDCOND\0c\0EQ\0x", "", "mstype\0x"]
        {
            assert_eq!(TableSearch { len: 0, ..parse(&[ignored]) }, plain, "{ignored}");
        }
        let search = parse(&["max\x003x\x00-2", "next", "limit\x00-1", "mstype\0ANDNOT", "get\0a\0\0b\0a"]);
        assert_eq!((search.queries[0].limit, search.queries[0].skip), (Some(3), 0));
        assert_eq!((search.queries[1].limit, search.operation), (None, SetOperation::Difference));
        assert_eq!(search.columns, Some(vec![b"a".to_vec(), b"".to_vec(), b"b".to_vec()]));
        let many = vec!["next"; QUERIES_MAX];
        let fields = FieldBuffer::from_iter(many.iter().map(|text| text.as_bytes()));
        assert!(TableSearch::parse(fields.list()).is_none());
    }
}
