//! Indexes of a table, compared with its rows.

#![allow(dead_code, reason = "not every test file defines indexes")]

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use todana_core::{Action, Attributes, Engine, IndexEntry, IndexKind, Record, Visitor};
use todana_engine::table::{
    Definition, TermRange, column, definitions, fold, grams, number, put_definition, words,
};

/// Changes the definitions as a client does.
struct Define<'d>(Vec<Definition<'d>>, Vec<u8>);

impl Visitor for Define<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.1 = old.map(|old| old.value.to_vec()).unwrap_or_default();
        for definition in &self.0 {
            self.1 = put_definition(&self.1, *definition);
        }
        Action::Put(Record::new(&self.1, Attributes::default()))
    }
}

/// Defines the indexes of columns, or drops them.
pub(crate) fn define(table: &dyn Engine, all: &[(&[u8], Option<IndexKind>)]) {
    let all = all.iter().map(|(name, kind)| Definition::Index(name, *kind)).collect();
    table.visit(b"", &mut Define(all, Vec::new())).unwrap();
}

/// Returns the entries of an index in a range.
pub(crate) fn entries(
    table: &dyn Engine,
    name: &[u8],
    kind: IndexKind,
    range: &TermRange,
) -> Vec<IndexEntry> {
    let (mut range, mut all) = (range.clone(), Vec::new());
    loop {
        let before = all.len();
        let indexed = table.indexed().unwrap();
        assert!(indexed.index_entries(name, kind, range.bounds(), false, 7, &mut all).unwrap());
        if all.len() < before + 7 {
            return all;
        }
        range.continue_after(all.last().unwrap(), false);
    }
}

fn keys(entries: Vec<IndexEntry>) -> Vec<Vec<u8>> {
    entries.iter().map(|entry| entry.key().to_vec()).collect()
}

/// Checks that each index has exactly the entries that follow from the rows.
pub(crate) fn assert_indexes_follow_from_rows(table: &dyn Engine) {
    let mut rows: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    table
        .scan(None, &mut |key, record| {
            rows.push((key.to_vec(), record.value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(table.status().records, rows.len() as u64);
    let stored = rows.iter().find(|(key, _)| key.is_empty()).map(|(_, value)| value.clone());
    let defined: BTreeSet<_> = table
        .indexed()
        .unwrap()
        .indexes()
        .into_iter()
        .map(|index| (index.column, index.kind.name()))
        .collect();
    let stored = stored.unwrap_or_default();
    let expected =
        definitions(&stored).into_iter().map(|(name, kind)| (name.to_vec(), kind.name())).collect();
    assert_eq!(defined, expected);
    rows.retain(|(key, _)| !key.is_empty());
    for (name, kind) in definitions(&stored) {
        let mut expected: BTreeSet<(Vec<u8>, Vec<u8>)> = BTreeSet::new();
        for (key, row) in &rows {
            let Some(text) = (if name.is_empty() { Some(&key[..]) } else { column(row, name) }) else {
                continue;
            };
            let folded = fold(text);
            let terms: Vec<Vec<u8>> = match kind {
                IndexKind::Lexical => vec![text.to_vec()],
                IndexKind::Decimal => vec![number(text).to_string().into_bytes()],
                IndexKind::Token => words(text).map(<[u8]>::to_vec).collect(),
                IndexKind::QGram => grams(&folded).map(<[u8]>::to_vec).collect(),
            };
            expected.extend(terms.into_iter().map(|term| (term, key.clone())));
        }
        let mut found = BTreeSet::new();
        for (term, key) in &expected {
            let range = match kind {
                IndexKind::Decimal => {
                    let number = number(term);
                    TermRange::of_numbers(number, number)
                }
                _ => TermRange::of_text(term),
            };
            assert!(
                keys(entries(table, name, kind, &range)).contains(key),
                "{name:?} {kind:?} {term:?} {key:?}"
            );
            found.insert((term.clone(), key.clone()));
        }
        assert_eq!(entries(table, name, kind, &TermRange::all()).len(), expected.len(), "{name:?} {kind:?}");
    }
}
