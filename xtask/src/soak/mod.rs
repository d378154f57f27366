//! Soak test: sends requests over all protocols and transports to several servers, together with
//! faults of all kinds, and compares every reply with a model.
//!
//! ```text
//! workers (own keys, exact model) \
//! workers (shared keys: sums)      > servers: memcached, tls, full, refuses, poor
//! faults, observers, director     /
//! ```
//!
//! The servers' clocks are paused; the director advances them (`debugtime`), so that expiry is
//! exact. Load, threads and connections are bounded, and the run ends by itself.

mod binary;
mod connection;
mod draft;
mod faults;
mod memory_samples;
mod meta;
mod model;
mod observers;
mod progress;
mod record_list;
mod reply;
mod server;
mod shared_keys;
mod text;
mod worker;

use crate::clients::certificate_in;
use crate::step::{StepOutcome, target_directory};
use connection::ServerAddress;
use faults::{FaultyClients, IDLE_TIMEOUT};
use indicatif::{ProgressBar, ProgressStyle};
use memory_samples::MemorySamples;
use progress::RunProgress;
use server::{FullMemoryPolicy, ServerPlan, SoakServer, stat, stats};
use shared_keys::SharedKeys;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use todana_client::{Tls, TlsFiles};
use worker::{SoakWorker, WorkerConfig};

/// The shortest run after which memory is compared. A server of 17 to 24 MiB holds values of up to
/// 2 MiB, so its medians over half a minute differ by a tenth; over two minutes, by a thirtieth.
const MEMORY_MIN: Duration = Duration::from_secs(600);
/// The allowed growth of RssAnon between the middle and the end. Shrinking is no leak.
const MEMORY_GROWTH: f64 = 0.05;
/// Number of files that the server `poor` may open in addition to those open after its start.
const POOR_FILES: u64 = 24;

/// Runs the soak test for `length`, with a random seed if `seed` is `None`.
pub(crate) fn run(length: Duration, seed: Option<u64>) -> StepOutcome {
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("seed {seed} (--seed {seed} repeats the requests, but not the order of the threads)");
    match soak(length, seed) {
        Ok(()) => StepOutcome::Passed,
        Err(SoakFailure::Skipped(why)) => StepOutcome::Skipped(why),
        Err(SoakFailure::Failed(why)) => StepOutcome::Failed(format!("seed {seed}: {why}")),
    }
}

enum SoakFailure {
    Failed(String),
    Skipped(String),
}

impl From<String> for SoakFailure {
    fn from(why: String) -> SoakFailure {
        SoakFailure::Failed(why)
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.trim().parse().map_err(|_| format!("{text:?}: not an address"))
}

/// Returns the addresses in a server's banner.
fn listening(banner: &str) -> Result<Vec<&str>, String> {
    let line = banner.lines().find_map(|line| line.strip_prefix("listening on "));
    Ok(line.ok_or_else(|| format!("{banner:?}: banner has no address"))?.split(", ").collect())
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(String::from).collect()
}

/// All servers of the run.
struct ServerFleet {
    /// Runs as `memcached`: TCP and UDP, sliding expiry, flushes; never full.
    memcached: Arc<SoakServer>,
    /// TCP and TLS, few connections, idle ones closed; never full.
    tls: Arc<SoakServer>,
    /// Evicts records; connections over the limit wait.
    full: Arc<SoakServer>,
    /// Listens on a Unix socket; refuses stores when memory is full.
    refuses: Arc<SoakServer>,
    /// May open few files.
    poor: Arc<SoakServer>,
}

impl ServerFleet {
    fn start(folder: &Path, certificate: &str, key: &str) -> Result<ServerFleet, String> {
        let plan = |name, line: &str, fullness, item_max| ServerPlan {
            name,
            words: words(line),
            fullness,
            is_flushed: name == "memcached",
            item_max,
            folder,
        };
        let files = TlsFiles { ca: Some(certificate.into()), cert: None, key: None };
        let tls = Tls::load(&files).map_err(|error| format!("TLS: {error}"))?;
        let line = "as memcached -p -1 -U -1 -l 127.0.0.1 -u root -m 1024 -I 8m -t 2 \
                    -o debug_commands,negative_exptime=sliding";
        let memcached =
            SoakServer::start(plan("memcached", line, FullMemoryPolicy::Never, 8 << 20), |_, ports| {
                let port = |kind: &str| {
                    let line = ports.lines().find_map(|line| line.strip_prefix(kind));
                    address(&format!("127.0.0.1:{}", line.unwrap_or_default().trim()))
                };
                Ok(vec![ServerAddress::Tcp(port("TCP INET:")?), ServerAddress::Udp(port("UDP INET:")?)])
            })?;
        let line = format!(
            "serve -p -1 -l 127.0.0.1,notls:127.0.0.2 --tls-cert {certificate} --tls-key {key} -m 512 -I 2m -t 2 \
             -c 60 --idle-timeout {} --admin-port -1 -o debug_commands",
            IDLE_TIMEOUT.as_secs()
        );
        let tls = SoakServer::start(plan("tls", &line, FullMemoryPolicy::Never, 2 << 20), |banner, _| {
            let all = listening(banner)?;
            let [encrypted, plain] = all[..] else { return Err(format!("{all:?}: expected two addresses")) };
            let encrypted = address(encrypted.trim_start_matches("todanas://"))?;
            Ok(vec![ServerAddress::Tcp(address(plain)?), ServerAddress::Tls(encrypted, tls)])
        })?;
        let line = "serve -p -1 -m 64 -I 8m -t 2 -c 60 --conn-limit-waits --admin-port -1 -o debug_commands";
        let full = SoakServer::start(plan("full", line, FullMemoryPolicy::Evicts, 8 << 20), |banner, _| {
            Ok(vec![ServerAddress::Tcp(address(listening(banner)?[0])?)])
        })?;
        let socket = folder.join("socket");
        let line =
            format!("serve -s {} -m 64 -M -I 1m -t 2 --admin-port -1 -o debug_commands", socket.display());
        let refuses =
            SoakServer::start(plan("refuses", &line, FullMemoryPolicy::Refuses, 1 << 20), |_, _| {
                Ok(vec![ServerAddress::Unix(socket)])
            })?;
        let line = "serve -p -1 -m 256 -c 1000 -t 2 --admin-port -1 -o debug_commands";
        let poor = SoakServer::start(plan("poor", line, FullMemoryPolicy::Never, 1 << 20), |banner, _| {
            Ok(vec![ServerAddress::Tcp(address(listening(banner)?[0])?)])
        })?;
        poor.limit_files(poor.files_before as u64 + POOR_FILES)?;
        Ok(ServerFleet {
            memcached: Arc::new(memcached),
            tls: Arc::new(tls),
            full: Arc::new(full),
            refuses: Arc::new(refuses),
            poor: Arc::new(poor),
        })
    }

