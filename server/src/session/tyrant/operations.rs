//! Operations on the served database, and facts about it, for the commands of all modules.

use super::counters::TyrantCounters;
use crate::databases::PRIMARY_DATABASE;
use crate::execution::Executor;
use crate::session::worker_context::WorkerContext;
use todana::Records;
use todana_core::{Delete, Get, Modify, Operation, Store, StoreMode, ValueChange, Visitor};
use todana_protocol::tyrant::TyrantPutMode;

/// Returns the operation that reads a record.
#[inline]
pub(super) fn get(key: &[u8]) -> Operation<'_> {
    Operation::Get(Get { key, ..Get::default() })
}

/// Reads a record whose value is needed only in shared form, or only its length.
pub(super) fn get_shared(key: &[u8]) -> Operation<'_> {
    Operation::Get(Get { key, reads_shared: true, ..Get::default() })
}

/// Returns the operation that stores a record. An appended value keeps the attributes of the old
/// record.
#[inline]
pub(super) fn put<'a>(mode: TyrantPutMode, key: &'a [u8], value: &'a [u8]) -> Operation<'a> {
    let store = |mode| Operation::Store(Store { key, value, mode, ..Store::default() });
    match mode {
        TyrantPutMode::Put | TyrantPutMode::NoReply => store(StoreMode::Set),
        TyrantPutMode::Keep => store(StoreMode::Add),
        TyrantPutMode::Cat => {
            Operation::Modify(Modify { key, ttl: None, change: ValueChange::Append(value) })
        }
    }
}

/// Returns the operation that removes a record.
#[inline]
pub(super) fn out(key: &[u8]) -> Operation<'_> {
    Operation::Delete(Delete { key, ..Delete::default() })
}

/// Returns true if the database is a table.
#[inline]
pub(super) fn is_table(context: &WorkerContext) -> bool {
    context.shared.databases.primary().name.kind.is_table()
}

#[inline]
pub(super) fn counters(context: &WorkerContext) -> &TyrantCounters {
    &context.shared.observation.workers[context.worker].tyrant
}

/// Runs a visitor on a record. Returns false if that fails.
pub(super) fn visit(context: &WorkerContext, key: &[u8], visitor: &mut dyn Visitor) -> bool {
    context.executor.local(PRIMARY_DATABASE).is_some_and(|local| local.visit(key, visitor).is_ok())
}

/// Returns true if clients may list keys.
pub(super) fn may_list(context: &WorkerContext) -> bool {
    context.shared.options.limits.dump_allowed
}
