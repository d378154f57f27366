//! Tests replicas that are slow, masters that stall, positions that cannot be stored, and logs that
//! are deleted.

use crate::kyoto_replica;
use crate::running;

use kyoto_replica::{Follower, call, done, following, forget_log, kept, told, value};
use running::{Client, Running, eventually, options};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use todana::checkpoint::CheckpointOptions;
use todana::update_log::SyncPolicy;
use todana_protocol::kyoto::message::{UpdateChange, UpdateMessage};
use todana_protocol::kyoto::{ReplicaRequest, StoredValue};
use todana_server::{
    DataDirectoryOptions, DatabaseName, DatabaseOptions, DatabaseSpec, KyotoMode, KyotoOptions, LimitOptions,
    ProtocolOptions, ReplicationOptions, ServerOptions,
};

const NEVER: u64 = (1 << 40) - 1;

/// Encodes an update message of a master.
fn said(timestamp: u64, server_id: u16, change: UpdateChange<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let message = UpdateMessage { server_id, database: 0, change };
    todana_protocol::kyoto::replication::put_update(timestamp, &message, &mut out);
    out
}

/// Accepts a replica. Returns the connection and the position from which the replica continues.
fn hello(listener: &TcpListener) -> (TcpStream, u64) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(running::WAIT_MAX)).unwrap();
    let mut hello = [0; 15];
    stream.read_exact(&mut hello).unwrap();
    stream.write_all(b"\xB1").unwrap();
    (stream, u64::from_be_bytes(hello[5..13].try_into().unwrap()))
}

/// Returns the options of a master that syncs its log once an hour, and when a replica needs it.
fn lazy(directory: &Path) -> ServerOptions {
    let data =
        Some(DataDirectoryOptions::new(directory.into(), SyncPolicy::Every(Duration::from_secs(3600))));
    ServerOptions {
        databases: DatabaseOptions { data, ..kept(directory, 17).databases },
        ..kept(directory, 17)
    }
}

/// These are more values than the sockets between the two servers can buffer.
const FILLERS: usize = 40;

/// Stores the values. Returns the end of the log after each.
fn fill(client: &mut Client, value: u8) -> Vec<u64> {
    let value = vec![value; 1 << 19];
    let set = |number| {
        client.set(format!("k{number}").as_bytes(), &value);
        client.stat("todana_log_end").parse().unwrap()
    };
    (0..FILLERS).map(set).collect()
}

// In an earlier version, a touch was sent with the value that the record had at that moment. This
// value could be newer than the one on the master's disk. After a crash of the master, the two
// servers differed for ever.
#[test]
fn touched_value_is_sent_after_the_sync() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(lazy(folder.path()));
    let mut client = server.connect();
    client.set(b"touched", b"first");
    fill(&mut client, b'x');
    client.send(b"touch touched 100000\r\n");
    client.expect(b"TOUCHED\r\n");
    let mut follower = Follower::from(server.addresses[0], 0, 2);
    // The round has begun, and waits until the replica reads more.
    assert_eq!(follower.next_update().3, "touched=first ffffffffff");
    client.set(b"touched", b"second");
    let touched = (0..).map(|_| follower.next_update().3).find(|what| what.starts_with("touched=")).unwrap();
    assert!(touched.starts_with("touched=second ") && !touched.ends_with("ffffffffff"), "{touched}");
    assert_eq!(client.stat("todana_log_unsynced_bytes"), "0");
}

// In an earlier version, the records of a full sync were also sent before they were on the master's
// disk.
#[test]
fn scanned_records_are_sent_after_the_sync() {
    let folder = tempfile::tempdir().unwrap();
    fill(&mut Running::start(lazy(folder.path())).connect(), b'x');
    forget_log(folder.path());
    let server = Running::start(lazy(folder.path()));
    let mut follower = Follower::from(server.addresses[0], 0, 2);
    assert_eq!(follower.next_update().3, "clear");
    let mut client = server.connect();
    let ends = fill(&mut client, b'y');
    let mut newer = 0;
    for _ in 0..FILLERS {
        let update = follower.next_update().3;
        let Some((key, _)) = update.split_once("=yyyy") else { continue };
        let synced: u64 = client.stat("todana_log_synced").parse().unwrap();
        assert!(synced >= ends[key[1..].parse::<usize>().unwrap()], "{key}: {synced}");
        newer += 1;
    }
    assert!(newer > 0, "all were read before they were changed");
}

