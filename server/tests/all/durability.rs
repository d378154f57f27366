//! Tests the replies of a server to its clients while its disk is slow, hangs or fails.

use crate::running;
use crate::swayed_disk;

use running::{Client, Running, WAIT_MAX, eventually, options};
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use swayed_disk::{Sway, Swayed};
use todana_protocol::tyrant::{TyrantPutMode, TyrantRequest};
use todana_server::{
    AdminOptions, DataDirectoryOptions, DatabaseOptions, LimitOptions, ListenOptions, MemoryOptions,
    ObservationOptions, ProtocolOptions, Server, ServerOptions, SyncPolicy, TyrantMode, TyrantOptions,
};

/// The outcome of operations on the files of the update log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mood {
    #[default]
    Well,
    /// Writes and syncs return only after the mood changes.
    Hangs,
    /// Writes fail.
    Full,
    /// Syncs fail.
    Fails,
    /// Syncs fail from the first write on that contains these bytes.
    FailsFrom(&'static [u8]),
}

/// The machine's own disk with a mood.
#[derive(Clone, Default)]
struct MoodyDisk(Arc<State>);

#[derive(Default)]
struct State {
    mood: Mutex<Mood>,
    changed: Condvar,
}

impl MoodyDisk {
    fn mood(&self) -> MutexGuard<'_, Mood> {
        self.0.mood.lock().unwrap()
    }

    /// Waits until the disk no longer hangs, and returns the mood.
    fn awake(&self) -> MutexGuard<'_, Mood> {
        self.0.changed.wait_while(self.mood(), |mood| *mood == Mood::Hangs).unwrap()
    }

    fn set(&self, mood: Mood) {
        *self.mood() = mood;
        self.0.changed.notify_all();
    }
}

fn has(pieces: &[IoSlice<'_>], what: &[u8]) -> bool {
    pieces.iter().any(|piece| piece.windows(what.len()).any(|found| found == what))
}

impl Sway for MoodyDisk {
    fn writes(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let mut mood = self.awake();
        match *mood {
            Mood::Full => return Err(io::ErrorKind::StorageFull.into()),
            Mood::FailsFrom(what) if has(pieces, what) => *mood = Mood::Fails,
            _ => {}
        }
        Ok(())
    }

    fn syncs(&self) -> io::Result<bool> {
        match *self.awake() {
            Mood::Fails => Err(io::Error::other("the disk has failed")),
            _ => Ok(true),
        }
    }
}

/// A server of one worker whose data is on a disk with a mood.
struct Kept {
    server: Running,
    disk: MoodyDisk,
    folder: tempfile::TempDir,
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Lets all operations succeed, so that nothing hangs at the end of a test.
        self.disk.set(Mood::Well);
    }
}

fn start(sync: SyncPolicy) -> Kept {
    start_with(sync, options())
}

fn start_with(sync: SyncPolicy, options: ServerOptions) -> Kept {
    let folder = tempfile::tempdir().unwrap();
    let disk = MoodyDisk::default();
    let data = Some(DataDirectoryOptions::new(folder.path().into(), sync));
    let server = Running::start_from(
        ServerOptions {
            databases: DatabaseOptions { data, ..options.databases },
            limits: LimitOptions { threads: 1, ..options.limits },
            ..options
        },
        Arc::new(Swayed(disk.clone())),
    );
    Kept { server, disk, folder }
}

/// Returns true if the server has read everything that was sent and has not replied. The test asks
/// over another connection, often enough that the one worker has had all the turns that it needs.
fn says_nothing(client: &Client, other: &mut Client) -> bool {
    for _ in 0..50 {
        other.expect_version();
    }
    client.stream.set_nonblocking(true).unwrap();
    let outcome = client.stream.peek(&mut [0]);
    client.stream.set_nonblocking(false).unwrap();
    outcome.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Encodes a packet of the binary protocol.
fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, opcode];
    packet.extend((key.len() as u16).to_be_bytes());
    packet.extend([extras.len() as u8, 0, 0, 0]);
    packet.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    packet.extend([0; 12]);
    [&packet, extras, key, value].concat()
}

