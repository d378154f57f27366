//! Tests replies that wait for replicas (`--ack`), in every dialect: without a replica, each client
//! gets an error, and reads are not delayed. With a replica, each gets its reply, and the replica
//! has the change.

use crate::running;

use running::{Client, Running, WAIT_MAX, eventually, options};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;
use todana::update_log::SyncPolicy;
use todana_protocol::replication::{GREETING, ReplicaHello};
use todana_server::{
    DataDirectoryOptions, DatabaseName, DatabaseOptions, KyotoMode, KyotoOptions, ListenOptions,
    MasterAddress, MasterProtocol, ProtocolOptions, ReplicationOptions, ServerOptions, TyrantMode,
    TyrantOptions,
};

const TEXT: &[u8] = b"SERVER_ERROR the changes were made here, but may not be on a replica\r\n";

fn server_options(server_id: u16, folder: &Path, master: Option<SocketAddr>) -> ServerOptions {
    let data = DataDirectoryOptions::new(folder.join(server_id.to_string()), SyncPolicy::Always);
    let has_acks = master.is_none();
    let replication = ReplicationOptions {
        server_id,
        master: master.map(|to| MasterAddress { host: to.ip().to_string(), port: to.port() }),
        protocol: MasterProtocol::Native,
        acks: usize::from(has_acks),
        ack_time_max: Duration::from_millis(50),
        ..ReplicationOptions::default()
    };
    let protocols = ProtocolOptions {
        kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto },
        tyrant: TyrantOptions { spoken: TyrantMode::Binary, ..TyrantOptions::default() },
        ..options().protocols
    };
    ServerOptions {
        listen: ListenOptions { udp_port: Some(0), ..options().listen },
        protocols,
        databases: DatabaseOptions {
            database: DatabaseName::parse("mem:tree").ok(),
            data: Some(data),
            replication,
            ..options().databases
        },
        ..options()
    }
}

/// A request, the bytes with which its reply begins if it is confirmed, and the error otherwise.
struct Exchange {
    request: Vec<u8>,
    confirmed: &'static [u8],
    error: Vec<u8>,
}

/// Returns a packet of memcached's binary protocol.
fn packet(head: [u8; 8], extra_and_rest: &[u8], opaque: u8) -> Vec<u8> {
    let len = (extra_and_rest.len() as u32).to_be_bytes();
    [&head[..], &len, &[0, 0, 0, opaque], &[0; 8], extra_and_rest].concat()
}

fn exchanges() -> Vec<Exchange> {
    let text = |request: &str, confirmed: &'static str| Exchange {
        request: request.into(),
        confirmed: confirmed.as_bytes(),
        error: TEXT.into(),
    };
    let reason = &TEXT[13..TEXT.len() - 2];
    // Two sets: the opcode and the opaque field of each are in its error.
    let set = |opaque| packet([0x80, 1, 0, 1, 8, 0, 0, 0], b"\0\0\0\0\0\0\0\0bv", opaque);
    let refused = |opaque| packet([0x81, 1, 0, 0, 0, 0, 0, 0x86], reason, opaque);
    let http = [&b"HTTP/1.1 503 Service Unavailable\r\n"[..]].concat();
    let kyoto = b"POST /rpc/set?key=h&value=v HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let rest = b"PUT /r HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nv";
    vec![
        text("set t 0 0 1\r\nv\r\n", "STORED\r\n"),
        text("set n 0 0 1 noreply\r\nv\r\nget none\r\n", "END\r\n"),
        text("ms m 1\r\nv\r\n", "HD\r\n"),
        text("flush_all\r\n", "OK\r\n"),
        Exchange {
            request: [set(7), set(9)].concat(),
            confirmed: b"\x81\x01",
            error: [refused(7), refused(9)].concat(),
        },
        Exchange { request: kyoto.to_vec(), confirmed: b"HTTP/1.1 200 OK\r\n", error: http.clone() },
        Exchange { request: rest.to_vec(), confirmed: b"HTTP/1.1 201 Created\r\n", error: http },
        Exchange {
            request: b"\xB8\0\0\0\0\0\0\0\x01\0\0\0\0\0\x01\0\0\0\x01\x7f\xff\xff\xff\xff\xff\xff\xffkv"
                .to_vec(),
            confirmed: b"\xB8\0\0\0\x01",
            error: vec![0xBF],
        },
        Exchange { request: b"\xC8\x10\0\0\0\x01\0\0\0\x01yv".to_vec(), confirmed: &[0], error: vec![1] },
    ]
}

