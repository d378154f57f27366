//! `todana copy` between a database on disk and a cluster. `TODANA_CASSANDRA` names the contact
//! points of the cluster; without it, the test is skipped.

use std::path::Path;
use std::process::{Command, Output};
use todana::{DatabaseName, Db, OwnedRecord, Records, Ttl};
use todana_core::Operation;
use todana_remote::RemoteDatabase;

fn copy(from: &str, to: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_todana")).args(["copy", from, to]).output().unwrap()
}

fn records(path: &Path) -> Vec<(Vec<u8>, OwnedRecord)> {
    let db = Db::open(path.to_str().unwrap()).unwrap();
    let mut all = Vec::new();
    for key in db.iter().keys() {
        let key = key.unwrap();
        let record = db.get_record(&key).unwrap().unwrap();
        all.push((key, OwnedRecord { version: 0, ..record }));
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

#[test]
fn copy_to_a_cluster_and_back_keeps_records() {
    let Ok(hosts) = std::env::var("TODANA_CASSANDRA") else {
        println!("skipped: TODANA_CASSANDRA names no cluster");
        return;
    };
    let cluster = format!("cassandra://{hosts}/todana_copies#replication=1");
    let remote = RemoteDatabase::open(&DatabaseName::parse(&cluster).unwrap()).unwrap();
    remote.execute(&Operation::Flush { at: Ttl::Never }, &mut |_| ()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("a.tree"), folder.path().join("b.hash"));
    let db = Db::open(source.to_str().unwrap()).unwrap();
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 5000;
    for number in 0..2000u32 {
        let ttl = if number % 3 == 0 { Ttl::At(at) } else { Ttl::Never };
        let value = vec![number as u8; number as usize % 500];
        db.set_with(&number.to_be_bytes(), &value, ttl, number).unwrap();
    }
    db.sync().unwrap();
    drop(db);
    let (from, to) = (source.to_str().unwrap(), target.to_str().unwrap());
    let copied = copy(from, &cluster);
    let told = String::from_utf8_lossy(&copied.stderr);
    assert!(copied.status.success() && told.contains("2000 records copied"), "{told}");
    let again = copy(from, &cluster);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("holds records already"));
    let back = copy(&cluster, to);
    assert!(back.status.success(), "{}", String::from_utf8_lossy(&back.stderr));
    assert_eq!(records(&target), records(&source));
    let over = copy(&cluster, to);
    assert!(String::from_utf8_lossy(&over.stderr).contains("exists already"));
}
