//! Executes bulk requests of the binary protocol. Each record is applied as it arrives. If one
//! record fails, the records before it stay applied.

use super::answer_memory::put_found;
use super::call_context::CallContext;
use super::session::{BulkProgress, KyotoSession};
use crate::execution::Completion;
use crate::session::NextAction;
use crate::session::worker_context::WorkerContext;
use crate::transport::output::ConnectionOutput;
use todana::kyoto::{time_of, ttl_of};
use todana_core::{Delete, Get, Operation, Reply, Store};
use todana_protocol::ReplySink;
use todana_protocol::kyoto::{BulkOperation, BulkPiece, BulkRecord, binary, expiry};

/// A buffer with a larger capacity is freed after use.
const FOUND_KEPT: usize = 4 << 10;

impl CallContext {
    /// Applies a piece of a bulk request. Writes the answer after the last piece.
    pub(super) fn bulk_piece(
        &self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        piece: &BulkPiece<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        if let Some(record) = &piece.record
            && !session.bulk.has_failed
        {
            if self.is_read_only() && piece.operation != BulkOperation::Get {
                session.bulk.has_failed = true;
            } else if let Completion::Pending(_) = self.apply(session, context, piece.operation, record) {
                return NextAction::Wait;
            }
        }
        let progress = &mut session.bulk;
        if piece.record.is_some() {
            // In the answer, the number of hits precedes the records, so the records are kept until
            // the last one is known.
            progress.has_failed |= progress.found.len() > self.answer_max;
            if progress.has_failed {
                progress.found = Vec::new();
            }
        }
        if piece.remaining > 0 {
            return NextAction::Continue;
        }
        let BulkProgress { hits, has_failed, .. } = *progress;
        if has_failed {
            *progress = BulkProgress::default();
            if !piece.is_silent {
                binary::put_error(output);
            }
            return NextAction::Close;
        }
        if !piece.is_silent {
            binary::put_hits(piece.operation, hits, output);
            if progress.found.len() > FOUND_KEPT {
                put_found(&self.shared, std::mem::take(&mut progress.found), output);
            } else {
                output.put(&progress.found);
            }
        }
        progress.hits = 0;
        progress.found.clear();
        if progress.found.capacity() > FOUND_KEPT {
            progress.found = Vec::new();
        }
        NextAction::Continue
    }

    /// Stores, removes or reads a record.
    #[inline]
    fn apply(
        &self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        operation: BulkOperation,
        record: &BulkRecord<'_>,
    ) -> Completion {
        // Records for databases that do not exist are skipped.
        let database = usize::from(record.database);
        let Some(served) = self.shared.databases.get(database) else { return Completion::Done };
        let is_persistent = served.name.tuning.persistent;
        let (key, counters) = (record.key, self.counters());
        let (operation, count, misses) = match operation {
            BulkOperation::Set => {
                let ttl = ttl_of(expiry::resolve(Some(record.xt), self.now()), is_persistent);
                let store = Store { key, value: record.value, ttl, ..Store::default() };
                (Operation::Store(store), &counters.set, &counters.set_misses)
            }
            BulkOperation::Remove => {
                let delete = Operation::Delete(Delete { key, ..Delete::default() });
                (delete, &counters.remove, &counters.remove_misses)
            }
            BulkOperation::Get => {
                let get = Operation::Get(Get { key, ..Get::default() });
                (get, &counters.get, &counters.get_misses)
            }
        };
        let never = if is_persistent { expiry::PERSISTENT } else { expiry::NEVER as i64 };
        let BulkProgress { hits, found, has_failed } = &mut session.bulk;
        // Each record of a bulk request is waited for on its own.
        session.pending.execute_alone(context, database, &operation, &mut |reply| {
            count.add(1);
            match reply {
                Reply::Hit(hit) => {
                    let time = time_of(hit.record.attributes.expiry).filter(|_| !is_persistent);
                    let xt = time.map_or(never, |time| time as i64);
                    binary::put_record(&BulkRecord { value: hit.record.value, xt, ..*record }, found);
                    *hits += 1;
                }
                Reply::Stored(_) | Reply::Deleted => *hits += 1,
                Reply::Miss | Reply::NotFound => misses.add(1),
                _ => {
                    misses.add(1);
                    *has_failed = true;
                }
            }
        })
    }
}
