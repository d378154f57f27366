//! Tables for programs that embed the library.

use super::rows::{RowPutMode, expect_row_key, store_row};
use super::search::indexed;
use super::searched_database::SearchedDatabase;
use super::{
    ColumnIndex, IndexChange, IndexKind, IndexVisitor, Query, Row, Search, SearchOptions, SetOperation,
    SetSearch,
};
use crate::{Db, Records};
use todana_core::{Error, ErrorKind, IndexedEngine, Result};
use todana_engine::table::INDEXES_MAX;

/// The rows of a `mem:table` or `PATH.table` database.
///
/// A row is a record whose value contains the columns in the form of [`Row::as_bytes`]. The methods
/// of [`Records`], expiry and transactions therefore work on rows, too. The record with the empty
/// key holds the definitions of the indexes. Searches do not see the changes of an open
/// transaction.
///
/// ```
/// use todana::Db;
/// use todana::table::{ConditionOperator, Query, Table};
///
/// let table = Table::new(&Db::open("mem:table")?)?;
/// table.put(b"ann", &[("age", "33")])?;
/// assert!(table.add_columns(b"ann", &[("age", "1"), ("town", "Oslo")])?);
/// let row = table.get(b"ann")?.expect("it was stored");
/// assert_eq!((row.get(b"age"), row.get(b"town")), (Some(&b"33"[..]), Some(&b"Oslo"[..])));
/// let query = Query::new().filter(b"town", ConditionOperator::TextEquals, b"Oslo");
/// assert_eq!((table.count(&query)?, table.remove_matching(&query)?), (1, 1));
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    db: Db,
}

impl Table {
    /// Returns the table of a database. Fails with `Invalid` if the database is not a table.
    pub fn new(db: &Db) -> Result<Table> {
        indexed(db.database())?;
        Ok(Table { db: db.clone() })
    }

    fn indexed(&self) -> &dyn IndexedEngine {
        self.db.database().engine().indexed().expect("it was checked by the constructor")
    }

    /// Returns the database.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Stores a row. Replaces an existing row. Fails as [`Row::new`] and [`Records::set`] do. Fails
    /// with `Invalid` if the key is empty, or if the row would have more than 1,048,576 entries in
    /// indexes: one for each word of a token index and each character of a q-gram index.
    pub fn put<N: AsRef<[u8]>, V: AsRef<[u8]>>(&self, key: &[u8], columns: &[(N, V)]) -> Result<()> {
        self.store(RowPutMode::Put, key, &Row::new(columns)?).map(drop)
    }

    /// Stores a row unless there is a row with this key. Returns true if it was stored. Fails as
    /// [`put`](Table::put) does.
    pub fn put_new<N: AsRef<[u8]>, V: AsRef<[u8]>>(&self, key: &[u8], columns: &[(N, V)]) -> Result<bool> {
        self.store(RowPutMode::Keep, key, &Row::new(columns)?)
    }

