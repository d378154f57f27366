//! Writes the metrics of the proxy, and finds pools without a server.
//!
//! docs/proxy-statistics.md lists the metrics. Their number is bounded: a counter by command or by
//! reason has a sample only once it is not 0.

use super::live_proxy::LiveProxy;
use super::pool_server::PoolServer;
use super::proxy_counters::{ClientCommand, PoolSums, ProxyCount};
use super::proxy_pool::ProxyPool;
use super::proxy_state::ProxyState;
use super::route::PoolRoute;
use super::server_counters::{ServerCount, ServerSums};
use super::tallies::TimeSums;
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use todana_client::pool::LossReason;

/// The failures that have samples from the start.
const USUAL_FAILURES: [LossReason; 3] = [LossReason::Refused, LossReason::TimedOut, LossReason::Closed];

/// A metric with a sample for each server.
struct ServerMetric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    read: fn(&PoolServer, &ServerSums) -> u64,
}

const SERVER_METRICS: [ServerMetric; 7] = [
    ServerMetric {
        name: "server_up",
        kind: "gauge",
        help: "1 if the server is up, and 0 if it is down.",
        read: |server, _| u64::from(!server.health.is_down()),
    },
    ServerMetric {
        name: "server_requests_total",
        kind: "counter",
        help: "Requests that were sent to the server.",
        read: |_, sums| sums.of(ServerCount::Requests),
    },
    ServerMetric {
        name: "server_in_flight",
        kind: "gauge",
        help: "Requests that wait for their replies.",
        read: |server, _| server.counters.in_flight(),
    },
    ServerMetric {
        name: "server_connections",
        kind: "gauge",
        help: "Connections to the server.",
        read: |server, _| server.counters.connections(),
    },
    ServerMetric {
        name: "server_read_bytes_total",
        kind: "counter",
        help: "Bytes of replies of the server.",
        read: |_, sums| sums.of(ServerCount::ReadBytes),
    },
    ServerMetric {
        name: "server_written_bytes_total",
        kind: "counter",
        help: "Bytes of requests to the server.",
        read: |_, sums| sums.of(ServerCount::WrittenBytes),
    },
    ServerMetric {
        name: "server_downs_total",
        kind: "counter",
        help: "Times at which the server went down.",
        read: |_, sums| sums.of(ServerCount::Downs),
    },
];

/// The metrics of the counters of the proxy.
const PROXY_METRICS: [(&str, &str, ProxyCount); 7] = [
    ("retries_total", "Requests that were sent again after their connection was lost.", ProxyCount::Retries),
    ("late_answers_total", "Replies that came after their requests were given up.", ProxyCount::LateReplies),
    ("multiget_keys_total", "Keys of lines with several keys.", ProxyCount::MultigetKeys),
    (
        "multiget_requests_total",
        "Requests to servers for lines with several keys.",
        ProxyCount::MultigetRequests,
    ),
    ("shadow_sent_total", "Copies of requests that were sent by shadow routes.", ProxyCount::ShadowSent),
    ("shadow_dropped_total", "Copies of requests that could not be sent.", ProxyCount::ShadowDropped),
    ("warmup_hits_total", "Records that only the old pool of a route had.", ProxyCount::WarmupHits),
];

impl LiveProxy {
    /// Returns the metrics of the proxy in the text format of Prometheus. `clients_cut` is the
    /// number of clients that were disconnected because they read too slowly, and `buffer_bytes`
    /// the memory of all buffers.
    pub(crate) fn metrics(&self, clients_cut: u64, buffer_bytes: u64) -> String {
        let state = self.state();
        let mut text = MetricsText::default();
        put_pools(&state, &mut text);
        put_servers(&state, &mut text);
        let sums = self.counters.sums();
        for (name, help, count) in PROXY_METRICS {
            text.single(name, "counter", help, sums.of(count));
        }
        let mut caches: Vec<_> = state.near_caches().collect();
        // Several routes may share a cache.
        caches.sort_by_key(|cache| Arc::as_ptr(cache));
        caches.dedup_by_key(|cache| Arc::as_ptr(cache));
        let near = caches.into_iter().map(|cache| cache.counts());
        let [hits, misses, bytes] =
            near.fold([0; 3], |[a, b, c], [hits, misses, bytes]| [a + hits, b + misses, c + bytes]);
        text.single("near_hits_total", "counter", "Reads that a copy in the proxy answered.", hits);
        text.single("near_misses_total", "counter", "Reads of near routes without a copy.", misses);
        text.single("near_bytes", "gauge", "Memory of the copies of near routes.", bytes);
        put_moves(&state, &mut text);
        let [done, failed] = self.reloads();
        text.family("reloads_total", "counter", "Times at which the configuration was read again.");
        text.sample("reloads_total", &[("result", "ok")], done);
        text.sample("reloads_total", &[("result", "error")], failed);
        text.family("config_info", "gauge", "The number of the configuration in use, from 1.");
        text.sample("config_info", &[("version", &self.version().to_string())], 1);
        text.single(
            "clients_cut_total",
            "counter",
            "Clients disconnected because too many bytes waited for them.",
            clients_cut,
        );
        text.single("buffer_bytes", "gauge", "Memory of requests and replies that wait.", buffer_bytes);
        text.0
    }

