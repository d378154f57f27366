//! Tests memcached's commands with every engine, several databases, and the replies while a disk is
//! slow or fails.

mod running;
#[path = "../../tests/swayed_disk/mod.rs"]
mod swayed_disk;

use running::{Client, Running, eventually, options};
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use swayed_disk::{Sway, Swayed};
use todana_server::{
    AdminOptions, DataDirectoryOptions, DatabaseKind, DatabaseName, DatabaseOptions, DatabaseSpec,
    LimitOptions, ListenOptions, MemoryOptions, ObservationOptions, ProtocolOptions, Server, ServerOptions,
    SyncPolicy,
};

/// The outcome of syncs and, in some states, of writes. All other operations of the disk succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Syncs {
    #[default]
    Succeed,
    Hang,
    Fail,
    /// Syncs succeed, but writes find no space.
    Full,
    /// Writes and syncs hang.
    WritesHang,
    /// Writes and syncs succeed after a while.
    Slow,
}

/// The time that a slow disk takes for one operation. Closing a hash takes about fifty operations.
const SLOW: std::time::Duration = std::time::Duration::from_millis(60);

#[derive(Clone, Default)]
struct MoodyDisk(Arc<(Mutex<Syncs>, Condvar, AtomicU64)>);

impl MoodyDisk {
    fn set(&self, syncs: Syncs) {
        *self.0.0.lock().unwrap() = syncs;
        self.0.1.notify_all();
    }

    /// Returns the number of syncs that have begun.
    fn begun(&self) -> u64 {
        self.0.2.load(Ordering::SeqCst)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.2.fetch_add(1, Ordering::SeqCst);
        let guard = self.0.0.lock().unwrap();
        let hangs = |syncs: &mut Syncs| matches!(syncs, Syncs::Hang | Syncs::WritesHang);
        match *self.0.1.wait_while(guard, hangs).unwrap() {
            Syncs::Slow => {
                std::thread::sleep(SLOW);
                Ok(())
            }
            Syncs::Fail => Err(io::Error::other("the disk has failed")),
            _ => Ok(()),
        }
    }
}