#[test]
fn quiet_writes_are_acknowledged_after_all_are_synced() {
    const SETQ: u8 = 0x11;
    const NOOP: u8 = 0x0a;
    let kept = start(SyncPolicy::Always);
    let (mut client, mut other) = (kept.server.connect(), kept.server.connect());
    kept.disk.set(Mood::Hangs);
    // This is the number of requests that one turn serves, so that the command that acknowledges
    // them is in the next turn.
    let sets: Vec<u8> = (0..20u8).flat_map(|n| packet(SETQ, &[0; 8], &[b'k', b'a' + n], b"v")).collect();
    client.send(&[sets, packet(NOOP, b"", b"", b"")].concat());
    eventually("the last one is there", || {
        other.send(b"get kt\r\n");
        other.line() == "VALUE kt 0 1\r\n" && other.take(8) == b"v\r\nEND\r\n"[..8]
    });
    assert!(says_nothing(&client, &mut other));
    kept.disk.set(Mood::Well);
    let answer = client.take(24);
    assert_eq!(answer[..2], [0x81, NOOP]);
}

/// Each of these writes reaches the database in a different way: as an operation, by a visitor, by
/// a removal of all records, and in a background job.
#[test]
fn tyrant_replies_wait_until_writes_are_synced() {
    let put = TyrantRequest::Put { mode: TyrantPutMode::Put, key: b"k", value: b"v" };
    let add = TyrantRequest::AddInt { key: b"n", delta: 5 };
    let protocols = ProtocolOptions {
        tyrant: TyrantOptions { spoken: TyrantMode::Binary, ..TyrantOptions::default() },
        ..options().protocols
    };
    let kept = start_with(SyncPolicy::Always, ServerOptions { protocols, ..options() });
    let mut other = kept.server.connect();
    kept.disk.set(Mood::Hangs);
    let requests = [
        (put, &[0][..]),
        (add, &[0, 0, 0, 0, 5]),
        (TyrantRequest::Vanish, &[0]),
        (TyrantRequest::Sync, &[0]),
    ];
    let waiting: Vec<_> = requests
        .into_iter()
        .map(|(request, reply)| {
            let (mut client, mut bytes) = (kept.server.connect(), Vec::new());
            request.encode(&mut bytes);
            client.send(&bytes);
            assert!(says_nothing(&client, &mut other), "{request:?}");
            (client, reply)
        })
        .collect();
    kept.disk.set(Mood::Well);
    waiting.into_iter().for_each(|(mut client, reply)| client.expect(reply));
}

const FLOOD_VALUE: usize = 60_000;

/// Sends `sets` writes with `noreply`.
fn flood(client: &Client, sets: usize) -> JoinHandle<()> {
    let mut stream = client.stream.try_clone().unwrap();
    std::thread::spawn(move || {
        let head = format!("set k 0 0 {FLOOD_VALUE} noreply\r\n");
        let set = [head.as_bytes(), &[b'v'; FLOOD_VALUE], b"\r\n"].concat();
        (0..sets).for_each(|_| stream.write_all(&set).unwrap());
    })
}

/// Waits until more than `least` bytes wait for the disk and their number no longer grows. Returns
/// it.
fn settled_backlog(client: &mut Client, least: u64) -> u64 {
    let mut waiting = || client.stat("todana_log_unsynced_bytes").parse::<u64>().unwrap();
    eventually("much waits", || waiting() > least);
    // The one worker has had many turns meanwhile, and has read no more.
    let (mut last, mut alike) = (0, 0);
    while alike < 100 {
        let now = waiting();
        alike = if now == last { alike + 1 } else { 0 };
        last = now;
    }
    last
}

/// The server must stop reading from a client that requests no replies, because no pending reply
/// would ever delay this client.
#[test]
fn noreply_client_waits_at_the_unsynced_limit() {
    const MIB: u64 = 1 << 20;
    for sync in [SyncPolicy::Always, SyncPolicy::Every(Duration::from_secs(1)), SyncPolicy::Never] {
        let kept = start(sync);
        let (mut client, mut other) = (kept.server.connect(), kept.server.connect());
        kept.disk.set(Mood::Hangs);
        let flood = flood(&client, 1_600);
        let waiting = settled_backlog(&mut other, 32 * MIB);
        assert!(waiting < 34 * MIB, "{waiting} bytes wait, {sync:?}");
        assert!(!flood.is_finished());
        kept.disk.set(Mood::Well);
        flood.join().unwrap();
        client.send(b"get k\r\n");
        assert_eq!(client.line(), format!("VALUE k 0 {FLOOD_VALUE}\r\n"));
    }
}

