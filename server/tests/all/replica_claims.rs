//! A reply that waits for a replica (`--ack`) is sent only after a replica really has the change,
//! whatever replicas state, and whichever logs they followed before.

use crate::crash_disk;
use crate::running;

use crash_disk::{CrashDisk, Op};
use running::{Running, WAIT_MAX, eventually, options};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use todana::disk::{Disk, File, SystemDisk};
use todana::update_log::SyncPolicy;
use todana_protocol::replication::{
    AppliedPosition, DatabaseRequest, FrameDecoder, GREETING, LogPlace, MasterWelcome, ReplicaHello,
    ReplicaMessage, RequestedStart,
};
use todana_server::{
    DataDirectoryOptions, DatabaseName, DatabaseOptions, KyotoMode, KyotoOptions, MasterAddress,
    MasterProtocol, ProtocolOptions, ReplicationOptions, ServerOptions,
};

const UNCONFIRMED: &str = "SERVER_ERROR the changes were made here, but may not be on a replica\r\n";

/// Returns the options of a master that waits for a replica, or of a replica.
fn server_options(server_id: u16, folder: &Path, master: Option<SocketAddr>) -> ServerOptions {
    let data = DataDirectoryOptions::new(folder.join(server_id.to_string()), SyncPolicy::Always);
    let replication = ReplicationOptions {
        server_id,
        master: master.map(|to| MasterAddress { host: to.ip().to_string(), port: to.port() }),
        protocol: MasterProtocol::Native,
        acks: usize::from(master.is_none()),
        ack_time_max: Duration::from_millis(50),
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

/// Stores a record, and returns the reply.
fn set(server: &Running) -> String {
    let mut client = server.connect();
    client.send(b"set key 0 0 1\r\nv\r\n");
    client.line()
}

/// Reads the first message of the other side, and returns its content.
fn first_content(stream: &mut TcpStream) -> Vec<u8> {
    let mut frames = FrameDecoder::default();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        frames.push(&byte);
        if let Some(content) = frames.next_content().unwrap() {
            return content.to_vec();
        }
    }
}

/// Returns true if the other side has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// A replica that states positions which it was not sent is disconnected, and confirms nothing.
#[test]
fn claim_of_unsent_changes_confirms_nothing() {
    for (start, applied) in [
        (RequestedStart::Checkpoint, u64::MAX),
        (RequestedStart::Beginning, 1 << 20),
        (RequestedStart::Place(LogPlace { database_id: [7; 16], position: 9 << 20 }), 9 << 20),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let master = Running::start(server_options(1, folder.path(), None));
        let mut out = GREETING.to_vec();
        let databases = vec![DatabaseRequest { number: 0, start, bucket_format: 0, path: Vec::new() }];
        ReplicaHello { server_id: 2, databases, ..ReplicaHello::default() }.put(&mut out);
        let mut replica = TcpStream::connect(master.addresses[0]).unwrap();
        replica.set_read_timeout(Some(WAIT_MAX)).unwrap();
        replica.write_all(&out).unwrap();
        let welcome = MasterWelcome::read(&first_content(&mut replica)).unwrap().unwrap();
        assert_eq!(welcome.server_id, 1);
        let positions = vec![AppliedPosition { number: 0, applied, stored: applied }];
        out.clear();
        ReplicaMessage::Applied { asked_us: 1, positions }.put(&mut out);
        replica.write_all(&out).unwrap();
        while !is_closed(&mut replica) {
            assert_eq!(set(&master), UNCONFIRMED);
        }
        assert_eq!(set(&master), UNCONFIRMED);
    }
}

/// A replica stated its position in the log of its former master to the new one while that one
/// prepared its answer. The new master took it for a position in its own log.
#[test]
fn unaccepted_replica_states_no_position() {
    let folder = tempfile::tempdir().unwrap();
    let former = Running::start(server_options(1, folder.path(), None));
    let replica = Running::start(server_options(2, folder.path(), Some(former.addresses[0])));
    eventually("a confirmed change", || set(&former) == "STORED\r\n");
    drop((replica, former));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let replica = Running::start(server_options(2, folder.path(), Some(listener.local_addr().unwrap())));
    let mut stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.read_exact(&mut [0; GREETING.len()]).unwrap();
    let hello = ReplicaHello::read(&first_content(&mut stream)).unwrap();
    let RequestedStart::Place(place) = hello.databases[0].start else { panic!("{hello:?}") };
    assert!(place.position > 0);
    // A position is stated ten times a second.
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let early = stream.read(&mut [0]).unwrap_err();
    assert!(matches!(early.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{early}");
    let mut refusal = Vec::new();
    MasterWelcome::put_refusal("no", &mut refusal);
    stream.write_all(&refusal).unwrap();
    drop(replica);
}

/// A disk on which no checkpoint can be created while a switch is on.
struct NoCheckpoints {
    disk: SystemDisk,
    is_on: AtomicBool,
}

impl Disk for NoCheckpoints {
    fn below(&self) -> Option<&dyn Disk> {
        Some(&self.disk)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        if self.is_on.load(Ordering::SeqCst) && path.to_string_lossy().contains("checkpoint") {
            return Err(io::Error::other("no checkpoints"));
        }
        self.disk.create(path)
    }
}

/// The records of an image are in no log. Until they are in a checkpoint, the death of the replica
/// would lose them.
#[test]
fn copied_records_in_memory_confirm_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(server_options(1, folder.path(), None));
    assert_eq!(set(&master), UNCONFIRMED);
    let disk = Arc::new(NoCheckpoints { disk: SystemDisk, is_on: AtomicBool::new(true) });
    let on_disk: Arc<dyn Disk> = Arc::clone(&disk) as Arc<dyn Disk>;
    let replica = Running::start_from(server_options(2, folder.path(), Some(master.addresses[0])), on_disk);
    eventually("the copied record", || {
        let mut client = replica.connect();
        client.send(b"get key\r\n");
        client.line() == "VALUE key 0 1\r\n"
    });
    for number in 0..5 {
        assert_eq!(set(&master), UNCONFIRMED, "{number}");
    }
    disk.is_on.store(false, Ordering::SeqCst);
    eventually("a confirmed change", || set(&master) == "STORED\r\n");
}

/// A replica that was stopped while its disk did not answer once stated positions of changes that
/// were not on it.
#[test]
fn stopped_replica_confirms_no_unsynced_change() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = server_options(1, folder.path(), None);
    options.databases.replication.ack_time_max = Duration::from_secs(2);
    let master = Running::start(options);
    let disk = CrashDisk::new();
    let on_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let replica = Running::start_from(server_options(2, folder.path(), Some(master.addresses[0])), on_disk);
    eventually("a confirmed change", || set(&master) == "STORED\r\n");
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let held = Arc::clone(&gate);
    disk.fault(move |op| {
        if matches!(op, Op::Sync { .. }) {
            let (is_open, opened) = &*held;
            drop(opened.wait_while(is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
        }
        Ok(())
    });
    let mut client = master.connect();
    client.send(b"set last 0 0 1\r\nv\r\n");
    eventually("the last change", || {
        let mut client = replica.connect();
        client.send(b"get last\r\n");
        client.line() == "VALUE last 0 1\r\n"
    });
    replica.handle.stop();
    assert_eq!(client.line(), UNCONFIRMED);
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
}