impl Sway for MoodyDisk {
    fn writes(&self, _: &[IoSlice<'_>]) -> io::Result<()> {
        let guard = self.0.0.lock().unwrap();
        if *guard == Syncs::WritesHang {
            self.0.2.fetch_add(1, Ordering::SeqCst);
        }
        match *self.0.1.wait_while(guard, |syncs| *syncs == Syncs::WritesHang).unwrap() {
            Syncs::Slow => {
                std::thread::sleep(SLOW);
                Ok(())
            }
            Syncs::Full => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn syncs(&self) -> io::Result<bool> {
        self.sync().map(|()| true)
    }

    fn syncs_directory(&self) -> io::Result<bool> {
        self.sync().map(|()| true)
    }
}

fn further(text: &str, sync: SyncPolicy) -> DatabaseSpec {
    let name = DatabaseName::parse(text).unwrap();
    let path = name.path.clone().filter(|_| name.kind == DatabaseKind::DiskTree);
    DatabaseSpec { data: path.map(|path| DataDirectoryOptions::new(path, sync)), name }
}

/// Returns the options of a server with these databases.
fn serving(names: &[&str], sync: SyncPolicy) -> ServerOptions {
    let mut all: Vec<DatabaseSpec> = names.iter().map(|name| further(name, sync)).collect();
    let first = all.remove(0);
    ServerOptions {
        databases: DatabaseOptions {
            database: Some(first.name),
            data: first.data,
            sync,
            further: all,
            ..options().databases
        },
        limits: LimitOptions { threads: 2, ..options().limits },
        ..options()
    }
}

/// Returns a name for each kind of database, in a folder.
fn every_kind(folder: &Path) -> Vec<String> {
    let at = |name: &str| folder.join(name).display().to_string();
    vec!["mem:hash".into(), "mem:tree".into(), at("x.hash"), at("x.tree"), at("x.kch"), at("x.tcb")]
}

/// Sends memcached's commands and expects the same replies from every engine.
fn converse(client: &mut Client) {
    for (request, answer) in [
        ("set a 5 0 1\r\n1\r\n", "STORED\r\n"),
        ("add a 0 0 1\r\n2\r\n", "NOT_STORED\r\n"),
        ("append a 0 0 1\r\n2\r\n", "STORED\r\n"),
        ("incr a 30\r\n", "42\r\n"),
        ("get a nope\r\n", "VALUE a 5 2\r\n42\r\nEND\r\n"),
        ("mg a v f s\r\n", "VA 2 f5 s2\r\n42\r\n"),
        ("ms b 1 T100\r\nx\r\n", "HD\r\n"),
        ("mg b t\r\n", "HD t100\r\n"),
        ("touch b -1\r\n", "TOUCHED\r\n"),
        ("get b\r\n", "END\r\n"),
        ("cas a 0 0 1 999999\r\nz\r\n", "EXISTS\r\n"),
        ("delete a\r\n", "DELETED\r\n"),
        ("delete a\r\n", "NOT_FOUND\r\n"),
        ("set quiet 0 0 1 noreply\r\nq\r\nget quiet\r\n", "VALUE quiet 0 1\r\nq\r\nEND\r\n"),
        ("flush_all\r\n", "OK\r\n"),
        ("get quiet\r\n", "END\r\n"),
        ("set c 0 0 1\r\n7\r\n", "STORED\r\n"),
    ] {
        client.send(request.as_bytes());
        client.expect(answer.as_bytes());
    }
}

#[test]
fn memcached_commands_answer_alike_on_every_database_kind() {
    let folder = tempfile::tempdir().unwrap();
    for sync in [SyncPolicy::Always, SyncPolicy::Never] {
        for name in every_kind(folder.path()) {
            let server = Running::start(serving(&[&name], sync));
            let mut client = server.connect();
            client.send(b"flush_all\r\n");
            client.expect(b"OK\r\n");
            converse(&mut client);
            assert_eq!(client.stat("curr_items"), "1", "{name}");
            for group in [" items", " slabs", " settings", " sizes", " conns", " reset", ""] {
                client.send(format!("stats{group}\r\n").as_bytes());
                let mut line = client.line();
                while line.starts_with("STAT ") {
                    line = client.line();
                }
                assert!(["END\r\n", "RESET\r\n"].contains(&line.as_str()), "{name}: stats{group}: {line}");
            }
            client.send(b"lru_crawler metadump all\r\n");
            client.expect(b"OK\r\n");
            let listed = client.line();
            assert!(listed.starts_with("key=c "), "{name}: {listed}");
            client.expect(b"END\r\n");
        }
    }
}

/// The files of a hash cannot store a planned flush, so the server refuses it.
#[test]
fn planned_flush_of_a_hash_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in every_kind(folder.path()) {
        let server = Running::start(serving(&[&name], SyncPolicy::Never));
        let mut client = server.connect();
        client.set(b"a", b"1");
        client.send(b"flush_all 100\r\n");
        if name.ends_with(".hash") || name.ends_with(".kch") {
            client.expect(b"SERVER_ERROR this database keeps no plan of a flush: flush at once\r\n");
        } else {
            client.expect(b"OK\r\n");
        }
        client.expect_value(b"a", b"1");
        client.send(b"flush_all 0\r\nget a\r\n");
        client.expect(b"OK\r\nEND\r\n");
    }
}

#[test]
fn mebibyte_values_round_trip_on_every_database_kind() {
    let folder = tempfile::tempdir().unwrap();
    let value: Vec<u8> = (0..900_000u32).map(|number| ((number * 7) >> 3) as u8).collect();
    for (number, name) in every_kind(folder.path()).into_iter().enumerate() {
        let server = Running::start(serving(&[&name], SyncPolicy::Never));
        let mut client = server.connect();
        client.set(b"long", &value);
        client.send(b"append long 0 0 3\r\nend\r\n");
        client.expect(b"STORED\r\n");
        client.expect_value(b"long", &[&value[..], b"end"].concat());
        client.send(b"set long 0 0 2000000\r\n");
        client.send(&vec![0; 2_000_002]);
        client.expect(b"SERVER_ERROR object too large for cache\r\n");
        // A cache removes a record that could not be replaced, as memcached does. A database on
        // disk keeps it.
        if number < 2 {
            client.send(b"get long\r\n");
            client.expect(b"END\r\n");
        } else {
            client.expect_value(b"long", &[&value[..], b"end"].concat());
        }
    }
}

/// An engine on disk does not limit the memory of long values that wait to be written. The server
/// does.
#[test]
fn long_value_without_room_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("x.hash").display().to_string();
    let options = ServerOptions {
        memory: MemoryOptions { limit_mib: 64, ..serving(&[&name], SyncPolicy::Never).memory },
        limits: LimitOptions { item_size_max: 32 << 20, ..serving(&[&name], SyncPolicy::Never).limits },
        ..serving(&[&name], SyncPolicy::Never)
    };
    let server = Running::start(options);
    let mut client = server.connect();
    client.send(b"set long 0 0 30000000\r\n");
    for _ in 0..30 {
        client.send(&vec![b'x'; 1_000_000]);
    }
    client.send(b"\r\n");
    let line = client.line();
    assert!(line.starts_with("SERVER_ERROR "), "{line}");
    client.set(b"short", b"1");
    client.expect_value(b"short", b"1");
}

#[test]
fn records_survive_a_restart_on_every_disk_kind() {
    let folder = tempfile::tempdir().unwrap();
    for name in every_kind(folder.path()).split_off(2) {
        for round in 0..3 {
            let mut server = Running::start(serving(&[&name], SyncPolicy::Never));
            let mut client = server.connect();
            for earlier in 0..round {
                client.expect_value(format!("k{earlier}").as_bytes(), b"value");
            }
            client.set(format!("k{round}").as_bytes(), b"value");
            assert_eq!(client.stat("curr_items"), (round + 1).to_string(), "{name}");
            server.handle.stop();
            drop(client);
            server.join();
        }
    }
}

/// Returns true if the server has read everything that was sent and has not replied.
fn says_nothing(client: &Client, other: &mut Client) -> bool {
    for _ in 0..50 {
        other.expect_version();
    }
    client.stream.set_nonblocking(true).unwrap();
    let outcome = client.stream.peek(&mut [0]);
    client.stream.set_nonblocking(false).unwrap();
    outcome.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

struct Moody {
    server: Running,
    disk: MoodyDisk,
    _folder: tempfile::TempDir,
}

impl Drop for Moody {
    fn drop(&mut self) {
        // Lets all operations succeed, so that nothing hangs at the end of a test.
        self.disk.set(Syncs::Succeed);
    }
}

/// Starts a server of one worker with a hash on a disk whose state the test sets.
fn moody(sync: SyncPolicy) -> Moody {
    moody_of("x.hash", sync)
}

/// Starts the same server with any kind of database on disk.
fn moody_of(name: &str, sync: SyncPolicy) -> Moody {
    let folder = tempfile::tempdir().unwrap();
    let disk = MoodyDisk::default();
    let name = folder.path().join(name).display().to_string();
    let admin = Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() });
    let options = ServerOptions {
        listen: ListenOptions { port: 0, ..serving(&[&name], sync).listen },
        observation: ObservationOptions { admin, ..serving(&[&name], sync).observation },
        limits: LimitOptions { threads: 1, ..serving(&[&name], sync).limits },
        ..serving(&[&name], sync)
    };
    let server = Server::bind_on(options, None, Arc::new(Swayed(disk.clone()))).unwrap();
    Moody { server: Running::of(server), disk, _folder: folder }
}