    /// Returns the name of the first pool of which no server is up.
    pub(crate) fn dead_pool(&self) -> Option<String> {
        let state: &ProxyState = &self.state();
        let is_dead = |server: &PoolServer| server.health.is_down();
        let pool = state.pools.iter().find(|pool| pool.servers.iter().all(|server| is_dead(server)));
        pool.map(|pool| pool.name.clone())
    }
}

fn put_pools(state: &ProxyState, text: &mut MetricsText) {
    let pools: Vec<(&ProxyPool, PoolSums)> =
        state.pools.iter().map(|pool| (pool, pool.counters.sums())).collect();
    let name = "requests_total";
    text.family(name, "counter", "Requests of clients by the pool and the command.");
    for (pool, sums) in &pools {
        for command in ClientCommand::ALL {
            let count: u64 = sums.requests(command).iter().sum();
            if count > 0 {
                text.sample(name, &[("pool", &pool.name), ("command", command.as_str())], count);
            }
        }
    }
    let name = "request_seconds";
    text.family(name, "histogram", "Time from a request of a client to its reply.");
    for (pool, sums) in &pools {
        text.histogram(name, &[("pool", &pool.name)], &sums.times);
    }
}

fn put_servers(state: &ProxyState, text: &mut MetricsText) {
    let servers = state.pools.iter().flat_map(|pool| pool.servers.iter().map(move |server| (pool, server)));
    let servers: Vec<_> = servers.map(|(pool, server)| (pool, server, server.counters.sums())).collect();
    for ServerMetric { name, kind, help, read } in SERVER_METRICS {
        text.family(name, kind, help);
        for (pool, server, sums) in &servers {
            text.sample(name, &[("pool", &pool.name), ("server", &server.label)], read(server, sums));
        }
    }
    let name = "server_failures_total";
    text.family(name, "counter", "Failures of connections to the server.");
    for (pool, server, sums) in &servers {
        for reason in LossReason::ALL {
            let count = sums.failures_of(reason);
            if count > 0 || USUAL_FAILURES.contains(&reason) {
                let reason = reason.as_str().replace(' ', "_");
                let labels = [("pool", &*pool.name), ("server", &server.label), ("reason", &reason)];
                text.sample(name, &labels, count);
            }
        }
    }
    let name = "server_seconds";
    text.family(name, "histogram", "Time from a request to a server to its reply.");
    for (pool, server, sums) in &servers {
        text.histogram(name, &[("pool", &pool.name), ("server", &server.label)], &sums.times);
    }
}

/// Writes the share of the keys that have moved, of each `migrate` route.
fn put_moves(state: &ProxyState, text: &mut MetricsText) {
    let name = "migrate_share";
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
    let mut has_family = false;
    for route in &state.routes {
        let PoolRoute::Migrate { new, old, start_ms, over } = &route.pools else { continue };
        if !std::mem::replace(&mut has_family, true) {
            text.family(name, "gauge", "Share of the keys that have moved to the new pool, from 0 to 1.");
        }
        let passed_ms = now_ms.saturating_sub(*start_ms) as f64;
        let share = (passed_ms / over.as_millis().max(1) as f64).min(1.0);
        let [from, to] = [old, new].map(|pool| &*state.pools[*pool].name);
        text.sample(name, &[("from", from), ("to", to)], share);
    }
}

/// The text format of Prometheus. Writing to a String does not fail.
#[derive(Default)]
struct MetricsText(String);

impl MetricsText {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let name = format!("todana_proxy_{name}");
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.0, "todana_proxy_{name}");
        for (number, (label, value)) in labels.iter().enumerate() {
            let opening = if number == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{opening}{label}=\"{}\"", escaped(value));
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// Writes a family with one sample.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], times: &TimeSums) {
        let count = times.count();
        let bounds = times.up_to_bounds().map(|(bound, count)| (bound.as_secs_f64().to_string(), count));
        for (bound, count) in bounds.chain([("+Inf".into(), count)]) {
            let labels = [labels, &[("le", &*bound)]].concat();
            self.sample(&format!("{name}_bucket"), &labels, count);
        }
        self.sample(&format!("{name}_sum"), labels, times.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, count);
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
