//! Prints the statistics of a server: as JSON with types, grouped by theme at a terminal, or as a
//! summary of a database.

use crate::CommandFailure;
use crate::command_output::CommandOutput;
use crate::server_options::ServerTarget;
use crate::suggestions::did_you_mean;
use serde_json::{Map, Value};
use std::io::{self, Write};
use todana_client::{Connection, Error};

/// The names of the groups of statistics.
pub(crate) const GROUPS: &str =
    "items, slabs, sizes, settings, conns, databases, detail on|off|dump, cachedump CLASS LIMIT, reset";

/// The name and the value of a statistic.
type StatisticPair = (String, String);

/// The themes of the general statistics, with prefixes of the names that belong to them. The first
/// theme with a matching prefix counts.
const THEMES: [(&str, &[&str]); 6] = [
    ("Todana", &["todana_"]),
    (
        "Process",
        &["pid", "uptime", "time", "version", "libevent", "pointer_size", "rusage_", "threads", "log_"],
    ),
    (
        "Connections",
        &[
            "curr_conn",
            "max_conn",
            "total_conn",
            "rejected_conn",
            "conn",
            "listen_",
            "accepting_",
            "idle_",
            "response_obj",
            "read_buf",
            "bytes_",
            "ssl_",
            "reserved_fds",
            "time_in_listen",
        ],
    ),
    ("Requests", &["cmd_", "get_", "delete_", "incr_", "decr_", "cas_", "touch_", "auth_", "store_"]),
    (
        "Records and memory",
        &[
            "limit_",
            "curr_items",
            "total_items",
            "bytes",
            "hash_",
            "evic",
            "reclaimed",
            "expired",
            "slab",
            "malloc",
            "direct_",
            "extstore",
        ],
    ),
    ("Maintenance", &["lru", "crawler", "moves_", "unexpected"]),
];

fn theme(name: &str) -> &'static str {
    // These are complete names instead of prefixes, because "bytes" must not match bytes_read.
    let fits = |beginning: &&str| match *beginning {
        "time" | "bytes" | "pid" | "threads" => name == *beginning,
        beginning => name.starts_with(beginning),
    };
    let found = THEMES.iter().find(|(_, beginnings)| beginnings.iter().any(fits));
    found.map_or("Other", |(theme, _)| theme)
}

/// Prints a group of statistics, or the statistics of the selected database.
pub(crate) fn print(
    server: &ServerTarget,
    words: &[String],
    json: bool,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    let mut connection = server.options.connect(&server.destination)?;
    let statistics = if server.options.has_database() {
        if !words.is_empty() {
            return Err(CommandFailure::usage(
                "stats: a database has no groups of statistics; leave out the group or --database",
            ));
        }
        of_database(server, &mut connection)?
    } else {
        let group = words.join(" ");
        connection.stats(&group).map_err(|error| match error {
            Error::Refused(refusal) if refusal.line == "ERROR" => {
                let known: Vec<&str> = GROUPS.split([',', ' ']).collect();
                let hint = did_you_mean(&words[0], &known);
                CommandFailure::usage(format!("stats {group}: unknown group{hint}; the groups are {GROUPS}"))
            }
            error => error.into(),
        })?
    };
    if json {
        writeln!(out, "{}", nested(&statistics))?;
    } else if words.is_empty() && !server.options.has_database() && out.is_terminal {
        put_by_theme(out, &statistics)?;
    } else {
        put_aligned(out, &statistics)?;
    }
    Ok(())
}

fn put_aligned(out: &mut impl Write, statistics: &[StatisticPair]) -> io::Result<()> {
    let width = statistics.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    statistics.iter().try_for_each(|(name, value)| writeln!(out, "{name:width$}  {value}"))
}

fn put_by_theme(out: &mut impl Write, statistics: &[StatisticPair]) -> io::Result<()> {
    let width = statistics.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let themes = THEMES.iter().skip(1).chain(&THEMES[..1]).map(|(theme, _)| *theme).chain(["Other"]);
    for wanted in themes {
        let mut is_first = true;
        for (name, value) in statistics.iter().filter(|(name, _)| theme(name) == wanted) {
            if std::mem::take(&mut is_first) {
                writeln!(out, "{wanted}")?;
            }
            writeln!(out, "  {name:width$}  {value}")?;
        }
    }
    Ok(())
}

/// Returns the statistics as one JSON object. Numbers become JSON numbers, and `1:name` becomes the
/// member `name` of the object `1`.
fn nested(statistics: &[StatisticPair]) -> Value {
    let mut all = Map::new();
    for (name, value) in statistics {
        put_nested(&mut all, name, typed(value));
    }
    Value::Object(all)
}

fn put_nested(object: &mut Map<String, Value>, name: &str, value: Value) {
    if let Some((group, rest)) = name.split_once(':') {
        let within = object.entry(group).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(within) = within {
            return put_nested(within, rest, value);
        }
    }
    object.insert(name.to_string(), value);
}