#[test]
fn synced_write_delays_only_its_own_client() {
    let moody = moody(SyncPolicy::Always);
    let (mut client, mut other) = (moody.server.connect(), moody.server.connect());
    client.set(b"a", b"1");
    moody.disk.set(Syncs::Hang);
    client.send(b"set a 0 0 1\r\n2\r\n");
    assert!(says_nothing(&client, &mut other));
    // The same worker serves reads meanwhile, and more can be written.
    other.expect_value(b"a", b"2");
    let mut third = moody.server.connect();
    third.send(b"set b 0 0 1\r\n1\r\n");
    third.send(b"delete a\r\n");
    assert!(says_nothing(&third, &mut other));
    moody.disk.set(Syncs::Succeed);
    client.expect(b"STORED\r\n");
    third.expect(b"STORED\r\nDELETED\r\n");
}

#[test]
fn interval_writes_do_not_wait_for_the_disk() {
    let moody = moody(SyncPolicy::Every(std::time::Duration::from_millis(1)));
    let mut client = moody.server.connect();
    moody.disk.set(Syncs::Hang);
    let begun = moody.disk.begun();
    client.set(b"first", b"1");
    eventually("a sync, which hangs", || moody.disk.begun() > begun);
    for number in 0..100 {
        client.set(format!("k{number}").as_bytes(), b"1");
    }
    moody.disk.set(Syncs::Succeed);
}

