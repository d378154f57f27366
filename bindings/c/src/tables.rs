//! Exports the rows of a table and its indexes.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_NONE, TODANA_OK, TODANA_OTHER, answer, invalid};
use crate::database::with_db;
use crate::open_database::{self, DatabaseHandle, RegisteredDatabase};
use crate::raw::{Bytes, BytesList, NumberList};
use crate::transactions;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use todana::table::{IndexKind, Row, RowPutMode, Table, expect_row_key, store_row};
use todana::{Error, ErrorKind, Records, Result};

/// No index.
pub const TODANA_INDEX_NONE: c_int = 0;
/// An index of texts: equality, beginnings, order by text.
pub const TODANA_INDEX_LEXICAL: c_int = 1;
/// An index of numbers: comparisons of numbers, order by number.
pub const TODANA_INDEX_DECIMAL: c_int = 2;
/// An index of words.
pub const TODANA_INDEX_TOKEN: c_int = 3;
/// An index for full-text conditions.
pub const TODANA_INDEX_QGRAM: c_int = 4;

/// Stores a row of a table. Replaces an existing row. `columns` are names and values in turn; if a
/// name occurs more than once, its last value counts. TODANA_INVALID: the database is not a table,
/// the key or a name is empty, or a name or value contains a NUL.
#[unsafe(no_mangle)]
pub extern "C" fn todana_table_put(db: *mut DatabaseHandle, key: Bytes, columns: BytesList) -> c_int {
    store(db, RowPutMode::Put, key, columns)
}

/// Stores a row if there is none. TODANA_OTHER: there is already a row.
#[unsafe(no_mangle)]
pub extern "C" fn todana_table_add(db: *mut DatabaseHandle, key: Bytes, columns: BytesList) -> c_int {
    store(db, RowPutMode::Keep, key, columns)
}

/// Adds the columns that an existing row lacks, or stores a new row.
#[unsafe(no_mangle)]
pub extern "C" fn todana_table_add_columns(db: *mut DatabaseHandle, key: Bytes, columns: BytesList) -> c_int {
    store(db, RowPutMode::AddMissing, key, columns)
}

/// Returns the columns of a row: names and values in turn, of which todana_column() finds one. The
/// caller frees them: todana_free(columns->items). TODANA_NONE: there is no row. A row is removed
/// by todana_remove().
#[unsafe(no_mangle)]
pub extern "C" fn todana_table_get(
    db: *mut DatabaseHandle,
    key: Bytes,
    columns: Option<&mut MaybeUninit<BytesList>>,
) -> c_int {
    answer(|| {
        let columns = columns.must()?;
        let row = open_database::with(db, |open_database| {
            expect_table(open_database)?;
            let key = key.as_slice()?;
            expect_row_key(key)?;
            Ok(open_database.get(key)?.as_deref().map(Row::stored))
        })?;
        columns.put(row.as_ref().map_or(Ok(BytesList::NONE), given)?);
        Ok(if row.is_some() { TODANA_OK } else { TODANA_NONE })
    })
}

/// Returns a number that was not returned for this table before, for the key of a new row.
/// TODANA_BUSY: this thread has an open transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_table_new_number(
    db: *mut DatabaseHandle,
    number: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let number = number.must()?;
        number.put(with_table(db, Table::new_number)?);
        Ok(TODANA_OK)
    })
}

/// Creates the index on a column (TODANA_INDEX_LEXICAL, ...), or drops it (TODANA_INDEX_NONE).
/// Replaces an index of another kind. The empty name means the key of the row. An index on existing
/// rows is built in the background. TODANA_INVALID: the table already has 64 indexes. TODANA_BUSY:
/// this thread has an open transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_table_set_index(db: *mut DatabaseHandle, column: Bytes, kind: c_int) -> c_int {
    answer(|| {
        let kind = match kind {
            TODANA_INDEX_NONE => None,
            TODANA_INDEX_LEXICAL => Some(IndexKind::Lexical),
            TODANA_INDEX_DECIMAL => Some(IndexKind::Decimal),
            TODANA_INDEX_TOKEN => Some(IndexKind::Token),
            TODANA_INDEX_QGRAM => Some(IndexKind::QGram),
            other => return Err(invalid(format!("there is no index of kind {other}"))),
        };
        with_table(db, |table| table.set_index(column.as_slice()?, kind)).map(|()| TODANA_OK)
    })
}

