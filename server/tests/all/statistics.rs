//! Tests the values of `stats`; other tests check the names. The tests stop the server's clock and
//! advance it, so that they need not wait.

use crate::running;

use running::{Client, Running, eventually, options};
use std::collections::BTreeMap;
use todana::DatabaseName;
use todana_server::{DatabaseOptions, MemoryOptions, ProtocolOptions, ServerOptions};

fn start(options: ServerOptions) -> (Running, Client) {
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions { debug_commands: true, ..options.protocols },
        ..options
    });
    let mut client = server.connect();
    client.send(b"debugtime p\r\n");
    client.expect(b"OK\r\n");
    (server, client)
}

/// Returns the options of a server whose first database is the subject of the statistics.
fn of(database: &str) -> ServerOptions {
    ServerOptions {
        databases: DatabaseOptions {
            database: Some(DatabaseName::parse(database).unwrap()),
            ..options().databases
        },
        ..options()
    }
}

fn ask(client: &mut Client, request: &str, answer: &str) {
    client.send(format!("{request}\r\n").as_bytes());
    client.expect(format!("{answer}\r\n").as_bytes());
}

fn set(client: &mut Client, key: &str, seconds: u32, len: usize) {
    ask(client, &format!("set {key} 0 {seconds} {len}\r\n{}", "v".repeat(len)), "STORED");
}

fn get(client: &mut Client, key: &str, len: usize) {
    ask(client, &format!("get {key}"), &format!("VALUE {key} 0 {len}\r\n{}\r\nEND", "v".repeat(len)));
}

/// Returns the numeric statistics of a group.
fn numbers(client: &mut Client, group: &str) -> BTreeMap<String, u64> {
    let group = if group.is_empty() { String::new() } else { format!(" {group}") };
    let numbers = client.stats(&group).into_iter();
    numbers.filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect()
}

#[test]
fn expired_records_are_counted_by_remover_and_use() {
    for database in ["mem:hash", "mem:tree"] {
        let (_server, mut client) = start(of(database));
        for n in 0..10 {
            set(&mut client, &format!("short:{n}"), 10, 5);
            set(&mut client, &format!("long:{n}"), 10, 500);
            set(&mut client, &format!("stays:{n}"), 0, 5);
        }
        (0..3).for_each(|n| get(&mut client, &format!("short:{n}"), 5));
        ask(&mut client, "debugtime +10", "OK");
        // The sweep may have removed this record first.
        ask(&mut client, "get short:9", "END");
        ask(&mut client, "get long:9", "END");
        eventually("the sweep removes what has expired", || client.stat("curr_items") == "10");
        let stats = numbers(&mut client, "");
        assert_eq!(stats["reclaimed"] + stats["crawler_reclaimed"], 20);
        assert_eq!(stats["expired_unfetched"], 17);
        assert!(stats["crawler_reclaimed"] >= 18 && stats["crawler_items_checked"] >= 18, "{stats:?}");
        assert!(stats["lru_crawler_starts"] >= 1);
        let items = numbers(&mut client, "items");
        // By memcached's rule the records have 66 and 560 bytes, and belong to classes 1 and 9.
        for (class, number, unread) in [(1, 10, 7), (9, 0, 10)] {
            let value = |name: &str| items[&format!("items:{class}:{name}")];
            assert_eq!(value("number"), number);
            assert_eq!(value("expired_unfetched"), unread);
            assert_eq!(value("reclaimed") + value("crawler_reclaimed"), 10);
        }
        ask(&mut client, "stats reset", "RESET");
        let stats = numbers(&mut client, "");
        for name in
            ["reclaimed", "crawler_reclaimed", "expired_unfetched", "total_items", "cmd_set", "get_hits"]
        {
            assert_eq!(stats[name], 0, "{name}");
        }
        assert!(stats["bytes_read"] < 100, "{}", stats["bytes_read"]);
        assert_eq!(stats["curr_items"], 10);
        assert!(
            !numbers(&mut client, "items").contains_key("items:9:number"),
            "nothing is there or has happened"
        );
    }
}