#[test]
fn stalled_replica_delays_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept(folder.path(), 17));
    let stalled: Vec<_> = (0..3).map(|_| Follower::from(server.addresses[0], 0, 2)).collect();
    let mut client = server.connect();
    let value = vec![b'x'; 1 << 19];
    (0..24).for_each(|number| client.set(format!("k{number}").as_bytes(), &value));
    let mut follower = Follower::from(server.addresses[0], 0, 3);
    assert_eq!(follower.next_updates(24).len(), 24);
    client.set(b"after", b"all");
    assert_eq!(told(&follower.next_updates(1)), ["after=all ffffffffff"]);
    drop(stalled);
}

#[test]
fn replicas_over_the_limit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept(folder.path(), 17));
    let mut all: Vec<_> = (0..16).map(|_| Follower::from(server.addresses[0], 0, 2)).collect();
    all.iter_mut().for_each(|follower| assert_eq!(follower.updates().0, []));
    let mut one_more = server.connect();
    one_more.send(b"\xB1\0\0\0\0\0\0\0\0\0\0\0\0\0\x02");
    assert_eq!(one_more.rest(), b"\xBF");
    server.connect().set(b"k", b"v");
    all.iter_mut().for_each(|follower| assert_eq!(told(&follower.next_updates(1)), ["k=v ffffffffff"]));
}

#[test]
fn touch_is_sent_as_its_resulting_record() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept(folder.path(), 17));
    let mut client = server.connect();
    client.set(b"k", b"v");
    client.send(b"touch k 2000000000\r\n");
    client.expect(b"TOUCHED\r\n");
    let sent = Follower::from(server.addresses[0], 0, 2).next_updates(2);
    assert!(sent[1].3.starts_with("k=v ") && sent[1].3 != "k=v ffffffffff", "{sent:?}");
    // If the record has been deleted by then, the touch is sent as a deletion.
    client.send(b"delete k\r\n");
    client.expect(b"DELETED\r\n");
    assert_eq!(told(&Follower::from(server.addresses[0], 0, 2).next_updates(2)), ["k=v ffffffffff", "-k"]);
}

#[test]
fn server_stops_although_its_master_stalls() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Running::start(following(folder.path(), 12, listener.local_addr().unwrap()));
    let (mut master, _) = hello(&listener);
    let message =
        said(5, 9, UpdateChange::Set { key: b"a", stored: StoredValue::with_expiry(NEVER, &[b'x'; 1000]) });
    master
        .write_all(&said(
            4,
            9,
            UpdateChange::Set { key: b"b", stored: StoredValue::with_expiry(NEVER, b"1") },
        ))
        .unwrap();
    master.write_all(&message[..500]).unwrap();
    let mut client = server.connect();
    eventually("the whole one is there", || value(&mut client, "b").is_some());
    drop(server);
    // The partial message was not applied.
    let server = Running::start(following(folder.path(), 12, listener.local_addr().unwrap()));
    assert_eq!(hello(&listener).1, 4);
    assert_eq!(value(&mut server.connect(), "a"), None);
}

#[test]
fn impossible_message_length_ends_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _server = Running::start(following(folder.path(), 12, listener.local_addr().unwrap()));
    let (mut master, _) = hello(&listener);
    master.write_all(b"\xB1\0\0\0\0\0\0\0\x05\xFF\xFF\xFF\xFF").unwrap();
    assert_eq!(hello(&listener).1, 0, "it has left, and come again");
    assert!(matches!(master.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn a_long_value_goes_through_a_chain() {
    let folder = tempfile::tempdir().unwrap();
    let big = |options: ServerOptions| ServerOptions {
        limits: LimitOptions { item_size_max: 64 << 20, ..options.limits },
        ..options
    };
    let first = Running::start(big(kept(&folder.path().join("first"), 1)));
    let second = Running::start(big(following(&folder.path().join("second"), 2, first.addresses[0])));
    let third = Running::start(big(following(&folder.path().join("third"), 3, second.addresses[0])));
    let long: Vec<u8> = (0..20_000_000u32).map(|at| (at % 251) as u8).collect();
    first.connect().set(b"long", &long);
    let mut client = third.connect();
    eventually("it has come", || {
        client.send(b"get long\r\n");
        client.line() != "END\r\n" && {
            let whole = client.take(long.len() + 7);
            assert!(whole.starts_with(&long));
            true
        }
    });
}

#[test]
fn damaged_position_is_reported_and_replication_restarts() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("position"), b"seven and a half\n").unwrap();
    let first = Running::start(kept(&folder.path().join("first"), 1));
    first.connect().set(b"k", b"v");
    let second = Running::start(following(folder.path(), 2, first.addresses[0]));
    let mut client = second.connect();
    eventually("it has come", || value(&mut client, "k").as_deref() == Some("v"));
    eventually("it is whole again", || {
        let kept = std::fs::read(folder.path().join("position")).unwrap();
        kept.len() >= 21 && kept[..20].iter().all(u8::is_ascii_digit)
    });
}

