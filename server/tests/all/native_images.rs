//! Tests full copies by image: a replica takes over the buckets and the seed of its master. The
//! records are then not in the log of the replica, so its own restart and its own replicas must
//! find them elsewhere.

use crate::running;

use running::{Client, Running, eventually, options};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::seed_of;
use todana::update_log::SyncPolicy;
use todana_server::{
    DataDirectoryOptions, DatabaseName, DatabaseOptions, KyotoMode, KyotoOptions, MasterAddress,
    MasterProtocol, ProtocolOptions, ReplicationOptions, ServerOptions, TyrantMode, TyrantOptions,
};

/// Returns the options of a server of this kind whose files are in a folder of its own.
fn server_options(
    server_id: u16,
    kind: &str,
    folder: &Path,
    master: Option<(SocketAddr, MasterProtocol)>,
) -> ServerOptions {
    let folder = folder.join(server_id.to_string());
    let data = DataDirectoryOptions::new(folder.join("data"), SyncPolicy::Always);
    let replication = ReplicationOptions {
        server_id,
        master: master.map(|(to, _)| MasterAddress { host: to.ip().to_string(), port: to.port() }),
        protocol: master.map_or(MasterProtocol::Native, |(_, protocol)| protocol),
        position_file: Some(folder.join("position")),
        ..ReplicationOptions::default()
    };
    std::fs::create_dir_all(&folder).unwrap();
    ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto },
            tyrant: TyrantOptions { spoken: TyrantMode::Binary, ..TyrantOptions::default() },
            ..options().protocols
        },
        databases: DatabaseOptions {
            database: DatabaseName::parse(kind).ok(),
            data: Some(data),
            replication,
            ..options().databases
        },
        ..options()
    }
}

const RECORDS: u32 = 3_000;

/// Stores records of all lengths and with all attributes, and returns their keys.
fn fill(client: &mut Client, prefix: &str) -> Vec<String> {
    let mut keys = Vec::new();
    for n in 0..RECORDS {
        let key = if n % 2 == 0 { format!("{prefix}{n:08}") } else { format!("{prefix}key:{n}") };
        let value = match n % 500 {
            1 => vec![b'm'; 2_000 + n as usize],
            2 => vec![b'l'; 70_000 + n as usize],
            3..250 => (u64::from(n) * 7_919).to_string().into_bytes(),
            _ => vec![b'v'; n as usize % 300],
        };
        let (flags, expiry) = (n % 7, if n % 5 == 0 { "T400000" } else { "T0" });
        let version = if n % 3 == 0 { format!("E{}", n + 1) } else { String::new() };
        client.send(format!("ms {key} {} F{flags} {expiry} {version}\r\n", value.len()).as_bytes());
        client.send(&value);
        client.send(b"\r\n");
        assert_eq!(client.line(), "HD\r\n");
        if n % 50 == 0 {
            client.send(format!("md {key} I T600\r\n").as_bytes());
            assert_eq!(client.line(), "HD\r\n");
        }
        keys.push(key);
    }
    // The first reader of a stale record is asked to refresh it, and the first reader of a version
    // gives it.
    records(client, &keys, "c");
    keys
}

/// Returns the attributes and the value of each key, or the reply if there is no record.
fn records(client: &mut Client, keys: &[String], flags: &str) -> Vec<String> {
    let mut found = Vec::new();
    for key in keys {
        client.send(format!("mg {key} k {flags} v\r\n").as_bytes());
        let line = client.line();
        let value = if line.starts_with("VA") { client.line() } else { String::new() };
        found.push(line + &value);
    }
    found
}

/// Returns the value of each key. Not all protocols of replication carry more.
fn values(client: &mut Client, keys: &[String]) -> Vec<Option<String>> {
    let found = records(client, keys, "");
    let value = |record: &String| Some(record.strip_prefix("VA")?.split_once('\n')?.1.to_string());
    found.iter().map(value).collect()
}

fn is_stored(folder: &Path, server_id: u16) -> bool {
    let text = std::fs::read_to_string(folder.join(server_id.to_string()).join("position"));
    text.is_ok_and(|text| text.lines().any(|line| line.starts_with("0 ")) && !text.contains("copying"))
}

fn seed(folder: &Path, server_id: u16) -> Option<u64> {
    seed_of(Arc::new(SystemDisk), &folder.join(server_id.to_string()).join("data"))
}

fn checkpoint(running: &Running) {
    let mut client = running.connect();
    client.send(b"todana checkpoint\r\n");
    let reply = client.line();
    assert!(reply.starts_with("CHECKPOINT") || reply.starts_with("OK"), "{reply}");
}

