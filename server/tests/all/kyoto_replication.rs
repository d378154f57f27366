//! Tests replication in Kyoto Tycoon's protocol: the updates that replicas receive, and the state
//! of a server that follows a master.

use crate::kyoto_replica;
use crate::running;

use kyoto_replica::{Follower, call, done, following, forget_log, kept, told, value};
use running::{Running, eventually, options};
use std::io::{Read, Write};
use std::net::TcpListener;
use todana::update_log::SyncPolicy;
use todana_protocol::kyoto::message::{UpdateChange, UpdateMessage};
use todana_protocol::kyoto::{ReplicaRequest, StoredValue};
use todana_server::{
    DataDirectoryOptions, DatabaseName, DatabaseOptions, DatabaseSpec, KyotoMode, KyotoOptions, LimitOptions,
    ProtocolOptions, ServerOptions,
};

const FOR_EVER: &[u8] = b"\xff\xff\xff\xff\xff";

#[test]
fn replica_gets_the_log_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept(folder.path(), 17));
    let mut client = server.connect();
    done(&mut client, "set", "key\tjapan\nvalue\ttokyo\n");
    done(&mut client, "remove", "key\tjapan\n");
    done(&mut client, "clear", "");
    let mut replica = server.connect();
    replica.send(b"\xB1\0\0\0\0\0\0\0\0\0\0\0\0\0\x02");
    let set = [b"\x00\x11\x00\x00\xA1\x05\x0Ajapan", FOR_EVER, b"tokyo"].concat();
    replica.expect(b"\xB1");
    let mut last = 0;
    for message in [&set[..], b"\x00\x11\x00\x00\xA2\x05japan", b"\x00\x11\x00\x00\xA5"] {
        let head = replica.take(13);
        assert_eq!(head[0], 0xB1);
        let stamp = u64::from_be_bytes(head[1..9].try_into().unwrap());
        assert!(stamp > last, "{stamp} behind {last}");
        last = stamp;
        assert_eq!(u32::from_be_bytes(head[9..].try_into().unwrap()) as usize, message.len());
        replica.expect(message);
    }
    // The master sends its next caught-up message only after the last one is acknowledged.
    for _ in 0..2 {
        let head = replica.take(9);
        assert_eq!(head[0], 0xB0);
        assert!(u64::from_be_bytes(head[1..].try_into().unwrap()) >= last);
        replica.send(b"\xB1");
    }
}

#[test]
fn replica_resumes_after_both_sides_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let first = {
        let server = Running::start(kept(folder.path(), 17));
        let mut client = server.connect();
        (0..100).for_each(|number| client.set(format!("k{number}").as_bytes(), b"v"));
        let first = Follower::from(server.addresses[0], 0, 2).next_updates(100);
        assert_eq!(told(&first)[..2], ["k0=v ffffffffff", "k1=v ffffffffff"]);
        first
    };
    let server = Running::start(kept(folder.path(), 17));
    server.connect().set(b"after", b"restart");
    for seen in [0, 1, 50, 99] {
        let rest = Follower::from(server.addresses[0], first[seen].0, 2).next_updates(100 - seen);
        assert_eq!(rest[..99 - seen], first[seen + 1..]);
        assert_eq!(rest.last().unwrap().3, "after=restart ffffffffff");
    }
    let (nothing, stamp) = Follower::from(server.addresses[0], u64::MAX, 2).updates();
    assert_eq!((nothing, stamp), (vec![], u64::MAX));
}

/// By default, a replica receives all changes except those that began at it. It may request only
/// its own changes instead.
#[test]
fn replica_gets_own_changes_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept(folder.path(), 17));
    server.connect().set(b"own", b"1");
    let sent = |server_id, wants_only| {
        let hello = ReplicaRequest { timestamp: 0, server_id, wants_only, takes_lists: false };
        Follower::connect(server.addresses[0], hello).updates().0.len()
    };
    assert_eq!([sent(17, false), sent(5, true), sent(5, false), sent(17, true)], [0, 0, 1, 1]);
}

#[test]
fn one_stream_carries_several_numbered_databases() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| Some(DataDirectoryOptions::new(folder.path().join(name), SyncPolicy::Always));
    let further = vec![
        DatabaseSpec { name: DatabaseName::parse("mem:tree").unwrap(), data: place("b") },
        // The list omits databases without a log.
        DatabaseSpec { name: DatabaseName::parse("mem:hash").unwrap(), data: None },
    ];
    let server = Running::start(ServerOptions {
        databases: DatabaseOptions { further, ..kept(&folder.path().join("a"), 17).databases },
        ..kept(&folder.path().join("a"), 17)
    });
    let mut client = server.connect();
    for number in 0..30 {
        done(&mut client, "set", &format!("DB\t{}\nkey\t{number}\nvalue\tv\n", number % 3));
    }
    let mut follower = Follower::from(server.addresses[0], 0, 2);
    let updates = follower.next_updates(20);
    assert!(updates.is_sorted_by(|one, next| one.0 < next.0));
    for database in 0..2 {
        let of_it: Vec<_> = updates.iter().filter(|update| update.2 == database).cloned().collect();
        let expected: Vec<_> =
            (0..10).map(|number| format!("{}=v ffffffffff", 3 * number + database)).collect();
        assert_eq!(told(&of_it), expected);
    }
}

