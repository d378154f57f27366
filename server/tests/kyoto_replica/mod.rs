//! Defines a replica that records the messages of its master, and starts servers that are replicas.

// Each test file uses a part of this module.
#![allow(dead_code)]

use crate::running::{self, Client, options};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use todana::disk::SystemDisk;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{DataDirectory, DataOptions, Database, SystemClock};
use todana_core::{Operation, Store};
use todana_engine::{MemHash, MemHashOptions};
use todana_protocol::kyoto::ReplicaRequest;
use todana_protocol::kyoto::message::{UpdateChange, UpdateMessage};
use todana_protocol::kyoto::replication::{MasterMessage, ReplicaDecoder, ReplicaStep};
use todana_server::{
    DataDirectoryOptions, DatabaseOptions, KyotoMode, KyotoOptions, LimitOptions, MasterAddress,
    ProtocolOptions, ReplicationOptions, ServerOptions,
};

pub(crate) fn kept(directory: &Path, server_id: u16) -> ServerOptions {
    let data = Some(DataDirectoryOptions::new(directory.into(), SyncPolicy::Always));
    let replication = ReplicationOptions { server_id, ..ReplicationOptions::default() };
    ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto },
            ..options().protocols
        },
        databases: DatabaseOptions { data, replication, ..options().databases },
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    }
}

pub(crate) fn following(directory: &Path, server_id: u16, master: SocketAddr) -> ServerOptions {
    let replication = ReplicationOptions {
        server_id,
        master: Some(MasterAddress { host: master.ip().to_string(), port: master.port() }),
        position_file: Some(directory.join("position")),
        ..ReplicationOptions::default()
    };
    ServerOptions {
        databases: DatabaseOptions { replication, ..kept(&directory.join("data"), server_id).databases },
        ..kept(&directory.join("data"), server_id)
    }
}

/// Creates checkpoints of a data directory that no server has open, so that its log no longer
/// reaches back to its first records. Stores `k0` once more.
pub(crate) fn forget_log(path: &Path) {
    let engine = Box::new(MemHash::new(MemHashOptions::default()).unwrap());
    let database = Database::new(engine, Arc::new(SystemClock));
    let directory = DataDirectory::open(Arc::new(SystemDisk), path).unwrap();
    let log = LogOptions { sync: SyncPolicy::Always, ..LogOptions::default() };
    let options = DataOptions { log, ..DataOptions::default() };
    directory.restore(&database, Arc::new(SystemClock), &options, &mut |_| ()).unwrap();
    let log = database.log().unwrap();
    for _ in 0..3 {
        let store = Store { key: b"k0", value: b"v", ..Store::default() };
        database.execute(&database.worker_counters(), &Operation::Store(store), &mut |_| ());
        log.wait(log.end()).unwrap();
        directory.checkpoint_unless(&database, &AtomicBool::new(false)).unwrap();
    }
    assert!(directory.log_bytes(None).unwrap().position().0 > 0);
    database.log().unwrap().close().unwrap();
}

/// A replica that decodes the messages of its master.
pub(crate) struct Follower {
    pub(crate) stream: TcpStream,
    decoder: ReplicaDecoder,
    bytes: Vec<u8>,
}

/// A decoded update: its time stamp, server ID, database and change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Update(pub(crate) u64, pub(crate) u16, pub(crate) u16, pub(crate) String);

