//! Serves memcached's clients as Kyoto Tycoon's memcached plug-in does: in the first database,
//! without versions, and with client flags stored after the value or dropped.

use super::call_context::CallContext;
use super::dispatcher::KyotoWorker;
use super::plugin_flags::{FLAGS_LEN, parts};
use super::queues::PluginSession;
use super::report::facts;
use crate::databases::PRIMARY_DATABASE;
use crate::execution::Completion;
use crate::observation::counters::{WorkerCounter, WorkerCounters};
use crate::options::PluginOptions;
use crate::session::wake::WakeReason;
use crate::session::worker_context::WorkerContext;
use crate::session::{NextAction, RetainedMemory, Session, SessionProgress, SessionTurn};
use crate::transport::output::{ConnectionOutput, OUTPUT_MAX};
use std::sync::atomic::Ordering;
use todana::kyoto::{NEVER, ttl_of};
use todana_core::{Delete, Get, Modify, Operation, Reply, Store, StoreMode, Ttl, ValueChange};
use todana_protocol::ReplySink;
use todana_protocol::memcached::plugin::{PluginMode, PluginRequest, PluginStep, put_plugin_value};

/// The largest time that is a number of seconds from now, as in Kyoto Tycoon. In memcached the
/// limit is thirty days.
const RELATIVE_MAX: i64 = 1 << 24;
/// The length of the longest value in bytes.
const VALUE_LEN_MAX: u64 = 1 << 28;

macro_rules! counters {
    ($($name:ident,)*) => {
        /// The counters of one worker, which only that worker writes.
        #[derive(Debug, Default)]
        pub(crate) struct PluginCounters {
            $(pub(super) $name: WorkerCounter,)*
        }

        impl PluginCounters {
            /// Returns the sums over all workers, with the names of the statistics.
            fn sums(workers: &[WorkerCounters]) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), workers.iter().map(|worker| worker.plugin.$name.get()).sum()),)*].into_iter()
            }
        }
    };
}

counters! {
    set_hits, set_misses, get_hits, get_misses, delete_hits, delete_misses, incr_hits, incr_misses, decr_hits, decr_misses,
    cmd_set, cmd_get, cmd_delete, cmd_flush,
}

impl PluginSession {
    /// Serves the complete requests of the input, up to the connection's share of requests for this
    /// turn.
    fn serve_all(
        &mut self,
        call_context: &CallContext,
        turn: &mut SessionTurn<'_>,
        data: &[u8],
        at: &mut usize,
    ) -> NextAction {
        let port = call_context.shared.options.protocols.kyoto.plugin.unwrap_or_default();
        loop {
            if *turn.budget == 0 {
                return if *at == data.len() { NextAction::READ } else { NextAction::Yield };
            }
            if turn.output.len() > OUTPUT_MAX {
                return NextAction::Flush;
            }
            // A request with pending replies was complete before, so it may be longer than the
            // memory that is available now.
            let room = if self.pending.is_ready() { usize::MAX } else { turn.room };
            let value_len_max = VALUE_LEN_MAX.min(room.saturating_sub(self.taken_len()) as u64);
            let before = self.dialect;
            match self.dialect.decode(value_len_max, &data[*at..]) {
                PluginStep::Request { consumed, request } => {
                    if request == PluginRequest::Quit {
                        return NextAction::Close;
                    }
                    let next = call_context
                        .queue_request(self, turn.context, port, &request, turn.room, turn.output)
                        .unwrap_or_else(|| {
                            call_context.execute_or_enqueue(self, turn.context, port, &request, turn.output)
                        });
                    if matches!(next, NextAction::Wait) {
                        // The request is decoded again once a message or its reply has arrived.
                        self.dialect = before;
                        return next;
                    }
                    self.pending.abandon(turn.context);
                    if !matches!(next, NextAction::Continue) {
                        return next;
                    }
                    *at += consumed;
                    // The keys of one line count as one request.
                    *turn.budget -= u32::from(!matches!(request, PluginRequest::Get(_)));
                }
                PluginStep::NeedMore { at_least } => return NextAction::Read { at_least },
                PluginStep::Close => return NextAction::Close,
            }
        }
    }
}

impl Session for PluginSession {
    type Worker = KyotoWorker;

    fn advance(
        &mut self,
        worker: &mut KyotoWorker,
        turn: &mut SessionTurn<'_>,
        input: &[u8],
    ) -> SessionProgress {
        let mut consumed = 0;
        let next = self.serve_all(&worker.call_context, turn, input, &mut consumed);
        SessionProgress { consumed, next }
    }