#[test]
fn a_position_that_cannot_be_kept_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // The directory prevents both reads and writes of the position.
    std::fs::create_dir(folder.path().join("position")).unwrap();
    let first = Running::start(kept(&folder.path().join("first"), 1));
    let mut client = first.connect();
    client.set(b"k", b"1");
    let follow = || Running::start(following(folder.path(), 2, first.addresses[0]));
    {
        let second = follow();
        eventually("it has come", || value(&mut second.connect(), "k").as_deref() == Some("1"));
    }
    client.set(b"k", b"2");
    let second = follow();
    eventually("so has what came later", || value(&mut second.connect(), "k").as_deref() == Some("2"));
}

#[test]
fn servers_of_one_id_exchange_only_foreign_changes() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = Running::start(following(&folder.path().join("first"), 7, listener.local_addr().unwrap()));
    let second = Running::start(following(&folder.path().join("second"), 7, first.addresses[0]));
    first.connect().set(b"own", b"1");
    let (mut master, _) = hello(&listener);
    let set = UpdateChange::Set { key: b"elsewhere", stored: StoredValue::with_expiry(NEVER, b"2") };
    master.write_all(&said(5, 9, set)).unwrap();
    let mut client = second.connect();
    eventually("it has come", || value(&mut client, "elsewhere").is_some());
    assert_eq!(value(&mut client, "own"), None);
}

#[test]
fn clear_is_covered_by_the_position_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Running::start(following(folder.path(), 12, listener.local_addr().unwrap()));
    let (mut master, _) = hello(&listener);
    master.write_all(&said(77, 9, UpdateChange::Clear)).unwrap();
    let position = || std::fs::read(folder.path().join("position"));
    eventually("it is kept", || position().is_ok_and(|kept| kept == b"00000000000000000077\n"));
    drop(server);
}

#[test]
fn replica_keeps_records_that_its_master_lost() {
    let folder = tempfile::tempdir().unwrap();
    let start = |name: &str| Running::start(kept(&folder.path().join(name), 1));
    let first = start("first");
    let second = Running::start(following(folder.path(), 2, first.addresses[0]));
    first.connect().set(b"old", b"1");
    let mut client = second.connect();
    eventually("it has come", || value(&mut client, "old").is_some());
    drop(first);
    let empty = start("empty");
    let port = empty.addresses[0].port();
    done(&mut client, "tune_replication", &format!("host\t127.0.0.1\nport\t{port}\n"));
    // A change within the second in which the other log ended would otherwise count as known.
    eventually("what is new has come", || {
        empty.connect().set(b"new", b"2");
        value(&mut client, "new").is_some()
    });
    assert_eq!(value(&mut client, "old").as_deref(), Some("1"));
}

fn kept_long(directory: &Path) -> ServerOptions {
    let checkpoints = CheckpointOptions {
        log_len_min: 4096,
        log_kept_len: u64::MAX,
        log_kept_age: Duration::MAX,
        ..CheckpointOptions::default()
    };
    let data = DataDirectoryOptions {
        segment_len: 4096,
        checkpoints,
        ..DataDirectoryOptions::new(directory.into(), SyncPolicy::Always)
    };
    let replication = ReplicationOptions { server_id: 17, ..ReplicationOptions::default() };
    ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto },
            ..options().protocols
        },
        databases: DatabaseOptions { data: Some(data), replication, ..options().databases },
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    }
}

