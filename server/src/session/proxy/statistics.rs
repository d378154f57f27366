//! Answers the requests for statistics and for the version.

use super::moxi_statistics;
use super::proxy_session::ProxySession;
use super::request_routing::RoutingTurn;
use super::server_poll::{OwnStatistic, PollQuestion, ServerPoll};
use super::waiting_request::WaitingRequest;
use crate::observation::statistics;
use crate::options::{ProxyName, ProxyVersion};
use crate::proxy::{LiveProxy, PoolServer, ProxyPool, ServerCount, ServerPlace};
use crate::session::memcached::commands::MEMCACHED_VERSION;
use crate::shared::SharedState;
use std::fmt::Display;
use todana_core::Reply;
use todana_protocol::memcached::client::ServerDialect;
use todana_protocol::memcached::{ReplyForm, encode};

/// The groups that only a server has.
const GROUPS_OF_SERVERS: [&[u8]; 4] = [b"items", b"slabs", b"sizes", b"conns"];
const ASK_THE_SERVERS: &str = "CLIENT_ERROR ask the servers";

/// The reply to a group of statistics that the proxy does not have.
const NOT_THROUGH: &str = "CLIENT_ERROR not through a proxy";

/// The number of frequent keys that `stats hotkeys` shows.
const HOT_KEYS_SHOWN: usize = 100;

/// The groups of one program that are those of the proxy.
const GROUP_OF_PROGRAM: &[u8] = b"settings";

/// The general statistics that are those of the proxy: its process, its clients and its network.
/// All others are sums of the servers.
const OWN: [&str; 31] = [
    "pid",
    "uptime",
    "time",
    "version",
    "todana_version",
    "libevent",
    "pointer_size",
    "rusage_user",
    "rusage_system",
    "max_connections",
    "curr_connections",
    "total_connections",
    "rejected_connections",
    "connection_structures",
    "response_obj_oom",
    "response_obj_count",
    "response_obj_bytes",
    "read_buf_count",
    "read_buf_bytes",
    "read_buf_bytes_free",
    "read_buf_oom",
    "reserved_fds",
    "auth_cmds",
    "auth_errors",
    "bytes_read",
    "bytes_written",
    "accepting_conns",
    "listen_disabled_num",
    "time_in_listen_disabled_us",
    "threads",
    "conn_yields",
];

impl ProxySession {
    /// Answers `stats GROUP`. The general group and `reset` ask the servers, too.
    pub(super) fn answer_statistics(
        &mut self,
        turn: &mut RoutingTurn<'_>,
        form: &ReplyForm<'_>,
        group: &[u8],
    ) {
        let question = match group {
            b"" => PollQuestion::Statistics { own: own_statistics(turn.shared) },
            b"reset" => {
                turn.shared.observation.reset_sums();
                turn.proxy.live().reset_counters();
                PollQuestion::Reset
            }
            _ => {
                let mut bytes = Vec::new();
                let mut put = |reply: Reply<'_>| encode(form, &reply, &mut bytes);
                if group == GROUP_OF_PROGRAM {
                    statistics::answer(turn.shared, group, 0, &mut put);
                } else if let Some(group) = group_of_moxi(turn.shared, group) {
                    if !moxi_statistics::put(turn.shared, turn.proxy.live(), group, &mut put) {
                        put(Reply::Faulty(NOT_THROUGH));
                    }
                } else if !put_group(turn.proxy.live(), group, &mut put) {
                    put(Reply::Faulty(NOT_THROUGH));
                }
                return self.push(WaitingRequest::Complete(bytes));
            }
        };
        self.poll_servers(turn, question, form, b"stats");
    }

    /// Answers `version`.
    pub(super) fn answer_version(&mut self, turn: &mut RoutingTurn<'_>, form: &ReplyForm<'_>) {
        match turn.state.version {
            ProxyVersion::Own => {
                let mut bytes = Vec::new();
                encode(form, &Reply::Version(MEMCACHED_VERSION), &mut bytes);
                self.push(WaitingRequest::Complete(bytes));
            }
            ProxyVersion::Servers => {
                self.poll_servers(turn, PollQuestion::Version(MEMCACHED_VERSION), form, b"version");
            }
        }
    }

