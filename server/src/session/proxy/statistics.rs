//! Writes the statistics of the proxy itself.

use crate::proxy::{LiveProxy, ProxyPool};
use std::fmt::Display;
use todana_core::Reply;

/// The groups that only a server has.
const GROUPS_OF_SERVERS: [&[u8]; 4] = [b"items", b"slabs", b"sizes", b"conns"];
const ASK_THE_SERVERS: &str = "CLIENT_ERROR ask the servers";

/// Passes the statistics of a group to `out`. Returns false if the proxy has no such group.
pub(super) fn put(live: &LiveProxy, group: &[u8], out: &mut dyn FnMut(Reply<'_>)) -> bool {
    if GROUPS_OF_SERVERS.contains(&group) {
        out(Reply::Faulty(ASK_THE_SERVERS));
        return true;
    }
    let mut put = |name: String, value: &dyn Display| {
        // A name is a single word.
        let name = name.replace(char::is_whitespace, "_");
        out(Reply::Statistic { name: &name, value: &value.to_string() });
    };
    let state = live.state();
    match group {
        b"servers" => {
            for pool in &state.pools {
                for server in &pool.servers {
                    let mut put = |name: &str, value: &dyn Display| {
                        put(format!("{}:{}:{name}", pool.name, server.label), value);
                    };
                    put("state", &if server.health.is_down() { "down" } else { "up" });
                    let counts = server.counters.counts();
                    for (name, count) in ["requests", "failures", "downs"].iter().zip(counts) {
                        put(name, &count);
                    }
                }
            }
        }
        b"pools" => {
            for pool in &state.pools {
                let mut put = |name: &str, value: &dyn Display| put(format!("{}:{name}", pool.name), value);
                put("ring", &pool.options.ring.kind);
                put("servers", &pool.servers.len());
                put("servers_up", &up(pool));
            }
        }
        b"proxy" => {
            let [reloads, failed] = live.reloads();
            put("pools".into(), &state.pools.len());
            put("servers".into(), &state.pools.iter().map(|pool| pool.servers.len()).sum::<usize>());
            put("servers_up".into(), &state.pools.iter().map(up).sum::<usize>());
            put("config_version".into(), &live.version());
            put("reloads".into(), &reloads);
            put("failed_reloads".into(), &failed);
        }
        _ => return false,
    }
    out(Reply::End);
    true
}

/// Returns the number of servers of a pool that are up.
fn up(pool: &ProxyPool) -> usize {
    pool.servers.iter().filter(|server| !server.health.is_down()).count()
}
