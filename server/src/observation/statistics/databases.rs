//! `stats databases`, or one by its name: what each database holds. memcached has nothing of the kind.

use super::Writer;
use crate::databases::Served;
use crate::shared::Shared;
use todana::update_log::Health;
use todana_core::Checkpointed;

pub(super) fn put(shared: &Shared, name: Option<&[u8]>, w: &mut Writer<'_, '_>) {
    let wanted = name
        .map(|name| std::str::from_utf8(name).ok().and_then(|name| shared.databases.catalog.number(name)));
    for (number, served) in shared.databases.iter().enumerate() {
        if wanted.is_some_and(|wanted| wanted != Some(number)) {
            continue;
        }
        let status = served.database.status();
        w.put_in("", number, "name", served.name.label());
        w.put_in("", number, "kind", served.name.kind.word());
        w.put_in("", number, "records", status.records);
        w.put_in("", number, "bytes", status.live_bytes);
        w.put_in("", number, "memory_bytes", status.committed_bytes);
        w.put_in("", number, "disk_bytes", served.disk_bytes());
        w.put_in("", number, "evictions", status.evictions);
        w.put_in("", number, "takes_writes", u8::from(takes_writes(served)));
        w.put_in("", number, "refused_writes", served.database.counters().log_refusals);
        if let Some(health) = health(served) {
            w.put_in("", number, "health", health);
            w.put_in("", number, "pending_bytes", pending_bytes(served));
        }
        if served.has_files() {
            let damaged = served.damaged_records();
            w.put_in("", number, "damaged_records", damaged.as_ref().map_or(0, |(count, _)| *count));
            if let Some((_, last)) = damaged {
                w.put_in("", number, "last_damage", last);
            }
            if let Some(trouble) = served.trouble() {
                w.put_in("", number, "trouble", trouble);
            }
        }
        if let Some(directory) = shared.persistence.exports.directory(number) {
            let history = directory.history();
            w.put_in("", number, "log_bytes", directory.footprint().log_bytes);
            w.put_in("", number, "checkpoints_made", history.made);
            w.put_in("", number, "checkpoints_failed", history.failed);
        }
    }
}

/// In a word, whether changes come to disk: of the update log, or of the engine's own files. `None` where nothing is kept.
pub(crate) fn health(served: &Served) -> Option<&'static str> {
    let of_files = served.syncing.as_ref().map(|syncing| syncing.health());
    let of_log = served.database.log().map(|log| match log.health() {
        // Changes are in the log; the tree cannot take them.
        Health::Well if served.has_files() && served.has_stuck_checkpoints() => "stuck",
        Health::Well => "well",
        Health::Stuck(_) => "stuck",
        Health::Lost(_) => "lost",
    });
    // What keeps the records counts, unless that is well.
    let health = of_files.filter(|&health| health != "well").or(of_log).or(of_files);
    health.map(|health| if health == "well" && !takes_writes(served) { "stuck" } else { health })
}

/// Bytes of changes that wait in memory for a checkpoint.
pub(crate) fn pending_bytes(served: &Served) -> u64 {
    served.database.engine().checkpointed().map_or(0, Checkpointed::pending_bytes)
}

/// Returns true if every change can be brought to disk, where it is to be.
pub(crate) fn takes_writes(served: &Served) -> bool {
    let is_in_files = served.syncing.as_ref().is_none_or(|syncing| syncing.takes_changes());
    is_in_files && served.refused_write().is_none() && served.database.takes_changes()
}
