//! Tests replication between servers in Todana's own protocol: every attribute of a record arrives,
//! and a replica refuses changes.

use crate::running;

use running::{Client, Running, eventually, options};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use todana::disk::SystemDisk;
use todana::update_log::SyncPolicy;
use todana_protocol::replication::{
    AppliedPosition, DatabaseRequest, FrameDecoder, GREETING, MasterMessage, ReplicaHello, ReplicaMessage,
    RequestedStart,
};
use todana_server::{
    AuthenticationMode, DataDirectoryOptions, DatabaseName, DatabaseOptions, DatabaseSpec, KyotoMode,
    KyotoOptions, MasterAddress, MasterProtocol, PoolLogin, ProtocolOptions, ReplicationOptions,
    ServerOptions, SnapshotCompression, SnapshotOptions,
};

/// Returns the options of a server that keeps a database of this kind in a folder.
fn server_options(server_id: u16, kind: &str, folder: &Path, master: Option<SocketAddr>) -> ServerOptions {
    let data = DataDirectoryOptions::new(folder.join(server_id.to_string()), SyncPolicy::Always);
    let replication = ReplicationOptions {
        server_id,
        master: master.map(|to| MasterAddress { host: to.ip().to_string(), port: to.port() }),
        protocol: MasterProtocol::Native,
        ..ReplicationOptions::default()
    };
    ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto },
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

/// Writes records with every attribute.
fn write_all_attributes(client: &mut Client) {
    let mut ask = |request: &str, reply: &str| {
        client.send(request.as_bytes());
        client.expect(reply.as_bytes());
    };
    ask("set plain 0 0 5\r\nvalue\r\n", "STORED\r\n");
    ask("set flags 4294967295 0 1\r\n7\r\n", "STORED\r\n");
    ask("set expiry 3 4102444800 2\r\n17\r\n", "STORED\r\n");
    ask("ms version 3 E77 c F9\r\nabc\r\n", "HD c77\r\n");
    ask("ms stale 3 E5\r\nold\r\n", "HD\r\n");
    ask("md stale I T600 E9\r\n", "HD\r\n");
    ask("ms counted 2\r\n10\r\n", "HD\r\n");
    ask("ma counted N0 D5 v\r\n", "VA 2\r\n15\r\n");
    ask("set removed 0 0 1\r\nx\r\n", "STORED\r\n");
    ask("delete removed\r\n", "DELETED\r\n");
}

/// Returns the reply to a request for all attributes of each record.
fn attributes(client: &mut Client) -> Vec<String> {
    let keys = ["plain", "flags", "expiry", "version", "stale", "counted", "removed"];
    let mut lines = Vec::new();
    for key in keys {
        // `t` would change with the clock; the expiry is compared at rest elsewhere.
        client.send(format!("mg {key} k f s c v\r\n").as_bytes());
        let line = client.line();
        if line.starts_with("VA") {
            lines.push(format!("{line}{}", client.line()));
        } else {
            lines.push(line);
        }
    }
    lines
}

fn follows(replica: &Running, master: &mut Client) {
    master.send(b"set last 0 0 4\r\nmark\r\n");
    master.expect(b"STORED\r\n");
    eventually("the last record", || {
        let mut client = replica.connect();
        client.send(b"get last\r\n");
        client.line() != "END\r\n"
    });
}

#[test]
fn every_attribute_arrives_at_a_replica() {
    for (kind, replicas_kind) in [("mem:hash", "mem:tree"), ("mem:tree", "mem:hash")] {
        let folder = tempfile::tempdir().unwrap();
        let master = Running::start(server_options(1, kind, folder.path(), None));
        let mut client = master.connect();
        // The version exists once it has been shown.
        write_all_attributes(&mut client);
        let before = attributes(&mut client);
        assert_eq!(before[1], "VA 1 kflags f4294967295 s1 c4294967298\r\n7\r\n");
        let options = server_options(2, replicas_kind, folder.path(), Some(master.addresses[0]));
        let replica = Running::start(options);
        follows(&replica, &mut client);
        // These changes arrive as entries of the log, the others in a checkpoint.
        client.send(b"set plain 8 0 3\r\nnew\r\n");
        client.expect(b"STORED\r\n");
        client.send(b"mg version T900 c\r\n");
        client.expect(b"HD c77\r\n");
        let expected = attributes(&mut client);
        eventually("the last change", || attributes(&mut replica.connect()) == expected);
    }
}

