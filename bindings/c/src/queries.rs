//! Exports queries for the rows of a table, and searches, which return the found rows.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_NONE, TODANA_OK, answer, invalid};
use crate::database::required;
use crate::handles::{HandleTable, new_number, shown};
use crate::open_database::{self, CloseBlocker, DatabaseHandle};
use crate::raw::{Bytes, BytesList, CText};
use crate::tables::{expect_no_transaction, given};
use parking_lot::Mutex;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;
use todana::table::{
    Condition, ConditionOperator, Query, QueryOrder, SetOperation, SetSearch, SnippetStyle, Table,
};
use todana::{Db, Result};

/// The rows of the first query, then the rows that only later queries find.
pub const TODANA_UNION: c_int = 0;
/// The rows that all queries find, in the order of the last query.
pub const TODANA_INTERSECTION: c_int = 1;
/// The rows that only the first query finds.
pub const TODANA_DIFFERENCE: c_int = 2;

/// A query for rows: conditions, an order and a limit. It belongs to no database, and any number of
/// threads may use it.
pub struct QueryHandle {
    _private: [u8; 0],
}

/// A running search, for one thread at a time. It keeps its database open.
pub struct SearchHandle {
    _private: [u8; 0],
}

/// The form of snippets. If all fields are zero, they have their usual values.
#[repr(C)]
pub struct SnippetOptions {
    /// The most characters on each side of a word. 0: 20.
    width: usize,
    /// The mark before a word. NULL: "[".
    before: CText,
    /// The mark after a word. NULL: "]".
    after: CText,
    /// The most snippets. 0: 8.
    snippets_max: usize,
    /// Not 0: returns the start of a text without any of the words.
    leads: c_int,
}

/// A query, and the queries with which it was combined.
#[derive(Clone)]
struct OpenQuery {
    queries: Vec<Query>,
    operation: SetOperation,
}

struct OpenSearch {
    search: SetSearch<'static>,
    /// Dropped last, because the database must stay open until then.
    _of: CloseBlocker,
}

static QUERIES: HandleTable<Mutex<OpenQuery>> = HandleTable::new();
static SEARCHES: HandleTable<Mutex<OpenSearch>> = HandleTable::new();

/// Opens a query for all rows.
#[unsafe(no_mangle)]
pub extern "C" fn todana_query_open(query: Option<&mut MaybeUninit<*mut QueryHandle>>) -> c_int {
    answer(|| {
        let place = query.must()?;
        let open_query = OpenQuery { queries: vec![Query::new()], operation: SetOperation::Union };
        let number = new_number();
        QUERIES.insert(number, Arc::new(Mutex::new(open_query)));
        place.put(shown(number));
        Ok(TODANA_OK)
    })
}

/// Closes a query. Its searches stay open. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn todana_query_close(query: *mut QueryHandle) -> c_int {
    answer(|| {
        if !query.is_null() {
            QUERIES.remove(query.addr(), "query")?;
        }
        Ok(TODANA_OK)
    })
}

/// Adds a condition; all conditions must hold. `operator` is one of Tokyo Cabinet's names: STREQ,
/// STRINC, STRBW, STREW, STRAND, STROR, STROREQ, STRRX, NUMEQ, NUMGT, NUMGE, NUMLT, NUMLE, NUMBT,
/// NUMOREQ, FTSPH, FTSAND, FTSOR, FTSEX. A "~" before the name negates the condition, and a "+"
/// directly before the name forbids indexes ("~+STREQ"). The empty column means the key of the row.
#[unsafe(no_mangle)]
pub extern "C" fn todana_query_where(
    query: *mut QueryHandle,
    column: Bytes,
    operator_name: CText,
    expression: Bytes,
) -> c_int {
    change(query, |first| {
        let name = required(&operator_name, "operator")?;
        let operator = ConditionOperator::parse(name.as_bytes())
            .ok_or_else(|| invalid(format!("{name:?} is no operator of a condition")))?;
        first.conditions.push(Condition::parsed(column.as_slice()?, operator, expression.as_slice()?));
        Ok(())
    })
}

