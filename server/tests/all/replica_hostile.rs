//! Servers that are not what a master or a replica expects: masters that never answer, replicas of
//! other clusters, and more connections than there may be.

use crate::running;

use running::{Running, WAIT_MAX, eventually, options};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use todana::disk::{Disk, File, SystemDisk};
use todana::update_log::SyncPolicy;
use todana_protocol::replication::{
    DatabaseRequest, EpochPlace, GREETING, LogPlace, ReplicaHello, RequestedStart,
};
use todana_server::{
    DataDirectoryOptions, DatabaseName, DatabaseOptions, KyotoMode, KyotoOptions, MasterAddress,
    MasterProtocol, NativeReplicaOptions, PoolTlsOptions, ProtocolOptions, ReplicationOptions, ServerOptions,
};

fn server_options(folder: &Path, master: Option<SocketAddr>) -> ServerOptions {
    let data = DataDirectoryOptions::new(folder.to_path_buf(), SyncPolicy::Always);
    let replication = ReplicationOptions {
        master: master.map(|to| MasterAddress { host: to.ip().to_string(), port: to.port() }),
        protocol: MasterProtocol::Native,
        ..ReplicationOptions::default()
    };
    let kyoto = KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto };
    ServerOptions {
        protocols: ProtocolOptions { kyoto, ..options().protocols },
        databases: DatabaseOptions {
            database: DatabaseName::parse("mem:hash").ok(),
            data: Some(data),
            replication,
            ..options().databases
        },
        ..options()
    }
}

/// Sends the greeting of a server in the first epoch.
fn greet(server: &Running, databases: Vec<DatabaseRequest>) -> TcpStream {
    let mut greeting = GREETING.to_vec();
    ReplicaHello { server_id: 2, epoch: 1 << 16 | 2, databases, ..ReplicaHello::default() }
        .put(&mut greeting);
    let mut stream = TcpStream::connect(server.addresses[0]).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(&greeting).unwrap();
    stream
}

