//! Changes the definitions of indexes, which are columns of the record with the empty key.

use super::IndexKind;
use todana_core::{Action, Attributes, Record, Visitor};
use todana_engine::table::{Definition, INDEXES_MAX, definitions, put_definition, reserved_numbers};

/// A change of the index on a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexChange {
    /// Creates the index. An index of another kind on the column is replaced.
    Create(IndexKind),
    /// Creates the index. Fails if the column has an index.
    CreateNew(IndexKind),
    /// Does nothing, because indexes need no optimization. Fails if the column has no index.
    Optimize,
    /// Drops the index. Fails if the column has no index.
    Drop,
}

/// Tokyo Cabinet's names of index types, with its numbers.
#[rustfmt::skip]
const NAMES: [(&[&str], IndexChange); 6] = [
    (&["LEXICAL", "LEX", "STR", "0"], IndexChange::Create(IndexKind::Lexical)),
    (&["DECIMAL", "DEC", "NUM", "1"], IndexChange::Create(IndexKind::Decimal)),
    (&["TOKEN", "TOK", "2"], IndexChange::Create(IndexKind::Token)),
    (&["QGRAM", "QGR", "FTS", "3"], IndexChange::Create(IndexKind::QGram)),
    (&["OPTIMIZE", "OPT", "9998"], IndexChange::Optimize),
    (&["VOID", "NULL", "9999"], IndexChange::Drop),
];
/// This number is added to the number of a type to keep an existing index.
const KEEPS: u32 = 1 << 24;

impl IndexChange {
    /// Parses a name or a number of Tokyo Cabinet. Case does not matter. A leading `+` keeps an
    /// existing index.
    pub fn parse(word: &[u8]) -> Option<IndexChange> {
        let word = std::str::from_utf8(word).ok()?;
        let (word, keeps) = word.strip_prefix('+').map_or((word, false), |word| (word, true));
        let number = word.parse::<u32>().ok().filter(|number| number & KEEPS != 0);
        let without_flag = number.map(|number| (number & !KEEPS).to_string());
        let word = without_flag.as_deref().unwrap_or(word);
        let is_meant = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(word));
        Some(match NAMES.iter().find(|(names, _)| is_meant(names))?.1 {
            IndexChange::Create(kind) if keeps || number.is_some() => IndexChange::CreateNew(kind),
            change => change,
        })
    }
}

/// Returns true if a column of this name can be indexed. Names that begin with byte 1 are reserved,
/// and a NUL byte would end the name.
pub(crate) fn is_indexable_column(column: &[u8]) -> bool {
    !column.contains(&0) && column.first() != Some(&1)
}

/// Changes the index on a column, as a visitor of the record with the empty key.
#[derive(Debug)]
pub struct IndexVisitor<'c> {
    column: &'c [u8],
    change: IndexChange,
    definitions: Vec<u8>,
    /// True if the change was possible.
    pub is_done: bool,
    /// True if the table has 64 indexes, so that no other one was created.
    pub is_full: bool,
}

impl<'c> IndexVisitor<'c> {
    /// Creates the visitor for a column. The empty name means the key of the row.
    pub fn new(column: &'c [u8], change: IndexChange) -> IndexVisitor<'c> {
        IndexVisitor { column, change, definitions: Vec::new(), is_done: false, is_full: false }
    }
}

impl Visitor for IndexVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let old = old.map_or(&b""[..], |old| old.value);
        let defined = definitions(old);
        let existing = defined.iter().find(|(column, _)| *column == self.column).map(|(_, kind)| *kind);
        let wanted = match self.change {
            IndexChange::Create(kind) => Some(Some(kind)),
            IndexChange::CreateNew(kind) => existing.is_none().then_some(Some(kind)),
            IndexChange::Optimize => existing.map(Some),
            IndexChange::Drop => existing.map(|_| None),
        };
        let is_possible = is_indexable_column(self.column);
        let creates = matches!(wanted, Some(Some(_))) && existing.is_none();
        self.is_full = creates && defined.len() >= INDEXES_MAX;
        let is_possible = is_possible && !self.is_full;
        self.is_done = is_possible && wanted.is_some();
        match wanted {
            Some(wanted) if is_possible && wanted != existing => {
                self.definitions = put_definition(old, Definition::Index(self.column, wanted));
                Action::Put(Record::new(&self.definitions, Attributes::default()))
            }
            _ => Action::Keep,
        }
    }
}

/// Reserves numbers for new rows, as a visitor of the record with the empty key.
pub(super) struct ReserveNumbers {
    end: u64,
    definitions: Vec<u8>,
}

impl ReserveNumbers {
    pub(super) fn new(end: u64) -> ReserveNumbers {
        ReserveNumbers { end, definitions: Vec::new() }
    }
}

impl Visitor for ReserveNumbers {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let old = old.map_or(&b""[..], |old| old.value);
        let end = self.end.max(reserved_numbers(old));
        self.definitions = put_definition(old, Definition::ReservedNumbers(end));
        Action::Put(Record::new(&self.definitions, Attributes::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_types_have_the_names_of_the_original() {
        for (word, change) in [
            ("lexical", Some(IndexChange::Create(IndexKind::Lexical))),
            ("1", Some(IndexChange::Create(IndexKind::Decimal))),
            ("+FTS", Some(IndexChange::CreateNew(IndexKind::QGram))),
            ("16777218", Some(IndexChange::CreateNew(IndexKind::Token))),
            ("OPT", Some(IndexChange::Optimize)),
            ("9999", Some(IndexChange::Drop)),
            ("BOGUS", None),
            ("4", None),
        ] {
            assert_eq!(IndexChange::parse(word.as_bytes()), change, "{word}");
        }
    }
}