#[test]
fn writes_wait_while_the_disk_is_full() {
    for sync in [SyncPolicy::Always, SyncPolicy::Every(std::time::Duration::from_millis(1))] {
        let moody = moody(sync);
        let mut client = moody.server.connect();
        client.set(b"a", b"1");
        moody.disk.set(Syncs::Full);
        eventually("a refusal", || {
            let mut writer = moody.server.connect();
            writer.send(b"set b 0 0 1\r\n2\r\n");
            writer.line().starts_with("SERVER_ERROR cannot write ")
        });
        client.expect_value(b"a", b"1");
        assert_eq!(client.stat("todana_log_health"), "stuck");
        assert_eq!(client.stat("todana_log_takes_writes"), "0");
        moody.disk.set(Syncs::Succeed);
        eventually("room", || client.stat("todana_log_health") == "well");
        assert_eq!(client.stat("todana_log_takes_writes"), "1");
        client.set(b"a", b"3");
        client.expect_value(b"a", b"3");
        // The write was accepted and waited for the disk. With the other policies, the disk may
        // have been found full before the write arrived.
        if sync == SyncPolicy::Always {
            client.expect_value(b"b", b"2");
        }
    }
}

#[test]
fn stop_ends_although_the_database_disk_hangs() {
    for name in ["x.hash", "x.tree"] {
        for sync in
            [SyncPolicy::Always, SyncPolicy::Every(std::time::Duration::from_millis(1)), SyncPolicy::Never]
        {
            let mut moody = moody_of(name, sync);
            let mut client = moody.server.connect();
            client.set(b"a", b"1");
            moody.disk.set(Syncs::Hang);
            client.send(b"set a 0 0 1\r\n2\r\n");
            // The second call of `stop` shortens the wait for the disk.
            moody.server.handle.stop();
            moody.server.handle.stop();
            eventually(&format!("the end of {name}, {sync:?}"), || moody.server.has_ended());
            // A tree has an update log, which every mode except `Never` has synced before.
            let outcome = moody.server.outcome();
            if name == "x.hash" {
                let error = outcome.unwrap_err().to_string();
                assert!(error.contains("may be lost"), "{name}, {sync:?}: {error}");
            }
        }
    }
}

/// The disk is slow but responds, so the server waits until the pending records are written.
#[test]
fn second_stop_waits_for_a_slow_disk() {
    let mut moody = moody_of("x.hash", SyncPolicy::Never);
    let mut client = moody.server.connect();
    client.set(b"a", b"1");
    moody.disk.set(Syncs::Slow);
    let since = std::time::Instant::now();
    moody.server.handle.stop();
    moody.server.handle.stop();
    moody.server.outcome().unwrap();
    // If the server ended faster, the test would not show that it waited.
    assert!(since.elapsed() > 20 * SLOW, "{:?}", since.elapsed());
}

