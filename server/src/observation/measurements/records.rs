//! Defines the figures of the first database's records and files, and of replication.

use super::databases::{health, takes_writes};
use super::{MeasurementValue, ServerReadings, table};
use crate::process;
use crate::replica::server_epoch;
use crate::shared::SharedState;
use std::time::Duration;
use todana::Clock;
use todana::update_log::SyncPolicy;

table! { RECORDS, "Memory and records", "", |s, r: ServerReadings|
    "bytes", _, "memcached_current_bytes", Gauge, "Bytes of the records as stored." => r.status.live_bytes;
    "curr_items", _, "memcached_current_items", Gauge, "Records held." => r.status.records;
    "total_items", _, "memcached_items_total", Counter, "Records stored." => r.counters.total_items;
    "slab_global_page_pool", _, _, Gauge, "Always 0." => 0u64;
    "expired_unfetched", _, _, Counter, "Records that expired and had never been read, estimated." =>
        r.status.expired_unfetched;
    "evicted_unfetched", _, _, Counter, "Records that were evicted and had never been read, estimated." =>
        r.status.evicted_unfetched;
    // A record that was used since its last turn is never evicted.
    "evicted_active", _, _, Counter, "Always 0." => 0u64;
    "evictions", _, "memcached_items_evicted_total", Counter, "Records evicted." => r.status.evictions;
    "reclaimed", _, "memcached_items_reclaimed_total", Counter,
        "Expired and flushed records whose memory was taken back." => reclaimed(r);
    "crawler_reclaimed", _, "memcached_lru_crawler_reclaimed_total", Counter, "Expired records that sweeps removed." =>
        r.sweeps.removed;
    "crawler_items_checked", _, "memcached_lru_crawler_items_checked_total", Counter, "Records that sweeps and lists of keys have read." =>
        s.observation.crawler.items_checked.load(std::sync::atomic::Ordering::Relaxed) + r.sweeps.seen;
    "lrutail_reflocked", _, _, Counter, "Always 0." => 0u64;
    // memcached's warm queue corresponds to the main queue. No record returns from the main queue
    // to the small one.
    "moves_to_cold", _, "memcached_lru_crawler_moves_to_cold_total", Counter,
        "Records moved to the cold queue; always 0." => 0u64;
    "moves_to_warm", _, "memcached_lru_crawler_moves_to_warm_total", Counter,
        "Records moved to the main queue, because they were used." => r.status.promotions;
    "moves_within_lru", _, "memcached_lru_crawler_moves_within_lru_total", Counter,
        "Records that stayed in the main queue, because they were used again." => r.status.second_chances;
    "direct_reclaims", _, "memcached_direct_reclaims_total", Counter, "Evictions during a write, instead of in the background." =>
        r.status.evictions_by_writes;
    "lru_bumps_dropped", _, _, Counter, "Reads that could not be recorded as a use of their record." => r.status.uses_dropped;
    "todana_committed_bytes", _, "todana_committed_bytes", Gauge, "Memory held for records, including the index and free space." =>
        r.engine.committed_bytes;
    "todana_anonymous_bytes", _, "todana_anonymous_bytes", Gauge, "Anonymous resident memory, which -m limits." =>
        process::anonymous_bytes().unwrap_or(0);
    "todana_started", _, _, Gauge, "Start of the server, Unix time." => s.observation.started_at;
    _, _, "todana_records", Gauge, "Records held." => r.engine.records;
    _, _, "todana_live_bytes", Gauge, "Bytes of the records as stored." => r.engine.live_bytes;
    _, _, "todana_engine_limit_bytes", Gauge,
        "Limit of the memory for records: the memory limit minus the memory of the rest of the process." =>
        s.databases.primary().database.engine().bounded().and_then(|bounded| bounded.limit().bytes);
    _, _, "todana_exports_held_bytes", Gauge,
        "Bytes of the log and of removed files that are on disk only for backups and readers of the log." =>
        s.persistence.exports.held_bytes();
    _, _, "todana_evictions_total", Counter, "Records evicted." => r.engine.evictions;
    _, _, "todana_evictions_with_expiry_total", Counter, "Evicted records with an expiry." => r.engine.evictions_with_expiry;
    _, _, "todana_expired_displaced_total", Counter, "Expired records removed to free memory." =>
        r.engine.reclaimed;
    _, _, "todana_expired_removed_total", Counter,
        "Expired records removed by requests or by the background sweep." => reclaimed(r) + r.sweeps.removed;
}

fn reclaimed(r: &ServerReadings) -> u64 {
    r.counters.reclaimed + r.status.reclaimed + r.status.cleared
}

