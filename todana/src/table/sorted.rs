//! Sorts the result of a query whose order no index provides. If the query has a limit, memory is
//! needed only for the first rows of the result.

use super::QueryOrder;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use todana_core::{Error, ErrorKind, Result};
use todana_engine::table::{column, number};

/// The bytes of an entry in addition to its key and its text.
const ENTRY_LEN: usize = size_of::<SortedRow>();

/// Collects rows, and returns their keys in an order.
pub(super) struct RowSorter {
    name: Vec<u8>,
    order: QueryOrder,
    rows_max: usize,
    bytes_max: usize,
    bytes: usize,
    found: u64,
    /// The rows collected so far, with the last one in the order on top.
    rows: BinaryHeap<SortedRow>,
}

/// A row, with the text by which it is sorted.
struct SortedRow {
    /// The text of the column. `None` if the row lacks the column.
    text: Option<SortText>,
    is_descending: bool,
    /// The number of the row in the order in which rows were found. Equal rows keep this order.
    number: u64,
    key: Vec<u8>,
}

#[derive(PartialEq)]
enum SortText {
    Text(Vec<u8>),
    Number(f64),
}

impl SortText {
    fn cmp(&self, other: &SortText) -> Ordering {
        match (self, other) {
            (SortText::Text(one), SortText::Text(other)) => one.cmp(other),
            (SortText::Number(one), SortText::Number(other)) => {
                one.partial_cmp(other).unwrap_or(Ordering::Equal)
            }
            _ => Ordering::Equal,
        }
    }

    fn len(&self) -> usize {
        if let SortText::Text(text) = self { text.len() } else { 0 }
    }
}

impl Ord for SortedRow {
    fn cmp(&self, other: &SortedRow) -> Ordering {
        let by_text = match (&self.text, &other.text) {
            (Some(one), Some(other)) if self.is_descending => other.cmp(one),
            (Some(one), Some(other)) => one.cmp(other),
            (one, other) => one.is_none().cmp(&other.is_none()),
        };
        by_text.then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for SortedRow {
    fn partial_cmp(&self, other: &SortedRow) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SortedRow {
    fn eq(&self, other: &SortedRow) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SortedRow {}

impl RowSorter {
    /// Creates a sorter that keeps the first `rows_max` rows of the order, in at most `bytes_max`
    /// bytes.
    pub(super) fn new(name: &[u8], order: QueryOrder, rows_max: Option<u64>, bytes_max: usize) -> RowSorter {
        let rows_max = rows_max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
        let (name, rows) = (name.to_vec(), BinaryHeap::new());
        RowSorter { name, order, rows_max, bytes_max, bytes: 0, found: 0, rows }
    }

    /// Adds a row. Fails with `Full` if the rows to keep need more memory than allowed.
    pub(super) fn add(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        let text = if self.name.is_empty() { Some(key) } else { column(row, &self.name) };
        let text = text.map(|text| match self.order.is_numeric() {
            true => SortText::Number(number(text)),
            false => SortText::Text(text.to_vec()),
        });
        let is_descending = self.order.is_descending();
        let row = SortedRow { text, is_descending, number: self.found, key: key.to_vec() };
        self.found += 1;
        if self.rows.len() >= self.rows_max && self.rows.peek().is_none_or(|last| *last <= row) {
            return Ok(());
        }
        self.bytes += row.len();
        self.rows.push(row);
        if self.rows.len() > self.rows_max
            && let Some(last) = self.rows.pop()
        {
            self.bytes -= last.len();
        }
        if self.bytes > self.bytes_max {
            let message = format!("query: its sort needs more than {} bytes; set a limit", self.bytes_max);
            return Err(Error::new(ErrorKind::Full, message));
        }
        Ok(())
    }

    /// Returns the keys in order.
    pub(super) fn finish(self) -> impl Iterator<Item = Vec<u8>> {
        self.rows.into_sorted_vec().into_iter().map(|row| row.key)
    }
}

impl SortedRow {
    fn len(&self) -> usize {
        ENTRY_LEN + self.key.len() + self.text.as_ref().map_or(0, SortText::len)
    }
}