#[test]
fn replica_refuses_changes_of_clients() {
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(server_options(1, "mem:hash", folder.path(), None));
    let replica = Running::start(server_options(2, "mem:hash", folder.path(), Some(master.addresses[0])));
    follows(&replica, &mut master.connect());
    let mut client = replica.connect();
    const REFUSED: &[u8] = b"SERVER_ERROR this server is a replica; send changes to its master\r\n";
    for request in [
        &b"set key 0 0 1\r\n1\r\n"[..],
        b"delete last\r\n",
        b"touch last 9\r\n",
        b"incr last 1\r\n",
        b"flush_all\r\n",
        b"ms last 1\r\n1\r\n",
        b"md last\r\n",
        b"mg last T9\r\n",
    ] {
        client.send(request);
        client.expect(REFUSED);
    }
    client.send(b"gets last\r\n");
    client.expect(b"VALUE last 0 4 0\r\nmark\r\nEND\r\n");
    let mut kyoto = replica.connect();
    kyoto.send(b"POST /rpc/set HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(kyoto.line(), "HTTP/1.1 400 Bad Request\r\n");
    let mut rest = replica.connect();
    rest.send(b"DELETE /last HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(rest.line(), "HTTP/1.1 500 Internal Server Error\r\n");
    client.expect_value(b"last", b"mark");
}

#[test]
fn statistics_show_lag_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(server_options(1, "mem:hash", folder.path(), None));
    let replica = Running::start(server_options(2, "mem:hash", folder.path(), Some(master.addresses[0])));
    let mut client = master.connect();
    follows(&replica, &mut client);
    let figure = |running: &Running, name: &str| {
        let all = running.connect().stats(" replication");
        all.into_iter().find(|(found, _)| found == name).map(|(_, value)| value)
    };
    let position = || figure(&master, "replica:0:position");
    eventually("the replica's acknowledgement", || {
        position().is_some_and(|position| position != "0")
            && figure(&master, "replica:0:lag_bytes").as_deref() == Some("0")
    });
    eventually("the same position on both sides", || {
        position() == figure(&replica, "todana_replica_position")
    });
    assert_eq!(figure(&replica, "todana_replica_lag_bytes").as_deref(), Some("0"));
    assert_eq!(figure(&replica, "todana_replica_connected").as_deref(), Some("1"));
    assert_eq!(figure(&master, "replica:0:server_id").as_deref(), Some("2"));
    assert_eq!(figure(&master, "todana_replica_lag_bytes"), None);
}

/// A replica once had no lag until it first stated a position.
#[test]
fn silent_replica_lags_by_whole_log() {
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(server_options(1, "mem:hash", folder.path(), None));
    let mut client = master.connect();
    client.set(b"key", b"value");
    let mut replica = greet_as_replica(&master);
    let mut buffer = [0; 1 << 10];
    let mut frames = FrameDecoder::default();
    let end = 'heartbeat: loop {
        let len = replica.read(&mut buffer).unwrap();
        assert_ne!(len, 0, "the master has closed the connection");
        frames.push(&buffer[..len]);
        while let Some(content) = frames.next_content().unwrap() {
            if let Ok(MasterMessage::Heartbeat { ends, .. }) = MasterMessage::read(content) {
                break 'heartbeat ends[0].end;
            }
        }
    };
    assert_ne!(end, 0);
    let all = client.stats(" replication");
    let lag = all.into_iter().find(|(found, _)| found == "replica:0:lag_bytes");
    assert_eq!(lag.map(|(_, value)| value), Some(end.to_string()));
}

