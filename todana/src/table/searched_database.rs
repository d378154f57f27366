//! The database of a search, which a search borrows or keeps open.

use crate::{Database, Db};
use todana_core::IndexedEngine;

/// The table that a search reads.
#[derive(Clone)]
pub(super) enum SearchedDatabase<'d> {
    /// The caller lends it.
    Lent(&'d Database),
    /// The search keeps it open.
    Owned(Db),
}

impl SearchedDatabase<'_> {
    pub(super) fn get(&self) -> &Database {
        match self {
            SearchedDatabase::Lent(database) => database,
            SearchedDatabase::Owned(db) => db.database(),
        }
    }

    /// Returns the indexes of the table.
    pub(super) fn indexed(&self) -> &dyn IndexedEngine {
        self.get().engine().indexed().expect("a search starts only on a table")
    }
}