/// Returns the columns with an index, and the kinds of the indexes unless `kinds` is NULL. The
/// caller frees both lists.
#[unsafe(no_mangle)]
pub extern "C" fn todana_table_indexes(
    db: *mut DatabaseHandle,
    columns: Option<&mut MaybeUninit<BytesList>>,
    kinds: Option<&mut MaybeUninit<NumberList>>,
) -> c_int {
    answer(|| {
        let columns = columns.must()?;
        let indexes = with_table(db, |table| Ok(table.indexes()))?;
        if kinds.is_some() {
            let number = |kind| match kind {
                IndexKind::Lexical => TODANA_INDEX_LEXICAL,
                IndexKind::Decimal => TODANA_INDEX_DECIMAL,
                IndexKind::Token => TODANA_INDEX_TOKEN,
                IndexKind::QGram => TODANA_INDEX_QGRAM,
            };
            let all: Vec<usize> = indexes.iter().map(|index| number(index.kind) as usize).collect();
            kinds.put(NumberList::give(&all)?);
        }
        let names: Vec<_> = indexes.into_iter().map(|index| Some(index.column)).collect();
        columns.put(BytesList::give(&names)?);
        Ok(TODANA_OK)
    })
}

/// Completes the indexes that are being built in the background. Queries use complete indexes only.
#[unsafe(no_mangle)]
pub extern "C" fn todana_table_finish_indexes(db: *mut DatabaseHandle) -> c_int {
    answer(|| {
        with_table(db, |table| {
            table.finish_indexes();
            Ok(TODANA_OK)
        })
    })
}

fn store(db: *mut DatabaseHandle, mode: RowPutMode, key: Bytes, columns: BytesList) -> c_int {
    answer(|| {
        let (key, columns) = (key.as_slice()?, columns.as_slices()?);
        let pairs = columns.chunks_exact(2);
        if !pairs.remainder().is_empty() {
            return Err(invalid("row: its last column has no value"));
        }
        let row = Row::new(&pairs.map(|pair| (pair[0], pair[1])).collect::<Vec<_>>())?;
        let is_stored = open_database::with(db, |open_database| {
            expect_table(open_database)?;
            store_row(&**open_database, mode, key, &row)
        })?;
        Ok(if is_stored { TODANA_OK } else { TODANA_OTHER })
    })
}

fn expect_table(open_database: &RegisteredDatabase) -> Result<()> {
    open_database.with_base(|db| Table::new(db).map(drop))
}

/// Returns a copy of the columns that the caller frees.
pub(crate) fn given(row: &Row) -> Result<BytesList> {
    BytesList::give(&row.columns().flat_map(|(name, value)| [Some(name), Some(value)]).collect::<Vec<_>>())
}

/// Runs `run` with a table, which shows no changes of an open transaction.
fn with_table<T>(db: *mut DatabaseHandle, run: impl FnOnce(&Table) -> Result<T>) -> Result<T> {
    open_database::with(db, expect_no_transaction)?;
    with_db(db, |db| run(&Table::new(db)?))
}

/// Fails with `Busy` if this thread has an open transaction.
pub(crate) fn expect_no_transaction(open_database: &std::sync::Arc<RegisteredDatabase>) -> Result<()> {
    if transactions::of_this_thread(open_database.number).is_some() {
        let message = "queries, indexes and new numbers ignore transactions; commit or abort it first";
        return Err(Error::new(ErrorKind::Busy, message));
    }
    Ok(())
}
