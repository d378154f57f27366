//! Commands about records.

use super::TyrantState;
use super::background_call::{TyrantAction, TyrantTask};
use super::cluster_task::ClusterTask;
use super::numbers::width as width_of;
use super::operations::{counters, get, get_shared, is_table, may_list, out, put, visit};
use super::replication::{replica_request, set_master};
use super::session_state::{TyrantSession, TyrantWorker};
use super::statistics::{size, statistics};
use crate::databases::PRIMARY_DATABASE;
use crate::execution::OPERATIONS_MAX;
use crate::session::announced_keys::AnnouncedKeys;
use crate::session::worker_context::WorkerContext;
use crate::session::{BATCH, NextAction};
use crate::transport::output::ConnectionOutput;
use todana::table::visible_records;
use todana::tyrant::{CutVisitor, ShiftVisitor, SumVisitor};
use todana::{DatabaseName, DatabaseTuning};
use todana_core::{Operation, Reply, Ttl};
use todana_protocol::ReplySink;
use todana_protocol::tyrant::{FieldList, TyrantForm, TyrantPutMode, TyrantRequest, reply};

impl TyrantSession {
    /// Executes a request. Its reply is not complete if the session waits afterwards.
    #[inline]
    pub(super) fn execute(
        &mut self,
        worker: &mut TyrantWorker,
        context: &mut WorkerContext,
        request: &TyrantRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let is_on_cluster = context.shared.databases.primary().is_on_cluster();
        if context.shared.is_proxy() && !is_for_any_server(request)
            || is_on_cluster && !is_for_cluster(request)
        {
            return refuse_elsewhere(request, output);
        }
        if is_on_cluster && let Some(task) = ClusterTask::of(request) {
            counters(context).of(request.command()).add(1);
            let task = TyrantTask { action: TyrantAction::OnCluster(task), is_misc: false };
            return self.perform(context, task, output);
        }
        if context.shared.options.protocols.tyrant.mask.forbids(request.command(), TyrantForm::Binary) {
            counters(context).of(request.command()).add(1);
            return refuse(context, request, output);
        }
        self.execute_allowed(worker, context, request, output)
    }

    /// Executes a request that is not forbidden.
    #[inline]
    pub(super) fn execute_allowed(
        &mut self,
        worker: &mut TyrantWorker,
        context: &mut WorkerContext,
        request: &TyrantRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        if is_table(context) && self.execute_on_table(context, request, output) {
            counters(context).of(request.command()).add(1);
            return NextAction::Continue;
        }
        let next = match *request {
            TyrantRequest::Get { key } => {
                let mut is_found = false;
                self.pending.execute(context, PRIMARY_DATABASE, &get_shared(key), &mut |reply| match reply {
                    Reply::Hit(hit) => {
                        is_found = true;
                        reply::put_value(hit.record.value, hit.record.shared, output);
                    }
                    _ => reply::put_status(false, output),
                });
                counters(context).get_misses.add(u64::from(!is_found && !self.pending.is_waiting()));
                NextAction::Continue
            }
            TyrantRequest::Put { mode, key, value } if width_of(context).is_some() => {
                let is_stored = self.store(context, mode, key, value);
                if mode != TyrantPutMode::NoReply && !self.pending.is_waiting() {
                    reply::put_status(is_stored, output);
                }
                counters(context).put_misses.add(u64::from(!is_stored && !self.pending.is_waiting()));
                NextAction::Continue
            }
            TyrantRequest::Put { mode, key, value } => {
                let mut is_stored = false;
                self.pending.execute(context, PRIMARY_DATABASE, &put(mode, key, value), &mut |reply| {
                    is_stored = matches!(reply, Reply::Stored(_));
                    if mode != TyrantPutMode::NoReply {
                        reply::put_status(is_stored, output);
                    }
                });
                counters(context).put_misses.add(u64::from(!is_stored && !self.pending.is_waiting()));
                NextAction::Continue
            }
            TyrantRequest::Out { key } => {
                let mut is_removed = false;
                self.pending.execute(context, PRIMARY_DATABASE, &out(key), &mut |reply| {
                    is_removed = matches!(reply, Reply::Deleted);
                    reply::put_status(is_removed, output);
                });
                counters(context).out_misses.add(u64::from(!is_removed && !self.pending.is_waiting()));
                NextAction::Continue
            }
            TyrantRequest::VSiz { key } => {
                let mut is_found = false;
                self.pending.execute(context, PRIMARY_DATABASE, &get_shared(key), &mut |reply| match reply {
                    Reply::Hit(hit) => {
                        is_found = true;
                        reply::put_len(hit.record.value.len(), output);
                    }
                    _ => reply::put_status(false, output),
                });
                counters(context).get_misses.add(u64::from(!is_found && !self.pending.is_waiting()));
                NextAction::Continue
            }
            TyrantRequest::MGet { keys }
                if (context.shared.is_proxy() || context.shared.databases.primary().is_on_cluster())
                    && keys.len() > OPERATIONS_MAX =>
            {
                reply::put_status(false, output);
                NextAction::Continue
            }
            TyrantRequest::MGet { keys } => self.get_several(worker, context, keys, output),
            _ => self.execute_other(worker, context, request, output),
        };
        if !self.pending.is_waiting() {
            counters(context).of(request.command()).add(1);
        }
        next
    }

