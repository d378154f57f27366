//! The defined indexes: their definitions in the record with the empty key, and their state.

use super::columns::{column, columns};
use super::row_visitor::RowChange;
use super::terms::terms;
use super::{ENTRY, ENTRY_HEAD_LEN, PutValue, ROW, RemoveRecord, STATE, TableEngine, row_key};
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use todana_core::{
    Action, Attributes, ColumnIndex, Engine, Error, ErrorKind, IndexKind, Record, Result, Visitor,
};

/// The column of the definitions that holds the end of the reserved row numbers. No column of a row
/// can be indexed under this name.
const RESERVED_NUMBERS: &[u8] = b"\x01numbers";

/// The most indexes of a table. Each change of a row checks all of them.
pub const INDEXES_MAX: usize = 64;

/// Returns the indexes that a value of the record with the empty key defines, the first
/// [`INDEXES_MAX`] of them. A column with a value that is no name of an index kind defines nothing.
pub fn definitions(value: &[u8]) -> Vec<(&[u8], IndexKind)> {
    let mut all: Vec<(&[u8], IndexKind)> = Vec::new();
    for (name, kind) in columns(value) {
        if all.len() == INDEXES_MAX {
            break;
        }
        let kind = IndexKind::ALL.into_iter().find(|known| known.name().as_bytes() == kind);
        match kind {
            Some(kind) if name != RESERVED_NUMBERS && all.iter().all(|(other, _)| *other != name) => {
                all.push((name, kind));
            }
            _ => {}
        }
    }
    all
}

/// Returns true if a value consists of definitions, at least one.
pub fn are_definitions(value: &[u8]) -> bool {
    let is_kind = |text: &[u8]| IndexKind::ALL.into_iter().any(|kind| kind.name().as_bytes() == text);
    !value.is_empty() && columns(value).all(|(name, text)| name == RESERVED_NUMBERS || is_kind(text))
}

/// Returns the end of the row numbers that are reserved in these definitions; 0 if there are none.
pub fn reserved_numbers(value: &[u8]) -> u64 {
    let text = column(value, RESERVED_NUMBERS).and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns definitions with this one instead of the former one of its column. Without a column the
/// number is the end of reserved row numbers, without a kind the column has no index.
pub fn put_definition(value: &[u8], changed: Definition<'_>) -> Vec<u8> {
    let (name, text) = match changed {
        Definition::Index(name, kind) => (name, kind.map(|kind| kind.name().to_owned())),
        Definition::ReservedNumbers(end) => (RESERVED_NUMBERS, Some(end.to_string())),
    };
    let mut all = Vec::with_capacity(value.len() + name.len() + 16);
    let mut put = |name: &[u8], text: &[u8]| {
        if !all.is_empty() {
            all.push(0);
        }
        all.extend_from_slice(name);
        all.push(0);
        all.extend_from_slice(text);
    };
    columns(value).filter(|(other, _)| *other != name).for_each(|(name, text)| put(name, text));
    if let Some(text) = text {
        put(name, text.as_bytes());
    }
    all
}

/// A change of the definitions.
#[derive(Clone, Copy, Debug)]
pub enum Definition<'d> {
    /// The index of a column, or none.
    Index(&'d [u8], Option<IndexKind>),
    /// The end of the reserved row numbers.
    ReservedNumbers(u64),
}

/// Stores a record.
pub(super) struct PutRecord<'r> {
    pub(super) value: &'r [u8],
    pub(super) attributes: Attributes,
}

impl Visitor for PutRecord<'_> {
    fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.value, self.attributes))
    }
}

/// An index.
#[derive(Clone, Debug)]
pub(super) struct Index {
    pub(super) column: Vec<u8>,
    pub(super) kind: IndexKind,
    /// The number under which its entries are stored.
    pub(super) number: u16,
    pub(super) state: IndexState,
}

/// The progress of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IndexState {
    /// Rows up to this key have entries.
    Building(Vec<u8>),
    /// All rows have entries.
    Complete,
    /// The index is no longer defined. Its entries are being removed.
    Dropped,
}

impl Index {
    /// Calls `see` with the key of each entry of a row; keys may repeat.
    pub(super) fn entry_keys(&self, key: &[u8], text: Option<&[u8]>, see: &mut dyn FnMut(Vec<u8>)) {
        let Some(text) = text else { return };
        terms(self.kind, text, &mut |term| {
            let mut entry = Vec::with_capacity(ENTRY_HEAD_LEN + term.len() + key.len());
            entry.push(ENTRY);
            entry.extend_from_slice(&self.number.to_be_bytes());
            entry.extend_from_slice(term);
            entry.extend_from_slice(key);
            see(entry);
        });
    }

    /// Returns the text of a row that is indexed.
    pub(super) fn text<'r>(&self, key: &'r [u8], row: &'r [u8]) -> Option<&'r [u8]> {
        if self.column.is_empty() { Some(key) } else { column(row, &self.column) }
    }

    fn state_key(&self) -> [u8; 3] {
        let [high, low] = self.number.to_be_bytes();
        [STATE, high, low]
    }

    /// Stores the state, without the progress of a build.
    pub(super) fn save(&self, inner: &dyn Engine) -> Result<()> {
        let state = match self.state {
            IndexState::Building(_) => 0,
            IndexState::Complete => 1,
            IndexState::Dropped => 2,
        };
        let value = [&[self.kind as u8, state], &self.column[..]].concat();
        inner.visit(&self.state_key(), &mut PutValue(&value))
    }