#[test]
fn reads_do_not_wait_for_the_disk() {
    let kept = start_with(
        SyncPolicy::Always,
        ServerOptions {
            protocols: ProtocolOptions { negative_is_sliding: true, ..options().protocols },
            ..options()
        },
    );
    let (mut client, mut other) = (kept.server.connect(), kept.server.connect());
    for key in ["gets", "me", "mg", "plain"] {
        client.set(key.as_bytes(), b"v");
    }
    client.send(b"set sliding 0 -1000 1\r\nv\r\n");
    client.expect(b"STORED\r\n");
    kept.disk.set(Mood::Hangs);
    other.send(b"set waits 0 0 1\r\nv\r\n");
    eventually("it waits", || {
        client.send(b"get waits\r\n");
        client.line() != "END\r\n" && client.take(8) == b"v\r\nEND\r\n"[..8]
    });
    let reads = |client: &mut Client| {
        client.expect_value(b"plain", b"v");
        // Each of these commands gives a version to a record that has none.
        client.send(b"gets gets\r\n");
        let line = client.line();
        assert!(line.starts_with("VALUE gets 0 1 "), "{line}");
        client.expect(b"v\r\nEND\r\n");
        client.send(b"mg mg c\r\n");
        let line = client.line();
        assert!(line.starts_with("HD c"), "{line}");
        client.send(b"me me\r\n");
        let line = client.line();
        assert!(line.starts_with("ME me ") && line.contains("cas="), "{line}");
        client.expect_value(b"sliding", b"v");
        line
    };
    let first = reads(&mut client);
    // The version that is shown does not change while the first one waits for the disk.
    assert_eq!(reads(&mut client), first);
    kept.disk.set(Mood::Fails);
    assert_eq!(other.line(), "SERVER_ERROR cannot write the update log\r\n");
    assert_eq!(other.rest(), b"");
    // The reader is not disconnected.
    assert_eq!(reads(&mut client), first);
    let mut other = kept.server.connect();
    other.send(b"set k 0 0 1\r\nv\r\n");
    assert_eq!(other.line(), "SERVER_ERROR cannot write the update log\r\n");
    reads(&mut other);
}

/// The client would read an error line as a part of the list.
#[test]
fn refusal_is_not_written_into_a_begun_list() {
    let kept = start(SyncPolicy::Always);
    let mut client = kept.server.connect();
    let value = vec![b'v'; 30_000];
    for key in ["first", "second", "third", "fourth", "fifth"] {
        client.set(key.as_bytes(), &value);
    }
    // The part of the reply that fits a buffer is sent, and then the log cannot be written.
    kept.disk.set(Mood::FailsFrom(b"fourth"));
    client.send(b"gat 1000 first second third fourth fifth\r\n");
    for key in ["first", "second", "third"] {
        client.expect(format!("VALUE {key} 0 30000\r\n").as_bytes());
        client.expect(&value);
        client.expect(b"\r\n");
    }
    assert_eq!(client.rest().escape_ascii().to_string(), "");
}

/// In an earlier version, both connections were closed without an error, so their clients could not
/// know that their writes were lost.
#[test]
fn watcher_and_export_are_sent_the_refusal() {
    for request in ["watch mutations", "todana backup"] {
        let kept = start(SyncPolicy::Always);
        let (mut client, mut other) = (kept.server.connect(), kept.server.connect());
        kept.disk.set(Mood::Hangs);
        client.send(format!("set k 0 0 1 noreply\r\nv\r\n{request}\r\n").as_bytes());
        assert!(says_nothing(&client, &mut other), "{request}");
        kept.disk.set(Mood::Fails);
        assert_eq!(client.line(), "SERVER_ERROR cannot write the update log\r\n", "{request}");
        assert_eq!(client.rest().escape_ascii().to_string(), "", "{request}");
    }
}

#[test]
fn stop_with_a_hanging_disk_reports_possible_loss() {
    let mut kept = start_with(
        SyncPolicy::Always,
        ServerOptions { listen: ListenOptions { udp_port: Some(0), ..options().listen }, ..options() },
    );
    let (mut client, mut other) = (kept.server.connect(), kept.server.connect());
    kept.disk.set(Mood::Hangs);
    // While the first write waits for the disk, its worker continues. While the second one waits,
    // its thread is blocked.
    client.send(b"set k 0 0 1\r\nv\r\n");
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagram = [&[0, 1, 0, 0, 0, 1, 0, 0][..], b"set u 0 0 1\r\nv\r\n"].concat();
    datagrams.send_to(&datagram, kept.server.udp_addresses[0]).unwrap();
    for key in ["k", "u"] {
        eventually("it is there", || {
            other.send(format!("get {key}\r\n").as_bytes());
            other.line() != "END\r\n" && other.take(8) == b"v\r\nEND\r\n"[..8]
        });
    }
    // The second call must end the server at once.
    kept.server.handle.stop();
    kept.server.handle.stop();
    eventually("it ends", || kept.server.has_ended());
    let error = kept.server.outcome().unwrap_err().to_string();
    let len = error.strip_prefix("update log: the disk has not answered; ");
    let len = len.and_then(|rest| rest.strip_suffix(" bytes of writes are not known to be on disk"));
    assert!(len.is_some_and(|len| len.parse::<u64>().unwrap() > 0), "{error}");
    assert_eq!(client.rest(), b"", "it was not acknowledged");
}

