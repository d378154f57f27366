//! Defines a client of Kyoto Tycoon's protocols, and starts servers for it.

// Each test file uses a part of this module.
#![allow(dead_code)]

use crate::running::{Client, Running, eventually, options};
use std::io::{Read, Write};
use std::net::TcpStream;
use todana::DatabaseName;
use todana_server::{
    AdminOptions, KyotoMode, KyotoOptions, LimitOptions, ObservationOptions, ProtocolOptions, ServerOptions,
};

pub(crate) fn kyoto() -> ServerOptions {
    ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto },
            ..options().protocols
        },
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    }
}

pub(crate) fn named(name: &str) -> Option<DatabaseName> {
    Some(DatabaseName::parse(name).unwrap())
}

/// Encodes a call. `map` contains its parameters, separated by tabs.
pub(crate) fn call(name: &str, map: &str) -> Vec<u8> {
    let head = "HTTP/1.1\r\nContent-Type: text/tab-separated-values\r\nContent-Length";
    format!("POST /rpc/{name} {head}: {}\r\n\r\n{map}", map.len()).into_bytes()
}

/// Reads the next answer. Returns its status and its body.
pub(crate) fn answer(client: &mut Client) -> (u16, Vec<u8>) {
    let line = client.line();
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no answer: {line:?}"));
    let mut len = 0;
    loop {
        let line = client.line();
        match line.trim_end().split_once(": ") {
            Some(("Content-Length", text)) => len = text.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    (status, client.take(len))
}

pub(crate) fn ask(client: &mut Client, name: &str, map: &str) -> (u16, String) {
    client.send(&call(name, map));
    let (status, body) = answer(client);
    (status, String::from_utf8(body).unwrap())
}

/// Returns a field of a report.
pub(crate) fn reported(client: &mut Client, name: &str) -> u64 {
    let (_, report) = ask(client, "report", "");
    let line = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// Waits until `count` requests wait for a signal.
pub(crate) fn until_waiting(server: &Running, count: u64) {
    eventually("they wait", || page(server, "todana_kyoto_waiting") == count);
}

/// Returns the value of a metric in `/metrics`.
pub(crate) fn page(server: &Running, name: &str) -> u64 {
    let mut stream = TcpStream::connect(server.admin_addresses[0]).unwrap();
    stream.write_all(b"GET /metrics/totals HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

pub(crate) fn watched() -> ServerOptions {
    ServerOptions {
        observation: ObservationOptions {
            admin: Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() }),
            ..kyoto().observation
        },
        ..kyoto()
    }
}

/// Stores a record without expiry for each of these keys by the binary protocol.
pub(crate) fn store_many(client: &mut Client, keys: std::ops::Range<u32>, value: &[u8]) {
    let mut request = vec![0xB8, 0, 0, 0, 0];
    request.extend((keys.len() as u32).to_be_bytes());
    for key in keys.clone() {
        let key = format!("{key:08}");
        request.extend([0, 0]);
        request.extend((key.len() as u32).to_be_bytes());
        request.extend((value.len() as u32).to_be_bytes());
        request.extend(i64::MAX.to_be_bytes());
        request.extend(key.as_bytes());
        request.extend(value);
    }
    client.send(&request);
    client.expect(&[&[0xB8][..], &(keys.len() as u32).to_be_bytes()].concat());
}
