//! memcached's clients, served as Kyoto Tycoon's plug-in does: on the first database, with flags behind the value or none.

use super::dispatcher::KyotoWorker;
use super::plugin_flags::parts;
use super::queues::PluginSession;
use super::reach::Reach;
use super::report::facts;
use super::scope::{Scope, records};
use crate::observation::counters::{WorkerCounter, WorkerCounters};
use crate::options::CompatiblePort;
use crate::session::context::WorkerContext;
use crate::session::wake::Wake;
use crate::session::{Next, Retained, Session, Step, Turn};
use crate::transport::output::{OUTPUT_MAX, Output};
use std::sync::atomic::Ordering;
use todana::Records;
use todana::kyoto::{KyotoRecords, NEVER};
use todana_core::{Action, Attributes, Record, Result as Outcome, Visitor};
use todana_protocol::Sink;
use todana_protocol::kyoto::Target;
use todana_protocol::memcached::plugin::{PluginMode, PluginRequest, PluginStep, number, put_plugin_value};

/// Up to so many seconds a time counts from now, as in the original: memcached's own border is at thirty days.
const RELATIVE_MAX: i64 = 1 << 24;
/// The longest value.
const VALUE_LEN_MAX: u64 = 1 << 28;

macro_rules! counters {
    ($($name:ident,)*) => {
        /// Of one worker: only it writes.
        #[derive(Debug, Default)]
        pub(crate) struct PluginCounters {
            $(pub(super) $name: WorkerCounter,)*
        }

        impl PluginCounters {
            /// The sums of all workers, by the names that clients read.
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
    /// Serves requests as far as there are some, and as the connection's share allows.
    fn serve_all(&mut self, scope: &Scope, turn: &mut Turn<'_>, data: &[u8], at: &mut usize) -> Next {
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
                    let waits = &mut turn.context.waits;
                    match scope.queue_request(self, waits, port, &request, turn.room, turn.output) {
                        Some(Next::Continue) => {}
                        Some(Next::Wait) => {
                            // Looked for again when it is woken.
                            self.dialect = before;
                            return Next::Wait;
                        }
                        Some(next) => return next,
                        None => scope.request_or_message(port, &request, turn.output),
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

    fn advance(&mut self, worker: &mut KyotoWorker, turn: &mut Turn<'_>, input: &[u8]) -> Step {
        let mut consumed = 0;
        let next = self.serve_all(&worker.scope, turn, input, &mut consumed);
        Step { consumed, next }
    }

    fn wake(&mut self, wake: Wake, context: &mut WorkerContext) -> bool {
        let Some(waiting) = self.parked() else { return false };
        match wake {
            Wake::Ready(ticket) | Wake::TimedOut(ticket) if ticket != waiting => return false,
            _ => context.waits.leave(waiting),
        }
        self.end_wait(matches!(wake, Wake::Ready(_)));
        true
    }

    fn is_waiting(&self) -> bool {
        self.parked().is_some()
    }

    fn waits_for_message(&self) -> bool {
        self.is_waiting()
    }

    fn retained(&self) -> Retained {
        Retained { own: self.kept_len(), of_engine: 0 }
    }

    fn leave(&mut self, context: &mut WorkerContext) {
        self.give_back(context);
    }
}

impl Scope {
    /// Executes a request; where there are queues, what is set is a message.
    fn request_or_message(&self, port: CompatiblePort, request: &PluginRequest<'_>, output: &mut Output) {
        match *request {
            PluginRequest::Store {
                mode: mode @ PluginMode::Set,
                key: name,
                flags,
                exptime,
                value,
                is_silent,
            } if port.queue_wait.is_some() => {
                let key = &*self.shared.kyoto.message_keys.next(name);
                let stored = PluginRequest::Store { mode, key, flags, exptime, value, is_silent };
                self.plugin_request(port, &stored, output);
                self.message_put(name, key);
            }
            _ => self.plugin_request(port, request, output),
        }
    }

    fn plugin_request(&self, port: CompatiblePort, request: &PluginRequest<'_>, output: &mut Output) {
        let counters = &self.shared.observation.workers[self.worker].plugin;
        let Ok(reach) = self.reach(Target::Index(0)) else { return };
        let records = records(reach);
        let (is_silent, is_change) = match *request {
            PluginRequest::Store { is_silent, .. }
            | PluginRequest::Delete { is_silent, .. }
            | PluginRequest::Arithmetic { is_silent, .. }
            | PluginRequest::Flush { is_silent } => (is_silent, true),
            _ => (false, false),
        };
        let mut answer = |text: &str| {
            if !is_silent {
                output.put(text.as_bytes());
                output.put(b"\r\n");
            }
        };
        if is_change && (port.is_read_only || self.is_read_only() || reach.is_read_only()) {
            return answer("SERVER_ERROR server is read-only");
        }
        match *request {
            PluginRequest::Store { mode, key, flags, exptime, value, .. } => {
                counters.cmd_set.add(1);
                let time = self.plugin_time(exptime);
                let mut with_flags = Vec::new();
                let value = if port.keeps_flags {
                    with_flags.reserve_exact(value.len() + 4);
                    with_flags.extend_from_slice(value);
                    with_flags.extend_from_slice(&flags.to_be_bytes());
                    &with_flags
                } else {
                    value
                };
                let stored = match mode {
                    PluginMode::Set => records.set(key, value, time).map(|()| true),
                    PluginMode::Add => records.add(key, value, time),
                    PluginMode::Replace => records.replace(key, value, time),
                };
                count(&counters.set_hits, &counters.set_misses, matches!(stored, Ok(true)));
                answer(match stored {
                    Ok(true) => "STORED",
                    Ok(false) => "NOT_STORED",
                    Err(_) => "SERVER_ERROR the record was not stored",
                });
            }
            PluginRequest::Get(key) => {
                counters.cmd_get.add(1);
                let found = records.view(key, &mut |stored, _| {
                    let (value, flags) = parts(port, stored);
                    put_plugin_value(key, flags, value, output);
                });
                count(&counters.get_hits, &counters.get_misses, matches!(found, Ok(true)));
            }
            PluginRequest::GetsEnd => answer("END"),
            PluginRequest::Delete { key, .. } => {
                counters.cmd_delete.add(1);
                let removed = records.remove(key);
                count(&counters.delete_hits, &counters.delete_misses, matches!(removed, Ok(true)));
                answer(match removed {
                    Ok(true) => "DELETED",
                    Ok(false) => "NOT_FOUND",
                    Err(_) => "SERVER_ERROR the record was not removed",
                });
            }
            PluginRequest::Arithmetic { key, amount, is_decrement, .. } => {
                let summed =
                    sum(&records, key, if is_decrement { amount.wrapping_neg() } else { amount }, port);
                let is_hit = matches!(summed, Ok(Some(_)));
                if is_decrement {
                    count(&counters.decr_hits, &counters.decr_misses, is_hit);
                } else {
                    count(&counters.incr_hits, &counters.incr_misses, is_hit);
                }
                match summed {
                    Ok(Some(sum)) => answer(&sum.to_string()),
                    Ok(None) => answer("NOT_FOUND"),
                    Err(_) => answer("SERVER_ERROR the record was not stored"),
                }
            }
            PluginRequest::Flush { .. } => {
                counters.cmd_flush.add(1);
                let cleared = reach.clear();
                answer(if cleared.is_ok() { "OK" } else { "SERVER_ERROR the records were not removed" });
            }
            PluginRequest::Stats => self.plugin_stats(reach, output),
            PluginRequest::Version => answer(&version()),
            PluginRequest::TooFew => answer("CLIENT_ERROR invalid parameters"),
            PluginRequest::Unknown | PluginRequest::Quit => answer("ERROR"),
        }
    }

    fn plugin_time(&self, exptime: i64) -> u64 {
        match u64::try_from(exptime) {
            Ok(0) | Err(_) => NEVER,
            Ok(time) if exptime <= RELATIVE_MAX => self.now() + time,
            Ok(time) => time,
        }
    }

    fn plugin_stats(&self, reach: &Reach, output: &mut Output) {
        let shared = &*self.shared;
        let mut put = |name: &str, value: &str| {
            output.put(format!("STAT {name} {value}\r\n").as_bytes());
        };
        let of_database = facts(reach);
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

fn count(hits: &WorkerCounter, misses: &WorkerCounter, is_hit: bool) {
    if is_hit { hits.add(1) } else { misses.add(1) }
}

/// Adds to a number in decimal text, which does not go below 0; its time and its flags stay. `None`: there is no record.
fn sum<R: Records>(
    records: &KyotoRecords<R>,
    key: &[u8],
    amount: i64,
    port: CompatiblePort,
) -> Outcome<Option<i64>> {
    struct Sum {
        amount: i64,
        port: CompatiblePort,
        sum: Option<i64>,
        new: Vec<u8>,
    }
    impl Visitor for Sum {
        fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
            let Some(old) = old else {
                self.sum = None;
                return Action::Keep;
            };
            let (value, _) = parts(self.port, old.value);
            let sum = number(value).wrapping_add(self.amount).max(0);
            self.sum = Some(sum);
            self.new = sum.to_string().into_bytes();
            self.new.extend_from_slice(&old.value[value.len()..]);
            let attributes = Attributes { version: 0, access: None, ..old.attributes };
            Action::Put(Record::new(&self.new, attributes))
        }
    }
    let mut visitor = Sum { amount, port, sum: None, new: Vec::new() };
    records.records().visit(key, &mut visitor)?;
    Ok(visitor.sum)
}
