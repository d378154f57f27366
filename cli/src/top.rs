//! `todana top`: shows what a server does, and refreshes it.

use crate::CommandFailure;
use crate::command_target::CommandTarget;
use crate::server_options::ServerOptions;
use crate::time_to_live::seconds;
use clap::Args;
use indicatif::{BinaryBytes, HumanCount, HumanDuration};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use todana_client::Connection;

pub(crate) const AFTER_HELP: &str = "\
Rates are those since the view before. A memcached can be watched, too. Ctrl-C
ends it. Example: todana top --count 1   # once, as a report";

/// Moves the cursor of a terminal to its beginning, and clears it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// The arguments of `todana top`.
#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// The server; or -S
    #[arg(value_name = "SERVER")]
    place: Option<CommandTarget>,
    /// The time between two views, in seconds or as 1m ...
    #[arg(long, default_value = "1", value_parser = seconds, value_name = "TIME")]
    interval: i64,
    /// End after this number of views
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    #[command(flatten)]
    server: ServerOptions,
}

pub(crate) fn run(arguments: &TopArguments) -> Result<(), CommandFailure> {
    let TopArguments { place, interval, count, server } = arguments;
    let destination = server.place(place.as_ref())?.server()?;
    let mut connection = server.connect(&destination)?;
    let interval = Duration::from_secs(interval.max(&1).unsigned_abs());
    let mut out = std::io::stdout();
    let clear = if out.is_terminal() { CLEAR } else { "" };
    let mut before = ServerFigures::read(&mut connection)?;
    for _ in 0..count.unwrap_or(u64::MAX) {
        std::thread::sleep(interval);
        let now = ServerFigures::read(&mut connection)?;
        write!(out, "{clear}{}", view(&before, &now))?;
        out.flush()?;
        before = now;
    }
    Ok(())
}

/// The statistics of a server at a time.
struct ServerFigures {
    at: Instant,
    texts: BTreeMap<String, String>,
    databases: Vec<BTreeMap<String, String>>,
}

impl ServerFigures {
    fn read(connection: &mut Connection) -> Result<ServerFigures, CommandFailure> {
        let all = connection.stats("")?;
        // A memcached has no databases.
        let databases = connection.stats("databases").unwrap_or_default();
        Ok(ServerFigures::of(Instant::now(), all, databases))
    }

    fn of(at: Instant, all: Vec<(String, String)>, of_databases: Vec<(String, String)>) -> ServerFigures {
        let mut databases: Vec<BTreeMap<String, String>> = Vec::new();
        for (name, value) in of_databases {
            let Some((number, name)) = name.split_once(':') else { continue };
            let Ok(number) = number.parse::<usize>() else { continue };
            if number == databases.len() {
                databases.push(BTreeMap::new());
            }
            if let Some(database) = databases.get_mut(number) {
                database.insert(name.to_string(), value);
            }
        }
        ServerFigures { at, texts: all.into_iter().collect(), databases }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> f64 {
        self.text(name).and_then(|text| text.parse().ok()).unwrap_or(0.0)
    }

    fn count(&self, name: &str) -> u64 {
        self.number(name) as u64
    }
}

/// Returns the lines of a view.
fn view(before: &ServerFigures, now: &ServerFigures) -> String {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64().max(0.001);
    let rate = |names: &[&str]| {
        let sum = |of: &ServerFigures| names.iter().map(|name| of.number(name)).sum::<f64>();
        ((sum(now) - sum(before)) / seconds).max(0.0)
    };
    let per_second = |names: &[&str]| HumanCount(rate(names).round() as u64).to_string();
    let size = |bytes: f64| BinaryBytes(bytes.max(0.0) as u64).to_string();
    let mut text = String::new();
    let mut line = |name: &str, rest: String| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{name:<12} {rest}");
    };
    let name = now.text("todana_version").map_or_else(
        || format!("memcached {}", now.text("version").unwrap_or("?")),
        |version| format!("todana {version}"),
    );
    let up = HumanDuration(Duration::from_secs(now.count("uptime")));
    line("server", format!("{name}, running for {up}"));
    line(
        "requests/s",
        format!(
            "get {}  set {}  delete {}  count {}  touch {}",
            per_second(&["cmd_get"]),
            per_second(&["cmd_set"]),
            per_second(&["delete_hits", "delete_misses"]),
            per_second(&["incr_hits", "incr_misses", "decr_hits", "decr_misses"]),
            per_second(&["cmd_touch"]),
        ),
    );
    let (hits, misses) = (rate(&["get_hits"]), rate(&["get_misses"]));
    let ratio = if hits + misses > 0.0 {
        format!("{:.1} % of the reads found a record", hits / (hits + misses) * 100.0)
    } else {
        "no reads".into()
    };
    line("hit ratio", ratio);
    let removed = format!(
        "evicted {}/s  expired {}/s",
        per_second(&["evictions"]),
        per_second(&["crawler_reclaimed", "reclaimed"])
    );
    line("records", format!("{}  {removed}", HumanCount(now.count("curr_items"))));
    line("memory", memory(now, &size));
    line(
        "connections",
        format!(
            "{} of {}  received {}/s  sent {}/s",
            HumanCount(now.count("curr_connections")),
            HumanCount(now.count("max_connections")),
            size(rate(&["bytes_read"])),
            size(rate(&["bytes_written"])),
        ),
    );
    line("processor", format!("{:.2} cores", rate(&["rusage_user", "rusage_system"])));
    if now.text("todana_log_end").is_some() {
        line("update log", log(now, &size));
    }
    if let Some(master) = now.text("todana_replica_master") {
        let state = if now.number("todana_replica_connected") > 0.0 { "connected" } else { "not connected" };
        let delay = now.number("todana_replica_delay_seconds");
        line("master", format!("{master}, {state}, delay {delay:.1} s"));
    }
    for database in &now.databases {
        let of = |name: &str| database.get(name).map_or("-", String::as_str);
        let count = of("records").parse().map_or_else(|_| "-".into(), |count| HumanCount(count).to_string());
        let bytes = |name: &str| of(name).parse().map_or_else(|_| "-".into(), &size);
        let health = database.get("health").map_or("in memory only", String::as_str);
        line(
            "database",
            format!(
                "{}  records {count}  memory {}  files {}  {health}",
                of("name"),
                bytes("memory_bytes"),
                bytes("disk_bytes")
            ),
        );
    }
    text
}