    /// Executes a command that is not about one record, or rare.
    fn execute_other(
        &mut self,
        worker: &mut TyrantWorker,
        context: &mut WorkerContext,
        request: &TyrantRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let served = context.shared.databases.primary();
        match *request {
            TyrantRequest::PutShl { key, value, width } => {
                let mut shift = ShiftVisitor::new(value, width as usize);
                let len_max = width_of(context).unwrap_or(usize::MAX);
                let is_stored = visit(context, key, &mut CutVisitor::new(&mut shift, len_max));
                counters(context).put_misses.add(u64::from(!is_stored));
                reply::put_status(is_stored, output);
            }
            TyrantRequest::AddInt { key, delta } => {
                let mut visitor = SumVisitor::new(delta);
                match visit(context, key, &mut visitor).then(|| visitor.sum()).flatten() {
                    Some(sum) => reply::put_integer(sum, output),
                    None => reply::put_status(false, output),
                }
            }
            TyrantRequest::AddDouble { key, delta } => {
                let mut visitor = SumVisitor::new(delta);
                match visit(context, key, &mut visitor).then(|| visitor.sum()).flatten() {
                    Some(sum) => reply::put_real(sum, output),
                    None => reply::put_status(false, output),
                }
            }
            TyrantRequest::IterInit => {
                let is_done = may_list(context) && TyrantState::restart_iterator(&context.shared);
                reply::put_status(is_done, output);
            }
            TyrantRequest::IterNext if may_list(context) => {
                let task = TyrantTask { action: TyrantAction::NextRecord, is_misc: false };
                return self.perform(context, task, output);
            }
            TyrantRequest::FwmKeys { prefix, limit } if may_list(context) => {
                let limit = limit.map_or(usize::MAX, |limit| limit as usize);
                let action = TyrantAction::Prefix { prefix: prefix.to_vec(), limit };
                return self.perform(context, TyrantTask { action, is_misc: false }, output);
            }
            TyrantRequest::Sync => {
                let task = TyrantTask { action: TyrantAction::Sync, is_misc: false };
                return self.perform(context, task, output);
            }
            TyrantRequest::Vanish => {
                let is_done = self.vanish(context);
                if !self.pending.is_waiting() {
                    reply::put_status(is_done, output);
                }
            }
            TyrantRequest::Optimize { tuning } => reply::put_status(optimize(context, tuning), output),
            TyrantRequest::SetMst { host, port, since_micros, options } => {
                let is_set = set_master(&context.shared, host, port, since_micros, options);
                reply::put_status(is_set, output);
            }
            TyrantRequest::RNum => reply::put_number(visible_records(&served.database), output),
            TyrantRequest::Size => reply::put_number(size(served), output),
            TyrantRequest::Stat => {
                reply::put_value(statistics(&context.shared, false).as_bytes(), None, output);
            }
            TyrantRequest::Misc { name, arguments, .. } => {
                return self.misc(worker, context, name, arguments, output);
            }
            TyrantRequest::Repl { since_micros, server_id } => {
                self.follows = replica_request(&context.shared, since_micros, server_id);
                return NextAction::Close;
            }
            TyrantRequest::Copy { path } => return self.copy(context, path, output),
            TyrantRequest::Restore { path, since_micros, options } => {
                return self.restore(context, path, since_micros, options, output);
            }
            TyrantRequest::Ext { name, options, key, value } => {
                return self.call_script(context, [name, key, value], options, output);
            }
            _ => reply::put_status(false, output),
        }
        NextAction::Continue
    }

    /// `mget`: answers the records that are found, in the order of their keys.
    fn get_several(
        &mut self,
        worker: &mut TyrantWorker,
        context: &mut WorkerContext,
        keys: FieldList<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let put = |key: &[u8], value: &[u8], list: &mut Vec<u8>| reply::put_record(key, value, None, list);
        match self.find_several(worker, context, keys, put) {
            _ if self.pending.is_waiting() => return NextAction::Wait,
            None => reply::put_status(false, output),
            Some(found) => {
                output.put(&reply::count_head(found));
                output.put(&worker.list);
                counters(context).get_misses.add(keys.len() as u64 - u64::from(found));
            }
        }
        worker.shrink_list();
        NextAction::Continue
    }

    /// `misc getlist`: answers the keys and values of the records that are found.
    pub(super) fn get_list(
        &mut self,
        worker: &mut TyrantWorker,
        context: &mut WorkerContext,
        keys: FieldList<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let put = |key: &[u8], value: &[u8], list: &mut Vec<u8>| {
            for field in [key, value] {
                list.extend_from_slice(&(field.len() as u32).to_be_bytes());
                list.extend_from_slice(field);
            }
        };
        match self.find_several(worker, context, keys, put) {
            _ if self.pending.is_waiting() => return NextAction::Wait,
            None => reply::put_fields(false, &FieldList::default(), output),
            Some(found) => {
                output.put(&reply::count_head(2 * found));
                output.put(&worker.list);
            }
        }
        worker.shrink_list();
        NextAction::Continue
    }

