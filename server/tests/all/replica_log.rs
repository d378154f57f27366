//! Tests a hash on disk that replicas follow, which is the usual kind of master in Kyoto Tycoon.
//!
//! The hash recovers from its own files. The update log beside them is only for replicas. It
//! continues only if it is known to agree with the hash. Otherwise, replicas receive a clear and
//! all records.

use crate::crash_disk;
use crate::kyoto_replica;
use crate::running;

use crash_disk::CrashDisk;
use kyoto_replica::{Follower, Update, kept, told};
use running::{Client, Running};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use todana::disk::{Disk, SystemDisk};
use todana::update_log::SyncPolicy;
use todana::{Db, Records};
use todana_server::{
    DataDirectoryOptions, DatabaseName, DatabaseOptions, ListenOptions, Server, ServerOptions,
};

fn options(folder: &Path) -> ServerOptions {
    let database = Some(DatabaseName::parse(folder.join("casket.kch").to_str().unwrap()).unwrap());
    // The log is synced only when replicas need it.
    let data = DataDirectoryOptions::new(folder.join("ulog"), SyncPolicy::Every(Duration::from_secs(3600)));
    let data = Some(DataDirectoryOptions { is_for_replicas: true, ..data });
    ServerOptions {
        listen: ListenOptions { port: 0, ..kept(folder, 17).listen },
        databases: DatabaseOptions {
            database,
            data,
            sync: SyncPolicy::Every(Duration::from_secs(3600)),
            ..kept(folder, 17).databases
        },
        ..kept(folder, 17)
    }
}

fn start(folder: &Path, disk: &Arc<dyn Disk>) -> Running {
    let mut server = Server::bind_on(options(folder), None, Arc::clone(disk)).unwrap();
    server.load(&mut |_| ()).unwrap();
    Running::of(server)
}

fn updates(server: &Running, from: u64) -> (Vec<Update>, u64) {
    Follower::from(server.addresses[0], from, 2).updates()
}

fn remove(client: &mut Client, key: &str) {
    client.send(format!("delete {key}\r\n").as_bytes());
    client.expect(b"DELETED\r\n");
}

/// Returns the records of these keys in the form of replicated updates.
fn held(client: &mut Client, keys: &[&str]) -> Vec<String> {
    let mut held = Vec::new();
    for key in keys {
        client.send(format!("get {key}\r\n").as_bytes());
        if client.line() != "END\r\n" {
            held.push(format!("{key}={} ffffffffff", client.line().trim_end()));
            client.expect(b"END\r\n");
        }
    }
    held
}

#[test]
fn hash_replica_resumes_after_an_orderly_stop() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let first = {
        let server = start(folder.path(), &disk);
        let mut client = server.connect();
        client.set(b"a", b"1");
        client.set(b"b", b"2");
        remove(&mut client, "a");
        client.send(b"touch b 2000000000\r\n");
        client.expect(b"TOUCHED\r\n");
        updates(&server, 0).0
    };
    let mut expected = vec!["a=1 ffffffffff", "b=2 ffffffffff", "-a", "b=2 773593ff"];
    assert_eq!(told(&first), expected);
    for after in ["c=3 ffffffffff", "d=3 ffffffffff"] {
        let server = start(folder.path(), &disk);
        server.connect().set(&after.as_bytes()[..1], b"3");
        expected.push(after);
        for seen in [0, 2] {
            assert_eq!(told(&updates(&server, first[seen].0).0), expected[seen + 1..]);
        }
    }
}

#[test]
fn hash_replicas_read_everything_after_a_crash() {
    let (crash, folder) = (CrashDisk::new(), Path::new("/"));
    let disk: Arc<dyn Disk> = Arc::new(crash.clone());
    let mut position = 0;
    let keys = ["stays", "goes", "more0", "more1", "more2", "more3"];
    let mut server = start(folder, &disk);
    let mut client = server.connect();
    client.set(b"stays", b"1");
    client.set(b"goes", b"1");
    for (number, power_lost) in [None, Some(1), Some(2), Some(3)].into_iter().enumerate() {
        let (seen, stamp) = updates(&server, position);
        assert!(!seen.is_empty());
        position = stamp.max(seen.last().unwrap().0);
        // No replica has received these changes.
        client.set(format!("more{number}").as_bytes(), b"x");
        if number == 0 {
            remove(&mut client, "goes");
        }
        crash.stop();
        drop((client, server));
        crash.come_up(power_lost);
        server = start(folder, &disk);
        client = server.connect();
        let (mut all, _) = updates(&server, position);
        assert_eq!(all.remove(0).3, "clear");
        let mut all: Vec<String> = told(&all).into_iter().map(str::to_string).collect();
        all.sort_unstable();
        let mut held = held(&mut client, &keys);
        held.sort_unstable();
        assert_eq!(all, held);
        assert!(held.contains(&"stays=1 ffffffffff".to_string()), "a replica has been told: it was on disk");
        client.set(b"stays", b"1");
    }
}

#[test]
fn unlogged_change_makes_replicas_read_everything() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let position = {
        let server = start(folder.path(), &disk);
        server.connect().set(b"a", b"1");
        updates(&server, 0).0[0].0
    };
    {
        let database = Db::open(folder.path().join("casket.kch").to_str().unwrap()).unwrap();
        database.set(b"a", b"2").unwrap();
    }
    let server = start(folder.path(), &disk);
    assert_eq!(told(&updates(&server, position).0), ["clear", "a=2 ffffffffff"]);
}

#[test]
fn directory_of_another_kind_is_refused_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let in_memory = || ServerOptions {
        listen: ListenOptions { port: 0, ..kept(&folder.path().join("ulog"), 17).listen },
        ..kept(&folder.path().join("ulog"), 17)
    };
    {
        let server = Running::start(in_memory());
        server.connect().set(b"kept", b"1");
    }
    let mut server = Server::bind_on(options(folder.path()), None, Arc::clone(&disk)).unwrap();
    let refused = server.load(&mut |_| ()).unwrap_err().to_string();
    assert!(refused.contains("ulog: has the data of a database in memory"), "{refused}");
    drop(server);
    Running::start(in_memory()).connect().expect_value(b"kept", b"1");
    std::fs::remove_dir_all(folder.path().join("ulog")).unwrap();
    drop(start(folder.path(), &disk));
    let mut server = Server::bind(in_memory()).unwrap();
    let refused = server.load(&mut |_| ()).unwrap_err().to_string();
    assert!(refused.contains("has the update log of a hash on disk"), "{refused}");
}
