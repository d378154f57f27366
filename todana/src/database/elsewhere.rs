//! Counts operations that were executed elsewhere, for example on a cluster.

use super::Database;
use crate::counters::WorkerCounters;
use todana_core::{ArithmeticDirection, CommandSyntax, Operation, RefusalReason, Reply};

/// The kind of an operation, as far as the counters distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedOperation {
    kind: CountedKind,
    is_meta: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountedKind {
    Get { touches: bool, is_silent: bool },
    Store { compares: bool },
    Delete { removes: bool },
    Arithmetic(ArithmeticDirection),
    Touch,
    Flush,
    Other,
}

impl CountedOperation {
    /// Returns the kind of an operation.
    pub fn of(operation: &Operation<'_>) -> CountedOperation {
        let (kind, syntax) = match operation {
            Operation::Get(get) => {
                let touches = get.counts_as_touch || get.touch.is_some();
                (CountedKind::Get { touches, is_silent: get.silent }, get.syntax)
            }
            Operation::Store(store) => {
                (CountedKind::Store { compares: store.compare.is_some() }, store.syntax)
            }
            Operation::Delete(delete) => {
                let removes = !delete.mark_stale && !delete.drop_value;
                (CountedKind::Delete { removes }, delete.syntax)
            }
            Operation::Arithmetic(arithmetic) => {
                (CountedKind::Arithmetic(arithmetic.direction), arithmetic.syntax)
            }
            Operation::Touch(_) => (CountedKind::Touch, CommandSyntax::Classic),
            Operation::Flush { .. } => (CountedKind::Flush, CommandSyntax::Classic),
            Operation::Inspect(_) => (CountedKind::Other, CommandSyntax::Meta),
            _ => (CountedKind::Other, CommandSyntax::Classic),
        };
        CountedOperation { kind, is_meta: syntax == CommandSyntax::Meta }
    }
}

impl Database {
    /// Counts an operation that was executed elsewhere, by its reply.
    pub fn count_elsewhere(worker_counters: &WorkerCounters, operation: CountedOperation, reply: &Reply<'_>) {
        let counts = &worker_counters.counts;
        counts.cmd_meta.add(u64::from(operation.is_meta));
        let is_refused = matches!(reply, Reply::Refused(_) | Reply::Faulty(_));
        match (operation.kind, reply) {
            (CountedKind::Get { touches: true, .. }, _) => {
                counts.cmd_touch.one();
                match reply {
                    Reply::Hit(_) => counts.touch_hits.one(),
                    _ => counts.touch_misses.one(),
                }
            }
            (CountedKind::Get { is_silent: true, .. }, _) => {}
            (CountedKind::Get { .. }, _) => {
                counts.cmd_get.one();
                match reply {
                    Reply::Hit(_) => counts.get_hits.one(),
                    Reply::Miss => counts.get_misses.one(),
                    _ => {}
                }
            }
            (CountedKind::Store { compares }, _) => {
                counts.cmd_set.add(u64::from(!is_refused));
                match reply {
                    Reply::Stored(_) => {
                        counts.total_items.one();
                        counts.cas_hits.add(u64::from(compares));
                    }
                    Reply::Exists => counts.cas_badval.one(),
                    Reply::NotFound => counts.cas_misses.one(),
                    Reply::Refused(RefusalReason::TooLarge) => counts.store_too_large.one(),
                    _ => {}
                }
            }
            (CountedKind::Delete { removes: true }, Reply::Deleted) => counts.delete_hits.one(),
            (CountedKind::Delete { .. }, Reply::NotFound) => counts.delete_misses.one(),
            (CountedKind::Arithmetic(direction), _) => {
                let (hits, misses) = match direction {
                    ArithmeticDirection::Increment => (&counts.incr_hits, &counts.incr_misses),
                    ArithmeticDirection::Decrement => (&counts.decr_hits, &counts.decr_misses),
                };
                match reply {
                    Reply::Number(number) if number.created => counts.total_items.one(),
                    Reply::Number(_) => hits.one(),
                    Reply::NotFound => misses.one(),
                    _ => {}
                }
            }
            (CountedKind::Touch, _) => {
                counts.cmd_touch.one();
                match reply {
                    Reply::Touched => counts.touch_hits.one(),
                    Reply::NotFound => counts.touch_misses.one(),
                    _ => {}
                }
            }
            (CountedKind::Flush, _) => counts.cmd_flush.one(),
            _ => {}
        }
    }
}