    /// Adds the columns that an existing row lacks, or stores a new row. Columns that the row has
    /// keep their values. Returns true. Fails as [`put`](Table::put) does.
    pub fn add_columns<N: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        key: &[u8],
        columns: &[(N, V)],
    ) -> Result<bool> {
        self.store(RowPutMode::AddMissing, key, &Row::new(columns)?)
    }

    fn store(&self, mode: RowPutMode, key: &[u8], row: &Row) -> Result<bool> {
        store_row(&self.db, mode, key, row)
    }

    /// Returns a row.
    pub fn get(&self, key: &[u8]) -> Result<Option<Row>> {
        expect_row_key(key)?;
        Ok(self.db.get(key)?.as_deref().map(Row::stored))
    }

    /// Removes a row. Returns true if it existed.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        expect_row_key(key)?;
        self.db.remove(key)
    }

    /// Returns a number for the key of a new row. The number was not returned before, and it is not
    /// the key of a row.
    pub fn new_number(&self) -> Result<u64> {
        super::new_row_number(self.indexed(), &self.db)
    }

    /// Returns the indexes.
    pub fn indexes(&self) -> Vec<ColumnIndex> {
        self.indexed().indexes()
    }

    /// Creates the index on a column, or drops it if `kind` is `None`. An index of another kind on
    /// the column is replaced. The empty name means the key of the row. If rows exist, the index is
    /// built in the background, and queries use it when it is complete. Fails with `Invalid` if the
    /// table already has 64 indexes.
    pub fn set_index(&self, column: &[u8], kind: Option<IndexKind>) -> Result<()> {
        let mut visitor = IndexVisitor::new(column, kind.map_or(IndexChange::Drop, IndexChange::Create));
        self.db.visit(b"", &mut visitor)?;
        if visitor.is_full {
            let message = format!("index: the table already has {INDEXES_MAX} indexes; drop one");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if kind.is_some() && !visitor.is_done {
            return Err(Error::new(ErrorKind::Invalid, "index: the name of its column is reserved"));
        }
        Ok(())
    }

    /// Builds the indexes that are not complete, and returns when all are complete.
    pub fn finish_indexes(&self) {
        while self.indexes().iter().any(|index| !index.is_complete) {
            self.db.database().maintain();
        }
    }

    /// Returns the rows that match a query, as an iterator. Fails with `Invalid` if the query has
    /// more than 16 patterns, or a pattern longer than 64 KiB, or a pattern that needs more than
    /// 1 MiB of memory. An invalid pattern matches no row.
    pub fn search(&self, query: &Query) -> Result<Search<'_>> {
        self.search_with(query, SearchOptions::default())
    }

    /// Does the same as [`search`](Table::search), with options.
    pub fn search_with<'t>(&'t self, query: &Query, options: SearchOptions<'t>) -> Result<Search<'t>> {
        Search::new(self.db.database(), query, options)
    }

    /// Returns the union, the intersection or the difference of the rows that several queries find.
    /// [`SetOperation`] states the order of the rows.
    ///
    /// ```
    /// # use todana::Db;
    /// # use todana::table::{ConditionOperator, Query, SetOperation, Table};
    /// let table = Table::new(&Db::open("mem:table")?)?;
    /// for (key, color) in [(b"1", "red"), (b"2", "blue"), (b"3", "green")] {
    ///     table.put(key, &[("color", color)])?;
    /// }
    /// let all = Query::new();
    /// let blue = Query::new().filter(b"color", ConditionOperator::TextEquals, b"blue");
    /// let found = table.search_set(&[all, blue], SetOperation::Difference)?;
    /// let keys: Vec<_> = found.map(|found| found.map(|(key, _)| key)).collect::<Result<_, _>>()?;
    /// assert_eq!(keys, [b"1", b"3"]);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn search_set(&self, queries: &[Query], operation: SetOperation) -> Result<SetSearch<'_>> {
        SetSearch::new(self.db.database(), queries, operation, SearchOptions::default())
    }

    /// Does the same as [`search_set`](Table::search_set), but the search borrows nothing, so that
    /// it can be stored in a struct. The database stays open until the search is dropped. With
    /// `keys_only`, the rows have no columns. With one query, the operation has no effect.
    ///
    /// ```
    /// # use todana::Db;
    /// # use todana::table::{Query, SetOperation, SetSearch, Table};
    /// struct Session {
    ///     search: SetSearch<'static>,
    /// }
    ///
    /// let table = Table::new(&Db::open("mem:table")?)?;
    /// table.put(b"1", &[("color", "red")])?;
    /// let search = table.search_owned(&[Query::new()], SetOperation::Union, true)?;
    /// drop(table);
    /// let mut session = Session { search };
    /// assert_eq!(session.search.next().expect("there is a row")?.0, b"1");
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn search_owned(
        &self,
        queries: &[Query],
        operation: SetOperation,
        keys_only: bool,
    ) -> Result<SetSearch<'static>> {
        let options = SearchOptions { keys_only, ..SearchOptions::default() };
        SetSearch::start(&SearchedDatabase::Owned(self.db.clone()), queries, operation, options)
    }

    /// Returns the number of rows that a query finds.
    pub fn count(&self, query: &Query) -> Result<u64> {
        self.count_set(std::slice::from_ref(query), SetOperation::Union)
    }

    /// Returns the number of rows that a set operation on queries finds.
    pub fn count_set(&self, queries: &[Query], operation: SetOperation) -> Result<u64> {
        // An order matters only if a limit or a skip of one of several queries selects rows by it.
        let is_free = |query: &Query| queries.len() == 1 || query.limit.is_none() && query.skip == 0;
        let unordered = |query: &Query| match is_free(query) {
            true => Query { order: None, ..query.clone() },
            false => query.clone(),
        };
        let queries: Vec<Query> = queries.iter().map(unordered).collect();
        let options = SearchOptions { keys_only: true, ..SearchOptions::default() };
        let mut search = SetSearch::new(self.db.database(), &queries, operation, options)?;
        search.try_fold(0, |count, found| found.map(|_| count + 1))
    }

    /// Removes the rows that a query finds. Each row is removed by a change of its own, unless it
    /// no longer matches. Returns the number of removed rows.
    pub fn remove_matching(&self, query: &Query) -> Result<u64> {
        self.remove_matching_set(std::slice::from_ref(query), SetOperation::Union)
    }

    /// Removes the rows that a set operation on queries finds. Returns the number of removed rows.
    pub fn remove_matching_set(&self, queries: &[Query], operation: SetOperation) -> Result<u64> {
        let options = SearchOptions { keys_only: true, ..SearchOptions::default() };
        let mut search = SetSearch::new(self.db.database(), queries, operation, options)?;
        let mut removed = 0;
        while let Some(found) = search.next() {
            let (key, _) = found?;
            let mut remover = search.remover(&key);
            self.db.visit(&key, &mut remover)?;
            removed += u64::from(remover.removed.is_some());
        }
        Ok(removed)
    }
}