impl Follower {
    pub(crate) fn connect(address: SocketAddr, hello: ReplicaRequest) -> Follower {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(running::WAIT_MAX)).unwrap();
        let mut out = Vec::new();
        hello.put(&mut out);
        stream.write_all(&out).unwrap();
        Follower { stream, decoder: ReplicaDecoder::default(), bytes: Vec::new() }
    }

    pub(crate) fn from(address: SocketAddr, timestamp: u64, server_id: u16) -> Follower {
        Follower::connect(
            address,
            ReplicaRequest { timestamp, server_id, wants_only: false, takes_lists: false },
        )
    }

    /// Returns all updates until the replica has caught up with its master, and the time stamp that
    /// the master then sends.
    pub(crate) fn updates(&mut self) -> (Vec<Update>, u64) {
        let mut updates = Vec::new();
        loop {
            match self.decoder.decode(&self.bytes) {
                ReplicaStep::Message { consumed, master_message } => {
                    let caught_up = match master_message {
                        MasterMessage::Update { timestamp, message } => {
                            updates.push(update(timestamp, &message));
                            None
                        }
                        MasterMessage::CaughtUp { timestamp } => Some(timestamp),
                        MasterMessage::Accepted | MasterMessage::Progress { .. } => None,
                        MasterMessage::Refused => panic!("refused"),
                    };
                    self.bytes.drain(..consumed);
                    if let Some(timestamp) = caught_up {
                        self.stream.write_all(b"\xB1").unwrap();
                        return (updates, timestamp);
                    }
                }
                ReplicaStep::NeedMore { .. } => {
                    let mut piece = [0; 4096];
                    let len = self.stream.read(&mut piece).unwrap();
                    assert!(len > 0, "it has ended");
                    self.bytes.extend_from_slice(&piece[..len]);
                }
                ReplicaStep::Malformed => panic!("malformed"),
            }
        }
    }

    /// Returns the next update. Fails if the replica catches up before it receives one.
    pub(crate) fn next_update(&mut self) -> Update {
        loop {
            let (consumed, found) = match self.decoder.decode(&self.bytes) {
                ReplicaStep::Message {
                    consumed,
                    master_message: MasterMessage::Update { timestamp, message },
                } => (consumed, Some(update(timestamp, &message))),
                ReplicaStep::Message {
                    consumed,
                    master_message: MasterMessage::Accepted | MasterMessage::Progress { .. },
                } => (consumed, None),
                ReplicaStep::NeedMore { .. } => {
                    let mut piece = [0; 4096];
                    let len = self.stream.read(&mut piece).unwrap();
                    assert!(len > 0, "it has ended");
                    self.bytes.extend_from_slice(&piece[..len]);
                    continue;
                }
                _ => panic!("no update comes"),
            };
            self.bytes.drain(..consumed);
            if let Some(update) = found {
                return update;
            }
        }
    }

    /// Waits for at least `count` updates and returns them.
    pub(crate) fn next_updates(&mut self, count: usize) -> Vec<Update> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.updates().0);
        }
        all
    }
}

pub(crate) fn update(timestamp: u64, message: &UpdateMessage<'_>) -> Update {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let what = match message.change {
        UpdateChange::Set { key, stored } => {
            let (time, value) = stored.split().unwrap();
            format!("{}={} {time:x}", text(key), text(value))
        }
        UpdateChange::SetList { key, stored } => {
            let (time, value) = stored.split().unwrap();
            format!("{}=list {} {time:x}", text(key), text(value))
        }
        UpdateChange::Remove { key } => format!("-{}", text(key)),
        UpdateChange::Clear => "clear".into(),
        UpdateChange::Other { operation, .. } => format!("{operation:x}?"),
    };
    Update(timestamp, message.server_id, message.database, what)
}

pub(crate) fn told(updates: &[Update]) -> Vec<&str> {
    updates.iter().map(|update| update.3.as_str()).collect()
}

pub(crate) fn call(client: &mut Client, name: &str, body: &str) -> (String, String) {
    let head = "HTTP/1.1\r\nContent-Type: text/tab-separated-values\r\nContent-Length:";
    client.send(format!("POST /rpc/{name} {head} {}\r\n\r\n{body}", body.len()).as_bytes());
    let status = client.line();
    let mut len = 0;
    loop {
        let line = client.line();
        if let Some(text) = line.strip_prefix("Content-Length: ") {
            len = text.trim_end().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let status = status.split(' ').nth(1).unwrap().to_string();
    (status, String::from_utf8(client.take(len)).unwrap())
}

pub(crate) fn done(client: &mut Client, name: &str, body: &str) {
    assert_eq!(call(client, name, body).0, "200", "{name} {body}");
}

pub(crate) fn value(client: &mut Client, key: &str) -> Option<String> {
    let (status, body) = call(client, "get", &format!("key\t{key}\n"));
    (status == "200").then(|| body.lines().find_map(|line| line.strip_prefix("value\t")).unwrap().to_string())
}
