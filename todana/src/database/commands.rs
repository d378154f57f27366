//! Executes operations on single records: runs the visitor of an operation, counts the outcome, and
//! builds the reply.

use super::Database;
use super::visits::VisitGuarantee;
use crate::arithmetic::ArithmeticVisitor;
use crate::counters::WorkerCounters;
use crate::delete::DeleteVisitor;
use crate::inspect::InspectVisitor;
use crate::modify::ModifyVisitor;
use crate::touch::TouchVisitor;
use crate::transaction::EngineView;
use todana_core::{
    Arithmetic, ArithmeticDirection, CommandSyntax, Delete, Error, ErrorKind, Inspect, Modify, Operation,
    RefusalReason, Reply, Touch, Ttl, UnixSeconds, ValueChange,
};

impl Database {
    /// Executes an operation on the engine or on the view of a transaction (`space`).
    pub(crate) fn run(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        command: &Operation<'_>,
        now: UnixSeconds,
        reply: &mut dyn FnMut(Reply<'_>),
    ) {
        match command {
            Operation::Get(get) => self.get(space, worker_counters, get, now, reply),
            Operation::Store(store) => reply(self.store(space, worker_counters, store, now)),
            Operation::RefusedStore(refused) => {
                let flags_len = if refused.flags != 0 { 4 } else { 0 };
                let class = self.classes.of(refused.key.len() + refused.value_len + flags_len);
                self.refuse_store(
                    space,
                    worker_counters,
                    (refused.key, class),
                    refused.discards,
                    refused.refusal,
                    now,
                );
                reply(Reply::Refused(refused.refusal));
            }
            Operation::Delete(delete) => reply(self.delete(space, worker_counters, delete, now)),
            Operation::Arithmetic(arithmetic) => {
                reply(self.arithmetic(space, worker_counters, arithmetic, now))
            }
            Operation::Touch(touch) => reply(self.touch(space, worker_counters, touch, now)),
            Operation::Modify(modify) => self.modify(space, worker_counters, modify, now, reply),
            Operation::Inspect(inspect) => reply(self.inspect(space, worker_counters, inspect, now)),
            Operation::Flush { at } => {
                worker_counters.counts.cmd_flush.one();
                reply(match self.plan_flush(space.origin, worker_counters, *at, now) {
                    Ok(point) => {
                        space.commit.set(point);
                        Reply::Done
                    }
                    Err(error) if error.kind() == ErrorKind::Invalid => {
                        Reply::Refused(RefusalReason::NoPlans)
                    }
                    Err(error) => Reply::Refused(refusal(&error)),
                });
            }
            Operation::Noop => reply(Reply::Done),
        }
    }

    /// Notes the times to live that an operation has set, for the sweep.
    #[inline]
    pub(super) fn note_ttls(&self, ttls: [Option<Ttl>; 2], now: UnixSeconds) {
        ttls.into_iter().flatten().for_each(|ttl| self.sweep.note_ttl(ttl, now));
    }

    pub(super) fn delete(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        delete: &Delete<'_>,
        now: UnixSeconds,
    ) -> Reply<'static> {
        if delete.syntax == CommandSyntax::Meta {
            worker_counters.counts.cmd_meta.one();
        }
        let mut visitor = DeleteVisitor { delete, now, versions: &self.versions, outcome: Reply::NotFound };
        let visited = self.visit(space, worker_counters, delete.key, now, &mut visitor);
        self.note_ttls([delete.ttl, None], now);
        let (outcome, class) = match visited {
            Ok(met) => (visitor.outcome, met.class),
            Err(error) => (Reply::Refused(refusal(&error)), 0),
        };
        match outcome {
            // If the record stays, either without its value or marked as stale, it does not count
            // as deleted.
            Reply::Deleted if delete.mark_stale || delete.drop_value => {}
            Reply::Deleted => {
                worker_counters.counts.delete_hits.one();
                worker_counters.class(class).delete_hits.one();
            }
            Reply::NotFound => worker_counters.counts.delete_misses.one(),
            _ => {}
        }
        outcome
    }