    /// Reads several records into the worker's list with `put`. Returns their number; `None` if
    /// the list would be longer than a reply may be.
    fn find_several(
        &mut self,
        worker: &mut TyrantWorker,
        context: &mut WorkerContext,
        keys: FieldList<'_>,
        put: impl Fn(&[u8], &[u8], &mut Vec<u8>),
    ) -> Option<u32> {
        let TyrantWorker { list, list_len_max } = worker;
        list.clear();
        let (mut found, mut is_too_long) = (0, false);
        let mut ahead = keys.iter();
        for (index, key) in keys.iter().enumerate() {
            if index % BATCH == 0 {
                let keys: AnnouncedKeys<'_> = ahead.by_ref().take(BATCH).collect();
                keys.announce(&context.executor, PRIMARY_DATABASE);
            }
            if key.is_empty() && is_table(context) {
                continue;
            }
            self.pending.execute(context, PRIMARY_DATABASE, &get(key), &mut |reply| {
                let Reply::Hit(hit) = reply else { return };
                is_too_long |= list.len() + key.len() + hit.record.value.len() > *list_len_max;
                if !is_too_long {
                    found += 1;
                    put(key, hit.record.value, list);
                }
            });
            if is_too_long {
                return None;
            }
        }
        Some(found)
    }

    /// Removes all records. Returns false if that is forbidden or fails.
    pub(super) fn vanish(&mut self, context: &mut WorkerContext) -> bool {
        context.shared.options.limits.flush_allowed
            && self.change(context, &Operation::Flush { at: Ttl::Never })
    }
}

impl TyrantWorker {
    /// Releases the memory of a long list.
    fn shrink_list(&mut self) {
        if self.list.capacity() > LIST_KEPT_MAX {
            self.list = Vec::new();
        }
    }
}

/// Returns true if a proxy can execute a request by requests to memcached's servers.
fn is_for_any_server(request: &TyrantRequest<'_>) -> bool {
    matches!(
        request,
        TyrantRequest::Get { .. }
            | TyrantRequest::Put { .. }
            | TyrantRequest::Out { .. }
            | TyrantRequest::VSiz { .. }
            | TyrantRequest::MGet { .. }
            | TyrantRequest::Vanish
    )
}

/// Returns true if a database on a cluster can execute a request.
fn is_for_cluster(request: &TyrantRequest<'_>) -> bool {
    is_for_any_server(request)
        || ClusterTask::of(request).is_some()
        || matches!(request, TyrantRequest::Sync | TyrantRequest::Stat)
}

/// Answers a request that is not available through a proxy, or on a cluster.
#[cold]
fn refuse_elsewhere(request: &TyrantRequest<'_>, output: &mut ConnectionOutput) -> NextAction {
    match request {
        TyrantRequest::Repl { .. } => return NextAction::Close,
        TyrantRequest::Misc { .. } => reply::put_fields(false, &FieldList::default(), output),
        _ => reply::put_status(false, output),
    }
    NextAction::Continue
}

/// Answers a forbidden request. As in the original, lists and numbers are empty.
#[cold]
fn refuse(context: &WorkerContext, request: &TyrantRequest<'_>, output: &mut ConnectionOutput) -> NextAction {
    match request {
        TyrantRequest::Put { mode: TyrantPutMode::NoReply, .. } => {}
        TyrantRequest::Repl { .. } => return NextAction::Close,
        TyrantRequest::MGet { .. } | TyrantRequest::FwmKeys { .. } | TyrantRequest::Misc { .. } => {
            reply::put_fields(true, &FieldList::default(), output);
        }
        TyrantRequest::RNum | TyrantRequest::Size => reply::put_number(0, output),
        TyrantRequest::Stat => {
            reply::put_value(statistics(&context.shared, true).as_bytes(), None, output);
        }
        _ => reply::put_status(false, output),
    }
    NextAction::Continue
}

/// Returns true unless a tuning would change a limit of the database, because limits are fixed when
/// the database is opened. Other tuning has no effect here, and unknown words have none in the
/// original.
pub(super) fn optimize(context: &WorkerContext, tuning: &[u8]) -> bool {
    let name = &context.shared.databases.primary().name;
    let limits =
        |tuning: &DatabaseTuning| [tuning.records_max, tuning.bytes_max, tuning.width, tuning.size_max];
    let tuned = format!("{name}#{}", String::from_utf8_lossy(tuning));
    DatabaseName::parse_as_original(&tuned).is_ok_and(|tuned| limits(&tuned.tuning) == limits(&name.tuning))
}

/// The memory that a worker keeps for the next list.
const LIST_KEPT_MAX: usize = 256 << 10;
