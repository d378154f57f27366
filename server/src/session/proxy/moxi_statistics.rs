//! Writes `stats proxy` with moxi's names.
//!
//! Figures that only moxi has are 0: bytes by command, and keys that it sends once although a
//! client has asked for them twice. docs/proxy-statistics.md lists the names.

use crate::options::PoolOptions;
use crate::proxy::{
    ClientCommand, LiveProxy, NearCache, PoolSums, ProxyPool, ProxyState, RouteFilter, ServerCount,
};
use crate::session::memcached::commands::MEMCACHED_VERSION;
use crate::shared::SharedState;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use todana_core::Reply;

/// The parts of the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MoxiPart {
    Config,
    Behaviors,
    Counters,
    FrontCache,
}

/// Receives the name and the value of a statistic.
type PutStatistic<'a> = dyn FnMut(&str, &dyn Display) + 'a;

/// Passes the statistics of `stats proxy GROUP` to `out`. Returns false if moxi has no such group.
pub(super) fn put(
    shared: &SharedState,
    live: &LiveProxy,
    group: &[u8],
    out: &mut dyn FnMut(Reply<'_>),
) -> bool {
    let wanted = match group {
        b"" | b"all" => None,
        b"config" => Some(MoxiPart::Config),
        b"behaviors" => Some(MoxiPart::Behaviors),
        b"stats" => Some(MoxiPart::Counters),
        b"frontcache" => Some(MoxiPart::FrontCache),
        b"reset" => {
            live.reset_counters();
            out(Reply::Done);
            return true;
        }
        _ => return false,
    };
    let is_wanted = |part| wanted.is_none_or(|wanted| wanted == part);
    let mut put = |name: &str, value: &dyn Display| {
        out(Reply::Statistic { name, value: &value.to_string() });
    };
    if wanted.is_none() {
        put("basic:version", &MEMCACHED_VERSION);
        put("basic:nthreads", &shared.options.limits.threads);
    }
    let state = live.state();
    for (number, pool) in state.pools.iter().enumerate() {
        let port = live.port_of(&pool.name);
        let start = format!("{port}:{}", pool.name.replace(char::is_whitespace, "_"));
        let mut put = |name: &str, value: &dyn Display| put(&format!("{start}:{name}"), value);
        if is_wanted(MoxiPart::Config) {
            put("config", &config_of(&pool.options));
        }
        if is_wanted(MoxiPart::Behaviors) {
            put_behaviors(port, &pool.options, &mut put);
        }
        if is_wanted(MoxiPart::Counters) {
            put_counters(live, pool, &mut put);
        }
        if is_wanted(MoxiPart::FrontCache) {
            put_front_cache(&state, number, &mut put);
        }
    }
    out(Reply::End);
    true
}

/// Returns the servers as moxi's `-z` has them.
fn config_of(options: &PoolOptions) -> String {
    let server = |server: &todana_client::ring::ServerEntry| match server.weight {
        1 => server.label().to_string(),
        weight => format!("{}:{weight}", server.label()),
    };
    options.servers.iter().map(server).collect::<Vec<_>>().join(",")
}

fn put_behaviors(port: u16, options: &PoolOptions, put: &mut PutStatistic<'_>) {
    let ms = |duration: Duration| duration.as_millis();
    let mut put = |name: &str, value: &dyn Display| put(&format!("behavior:{name}"), value);
    put("downstream_conn_max", &options.connections);
    put("downstream_retry", &options.retries);
    put("downstream_protocol", &options.speak.as_str());
    put("downstream_timeout", &ms(options.reply_timeout.unwrap_or_default()));
    put("connect_timeout", &ms(options.connect_timeout));
    put("wait_queue_timeout", &ms(options.queue_timeout.unwrap_or_default()));
    put("connect_max_errors", &options.failures);
    put("connect_retry_interval", &ms(options.retry));
    put("port_listen", &port);
    put("mcs_opts", &options.ring.kind);
}

fn put_counters(live: &LiveProxy, pool: &ProxyPool, put: &mut PutStatistic<'_>) {
    let servers: Vec<_> = pool.servers.iter().map(|server| server.counters.sums()).collect();
    let sum = |count| servers.iter().map(|sums| sums.of(count)).sum::<u64>();
    let connections: u64 = pool.servers.iter().map(|server| server.counters.connections()).sum();
    let [current, failed, left] = live.clients_of(&pool.name);
    let sums = pool.counters.sums();
    for (name, value) in [
        ("num_upstream", current),
        ("tot_upstream", current + failed + left),
        ("num_downstream_conn", connections),
        ("tot_downstream_conn", sum(ServerCount::Connected)),
        ("tot_downstream_connect_failed", sum(ServerCount::NotConnected)),
        ("tot_downstream_timeout", sum(ServerCount::TimedOut)),
        ("tot_wait_queue_timeout", sum(ServerCount::QueueTimedOut)),
        ("tot_retry", sum(ServerCount::Repeated)),
        ("tot_multiget_keys", sums.line_keys()),
        ("tot_multiget_keys_dedupe", 0),
    ] {
        put(&format!("pstd_stats:{name}"), &value);
    }
    let hits = sum(ServerCount::Values);
    for command in ClientCommand::ALL {
        for (kind, seen) in ["regular", "quiet"].into_iter().zip(sums.requests(command)) {
            let is_read = command == ClientCommand::Get && kind == "regular";
            put_command(&format!("{kind}_{}", command.as_str()), seen, is_read.then_some((&sums, hits)), put);
        }
    }
}

/// Writes the figures of a command. `reads` has the sums of the pool and the number of values of
/// its servers.
fn put_command(name: &str, seen: u64, reads: Option<(&PoolSums, u64)>, put: &mut PutStatistic<'_>) {
    let (hits, misses) = reads.map_or((0, 0), |(sums, hits)| (hits, sums.read_keys().saturating_sub(hits)));
    let figures = [
        ("seen", seen),
        ("hits", hits),
        ("misses", misses),
        ("read_bytes", 0),
        ("write_bytes", 0),
        ("cas", 0),
    ];
    for (figure, value) in figures {
        put(&format!("pstd_stats_cmd:{name}:{figure}"), &value);
    }
}

/// Writes the figures of the caches before a pool.
fn put_front_cache(state: &ProxyState, pool: usize, put: &mut PutStatistic<'_>) {
    let routes = state.routes.iter().filter(|route| route.pools.first_number() == Some(pool));
    let mut caches: Vec<&Arc<NearCache>> = Vec::new();
    for filter in routes.flat_map(|route| &route.filters) {
        // Several routes may share a cache.
        if let RouteFilter::Near(cache) = filter
            && !caches.iter().any(|other| Arc::ptr_eq(other, cache))
        {
            caches.push(cache);
        }
    }
    let [hits, misses, bytes] = caches
        .iter()
        .map(|cache| cache.counts())
        .fold([0; 3], |[a, b, c], [hits, misses, bytes]| [a + hits, b + misses, c + bytes]);
    for (name, value) in [("tot_get_hits", hits), ("tot_get_misses", misses), ("bytes", bytes)] {
        put(&format!("frontcache:{name}"), &value);
    }
}
