//! Checks the statistics of a running server.

use super::ServerNeeds;
use super::certificate::der_valid_until;
use super::configuration::certificate_expiry;
use super::finding::{CheckReport, Finding};
use crate::{CommandFailure, time_to_live};
use indicatif::{HumanCount, HumanDuration};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use todana_client::{Address, Connection};

/// The difference of two clocks that needs no change, and that of a wrong clock, in seconds.
const CLOCK_OK_S: u64 = 2;
const CLOCK_WRONG_S: u64 = 60;
/// The age of a replica's data that needs no change, in seconds.
const DELAY_OK_S: f64 = 10.0;

/// Checks a server. Returns what it needs of its machine if that is this machine.
pub(super) fn check(
    connection: &mut Connection,
    address: &Address,
    report: &mut CheckReport,
) -> Result<Option<ServerNeeds>, CommandFailure> {
    let figures = ServerFigures(connection.stats("")?.into_iter().collect());
    let now = time_to_live::now();
    let settings = ServerFigures(connection.stats("settings")?.into_iter().collect());
    // A memcached has neither databases nor replicas.
    let of_databases = connection.stats("databases").unwrap_or_default();
    let of_replication = connection.stats("replication").unwrap_or_default();
    let name = match figures.0.get("todana_version") {
        Some(version) => format!("todana {version}"),
        None => format!("memcached {}", figures.text("version")),
    };
    let up = HumanDuration(Duration::from_secs(figures.count("uptime")));
    report.add(Finding::ok("server", format!("{name}, running for {up}")));
    report.add_all(certificate(connection));
    report.add_all(clock(&figures, now));
    report.add_all(login(&settings));
    report.add_all(connections(&figures));
    report.add_all(memory(&figures, &settings));
    report.add_all(durability(&figures));
    report.add_all(databases(&ServerFigures(of_databases.into_iter().collect())));
    report.add_all(replication(&figures, &ServerFigures(of_replication.into_iter().collect())));
    Ok(needs(&figures, &settings, address))
}

/// Checks how long the certificate of a server with TLS is valid.
fn certificate(connection: &Connection) -> Option<Finding> {
    let until = der_valid_until(connection.certificate()?)?;
    Some(certificate_expiry("server's certificate", until))
}

/// The statistics of a server, by their names.
struct ServerFigures(BTreeMap<String, String>);