/// A stop once waited endlessly for a worker, or for the UDP thread, that wrote to a hash.
#[test]
fn stop_ends_although_a_write_hangs() {
    for over_udp in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let disk = MoodyDisk::default();
        let name = folder.path().join("x.hash").display().to_string();
        let admin = Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() });
        let udp_port = over_udp.then_some(0);
        let options = ServerOptions {
            listen: ListenOptions { port: 0, udp_port, ..serving(&[&name], SyncPolicy::Never).listen },
            observation: ObservationOptions { admin, ..serving(&[&name], SyncPolicy::Never).observation },
            limits: LimitOptions {
                threads: 1,
                item_size_max: 8 << 20,
                ..serving(&[&name], SyncPolicy::Never).limits
            },
            ..serving(&[&name], SyncPolicy::Never)
        };
        let server = Server::bind_on(options, None, Arc::new(Swayed(disk.clone()))).unwrap();
        let udp_address = server.udp_addresses().first().copied();
        let mut moody = Moody { server: Running::of(server), disk, _folder: folder };
        let mut client = moody.server.connect();
        client.set(b"a", b"1");
        moody.disk.set(Syncs::WritesHang);
        let begun = moody.disk.begun();
        match udp_address {
            // This is more than the engine collects before it writes.
            None => client.send(&[b"set a 0 0 4000000\r\n", &[b'x'; 4_000_000][..], b"\r\n"].concat()),
            Some(address) => {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                let datagram = |number: u32| {
                    let head = format!("\0\x01\0\0\0\x01\0\0set k{number} 0 0 50000\r\n");
                    [head.as_bytes(), &[b'x'; 50_000], b"\r\n"].concat()
                };
                // The background also hands collected writes to the operating system.
                for number in 0..40 {
                    socket.send_to(&datagram(number), address).unwrap();
                }
            }
        }
        eventually("a write that hangs", || moody.disk.begun() > begun);
        // The second call of `stop` shortens the wait for the disk.
        moody.server.handle.stop();
        moody.server.handle.stop();
        eventually("the end", || moody.server.has_ended());
        let error = moody.server.outcome().unwrap_err().to_string();
        assert!(error.contains("x.hash") && error.contains("may be lost"), "{error}");
    }
}

fn page(server: &Running, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.admin_addresses[0]).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn failed_sync_is_reported_to_writers_and_watchers() {
    let moody = moody(SyncPolicy::Always);
    let (mut client, mut other) = (moody.server.connect(), moody.server.connect());
    client.set(b"a", b"1");
    assert!(page(&moody.server, "/readyz").contains("ready\n"));
    moody.disk.set(Syncs::Fail);
    client.send(b"set a 0 0 1\r\n2\r\n");
    client.expect(b"SERVER_ERROR cannot write the files of the database\r\n");
    assert!(client.rest().is_empty());
    other.send(b"set b 0 0 1\r\n2\r\n");
    other.expect(b"SERVER_ERROR cannot write the files of the database\r\n");
    let mut other = moody.server.connect();
    other.expect_value(b"a", b"2");
    assert_eq!(other.stat("todana_log_health"), "lost");
    assert_eq!(other.stat("todana_log_takes_writes"), "0");
    assert!(page(&moody.server, "/readyz").contains("no writes\n"));
    let metrics = page(&moody.server, "/metrics");
    assert!(
        metrics
            .lines()
            .any(|line| { line.starts_with("todana_database_takes_writes{db=") && line.ends_with("} 0") })
    );
}

#[test]
fn failed_interval_sync_ends_writing() {
    let moody = moody(SyncPolicy::Every(std::time::Duration::from_millis(1)));
    let mut client = moody.server.connect();
    moody.disk.set(Syncs::Fail);
    eventually("a refusal", || {
        client.send(b"set a 0 0 1\r\n2\r\n");
        client.line() == "SERVER_ERROR cannot write the files of the database\r\n"
    });
}

/// Every database keeps its records over a restart, and the statistics list every database.
#[test]
fn memcached_commands_use_the_first_of_several_databases() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let names = ["mem:tree".to_string(), format!("carts={}", at("x.hash")), at("y.tree")];
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for _ in 0..2 {
        let admin = Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() });
        let mut server = Running::start(ServerOptions {
            observation: ObservationOptions { admin, ..serving(&names, SyncPolicy::Never).observation },
            ..serving(&names, SyncPolicy::Never)
        });
        let mut client = server.connect();
        client.set(b"a", b"1");
        let told: Vec<(String, String)> = client.stats(" databases");
        let of = |name: &str| {
            let found = told.iter().find(|(found, _)| found == name);
            found.unwrap_or_else(|| panic!("{name}: {told:?}")).1.clone()
        };
        assert_eq!(["0:kind", "1:kind", "2:kind"].map(of), ["mem:tree", "disk:hash", "disk:tree"]);
        assert_eq!(["0:records", "1:records", "2:records"].map(of), ["1", "0", "0"]);
        assert_eq!((of("1:name"), of("2:name")), ("carts".to_string(), names[2].to_string()));
        let one = client.stats(" databases carts");
        assert!(one.len() > 5 && one.iter().all(|(name, _)| name.starts_with("1:")), "{one:?}");
        assert!(client.stats(" databases nope").is_empty());
        let metrics = page(&server, "/metrics");
        assert!(metrics.contains("todana_database_records{db=\"mem:tree\"} 1\n"), "{metrics}");
        assert!(metrics.contains("todana_database_records{db=\"carts\"} 0\n"), "{metrics}");
        server.handle.stop();
        drop(client);
        server.join();
    }
}