/// Sets the order of the rows by a column: STRASC, STRDESC, NUMASC or NUMDESC. Rows without the
/// column come last.
#[unsafe(no_mangle)]
pub extern "C" fn todana_query_order(query: *mut QueryHandle, column: Bytes, order: CText) -> c_int {
    change(query, |first| {
        let name = required(&order, "order")?;
        let order = QueryOrder::parse(name.as_bytes())
            .ok_or_else(|| invalid(format!("{name:?} is no order: STRASC, STRDESC, NUMASC, NUMDESC")))?;
        first.order = Some((column.as_slice()?.to_vec(), order));
        Ok(())
    })
}

/// Sets the most rows that are found (UINT64_MAX: all), and the number of rows that are left out at
/// the start.
#[unsafe(no_mangle)]
pub extern "C" fn todana_query_limit(query: *mut QueryHandle, limit: u64, skip: u64) -> c_int {
    change(query, |first| {
        first.limit = (limit != u64::MAX).then_some(limit);
        first.skip = skip;
        Ok(())
    })
}

/// Combines a query with a copy of another: TODANA_UNION, TODANA_INTERSECTION or TODANA_DIFFERENCE.
/// Its order, limit and skip then apply as docs/embedding.md says. Several queries can be added by
/// the same operation. TODANA_INVALID: the operation differs, or the other query is combined.
#[unsafe(no_mangle)]
pub extern "C" fn todana_query_combine(
    query: *mut QueryHandle,
    operation: c_int,
    other: *mut QueryHandle,
) -> c_int {
    answer(|| {
        let operation = match operation {
            TODANA_UNION => SetOperation::Union,
            TODANA_INTERSECTION => SetOperation::Intersection,
            TODANA_DIFFERENCE => SetOperation::Difference,
            other => return Err(invalid(format!("there is no set operation {other}"))),
        };
        let added = find(other)?;
        let open_query = QUERIES.find(query.addr(), "query")?;
        let mut open_query = open_query.lock();
        let is_combined = open_query.queries.len() > 1;
        if added.queries.len() > 1 || is_combined && open_query.operation != operation {
            return Err(invalid("a combined query can only be combined further by the same operation"));
        }
        open_query.operation = operation;
        open_query.queries.extend(added.queries);
        Ok(TODANA_OK)
    })
}

/// Returns the number of rows that a query finds. TODANA_BUSY: this thread has an open transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_query_count(
    db: *mut DatabaseHandle,
    query: *mut QueryHandle,
    count: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let (count, OpenQuery { queries, operation }) = (count.must()?, find(query)?);
        count.put(with_db(db, |db| Table::new(db)?.count_set(&queries, operation))?);
        Ok(TODANA_OK)
    })
}

/// Removes the rows that a query finds. Stores their number in `removed`, unless it is NULL.
/// TODANA_BUSY: this thread has an open transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_query_remove(
    db: *mut DatabaseHandle,
    query: *mut QueryHandle,
    removed: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let OpenQuery { queries, operation } = find(query)?;
        removed.put(with_db(db, |db| Table::new(db)?.remove_matching_set(&queries, operation))?);
        Ok(TODANA_OK)
    })
}

/// Returns the places in a text where words of the conditions on its column occur. The caller frees
/// them. `options` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn todana_query_snippets(
    query: *mut QueryHandle,
    column: Bytes,
    text: Bytes,
    options: Option<&SnippetOptions>,
    snippets: Option<&mut MaybeUninit<BytesList>>,
) -> c_int {
    answer(|| {
        let (snippets, OpenQuery { queries, .. }) = (snippets.must()?, find(query)?);
        let style = options.map_or_else(|| Ok(SnippetStyle::default()), SnippetOptions::style)?;
        let text = String::from_utf8_lossy(text.as_slice()?);
        let found = queries[0].snippets(column.as_slice()?, &text, &style);
        snippets.put(BytesList::give(&found.into_iter().map(Some).collect::<Vec<_>>())?);
        Ok(TODANA_OK)
    })
}