#[test]
fn late_replica_gets_all_records_first() {
    let folder = tempfile::tempdir().unwrap();
    {
        let server = Running::start(kept(folder.path(), 17));
        let mut client = server.connect();
        (0..10).for_each(|number| client.set(format!("k{number}").as_bytes(), b"v"));
        client.send(b"delete k3\r\n");
        client.expect(b"DELETED\r\n");
    }
    forget_log(folder.path());
    let server = Running::start(kept(folder.path(), 17));
    let mut follower = Follower::from(server.addresses[0], 0, 2);
    let (mut first, stamp) = follower.updates();
    // The clear removes records that were deleted meanwhile.
    assert_eq!(first.remove(0).3, "clear");
    let mut all = told(&first);
    all.sort_unstable();
    let expected: Vec<_> =
        (0..10).filter(|&number| number != 3).map(|number| format!("k{number}=v ffffffffff")).collect();
    assert_eq!(all, expected);
    // If a replica is disconnected among these records, it begins again. A replica that has all of
    // them does not.
    assert!(first.iter().all(|update| update.0 < 100));
    assert_eq!(Follower::from(server.addresses[0], first[4].0, 2).updates().0.len(), 10);
    server.connect().set(b"new", b"v");
    assert_eq!(told(&follower.next_updates(1)), ["new=v ffffffffff"]);
    // The master continues in its log as soon as the replica's time stamp is later than the log's
    // beginning.
    let mut later = stamp;
    eventually("it comes on", || {
        later = follower.updates().1;
        later > stamp + 4_000_000_000
    });
    server.connect().set(b"newer", b"v");
    let rest = Follower::from(server.addresses[0], later, 2).next_updates(1);
    assert_eq!(told(&rest), ["newer=v ffffffffff"]);
}

#[test]
fn server_without_update_log_refuses_replicas() {
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto },
            ..options().protocols
        },
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    });
    let mut replica = server.connect();
    replica.send(b"\xB1\0\0\0\0\0\0\0\0\0\0\0\0\0\x02");
    assert_eq!(replica.rest(), b"\xBF");
    let mut client = server.connect();
    let text = "ERROR\tno update log allows no replication\n".to_string();
    assert_eq!(call(&mut client, "ulog_list", ""), ("400".into(), text.clone()));
    assert_eq!(call(&mut client, "ulog_remove", ""), ("400".into(), text));
}

#[test]
fn replica_passes_changes_on_with_their_origin() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Running::start(following(folder.path(), 12, listener.local_addr().unwrap()));
    let (mut master, _) = listener.accept().unwrap();
    let mut hello = [0; 15];
    master.read_exact(&mut hello).unwrap();
    // The highest flag asks for all values of a key. A server of Kyoto Tycoon ignores it.
    assert_eq!(hello, *b"\xB1\x80\0\0\0\0\0\0\0\0\0\0\0\0\x0C");
    let mut out = vec![0xB1];
    let mut put = |timestamp: u64, server_id, database, change| {
        let message = UpdateMessage { server_id, database, change };
        todana_protocol::kyoto::replication::put_update(timestamp, &message, &mut out);
    };
    let set = |key, stored| UpdateChange::Set { key, stored };
    put(5, 9, 0, set(&b"a"[..], StoredValue::with_expiry(3_000_000_000, b"1")));
    put(6, 9, 0, set(b"b", StoredValue::with_expiry((1 << 40) - 1, b"2")));
    put(7, 12, 0, set(b"own", StoredValue::with_expiry((1 << 40) - 1, b"x")));
    put(8, 9, 7, set(b"elsewhere", StoredValue::with_expiry((1 << 40) - 1, b"x")));
    put(9, 9, 0, UpdateChange::Other { operation: 0xA7, body: b"?" });
    put(10, 9, 0, UpdateChange::Remove { key: b"a" });
    put(11, 9, 0, set(b"c", StoredValue::with_expiry(3_000_000_000, b"3")));
    put(12, 9, 0, set(b"short", StoredValue::raw(b"4")));
    // The bytes are sent one by one, because the result must not depend on the pieces.
    for byte in out {
        master.write_all(&[byte]).unwrap();
    }
    master.write_all(&[0xB0, 0, 0, 0, 0, 0, 0, 0, 13]).unwrap();
    let mut acknowledged = [0];
    master.read_exact(&mut acknowledged).unwrap();
    assert_eq!(acknowledged, [0xB1]);
    let mut client = server.connect();
    let (_, body) = call(&mut client, "match_prefix", "prefix\t\n");
    assert_eq!(body.lines().filter(|line| line.starts_with('_')).count(), 2, "{body}");
    assert_eq!(call(&mut client, "get", "key\tc\n").1, "value\t3\nxt\t3000000000\n");
    assert_eq!(value(&mut client, "b").as_deref(), Some("2"));
    // The changes are passed on, but not to the server where they began.
    let passed_on = Follower::from(server.addresses[0], 0, 2).next_updates(3);
    assert!(passed_on.iter().all(|update| update.1 == 9));
    assert_eq!(told(&passed_on)[1..], ["b=2 ffffffffff", "-a", "c=3 b2d05e00"][..passed_on.len() - 1]);
    assert_eq!(Follower::from(server.addresses[0], 0, 9).updates().0, []);
    drop(master);
    // The replica connects again, from its last position.
    let (mut master, _) = listener.accept().unwrap();
    master.read_exact(&mut hello).unwrap();
    assert_eq!(hello, *b"\xB1\x80\0\0\0\0\0\0\0\0\0\0\x0D\0\x0C");
    // The replica leaves a server that is not a master, and tries again.
    master.write_all(b"SERVER_ERROR\r\n").unwrap();
    let (mut master, _) = listener.accept().unwrap();
    master.read_exact(&mut hello).unwrap();
    assert_eq!(std::fs::read(folder.path().join("position")).unwrap(), b"00000000000000000013\n");
}

