//! Replication of several values of a key, between servers of Todana and with a server of Tokyo
//! Tyrant, whose bytes were captured on `x.tcb`.

use crate::running;
use crate::tyrant_replica;

use running::{Client, Running, eventually};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use todana::{DbOptions, Records};
use todana_protocol::tyrant::replication::put_server_id;
use todana_protocol::tyrant::{FieldBuffer, TyrantRequest, update_log::LoggedCommand};
use todana_server::{
    DatabaseName, DatabaseOptions, KyotoMode, MasterProtocol, ReplicationOptions, ServerOptions,
};
use tyrant_replica::{FakeMaster, Replica, following, kept, position, record};

fn with_database(name: &str, options: ServerOptions) -> ServerOptions {
    let database = Some(DatabaseName::parse(name).unwrap());
    ServerOptions { databases: DatabaseOptions { database, ..options.databases }, ..options }
}

/// Calls a function of `misc`, and returns its list; `None` if it fails.
fn misc(client: &mut Client, name: &str, arguments: &[&str]) -> Option<String> {
    let arguments: FieldBuffer = arguments.iter().map(|text| text.as_bytes()).collect();
    let mut request = Vec::new();
    let arguments = arguments.list();
    TyrantRequest::Misc { name: name.as_bytes(), options: 0, arguments }.encode(&mut request);
    client.send(&request);
    let is_done = client.take(1) == [0];
    let mut number = || u32::from_be_bytes(client.take(4).try_into().unwrap());
    let mut fields = Vec::new();
    for _ in 0..number() {
        let len = u32::from_be_bytes(client.take(4).try_into().unwrap());
        fields.push(String::from_utf8(client.take(len as usize)).unwrap());
    }
    is_done.then(|| fields.join(" "))
}

/// Returns a body as words: the command, and its fields.
fn words(body: &[u8]) -> String {
    let command = LoggedCommand::parse(body).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match command.request {
        TyrantRequest::Put { key, value, .. } => format!("put {} {}", text(key), text(value)),
        TyrantRequest::Misc { name, arguments, .. } => {
            [name].into_iter().chain(arguments.iter()).map(text).collect::<Vec<_>>().join(" ")
        }
        request => request.command().name().into(),
    }
}

const CHANGES: [(&str, &[&str], &[&str]); 8] = [
    ("putdup", &["k", "b"], &["put k b"]),
    ("putdupback", &["k", "a"], &["outlist k", "putlist k a k b"]),
    ("put", &["k", "A"], &["outlist k", "putlist k A k b"]),
    ("out", &["k"], &["outlist k", "put k b"]),
    ("putlist", &["k", "c", "x", "1", "k", "d"], &["outlist k", "putlist k b k c", "put x 1", "putlist k d"]),
    ("putcat", &["k", "+"], &["outlist k", "putlist k b+ k c k d"]),
    ("outlist", &["k", "none"], &["outlist k"]),
    ("put", &["k", "z"], &["put k z"]),
];

#[test]
fn replica_gets_all_values_of_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(with_database("mem:tree", kept(folder.path(), 7)));
    let mut client = server.connect();
    let mut replica = Replica::new(&server, 1, 99);
    let mut records = Vec::new();
    for (name, arguments, bodies) in CHANGES {
        misc(&mut client, name, arguments).unwrap();
        for body in bodies {
            let (stamp, _, sent) = replica.next();
            assert_eq!(words(&sent), *body, "{name} {arguments:?}");
            records.push((stamp, sent));
        }
    }
    assert!(records.is_sorted_by_key(|(stamp, _)| *stamp));
    // A replica that was disconnected at any place continues so that its record is the same:
    // values are added only after the removal.
    for (at, (stamp, _)) in records.iter().enumerate() {
        let mut replica = Replica::new(&server, stamp + 1, 99);
        let Some(next) = records.get(at + 1) else { continue };
        let (_, _, sent) = replica.next();
        let next = words(&next.1);
        assert_eq!(words(&sent), if next.starts_with("putlist") { "outlist k" } else { &next });
    }
}

/// With each value, the replica got the complete list again.
#[test]
fn growing_list_is_sent_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(with_database("mem:tree", kept(folder.path(), 7)));
    let mut client = server.connect();
    for number in 0..300 {
        misc(&mut client, "putdup", &["k", &number.to_string()]).unwrap();
    }
    misc(&mut client, "outlist", &["k"]).unwrap();
    misc(&mut client, "putlist", &["k", "0", "k", "1"]).unwrap();
    let mut replica = Replica::new(&server, 1, 99);
    let mut sent = || words(&replica.next().2);
    assert_eq!([sent(), sent(), sent()], ["put k 0", "outlist k", "putlist k 0 k 1"]);
    assert!((2..300).all(|number| sent() == format!("putlist k {number}")));
    assert_eq!([sent(), sent(), sent()], ["outlist k", "outlist k", "putlist k 0 k 1"]);
}

#[test]
fn long_list_is_sent_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(with_database("mem:tree", kept(folder.path(), 7)));
    let mut client = server.connect();
    let values: Vec<String> = ["a", "b", "c"].iter().map(|byte| byte.repeat(600 << 10)).collect();
    let pairs: Vec<&str> = values.iter().flat_map(|value| ["k", value]).collect();
    misc(&mut client, "putlist", &pairs).unwrap();
    misc(&mut client, "put", &["end", "1"]).unwrap();
    let mut replica = Replica::new(&server, 1, 99);
    let records: Vec<_> = (0..4).map(|_| replica.next()).collect();
    let stamps: Vec<u64> = records.iter().map(|record| record.0).collect();
    assert_eq!(stamps[0] + 1, stamps[2]);
    assert_eq!(stamps[0], stamps[1]);
    assert_eq!(words(&records[0].2), "outlist k");
    assert_eq!(words(&records[1].2), format!("putlist k {} k {}", values[0], values[1]));
    assert_eq!(words(&records[2].2), format!("putlist k {}", values[2]));
    assert_eq!(words(&records[3].2), "put end 1");
    let mut replica = Replica::new(&server, stamps[1] + 1, 99);
    assert_eq!(words(&replica.next().2), "outlist k");
}