#[test]
fn background_maintains_every_database() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let sync = SyncPolicy::Always;
    let kept = |name: &str, directory: &Path| DatabaseSpec {
        name: DatabaseName::parse(name).unwrap(),
        data: Some(DataDirectoryOptions::new(directory.into(), sync)),
    };
    let all = || {
        vec![
            further(at("x.hash").to_str().unwrap(), sync),
            further(at("x.tree").to_str().unwrap(), sync),
            kept("m=mem:hash", &at("hash")),
            kept("t=mem:tree", &at("tree")),
        ]
    };
    for one in all() {
        let DatabaseSpec { name, data } = one;
        let mut server = Running::start(ServerOptions {
            databases: DatabaseOptions { database: Some(name), data, sync, ..options().databases },
            ..options()
        });
        let mut client = server.connect();
        for number in 0..10 {
            client.send(format!("set mortal{number} 0 1000 1\r\nx\r\n").as_bytes());
            client.expect(b"STORED\r\n");
        }
        client.set(b"stays", b"1");
        server.handle.stop();
        drop(client);
        server.join();
    }
    let admin = Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() });
    let options = ServerOptions {
        protocols: ProtocolOptions { debug_commands: true, ..options().protocols },
        databases: DatabaseOptions { further: all(), sync, ..options().databases },
        observation: ObservationOptions { admin, ..options().observation },
        ..options()
    };
    let server = Running::start(options);
    let mut client = server.connect();
    let told = |client: &mut Client, what: &str| -> Vec<String> {
        let stats = client.stats(" databases");
        let of = |number: usize| {
            let found = stats.iter().find(|(name, _)| *name == format!("{number}:{what}"));
            found.map_or("none".to_string(), |(_, value)| value.clone())
        };
        (1..5).map(of).collect()
    };
    assert_eq!(told(&mut client, "records"), ["11"; 4]);
    assert_eq!(told(&mut client, "health"), ["well"; 4]);
    client.send(b"debugtime +2000\r\n");
    client.expect(b"OK\r\n");
    eventually("the sweeps", || told(&mut client, "records") == ["1"; 4]);
    // Exports each database by its number.
    for (number, label) in [(2, "x.tree"), (3, "m"), (4, "t")] {
        client.send(format!("todana checkpoint db {number}\r\n").as_bytes());
        let line = loop {
            let line = client.line();
            if line != "WAIT" && line != "WAIT\r\n" {
                break line;
            }
        };
        assert!(line.starts_with("CHECKPOINT position="), "{label}: {line}");
    }
    assert_eq!(told(&mut client, "checkpoints_made"), ["none", "1", "1", "1"]);
    let metrics = page(&server, "/metrics");
    for (name, value) in [
        ("todana_database_checkpoints_made_total{db=\"m\"}", 1),
        ("todana_database_checkpoints_failed_total{db=\"t\"}", 0),
        ("todana_database_refused_writes_total{db=\"m\"}", 0),
        ("todana_database_evictions_total{db=\"t\"}", 0),
    ] {
        assert!(metrics.contains(&format!("{name} {value}\n")), "{name}: {metrics}");
    }
    assert!(
        metrics.contains(&format!("todana_database_pending_bytes{{db=\"{}\"}} ", at("x.tree").display()))
    );
}

#[test]
fn database_of_another_server_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["x.hash", "x.tree"] {
        let name = folder.path().join(file).display().to_string();
        let _server = Running::start(serving(&[&name], SyncPolicy::Never));
        let again = Server::bind(ServerOptions {
            listen: ListenOptions { port: 0, ..serving(&["mem:hash", &name], SyncPolicy::Never).listen },
            ..serving(&["mem:hash", &name], SyncPolicy::Never)
        });
        let error = again.err().expect("it is in use").to_string();
        assert!(error.contains(&name), "{error}");
    }
}

