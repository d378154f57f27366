//! Sorts rows by long texts. A lexical index contains only the start of a long text, so its order
//! is not complete.

use super::Row;
use std::collections::VecDeque;
use todana_core::{Error, ErrorKind, Result};
use todana_engine::table::{TERM_LEN_MAX, column};

/// A group of found rows whose texts start with the same bytes. The rows are kept until all of them
/// have been found, and are then sorted.
#[derive(Debug)]
pub(super) struct LongTextGroup {
    column: Vec<u8>,
    is_descending: bool,
    rows: Vec<LongText>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct LongText {
    text: Vec<u8>,
    key: Vec<u8>,
    row: Row,
}

impl LongTextGroup {
    pub(super) fn new(column: &[u8], is_descending: bool, bytes_max: usize) -> LongTextGroup {
        LongTextGroup { column: column.to_vec(), is_descending, rows: Vec::new(), bytes: 0, bytes_max }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a row in the order of the index. If its text is short, it is moved to `found` directly,
    /// otherwise to the group. Fails with `Full` if the group needs more memory than allowed.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        value: &[u8],
        row: Row,
        found: &mut VecDeque<(Vec<u8>, Row)>,
    ) -> Result<()> {
        let text = if self.column.is_empty() { Some(key) } else { column(value, &self.column) };
        let text = text.filter(|text| text.len() >= TERM_LEN_MAX);
        let beginning = |text: &[u8]| text[..TERM_LEN_MAX].to_vec();
        if self.rows.first().map(|first| beginning(&first.text)) != text.map(beginning) {
            self.release(found);
        }
        let (key, Some(text)) = (key.to_vec(), text) else {
            found.push_back((key.to_vec(), row));
            return Ok(());
        };
        self.bytes += size_of::<LongText>() + text.len() + key.len() + row.as_bytes().len();
        self.rows.push(LongText { text: text.to_vec(), key, row });
        if self.bytes > self.bytes_max {
            let message = format!("query: its order needs more than {} bytes", self.bytes_max);
            return Err(Error::new(ErrorKind::Full, message));
        }
        Ok(())
    }

    /// Sorts the rows of the group and moves them to `found`.
    pub(super) fn release(&mut self, found: &mut VecDeque<(Vec<u8>, Row)>) {
        self.bytes = 0;
        self.rows.sort_by(|one, other| match self.is_descending {
            true => other.text.cmp(&one.text),
            false => one.text.cmp(&other.text),
        });
        found.extend(self.rows.drain(..).map(|one| (one.key, one.row)));
    }
}
