//! The metrics by name, and the statistics that they are made of.

use super::exposition::{Kind, Labels};
use super::readings::Group;
use Kind::{Counter, Gauge};

/// A metric made of statistics as they are.
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    /// For each sample its labels and its statistic.
    pub(super) samples: &'static [(Labels<'static>, &'static str)],
}

const fn plain(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: &'static [(Labels<'static>, &'static str)],
) -> Metric {
    Metric { name, kind, help, samples }
}

pub(super) const GENERAL: [Metric; 38] = [
    plain("memcached_uptime_seconds", Counter, "Seconds since the start.", &[(&[], "uptime")]),
    plain("memcached_time_seconds", Gauge, "The server's clock, Unix time.", &[(&[], "time")]),
    plain(
        "memcached_accepting_connections",
        Gauge,
        "1 while new connections are accepted.",
        &[(&[], "accepting_conns")],
    ),
    // The exporter's name up to 0.10.
    plain(
        "memcached_accepting_conns",
        Gauge,
        "1 while new connections are accepted (older name).",
        &[(&[], "accepting_conns")],
    ),
    plain("memcached_read_bytes_total", Counter, "Bytes received from clients.", &[(&[], "bytes_read")]),
    plain("memcached_written_bytes_total", Counter, "Bytes sent to clients.", &[(&[], "bytes_written")]),
    plain("memcached_current_connections", Gauge, "Connections open now.", &[(&[], "curr_connections")]),
    plain("memcached_max_connections", Gauge, "Connections served at once.", &[(&[], "maxconns")]),
    plain("memcached_connections_total", Counter, "Connections opened.", &[(&[], "total_connections")]),
    plain(
        "memcached_connections_rejected_total",
        Counter,
        "Connections refused at the limit (-c).",
        &[(&[], "rejected_connections")],
    ),
    plain(
        "memcached_connections_yielded_total",
        Counter,
        "Times that a connection gave others a turn (-R).",
        &[(&[], "conn_yields")],
    ),
    plain(
        "memcached_connections_listener_disabled_total",
        Counter,
        "Times that accepting paused for want of descriptors.",
        &[(&[], "listen_disabled_num")],
    ),
    plain("memcached_current_bytes", Gauge, "Bytes of the records as stored.", &[(&[], "bytes")]),
    plain(
        "memcached_limit_bytes",
        Gauge,
        "The memory limit of the process, 0 for none (-m).",
        &[(&[], "limit_maxbytes")],
    ),
    plain(
        "memcached_malloced_bytes",
        Gauge,
        "Memory that memcached's slab pages would take for these records.",
        &[(&[], "total_malloced")],
    ),
    plain("memcached_current_items", Gauge, "Records held.", &[(&[], "curr_items")]),
    plain("memcached_items_total", Counter, "Records stored.", &[(&[], "total_items")]),
    plain("memcached_items_evicted_total", Counter, "Records removed to make room.", &[(&[], "evictions")]),
    plain(
        "memcached_items_reclaimed_total",
        Counter,
        "Expired and flushed records whose memory was taken back.",
        &[(&[], "reclaimed")],
    ),
    plain(
        "memcached_direct_reclaims_total",
        Counter,
        "Evictions that a write had to make itself.",
        &[(&[], "direct_reclaims")],
    ),
    plain(
        "memcached_item_too_large_total",
        Counter,
        "Stores refused for their size (-I).",
        &[(&[], "store_too_large")],
    ),
    plain(
        "memcached_item_no_memory_total",
        Counter,
        "Stores refused for want of memory.",
        &[(&[], "store_no_memory")],
    ),
    plain("memcached_lru_crawler_enabled", Gauge, "1 if the crawler serves.", &[(&[], "lru_crawler")]),
    plain(
        "memcached_lru_crawler_sleep",
        Gauge,
        "Microseconds that the crawler rests, as set.",
        &[(&[], "lru_crawler_sleep")],
    ),
    plain(
        "memcached_lru_crawler_to_crawl",
        Gauge,
        "Records to crawl in a class, as set.",
        &[(&[], "lru_crawler_tocrawl")],
    ),
    plain(
        "memcached_lru_crawler_maintainer_thread",
        Gauge,
        "1 with memcached's LRU maintainer, which there is none of.",
        &[(&[], "lru_maintainer_thread")],
    ),
    plain(
        "memcached_lru_crawler_hot_percent",
        Gauge,
        "Share of the hot queue, as set.",
        &[(&[], "hot_lru_pct")],
    ),
    plain(
        "memcached_lru_crawler_warm_percent",
        Gauge,
        "Share of the warm queue, as set.",
        &[(&[], "warm_lru_pct")],
    ),
    plain(
        "memcached_lru_crawler_hot_max_factor",
        Gauge,
        "Age of the hot queue against the cold one, as set.",
        &[(&[], "hot_max_factor")],
    ),
    plain(
        "memcached_lru_crawler_warm_max_factor",
        Gauge,
        "Age of the warm queue against the cold one, as set.",
        &[(&[], "warm_max_factor")],
    ),
    plain(
        "memcached_lru_crawler_starts_total",
        Counter,
        "Times that a crawl began.",
        &[(&[], "lru_crawler_starts")],
    ),
    plain(
        "memcached_lru_crawler_reclaimed_total",
        Counter,
        "Expired records that crawls removed.",
        &[(&[], "crawler_reclaimed")],
    ),
    plain(
        "memcached_lru_crawler_items_checked_total",
        Counter,
        "Records that crawls looked at.",
        &[(&[], "crawler_items_checked")],
    ),
    plain(
        "memcached_lru_crawler_moves_to_cold_total",
        Counter,
        "Records moved to the cold queue; always 0.",
        &[(&[], "moves_to_cold")],
    ),
    plain(
        "memcached_lru_crawler_moves_to_warm_total",
        Counter,
        "Records moved to the main queue, for having been used.",
        &[(&[], "moves_to_warm")],
    ),
    plain(
        "memcached_lru_crawler_moves_within_lru_total",
        Counter,
        "Records left in the main queue, for having been used again.",
        &[(&[], "moves_within_lru")],
    ),
    plain(
        "memcached_process_user_cpu_seconds_total",
        Counter,
        "CPU time in user mode.",
        &[(&[], "rusage_user")],
    ),
    plain(
        "memcached_process_system_cpu_seconds_total",
        Counter,
        "CPU time in the kernel.",
        &[(&[], "rusage_system")],
    ),
];

