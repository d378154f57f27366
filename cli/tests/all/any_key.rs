//! Records whose keys have any bytes and lengths pass through backups, dumps and logs, by whatever
//! protocol they were stored.

use crate::keys;
use crate::running;

use keys::{Records as Stored, records};
use running::{RunningServer, TestFolder, expect, run, stop, text};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use todana::{Db, Records};
use todana_client::needs_base64;
use todana_protocol::kyoto::client::put_bulk;
use todana_protocol::kyoto::{BulkOperation, BulkRecord, client::put_record};

#[test]
fn any_key_survives_backup_dump_and_log() {
    let stored = records();
    for (name, target) in [("data", "again.tree"), ("x.hash", "again.hash"), ("x.tree", "again.tree")] {
        let folder = TestFolder::new();
        let source = folder.path(name);
        let place = if name == "data" { vec!["--data-dir", &source] } else { vec![source.as_str()] };
        let server = RunningServer::start(&[&place[..], &["--admin-port", "0"]].concat());
        store(&server, &stored);
        dump_of_server(&folder, &server, &stored);
        let (backup, again) = (folder.path("backup"), folder.path(target));
        expect(&["backup", &server.address, &backup], 0);
        stop(server);
        expect(&["restore", &backup, &again], 0);
        assert!(read(&again) == stored, "{name}: restored");
        if name == "data" {
            let values = log_values(&run(&["log", &source, "--values", "whole"]).stdout);
            assert!(stored.values().all(|value| values.contains(value)));
        }
        for format in ["tsv", "ktss", "kcss"] {
            let (file, other) = (folder.path(format), folder.path(&format!("{format}.tree")));
            expect(&["export", &source, &file, "--format", format], 0);
            expect(&["import", &other, &file], 0);
            assert!(read(&other) == stored, "{name}: {format}");
        }
    }
}

/// Returns the last column of each line of a log. The tests have stored the key there, as the
/// value.
fn log_values(log: &[u8]) -> BTreeSet<Vec<u8>> {
    log.split(|&byte| byte == b'\n')
        .filter_map(|line| Some(line.rsplit(|&byte| byte == b'\t').next()?.to_vec()))
        .collect()
}

/// Checks that a dump over memcached's protocol has the records whose keys the protocol can carry,
/// and counts the others.
fn dump_of_server(folder: &TestFolder, server: &RunningServer, stored: &Stored) {
    let file = folder.path("dump.tsv");
    let dumped = run(&["dump", &file, "-S", &server.address]);
    let carried: Stored =
        stored.iter().filter(|(key, _)| carries(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let printed = text(&dumped.stderr);
    assert!(printed.contains(&format!("{} records left out", stored.len() - carried.len())), "{printed}");
    let loaded = folder.path("dumped.tree");
    expect(&["import", &loaded, &file], 0);
    assert!(read(&loaded) == carried);
}

/// Returns true if this key, or its base64, can be a word of a request.
fn carries(key: &[u8]) -> bool {
    (1..=if needs_base64(key) { 186 } else { 250 }).contains(&key.len())
}

fn store(server: &RunningServer, stored: &Stored) {
    let mut request = Vec::new();
    put_bulk(BulkOperation::Set, stored.len() as u32, false, &mut request);
    for (key, value) in stored {
        put_record(&BulkRecord { database: 0, key, value, xt: i64::MAX }, &mut request);
    }
    let mut talk = server.talk();
    talk.get_mut().write_all(&request).unwrap();
    let mut answer = [0; 5];
    talk.read_exact(&mut answer).unwrap();
    assert_eq!(answer[1..], (stored.len() as u32).to_be_bytes());
}

fn read(path: &str) -> Stored {
    let db = Db::open(path).unwrap();
    let pairs = db.iter().records().map(|record| record.unwrap());
    pairs.map(|(key, record)| (key, record.value)).collect()
}
