//! Names databases on the cluster that `TODANA_CASSANDRA` names, and empties them.

use std::io::{Read, Write};
use std::net::TcpStream;
use todana::DatabaseName;
use todana_server::{DatabaseOptions, ListenOptions, Server, ServerOptions};

/// Returns the name of an empty database in this keyspace, which is created if it is missing.
/// Returns `None` if there is no cluster.
pub(crate) fn empty(keyspace: &str, words: &str) -> Option<DatabaseName> {
    let Ok(hosts) = std::env::var("TODANA_CASSANDRA") else {
        println!("skipped: TODANA_CASSANDRA names no cluster");
        return None;
    };
    let name = format!("cassandra://{hosts}/{keyspace}#replication=1{words}");
    let name = DatabaseName::parse(&name).unwrap();
    let server = Server::bind(ServerOptions {
        databases: DatabaseOptions { database: Some(name.clone()), ..DatabaseOptions::default() },
        listen: ListenOptions { port: 0, ..ListenOptions::default() },
        ..ServerOptions::default()
    });
    let server = server.unwrap();
    let (address, handle) = (server.tcp_addresses()[0], server.handle());
    let thread = std::thread::spawn(move || server.run());
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"flush_all\r\n").unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"OK\r\n");
    handle.stop();
    thread.join().unwrap().unwrap();
    Some(name)
}