#[test]
fn replica_takes_over_buckets_and_seed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let master = Running::start(server_options(1, "mem:hash", folder, None));
    let mut client = master.connect();
    let keys = fill(&mut client, "");
    checkpoint(&master);
    let at_master = (master.addresses[0], MasterProtocol::Native);
    let replica = Running::start(server_options(2, "mem:hash", folder, Some(at_master)));
    // A database of another kind gets the records one by one.
    let tree = Running::start(server_options(3, "mem:tree", folder, Some(at_master)));
    let expected = records(&mut client, &keys, "f s c");
    assert!(expected.iter().all(|record| record.starts_with("VA") || record.starts_with("EN")));
    for running in [&replica, &tree] {
        eventually("all records", || records(&mut running.connect(), &keys, "f s c") == expected);
    }
    client.set(b"later", b"1");
    eventually("a change after the image", || {
        records(&mut replica.connect(), &["later".into()], "")[0].starts_with("VA")
    });
    // The copied records are on the disk of the replica once its place is stored.
    eventually("a stored place", || is_stored(folder, 2));
    assert_eq!((seed(folder, 2), seed(folder, 1).is_some()), (seed(folder, 1), true));
    drop((client, master, replica));
    let alone = Running::start(server_options(2, "mem:hash", folder, None));
    let mut client = alone.connect();
    assert!(records(&mut client, &keys, "f s c") == expected);
    client.expect_value(b"later", b"1");
}

/// Replicas in all protocols follow a server that copies all records of a new master. None of these
/// records is in the log that they read.
#[test]
fn replicas_behind_a_copy_receive_its_records() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let protocols = [
        (3, MasterProtocol::Native),
        (4, MasterProtocol::Kyoto),
        (5, MasterProtocol::Tyrant { checks_outcomes: false }),
    ];
    let mut all_keys: Vec<Vec<String>> = Vec::new();
    for (masters_id, prefix) in [(1, "old"), (6, "new")] {
        let master = Running::start(server_options(masters_id, "mem:hash", folder, None));
        let mut client = master.connect();
        let keys = fill(&mut client, prefix);
        let expected = values(&mut client, &keys);
        assert!(expected.iter().all(Option::is_some));
        let middle_options =
            server_options(2, "mem:hash", folder, Some((master.addresses[0], MasterProtocol::Native)));
        let middle = Running::start(middle_options);
        let at_middle = middle.addresses[0];
        let last: Vec<Running> = protocols
            .iter()
            .map(|&(id, protocol)| {
                Running::start(server_options(id, "mem:hash", folder, Some((at_middle, protocol))))
            })
            .collect();
        for running in [&middle].into_iter().chain(&last) {
            eventually("the records of the master", || values(&mut running.connect(), &keys) == expected);
            // The records of the former master are gone.
            for keys in &all_keys {
                let left = values(&mut running.connect(), keys);
                assert!(left.iter().all(Option::is_none));
            }
        }
        eventually("a stored place", || is_stored(folder, 2));
        client.set(b"later", prefix.as_bytes());
        for running in &last {
            eventually("a later change", || {
                let mut client = running.connect();
                client.send(b"get later\r\n");
                client.line() != "END\r\n" && client.line() == format!("{prefix}\r\n")
            });
        }
        all_keys.push(keys);
    }
}

/// A replica that dies before its copied records are on disk copies them again.
#[test]
fn copy_that_is_not_on_disk_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let master = Running::start(server_options(1, "mem:hash", folder, None));
    let mut client = master.connect();
    let keys = fill(&mut client, "");
    let expected = records(&mut client, &keys, "f s c");
    let at_master = (master.addresses[0], MasterProtocol::Native);
    let replica = Running::start(server_options(2, "mem:hash", folder, Some(at_master)));
    eventually("all records", || records(&mut replica.connect(), &keys, "f s c") == expected);
    eventually("a stored place", || is_stored(folder, 2));
    drop(replica);
    // As after a death: the newest checkpoint, which contains the copied records, is damaged.
    let files = folder.join("2/data/checkpoints");
    let mut damaged = 0;
    for file in std::fs::read_dir(&files).unwrap() {
        std::fs::write(file.unwrap().path(), b"").unwrap();
        damaged += 1;
    }
    assert!(damaged > 0);
    let replica = Running::start(server_options(2, "mem:hash", folder, Some(at_master)));
    eventually("all records again", || records(&mut replica.connect(), &keys, "f s c") == expected);
}
