//! memcached's clients as Kyoto Tycoon's plug-in serves them: on the first database, with flags
//! after the value or without flags.

use super::dispatcher::KyotoWorker;
use super::plugin_flags::{FLAGS_LEN, parts};
use super::queues::PluginSession;
use super::report::facts;
use super::scope::CallContext;
use crate::execution::Completion;
use crate::observation::counters::{WorkerCounter, WorkerCounters};
use crate::options::CompatiblePort;
use crate::session::context::WorkerContext;
use crate::session::wake::Wake;
use crate::session::{Next, RetainedMemory, Session, SessionTurn, Step};
use crate::transport::output::{OUTPUT_MAX, Output};
use std::sync::atomic::Ordering;
use todana::kyoto::{NEVER, ttl_of};
use todana_core::{Delete, Get, Modification, Modify, Operation, Reply, Store, StoreMode, Ttl};
use todana_protocol::ReplySink;
use todana_protocol::memcached::plugin::{PluginMode, PluginRequest, PluginStep, put_plugin_value};

/// The number of the database that the plug-in serves.
pub(super) const DATABASE: usize = 0;

/// A time up to this number of seconds is relative, as in Kyoto Tycoon. memcached's limit is thirty
/// days.
const RELATIVE_MAX: i64 = 1 << 24;
/// The longest value.
const VALUE_LEN_MAX: u64 = 1 << 28;