/// Requests by command and outcome; `set` is computed, and comes behind these.
pub(super) const COMMANDS: [(Labels<'static>, &str); 14] = [
    (&[("command", "get"), ("status", "hit")], "get_hits"),
    (&[("command", "get"), ("status", "miss")], "get_misses"),
    (&[("command", "delete"), ("status", "hit")], "delete_hits"),
    (&[("command", "delete"), ("status", "miss")], "delete_misses"),
    (&[("command", "incr"), ("status", "hit")], "incr_hits"),
    (&[("command", "incr"), ("status", "miss")], "incr_misses"),
    (&[("command", "decr"), ("status", "hit")], "decr_hits"),
    (&[("command", "decr"), ("status", "miss")], "decr_misses"),
    (&[("command", "cas"), ("status", "hit")], "cas_hits"),
    (&[("command", "cas"), ("status", "miss")], "cas_misses"),
    (&[("command", "cas"), ("status", "badval")], "cas_badval"),
    (&[("command", "touch"), ("status", "hit")], "touch_hits"),
    (&[("command", "touch"), ("status", "miss")], "touch_misses"),
    (&[("command", "flush"), ("status", "hit")], "cmd_flush"),
];

/// The same by class, where only what met a record has one.
pub(super) const CLASS_COMMANDS: [(&str, &str, &str); 7] = [
    ("get", "hit", "get_hits"),
    ("delete", "hit", "delete_hits"),
    ("incr", "hit", "incr_hits"),
    ("decr", "hit", "decr_hits"),
    ("cas", "hit", "cas_hits"),
    ("touch", "hit", "touch_hits"),
    ("cas", "badval", "cas_badval"),
];

/// One statistic of each class.
pub(super) struct ClassMetric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) group: Group,
    pub(super) statistic: &'static str,
}

const fn of_items(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    statistic: &'static str,
) -> ClassMetric {
    ClassMetric { name, kind, help, group: Group::Items, statistic }
}

const fn of_slabs(name: &'static str, help: &'static str, statistic: &'static str) -> ClassMetric {
    ClassMetric { name, kind: Gauge, help, group: Group::Slabs, statistic }
}