table! { KEPT, "Data directory",
    "These rows exist with `--data-dir`. For a hash on disk, `todana_log_takes_writes`,\n\
     `todana_log_refused_writes_total`, `todana_sync` and `todana_log_health` also exist without it,\n\
     because its files are its log.", |s, r: ServerReadings|
    "todana_sync", _, _, Gauge, "The setting of --sync: `always`, `never` or milliseconds." => sync(s);
    "todana_loading", _, "todana_loading", Gauge, "1 while the data is loaded." => is_loading(s);
    "todana_log_health", _, _, Gauge, "`well`, `stuck` or `lost`." =>
        keeps(s, r, || health(s.databases.primary()).unwrap_or("well"));
    "todana_log_takes_writes", _, "todana_log_takes_writes", Gauge,
        "0 while the update log, or the files of the database, cannot take every write." =>
        keeps(s, r, || takes_writes(s.databases.primary()));
    "todana_log_refusals", _, "todana_log_refused_writes_total", Counter,
        "Writes refused because the update log, or the files of the database, cannot be written." =>
        keeps(s, r, || r.counters.log_refusals);
    "todana_log_end", _, "todana_log_appended_bytes_total", Counter,
        "Bytes of the update log since the data directory was created." => r.log.map(|(_, end)| end);
    "todana_log_synced", _, "todana_log_synced_bytes_total", Counter, "Bytes of the update log that are on disk." =>
        r.log.map(|(synced, _)| synced);
    "todana_log_unsynced_bytes", _, "todana_log_unsynced_bytes", Gauge, "Bytes of the update log that are not on disk yet." =>
        r.log.map(|(synced, end)| end.saturating_sub(synced));
    "todana_log_segments", _, "todana_log_segments", Gauge, "Files of the update log that are kept." =>
        r.directory.as_ref().map(|directory| directory.footprint().log_segments);
    "todana_log_bytes", _, "todana_log_bytes", Gauge, "Bytes of these files." =>
        r.directory.as_ref().map(|directory| directory.footprint().log_bytes);
    "todana_checkpoints", _, "todana_checkpoints", Gauge, "Checkpoints that are kept." =>
        r.directory.as_ref().map(|directory| directory.footprint().checkpoints);
    "todana_checkpoint_bytes", _, "todana_checkpoint_bytes", Gauge, "Bytes of the checkpoints that are kept." =>
        r.directory.as_ref().map(|directory| directory.footprint().checkpoint_bytes);
    "todana_checkpoints_made", _, "todana_checkpoints_made_total", Counter, "Checkpoints created." =>
        r.directory.as_ref().map(|directory| directory.history().written);
    "todana_checkpoints_failed", _, "todana_checkpoints_failed_total", Counter, "Checkpoints that failed." =>
        r.directory.as_ref().map(|directory| directory.history().failed);
    "todana_last_checkpoint_time", _, "todana_last_checkpoint_timestamp_seconds", Gauge,
        "Start of the newest checkpoint, Unix time; 0 if there is none." =>
        r.directory.as_ref().map(|directory| directory.history().last.map_or(0, |last| last.created_ms / 1000));
    "todana_last_checkpoint_seconds", _, "todana_last_checkpoint_duration_seconds", Gauge,
        "Duration of the newest checkpoint; 0 if it was found at the start of the server." =>
        r.directory.as_ref().map(|directory| directory.history().last.map_or(Duration::ZERO, |last| last.took));
    "todana_last_checkpoint_bytes", _, "todana_last_checkpoint_bytes", Gauge, "Size of the newest checkpoint." =>
        r.directory.as_ref().map(|directory| directory.history().last.map_or(0, |last| last.len));
    "todana_last_checkpoint_records", _, "todana_last_checkpoint_records", Gauge, "Records in the newest checkpoint." =>
        r.directory.as_ref().map(|directory| directory.history().last.map_or(0, |last| last.records));
    _, "snap_made", _, Counter, "Snapshots written; this row and the next three exist with snapshots (-bgs)." => snapshots(s).map(|figures| figures.0);
    _, "snap_failed", _, Counter, "Snapshots that failed." => snapshots(s).map(|figures| figures.1);
    _, "snap_timestamp", _, Gauge, "Time stamp of the newest snapshot." => snapshots(s).map(|figures| figures.2);
    _, "snap_trouble", _, Gauge, "Reason why the last snapshot failed." =>
        snapshots(s).map(|figures| figures.3).filter(|trouble| !trouble.is_empty());
}

fn sync(shared: &SharedState) -> Option<String> {
    let of_files = shared.databases.primary().database.engine_sync();
    Some(match of_files.or(shared.options.databases.data.as_ref().map(|place| place.sync))? {
        SyncPolicy::Always => "always".to_string(),
        SyncPolicy::Every(interval) => interval.as_millis().to_string(),
        SyncPolicy::Never => "never".to_string(),
    })
}

