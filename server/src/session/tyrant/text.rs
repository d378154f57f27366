//! memcached's commands as a part of Tokyo Tyrant: counted and forbidden under the commands that
//! they correspond to.
//!
//! Flags, expiry and versions work as in memcached, unlike in the original, which drops them.

use super::VERSION;
use super::operations::counters;
use crate::process;
use crate::session::memcached::commands::answer;
use crate::session::worker_context::WorkerContext;
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use todana::table::visible_records;
use todana_core::{Operation, Reply, StoreMode, ValueChange};
use todana_protocol::memcached::{MemcachedCommand, MemcachedRequest};
use todana_protocol::tyrant::{TyrantCommand, TyrantForm};

/// Counts a request. Answers it if it is forbidden, or about the server. Returns true if it is
/// answered.
pub(crate) fn is_answered(
    context: &WorkerContext,
    request: &MemcachedRequest<'_>,
    output: &mut ConnectionOutput,
) -> bool {
    let shared = &context.shared;
    let mask = shared.options.protocols.tyrant.mask;
    let Some(command) = command_of(&request.command) else {
        let is_refused = !mask.is_empty() && !is_harmless(&request.command);
        if is_refused {
            answer(request, &Reply::Faulty(FORBIDDEN), output);
        }
        return is_refused;
    };
    counters(context).of(command).add(1);
    if mask.forbids(command, TyrantForm::Text) {
        let reply = if command == TyrantCommand::Get { Reply::Miss } else { Reply::Faulty(FORBIDDEN) };
        answer(request, &reply, output);
        return true;
    }
    match &request.command {
        MemcachedCommand::Version => answer(request, &Reply::Version(VERSION), output),
        MemcachedCommand::Stats { group: [] } => {
            put_statistics(shared, &mut |reply| answer(request, &reply, output));
        }
        _ => return false,
    }
    true
}

/// Returns the key whose slot a request locks, so that it excludes calls of scripts that lock the
/// same slot: requests that read a record before they change it.
#[inline]
pub(crate) fn locked_key<'a>(context: &WorkerContext, request: &MemcachedRequest<'a>) -> Option<&'a [u8]> {
    context.shared.tyrant.scripts.slots()?;
    match &request.command {
        MemcachedCommand::Operation(Operation::Store(store)) => {
            let reads = !matches!(store.mode, StoreMode::Set | StoreMode::Add) || store.compare.is_some();
            reads.then_some(store.key)
        }
        MemcachedCommand::Operation(Operation::Arithmetic(arithmetic)) => Some(arithmetic.key),
        MemcachedCommand::Operation(Operation::Modify(modify)) => Some(modify.key),
        _ => None,
    }
}

/// The reply to a forbidden command.
const FORBIDDEN: &str = "CLIENT_ERROR forbidden";

/// Returns true if a command that corresponds to none of Tokyo Tyrant's is allowed with any mask,
/// because it neither reads nor changes records or the server.
fn is_harmless(command: &MemcachedCommand<'_>) -> bool {
    matches!(
        command,
        MemcachedCommand::Operation(Operation::Noop)
            | MemcachedCommand::Faulty { .. }
            | MemcachedCommand::Mechanisms
            | MemcachedCommand::Authenticate(_)
            | MemcachedCommand::Quit
    )
}

/// Returns the command that a request counts as, and is forbidden as.
fn command_of(command: &MemcachedCommand<'_>) -> Option<TyrantCommand> {
    Some(match command {
        MemcachedCommand::Operation(operation) => match operation {
            Operation::Get(_) | Operation::Inspect(_) => TyrantCommand::Get,
            Operation::Store(store) if store.mode == StoreMode::Add => TyrantCommand::PutKeep,
            Operation::Store(_) => TyrantCommand::Put,
            Operation::Modify(modify) => match modify.change {
                ValueChange::Append(_) => TyrantCommand::Put,
                _ => TyrantCommand::AddInt,
            },
            Operation::Arithmetic(_) => TyrantCommand::AddInt,
            Operation::Delete(_) => TyrantCommand::Out,
            Operation::Flush { .. } => TyrantCommand::Vanish,
            Operation::RefusedStore(_) | Operation::Touch(_) => TyrantCommand::Put,
            Operation::Noop => return None,
        },
        MemcachedCommand::Version | MemcachedCommand::Stats { .. } => TyrantCommand::Stat,
        _ => return None,
    })
}

/// Writes the statistics that the original has.
fn put_statistics(shared: &SharedState, out: &mut dyn FnMut(Reply<'_>)) {
    let count = |command| {
        let workers = shared.observation.workers.iter();
        workers.map(|worker| worker.tyrant.of(command).get()).sum::<u64>()
    };
    let misses = |of: fn(&super::TyrantCounters) -> u64| {
        shared.observation.workers.iter().map(|worker| of(&worker.tyrant)).sum::<u64>()
    };
    let mut put = |name: &str, value: String| out(Reply::Statistic { name, value: &value });
    let now = process::unix_time();
    let uptime = process::started_at().map_or(0, |started_at| now.saturating_sub(started_at).as_secs());
    let (user, system) = process::cpu_time();
    let served = shared.databases.primary();
    let records = visible_records(&served.database).to_string();
    put("pid", std::process::id().to_string());
    put("uptime", uptime.to_string());
    put("time", now.as_secs().to_string());
    put("version", VERSION.to_owned());
    put("pointer_size", usize::BITS.to_string());
    put("rusage_user", format!("{:.6}", user.as_secs_f64()));
    put("rusage_system", format!("{:.6}", system.as_secs_f64()));
    for (name, command, missed) in [
        ("set", TyrantCommand::Put, misses(|counters| counters.put_misses.get())),
        ("delete", TyrantCommand::Out, misses(|counters| counters.out_misses.get())),
        ("get", TyrantCommand::Get, misses(|counters| counters.get_misses.get())),
    ] {
        put(&format!("cmd_{name}"), count(command).to_string());
        put(&format!("cmd_{name}_hits"), count(command).saturating_sub(missed).to_string());
        put(&format!("cmd_{name}_misses"), missed.to_string());
    }
    put("cmd_flush", count(TyrantCommand::Vanish).to_string());
    put("curr_items", records.clone());
    put("total_items", records);
    put("bytes", super::statistics::size(served).to_string());
    put("threads", shared.options.limits.threads.to_string());
    out(Reply::End);
}
