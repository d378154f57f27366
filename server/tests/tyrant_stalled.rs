//! Clients of Tokyo Tyrant's protocols that stall: in the middle of a request, or without reading
//! their replies. The test measures the memory of the process, so it is alone in its program.

mod running;
mod tyrant_client;

use running::{Client, Running};
use std::io::Write;
use todana_protocol::tyrant::{FieldBuffer, TyrantPutMode, TyrantRequest};
use todana_server::{LimitOptions, MemoryOptions, ServerOptions};
use tyrant_client::{all_of_tyrant, ask};

const WORKERS: usize = 8;
/// The number of stalled clients of each kind. There are some on each worker.
const STALLED: usize = 3 * WORKERS;
/// The bytes that a client sends of a long request. All together are 300 MB, more than connections
/// may keep.
const PART_LEN: usize = 2_500_000;
static VALUE: [u8; 60_000] = [b'v'; 60_000];

fn encoded(request: &TyrantRequest<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}

/// Returns beginnings of requests.
fn parts() -> Vec<Vec<u8>> {
    let long = vec![b'x'; 3_000_000];
    let keys: FieldBuffer = (0..500_000).map(|_| &b"key"[..]).collect();
    let put = TyrantRequest::Put { mode: TyrantPutMode::Put, key: b"part", value: &long };
    let mut parts = vec![
        vec![0xc8],
        encoded(&put)[..10].to_vec(),
        encoded(&put),
        encoded(&TyrantRequest::MGet { keys: keys.list() }),
        encoded(&TyrantRequest::Misc { name: b"putlist", options: 0, arguments: keys.list() }),
        encoded(&TyrantRequest::Ext { name: b"f", options: 0, key: b"part", value: &long }),
        [b"PUT /part HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n", &long[..]].concat(),
        b"PUT /part HTTP/1.1\r\nContent-Le".to_vec(),
        [b"set part 0 0 1000000\r\n", &long[..600_000]].concat(),
        b"get part".to_vec(),
    ];
    parts.iter_mut().for_each(|part| part.truncate(PART_LEN));
    parts
}

/// Returns requests whose replies are longer than all sockets can buffer.
fn unread() -> Vec<Vec<u8>> {
    let keys: FieldBuffer = (0..100).map(|_| &b"value"[..]).collect();
    let call = |function: &str| format!("POST / HTTP/1.1\r\nX-TT-MNAME: {function}\r\n\r\n").into_bytes();
    vec![
        encoded(&TyrantRequest::Get { key: b"value" }).repeat(200),
        encoded(&TyrantRequest::MGet { keys: keys.list() }).repeat(2),
        encoded(&TyrantRequest::Misc { name: b"getlist", options: 0, arguments: keys.list() }).repeat(2),
        b"GET /value HTTP/1.1\r\n\r\n".repeat(200),
        b"get value\r\n".repeat(200),
        call("iterinit").repeat(1000),
    ]
}

/// Uses each protocol.
fn use_all(client: &mut Client, number: usize) {
    let key = format!("own{number}");
    let key = key.as_bytes();
    ask(client, &TyrantRequest::Put { mode: TyrantPutMode::Put, key, value: b"1" }, &[0]);
    ask(client, &TyrantRequest::Get { key }, b"\0\0\0\0\x011");
    let list = [&[0, 0, 0, 0, 1, 0, 0, 0, key.len() as u8][..], key].concat();
    ask(client, &TyrantRequest::FwmKeys { prefix: key, limit: Some(10) }, &list);
    let arguments = FieldBuffer::from_iter([key]);
    let out = TyrantRequest::Misc { name: b"outlist", options: 0, arguments: arguments.list() };
    ask(client, &out, &[0, 0, 0, 0, 0]);
    client.set(key, b"2");
    client.expect_value(key, b"2");
    client.send(&[b"DELETE /", key, b" HTTP/1.1\r\n\r\n"].concat());
    client.expect(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nOK\n");
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Eight clients that stop in the middle of a request occupy all threads of the original.
#[test]
fn stalled_clients_do_not_harm_others() {
    let options = all_of_tyrant("");
    let server = Running::start(ServerOptions {
        // Connections may keep 32 MiB together.
        memory: MemoryOptions { limit_mib: 128, ..options.memory },
        limits: LimitOptions { threads: WORKERS, ..options.limits },
        ..options
    });
    let mut others: Vec<Client> = (0..2 * WORKERS).map(|_| server.connect()).collect();
    others[0].set(b"value", &VALUE);
    others.iter_mut().enumerate().for_each(|(number, client)| use_all(client, number));
    let before = resident_bytes();
    let mut stalled = Vec::new();
    for request in parts().iter().chain(&unread()) {
        for _ in 0..STALLED {
            let mut client = server.connect();
            // The server may refuse a client whose request or replies exceed the share of all.
            let _ = client.stream.write_all(request);
            stalled.push(client);
        }
    }
    for _ in 0..3 {
        others.iter_mut().enumerate().for_each(|(number, client)| use_all(client, number));
        // New connections are served, too.
        (0..WORKERS).for_each(|number| use_all(&mut server.connect(), number));
    }
    let grown = resident_bytes().saturating_sub(before);
    println!("{} stalled clients: {:.1} MB more", stalled.len(), grown as f64 / 1e6);
    assert!(grown < 96 << 20, "{grown}");
    others[0].expect_value(b"value", &VALUE);
    drop(stalled);
    others.iter_mut().enumerate().for_each(|(number, client)| use_all(client, number));
}