#[test]
fn indistinguishable_databases_are_refused_by_name() {
    let error = serving(&["a.hash", "x=a.hash"], SyncPolicy::Never).validate().unwrap_err().to_string();
    assert!(error.contains("has the same name as") && error.contains("a.hash"), "{error}");
}

#[test]
fn record_count_is_limited_on_every_database_kind() {
    let folder = tempfile::tempdir().unwrap();
    for name in every_kind(folder.path()) {
        let limited = format!("{name}#capcnt=2000");
        let server = Running::start(serving(&[&limited], SyncPolicy::Never));
        let mut client = server.connect();
        for number in 0..6000 {
            client.set(format!("k{number}").as_bytes(), b"1");
            client.expect_value(format!("k{number}").as_bytes(), b"1");
        }
        let records: u64 = client.stat("curr_items").parse().unwrap();
        assert!((1000..=2000).contains(&records), "{name}: {records}");
    }
    let options = ServerOptions {
        memory: MemoryOptions {
            refuse_when_full: true,
            ..serving(&["x.hash#capcnt=5"], SyncPolicy::Never).memory
        },
        ..serving(&["x.hash#capcnt=5"], SyncPolicy::Never)
    };
    assert!(options.validate().unwrap_err().to_string().contains("-M"));
}

/// Records over the limit at the start are evicted.
#[test]
fn record_bytes_on_disk_are_limited_from_start() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["x.hash", "x.tree"] {
        let name = folder.path().join(file).display().to_string();
        let mut server = Running::start(serving(&[&name], SyncPolicy::Never));
        let mut client = server.connect();
        for number in 0..3000 {
            client.set(format!("k{number}").as_bytes(), &[b'x'; 1000]);
        }
        server.handle.stop();
        drop(client);
        server.join();
        drop(server);
        // If the database is not the first one, no client writes to it.
        let limited = format!("{name}#capsiz=1m");
        let mut server = Running::start(serving(&["mem:hash", &limited], SyncPolicy::Never));
        let mut client = server.connect();
        let bytes = |client: &mut Client| -> u64 {
            let told = client.stats(" databases");
            told.iter().find(|(name, _)| name == "1:bytes").unwrap().1.parse().unwrap()
        };
        eventually("room", || bytes(&mut client) <= 1 << 20);
        assert!(bytes(&mut client) > 0);
        server.handle.stop();
        drop(client);
        server.join();
        // A server that reads the files again must also keep to the limit.
        drop(server);
        let server = Running::start(serving(&[&limited], SyncPolicy::Never));
        let mut client = server.connect();
        for number in 0..3000 {
            client.set(format!("n{number}").as_bytes(), &[b'x'; 1000]);
        }
        assert!(client.stat("bytes").parse::<u64>().unwrap() <= 1 << 20);
    }
}

/// After `use 1`, the statistics that walk over all records once showed those of database 1,
/// together with the classes of database 0.
#[test]
fn statistics_that_walk_stay_with_the_first_database() {
    let server = Running::start(ServerOptions {
        observation: ObservationOptions {
            track_sizes: true,
            ..serving(&["mem:hash", "mem:hash"], SyncPolicy::Never).observation
        },
        ..serving(&["mem:hash", "mem:hash"], SyncPolicy::Never)
    });
    let mut client = server.connect();
    client.set(b"in-the-first", b"value");
    let shown = |client: &mut Client, class: &str| {
        [format!("cachedump {class} 10"), "sizes".into()].map(|group| {
            client.send(format!("stats {group}\r\n").as_bytes());
            let lines = std::iter::repeat_with(|| client.line());
            lines.take_while(|line| line.trim_end() != "END").collect::<Vec<_>>()
        })
    };
    let slab = client.stats(" items")[0].0.split(':').nth(1).unwrap().to_string();
    let before = shown(&mut client, &slab);
    assert!(before[0][0].starts_with("ITEM in-the-first "), "{before:?}");
    client.send(b"todana use 1\r\n");
    client.expect(b"OK\r\n");
    assert_eq!(shown(&mut client, &slab), before);
}