    pub(super) fn read(key: &[u8], value: &[u8]) -> Option<Index> {
        let &[STATE, high, low] = key else { return None };
        let (&[kind, state], column) = value.split_first_chunk()?;
        Some(Index {
            column: column.to_vec(),
            kind: IndexKind::ALL.into_iter().find(|known| *known as u8 == kind)?,
            number: u16::from_be_bytes([high, low]),
            state: match state {
                0 => IndexState::Building(Vec::new()),
                1 => IndexState::Complete,
                _ => IndexState::Dropped,
            },
        })
    }

    /// Forgets the index, whose entries have been removed.
    pub(super) fn forget(&self, inner: &dyn Engine) -> Result<()> {
        inner.visit(&self.state_key(), &mut RemoveRecord)
    }
}

/// All indexes, with those that are being removed.
#[derive(Default)]
pub(super) struct Indexes(pub(super) Vec<Index>);

impl Indexes {
    fn defined(&self) -> impl Iterator<Item = &Index> {
        self.0.iter().filter(|index| index.state != IndexState::Dropped)
    }

    /// Returns true if visits have no entries to keep.
    pub(super) fn is_empty(&self) -> bool {
        self.defined().next().is_none()
    }

    pub(super) fn find(&self, column: &[u8], kind: IndexKind) -> Option<&Index> {
        self.defined().find(|index| index.column == column && index.kind == kind)
    }

    pub(super) fn shown(&self) -> Vec<ColumnIndex> {
        let shown = |index: &Index| ColumnIndex {
            column: index.column.clone(),
            kind: index.kind,
            is_complete: index.state == IndexState::Complete,
        };
        self.defined().map(shown).collect()
    }

    /// Updates the entries of a row after a change.
    pub(super) fn update_entries(&self, inner: &dyn Engine, key: &[u8], change: RowChange<'_>) -> Result<()> {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for index in self.defined() {
            let text = |row: Option<&'_ [u8]>| row.and_then(|row| index.text(key, row).map(<[u8]>::to_vec));
            let (old, new) = (text(change.old), text(change.new));
            if old != new {
                index.entry_keys(key, old.as_deref(), &mut |entry| removed.push(entry));
                index.entry_keys(key, new.as_deref(), &mut |entry| added.push(entry));
            }
        }
        for keys in [&mut added, &mut removed] {
            keys.sort_unstable();
            keys.dedup();
        }
        for entry in added.iter().filter(|entry| removed.binary_search(entry).is_err()) {
            inner.visit(entry, &mut PutValue(b""))?;
        }
        for entry in removed.iter().filter(|entry| added.binary_search(entry).is_err()) {
            inner.visit(entry, &mut RemoveRecord)?;
        }
        Ok(())
    }

    /// Creates the defined indexes that do not exist, and drops those that are no longer defined.
    pub(super) fn define(
        &mut self,
        inner: &dyn Engine,
        defined: &[(&[u8], IndexKind)],
        has_rows: bool,
    ) -> Result<()> {
        for index in &mut self.0 {
            let is_defined = defined.contains(&(&index.column, index.kind));
            if index.state != IndexState::Dropped && !is_defined {
                index.state = IndexState::Dropped;
                index.save(inner)?;
            }
        }
        let used: HashSet<u16> = self.0.iter().map(|index| index.number).collect();
        let mut unused = (0..=u16::MAX).filter(|number| !used.contains(number));
        for (column, kind) in defined {
            if self.find(column, *kind).is_some() {
                continue;
            }
            let number = unused.next().ok_or_else(|| {
                Error::new(ErrorKind::Invalid, format!("table: more than {} indexes", u16::MAX))
            })?;
            let state = if has_rows { IndexState::Building(Vec::new()) } else { IndexState::Complete };
            let index = Index { column: column.to_vec(), kind: *kind, number, state };
            index.save(inner)?;
            self.0.push(index);
        }
        Ok(())
    }

    /// Stores the states in an inner engine that has just been cleared.
    pub(super) fn clear(&mut self, inner: &dyn Engine) -> Result<()> {
        self.0.retain(|index| index.state != IndexState::Dropped);
        for index in &mut self.0 {
            index.state = IndexState::Complete;
            index.save(inner)?;
        }
        Ok(())
    }
}

impl TableEngine {
    /// Reads the state of the indexes and the totals from the inner engine.
    pub(super) fn read_state(&self) -> Result<()> {
        let mut indexes = self.indexes.write();
        self.rows_in_order().ascend(Bound::Included(&[STATE]), &mut |key, record| {
            if key == [STATE] {
                let number = |at: usize| {
                    let bytes = record.value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
                    u64::from_le_bytes(bytes.unwrap_or_default())
                };
                self.totals.set(number(0), number(8));
            }
            indexes.0.extend(Index::read(key, record.value));
            ControlFlow::Continue(())
        })?;
        self.inner.peek(&[ROW], &mut |record| {
            self.numbers.note_reserved(reserved_numbers(record.value));
        })?;
        Ok(())
    }

    /// Stores the totals. No visit may be in progress.
    pub(super) fn save_totals(&self) -> Result<()> {
        let totals = [self.totals.rows().to_le_bytes(), self.totals.expiring().to_le_bytes()].concat();
        self.inner.visit(&[STATE], &mut PutValue(&totals))
    }

    /// Reads a row and calls `see` with its value; returns false if there is none.
    pub(super) fn peek_row(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.inner.peek(&row_key(key), &mut |record| see(record.value))
    }
}
