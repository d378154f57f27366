//! Executes calls on records, and the few calls about the server.

use super::answers::{CallAnswer, CallResult, DUPLICATION, NO_PERMISSION, NO_RECORD, refused};
use super::call_context::CallContext;
use super::session::KyotoSession;
use crate::execution::Completion;
use crate::session::worker_context::WorkerContext;
use todana::kyoto::{IncrementOrigin, time_of, ttl_of};
use todana_core::{Delete, Get, Modify, Operation, Reply, Store, StoreMode, Ttl, ValueChange};
use todana_protocol::kyoto::{self, CallFailure, DatabaseError, Procedure, ProcedureCall, expiry, number};

const ILLOGICAL: CallFailure<'static> = CallFailure::Database(DatabaseError::LogicalInconsistency);

/// Passes the pairs that show a record and its time to a callback.
pub(super) fn with_time<T>(
    time: Option<u64>,
    name: &'static str,
    value: &[u8],
    use_pairs: impl FnOnce(&[(&str, &[u8])]) -> T,
) -> T {
    match time {
        None => use_pairs(&[(name, value)]),
        Some(time) => use_pairs(&[(name, value), ("xt", itoa::Buffer::new().format(time).as_bytes())]),
    }
}

/// Returns the number with which an increment creates a missing record, and true if it overwrites
/// an existing number.
fn origin<T: Into<IncrementOrigin<T>>>(asked: kyoto::IncrementOrigin<T>) -> (Option<T>, bool) {
    let origin = match asked {
        kyoto::IncrementOrigin::From(number) => number.into(),
        kyoto::IncrementOrigin::Try => IncrementOrigin::Try,
        kyoto::IncrementOrigin::Set => IncrementOrigin::Set,
    };
    origin.parts()
}

/// Returns true if a proxy can execute the procedure by requests to memcached's servers.
pub(super) fn is_for_any_server(procedure: Procedure) -> bool {
    matches!(
        procedure,
        Procedure::Get
            | Procedure::Set
            | Procedure::Add
            | Procedure::Replace
            | Procedure::Append
            | Procedure::Increment
            | Procedure::IncrementDouble
            | Procedure::Cas
            | Procedure::Remove
            | Procedure::Check
            | Procedure::Seize
            | Procedure::SetBulk
            | Procedure::RemoveBulk
            | Procedure::GetBulk
            | Procedure::Clear
            | Procedure::Void
            | Procedure::Echo
    )
}

/// Returns true if the procedure may change a record.
fn changes(procedure: Procedure) -> bool {
    matches!(
        procedure,
        Procedure::Set
            | Procedure::Add
            | Procedure::Replace
            | Procedure::Append
            | Procedure::Increment
            | Procedure::IncrementDouble
            | Procedure::Cas
            | Procedure::Remove
            | Procedure::Seize
            | Procedure::SetBulk
            | Procedure::RemoveBulk
            | Procedure::Clear
            | Procedure::CursorSetValue
            | Procedure::CursorRemove
            | Procedure::CursorSeize
    )
}

impl CallContext {
    /// Executes a call and writes its answer.
    pub(super) fn procedure(
        &self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        call: &ProcedureCall<'_>,
        pairs: &mut kyoto::AnswerPairs,
        answer: &mut CallAnswer<'_>,
    ) -> Completion {
        let ended = match call.procedure {
            None => Err(CallFailure::NoSuchProcedure(call.name)),
            Some(procedure) => self.try_procedure(session, context, procedure, call, pairs, answer),
        };
        ended.unwrap_or_else(|failure| {
            answer.failed(failure);
            Completion::Done
        })
    }

