//! Replicas that are slow, masters that stall, positions that cannot be kept, logs that are let go.

mod kyoto_replica;
mod running;

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
    DataDirectoryOptions, DatabaseOptions, DatabaseSpec, KyotoMode, KyotoOptions, LimitOptions, Name,
    ProtocolOptions, ReplicationOptions, ServerOptions,
};

const NEVER: u64 = (1 << 40) - 1;

/// What a master says.
fn said(timestamp: u64, server_id: u16, change: UpdateChange<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let message = UpdateMessage { server_id, database: 0, change };
    todana_protocol::kyoto::replication::put_update(timestamp, &message, &mut out);
    out
}

/// Takes a replica in, and tells from where it wants to go on.
fn hello(listener: &TcpListener) -> (TcpStream, u64) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(running::PATIENCE)).unwrap();
    let mut hello = [0; 15];
    stream.read_exact(&mut hello).unwrap();
    stream.write_all(b"\xB1").unwrap();
    (stream, u64::from_be_bytes(hello[5..13].try_into().unwrap()))
}

/// A master that syncs its log once in an hour, or where a replica needs it.
fn lazy(directory: &Path) -> ServerOptions {
    let data =
        Some(DataDirectoryOptions::new(directory.into(), SyncPolicy::Every(Duration::from_secs(3600))));
    ServerOptions {
        databases: DatabaseOptions { data, ..kept(directory, 17).databases },
        ..kept(directory, 17)
    }
}

/// More than the sockets between the two hold.
const FILLERS: usize = 40;

/// Returns where the log ends behind each.
fn fill(client: &mut Client, value: u8) -> Vec<u64> {
    let value = vec![value; 1 << 19];
    let set = |number| {
        client.set(format!("k{number}").as_bytes(), &value);
        client.stat("todana_log_end").parse().unwrap()
    };
    (0..FILLERS).map(set).collect()
}

// A touch was sent with the value as of the moment it was sent, which might be newer than what the
// master had on disk. After a crash of the master the two differed for ever.
#[test]
fn touched_value_is_sent_once_the_master_has_it_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(lazy(folder.path()));
    let mut client = server.connect();
    client.set(b"touched", b"first");
    fill(&mut client, b'x');
    client.send(b"touch touched 100000\r\n");
    client.expect(b"TOUCHED\r\n");
    let mut follower = Follower::from(server.addresses[0], 0, 2);
    // The round has begun, and waits for the replica to read on.
    assert_eq!(follower.next_update().3, "touched=first ffffffffff");
    client.set(b"touched", b"second");
    let touched = (0..).map(|_| follower.next_update().3).find(|what| what.starts_with("touched=")).unwrap();
    assert!(touched.starts_with("touched=second ") && !touched.ends_with("ffffffffff"), "{touched}");
    assert_eq!(client.stat("todana_log_unsynced_bytes"), "0");
}

// So were the records of a full sync.
#[test]
fn scanned_records_are_sent_once_the_master_has_them_on_disk() {
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
fn a_replica_that_does_not_read_keeps_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept(folder.path(), 17));
    let stalled: Vec<_> = (0..3).map(|_| Follower::from(server.addresses[0], 0, 2)).collect();
    let mut client = server.connect();
    let value = vec![b'x'; 1 << 19];
    (0..24).for_each(|number| client.set(format!("k{number}").as_bytes(), &value));
    let mut follower = Follower::from(server.addresses[0], 0, 3);
    assert_eq!(follower.so_many(24).len(), 24);
    client.set(b"after", b"all");
    assert_eq!(told(&follower.so_many(1)), ["after=all ffffffffff"]);
    drop(stalled);
}

#[test]
fn more_replicas_than_are_served_are_refused_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept(folder.path(), 17));
    let mut all: Vec<_> = (0..16).map(|_| Follower::from(server.addresses[0], 0, 2)).collect();
    all.iter_mut().for_each(|follower| assert_eq!(follower.updates().0, []));
    let mut one_more = server.connect();
    one_more.send(b"\xB1\0\0\0\0\0\0\0\0\0\0\0\0\0\x02");
    assert_eq!(one_more.rest(), b"\xBF");
    server.connect().set(b"k", b"v");
    all.iter_mut().for_each(|follower| assert_eq!(told(&follower.so_many(1)), ["k=v ffffffffff"]));
}

#[test]
fn a_touch_comes_as_the_record_it_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept(folder.path(), 17));
    let mut client = server.connect();
    client.set(b"k", b"v");
    client.send(b"touch k 2000000000\r\n");
    client.expect(b"TOUCHED\r\n");
    let sent = Follower::from(server.addresses[0], 0, 2).so_many(2);
    assert!(sent[1].3.starts_with("k=v ") && sent[1].3 != "k=v ffffffffff", "{sent:?}");
    // What is gone by then is told as gone.
    client.send(b"delete k\r\n");
    client.expect(b"DELETED\r\n");
    assert_eq!(told(&Follower::from(server.addresses[0], 0, 2).so_many(2)), ["k=v ffffffffff", "-k"]);
}

#[test]
fn a_server_ends_though_its_master_stalls_amid_a_message() {
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
    // Half of it was not taken for whole.
    let server = Running::start(following(folder.path(), 12, listener.local_addr().unwrap()));
    assert_eq!(hello(&listener).1, 4);
    assert_eq!(value(&mut server.connect(), "a"), None);
}

#[test]
fn a_length_that_nothing_could_have_is_no_message() {
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
fn a_damaged_position_is_told_and_all_is_taken_again() {
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
    // Neither to be read nor to be written.
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
fn servers_of_one_id_send_each_other_what_was_born_elsewhere_alone() {
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
fn a_clear_is_behind_the_position_before_more_is_taken() {
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
fn a_replica_of_a_master_that_has_lost_everything_keeps_what_it_has() {
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
    // Within the second in which the other log ended it would be taken for known.
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

#[test]
fn ulog_remove_lets_go_of_what_nobody_needs_and_who_is_too_late_then_gets_everything_anew() {
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
    // Nothing of what is needed has gone.
    drop((server, client, writer));
    let server = Running::start(kept_long(folder.path()));
    let (_, keys) = call(&mut server.connect(), "match_prefix", "prefix\tk\n");
    assert!(keys.contains("num\t40\n"), "{keys}");
}

#[test]
fn where_it_follows_somebody_itself_a_master_tells_nobody_to_clear() {
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

#[test]
fn a_hash_on_disk_alone_is_no_master_and_beside_others_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| Name::parse(folder.path().join(name).to_str().unwrap()).unwrap();
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
    let hello = ReplicaRequest { timestamp: 0, server_id: 2, wants_only: false };
    assert_eq!(told(&Follower::connect(server.addresses[0], hello).so_many(1)), ["memory=1 ffffffffff"]);
    // It can follow, all the same.
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
fn a_server_that_clients_may_not_change_follows_its_master() {
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