#[test]
fn chosen_database_is_followed_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = server_options(1, "mem:hash", folder.path(), None);
    options.databases.further.push(DatabaseSpec {
        name: DatabaseName::parse("b=mem:tree").unwrap(),
        data: Some(DataDirectoryOptions::new(folder.path().join("b"), SyncPolicy::Always)),
    });
    let master = Running::start(options);
    let mut options = server_options(2, "mem:hash", folder.path(), Some(master.addresses[0]));
    options.databases.replication.native.database = Some(1);
    options
        .databases
        .further
        .push(DatabaseSpec { name: DatabaseName::parse("c=mem:hash").unwrap(), data: None });
    let replica = Running::start(options);
    let mut client = master.connect();
    client.set(b"first", b"1");
    client.send(b"todana use 1\r\n");
    client.expect(b"OK\r\n");
    client.send(b"set second 5 0 1\r\n2\r\n");
    client.expect(b"STORED\r\n");
    let mut reader = replica.connect();
    eventually("the record of the chosen database", || {
        reader.send(b"mg second f v\r\n");
        reader.line() == "VA 1 f5\r\n" && reader.line() == "2\r\n"
    });
    reader.send(b"mg first v\r\n");
    reader.expect(b"EN\r\n");
    // The other database of the replica has its own clients.
    reader.send(b"todana use 1\r\n");
    reader.expect(b"OK\r\n");
    reader.set(b"own", b"3");
}

#[test]
fn replica_logs_in_at_its_master() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "ann:secret\n").unwrap();
    let mut options = server_options(1, "mem:hash", folder.path(), None);
    options.protocols.authentication = AuthenticationMode::Text(users);
    let master = Running::start(options);
    let login = |password: &str| {
        let (user, password_file) = ("ann".into(), "".into());
        Some(PoolLogin { user, password_file, password: Some(password.into()) })
    };
    let start = |server_id, login| {
        let mut options = server_options(server_id, "mem:hash", folder.path(), Some(master.addresses[0]));
        options.databases.replication.native.login = login;
        Running::start(options)
    };
    let refused = [start(2, login("wrong")), start(3, None)];
    let admitted = start(4, login("secret"));
    let mut client = master.connect();
    client.send(b"set auth 0 0 10\r\nann secret\r\n");
    client.expect(b"STORED\r\n");
    follows(&admitted, &mut client);
    for replica in &refused {
        let connected = replica.connect().stat("todana_replica_connected");
        assert_eq!(connected, "0");
        let mut client = replica.connect();
        client.send(b"get last\r\n");
        client.expect(b"END\r\n");
    }
}

/// A replica of a former master once never followed the promoted server if a part of its log was
/// damaged that the replica did not need.
#[test]
fn replica_copies_past_damage_at_promoted_server() {
    let folder = tempfile::tempdir().unwrap();
    let options = |id, master| server_options(id, "mem:tree", folder.path(), master);
    let master = Running::start(options(1, None));
    master.connect().set(b"damaged", b"value");
    let at_master = Some(master.addresses[0]);
    let [promoted, replica] = [2, 3].map(|id| Running::start(options(id, at_master)));
    // This change arrives in the log.
    master.connect().set(b"damaged", b"another value");
    for server in [&promoted, &replica] {
        follows(server, &mut master.connect());
    }
    drop((replica, master));
    let mut client = promoted.connect();
    client.send(b"todana promote\r\n");
    assert!(client.line().starts_with("PROMOTED"));
    client.set(b"later", b"1");
    let log = folder.path().join("2/log");
    let mut damaged = 0;
    for file in std::fs::read_dir(log).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(13).position(|window| window == b"another value");
        let Some(at) = at else { continue };
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"A", at as u64).unwrap();
        damaged += 1;
    }
    assert_eq!(damaged, 1);
    let replica = Running::start(options(3, Some(promoted.addresses[0])));
    eventually("the last record", || {
        let mut client = replica.connect();
        client.send(b"get later\r\n");
        client.line() != "END\r\n"
    });
    replica.connect().expect_value(b"damaged", b"another value");
}