    fn try_procedure<'c>(
        &self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        procedure: Procedure,
        call: &ProcedureCall<'c>,
        pairs: &mut kyoto::AnswerPairs,
        answer: &mut CallAnswer<'_>,
    ) -> Result<Completion, CallFailure<'c>> {
        // A call that uses a cursor does not name its database. For such a call, the cursor's own
        // database refuses the change.
        let is_of_reader = || {
            call.cursor().is_none() && self.database(call.target()).is_ok_and(|number| self.is_reader(number))
        };
        if changes(procedure) && (self.is_read_only() || is_of_reader()) {
            return Err(NO_PERMISSION);
        }
        match procedure {
            Procedure::Get
            | Procedure::Set
            | Procedure::Add
            | Procedure::Replace
            | Procedure::Append
            | Procedure::Increment
            | Procedure::IncrementDouble
            | Procedure::Cas
            | Procedure::Remove
            | Procedure::Check
            | Procedure::Seize => return self.record_call(session, context, procedure, call, answer),
            Procedure::SetBulk | Procedure::RemoveBulk | Procedure::GetBulk => {
                return self.bulk_call(session, context, procedure, call, answer);
            }
            Procedure::Clear => return self.clear(session, context, call, answer),
            Procedure::Void => {
                answer.done(&[]);
            }
            Procedure::Echo => {
                pairs.clear();
                call.input.iter().for_each(|(name, value)| pairs.push(name, value));
                answer.done_with(pairs);
            }
            Procedure::Report => {
                self.report(pairs);
                answer.done_with(pairs);
            }
            Procedure::AnswerStatus => self.status(call, pairs, answer)?,
            Procedure::TuneReplication => self.tune_replication(call, answer)?,
            Procedure::UlogList => self.list_logs(pairs, answer)?,
            procedure => self.cursor(session, context, procedure, call, answer)?,
        }
        Ok(Completion::Done)
    }

    /// Returns the time to live that a call gives to the records that it stores.
    #[inline]
    pub(super) fn ttl(&self, database: usize, call: &ProcedureCall<'_>) -> Ttl {
        ttl_of(self.time(call), self.is_persistent(database))
    }

    /// Returns the time that a call gives to the records that it stores.
    #[inline]
    pub(super) fn time(&self, call: &ProcedureCall<'_>) -> u64 {
        expiry::resolve(call.xt(), self.now())
    }

    /// Executes a call on one record.
    fn record_call(
        &self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        procedure: Procedure,
        call: &ProcedureCall<'_>,
        answer: &mut CallAnswer<'_>,
    ) -> Result<Completion, CallFailure<'static>> {
        let database = self.database(call.target())?;
        let operation = self.operation(database, procedure, call)?;
        let mut ended = Ok(());
        let completion = session.pending.execute_alone(context, database, &operation, &mut |reply| {
            ended = self.answer_record(database, procedure, &reply, answer);
        });
        ended.map(|()| completion)
    }

    /// Returns the operation of a call on one record.
    fn operation<'c>(
        &self,
        database: usize,
        procedure: Procedure,
        call: &ProcedureCall<'c>,
    ) -> Result<Operation<'c>, CallFailure<'static>> {
        let key = call.required(b"key")?;
        let ttl = || self.ttl(database, call);
        let store = |mode| {
            let value = call.required(b"value")?;
            Ok(Operation::Store(Store { key, value, ttl: ttl(), mode, ..Store::default() }))
        };
        let modify = |change| Ok(Operation::Modify(Modify { key, ttl: Some(ttl()), change }));
        match procedure {
            Procedure::Set => store(StoreMode::Set),
            Procedure::Add => store(StoreMode::Add),
            Procedure::Replace => store(StoreMode::Replace),
            Procedure::Append => modify(ValueChange::Append(call.required(b"value")?)),
            Procedure::Increment => {
                let delta = number::integer(call.required(b"num")?);
                let (initial, overwrites) = origin(call.integer_origin());
                modify(ValueChange::AddInteger { delta, initial, overwrites })
            }
            Procedure::IncrementDouble => {
                let delta = number::real(call.required(b"num")?);
                let (initial, overwrites) = origin(call.real_origin());
                modify(ValueChange::AddReal { delta, initial, overwrites })
            }
            Procedure::Cas => {
                modify(ValueChange::Swap { old: call.optional(b"oval"), new: call.optional(b"nval") })
            }
            Procedure::Remove => Ok(Operation::Delete(Delete { key, ..Delete::default() })),
            Procedure::Seize => Ok(Operation::Modify(Modify { key, ttl: None, change: ValueChange::Take })),
            _ => Ok(Operation::Get(Get { key, ..Get::default() })),
        }
    }

    /// Counts a call on one record and writes its answer.
    fn answer_record(
        &self,
        database: usize,
        procedure: Procedure,
        reply: &Reply<'_>,
        answer: &mut CallAnswer<'_>,
    ) -> CallResult {
        let counters = self.counters();
        let (count, misses) = match procedure {
            Procedure::Get | Procedure::Check | Procedure::Seize => (&counters.get, &counters.get_misses),
            Procedure::Remove => (&counters.remove, &counters.remove_misses),
            _ => (&counters.set, &counters.set_misses),
        };
        count.add(1);
        let is_seize = procedure == Procedure::Seize;
        counters.remove.add(u64::from(is_seize));
        match reply {
            Reply::Hit(hit) => {
                let value = hit.record.value;
                let time = time_of(hit.record.attributes.expiry).filter(|_| !self.is_persistent(database));
                if procedure == Procedure::Check {
                    let mut len = itoa::Buffer::new();
                    with_time(time, "vsiz", len.format(value.len()).as_bytes(), |pairs| answer.done(pairs));
                } else {
                    with_time(time, "value", value, |pairs| answer.done(pairs));
                }
            }
            Reply::Stored(_) | Reply::Deleted | Reply::Done => answer.done(&[]),
            Reply::Integer(sum) => answer.done(&[("num", sum.to_string().as_bytes())]),
            Reply::Real(sum) => answer.done(&[("num", number::format_real(*sum).as_bytes())]),
            other => {
                misses.add(1);
                counters.remove_misses.add(u64::from(is_seize));
                return Err(match procedure {
                    _ if matches!(other, Reply::Refused(_) | Reply::Faulty(_)) => refused(other),
                    Procedure::Add => DUPLICATION,
                    Procedure::Cas => CallFailure::STATUS_CONFLICT,
                    Procedure::Increment | Procedure::IncrementDouble => ILLOGICAL,
                    _ => NO_RECORD,
                });
            }
        }
        Ok(())
    }

    fn clear(
        &self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        call: &ProcedureCall<'_>,
        answer: &mut CallAnswer<'_>,
    ) -> Result<Completion, CallFailure<'static>> {
        let database = self.database(call.target())?;
        if !self.shared.options.limits.flush_allowed {
            self.counters().misc.add(1);
            return Err(NO_PERMISSION);
        }
        let mut ended = Ok(());
        let flush = Operation::Flush { at: Ttl::Never };
        let completion = session.pending.execute(context, database, &flush, &mut |reply| {
            self.counters().misc.add(1);
            match reply {
                Reply::Done => answer.done(&[]),
                other => ended = Err(refused(&other)),
            }
        });
        ended.map(|()| completion)
    }
}