    /// Asks all servers that the command reaches. A server of several pools is asked once.
    fn poll_servers(
        &mut self,
        turn: &mut RoutingTurn<'_>,
        question: PollQuestion,
        form: &ReplyForm<'_>,
        command: &[u8],
    ) {
        let mut poll = ServerPoll::new(question, form.detached());
        let mut asked: Vec<ServerPlace> = Vec::new();
        for place in turn.state.reached_places(self.listener, command).unwrap_or_default() {
            if asked.iter().any(|other| turn.state.is_same_server(*other, place)) {
                continue;
            }
            asked.push(place);
            // The text dialect is the one that all servers have before their dialect is known.
            let dialect = turn.proxy.known_dialect(&turn.state, place).unwrap_or(ServerDialect::Text);
            let mut bytes = Vec::new();
            let kind = poll.put_question(dialect, &mut bytes);
            let tag = self.tag(turn.connection, poll.asked_len(), false);
            let put = |out: &mut Vec<u8>| out.extend_from_slice(&bytes);
            // A server that is down is left out.
            if turn.proxy.send(&turn.state, place, kind, tag, put).is_ok() {
                poll.await_reply(dialect);
            }
        }
        self.push(WaitingRequest::Polled(Box::new(poll)));
    }
}

/// Returns the group after `proxy` if the proxy has moxi's name.
fn group_of_moxi<'g>(shared: &SharedState, group: &'g [u8]) -> Option<&'g [u8]> {
    let is_moxi = shared.options.proxy.as_ref().is_some_and(|proxy| proxy.name == ProxyName::Moxi);
    let group = group.strip_prefix(b"proxy").filter(|_| is_moxi)?;
    (group.is_empty() || group.starts_with(b" ")).then(|| group.trim_ascii())
}

/// Returns the general statistics of the proxy, in memcached's order.
fn own_statistics(shared: &SharedState) -> Vec<OwnStatistic> {
    let mut own = Vec::new();
    statistics::answer(shared, b"", 0, &mut |reply| {
        if let Reply::Statistic { name, value } = reply {
            let is_own = OWN.contains(&name);
            if is_own || !name.starts_with("todana_") {
                own.push(OwnStatistic { name: name.into(), value: value.into(), is_of_servers: !is_own });
            }
        }
    });
    own
}

/// Passes the statistics of a group to `out`. Returns false if the proxy has no such group.
fn put_group(live: &LiveProxy, group: &[u8], out: &mut dyn FnMut(Reply<'_>)) -> bool {
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
        b"hotkeys" => {
            for hot in live.hot_keys.all().iter().take(HOT_KEYS_SHOWN) {
                let key = hot.key.escape_ascii();
                put(format!("{key}:requests"), &hot.requests);
                put(format!("{key}:bytes"), &hot.bytes);
            }
        }
        b"servers" => {
            for pool in &state.pools {
                for server in &pool.servers {
                    let mut put = |name: &str, value: &dyn Display| {
                        put(format!("{}:{}:{name}", pool.name, server.label), value);
                    };
                    put_server(server, &mut put);
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

fn put_server(server: &PoolServer, put: &mut dyn FnMut(&str, &dyn Display)) {
    let sums = server.counters.sums();
    put("state", &if server.health.is_down() { "down" } else { "up" });
    put("since", &server.health.changed_at().elapsed().as_secs());
    put("in_flight", &server.counters.in_flight());
    put("requests", &sums.of(ServerCount::Requests));
    put("failures", &sums.failures());
    put("downs", &sums.of(ServerCount::Downs));
    for (name, percent) in [("p50_us", 50), ("p99_us", 99)] {
        put(name, &sums.times.percentile(percent).unwrap_or_default().as_micros());
    }
    match server.counters.last_failure() {
        Some((reason, at)) => {
            put("last_error", &reason.as_str());
            put("last_error_age", &at.elapsed().as_secs());
        }
        None => put("last_error", &"none"),
    }
}

/// Returns the number of servers of a pool that are up.
fn up(pool: &ProxyPool) -> usize {
    pool.servers.iter().filter(|server| !server.health.is_down()).count()
}
