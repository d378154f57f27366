//! Tests that records that one dialect has stored can be listed and read in every other dialect.
//!
//! A key of 253 bytes 0xFF, stored by `PUT /%FF%FF...`, once ended the server process: the next
//! `lru_crawler mgdump all` wrote its line to a buffer with space for memcached's longest key, and
//! Kyoto Tycoon's keys can be longer.

use crate::any_key;
use crate::fuzz_inputs;
use crate::kyoto_client;
use crate::mixed_dialects;
use crate::running;

use any_key::{Dialect, Records, bulk_records, decode_uri, is_meta, is_text, kyoto_call, meta_get, records};
use kyoto_client::{kyoto, named};
use running::{Client, Running};
use std::collections::BTreeSet;
use todana_protocol::kyoto::BulkOperation;
use todana_protocol::kyoto::client::{put_bulk, put_key};
use todana_server::{
    DatabaseOptions, KyotoMode, KyotoOptions, ListenOptions, PluginOptions, ProtocolOptions, ServerOptions,
};

type Keys = BTreeSet<Vec<u8>>;

#[test]
fn long_binary_key_does_not_end_a_listing() {
    let server = Running::start(kyoto());
    let mut client = server.connect();
    for (key, value) in [(vec![0xFF; 253], b"long"), (vec![0xFF; 186], b"most"), (b"other".to_vec(), b"text")]
    {
        Dialect::KyotoRest.store(&mut client, &key, value);
    }
    let most = "/".repeat(248);
    let mut memcached = server.connect();
    let mut listed = lines(&mut memcached, "lru_crawler mgdump all", "EN\r\n");
    listed.sort_unstable();
    assert_eq!(listed, [format!("mg {most} b\r\n").into_bytes(), b"mg other\r\n".to_vec()]);
    memcached.send(format!("mg {most} b v\r\n").as_bytes());
    memcached.expect(b"VA 4\r\nmost\r\n");
    memcached.expect_version();
}

#[test]
fn fuzz_corpus_leaves_the_server_running() {
    fuzz_inputs::play_all("mixed_dialects", 20, mixed_dialects::play);
}

#[test]
fn every_dialect_lists_and_reads_all_records() {
    for database in [":", "%"] {
        for writer in Dialect::OF_ONE_PORT {
            let server = Running::start(ServerOptions {
                databases: DatabaseOptions { database: named(database), ..kyoto().databases },
                ..kyoto()
            });
            let stored = store(&mut server.connect(), writer);
            for reader in Dialect::OF_ONE_PORT {
                reads(&mut server.connect(), reader, &stored, writer);
            }
            memcached_lists(&server, &stored, writer);
            kyoto_lists(&mut server.connect(), &stored, writer);
        }
    }
}

#[test]
fn plug_in_shares_records_with_other_dialects() {
    let server = Running::start(ServerOptions {
        listen: ListenOptions {
            addresses: vec!["127.0.0.1:0".into(), "proto[ascii]:127.0.0.1:0".into()],
            ..kyoto().listen
        },
        protocols: ProtocolOptions {
            kyoto: KyotoOptions {
                spoken: KyotoMode::Only,
                plugin: Some(PluginOptions::default()),
                ..kyoto().protocols.kyoto
            },
            ..kyoto().protocols
        },
        ..kyoto()
    });
    let kyotos = [Dialect::KyotoCall, Dialect::KyotoRest, Dialect::KyotoBinary];
    for writer in kyotos.into_iter().chain([Dialect::Plugin]) {
        let address = |dialect| server.addresses[usize::from(dialect == Dialect::Plugin)];
        let stored = store(&mut server.connect_to(address(writer)), writer);
        for reader in kyotos.into_iter().chain([Dialect::Plugin]) {
            reads(&mut server.connect_to(address(reader)), reader, &stored, writer);
        }
        let mut client = server.connect();
        kyoto_lists(&mut client, &stored, writer);
        assert_eq!(kyoto_call(&mut client, "clear", &[]).0, 200);
    }
}

