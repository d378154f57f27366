//! The conformance suite of engines (`engine/tests/conformance`), with a database on a cluster in
//! place of the engine, through a server and Kyoto Tycoon's protocol. `TODANA_CASSANDRA` names the
//! contact points of a cluster.
//!
//! A visit reads the record and stores the change by `cas`, again if another client was faster. The
//! attributes of the suite are any, also those that a cluster refuses, so they are a part of the
//! value. Limits, sweeps and buffers are those of memory. Scans beside writers of many records
//! take too long; `remote/tests/operations.rs` tests scans.
#![cfg(feature = "cassandra")]

mod cassandra;
#[path = "../../engine/tests/conformance/clear.rs"]
mod clear;
#[path = "../../engine/tests/conformance/extremes.rs"]
#[allow(dead_code)]
mod extremes;
mod kyoto_client;
#[path = "../../engine/tests/model/mod.rs"]
#[allow(dead_code)]
mod model;
#[path = "../../engine/tests/conformance/operations.rs"]
mod operations;
mod running;
#[path = "../../engine/tests/conformance/subject.rs"]
mod subject;
#[path = "../../engine/tests/conformance/threads.rs"]
#[allow(dead_code)]
mod threads;
#[path = "../../engine/tests/visitor/mod.rs"]
mod visitor;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kyoto_client::kyoto;
use running::{Client, Running};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use subject::Subject;
use todana::DetachedChange;
use todana_core::{
    Attributes, Engine, EngineStatus, Error, ErrorKind, Expiry, LastAccess, Record, Result, ScanPosition,
    StaleMarks, UnixSeconds, Visitor,
};
use todana_server::{DatabaseOptions, LimitOptions, ServerOptions};

/// The longest key that is sent as it is. In place of longer ones, which a cluster refuses, their
/// beginning and a hash are sent.
const KEY_LEN_MAX: usize = 65_000;

/// The server that all engines of this process use.
static SERVER: Mutex<Option<SocketAddr>> = Mutex::new(None);

/// The status and the columns of an answer.
type Answer = (u16, Vec<(Vec<u8>, Vec<u8>)>);
/// A test of the suite.
type Promise = fn(&Subject);

/// A database of the server as an engine.
struct WireEngine {
    /// Connections that no thread uses now.
    clients: Mutex<Vec<Client>>,
}

/// Encodes a record with its key and attributes as a value.
fn encode(key: &[u8], value: &[u8], attributes: Attributes) -> Vec<u8> {
    let Attributes { flags, expiry, version, marks, access, has_value_list } = attributes;
    assert!(!has_value_list, "the suite has no lists of values");
    let (kind, at, span_s) = match expiry {
        Expiry::Never => (0, 0, 0),
        Expiry::At(at) => (1, at.0, 0),
        Expiry::Sliding { at, span_s } => (2, at.0, span_s),
    };
    let (access, fetched) = access.map_or((u64::MAX, false), |access| (access.at.0, access.fetched));
    let mut bytes = vec![kind, u8::from(marks.stale), u8::from(marks.token_sent), u8::from(fetched)];
    [at, version, access].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
    [flags, span_s, key.len() as u32].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
    [&bytes[..], key, value].concat()
}

/// Decodes a value that was encoded by [`encode`].
fn decode(bytes: &[u8]) -> (&[u8], Record<'_>) {
    let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let short = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let expiry = match bytes[0] {
        0 => Expiry::Never,
        1 => Expiry::At(UnixSeconds(long(4))),
        _ => Expiry::Sliding { at: UnixSeconds(long(4)), span_s: short(32) },
    };
    let access = LastAccess { at: UnixSeconds(long(20)), fetched: bytes[3] == 1 };
    let attributes = Attributes {
        flags: short(28),
        expiry,
        version: long(12),
        marks: StaleMarks { stale: bytes[1] == 1, token_sent: bytes[2] == 1 },
        access: Some(access).filter(|access| access.at.0 != u64::MAX),
        has_value_list: false,
    };
    let (key, value) = bytes[40..].split_at(short(36) as usize);
    (key, Record::new(value, attributes))
}