#[test]
fn chain_and_pair_converge_after_an_absence() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let first = Running::start(kept(&at("first"), 1));
    let second = Running::start(following(&at("second"), 2, first.addresses[0]));
    let mut client = first.connect();
    for number in 0..500 {
        done(&mut client, "set", &format!("key\tk{}\nvalue\t{number}\nxt\t1000\n", number % 200));
        if number % 7 == 0 {
            done(&mut client, "remove", &format!("key\tk{}\n", number % 200));
        }
        done(&mut client, "increment", "key\tcount\nnum\t1\n");
    }
    let records = |server: &Running| {
        let mut client = server.connect();
        let (_, keys) = call(&mut client, "match_prefix", "prefix\t\n");
        let keys = keys.lines().filter_map(|line| line.strip_prefix('_')?.split('\t').next());
        let mut all: Vec<_> =
            keys.map(|key| (key.to_string(), call(&mut client, "get", &format!("key\t{key}\n")))).collect();
        all.sort_unstable();
        all
    };
    let address = second.addresses[0];
    {
        let third = Running::start(following(&at("third"), 3, address));
        eventually("the chain converges", || records(&third) == records(&first));
    }
    done(&mut client, "clear", "");
    done(&mut client, "set", "key\tlast\nvalue\tone\n");
    let third = Running::start(following(&at("third"), 3, address));
    eventually("it has caught up", || records(&third) == records(&first));
    assert_eq!(records(&third).len(), 1);
    // The two servers now follow each other. The first one does not treat its own changes as new
    // when they return.
    drop((first, client));
    let first = Running::start(ServerOptions {
        databases: DatabaseOptions {
            data: kept(&at("first"), 1).databases.data,
            ..following(&at("back"), 1, address).databases
        },
        ..following(&at("back"), 1, address)
    });
    let mut other = second.connect();
    let (port, host) = (first.addresses[0].port(), "127.0.0.1");
    done(&mut other, "tune_replication", &format!("host\t{host}\nport\t{port}\n"));
    done(&mut other, "set", "key\tof the second\nvalue\t2\n");
    done(&mut first.connect(), "set", "key\tof the first\nvalue\t1\n");
    eventually("the pair converges", || {
        records(&first).len() == 3
            && records(&second) == records(&first)
            && records(&third) == records(&first)
    });
    let (_, report) = call(&mut other, "report", "");
    for expected in [format!("repl_master_port\t{port}\n"), "repl_master_host\t127.0.0.1\n".into()] {
        assert!(report.contains(&expected), "{report}");
    }
    let (_, files) = call(&mut other, "ulog_list", "");
    assert!(files.contains("0000000001.ulog\t"), "{files}");
    done(&mut other, "tune_replication", "");
    assert!(!call(&mut other, "report", "").1.contains("repl_"));
}

#[test]
fn tune_replication_needs_a_position_file() {
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto },
            ..options().protocols
        },
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    });
    let (status, body) = call(&mut server.connect(), "tune_replication", "host\t127.0.0.1\n");
    assert_eq!((status.as_str(), body.as_str()), ("501", "ERROR\tthe RTS file is not set\n"));
}