#[test]
fn watchers_see_keys_of_every_memcached_dialect() {
    let server = Running::start(kyoto());
    for dialect in [Dialect::Text, Dialect::MetaRequest, Dialect::Binary] {
        let mut watcher = server.connect();
        watcher.send(b"watch mutations\r\n");
        watcher.expect(b"OK\r\n");
        let stored = store(&mut server.connect(), dialect);
        let told: Keys = stored.keys().map(|_| decode_uri(&field(&watcher.line_bytes(), b"key="))).collect();
        assert_eq!(told, stored.keys().cloned().collect(), "{dialect:?}");
    }
}

#[test]
fn prefix_with_line_end_stays_one_line() {
    let server = Running::start(kyoto());
    let mut client = server.connect();
    client.send(b"stats detail on\r\n");
    client.expect(b"OK\r\n");
    Dialect::Binary.store(&mut server.connect(), b"a\r\nEND\r\n:1", b"v");
    Dialect::Text.store(&mut client, b"caf\xC3\xA9/b:1", b"v");
    client.send(b"stats detail dump\r\n");
    client.expect(b"PREFIX a%0D%0AEND%0D%0A get 0 hit 0 set 1 del 0\r\n");
    client.expect(b"PREFIX caf\xC3\xA9/b get 0 hit 0 set 1 del 0\r\nEND\r\n");
}

/// Stores all records whose keys a dialect can express, and returns them.
fn store(client: &mut Client, writer: Dialect) -> Records {
    let mut stored = records();
    stored.retain(|key, _| writer.carries(key));
    stored.iter().for_each(|(key, value)| writer.store(client, key, value));
    assert!(stored.len() > 30, "{writer:?} carries {}", stored.len());
    stored
}

fn reads(client: &mut Client, reader: Dialect, stored: &Records, writer: Dialect) {
    for (key, value) in stored.iter().filter(|(key, _)| reader.carries(key)) {
        let found = reader.read(client, key);
        assert_eq!(found.as_ref(), Some(value), "{writer:?} {reader:?} {}", shown(key));
    }
}

fn memcached_lists(server: &Running, stored: &Records, writer: Dialect) {
    let mut client = server.connect();
    let metadump = lines(&mut client, "lru_crawler metadump all", "END\r\n");
    let listed: Keys = metadump.iter().map(|line| decode_uri(&field(line, b"key="))).collect();
    same(&listed, stored.keys().cloned().collect(), writer, "metadump");

    let mut found = Records::new();
    for line in lines(&mut client, "lru_crawler mgdump all", "EN\r\n") {
        let request = [line.strip_suffix(b"\r\n").unwrap(), b" v k\r\n"].concat();
        assert!(meta_get(&mut client, &[line.strip_suffix(b"\r\n").unwrap(), b" v\r\n"].concat()).is_some());
        client.send(&request);
        let head = client.line_bytes();
        let len = std::str::from_utf8(&head).unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let value = client.take(len);
        client.expect(b"\r\n");
        found.insert(value, head);
    }
    let values: Keys = found.into_keys().collect();
    let named = stored.iter().filter(|(key, _)| is_meta(key)).map(|(_, value)| value.clone());
    same(&values, named.collect(), writer, "mgdump");

    let mut listed = Keys::new();
    for class in 1..64 {
        for line in lines(&mut client, &format!("stats cachedump {class} 0"), "END\r\n") {
            let rest = line.strip_prefix(b"ITEM ").unwrap_or_else(|| panic!("{}", shown(&line)));
            let end = rest.iter().position(|&byte| byte == b' ').unwrap();
            assert!(rest[end..].ends_with(b"s]\r\n"), "{}", shown(&line));
            listed.insert(rest[..end].to_vec());
        }
    }
    same(&listed, stored.keys().filter(|key| is_text(key)).cloned().collect(), writer, "cachedump");
    for group in ["", " items", " slabs", " sizes", " databases"] {
        client.stats(group);
    }
}

