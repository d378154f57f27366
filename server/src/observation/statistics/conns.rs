//! Answers `stats conns` with the state of each connection.

use super::StatisticsWriter;
use crate::observation::connection_table::ConnectionState;

/// Writes the state of all connections. `asker` is the descriptor of the connection that sent the
/// request.
pub(super) fn put(asker: i32, w: &mut StatisticsWriter<'_, '_>) {
    let shared = w.shared;
    let now = todana::Clock::now(&*shared.clock).0;
    let uptime = shared.observation.started.elapsed().as_secs();
    for (descriptor, address) in shared.observation.connection_table.listeners() {
        w.put(format_args!("{descriptor}:"), "addr", address);
        w.put(format_args!("{descriptor}:"), "state", "conn_listening");
        w.put(format_args!("{descriptor}:"), "secs_since_last_cmd", uptime);
    }
    for info in shared.observation.connection_table.datagrams() {
        let (descriptor, is_asker) = (info.descriptor, info.descriptor == asker);
        let state = if is_asker { ConnectionState::Executing } else { info.state() };
        w.put(format_args!("{descriptor}:"), "UDP", "UDP");
        w.put(format_args!("{descriptor}:"), "addr", &info.peer);
        w.put(format_args!("{descriptor}:"), "state", state.name());
        w.put(
            format_args!("{descriptor}:"),
            "secs_since_last_cmd",
            now.saturating_sub(info.last_command_at()),
        );
    }
    for info in shared.observation.connection_table.connections() {
        let descriptor = info.descriptor;
        let is_asker = descriptor == asker;
        let state = if is_asker { ConnectionState::Executing } else { info.state() };
        w.put(format_args!("{descriptor}:"), "addr", &info.peer);
        w.put(format_args!("{descriptor}:"), "listen_addr", &info.local);
        w.put(format_args!("{descriptor}:"), "state", state.name());
        let since = if is_asker { 0 } else { now.saturating_sub(info.last_command_at()) };
        w.put(format_args!("{descriptor}:"), "secs_since_last_cmd", since);
    }
}