/// Returns the key that is sent for a key. It is not empty.
fn sent_key(key: &[u8]) -> Vec<u8> {
    if key.len() <= KEY_LEN_MAX {
        return [b"k", key].concat();
    }
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    [b"L", &key.iter().fold(7, hash).to_be_bytes()[..], &key[..1000]].concat()
}

impl WireEngine {
    /// Calls a procedure. Returns the status and the columns of the answer.
    fn call(&self, name: &str, pairs: &[(&[u8], &[u8])]) -> Answer {
        let idle = self.clients.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut client = idle.unwrap_or_else(connect);
        let answer = call(&mut client, name, pairs);
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        answer
    }

    /// Returns the stored bytes of a record.
    fn stored(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (status, columns) = self.call("get", &[(b"key", &sent_key(key))]);
        assert!(status == 200 || status == 450, "get: {status}");
        columns.into_iter().find(|(name, _)| name == b"value").map(|(_, value)| value)
    }
}

fn connect() -> Client {
    Client::connect(SERVER.lock().unwrap().expect("the server runs"))
}

fn call(client: &mut Client, name: &str, pairs: &[(&[u8], &[u8])]) -> Answer {
    let line = |(name, value): &(&[u8], &[u8])| {
        format!("{}\t{}\n", BASE64_STANDARD.encode(name), BASE64_STANDARD.encode(value))
    };
    let body: String = pairs.iter().map(line).collect();
    let head = "HTTP/1.1\r\nContent-Type: text/tab-separated-values; colenc=B\r\nContent-Length";
    client.send(format!("POST /rpc/{name} {head}: {}\r\n\r\n{body}", body.len()).as_bytes());
    let line = client.line();
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let (mut len, mut encoding) = (0, None);
    loop {
        let line = client.line();
        match line.trim_end().split_once(": ") {
            Some(("Content-Length", text)) => len = text.parse().unwrap(),
            Some(("Content-Type", kind)) => {
                encoding = kind.split_once("colenc=").map(|(_, it)| it.to_owned())
            }
            Some(_) => {}
            None => break,
        }
    }
    let body = client.take(len);
    let column = |bytes: &[u8]| match encoding.as_deref() {
        None => bytes.to_vec(),
        Some("B") => BASE64_STANDARD.decode(bytes).expect("base64"),
        Some(encoding) => {
            assert_eq!(encoding, "U");
            percent_decoded(bytes)
        }
    };
    let lines = body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let pair = |line: &[u8]| {
        let at = line.iter().position(|&byte| byte == b'\t').expect("two columns");
        (column(&line[..at]), column(&line[at + 1..]))
    };
    (status, lines.map(pair).collect())
}

fn percent_decoded(bytes: &[u8]) -> Vec<u8> {
    let mut parts = bytes.split(|&byte| byte == b'%');
    let mut decoded = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let digits = std::str::from_utf8(&part[..2]).expect("two digits");
        decoded.push(u8::from_str_radix(digits, 16).expect("two digits"));
        decoded.extend(&part[2..]);
    }
    decoded
}

fn refused(name: &str, status: u16) -> Error {
    Error::new(ErrorKind::Invalid, format!("{name}: {status}"))
}

