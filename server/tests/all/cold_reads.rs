//! Tests gets of records that are only on disk: their connections wait, and others are served.

use crate::admin::{metrics, pages};
use crate::kyoto_client::{answer, call};
use crate::running;
use crate::tyrant_client::tyrant;

use running::{Client, Running, WAIT_MAX, options};
use std::fmt::Write;
use std::net::UdpSocket;
use std::process::Command;
use todana::DatabaseName;
use todana_engine::SocketRing;
use todana_protocol::kyoto::expiry;
use todana_protocol::tyrant::TyrantRequest;
use todana_server::{
    DatabaseOptions, KyotoMode, KyotoOptions, LimitOptions, ListenOptions, ObservationOptions,
    ProtocolOptions, ServerOptions,
};

/// Returns the options of a server with a hash on disk that exceeds the memory.
fn cold_options(folder: &std::path::Path) -> ServerOptions {
    let name = DatabaseName::parse(&format!("{}/x.hash#memory=0", folder.display())).unwrap();
    ServerOptions {
        databases: DatabaseOptions { database: Some(name), ..options().databases },
        observation: ObservationOptions { admin: pages(), ..options().observation },
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    }
}

/// Stores 2000 records, stops the server, and drops their files from the system's cache.
fn store_cold_records(folder: &std::path::Path) {
    let server = Running::start(cold_options(folder));
    let mut client = server.connect();
    let (mut requests, mut replies) = (String::new(), String::new());
    for n in 0..2000 {
        write!(requests, "set key-{n} {n} 0 500\r\n{n:0500}\r\n").unwrap();
        replies.push_str("STORED\r\n");
    }
    client.send(requests.as_bytes());
    client.expect(replies.as_bytes());
    drop(client);
    drop(server);
    for entry in std::fs::read_dir(folder.join("x.hash")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        // Without a count, `dd` only drops the file from the cache.
        let source = format!("if={}", path.display());
        assert!(
            Command::new("dd").args([&source, "iflag=nocache", "count=0"]).output().unwrap().status.success()
        );
    }
}

/// Returns true if this system can read files of the folder past its cache, many at once.
fn has_cold_reads(folder: &std::path::Path) -> bool {
    let path = folder.join("x.hash/0000000001.segment").display().to_string();
    let runs = |program, words: &[&str]| Command::new(program).args(words).output().unwrap();
    let is_in_memory = runs("stat", &["-f", "-c", "%T", &path]).stdout == b"tmpfs\n";
    let direct = ["iflag=direct", "bs=4096", "count=1", "of=/dev/null", &format!("if={path}")];
    !is_in_memory && runs("dd", &direct).status.success() && SocketRing::try_features().is_ok()
}

#[test]
fn cold_records_are_returned_in_order() {
    let folder = tempfile::tempdir().unwrap();
    store_cold_records(folder.path());
    let server = Running::start(cold_options(folder.path()));
    let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
    // Single gets first, then many in one piece, some of records that change meanwhile.
    for (at, client) in clients.iter_mut().enumerate() {
        client.send(format!("get key-{}\r\n", at * 97).as_bytes());
    }
    for (at, client) in clients.iter_mut().enumerate() {
        let n = at * 97;
        client.expect(format!("VALUE key-{n} {n} 500\r\n{n:0500}\r\nEND\r\n").as_bytes());
    }
    let parked = metrics(&server).value("todana_cold_gets_total", "").unwrap();
    assert_eq!(parked > 0.0, has_cold_reads(folder.path()), "{parked} gets");
    for (at, client) in clients.iter_mut().enumerate() {
        let mut requests = String::new();
        for n in (at * 100..at * 100 + 98).step_by(3) {
            write!(requests, "get key-{n} missing key-{}\r\n", n + 1).unwrap();
            write!(requests, "set key-{n} 7 0 3\r\nnew\r\nmg key-{n} v\r\n").unwrap();
        }
        client.send(requests.as_bytes());
    }
    for (at, client) in clients.iter_mut().enumerate() {
        let mut replies = String::new();
        for n in (at * 100..at * 100 + 98).step_by(3) {
            for n in [n, n + 1] {
                write!(replies, "VALUE key-{n} {n} 500\r\n{n:0500}\r\n").unwrap();
            }
            replies.push_str("END\r\n");
            replies.push_str("STORED\r\nVA 3\r\nnew\r\n");
        }
        client.expect(replies.as_bytes());
    }
}