pub(super) const BY_CLASS: [ClassMetric; 29] = [
    of_items("memcached_slab_current_items", Gauge, "Records of the class.", "number"),
    of_items("memcached_slab_hot_items", Gauge, "Records in memcached's hot queue; always 0.", "number_hot"),
    of_items("memcached_slab_warm_items", Gauge, "Records in the main queue, estimated.", "number_warm"),
    of_items("memcached_slab_cold_items", Gauge, "The others.", "number_cold"),
    of_items(
        "memcached_slab_temporary_items",
        Gauge,
        "Records in memcached's temporary queue.",
        "number_temp",
    ),
    of_items("memcached_slab_hot_age_seconds", Gauge, "Age of the hot queue's oldest record.", "age_hot"),
    of_items("memcached_slab_warm_age_seconds", Gauge, "Age of the warm queue's oldest record.", "age_warm"),
    of_items("memcached_slab_items_age_seconds", Gauge, "Age of the oldest record.", "age"),
    of_items("memcached_slab_mem_requested_bytes", Gauge, "Bytes by memcached's size rule.", "mem_requested"),
    of_items("memcached_slab_items_evicted_total", Counter, "Records removed to make room.", "evicted"),
    of_items(
        "memcached_slab_items_evicted_nonzero_total",
        Counter,
        "Of those, with an expiry.",
        "evicted_nonzero",
    ),
    of_items(
        "memcached_slab_items_evicted_time_seconds",
        Counter,
        "Seconds since the last access of the last one evicted.",
        "evicted_time",
    ),
    of_items(
        "memcached_slab_items_evicted_unfetched_total",
        Counter,
        "Evicted and never read.",
        "evicted_unfetched",
    ),
    of_items(
        "memcached_slab_items_expired_unfetched_total",
        Counter,
        "Expired and never read.",
        "expired_unfetched",
    ),
    of_items(
        "memcached_slab_items_outofmemory_total",
        Counter,
        "Records for which there was no memory, whatever the command.",
        "outofmemory",
    ),
    of_items("memcached_slab_items_tailrepairs_total", Counter, "memcached's repairs.", "tailrepairs"),
    of_items(
        "memcached_slab_items_reclaimed_total",
        Counter,
        "Expired and flushed records whose memory was taken back.",
        "reclaimed",
    ),
    of_items(
        "memcached_slab_items_crawler_reclaimed_total",
        Counter,
        "Expired records that crawls removed.",
        "crawler_reclaimed",
    ),
    of_items(
        "memcached_slab_items_moves_to_cold",
        Counter,
        "Moved to the cold queue; always 0.",
        "moves_to_cold",
    ),
    of_items(
        "memcached_slab_items_moves_to_warm",
        Counter,
        "Moved to the main queue, for having been used.",
        "moves_to_warm",
    ),
    of_items(
        "memcached_slab_items_moves_within_lru",
        Counter,
        "Left in the main queue, for having been used again.",
        "moves_within_lru",
    ),
    of_slabs(
        "memcached_slab_chunk_size_bytes",
        "The largest record of the class, header included.",
        "chunk_size",
    ),
    of_slabs("memcached_slab_chunks_per_page", "Chunks in a page of memcached's.", "chunks_per_page"),
    of_slabs("memcached_slab_current_pages", "Pages that memcached would need.", "total_pages"),
    of_slabs("memcached_slab_current_chunks", "Chunks in those pages.", "total_chunks"),
    of_slabs("memcached_slab_chunks_used", "Of those, with a record in them.", "used_chunks"),
    of_slabs("memcached_slab_chunks_free", "Of those, without.", "free_chunks"),
    of_slabs("memcached_slab_chunks_free_end", "Free at the end of the last page.", "free_chunks_end"),
    of_slabs("memcached_slab_mem_requested_bytes", "Bytes by memcached's size rule.", "mem_requested"),
];

pub(super) const QUEUES: [(&str, &str); 4] = [
    ("hot", "hits_to_hot"),
    ("warm", "hits_to_warm"),
    ("cold", "hits_to_cold"),
    ("temporary", "hits_to_temp"),
];