fn is_loading(shared: &SharedState) -> Option<bool> {
    let is_logged = shared.databases.primary().database.engine_sync().is_none()
        && shared.options.databases.data.is_some();
    is_logged.then(|| shared.lifecycle.is_loading())
}

/// Returns the value if the first database is kept on disk, in files of its own or in a data
/// directory.
fn keeps<T>(shared: &SharedState, r: &ServerReadings, value: impl FnOnce() -> T) -> Option<T> {
    (shared.databases.primary().database.engine_sync().is_some() || r.log.is_some()).then(value)
}

/// Returns the number of snapshots that were written, the number that failed, the time stamp of the
/// newest one, and the reason of the last failure.
fn snapshots(shared: &SharedState) -> Option<(u64, u64, u64, String)> {
    shared.options.databases.snapshots.as_ref().map(|_| shared.persistence.snapshots.figures())
}

table! { REPLICATION, "Replication",
    "The rows about a master exist if the server follows one. `todana_replicas` and\n\
     `todana_replica_flags_lost` exist if the server has an update log that replicas can follow\n\
     ([replication](replication.md)).", |s, r: ServerReadings|
    "todana_replica_connected", _, "todana_replica_connected", Gauge,
        "1 while the master is followed, 0 while it cannot be reached." => of_master(r, || s.master_link.is_connected());
    "todana_replica_master", _, "todana_replica_master_info{master}", Gauge, "The master that is followed, HOST:PORT." =>
        r.follow_state.master.as_ref().map(|master| format!("{}:{}", master.host, master.port));
    "todana_replica_delay_seconds", _, "todana_replica_delay_seconds", Gauge,
        "Seconds since this server last had all changes of its master; before the first such moment, the age of its position." =>
        of_master(r, || s.master_link.delay(s.clock.now().0, s.observation.started.elapsed()));
    "todana_replica_position", "repl_timestamp", "todana_replica_position", Gauge,
        "The position in the master's log: nanoseconds, Unix time; microseconds if the master speaks Tokyo Tyrant's protocol; bytes of the log of the first database in Todana's own protocol." => of_master(r, || r.follow_state.timestamp);
    "todana_replica_lag_bytes", _, "todana_replica_lag_bytes", Gauge,
        "Bytes of the master's update logs that this server has not applied, in Todana's own protocol." => s.master_link.lag_bytes();
    _, "repl_master_host", _, Gauge, "Host of the master." => r.follow_state.master.as_ref().map(|master| &*master.host);
    _, "repl_master_port", _, Gauge, "Port of the master." => r.follow_state.master.as_ref().map(|master| master.port);
    _, "repl_interval", _, Gauge, "Seconds between two requests for the master's changes." => of_master(r, || r.follow_state.interval);
    _, "repl_delay", _, Gauge, "Age of the position in seconds." =>
        of_master(r, || process::unix_time().saturating_sub(r.follow_state.position_time()));
    "todana_epoch", _, "todana_epoch", Gauge,
        "The number of promotions among the servers of this replication, as far as this server knows." =>
        if_logged(s, || server_epoch(s).count());
    "todana_superseded", _, "todana_superseded", Gauge,
        "1 while this server refuses changes because another one has become the master." =>
        if_logged(s, || u64::from(s.databases.iter().any(|served| served.database.is_superseded())));
    "todana_salvaged_changes", _, "todana_salvaged_changes_total", Counter,
        "Changes that only this server had when another one had become the master. They are in salvaged logs." =>
        if_logged(s, || s.master_link.salvaged().0);
    "todana_salvaged_log", _, "todana_salvaged_log_info{directory}", Gauge, "The directory of the last salvaged log, which `todana log` prints." =>
        Some(s.master_link.salvaged()).filter(|(changes, _)| *changes > 0).map(|(_, directory)| directory.display().to_string());
    "todana_replicas", _, "todana_replicas", Gauge, "Replicas that follow this server." =>
        if_logged(s, || s.replicas.connected().len());
    "todana_replica_flags_lost", _, "todana_replica_flags_lost_total", Counter,
        "Records sent to replicas without their client flags." => if_logged(s, || s.replicas.flags_lost());
}

fn of_master<T: Into<MeasurementValue>>(r: &ServerReadings, value: impl FnOnce() -> T) -> Option<T> {
    r.follow_state.master.as_ref().map(|_| value())
}

fn if_logged<T>(shared: &SharedState, value: impl FnOnce() -> T) -> Option<T> {
    shared.databases.iter().any(|served| served.database.log().is_some()).then(value)
}