impl Engine for WireEngine {
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let stored = self.stored(key);
        if let Some(bytes) = &stored {
            see(decode(bytes).1);
        }
        Ok(stored.is_some())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        loop {
            let old = self.stored(key);
            let old_record = old.as_deref().map(|bytes| decode(bytes).1);
            let new = match DetachedChange::by(visitor, old_record) {
                DetachedChange::Keep => return Ok(()),
                DetachedChange::Put { value, attributes } => Some(encode(key, &value, attributes)),
                DetachedChange::Retag(attributes) => old_record.map(|old| encode(key, old.value, attributes)),
                DetachedChange::Remove => None,
            };
            let sent = sent_key(key);
            let values = [("oval", old.as_deref()), ("nval", new.as_deref())];
            let values = values.iter().filter_map(|(name, value)| Some((name.as_bytes(), (*value)?)));
            let pairs: Vec<(&[u8], &[u8])> =
                std::iter::once((&b"key"[..], &sent[..])).chain(values).collect();
            match self.call("cas", &pairs).0 {
                200 => return Ok(()),
                450 => {}
                status => return Err(refused("cas", status)),
            }
        }
    }

    fn wait_for_visits(&self) {}

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        // Each scan has a connection, and a connection has its own cursors.
        let mut client = connect();
        let after = match &from {
            Some(ScanPosition::Key(key)) => Some(key.to_vec()),
            _ => None,
        };
        let mut place: Vec<(&[u8], &[u8])> = vec![(b"CUR", b"1")];
        place.extend(after.as_deref().map(|key| (&b"key"[..], key)));
        let mut status = call(&mut client, "cur_jump", &place).0;
        while status == 200 {
            let (found, columns) = call(&mut client, "cur_get", &[(b"CUR", b"1"), (b"step", b"")]);
            status = found;
            let [(_, sent), (_, bytes)] = &columns[..] else { break };
            if after.as_ref() == Some(sent) {
                continue;
            }
            let (key, record) = decode(bytes);
            if see(key, record).is_break() {
                return Ok(Some(ScanPosition::Key(sent.as_slice().into())));
            }
        }
        if status == 450 { Ok(None) } else { Err(refused("cursor", status)) }
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        match self.call("clear", &[]).0 {
            200 => cleared(),
            status => return Err(refused("clear", status)),
        }
        Ok(())
    }

    fn status(&self) -> EngineStatus {
        let (status, columns) = self.call("match_prefix", &[(b"prefix", b"")]);
        assert_eq!(status, 200);
        let records = columns.len() as u64 - 1;
        EngineStatus { records, live_bytes: records, ..EngineStatus::default() }
    }
}

/// Opens the database of the server. It is emptied if the directory is new.
fn open(directory: &Path) -> Result<Box<dyn Engine>> {
    let engine = WireEngine { clients: Mutex::default() };
    let mark = directory.join("used");
    if !mark.exists() {
        engine.clear(&mut || ())?;
        std::fs::write(mark, b"").unwrap();
    }
    Ok(Box::new(engine))
}

#[test]
#[ignore = "takes minutes"]
fn conformance_suite_holds_over_the_wire() {
    for words in ["", "#strict", "#ordered=4"] {
        let Some(name) = cassandra::empty("todana_conformance", words) else { return };
        let databases = DatabaseOptions { database: Some(name), ..DatabaseOptions::default() };
        let limits = LimitOptions { item_size_max: 16 << 20, ..kyoto().limits };
        let server = Running::start(ServerOptions { databases, limits, ..kyoto() });
        *SERVER.lock().unwrap() = Some(server.addresses[0]);
        let subject = Subject { keeps: true, open };
        let promises: [(&str, Promise); 9] = [
            ("operations", operations::random_operations_agree_with_the_model),
            ("growth", operations::growth_and_shrinkage_lose_no_record),
            ("visitors", operations::visitor_is_applied_only_after_a_change),
            ("keys", extremes::keys_of_any_length_are_distinct_or_refused),
            ("values", extremes::values_of_any_length_are_returned_unchanged),
            ("lengths", extremes::a_value_can_change_between_all_lengths),
            ("clear", clear::cleared_engine_is_empty_and_writable),
            ("clearing", clear::clearing_calls_back_once_while_nobody_can_write),
            ("histories", threads::every_key_has_a_serial_history),
        ];
        for (what, promise) in promises {
            let began = std::time::Instant::now();
            promise(&subject);
            println!("{what}{words}: {:.1} s", began.elapsed().as_secs_f64());
        }
    }
}