/// Starts a search. If `only_keys` is not 0, the rows have no columns. Rows that change during the
/// search may be found in their old or new state. Changes of the query do not affect the search.
/// The database cannot be closed before the search. TODANA_BUSY: this thread has an open
/// transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_search_open(
    db: *mut DatabaseHandle,
    query: *mut QueryHandle,
    only_keys: c_int,
    search: Option<&mut MaybeUninit<*mut SearchHandle>>,
) -> c_int {
    answer(|| {
        let (place, OpenQuery { queries, operation }) = (search.must()?, find(query)?);
        let started = open_database::with(db, |open_database| {
            expect_no_transaction(open_database)?;
            open_database.with_db(|db| {
                let search = Table::new(db)?.search_owned(&queries, operation, only_keys != 0)?;
                Ok(OpenSearch { search, _of: CloseBlocker::new(open_database) })
            })
        })?;
        let number = new_number();
        SEARCHES.insert(number, Arc::new(Mutex::new(started)));
        place.put(shown(number));
        Ok(TODANA_OK)
    })
}

/// Returns the next row: its key, and its columns as todana_table_get() does, unless `columns` is
/// NULL. The caller frees both. TODANA_NONE: there are no more rows.
#[unsafe(no_mangle)]
pub extern "C" fn todana_search_next(
    search: *mut SearchHandle,
    key: Option<&mut MaybeUninit<Bytes>>,
    columns: Option<&mut MaybeUninit<BytesList>>,
) -> c_int {
    answer(|| {
        let key = key.must()?;
        let searching = SEARCHES.find(search.addr(), "search")?;
        let Some(found) = searching.lock().search.next() else {
            key.put(Bytes::NONE);
            if columns.is_some() {
                columns.put(BytesList::NONE);
            }
            return Ok(TODANA_NONE);
        };
        let (name, row) = found?;
        if columns.is_some() {
            columns.put(given(&row)?);
        }
        key.put(Bytes::give(&name)?);
        Ok(TODANA_OK)
    })
}

/// Ends a search and returns the description of its plan in Tokyo Cabinet's words. The caller frees
/// it.
#[unsafe(no_mangle)]
pub extern "C" fn todana_search_hint(
    search: *mut SearchHandle,
    hint: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    answer(|| {
        let hint = hint.must()?;
        let searching = SEARCHES.find(search.addr(), "search")?;
        let text = searching.lock().search.hint();
        hint.put(Bytes::give(text.as_bytes())?);
        Ok(TODANA_OK)
    })
}

/// Closes a search. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn todana_search_close(search: *mut SearchHandle) -> c_int {
    answer(|| {
        if !search.is_null() {
            SEARCHES.remove(search.addr(), "search")?;
        }
        Ok(TODANA_OK)
    })
}

/// Changes the first of the queries.
fn change(query: *mut QueryHandle, change: impl FnOnce(&mut Query) -> Result<()>) -> c_int {
    answer(|| {
        let open_query = QUERIES.find(query.addr(), "query")?;
        change(&mut open_query.lock().queries[0])?;
        Ok(TODANA_OK)
    })
}

fn find(query: *mut QueryHandle) -> Result<OpenQuery> {
    Ok(QUERIES.find(query.addr(), "query")?.lock().clone())
}

/// Runs `run` with a database, unless this thread has an open transaction.
fn with_db<T>(db: *mut DatabaseHandle, run: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
    open_database::with(db, |open_database| {
        expect_no_transaction(open_database)?;
        open_database.with_db(run)
    })
}

impl SnippetOptions {
    fn style(&self) -> Result<SnippetStyle> {
        let mut style = SnippetStyle { leads: self.leads != 0, ..SnippetStyle::default() };
        if self.width > 0 {
            style.width = self.width;
        }
        if self.snippets_max > 0 {
            style.snippets_max = self.snippets_max;
        }
        for (text, mark) in [(&self.before, &mut style.before), (&self.after, &mut style.after)] {
            if let Some(text) = text.as_str()? {
                text.clone_into(mark);
            }
        }
        Ok(style)
    }
}
