//! The rings, compared with the choices of the programs whose names they have, and their
//! properties.
//!
//! `ring_vectors.json` holds the choices. They were recorded in November 2026 from nutcracker
//! 0.5.0, memcached 1.6.45, moxi, libmemcached 1.1.4, mcrouter, pylibmc, pymemcache,
//! python-memcached, gomemcache, Dalli and Cache::Memcached::Fast, with servers that answer every
//! get with their name.

use serde_json::Value;
use std::collections::HashMap;
use todana_client::ring::{KeyFilter, KeyHash, Ring, RingKind, RingOptions, ServerEntry};

const VECTORS: &str = include_str!("ring_vectors.json");

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn servers(list: &Value) -> Vec<ServerEntry> {
    let entry = |server: &Value| {
        let mut text = format!("[{}]:{}", server["host"].as_str().unwrap(), server["port"]);
        if !text.contains("::") {
            text = text.replace(['[', ']'], "");
        }
        for word in ["weight", "name"] {
            if let Some(value) = server.get(word) {
                text += &format!(" {word}={}", value.to_string().replace('"', ""));
            }
        }
        text.parse().unwrap()
    };
    list["servers"].as_array().unwrap().iter().map(entry).collect()
}

/// Returns our options for a ring of the file.
fn options(vector: &Value) -> RingOptions {
    let text = |name: &str| vector.get(name).and_then(Value::as_str).map(String::from);
    let hash = text("hash").filter(|hash| hash != "as the mode sets it");
    let of = |kind| RingOptions { kind, ..RingOptions::default() };
    let ring = text("ring").unwrap();
    let behaviors = &vector["behaviors"];
    let spy = || Some("spy".to_string());
    match ring.as_str() {
        "libmemcached:modula" => RingOptions { hash, ..of(RingKind::LibmemcachedModula) },
        "libmemcached:ketama" => RingOptions { hash, ..of(RingKind::LibmemcachedPlain) },
        "libmemcached:ketama_weighted" => RingOptions { hash, ..of(RingKind::Libmemcached) },
        "libmemcached:ketama_spy" => RingOptions { mode: spy(), ..of(RingKind::LibmemcachedPlain) },
        "libmemcached:ketama_spy_weighted" => RingOptions { mode: spy(), ..of(RingKind::Libmemcached) },
        "pylibmc" if behaviors["ketama_weighted"] == true => of(RingKind::Libmemcached),
        "pylibmc" if behaviors["ketama"] == true => of(RingKind::LibmemcachedPlain),
        "pylibmc" if behaviors["hash"] == "md5" => {
            RingOptions { hash: Some("md5".into()), ..of(RingKind::LibmemcachedPlain) }
        }
        "pylibmc" => of(RingKind::LibmemcachedModula),
        "moxi" => of(match text("mcs_opts").as_deref() {
            Some("distribution:ketama") => RingKind::Libmemcached04,
            Some("distribution:modula") => RingKind::LibmemcachedModula,
            _ => RingKind::Libmemcached,
        }),
        "twemproxy:ketama" | "twemproxy:modula" => {
            let kind = if ring.ends_with("ketama") { RingKind::Twemproxy } else { RingKind::TwemproxyModula };
            let key_filter = KeyFilter::new(&text("hash_tag").unwrap_or_default(), "", &[]).unwrap();
            RingOptions { hash, key_filter, ..of(kind) }
        }
        "memcached-proxy:jump" => {
            let pool = text("pool_options").unwrap();
            let has = |part: &str, value| if pool.contains(part) { value } else { "" };
            let (tag, stop) = (has("\"tags\"", "{}"), has("\"stop\"", "|#|"));
            RingOptions {
                seed: pool.contains("seed").then(|| "todana".into()),
                key_filter: KeyFilter::new(tag, stop, &[]).unwrap(),
                ..of(RingKind::MemcachedProxyJump)
            }
        }
        "memcached-proxy:ring" => {
            let pool = text("pool_options").unwrap();
            let mode = ["ketama", "twemproxy", "evcache"].into_iter().find(|mode| pool.contains(mode));
            RingOptions {
                mode: mode.map(String::from),
                points: pool.contains("obuckets = 40").then_some(40),
                ..of(RingKind::MemcachedProxyRing)
            }
        }
        "mcrouter:Ch3" => of(RingKind::Mcrouter),
        "mcrouter:Crc32" | "mcrouter:Rendezvous" => {
            RingOptions { hash: ring.split(':').nth(1).map(String::from), ..of(RingKind::Mcrouter) }
        }
        "perl-cmf" => of(RingKind::PythonMemcached),
        name => of(name.parse().unwrap()),
    }
}

