//! `stats`: the master that this server follows, and how many replicas follow it; `stats replicas`: each of those.

use super::Writer;
use crate::shared::Shared;
use todana::Clock;

pub(super) fn put(shared: &Shared, w: &mut Writer<'_, '_>) {
    let standing = shared.link.standing();
    if let Some(master) = standing.master {
        let delay = shared.link.delay(shared.clock.now().0, shared.observation.started.elapsed());
        w.put("todana_replica_connected", u8::from(shared.link.is_connected()));
        w.put("todana_replica_master", format_args!("{}:{}", master.host, master.port));
        w.put("todana_replica_delay_seconds", super::seconds(delay));
        w.put("todana_replica_position", standing.timestamp);
    }
    if shared.databases.iter().any(|served| served.database.log().is_some()) {
        w.put("todana_replicas", shared.replicas.connected().len());
        w.put("todana_replica_flags_lost", shared.replicas.flags_lost());
    }
}

/// Each replica, by a number.
pub(super) fn put_each(shared: &Shared, w: &mut Writer<'_, '_>) {
    for (number, replica) in shared.replicas.connected().iter().enumerate() {
        w.put_in("", number, "address", &replica.address);
        w.put_in("", number, "server_id", replica.server_id);
        w.put_in("", number, "delay_seconds", super::seconds(replica.delay()));
        w.put_in("", number, "position", replica.position());
        w.put_in("", number, "flags_lost", replica.flags_lost());
    }
}
