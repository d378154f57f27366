//! Executes bulk calls, which concern several records: one after the other or, if the call is
//! atomic, all or none.

use super::answer_memory::{AnswerMemoryError, CollectedAnswer};
use super::answers::{CallAnswer, CallResult, failure, refused};
use super::call_context::{CallContext, local};
use super::session::KyotoSession;
use crate::execution::{Completion, OPERATIONS_MAX};
use crate::session::pending_replies::PendingReplies;
use crate::session::worker_context::WorkerContext;
use todana::Records;
use todana::kyoto::{KyotoRecords, ttl_of};
use todana_core::{Delete, Get, Operation, Reply, Store};
use todana_protocol::kyoto::{AnswerStatus, CallFailure, DatabaseError, Procedure, ProcedureCall};

/// The failure of a call whose operations would need too much memory until their replies arrive.
const TOO_MANY_RECORDS: CallFailure<'static> = CallFailure::Detailed {
    status: AnswerStatus::InternalError,
    error: DatabaseError::SystemError,
    detail: "more than 10000 records in one call",
};

/// The result of one record of a bulk call.
type RecordResult<T> = Result<T, CallFailure<'static>>;

/// The records that a bulk call works on.
trait BulkRecords {
    fn set(&mut self, key: &[u8], value: &[u8], time: u64) -> RecordResult<()>;
    fn remove(&mut self, key: &[u8]) -> RecordResult<bool>;
    fn view(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> RecordResult<()>;
}

/// Records within a transaction of a database of this process.
impl<R: Records> BulkRecords for KyotoRecords<R> {
    fn set(&mut self, key: &[u8], value: &[u8], time: u64) -> RecordResult<()> {
        KyotoRecords::set(self, key, value, time).map_err(failure)
    }

    fn remove(&mut self, key: &[u8]) -> RecordResult<bool> {
        KyotoRecords::remove(self, key).map_err(failure)
    }

    fn view(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> RecordResult<()> {
        KyotoRecords::view(self, key, &mut |value, _| see(value)).map(drop).map_err(failure)
    }
}

/// Records that are read and written through the executor. If replies are pending, the first pass
/// executes all operations of the call, and its results do not count. Once the replies have
/// arrived, a second pass takes them.
struct ExecutedRecords<'e> {
    pending: &'e mut PendingReplies,
    context: &'e mut WorkerContext,
    database: usize,
    is_persistent: bool,
}

impl ExecutedRecords<'_> {
    fn execute<T: Default>(
        &mut self,
        operation: &Operation<'_>,
        mut read: impl FnMut(Reply<'_>) -> RecordResult<T>,
    ) -> RecordResult<T> {
        let mut result = Ok(T::default());
        self.pending.execute(self.context, self.database, operation, &mut |reply| result = read(reply));
        result
    }
}

impl BulkRecords for ExecutedRecords<'_> {
    fn set(&mut self, key: &[u8], value: &[u8], time: u64) -> RecordResult<()> {
        let store = Store { key, value, ttl: ttl_of(time, self.is_persistent), ..Store::default() };
        self.execute(&Operation::Store(store), |reply| match reply {
            Reply::Stored(_) => Ok(()),
            other => Err(refused(&other)),
        })
    }

    fn remove(&mut self, key: &[u8]) -> RecordResult<bool> {
        self.execute(&Operation::Delete(Delete { key, ..Delete::default() }), |reply| match reply {
            Reply::Deleted => Ok(true),
            Reply::NotFound => Ok(false),
            other => Err(refused(&other)),
        })
    }

    fn view(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> RecordResult<()> {
        self.execute(&Operation::Get(Get { key, ..Get::default() }), |reply| match reply {
            Reply::Hit(hit) => {
                see(hit.record.value);
                Ok(())
            }
            Reply::Miss => Ok(()),
            other => Err(refused(&other)),
        })
    }
}

/// The result of a bulk call.
enum BulkResult {
    Stored,
    Removed(u64),
    Found(CollectedAnswer),
}

impl CallContext {
    /// Executes a bulk call.
    pub(super) fn bulk_call(
        &self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        procedure: Procedure,
        call: &ProcedureCall<'_>,
        answer: &mut CallAnswer<'_>,
    ) -> Result<Completion, CallFailure<'static>> {
        let is_remote = self.database(call.target()).is_ok_and(|database| self.is_remote(database));
        if is_remote && call.records().nth(OPERATIONS_MAX).is_some() {
            return Err(TOO_MANY_RECORDS);
        }
        let result = self.database(call.target()).and_then(|database| {
            let is_persistent = self.is_persistent(database);
            if call.flag(b"atomic") {
                let local = local(context, database)?;
                let transaction = local.begin().map_err(failure)?;
                let result =
                    self.go_through(procedure, call, &mut KyotoRecords::new(&transaction, is_persistent))?;
                local.commit(transaction).map_err(failure)?;
                return Ok(result);
            }
            let pending = &mut session.pending;
            let mut records = ExecutedRecords { pending, context, database, is_persistent };
            self.go_through(procedure, call, &mut records)
        });
        if let Some(ticket) = session.pending.missing() {
            return Ok(Completion::Pending(ticket));
        }
        self.answer_bulk(procedure, call, result, answer)?;
        Ok(Completion::Done)
    }

    /// Stores, removes or reads the records of a call.
    fn go_through(
        &self,
        procedure: Procedure,
        call: &ProcedureCall<'_>,
        records: &mut dyn BulkRecords,
    ) -> RecordResult<BulkResult> {
        match procedure {
            Procedure::SetBulk => {
                let time = self.time(call);
                call.records().try_for_each(|(key, value)| records.set(key, value, time))?;
                Ok(BulkResult::Stored)
            }
            Procedure::RemoveBulk => {
                let mut removed = 0;
                for (key, _) in call.records() {
                    removed += u64::from(records.remove(key)?);
                }
                Ok(BulkResult::Removed(removed))
            }
            _ => {
                let mut found = CollectedAnswer::new(&self.shared);
                for (key, _) in call.records() {
                    let mut pushed: Result<(), AnswerMemoryError> = Ok(());
                    records.view(key, &mut |value| pushed = found.push(b"_", key, value, None))?;
                    pushed?;
                }
                Ok(BulkResult::Found(found))
            }
        }
    }

    /// Counts and answers a bulk call.
    fn answer_bulk(
        &self,
        procedure: Procedure,
        call: &ProcedureCall<'_>,
        result: RecordResult<BulkResult>,
        answer: &mut CallAnswer<'_>,
    ) -> CallResult {
        let given = call.records().count() as u64;
        let hits = match &result {
            Ok(BulkResult::Stored) => given,
            Ok(BulkResult::Removed(removed)) => *removed,
            Ok(BulkResult::Found(found)) => found.len() as u64,
            Err(_) => 0,
        };
        let counters = self.counters();
        let (count, misses) = match procedure {
            Procedure::SetBulk => (&counters.set, &counters.set_misses),
            Procedure::RemoveBulk => (&counters.remove, &counters.remove_misses),
            _ => (&counters.get, &counters.get_misses),
        };
        count.add(given);
        misses.add(given - hits);
        let mut number = itoa::Buffer::new();
        let number = number.format(hits).as_bytes();
        if let BulkResult::Found(mut found) = result? {
            found.push(b"", b"num", number, None)?;
            answer.done_with_many(found);
        } else {
            answer.done(&[("num", number)]);
        }
        Ok(())
    }
}
