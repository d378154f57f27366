//! Writes the metrics of the proxy, and finds pools without a server.

use super::live_proxy::LiveProxy;
use super::pool_server::PoolServer;
use super::proxy_state::ProxyState;
use std::fmt::Write;

/// A metric with a sample for each server.
struct ServerMetric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    read: fn(&PoolServer) -> u64,
}

const SERVER_METRICS: [ServerMetric; 4] = [
    ServerMetric {
        name: "todana_proxy_server_up",
        kind: "gauge",
        help: "1 if the server is up, and 0 if it is down.",
        read: |server| u64::from(!server.health.is_down()),
    },
    ServerMetric {
        name: "todana_proxy_server_requests_total",
        kind: "counter",
        help: "Requests that were sent to the server.",
        read: |server| server.counters.counts()[0],
    },
    ServerMetric {
        name: "todana_proxy_server_failures_total",
        kind: "counter",
        help: "Failures of connections to the server.",
        read: |server| server.counters.counts()[1],
    },
    ServerMetric {
        name: "todana_proxy_server_downs_total",
        kind: "counter",
        help: "Times at which the server went down.",
        read: |server| server.counters.counts()[2],
    },
];

impl LiveProxy {
    /// Returns the metrics of the proxy in the text format of Prometheus.
    pub(crate) fn metrics(&self) -> String {
        let (state, [done, failed]) = (self.state(), self.reloads());
        let mut text = String::new();
        // Writing to a String does not fail.
        for ServerMetric { name, kind, help, read } in SERVER_METRICS {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            for pool in &state.pools {
                for server in &pool.servers {
                    let (pool, label) = (escaped(&pool.name), escaped(&server.label));
                    let value = read(server);
                    let _ = writeln!(text, "{name}{{pool=\"{pool}\",server=\"{label}\"}} {value}");
                }
            }
        }
        let reloads = "todana_proxy_reloads_total";
        let config = "todana_proxy_config_info";
        let _ = write!(
            text,
            "# HELP {reloads} Times at which the configuration was read again.\n# TYPE {reloads} counter\n\
             {reloads}{{result=\"ok\"}} {done}\n{reloads}{{result=\"error\"}} {failed}\n\
             # HELP {config} The number of the configuration in use, from 1.\n# TYPE {config} gauge\n\
             {config}{{version=\"{}\"}} 1\n",
            self.version()
        );
        text
    }

    /// Returns the name of the first pool of which no server is up.
    pub(crate) fn dead_pool(&self) -> Option<String> {
        let state: &ProxyState = &self.state();
        let is_dead = |server: &PoolServer| server.health.is_down();
        let pool = state.pools.iter().find(|pool| pool.servers.iter().all(|server| is_dead(server)));
        pool.map(|pool| pool.name.clone())
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