#[test]
fn stop_during_recovery_leaves_the_data_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let data = Some(DataDirectoryOptions::new(folder.path().into(), SyncPolicy::Never));
    let options = || ServerOptions {
        listen: ListenOptions { port: 0, ..options().listen },
        databases: DatabaseOptions { data: data.clone(), ..options().databases },
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    };
    {
        let mut server = Running::start(options());
        let mut client = server.connect();
        for n in 0..100u32 {
            client.set(n.to_string().as_bytes(), &[b'v'; 50_000]);
        }
        server.handle.stop();
        server.join();
    }
    let admin = Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() });
    let mut server = Server::bind(ServerOptions {
        observation: ObservationOptions { admin, ..options().observation },
        ..options()
    })
    .unwrap();
    let (handle, pages) = (server.handle(), server.admin_addresses()[0]);
    let mut told = 0;
    let outcome = server.load(&mut |_| {
        told += 1;
        assert_eq!(page(pages, "/healthz"), "200 loading\n");
        assert_eq!(page(pages, "/readyz"), "503 loading\n");
        assert_eq!(metric(pages, "todana_loading"), "1");
        handle.stop();
    });
    assert_eq!(outcome.err().map(|error| error.kind()), Some(io::ErrorKind::Interrupted));
    assert_eq!(told, 1);
    assert_eq!(page(pages, "/readyz"), "503 stopping\n");
    drop(server);
    let server = Running::start(options());
    let mut client = server.connect();
    assert_eq!(client.stat("curr_items"), "100");
    client.expect_value(b"99", &[b'v'; 50_000]);
}

fn page(pages: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(pages).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    format!("{} {body}", head.split(' ').nth(1).unwrap())
}

fn metric(pages: SocketAddr, name: &str) -> String {
    let page = page(pages, "/metrics/totals");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing")).to_string()
}

#[test]
fn full_disk_is_reported_until_it_has_room() {
    let admin = Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() });
    let kept = start_with(
        SyncPolicy::Always,
        ServerOptions { observation: ObservationOptions { admin, ..options().observation }, ..options() },
    );
    let pages = kept.server.admin_addresses[0];
    let mut client = kept.server.connect();
    client.set(b"before", b"v");
    assert_eq!(page(pages, "/readyz"), "200 ready\n");
    assert_eq!(client.stat("todana_sync"), "always");
    assert_eq!(client.stat("todana_log_health"), "well");
    assert_eq!(client.stat("todana_log_unsynced_bytes"), "0");
    assert_eq!(client.stat("todana_log_end"), client.stat("todana_log_synced"));
    assert_eq!(metric(pages, "todana_log_takes_writes"), "1");
    kept.disk.set(Mood::Full);
    // It is unknown whether this write is on disk, and it is the first one that the disk refuses.
    // Its client gets the error.
    client.send(b"set during 0 0 1\r\nv\r\n");
    assert_eq!(client.line(), "SERVER_ERROR cannot write the update log\r\n");
    assert_eq!(client.rest(), b"");
    let mut client = kept.server.connect();
    for request in ["set k 0 0 1\r\nv\r\n", "delete before\r\n", "touch before 9\r\n", "flush_all\r\n"] {
        client.send(request.as_bytes());
        assert_eq!(client.line(), "SERVER_ERROR cannot write the update log\r\n", "{request}");
    }
    client.expect_value(b"before", b"v");
    assert_eq!(page(pages, "/readyz"), "503 no writes\n");
    assert_eq!(page(pages, "/healthz"), "200 ok\n");
    assert_eq!(client.stat("todana_log_health"), "stuck");
    assert_eq!(client.stat("todana_log_refusals"), "4");
    assert_eq!(metric(pages, "todana_log_refused_writes_total"), "4");
    assert_eq!(metric(pages, "todana_log_takes_writes"), "0");
    kept.disk.set(Mood::Well);
    eventually("it writes again", || client.stat("todana_log_health") == "well");
    client.set(b"after", b"v");
    assert_eq!(page(pages, "/readyz"), "200 ready\n");
}