/// As in memcached 1.6.18, a refused store counts as a refusal and not as a command. If memory is
/// short, it is also counted by class.
#[test]
fn refused_stores_are_counted_for_every_command() {
    let (_server, mut client) = start(ServerOptions {
        memory: MemoryOptions { emulate_full: true, ..options().memory },
        ..options()
    });
    let (mut too_large, mut no_memory) = (0, 0);
    // By memcached's rule the records have 62, 300,057 and 1,500,057 bytes. The first two belong to
    // classes 1 and 37.
    for (len, class) in [(5, Some(1)), (300_000, Some(37)), (1_500_000, None)] {
        let (text, value) = (format!("k 0 0 {len}"), "v".repeat(len));
        let mut of_class = 0;
        for line in [
            format!("set {text}"),
            format!("add {text}"),
            format!("replace {text}"),
            format!("append {text}"),
            format!("prepend {text}"),
            format!("cas {text} 1"),
            format!("ms k {len}"),
            format!("ms k {len} ME"),
            format!("ms k {len} C1"),
        ] {
            if class.is_some() {
                ask(&mut client, &format!("{line}\r\n{value}"), "SERVER_ERROR out of memory storing object");
                (no_memory, of_class) = (no_memory + 1, of_class + 1);
            } else {
                ask(&mut client, &format!("{line}\r\n{value}"), "SERVER_ERROR object too large for cache");
                too_large += 1;
            }
            let stats = numbers(&mut client, "");
            assert_eq!(
                (stats["store_too_large"], stats["store_no_memory"]),
                (too_large, no_memory),
                "{line}"
            );
            assert_eq!((stats["cmd_set"], stats["total_items"], stats["cas_misses"]), (0, 0, 0), "{line}");
            let items = numbers(&mut client, "items");
            let all = items.iter().filter(|(name, _)| name.ends_with(":outofmemory"));
            assert_eq!(all.map(|(_, count)| count).sum::<u64>(), no_memory, "{line}");
            if let Some(class) = class {
                assert_eq!(items[&format!("items:{class}:outofmemory")], of_class, "{line}");
            }
        }
    }
    assert!(
        numbers(&mut client, "slabs").iter().all(|(name, count)| !name.ends_with(":cmd_set") || *count == 0)
    );
}

#[test]
fn ages_are_seconds_since_the_last_use() {
    for database in ["mem:hash", "mem:tree"] {
        let (_server, mut client) = start(of(database));
        for n in 0..5 {
            set(&mut client, &format!("k{n}"), 0, 5);
        }
        ask(&mut client, "debugtime +50", "OK");
        (0..4).for_each(|n| get(&mut client, &format!("k{n}"), 5));
        set(&mut client, "large", 0, 500);
        ask(&mut client, "debugtime +7", "OK");
        let items = numbers(&mut client, "items");
        assert_eq!((items["items:1:age"], items["items:9:age"]), (57, 7));
        ask(&mut client, "touch k4 0", "TOUCHED");
        assert_eq!(numbers(&mut client, "items")["items:1:age"], 7);
    }
}

/// The records expire only after hours, so nothing else begins a round.
#[test]
fn crawl_command_begins_a_round_at_once() {
    let (_server, mut client) = start(options());
    (0..50).for_each(|n| set(&mut client, &format!("k{n}"), 3600, 5));
    let before = numbers(&mut client, "");
    assert_eq!((before["lru_crawler_starts"], before["crawler_items_checked"]), (0, 0));
    ask(&mut client, "lru_crawler crawl 1", "OK");
    eventually("the round ends", || {
        let stats = numbers(&mut client, "");
        stats["lru_crawler_running"] == 0 && stats["crawler_items_checked"] == 50
    });
    let stats = numbers(&mut client, "");
    assert_eq!((stats["lru_crawler_starts"], stats["crawler_reclaimed"]), (1, 0));
    assert_eq!(numbers(&mut client, "items")["items:1:crawler_items_checked"], 50);
}