    fn all(&self) -> Vec<Arc<SoakServer>> {
        [&self.memcached, &self.tls, &self.full, &self.refuses, &self.poor].map(Arc::clone).into()
    }
}

fn soak(length: Duration, seed: u64) -> Result<(), SoakFailure> {
    let folder =
        tempfile::TempDir::new().map_err(|error| format!("temporary folder: cannot create: {error}"))?;
    // The certificate belongs to this run alone, because another run may be active.
    let (certificate, key) = certificate_in(&folder.path().join("tls")).map_err(|outcome| match outcome {
        StepOutcome::Skipped(why) => SoakFailure::Skipped(why),
        StepOutcome::Failed(why) => SoakFailure::Failed(why),
        StepOutcome::Passed => SoakFailure::Failed("openssl: created no certificate".into()),
    })?;
    let absolute = |path: &Path| {
        std::path::absolute(path).map(|path| path.display().to_string()).map_err(|error| error.to_string())
    };
    let servers = ServerFleet::start(folder.path(), &absolute(&certificate)?, &absolute(&key)?)?;
    let progress = Arc::new(RunProgress::default());
    let shared = Arc::new(SharedKeys::default());
    let prepared = servers
        .tls
        .connect_and_ask("version")
        .and_then(|(_, mut connection)| shared.prepare(&mut connection));
    prepared.map_err(|error| format!("shared keys: {error}"))?;
    let mut workers = Vec::new();
    for (server, keys, is_bulky) in [
        (&servers.memcached, 1200, false),
        (&servers.memcached, 1200, false),
        (&servers.tls, 1200, false),
        (&servers.tls, 1200, false),
        (&servers.full, 6000, true),
        (&servers.refuses, 5000, true),
        (&servers.poor, 1200, false),
    ] {
        workers.push(SoakWorker::new(WorkerConfig {
            number: workers.len(),
            seed,
            server: Arc::clone(server),
            keys,
            is_bulky,
            allows_sliding: server.name == "memcached",
            shared: (server.name == "tls").then(|| Arc::clone(&shared)),
            progress: Arc::clone(&progress),
        }));
    }
    let memory = run_load(&servers, &mut workers, &progress, length, seed);
    print!("{}", progress.table());
    let plot = target_directory().join("soak-memory.svg");
    match std::fs::write(&plot, memory.svg()) {
        Ok(()) => println!("chart of memory: {}", plot.display()),
        Err(error) => println!("{}: cannot write: {error}", plot.display()),
    }
    if let Some(wrong) = progress.failure() {
        for server in servers.all() {
            let log = std::fs::read_to_string(folder.path().join(format!("{}.log", server.name)));
            let fate = if server.is_alive() { "running" } else { "not running" };
            println!("server {:?} is {fate}; its log: {:.2000}", server.name, log.unwrap_or_default());
        }
        println!("{wrong}");
        return Err(wrong.lines().next().unwrap_or_default().to_string().into());
    }
    for server in servers.all() {
        let of_this: Vec<usize> =
            (0..workers.len()).filter(|&at| Arc::ptr_eq(&workers[at].server, &server)).collect();
        let mut own: Vec<SoakWorker> = of_this.into_iter().rev().map(|at| workers.remove(at)).collect();
        check_after_load(&server, &mut own, (server.name == "tls").then_some(&*shared))?;
    }
    println!("{}", memory.table());
    if let Some(excess) = memory.excess() {
        return Err(SoakFailure::Failed(excess));
    }
    for (name, drift) in memory.drifts() {
        if length >= MEMORY_MIN && drift > MEMORY_GROWTH {
            return Err(SoakFailure::Failed(format!(
                "server {name:?}: RssAnon grew by {:.1} % from the middle to the end",
                drift * 100.0
            )));
        }
    }
    servers.all().iter().try_for_each(|server| server.stop())?;
    Ok(())
}

/// Runs workers, faulty clients, observer and director until the time is over, and returns the
/// samples of memory.
fn run_load(
    servers: &ServerFleet,
    workers: &mut [SoakWorker],
    progress: &Arc<RunProgress>,
    length: Duration,
    seed: u64,
) -> MemorySamples {
    let all_servers = servers.all();
    let faults = FaultyClients {
        servers: all_servers.clone(),
        refusing: Arc::clone(&servers.tls),
        waiting: Arc::clone(&servers.full),
        poor: Arc::clone(&servers.poor),
        robust: Arc::clone(&servers.memcached),
        progress: Arc::clone(progress),
    };
    let mut memory = MemorySamples::new(&all_servers);
    thread::scope(|scope| {
        workers.iter_mut().for_each(|worker| drop(scope.spawn(|| worker.run())));
        scope.spawn(|| faults.run(seed ^ 0xFA));
        scope.spawn(|| faults.run_idle());
        scope.spawn(|| observers::run_observer(&all_servers, progress, seed ^ 0x0B));
        scope.spawn(|| observers::run_director(&all_servers, progress, seed ^ 0xD1));
        let bar = ProgressBar::new(length.as_secs());
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} s  {msg}") {
            bar.set_style(style);
        }
        let start = Instant::now();
        while !progress.is_stopped() {
            progress.pause(1000);
            let elapsed = start.elapsed();
            memory.sample(elapsed, &all_servers);
            bar.set_position(elapsed.as_secs());
            bar.set_message(format!("{} requests", progress.requests.load(Ordering::Relaxed)));
            if elapsed >= length {
                progress.stop();
            }
            if let Some(server) = all_servers.iter().find(|server| !server.is_alive()) {
                progress.fail(format!("server {:?}: crashed", server.name));
            }
        }
        bar.finish_and_clear();
    });
    let requests = progress.requests.load(Ordering::Relaxed);
    println!("{requests} requests with the expected reply in {:.0} s", length.as_secs_f64());
    memory
}

