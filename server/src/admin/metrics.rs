//! `/metrics`: the names of memcached_exporter, so that dashboards and alerts made for it go on working, and ours as
//! `todana_*`. docs/metrics.md lists them; a test holds it to this table.
//!
//! A metric whose statistic is not there is left out: that is how the exporter does it.

use super::exposition::{Exposition, Kind, Labels};
use super::readings::{Class, Group, OfDatabase, Readings};
use crate::process;
use Kind::{Counter, Gauge};
use std::collections::HashMap;
use std::time::Duration;

/// A metric made of statistics as they are.
struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    /// For each sample its labels and its statistic.
    samples: &'static [(Labels<'static>, &'static str)],
}

const fn plain(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: &'static [(Labels<'static>, &'static str)],
) -> Metric {
    Metric { name, kind, help, samples }
}

const GENERAL: [Metric; 38] = [
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
        "Expired records whose memory was taken back.",
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
const COMMANDS: [(Labels<'static>, &str); 14] = [
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
const CLASS_COMMANDS: [(&str, &str, &str); 7] = [
    ("get", "hit", "get_hits"),
    ("delete", "hit", "delete_hits"),
    ("incr", "hit", "incr_hits"),
    ("decr", "hit", "decr_hits"),
    ("cas", "hit", "cas_hits"),
    ("touch", "hit", "touch_hits"),
    ("cas", "badval", "cas_badval"),
];

/// One statistic of each class.
struct ClassMetric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    group: Group,
    statistic: &'static str,
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

const BY_CLASS: [ClassMetric; 29] = [
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
        "Expired records whose memory was taken back.",
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

const QUEUES: [(&str, &str); 4] = [
    ("hot", "hits_to_hot"),
    ("warm", "hits_to_warm"),
    ("cold", "hits_to_cold"),
    ("temporary", "hits_to_temp"),
];

/// Ours that `stats` has too.
const OWN: [Metric; 9] = [
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
        "todana_resident_bytes",
        Gauge,
        "Memory of the whole process, which -m limits.",
        &[(&[], "todana_resident_bytes")],
    ),
];

/// Only where there is a data directory.
const KEPT: [Metric; 16] = [
    plain("todana_loading", Gauge, "1 while the data is read back.", &[(&[], "todana_loading")]),
    plain(
        "todana_log_takes_writes",
        Gauge,
        "0 while the update log cannot be written and writes are refused.",
        &[(&[], "todana_log_takes_writes")],
    ),
    plain(
        "todana_log_refused_writes_total",
        Counter,
        "Writes refused as the update log cannot be written.",
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

/// Writes the answer to `/metrics`, and remembers what it must not take back.
#[derive(Default)]
pub(super) struct Metrics {
    /// Plain sets by class, `None` for all.
    sets: HashMap<Option<u32>, Difference>,
}

impl Metrics {
    /// All of it, or without what there is of each class: fourteen of fifteen samples where all classes are in use.
    pub(super) fn text(&mut self, readings: &Readings, with_classes: bool) -> String {
        let mut text = Exposition::default();
        identity(&mut text, readings);
        GENERAL.iter().for_each(|metric| write(&mut text, readings, metric));
        self.commands(&mut text, readings);
        if with_classes {
            by_class(&mut text, readings);
            self.commands_by_class(&mut text, readings);
        }
        process(&mut text);
        OWN.iter().chain(&KEPT).for_each(|metric| write(&mut text, readings, metric));
        engine(&mut text, readings);
        databases(&mut text, readings);
        text.into_text()
    }

    fn commands(&mut self, text: &mut Exposition, readings: &Readings) {
        let cas: Option<u64> =
            ["cas_hits", "cas_misses", "cas_badval"].iter().map(|name| readings.count(name)).sum();
        let sets = readings.count("cmd_set").zip(cas);
        let sets = sets.map(|(all, cas)| self.sets.entry(None).or_default().less(all, cas));
        let help = "Requests by command and outcome; set is what cas is not.";
        text.family("memcached_commands_total", Counter, help, |family| {
            for (labels, statistic) in COMMANDS {
                family.sample(labels, readings.number(statistic));
            }
            family.sample(&[("command", "set"), ("status", "hit")], sets);
        });
    }

    fn commands_by_class(&mut self, text: &mut Exposition, readings: &Readings) {
        let help = "Requests by class, command and outcome.";
        text.family("memcached_slab_commands_total", Counter, help, |family| {
            for (number, class) in readings.classes(Group::Slabs) {
                let slab = number.to_string();
                for (command, status, statistic) in CLASS_COMMANDS {
                    let labels = [("slab", &*slab), ("command", command), ("status", status)];
                    family.sample(&labels, class.number(statistic));
                }
                let cas: Option<u64> = ["cas_hits", "cas_badval"].iter().map(|name| class.count(name)).sum();
                let sets = class.count("cmd_set").zip(cas);
                let sets = sets.map(|(all, cas)| self.sets.entry(Some(number)).or_default().less(all, cas));
                family.sample(&[("slab", &slab), ("command", "set"), ("status", "hit")], sets);
            }
        });
    }
}

/// The difference of two counters that are read one after the other while both grow. Now and then it would come out
/// smaller than before, which Prometheus takes for a restart: it then adds the whole count to the rate.
#[derive(Default)]
struct Difference {
    shown: u64,
    from: u64,
}

impl Difference {
    fn less(&mut self, from: u64, part: u64) -> u64 {
        // `stats reset` does take counters back.
        let floor = if from < self.from { 0 } else { self.shown };
        self.from = from;
        self.shown = from.saturating_sub(part).max(floor);
        self.shown
    }
}

/// What each database holds, whatever protocol it is used by.
fn databases(text: &mut Exposition, readings: &Readings) {
    type Of = fn(&OfDatabase) -> Option<u64>;
    let families: [(&str, Kind, &str, Of); 11] = [
        ("todana_database_records", Gauge, "Records of a database.", |one| Some(one.status.records)),
        ("todana_database_bytes", Gauge, "Their bytes as stored.", |one| Some(one.status.live_bytes)),
        ("todana_database_memory_bytes", Gauge, "Memory that its engine holds.", |one| {
            Some(one.status.committed_bytes)
        }),
        ("todana_database_disk_bytes", Gauge, "Bytes of the files of its engine.", |one| {
            Some(one.disk_bytes)
        }),
        ("todana_database_takes_writes", Gauge, "0 while its changes cannot be written to disk.", |one| {
            Some(u64::from(one.takes_writes))
        }),
        ("todana_database_refused_writes_total", Counter, "Writes refused for that.", |one| {
            Some(one.refused_writes)
        }),
        ("todana_database_evictions_total", Counter, "Records removed to make room.", |one| {
            Some(one.status.evictions)
        }),
        ("todana_database_pending_bytes", Gauge, "Memory of changes that wait for a checkpoint.", |one| {
            Some(one.pending_bytes)
        }),
        ("todana_database_log_bytes", Gauge, "Bytes of its update log on disk.", |one| {
            one.kept.as_ref().map(|kept| kept.log_bytes)
        }),
        ("todana_database_checkpoints_made_total", Counter, "Checkpoints made.", |one| {
            one.kept.as_ref().map(|kept| kept.checkpoints_made)
        }),
        ("todana_database_checkpoints_failed_total", Counter, "Checkpoints that could not be made.", |one| {
            one.kept.as_ref().map(|kept| kept.checkpoints_failed)
        }),
    ];
    for (name, kind, help, of) in families {
        if readings.databases.iter().all(|one| of(one).is_none()) {
            continue;
        }
        text.family(name, kind, help, |family| {
            for one in &readings.databases {
                if let Some(value) = of(one) {
                    family.sample(&[("db", &one.name)], Some(value));
                }
            }
        });
    }
}

fn write(text: &mut Exposition, readings: &Readings, metric: &Metric) {
    text.family(metric.name, metric.kind, metric.help, |family| {
        for (labels, statistic) in metric.samples {
            family.sample(labels, readings.number(statistic));
        }
    });
}

fn identity(text: &mut Exposition, readings: &Readings) {
    text.family("memcached_up", Gauge, "1: it answers.", |family| family.sample(&[], Some(1)));
    let versions = [
        ("memcached_version", "The version of memcached that clients are told.", "version"),
        ("todana_build_info", "The version of Todana.", "todana_version"),
    ];
    for (name, help, statistic) in versions {
        text.family(name, Gauge, help, |family| {
            if let Some(version) = readings.text(statistic) {
                family.sample(&[("version", version)], Some(1));
            }
        });
    }
}

fn by_class(text: &mut Exposition, readings: &Readings) {
    let has = |metric: &ClassMetric| {
        readings.classes(metric.group).any(|(_, class)| class.number(metric.statistic).is_some())
    };
    let mut written = Vec::new();
    // Some statistics were in one group once and are in the other now.
    for metric in BY_CLASS.iter().filter(|metric| has(metric)) {
        if written.contains(&metric.name) {
            continue;
        }
        written.push(metric.name);
        each_class(text, readings, metric.group, (metric.name, metric.kind, metric.help), &|class| {
            vec![(None, class.number(metric.statistic))]
        });
    }
    let metric =
        ("memcached_slab_lru_hits_total", Counter, "Reads that found a record, by memcached's queue.");
    each_class(text, readings, Group::Items, metric, &|class| {
        QUEUES.iter().map(|(queue, statistic)| (Some(*queue), class.number(statistic))).collect()
    });
}

/// The samples of a class: the queue, if they are told apart, and the value.
type ClassSamples<'a> = Vec<(Option<&'static str>, Option<&'a str>)>;

fn each_class<'a>(
    text: &mut Exposition,
    readings: &'a Readings,
    group: Group,
    (name, kind, help): (&str, Kind, &str),
    samples: &dyn Fn(Class<'a>) -> ClassSamples<'a>,
) {
    text.family(name, kind, help, |family| {
        for (number, class) in readings.classes(group) {
            let slab = number.to_string();
            for (queue, value) in samples(class) {
                match queue {
                    Some(queue) => family.sample(&[("slab", &slab), ("lru", queue)], value),
                    None => family.sample(&[("slab", &slab)], value),
                }
            }
        }
    });
}

/// What the exporter tells of a process whose pid file it is given.
fn process(text: &mut Exposition) {
    let (user, system) = process::cpu_time();
    let mut put = |name, kind, help, value: Option<String>| {
        text.family(name, kind, help, |family| family.sample(&[], value));
    };
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    let cpu = Some(decimal(user + system));
    put("memcached_process_cpu_seconds_total", Counter, "CPU time, user and system.", cpu);
    let resident = Some(process::resident_bytes()).filter(|&bytes| bytes > 0);
    put("memcached_process_resident_memory_bytes", Gauge, "Resident memory.", number(resident));
    put(
        "memcached_process_virtual_memory_bytes",
        Gauge,
        "Address space in use.",
        number(process::virtual_bytes()),
    );
    // No limit is shown as the largest number there, too.
    let virtual_max = number(Some(process::virtual_bytes_max().unwrap_or(u64::MAX)));
    put("memcached_process_virtual_memory_max_bytes", Gauge, "How large it may be.", virtual_max);
    put("memcached_process_open_fds", Gauge, "Files open now.", number(process::open_files()));
    put("memcached_process_max_fds", Gauge, "Files that may be open.", number(process::files_max()));
    let started = process::started_at().map(decimal);
    put("memcached_process_start_time_seconds", Gauge, "Start of the process, Unix time.", started);
}

fn decimal(time: Duration) -> String {
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}

fn engine(text: &mut Exposition, readings: &Readings) {
    let status = &readings.engine;
    let mut put = |name, kind, help, value: Option<u64>| {
        text.family(name, kind, help, |family| family.sample(&[], value));
    };
    put("todana_records", Gauge, "Records held.", Some(status.records));
    put("todana_live_bytes", Gauge, "Bytes of the records as stored.", Some(status.live_bytes));
    put(
        "todana_committed_bytes",
        Gauge,
        "Memory held for them, index and slack included.",
        Some(status.committed_bytes),
    );
    put(
        "todana_engine_limit_bytes",
        Gauge,
        "What may be held for them: the memory limit less what the rest of the process takes.",
        readings.engine_limit_bytes,
    );
    put("todana_held_bytes", Gauge, "What connections keep between their turns.", Some(readings.held_bytes));
    put("todana_held_limit_bytes", Gauge, "What they may keep.", Some(readings.held_max_bytes));
    put(
        "todana_exports_held_bytes",
        Gauge,
        "On disk for the sake of backups and readers of the log alone: log, and removed files.",
        Some(readings.exports_held_bytes),
    );
    put("todana_evictions_total", Counter, "Records removed to make room.", Some(status.evictions));
    put(
        "todana_evictions_with_expiry_total",
        Counter,
        "Of those, with an expiry.",
        Some(status.evictions_with_expiry),
    );
    put(
        "todana_expired_displaced_total",
        Counter,
        "Expired records that went first when room was wanted.",
        Some(status.reclaimed),
    );
    put(
        "todana_expired_removed_total",
        Counter,
        "Expired records removed when met or by the sweep in the background.",
        ["reclaimed", "crawler_reclaimed"].iter().map(|name| readings.count(name)).sum(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_sets_never_shrink_but_at_a_reset() {
        let mut sets = Difference::default();
        assert_eq!(sets.less(10, 0), 10);
        assert_eq!(sets.less(10, 3), 10, "the cas ran between the two reads");
        assert_eq!(sets.less(14, 3), 11);
        assert_eq!(sets.less(2, 1), 1, "reset");
        assert_eq!(sets.less(2, 5), 1);
    }

    #[test]
    fn names_are_told_once() {
        let mut names: Vec<&str> =
            GENERAL.iter().chain(&OWN).chain(&KEPT).map(|metric| metric.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
