//! `stats conns`: one connection after the other.

use super::Writer;
use crate::observation::roster::State;

/// `asker` is the descriptor of the connection that asks.
pub(super) fn put(asker: i32, w: &mut Writer<'_, '_>) {
    let shared = w.shared;
    let now = todana::Clock::now(&*shared.clock).0;
    let uptime = shared.observation.started.elapsed().as_secs();
    for (descriptor, address) in shared.observation.roster.listeners() {
        w.put(format_args!("{descriptor}:"), "addr", address);
        w.put(format_args!("{descriptor}:"), "state", "conn_listening");
        w.put(format_args!("{descriptor}:"), "secs_since_last_cmd", uptime);
    }
    for seat in shared.observation.roster.datagrams() {
        let (descriptor, is_asker) = (seat.descriptor, seat.descriptor == asker);
        let state = if is_asker { State::Executing } else { seat.state() };
        w.put(format_args!("{descriptor}:"), "UDP", "UDP");
        w.put(format_args!("{descriptor}:"), "addr", &seat.peer);
        w.put(format_args!("{descriptor}:"), "state", state.name());
        w.put(
            format_args!("{descriptor}:"),
            "secs_since_last_cmd",
            now.saturating_sub(seat.last_command_at()),
        );
    }
    for seat in shared.observation.roster.seats() {
        let descriptor = seat.descriptor;
        let is_asker = descriptor == asker;
        let state = if is_asker { State::Executing } else { seat.state() };
        w.put(format_args!("{descriptor}:"), "addr", &seat.peer);
        w.put(format_args!("{descriptor}:"), "listen_addr", &seat.local);
        w.put(format_args!("{descriptor}:"), "state", state.name());
        let since = if is_asker { 0 } else { now.saturating_sub(seat.last_command_at()) };
        w.put(format_args!("{descriptor}:"), "secs_since_last_cmd", since);
    }
}