/// A replica that connects too late after that receives all records again.
#[test]
fn ulog_remove_frees_only_the_unneeded_log() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept_long(folder.path()));
    let mut client = server.connect();
    let files = |client: &mut running::Client| call(client, "ulog_list", "").1.lines().count();
    let mut writer = server.connect();
    let mut write = || (0..40).for_each(|number| writer.set(format!("k{number}").as_bytes(), &[b'x'; 300]));
    let before = std::cell::Cell::new(0);
    eventually("two checkpoints are made, and the first segments removed", || {
        write();
        before.set(files(&mut client));
        done(&mut client, "ulog_remove", "ts\t1\n");
        assert!(files(&mut client) >= before.get(), "all are newer than that");
        done(&mut client, "ulog_remove", "ts\tnow\n");
        done(&mut client, "ulog_remove", "");
        files(&mut client) < before.get()
    });
    let (first, _) = Follower::from(server.addresses[0], 0, 2).updates();
    assert_eq!(first[0].3, "clear");
    assert_eq!(first.len(), 41, "all records and no more");
    // No part of the log that is still needed has been removed.
    drop((server, client, writer));
    let server = Running::start(kept_long(folder.path()));
    let (_, keys) = call(&mut server.connect(), "match_prefix", "prefix\tk\n");
    assert!(keys.contains("num\t40\n"), "{keys}");
}

#[test]
fn following_master_sends_no_clear() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = kept_long(&folder.path().join("data")).databases.data;
    let options = ServerOptions {
        databases: DatabaseOptions {
            data: place,
            ..following(folder.path(), 17, listener.local_addr().unwrap()).databases
        },
        ..following(folder.path(), 17, listener.local_addr().unwrap())
    };
    let server = Running::start(options);
    let mut client = server.connect();
    let files = |client: &mut running::Client| call(client, "ulog_list", "").1.lines().count();
    let mut writer = server.connect();
    eventually("some of the log is gone", || {
        (0..40).for_each(|number| writer.set(format!("k{number}").as_bytes(), &[b'x'; 300]));
        let before = files(&mut client);
        done(&mut client, "ulog_remove", "");
        files(&mut client) < before
    });
    let (first, _) = Follower::from(server.addresses[0], 0, 2).updates();
    assert_eq!(first.len(), 40);
    assert!(first.iter().all(|update| update.3.starts_with('k')));
}

/// A server that has only this database refuses replicas. If there are other databases, only this
/// one is left out.
#[test]
fn disk_hash_without_log_has_no_replicas() {
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| DatabaseName::parse(folder.path().join(name).to_str().unwrap()).unwrap();
    let hash = || DatabaseSpec { name: name("a.hash"), data: None };
    {
        let server = Running::start(ServerOptions {
            protocols: ProtocolOptions {
                kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto },
                ..options().protocols
            },
            databases: DatabaseOptions { database: Some(hash().name), ..options().databases },
            limits: LimitOptions { threads: 1, ..options().limits },
            ..options()
        });
        let mut replica = server.connect();
        replica.send(b"\xB1\0\0\0\0\0\0\0\0\0\0\0\0\0\x02");
        assert_eq!(replica.rest(), b"\xBF");
    }
    let server = Running::start(ServerOptions {
        databases: DatabaseOptions {
            further: vec![hash()],
            ..kept(&folder.path().join("data"), 17).databases
        },
        ..kept(&folder.path().join("data"), 17)
    });
    let mut client = server.connect();
    done(&mut client, "set", "DB\t1\nkey\thash\nvalue\t1\n");
    done(&mut client, "set", "DB\t0\nkey\tmemory\nvalue\t1\n");
    let hello = ReplicaRequest { timestamp: 0, server_id: 2, wants_only: false, takes_lists: false };
    assert_eq!(told(&Follower::connect(server.addresses[0], hello).next_updates(1)), ["memory=1 ffffffffff"]);
    // The server can still follow another one.
    let second = Running::start(ServerOptions {
        databases: DatabaseOptions {
            database: Some(name("b.hash")),
            data: None,
            ..following(&folder.path().join("second"), 2, server.addresses[0]).databases
        },
        ..following(&folder.path().join("second"), 2, server.addresses[0])
    });
    eventually("it has come", || value(&mut second.connect(), "memory").is_some());
}

#[test]
fn read_only_server_follows_its_master() {
    let folder = tempfile::tempdir().unwrap();
    let first = Running::start(kept(&folder.path().join("first"), 1));
    let second = following(&folder.path().join("second"), 2, first.addresses[0]);
    let second = Running::start(ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { read_only: true, ..second.protocols.kyoto },
            ..second.protocols
        },
        ..second
    });
    first.connect().set(b"k", b"v");
    let mut client = second.connect();
    eventually("it has come", || value(&mut client, "k").is_some());
    assert_eq!(call(&mut client, "set", "key\tk\nvalue\tx\n").0, "500");
}
