//! memcached's clients, served as Kyoto Tycoon's plug-in does: on the first database, with flags behind the value or none.

use super::executor::Executor;
use super::queues::PluginSession;
use super::reach::Reach;
use super::report::facts;
use super::scope::{Next, Scope, records};
use crate::observation::counters::{Own, WorkerCounters};
use crate::options::CompatiblePort;
use crate::session::flow::Pause;
use crate::transport::output::Output;
use std::sync::atomic::Ordering;
use todana::Records;
use todana::kyoto::{Kyoto, NEVER};
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
            $(pub(super) $name: Own,)*
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

impl Executor {
    /// Serves what has come of a connection's requests, as [`serve`](Executor::serve) does.
    #[allow(
        clippy::too_many_arguments,
        reason = "the fields of a connection and of its worker, borrowed apart"
    )]
    pub(crate) fn serve_plugin(
        &mut self,
        session: &mut PluginSession,
        connection: usize,
        data: &[u8],
        room: usize,
        output_max: usize,
        budget: &mut u32,
        output: &mut Output,
    ) -> (usize, usize, Pause) {
        let port = self.scope.shared.options.protocols.kyoto.plugin.unwrap_or_default();
        let mut at = 0;
        let (wanted, pause) = loop {
            if *budget == 0 {
                break (0, if at == data.len() { Pause::NeedsInput } else { Pause::Yields });
            }
            if output.len() > output_max {
                break (0, Pause::Blocked);
            }
            let value_len_max = VALUE_LEN_MAX.min(room.saturating_sub(session.taken_len()) as u64);
            let before = session.dialect;
            match session.dialect.decode(value_len_max, &data[at..]) {
                PluginStep::Request { consumed, request } => {
                    if request == PluginRequest::Quit {
                        break (0, Pause::Closes);
                    }
                    match self.queue_request(session, connection, port, &request, room, output) {
                        Some(Next::Waits) => {
                            session.dialect = before;
                            break (0, Pause::Waits);
                        }
                        Some(Next::Closes) => break (0, Pause::Closes),
                        Some(Next::Go) => {}
                        None => self.scope.plugin_request(port, &request, output),
                    }
                    at += consumed;
                    // The keys of one line are one request.
                    *budget -= u32::from(!matches!(request, PluginRequest::Get(_)));
                }
                PluginStep::NeedMore { at_least } => break (at_least, Pause::NeedsInput),
                PluginStep::Close => break (0, Pause::Closes),
            }
        };
        (at, wanted, pause)
    }
}

impl Scope {
    pub(super) fn plugin_request(
        &self,
        port: CompatiblePort,
        request: &PluginRequest<'_>,
        output: &mut Output,
    ) {
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
                let cleared = reach.served().database.clear(reach.lane());
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

/// What is kept of a value, and its flags.
pub(super) fn parts(port: CompatiblePort, stored: &[u8]) -> (&[u8], u32) {
    match stored.split_last_chunk() {
        Some((value, flags)) if port.keeps_flags => (value, u32::from_be_bytes(*flags)),
        _ => (stored, 0),
    }
}

fn version() -> String {
    format!("VERSION KyotoTycoon/{}", super::VERSION)
}

fn count(hits: &Own, misses: &Own, is_hit: bool) {
    if is_hit { hits.add(1) } else { misses.add(1) }
}

/// Adds to a number in decimal text, which does not go below 0; its time and its flags stay. `None`: there is no record.
fn sum<R: Records>(
    records: &Kyoto<R>,
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