fn memory(now: &ServerFigures, size: &dyn Fn(f64) -> String) -> String {
    let limit = match now.number("limit_maxbytes") {
        0.0 => "without limit".to_string(),
        limit => format!("of {}", size(limit)),
    };
    let records = now.number("bytes");
    if now.text("todana_anonymous_bytes").is_none() {
        return format!("{} {limit}", size(records));
    }
    let (process, index) = (now.number("todana_anonymous_bytes"), now.number("hash_bytes"));
    format!("{} {limit}: records {}, index {}", size(process), size(records), size(index))
}

fn log(now: &ServerFigures, size: &dyn Fn(f64) -> String) -> String {
    let checkpoint = match now.count("todana_last_checkpoint_time") {
        0 => "no checkpoint".to_string(),
        at => format!(
            "last checkpoint {} ago",
            HumanDuration(Duration::from_secs(now.count("time").saturating_sub(at)))
        ),
    };
    let unsynced = size(now.number("todana_log_unsynced_bytes"));
    format!("{}, of which {unsynced} not on disk yet; {checkpoint}", size(now.number("todana_log_bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(at: Instant, all: &[(&str, &str)], databases: &[(&str, &str)]) -> ServerFigures {
        let owned = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        ServerFigures::of(at, owned(all), owned(databases))
    }

    #[test]
    fn view_shows_rates_and_sizes() {
        let began = Instant::now();
        let before = figures(began, &[("cmd_get", "100"), ("get_hits", "80"), ("get_misses", "20")], &[]);
        let now = figures(
            began + Duration::from_secs(2),
            &[
                ("todana_version", "1.2.3"),
                ("uptime", "7200"),
                ("cmd_get", "4100"),
                ("get_hits", "3080"),
                ("get_misses", "1020"),
                ("curr_items", "1234567"),
                ("bytes", "1048576"),
                ("todana_anonymous_bytes", "2097152"),
                ("hash_bytes", "1024"),
                ("limit_maxbytes", "67108864"),
                ("curr_connections", "3"),
                ("max_connections", "1024"),
                ("todana_log_end", "9"),
                ("todana_log_bytes", "2048"),
            ],
            &[("0:name", "a.hash"), ("0:records", "5"), ("0:memory_bytes", "1024"), ("1:name", "mem:tree")],
        );
        let view = view(&before, &now);
        for expected in [
            "server       todana 1.2.3, running for 2 hours\n",
            "requests/s   get 2,000  set 0  delete 0  count 0  touch 0\n",
            "hit ratio    75.0 % of the reads found a record\n",
            "records      1,234,567  evicted 0/s  expired 0/s\n",
            "memory       2.00 MiB of 64.00 MiB: records 1.00 MiB, index 1.00 KiB\n",
            "connections  3 of 1,024  received 0 B/s  sent 0 B/s\n",
            "update log   2.00 KiB, of which 0 B not on disk yet; no checkpoint\n",
            "database     a.hash  records 5  memory 1.00 KiB  files -  in memory only\n",
            "database     mem:tree  records -",
        ] {
            assert!(view.contains(expected), "{expected}\n{view}");
        }
    }

    #[test]
    fn memcached_is_shown_by_its_own_figures() {
        let now = Instant::now();
        let all = [("version", "1.6.45"), ("bytes", "1024"), ("limit_maxbytes", "2048")];
        let view = view(&figures(now, &[], &[]), &figures(now, &all, &[]));
        assert!(view.contains("server       memcached 1.6.45, running for 0 seconds\n"), "{view}");
        assert!(
            view.contains("memory       1.00 KiB of 2.00 KiB\n") && !view.contains("update log"),
            "{view}"
        );
    }
}