/// A master that accepts the connection but never answers the handshake once held up a promotion,
/// which is needed just then.
#[test]
fn promotion_does_not_wait_for_a_silent_master() {
    let folder = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = server_options(folder.path(), Some(silent.local_addr().unwrap()));
    let ca = folder.path().join("ca.pem");
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).unwrap();
    std::fs::write(&ca, signed.cert.pem()).unwrap();
    let server_name = Some("localhost".into());
    let tls = PoolTlsOptions { ca: Some(ca), server_name, ..PoolTlsOptions::default() };
    let native = &mut options.databases.replication.native;
    *native = NativeReplicaOptions { tls: Some(tls), ..NativeReplicaOptions::default() };
    let replica = Running::start(options);
    let mut connection = silent.accept().unwrap().0;
    let mut hello = [0; 5];
    connection.read_exact(&mut hello).unwrap();
    let mut client = replica.connect();
    client.send(b"todana promote\r\n");
    // A line each second says that the server is alive.
    let mut answers = std::iter::from_fn(|| Some(client.line()));
    let answer = answers.find(|line| line != "WAIT\r\n").unwrap();
    assert!(answer.starts_with("PROMOTED "), "{answer}");
    // The handshake is still waited for: the connection is open.
    connection.set_nonblocking(true).unwrap();
    let mut rest = vec![0; 4096];
    let end = loop {
        match connection.read(&mut rest) {
            Ok(0) => break None,
            Ok(_) => {}
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(end, Some(ErrorKind::WouldBlock));
    client.set(b"key", b"value");
}

/// A replica with a wrong address must not end the changes of a master of another cluster.
#[test]
fn server_of_another_cluster_fences_no_master() {
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(server_options(folder.path(), None));
    let mut client = master.connect();
    client.set(b"key", b"value");
    let other = [7; 16];
    let place = |epoch, database_id| EpochPlace { epoch, place: LogPlace { database_id, position: 9 } };
    for path in [vec![place(0, other), place(1 << 16 | 2, [8; 16])], Vec::new()] {
        let start = RequestedStart::Checkpoint;
        let request = DatabaseRequest { number: 0, start, bucket_format: 0, path };
        let mut refusal = Vec::new();
        greet(&master, vec![request]).read_to_end(&mut refusal).unwrap();
        let text = b"the replica is in epoch 1, this server only in epoch 0";
        assert!(refusal.ends_with(text), "{}", refusal.escape_ascii());
        client.set(b"key", b"value");
    }
    assert_eq!(client.stat("todana_superseded"), "0");
    // A replica of a server that was promoted with the records of this one.
    let own = database_id(folder.path());
    let path = vec![place(0, own), place(1 << 16 | 2, [8; 16])];
    let start = RequestedStart::Checkpoint;
    greet(&master, vec![DatabaseRequest { number: 0, start, bucket_format: 0, path }]);
    eventually("the master is fenced", || client.stat("todana_superseded") == "1");
    client.send(b"set key 0 0 1\r\nx\r\n");
    client.expect(b"SERVER_ERROR another server has become the master; send changes to it\r\n");
}

/// Reads the ID of the database from a segment of its log (docs/format/update-log.md).
fn database_id(folder: &Path) -> [u8; 16] {
    let mut segments = std::fs::read_dir(folder.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segments.find(|path| path.extension().is_some_and(|ending| ending == "log")).unwrap();
    std::fs::read(segment).unwrap()[16..32].try_into().unwrap()
}

/// A disk on which the epochs cannot be stored while a switch is on.
#[derive(Default)]
struct HeldEpochs {
    disk: SystemDisk,
    is_held: Mutex<bool>,
    changed: Condvar,
}

impl HeldEpochs {
    fn hold(&self, is_held: bool) {
        *self.is_held.lock().unwrap() = is_held;
        self.changed.notify_all();
    }
}

impl Disk for HeldEpochs {
    fn below(&self) -> Option<&dyn Disk> {
        Some(&self.disk)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        if path.to_string_lossy().contains("epochs") {
            let held = self.is_held.lock().unwrap();
            drop(self.changed.wait_while(held, |is_held| *is_held).unwrap());
        }
        self.disk.create(path)
    }
}

/// Each greeting that was refused once had a thread of its own, however many there were.
#[test]
fn threads_of_replicas_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(HeldEpochs::default());
    let on_disk: Arc<dyn Disk> = Arc::clone(&disk) as Arc<dyn Disk>;
    let master = Running::start_from(server_options(folder.path(), None), on_disk);
    disk.hold(true);
    // The server stores each of these epochs before it answers.
    let mut greeted: Vec<TcpStream> = (0..100).map(|_| greet(&master, Vec::new())).collect();
    let is_closed = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        match stream.read(&mut [0]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    };
    let mut closed = 0;
    eventually("the others are disconnected", || {
        greeted.retain_mut(|stream| !is_closed(stream));
        closed = 100 - greeted.len();
        closed >= 100 - 32
    });
    assert_eq!(closed, 100 - 32);
    disk.hold(false);
    for mut stream in greeted {
        stream.set_nonblocking(false).unwrap();
        let mut refusal = Vec::new();
        stream.read_to_end(&mut refusal).unwrap();
        assert!(!refusal.is_empty());
    }
}

/// A server that was stopped once sent all records to a new replica before it ended.
#[test]
fn stop_ends_a_copy() {
    const RECORDS: usize = 48;
    let folder = tempfile::tempdir().unwrap();
    let mut master = Running::start(server_options(folder.path(), None));
    let mut client = master.connect();
    let (mut random, mut value) = (fastrand::Rng::with_seed(1), vec![0; 1 << 20]);
    for number in 0..RECORDS {
        random.fill(&mut value);
        client.set(format!("key{number}").as_bytes(), &value[..1_000_000]);
    }
    let start = RequestedStart::Checkpoint;
    let request = DatabaseRequest { number: 0, start, bucket_format: 0, path: Vec::new() };
    let mut greeting = GREETING.to_vec();
    ReplicaHello { server_id: 2, databases: vec![request], ..ReplicaHello::default() }.put(&mut greeting);
    let mut replica = TcpStream::connect(master.addresses[0]).unwrap();
    replica.set_read_timeout(Some(WAIT_MAX)).unwrap();
    replica.write_all(&greeting).unwrap();
    let (mut received, mut buffer) = (0, vec![0; 1 << 20]);
    while let Ok(len @ 1..) = replica.read(&mut buffer) {
        if received < 4 << 20 && received + len >= 4 << 20 {
            master.handle.stop();
        }
        received += len;
    }
    master.join();
    assert!(received < RECORDS * 500_000, "{received}");
}