#[test]
fn evictions_are_counted_by_age_and_use() {
    // The limit is that of the complete process, in which other tests run, too.
    let (_server, mut client) =
        start(ServerOptions { memory: MemoryOptions { limit_mib: 256, ..options().memory }, ..options() });
    let large = 100_000;
    for n in 0..20 {
        set(&mut client, &format!("first:{n}"), 9000, large);
    }
    ask(&mut client, "debugtime +30", "OK");
    for n in 0..6000 {
        set(&mut client, &format!("k{n}"), 0, large);
        get(&mut client, &format!("k{n}"), large);
    }
    let stats = numbers(&mut client, "");
    assert!(stats["evictions"] > 3000, "{stats:?}");
    let (unread, evicted) = (stats["evicted_unfetched"], stats["evictions"]);
    assert!(unread >= 10 && unread < evicted / 2, "{unread} of {evicted}");
    assert!(stats["direct_reclaims"] > 0 && stats["direct_reclaims"] <= evicted);
    let items = numbers(&mut client, "items");
    let sum = |name: &str| {
        items
            .iter()
            .filter(|(full, _)| full.ends_with(&format!(":{name}")))
            .map(|(_, value)| value)
            .sum::<u64>()
    };
    assert!(sum("evicted") >= evicted && sum("evicted_unfetched") >= unread);
    assert!((1..=20).contains(&sum("evicted_nonzero")), "{}", sum("evicted_nonzero"));
    assert_eq!(sum("number_warm") + sum("number_cold"), sum("number"));
}

#[test]
fn hash_growth_and_maintenance_are_reported() {
    let (_server, mut client) = start(options());
    let stats = numbers(&mut client, "");
    let (level, bytes) = (stats["hash_power_level"], stats["hash_bytes"]);
    assert!(level < 10 && bytes >= 4096, "{level}, {bytes}");
    let sets: String = (0..200_000).map(|n| format!("set k{n} 0 0 5 noreply\r\nvalue\r\n")).collect();
    client.send(sets.as_bytes());
    client.expect_version();
    let stats = numbers(&mut client, "");
    assert!(stats["hash_power_level"] > level && stats["hash_bytes"] > bytes, "{stats:?}");
    assert_eq!(stats["hash_is_expanding"], 1);
    ask(&mut client, "debugtime +2", "OK");
    assert_eq!(client.stat("hash_is_expanding"), "0");
    eventually("the janitor makes its rounds", || client.stat("lru_maintainer_juggles") != "0");
}

/// As memcached's `issue_183.t` requires, records that a flush removed count as reclaimed, but only
/// since the last reset.
#[test]
fn flushed_records_are_counted_as_reclaimed() {
    for database in ["mem:hash", "mem:tree"] {
        let (_server, mut client) = start(of(database));
        for n in 0..7 {
            set(&mut client, &format!("short:{n}"), 0, 5);
        }
        (0..2).for_each(|n| set(&mut client, &format!("long:{n}"), 0, 500));
        assert_eq!(client.stat("reclaimed"), "0");
        ask(&mut client, "flush_all", "OK");
        assert_eq!(
            (client.stat("reclaimed"), client.stat("curr_items")),
            ("9".into(), "0".into()),
            "{database}"
        );
        set(&mut client, "short", 0, 5);
        set(&mut client, "long", 0, 500);
        let items = numbers(&mut client, "items");
        assert_eq!((items["items:1:reclaimed"], items["items:9:reclaimed"]), (7, 2), "{database}");
        ask(&mut client, "stats reset", "RESET");
        ask(&mut client, "flush_all", "OK");
        assert_eq!(
            (client.stat("reclaimed"), client.stat("evictions")),
            ("2".into(), "0".into()),
            "{database}"
        );
    }
}

#[test]
fn settings_report_the_last_flush() {
    let (_server, mut client) = start(options());
    let oldest = |client: &mut Client| numbers(client, "settings")["oldest"];
    assert_eq!(oldest(&mut client), 0);
    ask(&mut client, "debugtime +100", "OK");
    ask(&mut client, "flush_all", "OK");
    assert!((100..200).contains(&oldest(&mut client)));
    ask(&mut client, "flush_all 1000", "OK");
    assert!((1100..1200).contains(&oldest(&mut client)));
}
