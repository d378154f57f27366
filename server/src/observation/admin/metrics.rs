//! `/metrics`: the names of memcached_exporter, so that dashboards and alerts made for it go on working, and ours as
//! `todana_*`. docs/metrics.md lists them; a test holds it to them.
//!
//! A metric whose statistic is not there is left out: that is how the exporter does it.

use super::catalogue::{
    BY_CLASS, CLASS_COMMANDS, COMMANDS, ClassMetric, GENERAL, KEPT, Metric, OWN, QUEUES, REPLICATION,
};
use super::exposition::{Exposition, Kind};
use super::readings::{Class, Group, OfDatabase, OfKyoto, Readings};
use crate::process;
use Kind::{Counter, Gauge};
use std::collections::HashMap;
use std::time::Duration;

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
        OWN.iter().chain(&KEPT).chain(&REPLICATION).for_each(|metric| write(&mut text, readings, metric));
        engine(&mut text, readings);
        databases(&mut text, readings);
        replication(&mut text, readings);
        kyoto(&mut text, readings);
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
    let families: [(&str, Kind, &str, Of); 13] = [
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
        ("todana_database_in_trouble", Gauge, "1 while housekeeping of its files cannot go on.", |one| {
            one.files.as_ref().map(|files| u64::from(files.in_trouble))
        }),
        (
            "todana_database_damaged_records_total",
            Counter,
            "Damaged records that were overwritten or removed.",
            |one| one.files.as_ref().map(|files| files.damaged_records),
        ),
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

/// The master by its address, and how far each replica is.
fn replication(text: &mut Exposition, readings: &Readings) {
    text.family("todana_replica_master_info", Gauge, "The master that is followed.", |family| {
        if let Some(master) = readings.text("todana_replica_master") {
            family.sample(&[("master", master)], Some(1));
        }
    });
    let help = "Seconds since a replica of this server last had all that this server had.";
    text.family("todana_replicas_delay_seconds", Gauge, help, |family| {
        for replica in &readings.replicas {
            let labels = [("address", &*replica.address), ("server_id", &*replica.server_id.to_string())];
            family.sample(&labels, Some(replica.delay().as_secs_f64()));
        }
    });
}

/// What Kyoto Tycoon's clients have asked for.
fn kyoto(text: &mut Exposition, readings: &Readings) {
    let OfKyoto { sums, waiting, background_calls, background_calls_done } = &readings.kyoto;
    text.family(
        "todana_kyoto_requests_total",
        Counter,
        "Requests of Kyoto Tycoon's clients by kind.",
        |family| {
            let kinds = [
                ("call", sums.calls),
                ("rest", sums.resources),
                ("binary", sums.binary),
                ("refused", sums.refused),
            ];
            for (kind, count) in kinds {
                family.sample(&[("kind", kind)], Some(count));
            }
        },
    );
    text.family(
        "todana_kyoto_commands_total",
        Counter,
        "Records that they have asked for, by outcome.",
        |family| {
            let commands = [
                ("get", sums.get, sums.get_misses),
                ("set", sums.set, sums.set_misses),
                ("remove", sums.remove, sums.remove_misses),
            ];
            for (command, all, misses) in commands {
                // Read one after the other while both grow.
                family.sample(&[("command", command), ("status", "hit")], Some(all.saturating_sub(misses)));
                family.sample(&[("command", command), ("status", "miss")], Some(misses));
            }
        },
    );
    let families = [
        ("todana_kyoto_read_bytes_total", Counter, "Bytes of their requests.", sums.bytes_read),
        ("todana_kyoto_written_bytes_total", Counter, "Bytes of the answers.", sums.bytes_written),
        ("todana_kyoto_scripts_total", Counter, "Scripts that they have called.", sums.script),
        ("todana_kyoto_other_total", Counter, "Whatever else they have asked for.", sums.misc),
        (
            "todana_kyoto_waiting",
            Gauge,
            "Clients that wait for a signal, or for a message of a queue.",
            *waiting,
        ),
        (
            "todana_kyoto_background_calls",
            Gauge,
            "Long procedures that are queued or running.",
            *background_calls,
        ),
        (
            "todana_kyoto_background_calls_done_total",
            Counter,
            "Long procedures that have ended.",
            *background_calls_done,
        ),
    ];
    for (name, kind, help, value) in families {
        text.family(name, kind, help, |family| family.sample(&[], Some(value)));
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
    put(
        "todana_held_bytes",
        Gauge,
        "Memory that connections hold for unfinished requests and unsent replies, without long values.",
        Some(readings.held_bytes),
    );
    put(
        "todana_held_limit_bytes",
        Gauge,
        "Limit of that: a quarter of -m; 1 GiB with -m 0.",
        Some(readings.held_max_bytes),
    );
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
}
