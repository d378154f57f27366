//! The numbers behind the metrics: what `stats` says, so that both always agree, and what the engine says besides.

use crate::databases::Served;
use crate::observation::statistics;
use crate::replica::ConnectedReplica;
use crate::session::kyoto::Sums;
use crate::shared::Shared;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use todana_core::{Reply, Status};

/// Statistics by name.
type Values = HashMap<String, String>;

/// Everything read at one time, or nearly so: workers go on counting meanwhile.
pub(super) struct Readings {
    general: Values,
    /// By memcached's number of the class.
    items: BTreeMap<u32, Values>,
    slabs: BTreeMap<u32, Values>,
    pub(super) engine: Status,
    pub(super) databases: Vec<OfDatabase>,
    /// What the engine may hold; `None` without a memory limit.
    pub(super) engine_limit_bytes: Option<u64>,
    /// What connections keep between their turns, and may keep.
    pub(super) held_bytes: u64,
    pub(super) held_max_bytes: u64,
    /// What is on disk for the sake of exports alone.
    pub(super) exports_held_bytes: u64,
    /// Of Kyoto Tycoon's protocols.
    pub(super) kyoto: OfKyoto,
    /// Those that follow this server.
    pub(super) replicas: Vec<Arc<ConnectedReplica>>,
}

/// What Kyoto Tycoon's clients have asked for, and who of them waits.
pub(super) struct OfKyoto {
    pub(super) sums: Sums,
    pub(super) waiting: u64,
    pub(super) background_calls: u64,
    pub(super) background_calls_done: u64,
}

/// What a database holds.
pub(super) struct OfDatabase {
    pub(super) name: String,
    pub(super) status: Status,
    pub(super) disk_bytes: u64,
    pub(super) takes_writes: bool,
    pub(super) refused_writes: u64,
    pub(super) pending_bytes: u64,
    /// Of its own files, where it has such.
    pub(super) files: Option<OfFiles>,
    /// Of its update log, where there is one.
    pub(super) kept: Option<OfDirectory>,
}

/// What of the health of an engine's files is told.
pub(super) struct OfFiles {
    pub(super) in_trouble: bool,
    pub(super) damaged_records: u64,
}

/// What of a database's log and checkpoints is told.
pub(super) struct OfDirectory {
    pub(super) log_bytes: u64,
    pub(super) checkpoints_made: u64,
    pub(super) checkpoints_failed: u64,
}

/// By what `stats` lists classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Items,
    Slabs,
}

impl Readings {
    pub(super) fn take(shared: &Shared) -> Readings {
        let mut general = Values::new();
        let (mut items, mut slabs) = (BTreeMap::new(), BTreeMap::new());
        let mut keep = |name: &str, value: &str| general.insert(name.to_string(), value.to_string());
        // The general names come last, as those that count where two groups have the same.
        each(shared, b"settings", &mut |name, value| {
            keep(name, value);
        });
        each(shared, b"items", &mut |name, value| {
            if let Some(name) = name.strip_prefix("items:") {
                keep_in_class(&mut items, name, value);
            }
        });
        each(shared, b"slabs", &mut |name, value| {
            if !keep_in_class(&mut slabs, name, value) {
                keep(name, value);
            }
        });
        each(shared, b"", &mut |name, value| {
            keep(name, value);
        });
        let kept = |number| {
            let directory = shared.persistence.exports.directory(number)?;
            let history = directory.history();
            Some(OfDirectory {
                log_bytes: directory.footprint().log_bytes,
                checkpoints_made: history.made,
                checkpoints_failed: history.failed,
            })
        };
        let of = |(number, served): (usize, &Served)| OfDatabase {
            name: served.name.label().to_string(),
            status: served.database.status(),
            disk_bytes: served.disk_bytes(),
            takes_writes: statistics::takes_writes(served),
            refused_writes: served.database.counters().log_refusals,
            pending_bytes: statistics::pending_bytes(served),
            files: served.has_files().then(|| OfFiles {
                in_trouble: served.trouble().is_some(),
                damaged_records: served.damaged_records().map_or(0, |(count, _)| count),
            }),
            kept: kept(number),
        };
        let databases = shared.databases.iter().enumerate().map(of).collect();
        let engine = shared.databases.primary().database.engine();
        Readings {
            databases,
            general,
            items,
            slabs,
            engine: engine.status(),
            engine_limit_bytes: engine.bounded().and_then(|bounded| bounded.limit().bytes),
            held_bytes: shared.memory.held_bytes(),
            held_max_bytes: shared.memory.held_max(),
            exports_held_bytes: shared.persistence.exports.held_bytes(),
            kyoto: OfKyoto {
                sums: Sums::of(&shared.observation.workers),
                waiting: shared.kyoto.signals.waiting() as u64,
                background_calls: (shared.kyoto.errands.pending() + shared.kyoto.script_errands.pending())
                    as u64,
                background_calls_done: shared.kyoto.errands.done() + shared.kyoto.script_errands.done(),
            },
            replicas: shared.replicas.connected(),
        }
    }

