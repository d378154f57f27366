//! Tables: rows of named columns, and queries for rows by their columns.
//!
//! ```text
//! row            a row: names and values of columns
//! rows           visitors that change rows, and numbers for new rows
//! indexes        definitions of indexes
//! table          the table of a `Db`
//! operator       the operators of conditions, with Tokyo Cabinet's names
//! condition      a condition on a column
//! full_text      expressions of full-text conditions
//! query          conditions, order, limit
//! plan           the indexes that a query uses
//! posting        keys of rows by exact terms of indexes
//! candidates     rows that may match, in steps
//! long_texts     the order of texts that are longer than the terms of an index
//! sorted         results in an order that no index provides
//! searched_database  the table of a search, borrowed or kept open
//! search         the rows that match
//! set_operation  union, intersection and difference of queries
//! snippet        the places of words in a text
//! ```
//!
//! The rules of conditions are Tokyo Cabinet's. An index provides candidates, and a search checks
//! the row of each. A search does not lock the table: a row that changes meanwhile may be found in
//! its old or its new state, twice or not at all.
//!
//! Not here: the engine that stores rows and index entries ([`todana_engine::table`]).

mod candidates;
mod condition;
mod full_text;
mod indexes;
mod long_texts;
mod operator;
mod plan;
mod posting;
mod query;
mod row;
mod rows;
mod search;
mod searched_database;
mod set_operation;
mod snippet;
mod sorted;
#[expect(clippy::module_inception, reason = "the file is named after its type")]
mod table;

pub use condition::Condition;
pub(crate) use indexes::is_indexable_column;
pub use indexes::{IndexChange, IndexVisitor};
pub use operator::{ConditionOperator, ParsedOperator};
pub use query::{Query, QueryOrder};
pub use row::Row;
pub use rows::{
    ColumnSumVisitor, RowPutMode, RowVisitor, expect_row_key, new_row_number, new_row_number_by, store_row,
    visible_records,
};
pub(crate) use rows::{ROW_TERMS_MAX, is_indexable};
pub use search::{RowRemover, Search, SearchOptions};
pub use set_operation::{SetOperation, SetSearch};
pub use snippet::SnippetStyle;
pub use table::Table;
pub use todana_core::{ColumnIndex, IndexKind};
pub use todana_engine::table::are_definitions;