impl ServerFigures {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn count(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns a finding if a counter is not 0.
    fn counted(&self, name: &str, what: &str, change: &str) -> Option<Finding> {
        let count = self.count(name);
        (count > 0).then(|| Finding::warning(name, format!("{} {what}", HumanCount(count)), change))
    }
}

/// Returns what a server on this machine needs. Its data directory may be relative to a folder that
/// is not known here.
fn needs(figures: &ServerFigures, settings: &ServerFigures, address: &Address) -> Option<ServerNeeds> {
    let is_here = match address {
        Address::Unix(_) => true,
        Address::Tcp(host, _) | Address::Tls(host, _) => {
            host == "localhost" || host == "::1" || host.starts_with("127.")
        }
    };
    let pid = u32::try_from(figures.count("pid")).ok().filter(|_| is_here)?;
    // A tunnel or a container has an address of this machine, too.
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let is_process = name.trim().contains("todana") || name.trim().contains("memcached");
    let directory = Path::new(settings.text("memory_file"));
    is_process.then(|| ServerNeeds {
        memory_limit: figures.count("limit_maxbytes"),
        connections_max: figures.count("max_connections"),
        directories: Some(directory)
            .filter(|path| path.is_absolute() && path.is_dir())
            .map(Into::into)
            .into_iter()
            .collect(),
        pid: Some(pid),
    })
}

fn clock(figures: &ServerFigures, now: u64) -> Option<Finding> {
    let theirs = figures.text("time").parse::<u64>().ok()?;
    let difference = theirs.abs_diff(now);
    const CHANGE: &str = "synchronise the clocks of both machines";
    let facts = format!("{difference} s from that of this machine");
    Some(match difference {
        seconds if seconds <= CLOCK_OK_S => Finding::ok("server's clock", facts),
        seconds if seconds <= CLOCK_WRONG_S => Finding::warning("server's clock", facts, CHANGE),
        _ => Finding::problem("server's clock", facts, CHANGE),
    })
}

fn login(settings: &ServerFigures) -> Option<Finding> {
    let address = settings.0.get("inter")?;
    let is_local = !address.is_empty()
        && address.split(',').all(|one| one.starts_with("127.") || one.starts_with("::1"));
    let has_login =
        ["auth_enabled_sasl", "auth_enabled_ascii"].iter().any(|name| settings.text(name) == "yes")
            || settings.count("ssl_verify_mode") >= 2;
    // A server on a Unix socket only has no TCP port.
    if is_local || has_login || settings.count("tcpport") == 0 {
        return Some(Finding::ok("listener", format!("{address}, or with login")));
    }
    let places = if ["", "NULL"].contains(&address.as_str()) { "all addresses" } else { address };
    Some(Finding::warning(
        "listener",
        format!("{places}, without login: who reaches it can read and write all records"),
        "require logins (docs/tls-and-logins.md), listen on 127.0.0.1, or filter the port",
    ))
}

fn connections(figures: &ServerFigures) -> Vec<Finding> {
    let (now, most) = (figures.count("curr_connections"), figures.count("max_connections"));
    let facts = format!("{} of {}", HumanCount(now), HumanCount(most));
    let use_finding = match now * 5 > most * 4 && most > 0 {
        true => {
            Finding::warning("connections", facts, "raise -c, or close idle connections with idle_timeout")
        }
        false => Finding::ok("connections", facts),
    };
    let refused = figures.counted("rejected_connections", "were refused at the limit", "raise -c");
    let disabled = figures.counted(
        "listen_disabled_num",
        "times no connection could be accepted",
        "raise -c and the limit of open files",
    );
    let logins = figures.counted("auth_errors", "logins failed", "see the log for their addresses");
    [Some(use_finding), refused, disabled, logins].into_iter().flatten().collect()
}

fn memory(figures: &ServerFigures, settings: &ServerFigures) -> Vec<Finding> {
    let evictions = figures.count("evictions");
    let hours = figures.count("uptime").max(1) as f64 / 3600.0;
    let evicted = match evictions {
        0 => Finding::ok("evictions", "none"),
        _ => Finding::warning(
            "evictions",
            format!("{}, {} an hour", HumanCount(evictions), HumanCount((evictions as f64 / hours) as u64)),
            "raise -m if these records are still needed; a cache may evict",
        ),
    };
    let full = match figures.count("store_no_memory") {
        0 => None,
        count => Some(Finding::problem(
            "store_no_memory",
            format!("{} writes were refused (evictions {})", HumanCount(count), settings.text("evictions")),
            "raise -m, or leave out -M",
        )),
    };
    let large = figures.counted("store_too_large", "writes exceeded the largest record", "raise -I");
    [Some(evicted), full, large].into_iter().flatten().collect()
}

fn durability(figures: &ServerFigures) -> Vec<Finding> {
    if !figures.has("todana_log_health") {
        return Vec::new();
    }
    let health = figures.text("todana_log_health");
    let log = match (health, figures.text("todana_log_takes_writes")) {
        ("well", "1") => Finding::ok("update log", "well"),
        (_, "0") => Finding::problem(
            "update log",
            format!("{health}; writes are refused"),
            "free space on its disk, or see the log for the error",
        ),
        _ => Finding::problem("update log", health, "see the log for the error of the disk"),
    };
    let refused = figures.counted("todana_log_refusals", "writes were refused", "see the log for the reason");
    let failed = figures.counted(
        "todana_checkpoints_failed",
        "checkpoints failed",
        "see the log; free space for a second checkpoint",
    );
    let salvaged = figures.counted(
        "todana_salvaged_changes",
        "changes of this server, a former master, are only in a salvaged log",
        "see docs/replication.md, \"Promotion\", on how to read them",
    );
    [Some(log), refused, failed, salvaged].into_iter().flatten().collect()
}

/// Returns a finding for each database, about its disk and whether it accepts writes.
fn databases(figures: &ServerFigures) -> Vec<Finding> {
    let mut findings = Vec::new();
    for number in 0.. {
        let of = |name: &str| figures.text(&format!("{number}:{name}"));
        if of("name").is_empty() {
            return findings;
        }
        let subject = format!("database {}", of("name"));
        let health = if of("health").is_empty() { "in memory only" } else { of("health") };
        if of("takes_writes") == "0" {
            findings.push(Finding::problem(&subject, format!("{health}; writes are refused"), "see the log"));
        } else if !["well", "in memory only"].contains(&health) {
            findings.push(Finding::problem(&subject, health, "see the log for the error of the disk"));
        } else {
            findings.push(Finding::ok(&subject, health));
        }
    }
    findings
}

fn replication(figures: &ServerFigures, of_replicas: &ServerFigures) -> Vec<Finding> {
    let mut findings = Vec::new();
    if figures.count("todana_superseded") == 1 {
        findings.push(Finding::problem(
            "replication",
            "another server has become the master",
            "start this server with --replicate and the new master",
        ));
    }
    let delay_finding = |subject: &str, delay: &str| {
        let seconds = delay.parse().unwrap_or(0.0);
        let facts = format!("{seconds:.1} s late");
        match seconds <= DELAY_OK_S {
            true => Finding::ok(subject, facts),
            false => {
                Finding::warning(subject, facts, "see `todana replicas`, the network and the replica's disk")
            }
        }
    };
    if figures.has("todana_replica_master") {
        let subject = format!("master {}", figures.text("todana_replica_master"));
        findings.push(match figures.count("todana_replica_connected") {
            0 => Finding::problem(&subject, "not connected", "see the log for the reason"),
            _ => delay_finding(&subject, figures.text("todana_replica_delay_seconds")),
        });
    }
    for number in 0.. {
        let of = |name: &str| of_replicas.text(&format!("replica:{number}:{name}"));
        if of("address").is_empty() {
            break;
        }
        findings.push(delay_finding(&format!("replica {}", of("address")), of("delay_seconds")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::FindingLevel::{self, Ok, Problem, Warning};

    fn figures(pairs: &[(&str, &str)]) -> ServerFigures {
        ServerFigures(pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    fn levels(findings: Vec<Finding>) -> Vec<FindingLevel> {
        findings.into_iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn counters_of_failures_are_reported() {
        let full =
            figures(&[("curr_connections", "9"), ("max_connections", "10"), ("rejected_connections", "3")]);
        assert_eq!(levels(connections(&full)), [Warning, Warning]);
        let calm = figures(&[("curr_connections", "1"), ("max_connections", "10")]);
        assert_eq!(levels(connections(&calm)), [Ok]);
        let evicting = figures(&[("evictions", "7200"), ("uptime", "7200"), ("store_no_memory", "1")]);
        let found = memory(&evicting, &figures(&[]));
        assert!(found[0].text.starts_with("evictions: 7,200, 3,600 an hour; "), "{}", found[0].text);
        assert_eq!(levels(found), [Warning, Problem]);
        let log = |health, takes| {
            levels(durability(&figures(&[
                ("todana_log_health", health),
                ("todana_log_takes_writes", takes),
                ("todana_checkpoints_failed", "1"),
            ])))
        };
        assert_eq!(log("well", "1"), [Ok, Warning]);
        assert_eq!(log("full", "0"), [Problem, Warning]);
        assert!(durability(&figures(&[])).is_empty());
    }

    #[test]
    fn databases_and_replicas_are_reported() {
        let two = figures(&[
            ("0:name", "mem:hash"),
            ("1:name", "x.tree"),
            ("1:health", "damaged"),
            ("1:takes_writes", "1"),
        ]);
        assert_eq!(levels(databases(&two)), [Ok, Problem]);
        let replicas = figures(&[("replica:0:address", "a:1"), ("replica:0:delay_seconds", "11")]);
        assert_eq!(
            levels(replication(&figures(&[("todana_superseded", "1")]), &replicas)),
            [Problem, Warning]
        );
        let master = |connected, delay| {
            levels(replication(
                &figures(&[
                    ("todana_replica_master", "b:1"),
                    ("todana_replica_connected", connected),
                    ("todana_replica_delay_seconds", delay),
                ]),
                &figures(&[]),
            ))
        };
        assert_eq!(master("0", "0.1"), [Problem]);
        assert_eq!(master("1", "0.1"), [Ok]);
        let skew = |theirs| clock(&figures(&[("time", theirs)]), 1000).unwrap().level;
        assert_eq!([skew("1001"), skew("990"), skew("2000")], [Ok, Warning, Problem]);
        let listener = |address, sasl| {
            login(&figures(&[("inter", address), ("auth_enabled_sasl", sasl), ("tcpport", "1")]))
                .unwrap()
                .level
        };
        assert_eq!(
            [listener("127.0.0.1", "no"), listener("NULL", "no"), listener("NULL", "yes")],
            [Ok, Warning, Ok]
        );
    }
}