    fn arithmetic(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        arithmetic: &Arithmetic<'_>,
        now: UnixSeconds,
    ) -> Reply<'static> {
        if arithmetic.syntax == CommandSyntax::Meta {
            worker_counters.counts.cmd_meta.one();
        }
        let mut visitor = ArithmeticVisitor::new(arithmetic, now, &self.tracking, &self.versions);
        let visited = self.visit(space, worker_counters, arithmetic.key, now, &mut visitor);
        self.note_ttls([arithmetic.touch, arithmetic.vivify], now);
        let (outcome, class) = match visited {
            Ok(met) => (visitor.outcome, worker_counters.class(met.class)),
            Err(error) => {
                // As in memcached, a store that finds no memory is counted only for its size class.
                let digits = arithmetic.initial.checked_ilog10().map_or(1, |log| log as usize + 1);
                let class = worker_counters.class(self.classes.of(arithmetic.key.len() + digits));
                class.out_of_memory.add(u64::from(error.is_out_of_memory()));
                (Reply::Refused(refusal(&error)), class)
            }
        };
        let (hits, class_hits, misses) = match arithmetic.direction {
            ArithmeticDirection::Increment => {
                (&worker_counters.counts.incr_hits, &class.incr_hits, &worker_counters.counts.incr_misses)
            }
            ArithmeticDirection::Decrement => {
                (&worker_counters.counts.decr_hits, &class.decr_hits, &worker_counters.counts.decr_misses)
            }
        };
        match outcome {
            Reply::Number(number) => {
                // As in memcached, the creation of a missing record counts neither as a hit nor as
                // a miss.
                if number.created {
                    worker_counters.counts.total_items.one();
                } else {
                    hits.one();
                    class_hits.one();
                }
            }
            Reply::NotFound => misses.one(),
            _ => {}
        }
        outcome
    }

    fn touch(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        touch: &Touch<'_>,
        now: UnixSeconds,
    ) -> Reply<'static> {
        worker_counters.counts.cmd_touch.one();
        let mut visitor = TouchVisitor { touch, now, tracking: &self.tracking, found: false };
        let visited = self.visit(space, worker_counters, touch.key, now, &mut visitor);
        self.note_ttls([Some(touch.ttl), None], now);
        match visited {
            Ok(met) if visitor.found => {
                worker_counters.counts.touch_hits.one();
                worker_counters.class(met.class).touch_hits.one();
                Reply::Touched
            }
            Ok(_) => {
                worker_counters.counts.touch_misses.one();
                Reply::NotFound
            }
            Err(error) => Reply::Refused(refusal(&error)),
        }
    }

    fn modify(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        modify: &Modify<'_>,
        now: UnixSeconds,
        reply: &mut dyn FnMut(Reply<'_>),
    ) {
        let mut visitor = ModifyVisitor::new(modify, now);
        let visited = self.visit(space, worker_counters, modify.key, now, &mut visitor);
        self.note_ttls([modify.ttl, None], now);
        match visited {
            Ok(_) => visitor.answer(reply),
            Err(error) => reply(Reply::Refused(refusal(&error))),
        }
    }

    fn inspect(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        inspect: &Inspect<'_>,
        now: UnixSeconds,
    ) -> Reply<'static> {
        worker_counters.counts.cmd_meta.one();
        self.tracking.request(now);
        let mut visitor = InspectVisitor { inspect, now, versions: &self.versions, outcome: Reply::Miss };
        match self.visit_with_guarantee(
            self.for_side_effects(space),
            VisitGuarantee::Answer,
            worker_counters,
            inspect.key,
            now,
            &mut visitor,
        ) {
            Ok(_) => visitor.outcome,
            // The only effect that is missing is that the record keeps its version.
            Err(error) if error.is_read_only() => visitor.outcome,
            Err(error) => Reply::Refused(refusal(&error)),
        }
    }
}

/// Returns the reply to an operation whose visit has failed with this error.
pub(super) fn refusal(error: &Error) -> RefusalReason {
    if error.is_read_only() {
        return RefusalReason::ReadOnly;
    }
    if error.is_refused_write() {
        return RefusalReason::FilesUnwritable;
    }
    match error.kind() {
        ErrorKind::Invalid => RefusalReason::TooLarge,
        ErrorKind::Full => RefusalReason::OutOfMemory,
        ErrorKind::Busy => RefusalReason::Busy,
        ErrorKind::Corrupt => RefusalReason::Damaged,
        ErrorKind::Unavailable | ErrorKind::Closed => RefusalReason::Unavailable,
    }
}

/// Returns true if the operation can only remove records.
pub(crate) fn is_removal(command: &Operation<'_>) -> bool {
    match command {
        Operation::Delete(delete) => !delete.mark_stale && !delete.drop_value,
        Operation::Modify(modify) => {
            matches!(modify.change, ValueChange::Take | ValueChange::Swap { new: None, .. })
        }
        Operation::Flush { .. } => true,
        _ => false,
    }
}

/// Returns true if the purpose of the operation is a change. Reads may also have side effects on
/// records: a version that is shown, or a sliding expiry that is moved.
pub(crate) fn is_change(command: &Operation<'_>) -> bool {
    match command {
        Operation::Get(get) => get.touch.is_some() || get.vivify.is_some(),
        Operation::RefusedStore(refused) => refused.discards,
        Operation::Store(_)
        | Operation::Delete(_)
        | Operation::Arithmetic(_)
        | Operation::Touch(_)
        | Operation::Modify(_)
        | Operation::Flush { .. } => true,
        _ => false,
    }
}