fn kyoto_lists(client: &mut Client, stored: &Records, writer: Dialect) {
    let all: Keys = stored.keys().cloned().collect();
    let first = stored.keys().find(|key| key.len() == 2).unwrap();
    for (name, parameters) in [
        ("match_prefix", vec![(&b"prefix"[..], &b""[..])]),
        ("match_regex", vec![(b"regex", b"")]),
        ("match_similar", vec![(b"origin", first), (b"range", b"100000")]),
    ] {
        let (status, pairs) = kyoto_call(client, name, &parameters);
        assert_eq!(
            (status, pairs[&b"num"[..]].as_slice()),
            (200, all.len().to_string().as_bytes()),
            "{name}"
        );
        let listed = pairs.keys().filter_map(|name| name.strip_prefix(b"_"));
        same(&listed.map(<[u8]>::to_vec).collect(), all.clone(), writer, name);
    }

    let wanted: Vec<_> = stored.keys().map(|key| [b"_", key.as_slice()].concat()).collect();
    let wanted: Vec<(&[u8], &[u8])> = wanted.iter().map(|name| (name.as_slice(), &b""[..])).collect();
    let (_, pairs) = kyoto_call(client, "get_bulk", &wanted);
    let found =
        pairs.into_iter().filter_map(|(name, value)| Some((name.strip_prefix(b"_")?.to_vec(), value)));
    assert!(found.collect::<Records>() == *stored, "{writer:?} get_bulk");

    let mut request = Vec::new();
    put_bulk(BulkOperation::Get, stored.len() as u32, false, &mut request);
    stored.keys().for_each(|key| put_key(0, key, &mut request));
    client.send(&request);
    assert!(bulk_records(client) == *stored, "{writer:?} binary get_bulk");

    let mut found = Records::new();
    assert_eq!(kyoto_call(client, "cur_jump", &[(b"CUR", b"1")]).0, 200);
    loop {
        let (status, pairs) = kyoto_call(client, "cur_get", &[(&b"CUR"[..], &b"1"[..]), (b"step", b"")]);
        if status != 200 {
            break;
        }
        found.insert(pairs[&b"key"[..]].clone(), pairs[&b"value"[..]].clone());
    }
    assert!(found == *stored, "{writer:?} cursor");
    assert_eq!(kyoto_call(client, "cur_delete", &[(b"CUR", b"1")]).0, 200);
}

/// Returns the lines of a list up to its end.
fn lines(client: &mut Client, request: &str, end: &str) -> Vec<Vec<u8>> {
    client.send(format!("{request}\r\n").as_bytes());
    let next = || Some(client.line_bytes()).filter(|line| line != end.as_bytes());
    let lines = std::iter::from_fn(next).collect::<Vec<_>>();
    // The lists of the crawler begin with this line.
    lines.into_iter().filter(|line| line != b"OK\r\n").collect()
}

/// Returns the rest of the word that begins with this name.
fn field(line: &[u8], name: &[u8]) -> Vec<u8> {
    let mut words = line.split(|&byte| byte == b' ');
    words.find_map(|word| word.strip_prefix(name)).unwrap_or_else(|| panic!("{}", shown(line))).to_vec()
}

fn same(listed: &Keys, expected: Keys, writer: Dialect, list: &str) {
    let missing: Vec<_> = expected.difference(listed).map(|key| shown(key)).collect();
    let strange: Vec<_> = listed.difference(&expected).map(|key| shown(key)).collect();
    assert!(
        missing.is_empty() && strange.is_empty(),
        "{writer:?} {list}: {missing:?} are missing, {strange:?} are strange"
    );
}

fn shown(bytes: &[u8]) -> String {
    format!("{} bytes, {}", bytes.len(), bytes[..bytes.len().min(40)].escape_ascii())
}