    /// A value as `stats` has it.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.general.get(name).map(String::as_str)
    }

    /// A value that is a number; yes and no are 1 and 0.
    pub(super) fn number(&self, name: &str) -> Option<&str> {
        numeric(self.text(name)?)
    }

    /// A value that counts.
    pub(super) fn count(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// The classes of a group, each with its numbers.
    pub(super) fn classes(&self, group: Group) -> impl Iterator<Item = (u32, Class<'_>)> {
        let classes = match group {
            Group::Items => &self.items,
            Group::Slabs => &self.slabs,
        };
        classes.iter().map(|(number, values)| (*number, Class(values)))
    }
}

/// The numbers of one class.
#[derive(Clone, Copy)]
pub(super) struct Class<'a>(&'a Values);

impl<'a> Class<'a> {
    pub(super) fn number(self, name: &str) -> Option<&'a str> {
        numeric(self.0.get(name)?)
    }

    pub(super) fn count(self, name: &str) -> Option<u64> {
        self.0.get(name)?.parse().ok()
    }
}

/// What `stats GROUP` answers, value by value.
fn each(shared: &Shared, group: &[u8], see: &mut dyn FnMut(&str, &str)) {
    // Nobody's connection asks; the groups asked for are answered at once.
    let _ = statistics::answer(shared, group, -1, &mut |reply| {
        if let Reply::Statistic { name, value } = reply {
            see(name, value);
        }
    });
}

/// Keeps `NUMBER:name`; false if it is not of that form.
fn keep_in_class(classes: &mut BTreeMap<u32, Values>, name: &str, value: &str) -> bool {
    let Some((number, name)) = name.split_once(':') else { return false };
    let Ok(number) = number.parse() else { return false };
    classes.entry(number).or_default().insert(name.to_string(), value.to_string());
    true
}

fn numeric(value: &str) -> Option<&str> {
    match value {
        "yes" => Some("1"),
        "no" => Some("0"),
        _ => value.parse::<f64>().is_ok_and(f64::is_finite).then_some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_are_numbers() {
        for (value, expected) in [
            ("17", Some("17")),
            ("18446744073709551615", Some("18446744073709551615")),
            ("0.000120", Some("0.000120")),
            ("yes", Some("1")),
            ("no", Some("0")),
            ("NULL", None),
            ("inf", None),
            ("", None),
            ("1.6.45", None),
        ] {
            assert_eq!(numeric(value), expected, "{value:?}");
        }
    }

    #[test]
    fn values_of_classes_are_told_from_others() {
        let mut classes = BTreeMap::new();
        assert!(keep_in_class(&mut classes, "3:chunk_size", "152"));
        assert!(!keep_in_class(&mut classes, "active_slabs", "1"));
        assert!(!keep_in_class(&mut classes, "x:chunk_size", "1"));
        assert_eq!(classes[&3]["chunk_size"], "152");
        assert_eq!(classes.len(), 1);
    }
}
