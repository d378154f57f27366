//! The records of the inner engine, read without an engine: from a damaged table.

use super::definitions::{Index, IndexState};
use super::{ENTRY, ROW, STATE};
use todana_core::IndexKind;

/// The maximum length of the part of a key that a description contains.
const KEY_SHOWN_LEN: usize = 60;

/// A record of the inner engine of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InnerRecord<'r> {
    /// A row, with its key. The row with the empty key holds the definitions of the indexes.
    Row(&'r [u8]),
    /// An entry of an index.
    Entry,
    /// An index that is defined on a column.
    Index(&'r [u8], IndexKind),
    /// Another record, such as the totals of the rows.
    Other,
}

impl<'r> InnerRecord<'r> {
    /// Returns the record with this key and value in the inner engine.
    pub fn read(key: &'r [u8], value: &'r [u8]) -> InnerRecord<'r> {
        match key.split_first() {
            Some((&ROW, key)) => InnerRecord::Row(key),
            Some((&ENTRY, _)) => InnerRecord::Entry,
            _ => match Index::read(key, value).filter(|index| index.state != IndexState::Dropped) {
                Some(index) => InnerRecord::Index(&value[value.len() - index.column.len()..], index.kind),
                None => InnerRecord::Other,
            },
        }
    }

    /// Describes the record with this key in the inner engine, or the first record after it.
    pub fn describe(key: &[u8]) -> String {
        match key.split_first() {
            Some((&ROW, [])) => "the definitions of the indexes".into(),
            Some((&ROW, key)) => {
                let shown = &key[..key.len().min(KEY_SHOWN_LEN)];
                format!("the row \"{}\"", shown.escape_ascii())
            }
            Some((&ENTRY, [high, low, ..])) => {
                format!("entries of index {}", u16::from_be_bytes([*high, *low]))
            }
            Some((&ENTRY, _)) => "entries of an index".into(),
            Some((&STATE, _)) => "the states of the indexes".into(),
            _ => "unknown records".into(),
        }
    }
}