    fn wake(&mut self, wake: WakeReason, context: &mut WorkerContext) -> bool {
        if self.pending.is_complete_with(wake, &mut context.waits) {
            return true;
        }
        let Some(waiting) = self.parked() else { return false };
        match wake {
            WakeReason::Ready(ticket) | WakeReason::TimedOut(ticket) if ticket != waiting => return false,
            _ => context.waits.leave(waiting),
        }
        self.end_wait(matches!(wake, WakeReason::Ready(_)));
        true
    }

    fn is_waiting(&self) -> bool {
        self.pending.is_waiting() || self.parked().is_some()
    }

    fn has_work(&self) -> bool {
        self.pending.is_some()
    }

    fn ends_with_reset(&self) -> bool {
        self.is_waiting()
    }

    fn retained(&self) -> RetainedMemory {
        RetainedMemory { own: self.kept_len(), of_engine: 0 }
    }

    fn leave(&mut self, context: &mut WorkerContext) {
        self.pending.abandon(context);
        self.return_messages(context);
    }
}

impl CallContext {
    /// Executes a request. If the port has queues, `set` stores its value as a message under a new
    /// key.
    fn execute_or_enqueue(
        &self,
        session: &mut PluginSession,
        context: &mut WorkerContext,
        port: PluginOptions,
        request: &PluginRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let PluginRequest::Store { mode: PluginMode::Set, key: name, flags, exptime, value, is_silent } =
            *request
        else {
            return self.plugin_request(session, context, port, request, output);
        };
        if port.queue_wait_max.is_none() {
            return self.plugin_request(session, context, port, request, output);
        }
        // If the reply is pending, the request is executed again later with the same key.
        let key = session.message_key.take().unwrap_or_else(|| self.shared.kyoto.message_keys.next(name));
        let mode = PluginMode::Set;
        let stored = PluginRequest::Store { mode, key: &key, flags, exptime, value, is_silent };
        let next = self.plugin_request(session, context, port, &stored, output);
        if matches!(next, NextAction::Wait) {
            session.message_key = Some(key);
        } else {
            self.note_message(name, &key);
        }
        next
    }

    fn plugin_request(
        &self,
        session: &mut PluginSession,
        context: &mut WorkerContext,
        port: PluginOptions,
        request: &PluginRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let is_silent = match *request {
            PluginRequest::Store { is_silent, .. }
            | PluginRequest::Delete { is_silent, .. }
            | PluginRequest::Arithmetic { is_silent, .. }
            | PluginRequest::Flush { is_silent } => is_silent,
            _ => false,
        };
        let mut with_flags = Vec::new();
        let Some(operation) = self.plugin_operation(port, request, &mut with_flags) else {
            match *request {
                PluginRequest::GetsEnd => put_line("END", output),
                PluginRequest::Stats => self.plugin_stats(output),
                PluginRequest::Version => put_line(&version(), output),
                PluginRequest::TooFew => put_line("CLIENT_ERROR invalid parameters", output),
                _ => put_line("ERROR", output),
            }
            return NextAction::Continue;
        };
        if !matches!(operation, Operation::Get(_)) && (port.is_read_only || self.is_reader(PRIMARY_DATABASE))
        {
            if !is_silent {
                put_line("SERVER_ERROR server is read-only", output);
            }
            return NextAction::Continue;
        }
        let completion = session.pending.execute(context, PRIMARY_DATABASE, &operation, &mut |reply| {
            self.count_plugin(request, &reply);
            if !is_silent {
                answer(port, request, &reply, output);
            }
        });
        if completion == Completion::Done { NextAction::Continue } else { NextAction::Wait }
    }