#[test]
fn server_with_unreadable_data_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("identity"), b"not one").unwrap();
    let admin = Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() });
    let data = Some(DataDirectoryOptions::new(folder.path().into(), SyncPolicy::Never));
    let mut server = Server::bind(ServerOptions {
        listen: ListenOptions { port: 0, ..options().listen },
        databases: DatabaseOptions { data, ..options().databases },
        observation: ObservationOptions { admin, ..options().observation },
        ..options()
    })
    .unwrap();
    let pages = server.admin_addresses()[0];
    let error = server.load(&mut |_| ()).expect_err("it is damaged").to_string();
    assert!(error.contains("identity"), "{error}");
    assert_eq!(page(pages, "/readyz"), "503 no data\n");
    assert_eq!(page(pages, "/healthz"), "200 ok\n");
    assert_eq!(metric(pages, "todana_loading"), "0");
}

#[test]
fn unsynced_bytes_are_limited_by_the_memory_limit() {
    const MIB: u64 = 1 << 20;
    let kept = start_with(
        SyncPolicy::Never,
        ServerOptions { memory: MemoryOptions { limit_mib: 1024, ..options().memory }, ..options() },
    );
    let small = start_with(
        SyncPolicy::Never,
        ServerOptions { memory: MemoryOptions { limit_mib: 64, ..options().memory }, ..options() },
    );
    for (kept, least, most) in [(kept, 32 * MIB, 34 * MIB), (small, 4 * MIB, 6 * MIB)] {
        let (client, mut other) = (kept.server.connect(), kept.server.connect());
        kept.disk.set(Mood::Hangs);
        let flood = flood(&client, 1_600);
        let waiting = settled_backlog(&mut other, least);
        assert!(waiting < most, "{waiting}");
        kept.disk.set(Mood::Well);
        flood.join().unwrap();
    }
}

#[test]
fn checkpoints_and_files_are_reported_accurately() {
    let admin = Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() });
    let kept = start_with(
        SyncPolicy::Always,
        ServerOptions { observation: ObservationOptions { admin, ..options().observation }, ..options() },
    );
    let pages = kept.server.admin_addresses[0];
    let mut client = kept.server.connect();
    for key in ["a", "b", "c"] {
        client.set(key.as_bytes(), &[b'v'; 1_000]);
    }
    for name in ["todana_checkpoints", "todana_checkpoints_made", "todana_last_checkpoint_time"] {
        assert_eq!(client.stat(name), "0", "{name}");
    }
    client.send(b"todana checkpoint\r\n");
    let line = client.line();
    let told = |name: &str| {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.unwrap_or_else(|| panic!("{line}")).to_string()
    };
    let sum = |folder: &str| -> (usize, u64) {
        let files = std::fs::read_dir(kept.folder.path().join(folder)).unwrap();
        let lens: Vec<u64> = files.map(|file| file.unwrap().metadata().unwrap().len()).collect();
        (lens.len(), lens.iter().sum())
    };
    let (checkpoints, log) = (sum("checkpoints"), sum("log"));
    for (statistic, metric_name, expected) in [
        ("todana_checkpoints", "todana_checkpoints", checkpoints.0.to_string()),
        ("todana_checkpoint_bytes", "todana_checkpoint_bytes", checkpoints.1.to_string()),
        ("todana_checkpoints_made", "todana_checkpoints_made_total", "1".into()),
        ("todana_checkpoints_failed", "todana_checkpoints_failed_total", "0".into()),
        ("todana_last_checkpoint_bytes", "todana_last_checkpoint_bytes", told("bytes")),
        ("todana_last_checkpoint_records", "todana_last_checkpoint_records", "3".into()),
        ("todana_log_segments", "todana_log_segments", log.0.to_string()),
        ("todana_log_bytes", "todana_log_bytes", log.1.to_string()),
        ("todana_log_end", "todana_log_appended_bytes_total", told("position")),
    ] {
        assert_eq!(client.stat(statistic), expected, "{statistic}");
        assert_eq!(metric(pages, metric_name), expected, "{metric_name}");
    }
    assert_eq!(checkpoints, (1, told("bytes").parse().unwrap()));
    let made = client.stat("todana_last_checkpoint_time").parse::<u64>().unwrap();
    assert!(client.stat("time").parse::<u64>().unwrap().abs_diff(made) < 60);
    // A failed checkpoint is counted, and the previous one stays the newest.
    kept.disk.set(Mood::Full);
    client.send(b"todana checkpoint\r\n");
    let line = client.line();
    // The error does not contain the server's paths.
    assert!(line.starts_with("SERVER_ERROR ") && line.contains(": cannot write to it: "), "{line}");
    assert!(!line.contains(kept.folder.path().to_str().unwrap()) && !line.contains(" /"), "{line}");
    assert_eq!(client.stat("todana_checkpoints_failed"), "1");
    assert_eq!(client.stat("todana_checkpoints_made"), "1");
    assert_eq!(client.stat("todana_last_checkpoint_time"), made.to_string());
}