macro_rules! counters {
    ($($name:ident,)*) => {
        /// The counters of one worker, which only that worker writes.
        #[derive(Debug, Default)]
        pub(crate) struct PluginCounters {
            $(pub(super) $name: WorkerCounter,)*
        }

        impl PluginCounters {
            /// Returns the sums over all workers, by the names that clients read.
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
    /// Serves requests while there are any, within the connection's share.
    fn serve_all(
        &mut self,
        scope: &CallContext,
        turn: &mut SessionTurn<'_>,
        data: &[u8],
        at: &mut usize,
    ) -> Next {
        let port = scope.shared.options.protocols.kyoto.plugin.unwrap_or_default();
        loop {
            if *turn.budget == 0 {
                return if *at == data.len() { Next::READ } else { Next::Yield };
            }
            if turn.output.len() > OUTPUT_MAX {
                return Next::Flush;
            }
            let value_len_max = VALUE_LEN_MAX.min(turn.room.saturating_sub(self.taken_len()) as u64);
            let before = self.dialect;
            match self.dialect.decode(value_len_max, &data[*at..]) {
                PluginStep::Request { consumed, request } => {
                    if request == PluginRequest::Quit {
                        return Next::Close;
                    }
                    let next = scope
                        .queue_request(self, turn.context, port, &request, turn.room, turn.output)
                        .unwrap_or_else(|| {
                            scope.request_or_message(self, turn.context, port, &request, turn.output)
                        });
                    match next {
                        Next::Continue => {}
                        Next::Wait => {
                            // Decoded again once a message or its reply has come.
                            self.dialect = before;
                            return Next::Wait;
                        }
                        next => return next,
                    }
                    *at += consumed;
                    // The keys of one line are one request.
                    *turn.budget -= u32::from(!matches!(request, PluginRequest::Get(_)));
                }
                PluginStep::NeedMore { at_least } => return Next::Read { at_least },
                PluginStep::Close => return Next::Close,
            }
        }
    }
}

impl Session for PluginSession {
    type Worker = KyotoWorker;

    fn advance(&mut self, worker: &mut KyotoWorker, turn: &mut SessionTurn<'_>, input: &[u8]) -> Step {
        let mut consumed = 0;
        let next = self.serve_all(&worker.scope, turn, input, &mut consumed);
        Step { consumed, next }
    }

    fn wake(&mut self, wake: Wake, context: &mut WorkerContext) -> bool {
        if self.pending.is_complete_with(wake, &mut context.waits) {
            return true;
        }
        let Some(waiting) = self.parked() else { return false };
        match wake {
            Wake::Ready(ticket) | Wake::TimedOut(ticket) if ticket != waiting => return false,
            _ => context.waits.leave(waiting),
        }
        self.end_wait(matches!(wake, Wake::Ready(_)));
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
        self.give_back(context);
    }
}

impl CallContext {
    /// Executes a request. With queues, a value that is set is a message.
    fn request_or_message(
        &self,
        session: &mut PluginSession,
        context: &mut WorkerContext,
        port: CompatiblePort,
        request: &PluginRequest<'_>,
        output: &mut Output,
    ) -> Next {
        let PluginRequest::Store { mode: PluginMode::Set, key: name, flags, exptime, value, is_silent } =
            *request
        else {
            return self.plugin_request(session, context, port, request, output);
        };
        if port.queue_wait.is_none() {
            return self.plugin_request(session, context, port, request, output);
        }
        // The message keeps its key while the reply is pending.
        let key = session.message_key.take().unwrap_or_else(|| self.shared.kyoto.message_keys.next(name));
        let mode = PluginMode::Set;
        let stored = PluginRequest::Store { mode, key: &key, flags, exptime, value, is_silent };
        let next = self.plugin_request(session, context, port, &stored, output);
        if matches!(next, Next::Wait) {
            session.message_key = Some(key);
        } else {
            self.message_put(name, &key);
        }
        next
    }

    fn plugin_request(
        &self,
        session: &mut PluginSession,
        context: &mut WorkerContext,
        port: CompatiblePort,
        request: &PluginRequest<'_>,
        output: &mut Output,
    ) -> Next {
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
            return Next::Continue;
        };
        if !matches!(operation, Operation::Get(_)) && (port.is_read_only || self.is_reader(DATABASE)) {
            if !is_silent {
                put_line("SERVER_ERROR server is read-only", output);
            }
            return Next::Continue;
        }
        let completion = session.pending.execute(context, DATABASE, &operation, &mut |reply| {
            self.count_plugin(request, &reply);
            if !is_silent {
                answer(port, request, &reply, output);
            }
        });
        if completion == Completion::Done { Next::Continue } else { Next::Wait }
    }

    /// Returns the operation of a request about records.
    fn plugin_operation<'r>(
        &self,
        port: CompatiblePort,
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
                let ttl = ttl_of(self.plugin_time(exptime), self.is_persistent(DATABASE));
                Operation::Store(Store { key, value, ttl, mode, ..Store::default() })
            }
            PluginRequest::Get(key) => Operation::Get(Get { key, ..Get::default() }),
            PluginRequest::Delete { key, .. } => Operation::Delete(Delete { key, ..Delete::default() }),
            PluginRequest::Arithmetic { key, amount, is_decrement, .. } => {
                let delta = if is_decrement { amount.wrapping_neg() } else { amount };
                let suffix_len = if port.keeps_flags { FLAGS_LEN } else { 0 };
                let change = Modification::AddDecimal { delta, suffix_len };
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

    fn plugin_stats(&self, output: &mut Output) {
        let shared = &*self.shared;
        let mut put = |name: &str, value: &str| {
            output.put(format!("STAT {name} {value}\r\n").as_bytes());
        };
        let of_database = facts(&shared.databases[DATABASE]);
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

fn put_line(text: &str, output: &mut Output) {
    output.put(text.as_bytes());
    output.put(b"\r\n");
}

/// Writes the answer to a request about records.
fn answer(port: CompatiblePort, request: &PluginRequest<'_>, reply: &Reply<'_>, output: &mut Output) {
    let text = match (reply, request) {
        (Reply::Hit(hit), PluginRequest::Get(key)) => {
            let (value, flags) = parts(port, hit.record.value);
            return put_plugin_value(key, flags, value, output);
        }
        // Missing and unreadable records are left out.
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
