//! Commands on a table: values are rows of columns, the empty key means a new number, and the
//! record of the index definitions is hidden.

use super::background_call::{TyrantAction, TyrantTask};
use super::operations::{counters, may_list, visit};
use super::session_state::TyrantSession;
use crate::databases::PRIMARY_DATABASE;
use crate::execution::Executor;
use crate::session::NextAction;
use crate::session::worker_context::WorkerContext;
use crate::transport::output::ConnectionOutput;
use std::borrow::Cow;
use todana::Database;
use todana::table::{
    ColumnSumVisitor, IndexChange, IndexVisitor, Row, RowPutMode, RowVisitor, new_row_number,
};
use todana::tyrant::TableSearch;
use todana_core::IndexedEngine;
use todana_protocol::tyrant::{FieldBuffer, FieldList, TyrantPutMode, TyrantRequest, reply};

impl TyrantSession {
    /// Executes a command whose effect on a table differs from that on other databases. Returns
    /// false for other commands.
    pub(super) fn execute_on_table(
        &mut self,
        context: &mut WorkerContext,
        request: &TyrantRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> bool {
        match *request {
            TyrantRequest::Put { mode, key, value } => {
                let is_stored = put_value(context, mode, key, value);
                counters(context).put_misses.add(u64::from(!is_stored));
                if mode != TyrantPutMode::NoReply {
                    reply::put_status(is_stored, output);
                }
            }
            TyrantRequest::AddInt { key, delta } => match add(context, key, f64::from(delta)) {
                Some(sum) => reply::put_integer(sum as i32, output),
                None => reply::put_status(false, output),
            },
            TyrantRequest::AddDouble { key, delta } => match add(context, key, delta) {
                Some(sum) => reply::put_real(sum, output),
                None => reply::put_status(false, output),
            },
            TyrantRequest::Get { key: b"" }
            | TyrantRequest::VSiz { key: b"" }
            | TyrantRequest::Out { key: b"" }
            | TyrantRequest::PutShl { key: b"", .. } => reply::put_status(false, output),
            _ => return false,
        }
        true
    }

    /// Executes a function of `misc` that differs on tables. Returns `None` for other functions.
    pub(super) fn misc_on_table(
        &mut self,
        context: &mut WorkerContext,
        name: &[u8],
        arguments: FieldList<'_>,
        output: &mut ConnectionOutput,
    ) -> Option<NextAction> {
        let first = arguments.get(0);
        let done = match (name, first) {
            // An empty key ends the original server.
            (b"put" | b"putkeep" | b"putcat" | b"get" | b"out" | b"getpart" | b"iterinit", Some(b"")) => {
                false
            }
            (b"put", Some(key)) => put_columns(context, RowPutMode::Put, key, arguments),
            (b"putkeep", Some(key)) => put_columns(context, RowPutMode::Keep, key, arguments),
            (b"putcat", Some(key)) => put_columns(context, RowPutMode::AddMissing, key, arguments),
            (b"putlist", _) => {
                let (mut pairs, mut is_done) = (arguments.iter(), true);
                while let (Some(key), Some(value)) = (pairs.next(), pairs.next()) {
                    let row = Row::from_bytes(value).ok().filter(|_| !key.is_empty());
                    is_done &= row.is_some_and(|row| put_row(context, RowPutMode::Put, key, &row));
                }
                is_done
            }
            (b"outlist" | b"getlist", _) if arguments.iter().any(<[u8]>::is_empty) => false,
            (b"get", Some(key)) => {
                let mut fields = None;
                let database = &context.shared.databases.primary().database;
                let now = database.now();
                let _ = database.peek(key, &mut |record| {
                    if record.attributes.expiry.is_live(now)
                        && let Ok(row) = Row::from_bytes(record.value)
                    {
                        fields = Some(FieldBuffer::from_iter(
                            row.columns().flat_map(|(name, value)| [name, value]),
                        ));
                    }
                });
                reply::put_fields(fields.is_some(), &fields.unwrap_or_default().list(), output);
                return Some(NextAction::Continue);
            }
            (b"setindex", _) => set_indexes(context, arguments),
            (b"genuid", _) => {
                let number = new_number(context);
                let text = number.map(|number| number.to_string()).unwrap_or_default();
                let fields = FieldBuffer::from_iter([text.as_bytes()]);
                reply::put_fields(number.is_some(), &fields.list(), output);
                return Some(NextAction::Continue);
            }
            (b"search" | b"metasearch", _) => match TableSearch::parse(arguments) {
                Some(search) if may_list(context) => {
                    let action = TyrantAction::Search(Box::new(search));
                    return Some(self.perform(context, TyrantTask { action, is_misc: true }, output));
                }
                _ => false,
            },
            (b"range", _) => false,
            (b"iterinit", Some(key)) => {
                let database = &context.shared.databases.primary().database;
                if database.peek(key, &mut |_| ()).unwrap_or(false) {
                    return None;
                }
                false
            }
            _ => return None,
        };
        reply::put_fields(done, &FieldList::default(), output);
        Some(NextAction::Continue)
    }
}

fn row_mode(mode: TyrantPutMode) -> RowPutMode {
    match mode {
        TyrantPutMode::Put | TyrantPutMode::NoReply => RowPutMode::Put,
        TyrantPutMode::Keep => RowPutMode::Keep,
        TyrantPutMode::Cat => RowPutMode::AddMissing,
    }
}

/// Returns the key, or a new number for the empty one.
fn key_or_number<'k>(context: &WorkerContext, key: &'k [u8]) -> Option<Cow<'k, [u8]>> {
    if !key.is_empty() {
        return Some(Cow::Borrowed(key));
    }
    new_number(context).map(|number| Cow::Owned(number.to_string().into_bytes()))
}

