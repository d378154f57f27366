//! Tests that each answer to a client of Kyoto Tycoon waits for the update log of the database that
//! was changed.

use crate::kyoto_client;
use crate::running;
use crate::swayed_disk;

use kyoto_client::{answer, ask, call, kyoto, named, store_many};
use running::{Client, Running, eventually};
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use swayed_disk::{Sway, Swayed};
use todana::DatabaseName;
use todana_server::{DataDirectoryOptions, DatabaseOptions, DatabaseSpec, ServerOptions, SyncPolicy};

/// A disk that can be made to hang.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn close(&self, is_closed: bool) {
        *self.0.0.lock().unwrap() = is_closed;
        self.0.1.notify_all();
    }
}

impl Sway for Gate {
    fn writes(&self, _: &[IoSlice<'_>]) -> io::Result<()> {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |is_closed| *is_closed).unwrap());
        Ok(())
    }
}

/// The first database has no log; the second and the third have their own.
fn logged(folder: &Path) -> ServerOptions {
    let further = |name: &str, directory: Option<&str>| DatabaseSpec {
        name: DatabaseName::parse(name).unwrap(),
        data: directory
            .map(|directory| DataDirectoryOptions::new(folder.join(directory), SyncPolicy::Always)),
    };
    let further = vec![further("%", Some("one")), further(":", Some("two")), further(":#ktopts=p", None)];
    ServerOptions {
        databases: DatabaseOptions { database: named(":"), further, ..kyoto().databases },
        ..kyoto()
    }
}

/// Returns true if no reply has arrived, although the one worker has had enough turns to send it.
fn says_nothing(client: &Client, other: &mut Client) -> bool {
    for _ in 0..50 {
        assert_eq!(ask(other, "void", "").0, 200);
    }
    client.stream.set_nonblocking(true).unwrap();
    let outcome = client.stream.peek(&mut [0]);
    client.stream.set_nonblocking(false).unwrap();
    outcome.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

#[test]
fn answer_waits_for_the_changed_databases_log() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::default();
    let mut server = Running::start_from(logged(folder.path()), Arc::new(Swayed(gate.clone())));
    let requests: [(Vec<u8>, &[u8]); 4] = [
        (call("set", "DB\t1\nkey\tk\nvalue\tv\n"), b"HTTP/1.1 200"),
        (b"PUT /2/r HTTP/1.1\r\nContent-Length: 1\r\n\r\nx".to_vec(), b"HTTP/1.1 201"),
        (
            [&b"\xB8\0\0\0\0\0\0\0\x01\0\x01\0\0\0\x01\0\0\0\x01"[..], &i64::MAX.to_be_bytes(), b"bv"]
                .concat(),
            b"\xB8\0\0\0\x01",
        ),
        (call("set_bulk", "DB\t2\natomic\t\n_a\t1\n_b\t2\n"), b"HTTP/1.1 200"),
    ];
    let (mut other, mut reader) = (server.connect(), server.connect());
    gate.close(true);
    let mut clients: Vec<Client> = Vec::new();
    for (request, _) in &requests {
        let mut client = server.connect();
        client.send(request);
        clients.push(client);
    }
    eventually("it is changed in memory", || ask(&mut reader, "get", "DB\t1\nkey\tb\n").0 == 200);
    for client in &clients {
        assert!(says_nothing(client, &mut other));
    }
    // A database without a log does not wait for the logs of others.
    assert_eq!(ask(&mut other, "set", "key\tk\nvalue\tv\n").0, 200);
    assert_eq!(ask(&mut other, "set", "DB\t3\nkey\tk\nvalue\tv\n").0, 200);
    gate.close(false);
    for (client, (_, expected)) in clients.iter_mut().zip(&requests) {
        client.expect(expected);
    }
    server.handle.stop();
    server.join();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

/// The files that a killed process leaves are simulated by a copy of the files at the moment of an
/// answer.
#[test]
fn answered_writes_survive_a_sudden_end() {
    let folder = tempfile::tempdir().unwrap();
    let (before, behind) = (folder.path().join("before"), folder.path().join("behind"));
    let server = Running::start(logged(&before));
    let mut client = server.connect();
    store_many(&mut client, 0..10, b"gone");
    let records: String = (0..500).map(|key| format!("_{key:03}\tv\n")).collect();
    assert_eq!(ask(&mut client, "set_bulk", &format!("DB\t1\n{records}")).1, "num\t500\n");
    assert_eq!(ask(&mut client, "remove_bulk", "DB\t1\n_007\t\n_008\t\n").1, "num\t2\n");
    assert_eq!(ask(&mut client, "increment", "DB\t2\nkey\tn\nnum\t5\n").1, "num\t5\n");
    assert_eq!(ask(&mut client, "increment", "DB\t2\nkey\tn\nnum\t2\n").1, "num\t7\n");
    assert_eq!(ask(&mut client, "set", "DB\t2\nkey\tmortal\nvalue\tv\nxt\t-4000000000\n").0, 200);
    copy(&before, &behind);
    drop(server);
    let server = Running::start(logged(&behind));
    let mut client = server.connect();
    assert!(ask(&mut client, "status", "").1.starts_with("count\t0\n"));
    assert!(ask(&mut client, "status", "DB\t1\n").1.starts_with("count\t498\n"));
    assert_eq!(ask(&mut client, "get", "DB\t1\nkey\t007\n").0, 450);
    assert_eq!(ask(&mut client, "get", "DB\t2\nkey\tmortal\n").1, "value\tv\nxt\t4000000000\n");
    assert_eq!(ask(&mut client, "increment", "DB\t2\nkey\tn\nnum\t0\n").1, "num\t7\n");
    client.send(b"GET /1/499 HTTP/1.1\r\n\r\n");
    assert_eq!(answer(&mut client), (200, b"v".to_vec()));
}
