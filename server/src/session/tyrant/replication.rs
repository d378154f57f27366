//! Requests of replicas, and the master that the server follows.

use crate::replica::{MasterAddress, MasterProtocol, ReplicaRequest};
use crate::shared::SharedState;
use todana_protocol::tyrant::CHECKS_OUTCOMES;

/// Returns the request of a replica; `None` if it must be refused. A server without an ID refuses
/// all, because replicas could not recognise its changes.
pub(super) fn replica_request(
    shared: &SharedState,
    since_micros: u64,
    server_id: u32,
) -> Option<ReplicaRequest> {
    let own = shared.options.databases.replication.server_id;
    let is_valid = own != 0 && since_micros > 0 && ![0, u32::from(own)].contains(&server_id);
    // A replica without an ID sends a longer number, with which no change can have passed it.
    let server_id = u16::try_from(server_id).unwrap_or(0);
    is_valid.then_some(ReplicaRequest::Tyrant { since_micros, server_id })
}

/// `setmst`: follows another master, or none. A time stamp of 0 keeps the position. Returns false
/// if the server has no position file or follows a master in Todana's own protocol, or the address
/// is no address.
pub(super) fn set_master(
    shared: &SharedState,
    host: &[u8],
    port: u32,
    since_micros: u64,
    options: u32,
) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let Ok(port) = u16::try_from(port) else { return false };
    let master = (!host.is_empty() && port > 0).then(|| MasterAddress { host: host.into(), port });
    if !shared.master_link.is_changeable() {
        return false;
    }
    if master.is_some() && shared.options.databases.replication.position_file.is_none() {
        return false;
    }
    shared.master_link.change(|state| {
        state.master = master;
        state.protocol = MasterProtocol::Tyrant { checks_outcomes: options & CHECKS_OUTCOMES != 0 };
        if since_micros > 0 {
            state.timestamp = since_micros;
        }
    });
    true
}