/// Returns the value as a number if the text is exactly how that number is written. So `1.6.45`
/// stays a text.
fn typed(text: &str) -> Value {
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let number: Option<Value> = match unsigned.split_once('.') {
        Some((whole, fraction)) if is_digits(whole) && is_digits(fraction) => {
            text.parse::<f64>().ok().map(Value::from)
        }
        None if is_digits(unsigned) && (unsigned == "0" || !unsigned.starts_with('0')) => {
            text.parse::<u64>().map(Value::from).or_else(|_| text.parse::<i64>().map(Value::from)).ok()
        }
        _ => None,
    };
    number.unwrap_or_else(|| text.into())
}

/// Returns the statistics of the selected database.
fn of_database(
    server: &ServerTarget,
    connection: &mut Connection,
) -> Result<Vec<StatisticPair>, CommandFailure> {
    let number = server.options.database_number(connection)?;
    let prefix = format!("{number}:");
    let all = connection.stats("databases").map_err(crate::server_options::without_databases)?;
    let own = all.into_iter().filter_map(|(name, value)| {
        let name = name.strip_prefix(&prefix)?.to_string();
        Some((name, value))
    });
    let own: Vec<StatisticPair> = own.collect();
    match own.is_empty() {
        true => Err(CommandFailure::trouble(format!("--database {number}: the server has no such database"))),
        false => Ok(own),
    }
}

/// Prints a summary of a server's database, with the same names as for a database on disk.
pub(crate) fn inform(
    server: &ServerTarget,
    json: bool,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    let mut connection = server.options.connect(&server.destination)?;
    let place = ("server".to_string(), server.destination.to_string());
    let known = match of_database(server, &mut connection) {
        Ok(known) => known,
        Err(failure) if server.options.has_database() => return Err(failure),
        // memcached has no statistics of single databases.
        Err(_) => connection.stats("")?,
    };
    let name = |(name, value): StatisticPair| {
        let name = match name.as_str() {
            "kind" | "name" | "memory_bytes" | "disk_bytes" | "evictions" | "health" | "version" => name,
            "limit_maxbytes" => name,
            "records" | "curr_items" => "records".to_string(),
            "bytes" => "live_bytes".to_string(),
            _ => return None,
        };
        Some((name, value))
    };
    let facts: Vec<StatisticPair> =
        std::iter::once(place).chain(known.into_iter().filter_map(name)).collect();
    if json {
        writeln!(out, "{}", nested(&facts))?
    } else {
        put_aligned(out, &facts)?
    }
    Ok(())
}

/// Returns the number of records in the selected database of a server, or in the first if none is
/// selected.
pub(crate) fn count(servers: &[ServerTarget]) -> Result<u64, CommandFailure> {
    servers.iter().map(count_of_server).sum()
}

/// Returns the number of records of a server.
pub(crate) fn count_of_server(server: &ServerTarget) -> Result<u64, CommandFailure> {
    let mut connection = server.options.connect(&server.destination)?;
    let count = if server.options.has_database() {
        let own = of_database(server, &mut connection)?;
        own.into_iter().find(|(name, _)| name == "records").map(|(_, value)| value)
    } else {
        connection.statistic("curr_items")?
    };
    let count = count.and_then(|count| count.parse().ok());
    count.ok_or_else(|| CommandFailure::trouble("the server does not report its number of records"))
}

/// Returns true if the selected database of a server, or the first, is a table.
pub(crate) fn is_table(server: &ServerTarget) -> Result<bool, CommandFailure> {
    let mut connection = server.options.connect(&server.destination)?;
    // memcached has no statistics of single databases.
    let known = of_database(server, &mut connection).unwrap_or_default();
    Ok(known.iter().any(|(name, value)| name == "kind" && value.ends_with(":table")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_numbers_and_groups_are_objects() {
        let statistics = |pairs: &[(&str, &str)]| -> Vec<StatisticPair> {
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        let pairs = [
            ("pid", "12"),
            ("version", "1.6.45"),
            ("rusage_user", "0.250000"),
            ("octal", "007"),
            ("least", "-5"),
            ("huge", "18446744073709551615"),
            ("evictions", "on"),
            ("items:1:number", "3"),
            ("items:1:age", "0"),
            ("pid:1", "x"),
        ];
        let expected = json!({
            "pid": 12, "version": "1.6.45", "rusage_user": 0.25, "octal": "007", "least": -5,
            "huge": 18446744073709551615u64, "evictions": "on", "items": {"1": {"number": 3, "age": 0}},
            "pid:1": "x",
        });
        assert_eq!(nested(&statistics(&pairs)), expected);
    }

    #[test]
    fn themes_keep_all_statistics() {
        for (name, expected) in [
            ("pid", "Process"),
            ("time", "Process"),
            ("time_in_listen_disabled_us", "Connections"),
            ("bytes_read", "Connections"),
            ("bytes", "Records and memory"),
            ("get_hits", "Requests"),
            ("todana_log", "Todana"),
            ("unheard_of", "Other"),
        ] {
            assert_eq!(theme(name), expected, "{name}");
        }
        let all = [("unheard_of".to_string(), "1".to_string()), ("pid".to_string(), "2".to_string())];
        let mut out = Vec::new();
        put_by_theme(&mut out, &all).unwrap();
        assert_eq!(out, b"Process\n  pid         2\nOther\n  unheard_of  1\n");
    }
}