/// Checks a server after all clients have disconnected: its records, connections, files and
/// statistics.
fn check_after_load(
    server: &Arc<SoakServer>,
    workers: &mut [SoakWorker],
    shared: Option<&SharedKeys>,
) -> Result<(), String> {
    let text = |error: std::io::Error| format!("server {:?}: {error}", server.name);
    for worker in workers.iter_mut() {
        worker.verify().map_err(|error| format!("worker {}: {error}", worker.name))?;
    }
    let found = record_list::check(server, workers)?;
    let (_, mut connection) = server.connect_and_ask("version").map_err(text)?;
    if let Some(shared) = shared {
        shared.verify(&mut connection)?;
    }
    drop(connection);
    // The server may not have closed all connections yet.
    let before = (Some(server.connections_before), server.distinct_before);
    let mut now = before;
    let closed = server.wait_until("keeps connections or files of clients that disconnected", || {
        let Ok((_, mut connection)) = server.connect_and_ask("version") else { return false };
        let connections = stats(&mut connection, "").ok().and_then(|all| stat(&all, "curr_connections").ok());
        now = (connections, server.distinct_files());
        now == before
    });
    closed.map_err(|why| format!("{why}: connections and files were {before:?} and are {now:?}"))?;
    let all = server.stats("").map_err(text)?;
    let number = |name: &str| stat(&all, name).map_err(|error| format!("server {:?}: {error}", server.name));
    if number("get_hits")? + number("get_misses")? != number("cmd_get")? {
        return Err(format!("server {:?}: get_hits + get_misses differs from cmd_get", server.name));
    }
    let refused = server.connection_counts.refused.load(Ordering::Relaxed);
    let perhaps = server.connection_counts.perhaps_refused.load(Ordering::Relaxed);
    // With -o no_maxconns_fast the server has no such statistic.
    let rejected = number("rejected_connections").unwrap_or(0);
    if rejected < refused || rejected > refused + perhaps {
        return Err(format!(
            "server {:?}: counts {rejected} refused connections; its clients saw {refused}, and up to {perhaps} more",
            server.name
        ));
    }
    let closed_idle = server.connection_counts.closed_idle.load(Ordering::Relaxed);
    if closed_idle > 0 && number("idle_kicks")? < closed_idle {
        return Err(format!(
            "server {:?}: counts fewer idle connections than the {closed_idle} that it closed",
            server.name
        ));
    }
    println!(
        "{:10} {found}; evictions {}, connections {} in all, {rejected} refused, accepting paused {} times",
        server.name,
        number("evictions")?,
        number("total_connections")?,
        number("listen_disabled_num")?,
    );
    Ok(())
}
