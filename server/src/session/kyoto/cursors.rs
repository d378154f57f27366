//! Executes calls that use a cursor. The library defines how cursors move (`KyotoCursor`);
//! `cursor_table` limits their number.

use super::answers::{CallAnswer, CallResult, NO_PERMISSION, NO_RECORD, failure};
use super::call_context::{CallContext, local};
use super::procedures::with_time;
use super::session::KyotoSession;
use crate::execution::LocalDatabase;
use crate::session::worker_context::WorkerContext;
use todana::Records;
use todana::kyoto::{CursorEntry, KyotoCursor};
use todana_core::Result as Outcome;
use todana_protocol::kyoto::{CallFailure, DatabaseError, Procedure, ProcedureCall};

const NOT_HERE: CallFailure<'static> = CallFailure::Database(DatabaseError::NotImplemented);

impl CallContext {
    /// Executes a call that uses a cursor.
    pub(super) fn cursor(
        &self,
        session: &mut KyotoSession,
        context: &WorkerContext,
        procedure: Procedure,
        call: &ProcedureCall<'_>,
        answer: &mut CallAnswer<'_>,
    ) -> CallResult {
        let number = call.cursor().ok_or(CallFailure::NoSuchCursor)?;
        if procedure == Procedure::CursorDelete {
            self.counters().misc.add(1);
            #[cfg(feature = "cassandra")]
            if session.cluster_cursors.remove(number) {
                answer.done(&[]);
                return Ok(());
            }
            session.cursors.remove(number).ok_or(CallFailure::NoSuchProcedure(b"cur_delete"))?;
            answer.done(&[]);
            return Ok(());
        }
        if !self.shared.options.limits.dump_allowed {
            return Err(NO_PERMISSION);
        }
        if !session.cursors.contains(number) {
            let database = self.database(call.target()).map_err(|_| CallFailure::NoSuchCursor)?;
            let local = local(context, database)?;
            session.cursors.insert(number, KyotoCursor::new(local.clone(), &local.served().name));
        }
        let outcome = session.cursors.with(number, |cursor| self.at_cursor(cursor, procedure, call, answer));
        outcome.ok_or(CallFailure::NoSuchCursor)?
    }

    /// Executes a call that uses an existing cursor. The cursor stays in its database, even if the
    /// call names another one.
    fn at_cursor(
        &self,
        cursor: &mut KyotoCursor<LocalDatabase>,
        procedure: Procedure,
        call: &ProcedureCall<'_>,
        answer: &mut CallAnswer<'_>,
    ) -> CallResult {
        match procedure {
            Procedure::CursorJump => {
                self.counters().misc.add(1);
                let outcome = match call.optional(b"key") {
                    Some(key) => cursor.jump(key),
                    None => cursor.first(),
                };
                at_record(outcome)?;
                answer.done(&[]);
            }
            Procedure::CursorJumpBack | Procedure::CursorStepBack => {
                self.counters().misc.add(1);
                if !cursor.records().is_ordered() {
                    return Err(NOT_HERE);
                }
                let outcome = match call.optional(b"key") {
                    _ if procedure == Procedure::CursorStepBack => cursor.step_back(),
                    Some(key) => cursor.jump_back(key),
                    None => cursor.last(),
                };
                at_record(outcome)?;
                answer.done(&[]);
            }
            Procedure::CursorStep => {
                self.counters().misc.add(1);
                at_record(cursor.step())?;
                answer.done(&[]);
            }
            Procedure::CursorSetValue => self.set_value(cursor, call, answer)?,
            Procedure::CursorRemove => {
                self.counters().remove.add(1);
                let removed = cursor.take();
                if !matches!(removed, Ok(Some(_))) {
                    self.counters().remove_misses.add(1);
                }
                removed.map_err(failure)?.ok_or(NO_RECORD)?;
                answer.done(&[]);
            }
            Procedure::CursorSeize => {
                self.counters().get.add(1);
                let taken = cursor.take();
                if !matches!(taken, Ok(Some(_))) {
                    self.counters().get_misses.add(1);
                }
                answer_entry(&taken.map_err(failure)?.ok_or(NO_RECORD)?, answer);
            }
            _ => self.get_entry(cursor, procedure, call, answer)?,
        }
        Ok(())
    }

    fn set_value(
        &self,
        cursor: &mut KyotoCursor<LocalDatabase>,
        call: &ProcedureCall<'_>,
        answer: &mut CallAnswer<'_>,
    ) -> CallResult {
        let value = call.required(b"value")?;
        self.counters().set.add(1);
        let stored = cursor.replace(value, self.time(call), call.flag(b"step"));
        if !matches!(stored, Ok(true)) {
            self.counters().set_misses.add(1);
        }
        at_record(stored)?;
        answer.done(&[]);
        Ok(())
    }

    /// Executes `cur_get_key`, `cur_get_value` and `cur_get`.
    fn get_entry(
        &self,
        cursor: &mut KyotoCursor<LocalDatabase>,
        procedure: Procedure,
        call: &ProcedureCall<'_>,
        answer: &mut CallAnswer<'_>,
    ) -> CallResult {
        self.counters().get.add(1);
        let found = cursor.read(call.flag(b"step"));
        if !matches!(found, Ok(Some(_))) {
            self.counters().get_misses.add(1);
        }
        let entry = found.map_err(failure)?.ok_or(NO_RECORD)?;
        match procedure {
            Procedure::CursorGetKey => answer.done(&[("key", &entry.key)]),
            Procedure::CursorGetValue => answer.done(&[("value", &entry.value)]),
            _ => answer_entry(&entry, answer),
        }
        Ok(())
    }
}

fn at_record(outcome: Outcome<bool>) -> CallResult {
    if outcome.map_err(failure)? { Ok(()) } else { Err(NO_RECORD) }
}

fn answer_entry(entry: &CursorEntry, answer: &mut CallAnswer<'_>) {
    with_time(entry.time, "value", &entry.value, |pairs| {
        let mut all = vec![("key", &entry.key[..])];
        all.extend_from_slice(pairs);
        answer.done(&all);
    });
}