/// Ours that `stats` has too.
pub(super) const OWN: [Metric; 9] = [
    plain(
        "todana_get_expired_total",
        Counter,
        "Commands of any kind that met an expired record; to a read that is a miss, too.",
        &[(&[], "get_expired")],
    ),
    plain("todana_meta_commands_total", Counter, "Meta commands of any kind.", &[(&[], "cmd_meta")]),
    plain("todana_auth_attempts_total", Counter, "Logins tried.", &[(&[], "auth_cmds")]),
    plain("todana_auth_errors_total", Counter, "Logins refused.", &[(&[], "auth_errors")]),
    plain("todana_worker_threads", Gauge, "Threads that serve clients (-t).", &[(&[], "threads")]),
    plain(
        "todana_partial_request_bytes",
        Gauge,
        "Bytes of requests that are not whole yet.",
        &[(&[], "read_buf_bytes")],
    ),
    plain(
        "todana_pending_output_bytes",
        Gauge,
        "Bytes waiting for clients that read slowly.",
        &[(&[], "response_obj_bytes")],
    ),
    plain(
        "todana_readers_cut_off_total",
        Counter,
        "Clients closed because too much waited for them.",
        &[(&[], "response_obj_oom")],
    ),
    plain(
        "todana_anonymous_bytes",
        Gauge,
        "Resident memory that no file holds, which -m limits.",
        &[(&[], "todana_anonymous_bytes")],
    ),
];

/// Only where there is a data directory.
pub(super) const KEPT: [Metric; 16] = [
    plain("todana_loading", Gauge, "1 while the data is read back.", &[(&[], "todana_loading")]),
    plain(
        "todana_log_takes_writes",
        Gauge,
        "0 while the update log, or the files of the database, cannot take every write.",
        &[(&[], "todana_log_takes_writes")],
    ),
    plain(
        "todana_log_refused_writes_total",
        Counter,
        "Writes refused because the update log, or the files of the database, cannot be written.",
        &[(&[], "todana_log_refusals")],
    ),
    plain(
        "todana_log_appended_bytes_total",
        Counter,
        "Bytes of the update log since the data directory was made.",
        &[(&[], "todana_log_end")],
    ),
    plain("todana_log_synced_bytes_total", Counter, "Of those, on disk.", &[(&[], "todana_log_synced")]),
    plain(
        "todana_log_unsynced_bytes",
        Gauge,
        "Of those, not on disk yet.",
        &[(&[], "todana_log_unsynced_bytes")],
    ),
    plain(
        "todana_log_segments",
        Gauge,
        "Files of the update log that are kept.",
        &[(&[], "todana_log_segments")],
    ),
    plain("todana_log_bytes", Gauge, "Their bytes.", &[(&[], "todana_log_bytes")]),
    plain("todana_checkpoints", Gauge, "Checkpoints that are kept.", &[(&[], "todana_checkpoints")]),
    plain("todana_checkpoint_bytes", Gauge, "Their bytes.", &[(&[], "todana_checkpoint_bytes")]),
    plain("todana_checkpoints_made_total", Counter, "Checkpoints made.", &[(&[], "todana_checkpoints_made")]),
    plain(
        "todana_checkpoints_failed_total",
        Counter,
        "Checkpoints that could not be made.",
        &[(&[], "todana_checkpoints_failed")],
    ),
    plain(
        "todana_last_checkpoint_timestamp_seconds",
        Gauge,
        "When the newest checkpoint was begun, Unix time; 0 without.",
        &[(&[], "todana_last_checkpoint_time")],
    ),
    plain(
        "todana_last_checkpoint_duration_seconds",
        Gauge,
        "How long it took to make; 0 for one that was found at the start.",
        &[(&[], "todana_last_checkpoint_seconds")],
    ),
    plain("todana_last_checkpoint_bytes", Gauge, "Its size.", &[(&[], "todana_last_checkpoint_bytes")]),
    plain(
        "todana_last_checkpoint_records",
        Gauge,
        "Its records.",
        &[(&[], "todana_last_checkpoint_records")],
    ),
];

/// Only where there is a master, or an update log for replicas.
pub(super) const REPLICATION: [Metric; 5] = [
    plain(
        "todana_replica_connected",
        Gauge,
        "1 while the master is followed, 0 while it cannot be reached.",
        &[(&[], "todana_replica_connected")],
    ),
    plain(
        "todana_replica_delay_seconds",
        Gauge,
        "Seconds since this server last had all that its master had.",
        &[(&[], "todana_replica_delay_seconds")],
    ),
    plain(
        "todana_replica_position",
        Gauge,
        "The position in the master's log: nanoseconds, Unix time.",
        &[(&[], "todana_replica_position")],
    ),
    plain("todana_replicas", Gauge, "Replicas that follow this server.", &[(&[], "todana_replicas")]),
    plain(
        "todana_replica_flags_lost_total",
        Counter,
        "Records sent to replicas without their client flags.",
        &[(&[], "todana_replica_flags_lost")],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_once() {
        let mut names: Vec<&str> =
            GENERAL.iter().chain(&OWN).chain(&KEPT).chain(&REPLICATION).map(|metric| metric.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