fn expect_start(client: &mut Client, exchange: &Exchange, start: &[u8]) {
    client.send(&exchange.request);
    client.expect(start);
}

/// Sends a request in a datagram, and returns the reply without its header.
fn ask_datagram(server: &Running, request: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server.udp_addresses[0]).unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    socket.send(&[b"\0\x01\0\0\0\x01\0\0", request].concat()).unwrap();
    let mut buffer = [0; 2000];
    let len = socket.recv(&mut buffer).unwrap();
    buffer[8..len].to_vec()
}

#[test]
fn unconfirmed_change_is_an_error_in_every_dialect() {
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(server_options(1, folder.path(), None));
    for exchange in exchanges() {
        let mut client = master.connect();
        expect_start(&mut client, &exchange, &exchange.error);
    }
    assert_eq!(ask_datagram(&master, b"set u 0 0 1\r\nv\r\n"), TEXT);
    let mut reader = master.connect();
    reader.send(b"get u\r\n");
    reader.expect(b"VALUE u 0 1\r\nv\r\nEND\r\n");
}

#[test]
fn confirmed_change_is_at_the_replica() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = server_options(1, folder.path(), None);
    // The test fails by the error of this time limit if a reply is not woken.
    options.databases.replication.ack_time_max = WAIT_MAX / 2;
    let master = Running::start(options);
    let replica = Running::start(server_options(2, folder.path(), Some(master.addresses[0])));
    eventually("a replica", || master.connect().stat("todana_replicas") == "1");
    for exchange in exchanges() {
        let mut client = master.connect();
        expect_start(&mut client, &exchange, exchange.confirmed);
    }
    assert_eq!(ask_datagram(&master, b"set u 0 0 1\r\nv\r\n"), b"STORED\r\n");
    // The replica has applied a change before the reply to it is sent.
    let mut writer = master.connect();
    for number in 0..50 {
        let value = number.to_string();
        writer.set(b"key", value.as_bytes());
        replica.connect().expect_value(b"key", value.as_bytes());
    }
}

/// A change that waits for replicas gets its error as soon as the server knows of a later master.
#[test]
fn waiting_change_fails_when_superseded() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = server_options(1, folder.path(), None);
    options.databases.replication.ack_time_max = 2 * WAIT_MAX;
    let master = Running::start(options);
    let mut waiting = master.connect();
    waiting.send(b"set key 0 0 1\r\nv\r\n");
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    datagrams.connect(master.udp_addresses[0]).unwrap();
    datagrams.set_read_timeout(Some(WAIT_MAX)).unwrap();
    datagrams.send(b"\0\x01\0\0\0\x01\0\0set other 0 0 1\r\nw\r\n").unwrap();
    eventually("both changes", || {
        let mut client = master.connect();
        client.send(b"mg key\r\nmg other\r\n");
        client.line() == "HD\r\n" && client.line() == "HD\r\n"
    });
    let mut greeting = GREETING.to_vec();
    ReplicaHello { server_id: 2, epoch: 1 << 16 | 2, ..ReplicaHello::default() }.put(&mut greeting);
    let mut promoted = TcpStream::connect(master.addresses[0]).unwrap();
    promoted.write_all(&greeting).unwrap();
    let mut refusal = Vec::new();
    promoted.read_to_end(&mut refusal).unwrap();
    let text = b"the replica is in epoch 1, this server only in epoch 0";
    assert!(refusal.ends_with(text), "{}", refusal.escape_ascii());
    const SUPERSEDED: &[u8] = b"SERVER_ERROR another server has become the master; send changes to it\r\n";
    waiting.expect(SUPERSEDED);
    let mut buffer = [0; 2000];
    let len = datagrams.recv(&mut buffer).unwrap();
    assert!(buffer[8..len].starts_with(b"SERVER_ERROR "), "{}", buffer[8..len].escape_ascii());
    for change in [&b"set key 0 0 1\r\nx\r\n"[..], b"delete key\r\n", b"flush_all\r\n"] {
        let mut client = master.connect();
        client.send(change);
        client.expect(SUPERSEDED);
    }
    assert_eq!(master.connect().stat("todana_superseded"), "1");
}
