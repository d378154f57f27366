//! A replica and a master of Tokyo Tyrant's protocol, and servers that replicate in it.

// Each test file uses a part of this module.
#![allow(dead_code)]

use super::running::{Client, Running};
use super::tyrant_client::{hex, tyrant};
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use todana::update_log::SyncPolicy;
use todana_protocol::tyrant::TyrantRequest;
use todana_protocol::tyrant::replication::{MasterDecoder, MasterStep, TyrantMasterMessage, put_record_head};
use todana_server::{
    DataDirectoryOptions, DatabaseOptions, LimitOptions, MasterAddress, MasterProtocol, ReplicationOptions,
    ServerOptions,
};

pub(crate) fn kept(directory: &Path, server_id: u16) -> ServerOptions {
    let data = Some(DataDirectoryOptions::new(directory.join("data"), SyncPolicy::Always));
    let position_file = Some(directory.join("position"));
    let replication = ReplicationOptions { server_id, position_file, ..ReplicationOptions::default() };
    ServerOptions {
        databases: DatabaseOptions { data, replication, ..tyrant().databases },
        limits: LimitOptions { threads: 1, ..tyrant().limits },
        ..tyrant()
    }
}

pub(crate) fn following(directory: &Path, master: SocketAddr, checks_outcomes: bool) -> ServerOptions {
    let options = kept(directory, 8);
    let replication = ReplicationOptions {
        master: Some(MasterAddress { host: master.ip().to_string(), port: master.port() }),
        protocol: MasterProtocol::Tyrant { checks_outcomes },
        ..options.databases.replication
    };
    ServerOptions { databases: DatabaseOptions { replication, ..options.databases }, ..options }
}

pub(crate) fn request(since_micros: u64, server_id: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    TyrantRequest::Repl { since_micros, server_id }.encode(&mut bytes);
    bytes
}

/// A replica that decodes the messages of its master.
pub(crate) struct Replica {
    pub(crate) client: Client,
    pub(crate) decoder: MasterDecoder,
    pub(crate) unread: Vec<u8>,
}

impl Replica {
    pub(crate) fn new(server: &Running, since_micros: u64, server_id: u32) -> Replica {
        let mut client = server.connect();
        client.send(&request(since_micros, server_id));
        client.expect(&[0, 0, 0, 7]);
        let mut decoder = MasterDecoder::default();
        decoder.decode(&[0, 0, 0, 7]);
        Replica { client, decoder, unread: Vec::new() }
    }

    /// Returns the next record: time stamp, server, body.
    pub(crate) fn next(&mut self) -> (u64, u32, Vec<u8>) {
        loop {
            match self.decoder.decode(&self.unread) {
                MasterStep::Message { consumed, message } => {
                    let record = match message {
                        TyrantMasterMessage::Record { stamp_micros, server_id, body } => {
                            Some((stamp_micros, server_id, body.to_vec()))
                        }
                        _ => None,
                    };
                    self.unread.drain(..consumed);
                    if let Some(record) = record {
                        return record;
                    }
                }
                MasterStep::NeedMore { at_least } => self.unread.extend(self.client.take(at_least)),
                MasterStep::Malformed => panic!("malformed: {:?}", self.unread),
            }
        }
    }
}

/// A master that accepts one replica, which asks from this time stamp on.
pub(crate) struct FakeMaster {
    listener: TcpListener,
}

impl FakeMaster {
    pub(crate) fn new() -> FakeMaster {
        FakeMaster { listener: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) fn accept(&self, since_micros: u64) -> TcpStream {
        self.accept_request(&request(since_micros, 8))
    }

    pub(crate) fn accept_request(&self, expected: &[u8]) -> TcpStream {
        let (mut stream, _) = self.listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut asked = [0; 14];
        stream.read_exact(&mut asked).unwrap();
        assert_eq!(asked[..], *expected);
        stream
    }
}

pub(crate) fn record(stamp_micros: u64, server_id: u32, body: &str, out: &mut Vec<u8>) {
    let body = hex(body);
    put_record_head(stamp_micros, server_id, body.len() as u32, out);
    out.extend_from_slice(&body);
}

pub(crate) fn position(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("position")).unwrap_or_default()
}