/// The log of the original after these calls of `tcrmgr`: `putdup k b`, `putdup k c`, `putdupback k
/// a`, `putlist k d x 1 k e`, `put k A`, `out k`, `outlist x none`, `out nope` (fails), `get k`.
#[test]
fn values_of_a_master_are_applied_as_captured() {
    for name in ["mem:tree", "disk"] {
        let folder = tempfile::tempdir().unwrap();
        let master = FakeMaster::new();
        let tree = folder.path().join("x.tree");
        let name = if name == "disk" { tree.to_str().unwrap() } else { name };
        let mut options = with_database(name, following(folder.path(), master.address(), true));
        if name != "mem:tree" {
            options.databases.data.as_mut().unwrap().directory = tree.clone();
        }
        let server = Running::start(options);
        let mut stream = master.accept(1);
        let mut out = Vec::new();
        put_server_id(300, &mut out);
        for (number, body) in [
            "c890 00000006 00000002 707574647570 00000001 6b 00000001 62 00",
            "c890 00000006 00000002 707574647570 00000001 6b 00000001 63 00",
            "c890 0000000a 00000002 7075746475706261636b 00000001 6b 00000001 61 00",
            "c890 00000007 00000006 7075746c697374 00000001 6b 00000001 64 00000001 78 00000001 31 00000001 6b \
             00000001 65 00",
            "c810 00000001 00000001 6b 41 00",
            "c820 00000001 6b 00",
            "c890 00000007 00000002 6f75746c697374 00000001 78 00000004 6e6f6e65 00",
            "c890 00000003 00000001 6f7574 00000004 6e6f7065 01",
            "c890 00000003 00000001 676574 00000001 6b 00",
        ]
        .into_iter()
        .enumerate()
        {
            record(1_700_000_000_000_000 + number as u64, 300, body, &mut out);
        }
        stream.write_all(&out).unwrap();
        eventually("the position", || position(folder.path()) == "1700000000000008\n");
        let mut client = server.connect();
        assert_eq!(misc(&mut client, "get", &["k"]).as_deref(), Some("b c d e"));
        assert_eq!(misc(&mut client, "get", &["x"]), None);
    }
}

fn kyoto_following(directory: &Path, server_id: u16, master: SocketAddr) -> ServerOptions {
    let options = following(directory, master, false);
    let replication =
        ReplicationOptions { server_id, protocol: MasterProtocol::Kyoto, ..options.databases.replication };
    ServerOptions { databases: DatabaseOptions { replication, ..options.databases }, ..options }
}

#[test]
fn own_replicas_hold_all_values() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // The master does not have the log of its first records, so replicas first copy all.
    let data = at("master").join("data");
    std::fs::create_dir_all(&data).unwrap();
    let open = || DbOptions::default().data_dir(&data).open("mem:tree").unwrap();
    for value in ["0", "1", "2"] {
        let db = open();
        db.set(b"plain", value.as_bytes()).unwrap();
        db.visit(b"old", &mut todana::tyrant::AddValuesVisitor::last(&[b"a", value.as_bytes()])).unwrap();
        db.checkpoint().unwrap();
    }
    let mut options = with_database("mem:tree", kept(&at("master"), 7));
    options.protocols.kyoto.spoken = KyotoMode::Beside;
    let master = Running::start(options);
    let address = master.addresses[0];
    assert_eq!(words(&Replica::new(&master, 1, 99).next().2), "vanish");
    let tyrant = Running::start(with_database("mem:tree", following(&at("tyrant"), address, true)));
    let kyoto = Running::start(with_database("mem:tree", kyoto_following(&at("kyoto"), 9, address)));
    let hash = Running::start(kyoto_following(&at("hash"), 10, address));
    let all = "a 0 a 1 a 2";
    let replicas =
        [("tyrant", &tyrant, all, "1 2"), ("kyoto", &kyoto, all, "1 2"), ("hash", &hash, "a", "1")];
    // A copy that includes the changes below would show the last of them before other records.
    for (name, replica, old, _) in replicas {
        let mut client = replica.connect();
        for (key, expected) in [("old", old), ("plain", "2")] {
            eventually(name, || misc(&mut client, "get", &[key]).as_deref() == Some(expected));
        }
    }
    let mut client = master.connect();
    for (name, arguments, _) in CHANGES {
        misc(&mut client, name, arguments).unwrap();
    }
    misc(&mut client, "putlist", &["new", "1", "new", "2", "end", "1"]).unwrap();
    client.send(b"touch new 1000\r\nset end 0 0 1\r\n2\r\n");
    client.expect(b"TOUCHED\r\nSTORED\r\n");
    for (name, replica, old, new) in replicas {
        let mut client = replica.connect();
        eventually(name, || misc(&mut client, "get", &["end"]).as_deref() == Some("2"));
        for (key, expected) in [("old", old), ("new", new), ("plain", "2"), ("k", "z"), ("x", "1")] {
            assert_eq!(misc(&mut client, "get", &[key]).as_deref(), Some(expected), "{key}");
        }
    }
    let mut client = kyoto.connect();
    client.send(b"mg new t\r\n");
    assert!(client.line().trim_end().strip_prefix("HD t").unwrap().parse::<u32>().unwrap() <= 1000);
}