/// A master once sent without reading meanwhile. A replica whose own messages then found no room
/// did not read either.
#[test]
fn replica_may_send_much_before_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(server_options(1, "mem:hash", folder.path(), None));
    let mut client = master.connect();
    // More than both sockets hold, and values that cannot be compressed.
    let mut value = vec![0; 1_000_000];
    for n in 0..30 {
        fastrand::fill(&mut value);
        client.set(format!("key{n}").as_bytes(), &value);
    }
    let mut replica = greet_as_replica(&master);
    let mut out = Vec::new();
    let positions = vec![AppliedPosition { number: 0, applied: 0, stored: 0 }];
    ReplicaMessage::Applied { asked_us: 1, positions }.put(&mut out);
    for _ in 0..20_000 {
        replica.write_all(&out).unwrap();
    }
    let (mut frames, mut buffer, mut copied) = (FrameDecoder::default(), vec![0; 1 << 20], 0);
    let mut has_welcome = false;
    loop {
        let len = replica.read(&mut buffer).unwrap();
        assert_ne!(len, 0, "the master has closed the connection");
        frames.push(&buffer[..len]);
        while let Some(content) = frames.next_content().unwrap() {
            match MasterMessage::read(content) {
                Err(_) => assert!(!std::mem::replace(&mut has_welcome, true)),
                Ok(MasterMessage::Checkpoint { bytes, .. }) => copied += bytes.len(),
                Ok(MasterMessage::Heartbeat { .. }) => {
                    assert!(copied > 30_000_000, "{copied}");
                    return;
                }
                Ok(message) => panic!("{message:?}"),
            }
        }
    }
}

/// Returns a connection that asks for all records. Its own messages soon find no room.
fn greet_as_replica(master: &Running) -> TcpStream {
    let mut replica = TcpStream::connect(master.addresses[0]).unwrap();
    socket2::SockRef::from(&replica).set_send_buffer_size(4096).unwrap();
    // Shorter than the time after which the master gives up.
    replica.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    replica.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    replica.set_nodelay(true).unwrap();
    let mut out = GREETING.to_vec();
    let start = RequestedStart::Checkpoint;
    let databases = vec![DatabaseRequest { number: 0, start, bucket_format: 0, path: Vec::new() }];
    ReplicaHello { server_id: 2, databases, ..ReplicaHello::default() }.put(&mut out);
    replica.write_all(&out).unwrap();
    replica
}

/// An answer over HTTP.
struct HttpAnswer {
    status: String,
    /// The header `X-Todana-Position`.
    position: String,
    body: String,
}

fn http_answer(client: &mut Client) -> HttpAnswer {
    let status = client.line().trim_end().to_string();
    let (mut position, mut len) = (String::new(), 0);
    loop {
        let line = client.line();
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name {
            "X-Todana-Position" => position = value.into(),
            "Content-Length" => len = value.parse().unwrap(),
            _ => {}
        }
    }
    let body = String::from_utf8(client.take(len)).unwrap();
    HttpAnswer { status, position, body }
}

/// Returns the position after `Y` in a reply.
fn position(line: &str) -> String {
    let words = line.split_ascii_whitespace();
    words.filter_map(|word| word.strip_prefix('Y')).next().expect(line).to_string()
}

