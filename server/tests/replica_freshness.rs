//! Tests that no reader of a replica gets a value that is older than it allows, although the
//! connections of the replicas stall and are cut.
//!
//! `TODANA_READS` is the number of reads. `cargo xtask prove freshness` sets it.

#[path = "replication_lab/line.rs"]
#[allow(dead_code)]
mod line;
mod running;

use line::Line;
use running::{Client, Running, eventually, options};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};
use todana::update_log::SyncPolicy;
use todana_server::{
    DataDirectoryOptions, DatabaseName, DatabaseOptions, KyotoMode, KyotoOptions, MasterAddress,
    MasterProtocol, ProtocolOptions, ReplicationOptions, ServerOptions,
};

const BATCH: usize = 250;
const AGES_MS: [u64; 4] = [30, 100, 300, 2000];

/// The values that were written, from 0 on: the position of each in the log, and the time at which
/// it was acknowledged.
#[derive(Default)]
struct WrittenValues {
    /// The ID of the log.
    log: String,
    all: Vec<(u64, Instant)>,
}

fn server_options(server_id: u16, kind: &str, folder: &Path, master: Option<SocketAddr>) -> ServerOptions {
    let sync = SyncPolicy::Every(Duration::from_secs(1));
    let replication = ReplicationOptions {
        server_id,
        master: master.map(|to| MasterAddress { host: to.ip().to_string(), port: to.port() }),
        protocol: MasterProtocol::Native,
        ..ReplicationOptions::default()
    };
    let databases = DatabaseOptions {
        database: DatabaseName::parse(kind).ok(),
        data: Some(DataDirectoryOptions::new(folder.join(server_id.to_string()), sync)),
        replication,
        ..options().databases
    };
    let kyoto = KyotoOptions { spoken: KyotoMode::Beside, ..options().protocols.kyoto };
    let protocols = ProtocolOptions { kyoto, ..options().protocols };
    ServerOptions { databases, protocols, ..options() }
}

fn write(client: &mut Client, written: &RwLock<WrittenValues>) {
    let value = written.read().unwrap().all.len().to_string();
    client.send(format!("ms key {} Y\r\n{value}\r\n", value.len()).as_bytes());
    let line = client.line();
    let (log, position) = line.trim_end().strip_prefix("HD Y").unwrap().split_once('-').unwrap();
    let mut written = written.write().unwrap();
    written.log = log.into();
    written.all.push((position.parse().unwrap(), Instant::now()));
}

/// Chooses what a read requires: the argument of `Y`, and the oldest value that it allows.
fn choose(random: &mut fastrand::Rng, written: &WrittenValues) -> (String, usize) {
    let len = written.all.len();
    if random.bool() {
        let value = random.usize(len.saturating_sub(20_000)..len);
        return (format!("{}-{}", written.log, written.all[value].0), value);
    }
    let age_ms = *random.choice(&AGES_MS[..]).unwrap();
    let oldest = Instant::now().checked_sub(Duration::from_millis(age_ms));
    let allowed = |when: &Instant| oldest.is_some_and(|oldest| *when <= oldest);
    let count = written.all.partition_point(|(_, when)| allowed(when));
    (age_ms.to_string(), count.saturating_sub(1))
}

/// Reads until all reads are done. Returns the number of reads that were refused.
fn read(client: &mut Client, written: &RwLock<WrittenValues>, left: &AtomicU64) -> u64 {
    let (mut random, mut refused) = (fastrand::Rng::new(), 0);
    while left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(BATCH as u64))
        .is_ok()
    {
        let mut requests = String::new();
        let chosen: Vec<(String, usize)> = {
            let written = written.read().unwrap();
            (0..BATCH).map(|_| choose(&mut random, &written)).collect()
        };
        for (required, _) in &chosen {
            requests += &format!("mg key v Y{required}\r\n");
        }
        client.send(requests.as_bytes());
        for (required, oldest) in chosen {
            let line = client.line();
            if line == "SERVER_ERROR the records of this replica are too old\r\n" {
                refused += 1;
                continue;
            }
            assert!(line.starts_with("VA "), "{line}");
            let value: usize = client.line().trim_end().parse().unwrap();
            assert!(value >= oldest, "Y{required}: {value} is older than {oldest}");
        }
    }
    refused
}

#[test]
fn no_read_is_older_than_allowed() {
    let reads = std::env::var("TODANA_READS").ok().and_then(|text| text.parse().ok()).unwrap_or(200_000);
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(server_options(1, "mem:hash", folder.path(), None));
    let lines = [Line::new(), Line::new()];
    lines.iter().for_each(|line| line.lead_to(Some(master.addresses[0])));
    let start = |number: usize, kind: &str| {
        Running::start(server_options(number as u16 + 2, kind, folder.path(), Some(lines[number].address)))
    };
    let replicas = [start(0, "mem:hash"), start(1, "mem:tree")];
    let (written, left, ends) = (RwLock::default(), AtomicU64::new(reads), AtomicBool::new(false));
    write(&mut master.connect(), &written);
    for replica in &replicas {
        eventually("the first value", || {
            let mut client = replica.connect();
            client.send(b"mg key\r\n");
            client.line() == "HD\r\n"
        });
    }
    let refused = Mutex::new(0);
    thread::scope(|scope| {
        let mut client = master.connect();
        let (written, ends) = (&written, &ends);
        scope.spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                write(&mut client, written);
            }
        });
        for line in &lines {
            scope.spawn(move || {
                let mut random = fastrand::Rng::new();
                while !ends.load(Ordering::Relaxed) {
                    line.hold();
                    // Sometimes longer than a reader waits.
                    let longest_ms = if random.u8(..16) == 0 { 1500 } else { 100 };
                    thread::sleep(Duration::from_millis(random.u64(..longest_ms)));
                    line.release();
                    if random.u8(..8) == 0 {
                        line.cut();
                    }
                    thread::sleep(Duration::from_millis(random.u64(..1000)));
                }
            });
        }
        let readers: Vec<_> = [0, 1, 0, 1, 0, 1]
            .map(|number| {
                let mut client = replicas[number].connect();
                let (left, refused) = (&left, &refused);
                scope.spawn(move || *refused.lock().unwrap() += read(&mut client, written, left))
            })
            .into_iter()
            .collect();
        let outcomes: Vec<_> = readers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        ends.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    let values = written.into_inner().unwrap().all.len();
    println!("{reads} reads of {values} values, {} refused", refused.into_inner().unwrap());
}