fn live_ring(options: &RingOptions, servers: &[ServerEntry]) -> Ring {
    Ring::new(options, servers, |_| true).unwrap()
}

fn ring_of(kind: RingKind, servers: &[ServerEntry]) -> Ring {
    live_ring(&RingOptions { kind, ..RingOptions::default() }, servers)
}

fn numbered(count: usize) -> Vec<ServerEntry> {
    (0..count).map(|number| format!("10.0.{}.{}", number / 250, number % 250 + 1).parse().unwrap()).collect()
}

fn keys(count: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|number| format!("user:{number}").into_bytes())
}

#[test]
fn hashes_equal_those_of_the_programs() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let rows = vectors["hashes"].as_array().unwrap();
    let mut compared = 0;
    for row in rows {
        for (name, hash) in KeyHash::ALL {
            if let Some(expected) = row.get(name) {
                assert_eq!(
                    u64::from(hash.of(&bytes(&row["key_hex"]))),
                    expected.as_u64().unwrap(),
                    "{name} {row}"
                );
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 40 * 9);
}

#[test]
fn rings_choose_as_the_programs_do() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let keys: Vec<Vec<u8>> = vectors["keys_hex"].as_array().unwrap().iter().map(bytes).collect();
    let list = |list: &Value| (list["id"].as_str().unwrap().to_string(), servers(list));
    let lists: HashMap<String, Vec<ServerEntry>> =
        vectors["lists"].as_array().unwrap().iter().map(list).collect();
    let (mut compared, mut wrong) = (0, Vec::new());
    for vector in vectors["rings"].as_array().unwrap() {
        let ring = live_ring(&options(vector), &lists[vector["list"].as_str().unwrap()]);
        let chosen: String = (keys.iter().zip(vector["choices"].as_str().unwrap().chars()))
            .map(|(key, expected)| match expected {
                '-' => '-',
                _ => char::from_digit(ring.server_of(key) as u32, 36).unwrap(),
            })
            .collect();
        compared += 1;
        if vector["choices"] != chosen.as_str() {
            wrong.push(format!("{vector}: {chosen}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(compared, 449);
}

#[test]
fn ejection_moves_only_keys_of_the_ejected() {
    let servers = numbered(10);
    let kinds = RingKind::ALL.map(|(_, kind)| kind);
    let stable = kinds.iter().filter(|kind| {
        use RingKind::{
            Dalli, Libmemcached, Libmemcached04, LibmemcachedPlain, MemcachedProxyRing, Pymemcache,
            Spymemcached, Todana, Twemproxy,
        };
        [
            Dalli,
            Libmemcached,
            Libmemcached04,
            LibmemcachedPlain,
            MemcachedProxyRing,
            Pymemcache,
            Spymemcached,
            Todana,
            Twemproxy,
        ]
        .contains(kind)
    });
    for kind in stable {
        let options = RingOptions { kind: *kind, ..RingOptions::default() };
        let (all, fewer) =
            (live_ring(&options, &servers), Ring::new(&options, &servers, |index| index != 3).unwrap());
        let mut ranked = Vec::new();
        for key in keys(5_000) {
            let (before, after) = (all.server_of(&key), fewer.server_of(&key));
            assert_ne!(after, 3);
            // The server that takes a key over is the next one by rank.
            all.rank(&key, 2, &mut ranked);
            assert_eq!(ranked[0], before);
            assert_eq!(after, if before == 3 { ranked[1] } else { before }, "{kind}");
        }
    }
}

#[test]
fn every_ring_ranks_each_server_once() {
    let servers = ServerEntry::parse_list(
        "10.0.0.1 weight=100000,10.0.0.2 weight=2,[::1]:5 name=x,unix:/run/m.sock,10.0.0.1:3",
    )
    .unwrap();
    let mut ranked = Vec::new();
    for (name, kind) in RingKind::ALL {
        for dead in [None, Some(0), Some(4)] {
            let options = RingOptions { kind, ..RingOptions::default() };
            let ring = Ring::new(&options, &servers, |index| Some(index) != dead).unwrap();
            for key in keys(100) {
                ring.rank(&key, 99, &mut ranked);
                if kind != RingKind::Random {
                    assert_eq!(ranked[0], ring.server_of(&key), "{name}");
                }
                let mut sorted = ranked.clone();
                sorted.sort_unstable();
                let live: Vec<usize> = (0..5).filter(|index| Some(*index) != dead).collect();
                assert_eq!(sorted, live, "{name}");
                let all = ranked.clone();
                ring.rank(&key, 2, &mut ranked);
                if kind != RingKind::Random {
                    assert_eq!(ranked, all[..2], "{name}");
                }
                ring.rank(&key, 0, &mut ranked);
                assert!(ranked.is_empty());
            }
        }
        // If no server is live, all of them count.
        let options = RingOptions { kind, ..RingOptions::default() };
        assert!(Ring::new(&options, &servers, |_| false).unwrap().server_of(b"k") < 5);
    }
}

/// Returns the largest number of keys of a server over the mean, for 10 servers and a million keys.
fn unevenness(kind: RingKind) -> f64 {
    let ring = ring_of(kind, &numbered(10));
    let mut counts = [0u32; 10];
    keys(1_000_000).for_each(|key| counts[ring.server_of(&key)] += 1);
    f64::from(*counts.iter().max().unwrap()) / 100_000.0
}

#[test]
fn keys_are_spread_evenly() {
    for (kind, limit) in [
        (RingKind::Libmemcached, 1.10),
        (RingKind::Todana, 1.01),
        (RingKind::MemcachedProxyJump, 1.01),
        (RingKind::Mcrouter, 1.01),
        (RingKind::Pymemcache, 1.01),
        (RingKind::Random, 1.01),
    ] {
        let most = unevenness(kind);
        assert!(most <= limit, "{kind}: {most}");
    }
}

#[test]
fn shares_follow_weights() {
    let servers =
        ServerEntry::parse_list("a weight=1,b weight=2,c weight=3,d weight=10,e weight=84").unwrap();
    for (kind, tolerance) in [
        (RingKind::Todana, 0.03),
        (RingKind::TwemproxyModula, 0.1),
        (RingKind::PythonMemcached, 0.1),
        (RingKind::Libmemcached, 0.5),
        (RingKind::Dalli, 0.5),
    ] {
        let ring = ring_of(kind, &servers);
        let mut counts = [0u32; 5];
        keys(1_000_000).for_each(|key| counts[ring.server_of(&key)] += 1);
        for (count, server) in counts.iter().zip(&servers) {
            let ratio = f64::from(*count) / f64::from(server.weight * 10_000);
            assert!((ratio - 1.0).abs() < tolerance, "{kind} {}: {ratio}", server.weight);
        }
    }
}

#[test]
fn todana_ring_ignores_the_order_of_servers() {
    for list in ["a,b:5,[::1]:7,d name=x", "a weight=3,b:5,[::1]:7 weight=9,d name=x"] {
        let servers = ServerEntry::parse_list(list).unwrap();
        let reversed: Vec<ServerEntry> = servers.iter().rev().cloned().collect();
        let (ring, other) = (ring_of(RingKind::Todana, &servers), ring_of(RingKind::Todana, &reversed));
        for key in keys(1_000) {
            assert_eq!(ring.server_of(&key), 3 - other.server_of(&key));
        }
    }
    // Weights that are equal have no effect.
    let heavy = ServerEntry::parse_list("a weight=7,b:5 weight=7").unwrap();
    let (light, heavy) = (
        ring_of(RingKind::Todana, &ServerEntry::parse_list("a,b:5").unwrap()),
        ring_of(RingKind::Todana, &heavy),
    );
    assert!(keys(1_000).all(|key| light.place_of(&key) == heavy.place_of(&key)));
}

/// The choices of our own ring, which no other program states, must never change.
#[test]
fn todana_ring_is_fixed() {
    let place = |list: &str| {
        let ring = ring_of(RingKind::Todana, &ServerEntry::parse_list(list).unwrap());
        let chosen: String = keys(40).map(|key| ring.server_of(&key).to_string()).collect();
        (chosen, ring.place_of(b"user:0").point.unwrap())
    };
    assert_eq!(
        place("10.0.0.1,10.0.0.2:11212,[::1]:5,unix:/m"),
        ("3002132033021001302213001332113212230331".into(), 16_747_166_290_752_526_229)
    );
    assert_eq!(
        place("10.0.0.1 weight=2,10.0.0.2:11212,[::1]:5 weight=4,x name=y"),
        ("2032322002021002202202021202322322222322".into(), 10_027_250_091_098_314_850)
    );
}

#[test]
fn unix_sockets_and_names_are_hashed() {
    // A twemproxy server of this label has the points of a host of the same text.
    let same = |kind: RingKind, list: &str, other: &str| {
        let (ring, other) = (
            ring_of(kind, &ServerEntry::parse_list(list).unwrap()),
            ring_of(kind, &ServerEntry::parse_list(other).unwrap()),
        );
        assert!(keys(500).all(|key| ring.server_of(&key) == other.server_of(&key)), "{kind} {list}");
    };
    same(RingKind::Libmemcached, "unix:/m,b", "x name=/m:0,b");
    same(RingKind::Twemproxy, "unix:/m,b", "x name=/m:,b");
    same(RingKind::Libmemcached, "[::1],[::1]:5", "x name=::1,y name=::1:5");
    same(RingKind::Dalli, "a,b", "x name=a:11211,y name=b:11211");
    same(RingKind::Spymemcached, "10.0.0.1,10.0.0.2:5", "x name=10.0.0.1:11211,y name=10.0.0.2:5");
}

#[test]
fn invalid_rings_name_their_problem() {
    let of = |kind, change: fn(&mut RingOptions)| {
        let mut options = RingOptions { kind, ..RingOptions::default() };
        change(&mut options);
        options
    };
    for (options, list, problem) in [
        (of(RingKind::Libmemcached, |_| ()), "a,b,a:11211", "server a:11211: occurs twice"),
        (of(RingKind::Todana, |o| o.hash = Some("md5".into())), "a", "ring todana: has no option hash"),
        (of(RingKind::Dalli, |o| o.points = Some(5)), "a", "ring dalli: has no option points"),
        (
            of(RingKind::Twemproxy, |o| o.hash = Some("md6".into())),
            "a",
            "\"md6\": unknown hash; known: one_at_a_time md5 ",
        ),
        (of(RingKind::Mcrouter, |o| o.hash = Some("md5".into())), "a", "known: Ch3 Crc32 Rendezvous"),
        (
            of(RingKind::MemcachedProxyRing, |o| o.mode = Some("x".into())),
            "a",
            "known: default ketama twemproxy evcache",
        ),
        (of(RingKind::MemcachedProxyRing, |o| o.points = Some(4_000_000_000)), "a", "must be from 4 to 1000"),
        (of(RingKind::Libmemcached, |o| o.mode = Some("ketama".into())), "a", "unknown mode; known: spy"),
        (of(RingKind::Spymemcached, |_| ()), "cache1:5", "add name=cache1/IP:5"),
    ] {
        let error = Ring::new(&options, &ServerEntry::parse_list(list).unwrap(), |_| true).unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    }
    assert!(
        "ketama".parse::<RingKind>().unwrap_err().to_string().contains("unknown ring; known: libmemcached ")
    );
    let many = Ring::new(&RingOptions::default(), &numbered(10_001), |_| true).unwrap_err();
    assert_eq!(many.to_string(), "10001 servers; a list must have from 1 to 10000");
    assert!(Ring::new(&RingOptions::default(), &[], |_| true).is_err());
}

#[test]
fn mcrouter_salt_and_long_keys_are_hashed() {
    let options =
        RingOptions { kind: RingKind::Mcrouter, salt: Some("-salt".into()), ..RingOptions::default() };
    let (salted, plain) =
        (live_ring(&options, &numbered(9_000)), ring_of(RingKind::Mcrouter, &numbered(9_000)));
    for key in keys(100).chain([vec![b'k'; 507], vec![b'k'; 508], vec![b'k'; 100_000]]) {
        assert_eq!(salted.place_of(&key), plain.place_of(&[&key[..], b"-salt"].concat()));
    }
}