#[test]
fn reader_sees_what_it_requires() {
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(server_options(1, "mem:hash", folder.path(), None));
    let replica = Running::start(server_options(2, "mem:tree", folder.path(), Some(master.addresses[0])));
    let (mut writer, mut reader) = (master.connect(), replica.connect());
    follows(&replica, &mut writer);
    let mut ask = |request: String| {
        writer.send(request.as_bytes());
        writer.line()
    };
    for n in 0..200 {
        let position = position(&ask(format!("ms key 3 Y\r\n{n:03}\r\n")));
        reader.send(format!("mg key v Y{position}\r\n").as_bytes());
        assert!(reader.line().starts_with("VA 3 Y"));
        assert_eq!(reader.line(), format!("{n:03}\r\n"));
        if n % 20 == 0 {
            assert_eq!(ask(format!("ms key 4\r\n{n:03}+\r\n")), "HD\r\n");
            reader.send(b"mg key v Y0\r\n");
            reader.line();
            assert_eq!(reader.line(), format!("{n:03}+\r\n"));
        }
    }
    // The replica returns the position of its master's log, which the master knows.
    reader.send(b"mg none Y\r\n");
    let seen = position(&reader.line());
    assert_eq!(ask(format!("mg none Y{seen}\r\n")), format!("EN Y{seen}\r\n"));
    // All commands can require and return it.
    assert_eq!(position(&ask("ma count N0 J1 Y\r\n".into())).split_once('-').unwrap().0.len(), 16);
    assert!(ask("md count Y0\r\n".into()).starts_with("HD Y"));
    let (id, place) = seen.split_once('-').unwrap();
    let beyond = place.parse::<u64>().unwrap() + 1_000_000;
    const TOO_OLD: &str = "SERVER_ERROR the records of this replica are too old\r\n";
    for server in [&mut reader, &mut writer] {
        server.send(format!("mg key v Y{id}-{beyond}\r\nmg none\r\n").as_bytes());
        assert_eq!((server.line(), server.line()), (TOO_OLD.into(), "EN\r\n".into()));
        server.send(b"mg key v Y0123456789abcdef-1\r\n");
        server.expect(b"SERVER_ERROR the position is not in the log of this server or its master\r\n");
        server.send(b"mg key v Yx\r\n");
        server.expect(b"CLIENT_ERROR bad token in command line format\r\n");
    }
    // The same over HTTP.
    let (mut at_master, mut at_replica) = (master.connect(), replica.connect());
    let exchange = |client: &mut Client, head: &str, freshness: &str, body: &str| {
        let len = body.len();
        let lines = format!("Host: localhost\r\nX-Todana-Freshness: {freshness}\r\nContent-Length: {len}");
        client.send(format!("{head} HTTP/1.1\r\n{lines}\r\n\r\n{body}").as_bytes());
        http_answer(client)
    };
    for n in 0..50 {
        let put = exchange(&mut at_master, "PUT /page", "", &n.to_string());
        assert_eq!(put.status, "HTTP/1.1 201 Created");
        let get = exchange(&mut at_replica, "GET /page", &put.position, "");
        assert_eq!((get.status.as_str(), get.body.as_str()), ("HTTP/1.1 200 OK", &*n.to_string()));
        let set = exchange(&mut at_master, "POST /rpc/set?key=rpc&value=1", "0", "");
        let get = exchange(&mut at_replica, "POST /rpc/get?key=rpc", &set.position, "");
        assert_eq!((get.status.as_str(), get.position), ("HTTP/1.1 200 OK", set.position));
    }
    for (required, status) in [
        (format!("{id}-{beyond}"), "HTTP/1.1 503 Service Unavailable"),
        ("0123456789abcdef-1".into(), "HTTP/1.1 400 Bad Request"),
        ("soon".into(), "HTTP/1.1 400 Bad Request"),
    ] {
        assert_eq!(exchange(&mut at_replica, "GET /page", &required, "").status, status);
        assert_eq!(exchange(&mut at_replica, "POST /rpc/get?key=rpc", &required, "").status, status);
    }
    // Without its master, the replica becomes too old.
    drop(master);
    eventually("an old replica", || {
        reader.send(b"mg key v Y10\r\n");
        reader.line() == TOO_OLD || reader.line().is_empty()
    });
    reader.send(b"mg key Y86400000\r\n");
    assert!(reader.line().starts_with("HD Y"));
}

/// A replica refused the records of its own snapshot as changes of clients, and so did not start.
#[test]
fn replica_in_memory_starts_with_its_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(server_options(1, "mem:hash", folder.path(), None));
    let mut options = server_options(2, "mem:hash", folder.path(), Some(master.addresses[0]));
    options.databases.data = None;
    options.databases.snapshots = Some(SnapshotOptions {
        directory: folder.path().join("snapshots"),
        interval: Duration::from_secs(3600),
        packing: SnapshotCompression::None,
    });
    let mut replica = Running::start(options.clone());
    master.connect().set(b"key", b"value");
    follows(&replica, &mut master.connect());
    replica.handle.stop();
    replica.join();
    drop((replica, master));
    let replica = Running::start_from(options, Arc::new(SystemDisk));
    let mut client = replica.connect();
    client.expect_value(b"key", b"value");
    client.send(b"set key 0 0 1\r\nx\r\n");
    client.expect(b"SERVER_ERROR this server is a replica; send changes to its master\r\n");
}