    /// Returns the operation that executes a request on a record.
    fn plugin_operation<'r>(
        &self,
        port: PluginOptions,
        request: &PluginRequest<'r>,
        with_flags: &'r mut Vec<u8>,
    ) -> Option<Operation<'r>> {
        Some(match *request {
            PluginRequest::Store { mode, key, flags, exptime, mut value, .. } => {
                if port.keeps_flags {
                    with_flags.reserve_exact(value.len() + FLAGS_LEN);
                    with_flags.extend_from_slice(value);
                    with_flags.extend_from_slice(&flags.to_be_bytes());
                    value = with_flags;
                }
                let mode = match mode {
                    PluginMode::Set => StoreMode::Set,
                    PluginMode::Add => StoreMode::Add,
                    PluginMode::Replace => StoreMode::Replace,
                };
                let ttl = ttl_of(self.plugin_time(exptime), self.is_persistent(PRIMARY_DATABASE));
                Operation::Store(Store { key, value, ttl, mode, ..Store::default() })
            }
            PluginRequest::Get(key) => Operation::Get(Get { key, ..Get::default() }),
            PluginRequest::Delete { key, .. } => Operation::Delete(Delete { key, ..Delete::default() }),
            PluginRequest::Arithmetic { key, amount, is_decrement, .. } => {
                let delta = if is_decrement { amount.wrapping_neg() } else { amount };
                let suffix_len = if port.keeps_flags { FLAGS_LEN } else { 0 };
                let change = ValueChange::AddDecimal { delta, suffix_len };
                Operation::Modify(Modify { key, ttl: None, change })
            }
            PluginRequest::Flush { .. } => Operation::Flush { at: Ttl::Never },
            _ => return None,
        })
    }

    fn count_plugin(&self, request: &PluginRequest<'_>, reply: &Reply<'_>) {
        let counters = &self.shared.observation.workers[self.worker].plugin;
        let is_hit = matches!(reply, Reply::Stored(_) | Reply::Hit(_) | Reply::Deleted | Reply::Integer(_));
        let (total, hits, misses) = match *request {
            PluginRequest::Store { .. } => {
                (Some(&counters.cmd_set), &counters.set_hits, &counters.set_misses)
            }
            PluginRequest::Get(_) => (Some(&counters.cmd_get), &counters.get_hits, &counters.get_misses),
            PluginRequest::Delete { .. } => {
                (Some(&counters.cmd_delete), &counters.delete_hits, &counters.delete_misses)
            }
            PluginRequest::Arithmetic { is_decrement: true, .. } => {
                (None, &counters.decr_hits, &counters.decr_misses)
            }
            PluginRequest::Arithmetic { .. } => (None, &counters.incr_hits, &counters.incr_misses),
            _ => return counters.cmd_flush.add(1),
        };
        total.into_iter().for_each(|total| total.add(1));
        if is_hit { hits.add(1) } else { misses.add(1) }
    }

    fn plugin_time(&self, exptime: i64) -> u64 {
        match u64::try_from(exptime) {
            Ok(0) | Err(_) => NEVER,
            Ok(time) if exptime <= RELATIVE_MAX => self.now() + time,
            Ok(time) => time,
        }
    }

    fn plugin_stats(&self, output: &mut ConnectionOutput) {
        let shared = &*self.shared;
        let mut put = |name: &str, value: &str| {
            output.put(format!("STAT {name} {value}\r\n").as_bytes());
        };
        let of_database = facts(shared.databases.primary());
        put("pid", &std::process::id().to_string());
        put("uptime", &shared.observation.started.elapsed().as_secs().to_string());
        put("time", &self.now().to_string());
        put("version", version().trim_start_matches("VERSION "));
        put("pointer_size", &usize::BITS.to_string());
        put("curr_connections", &shared.observation.connections.current.load(Ordering::Relaxed).to_string());
        put("threads", &shared.options.limits.threads.to_string());
        put("curr_items", &of_database[0].1);
        put("bytes", &of_database[1].1);
        for (name, value) in &of_database {
            put(&format!("db_{name}"), value);
        }
        for (name, sum) in PluginCounters::sums(&shared.observation.workers) {
            put(name, &sum.to_string());
        }
        output.put(b"END\r\n");
    }
}

fn version() -> String {
    format!("VERSION KyotoTycoon/{}", super::VERSION)
}

fn put_line(text: &str, output: &mut ConnectionOutput) {
    output.put(text.as_bytes());
    output.put(b"\r\n");
}

/// Writes the answer to a request on a record.
fn answer(
    port: PluginOptions,
    request: &PluginRequest<'_>,
    reply: &Reply<'_>,
    output: &mut ConnectionOutput,
) {
    let text = match (reply, request) {
        (Reply::Hit(hit), PluginRequest::Get(key)) => {
            let (value, flags) = parts(port, hit.record.value);
            return put_plugin_value(key, flags, value, output);
        }
        // The answer omits records that are missing or cannot be read.
        (_, PluginRequest::Get(_)) => return,
        (Reply::Integer(sum), _) => return put_line(itoa::Buffer::new().format(*sum), output),
        (Reply::Stored(_), _) => "STORED",
        (Reply::NotStored, _) => "NOT_STORED",
        (Reply::Deleted, _) => "DELETED",
        (Reply::NotFound, _) => "NOT_FOUND",
        (Reply::Done, _) => "OK",
        (_, PluginRequest::Delete { .. }) => "SERVER_ERROR the record was not removed",
        (_, PluginRequest::Flush { .. }) => "SERVER_ERROR the records were not removed",
        _ => "SERVER_ERROR the record was not stored",
    };
    put_line(text, output);
}