#[test]
fn closed_connection_leaves_its_cold_read() {
    let folder = tempfile::tempdir().unwrap();
    store_cold_records(folder.path());
    let server = Running::start(cold_options(folder.path()));
    for n in 0..50 {
        server.connect().send(format!("get key-{n}\r\n").as_bytes());
    }
    let mut client = server.connect();
    client.send(b"get key-1999\r\n");
    client.expect(format!("VALUE key-1999 1999 500\r\n{:0500}\r\nEND\r\n", 1999).as_bytes());
}

#[test]
fn more_cold_gets_than_buffers_are_returned() {
    let folder = tempfile::tempdir().unwrap();
    store_cold_records(folder.path());
    let server = Running::start(cold_options(folder.path()));
    let mut clients: Vec<_> = (0..120).map(|_| server.connect()).collect();
    // Each request of a client reads another page.
    let keys = |at: usize| (0..16).map(move |nth| (at * 16 + nth) * 1019 % 2000);
    for (at, client) in clients.iter_mut().enumerate() {
        let requests: Vec<String> = keys(at).map(|n| format!("get key-{n}\r\n")).collect();
        client.send(requests.concat().as_bytes());
    }
    // Some clients leave with all of their gets.
    clients.drain(60..90);
    for (index, client) in clients.iter_mut().enumerate() {
        let at = if index < 60 { index } else { index + 30 };
        for n in keys(at) {
            client.expect(format!("VALUE key-{n} {n} 500\r\n{n:0500}\r\nEND\r\n").as_bytes());
        }
    }
}

/// A thread for datagrams waits for the disk, because nothing would wake it.
#[test]
fn cold_records_are_returned_over_udp() {
    let folder = tempfile::tempdir().unwrap();
    store_cold_records(folder.path());
    let options = cold_options(folder.path());
    let listen = ListenOptions { udp_port: Some(0), ..options.listen };
    let server = Running::start(ServerOptions { listen, ..options });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server.udp_addresses[0]).unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    for n in (0..2000).step_by(90) {
        let head = [0, 7, 0, 0, 0, 1, 0, 0];
        let request = format!("get key-{n} key-{}\r\n", n + 1);
        socket.send(&[&head[..], request.as_bytes()].concat()).unwrap();
        let mut reply = [0; 1400];
        let len = socket.recv(&mut reply).unwrap();
        let value = |n| format!("VALUE key-{n} {n} 500\r\n{n:0500}\r\n");
        let expected = [value(n), value(n + 1), "END\r\n".to_owned()].concat();
        assert_eq!(
            reply[..len].escape_ascii().to_string(),
            [&head[..], expected.as_bytes()].concat().escape_ascii().to_string()
        );
    }
}

/// Sends one request on each of 20 connections and then checks the replies: the request and the
/// check of record `n`. Asserts that gets were parked if this system can do that.
fn assert_parked(options: ServerOptions, folder: &std::path::Path, exchange: &[(Request, Check)]) {
    let server = Running::start(options);
    let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
    let mut parked = 0.0;
    for (nth, (request, check)) in exchange.iter().enumerate() {
        let number = |at: usize| at * 97 + nth;
        for (at, client) in clients.iter_mut().enumerate() {
            client.send(&request(number(at)));
        }
        for (at, client) in clients.iter_mut().enumerate() {
            check(client, number(at));
        }
        let now = metrics(&server).value("todana_cold_gets_total", "").unwrap();
        assert_eq!(now > parked, has_cold_reads(folder), "exchange {nth}: {parked}, then {now} gets");
        parked = now;
    }
}