fn new_number(context: &WorkerContext) -> Option<u64> {
    let indexed: &dyn IndexedEngine = context.shared.databases.primary().database.engine().indexed()?;
    new_row_number(indexed, context.executor.local(PRIMARY_DATABASE)?).ok()
}

/// Stores a row; under a new number if the key is empty. Returns true if it was stored.
fn put_row(context: &WorkerContext, mode: RowPutMode, key: &[u8], row: &Row) -> bool {
    let Some(key) = key_or_number(context, key) else { return false };
    let mut visitor = RowVisitor::new(mode, row);
    visit(context, &key, &mut visitor) && visitor.is_stored
}

/// Stores joined columns; under a new number if the key is empty. Returns true if they were stored.
pub(super) fn put_value(context: &WorkerContext, mode: TyrantPutMode, key: &[u8], value: &[u8]) -> bool {
    let row = Row::from_bytes(value).ok();
    row.is_some_and(|row| put_row(context, row_mode(mode), key, &row))
}

/// Stores the columns after the key. A last name without a value is dropped.
fn put_columns(context: &WorkerContext, mode: RowPutMode, key: &[u8], arguments: FieldList<'_>) -> bool {
    let (mut parts, mut columns) = (arguments.iter().skip(1), Vec::new());
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        columns.push((name, value));
    }
    Row::new(&columns).is_ok_and(|row| put_row(context, mode, key, &row))
}

/// Adds to the number of a row. Returns the sum.
pub(super) fn add(context: &WorkerContext, key: &[u8], delta: f64) -> Option<f64> {
    let key = key_or_number(context, key)?;
    let mut visitor = ColumnSumVisitor::new(delta);
    visit(context, &key, &mut visitor).then_some(visitor.sum).flatten()
}

/// Changes the indexes of pairs of a column and a type. Returns false if one is impossible; the
/// others are done.
fn set_indexes(context: &WorkerContext, arguments: FieldList<'_>) -> bool {
    let (mut pairs, mut is_done) = (arguments.iter(), true);
    while let (Some(column), Some(kind)) = (pairs.next(), pairs.next()) {
        is_done &= IndexChange::parse(kind).is_some_and(|change| {
            let mut visitor = IndexVisitor::new(column, change);
            visit(context, b"", &mut visitor) && visitor.is_done
        });
    }
    build_indexes(&context.shared.databases.primary().database);
    is_done
}

/// Builds new indexes if that is brief, so that the next search uses them. Larger ones are built in
/// the background.
fn build_indexes(database: &Database) {
    let Some(indexed) = database.engine().indexed() else { return };
    let status = database.status();
    let is_brief = status.records <= BRIEF_RECORDS && status.plain_bytes() <= BRIEF_BYTES;
    let mut steps = if is_brief { BRIEF_STEPS } else { 0 };
    while steps > 0 && indexed.indexes().iter().any(|index| !index.is_complete) {
        database.maintain();
        steps -= 1;
    }
}

/// The rows and bytes of a table whose indexes are built at once, and the steps that this may take.
const BRIEF_RECORDS: u64 = 1024;
const BRIEF_BYTES: u64 = 4 << 20;
const BRIEF_STEPS: usize = 64;