type Request = Box<dyn Fn(usize) -> Vec<u8>>;
type Check = Box<dyn Fn(&mut Client, usize)>;

fn exchange(
    request: impl Fn(usize) -> Vec<u8> + 'static,
    check: impl Fn(&mut Client, usize) + 'static,
) -> (Request, Check) {
    (Box::new(request), Box::new(check))
}

/// Returns the key of a record that no other exchange reads.
fn far_key(n: usize, far: usize) -> String {
    format!("key-{}", (n + far) % 2000)
}

#[test]
fn cold_records_are_returned_to_kyoto_clients() {
    let folder = tempfile::tempdir().unwrap();
    store_cold_records(folder.path());
    let cold = cold_options(folder.path());
    let kyoto = KyotoOptions { spoken: KyotoMode::Beside, ..cold.protocols.kyoto.clone() };
    let options = ServerOptions { protocols: ProtocolOptions { kyoto, ..cold.protocols.clone() }, ..cold };
    let bulk = |keys: &[String]| {
        let mut request = [&[0xBA, 0, 0, 0, 0], &(keys.len() as u32).to_be_bytes()[..]].concat();
        for key in keys {
            request.extend([&[0, 0], &(key.len() as u32).to_be_bytes()[..], key.as_bytes()].concat());
        }
        request
    };
    let keys = |n: usize| (0..40).map(|nth| far_key(n, 40 * nth + 20)).collect::<Vec<_>>();
    let exchanges = [
        exchange(
            |n| call("get", &format!("key\tkey-{n}\n")),
            |client, n| assert_eq!(answer(client), (200, format!("value\t{n:0500}\n").into_bytes())),
        ),
        exchange(
            |n| format!("GET /key-{n} HTTP/1.1\r\n\r\n").into_bytes(),
            |client, n| assert_eq!(answer(client), (200, format!("{n:0500}").into_bytes())),
        ),
        // Two requests of one connection, one of them with many records and one without any.
        exchange(
            move |n| [bulk(&keys(n)), bulk(&["missing".to_owned()])].concat(),
            move |client, n| {
                let mut expected = [&[0xBA], &40u32.to_be_bytes()[..]].concat();
                for key in keys(n) {
                    expected.extend([0, 0]);
                    expected.extend((key.len() as u32).to_be_bytes());
                    expected.extend(500u32.to_be_bytes());
                    expected.extend(expiry::NEVER.to_be_bytes());
                    let number: usize = key.strip_prefix("key-").unwrap().parse().unwrap();
                    expected.extend(format!("{key}{number:0500}").into_bytes());
                }
                expected.extend([0xBA, 0, 0, 0, 0]);
                client.expect(&expected);
            },
        ),
    ];
    assert_parked(options, folder.path(), &exchanges);
}

#[test]
fn cold_records_are_returned_to_tyrant_clients() {
    let folder = tempfile::tempdir().unwrap();
    store_cold_records(folder.path());
    let cold = cold_options(folder.path());
    let options = ServerOptions { protocols: tyrant().protocols, ..cold };
    let encoded = |requests: &[TyrantRequest<'_>]| {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(&mut bytes));
        bytes
    };
    let exchanges = [
        exchange(
            move |n| encoded(&[TyrantRequest::Get { key: format!("key-{n}").as_bytes() }]),
            |client, n| {
                let mut expected = vec![0];
                expected.extend(500u32.to_be_bytes());
                expected.extend(format!("{n:0500}").into_bytes());
                client.expect(&expected);
            },
        ),
        exchange(
            move |n| {
                let keys = [far_key(n, 40), far_key(n, 1000), "missing".to_owned()];
                encoded(&keys.each_ref().map(|key| TyrantRequest::VSiz { key: key.as_bytes() }))
            },
            |client, _| client.expect(&[0, 0, 0, 1, 0xF4, 0, 0, 0, 1, 0xF4, 1]),
        ),
    ];
    assert_parked(options, folder.path(), &exchanges);
}
