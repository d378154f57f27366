//! Soak: several servers at once, all protocols and transports, all kinds of trouble, and a model
//! that knows what must come back.
//!
//! ```text
//! workers (own keys, exact model) \
//! workers (shared keys: sums)      > servers: memcached, tls, full, refuses, poor
//! faults, observers, director     /
//! ```
//!
//! The servers' clocks stand still and are moved by the director (`debugtime`), so that expiry is
//! exact. Load, threads and connections are bounded, and everything ends by itself.

mod binary;
mod census;
mod draft;
mod faults;
mod gauge;
mod meta;
mod model;
mod node;
mod observers;
mod reply;
mod shared;
mod tally;
mod text;
mod wire;
mod worker;

use crate::clients::certificate_in;
use crate::step::{Outcome, target_directory};
use faults::Faults;
use gauge::Gauge;
use indicatif::{ProgressBar, ProgressStyle};
use node::{Fullness, Node, Plan, stat, stats};
use shared::Shared;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use tally::Tally;
use todana_client::{Tls, TlsFiles};
use wire::Place;
use worker::{Setting, Worker};

/// Runs shorter than this say nothing about memory.
const MEMORY_MIN: Duration = Duration::from_secs(120);
/// The allowed growth of RssAnon between the middle and the end. Shrinking is no leak.
const MEMORY_GROWTH: f64 = 0.05;
/// Files that the poor server may open beyond those that it has.
const POOR_FILES: u64 = 24;

/// Soaks for this long. `None`: a seed of its own choice.
pub(crate) fn run(length: Duration, seed: Option<u64>) -> Outcome {
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("seed {seed} (--seed {seed} repeats the requests; the threads' order is another each time)");
    match soak(length, seed) {
        Ok(()) => Outcome::Passed,
        Err(Ending::Skipped(why)) => Outcome::Skipped(why),
        Err(Ending::Failed(why)) => Outcome::Failed(format!("seed {seed}: {why}")),
    }
}

enum Ending {
    Failed(String),
    Skipped(String),
}

impl From<String> for Ending {
    fn from(why: String) -> Ending {
        Ending::Failed(why)
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is no address"))
}

/// The addresses of a banner.
fn listening(banner: &str) -> Result<Vec<&str>, String> {
    let line = banner.lines().find_map(|line| line.strip_prefix("listening on "));
    Ok(line.ok_or_else(|| format!("the banner is {banner:?}"))?.split(", ").collect())
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(String::from).collect()
}

/// All servers.
struct Servers {
    /// Under memcached's name: TCP and UDP, sliding expiry, flushes; there is room for everything.
    memcached: Arc<Node>,
    /// TCP and TLS, few connections, idle ones closed; there is room for everything.
    tls: Arc<Node>,
    /// Evicts; connections wait.
    full: Arc<Node>,
    /// A Unix socket; refuses stores.
    refuses: Arc<Node>,
    /// Few descriptors.
    poor: Arc<Node>,
}

impl Servers {
    fn start(folder: &Path, certificate: &str, key: &str) -> Result<Servers, String> {
        let plan = |name, line: &str, fullness, item_max| Plan {
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
        let memcached = Node::start(plan("memcached", line, Fullness::Never, 8 << 20), |_, ports| {
            let port = |kind: &str| {
                let line = ports.lines().find_map(|line| line.strip_prefix(kind));
                address(&format!("127.0.0.1:{}", line.unwrap_or_default().trim()))
            };
            Ok(vec![Place::Tcp(port("TCP INET:")?), Place::Udp(port("UDP INET:")?)])
        })?;
        let line = format!(
            "serve -p -1 -l 127.0.0.1,notls:127.0.0.2 --tls-cert {certificate} --tls-key {key} -m 512 -I 2m -t 2 \
             -c 60 --idle-timeout 5 --admin-port -1 -o debug_commands"
        );
        let tls = Node::start(plan("tls", &line, Fullness::Never, 2 << 20), |banner, _| {
            let all = listening(banner)?;
            let [encrypted, plain] = all[..] else { return Err(format!("it listens on {all:?}")) };
            let encrypted = address(encrypted.trim_start_matches("todanas://"))?;
            Ok(vec![Place::Tcp(address(plain)?), Place::Tls(encrypted, tls)])
        })?;
        let line = "serve -p -1 -m 64 -I 8m -t 2 -c 60 --conn-limit-waits --admin-port -1 -o debug_commands";
        let full = Node::start(plan("full", line, Fullness::Evicts, 8 << 20), |banner, _| {
            Ok(vec![Place::Tcp(address(listening(banner)?[0])?)])
        })?;
        let socket = folder.join("socket");
        let line =
            format!("serve -s {} -m 64 -M -I 1m -t 2 --admin-port -1 -o debug_commands", socket.display());
        let refuses = Node::start(plan("refuses", &line, Fullness::Refuses, 1 << 20), |_, _| {
            Ok(vec![Place::Unix(socket)])
        })?;
        let line = "serve -p -1 -m 256 -c 1000 -t 2 --admin-port -1 -o debug_commands";
        let poor = Node::start(plan("poor", line, Fullness::Never, 1 << 20), |banner, _| {
            Ok(vec![Place::Tcp(address(listening(banner)?[0])?)])
        })?;
        poor.limit_files(poor.files_before as u64 + POOR_FILES)?;
        Ok(Servers {
            memcached: Arc::new(memcached),
            tls: Arc::new(tls),
            full: Arc::new(full),
            refuses: Arc::new(refuses),
            poor: Arc::new(poor),
        })
    }

    fn all(&self) -> Vec<Arc<Node>> {
        [&self.memcached, &self.tls, &self.full, &self.refuses, &self.poor].map(Arc::clone).into()
    }
}

fn soak(length: Duration, seed: u64) -> Result<(), Ending> {
    let folder = tempfile::TempDir::new().map_err(|error| format!("cannot make a folder: {error}"))?;
    // Of this run alone: another one may be at work beside it.
    let (certificate, key) = certificate_in(&folder.path().join("tls")).map_err(|outcome| match outcome {
        Outcome::Skipped(why) => Ending::Skipped(why),
        Outcome::Failed(why) => Ending::Failed(why),
        Outcome::Passed => Ending::Failed("there is no certificate".into()),
    })?;
    let absolute = |path: &Path| {
        std::path::absolute(path).map(|path| path.display().to_string()).map_err(|error| error.to_string())
    };
    let servers = Servers::start(folder.path(), &absolute(&certificate)?, &absolute(&key)?)?;
    let tally = Arc::new(Tally::default());
    let shared = Arc::new(Shared::default());
    let prepared = servers.tls.ask_for("version").and_then(|(_, mut wire)| shared.prepare(&mut wire));
    prepared.map_err(|error| format!("shared keys: {error}"))?;
    let mut workers = Vec::new();
    for (node, keys, is_bulky) in [
        (&servers.memcached, 1200, false),
        (&servers.memcached, 1200, false),
        (&servers.tls, 1200, false),
        (&servers.tls, 1200, false),
        (&servers.full, 6000, true),
        (&servers.refuses, 5000, true),
        (&servers.poor, 1200, false),
    ] {
        workers.push(Worker::new(Setting {
            number: workers.len(),
            seed,
            node: Arc::clone(node),
            keys,
            is_bulky,
            slides: node.name == "memcached",
            shared: (node.name == "tls").then(|| Arc::clone(&shared)),
            tally: Arc::clone(&tally),
        }));
    }
    let gauge = strain(&servers, &mut workers, &tally, length, seed);
    print!("{}", tally.table());
    let plot = target_directory().join("soak-memory.svg");
    match std::fs::write(&plot, gauge.svg()) {
        Ok(()) => println!("memory over time: {}", plot.display()),
        Err(error) => println!("cannot write {}: {error}", plot.display()),
    }
    if let Some(wrong) = tally.wrong() {
        for node in servers.all() {
            let log = std::fs::read_to_string(folder.path().join(format!("{}.log", node.name)));
            let fate = if node.is_alive() { "alive" } else { "fallen" };
            println!("server {:?} is {fate}; its log: {:.2000}", node.name, log.unwrap_or_default());
        }
        println!("{wrong}");
        return Err(wrong.lines().next().unwrap_or_default().to_string().into());
    }
    for node in servers.all() {
        let of_this: Vec<usize> =
            (0..workers.len()).filter(|&at| Arc::ptr_eq(&workers[at].node, &node)).collect();
        let mut own: Vec<Worker> = of_this.into_iter().rev().map(|at| workers.remove(at)).collect();
        settle(&node, &mut own, (node.name == "tls").then_some(&*shared))?;
    }
    println!("{}", gauge.table());
    if let Some(excess) = gauge.excess() {
        return Err(Ending::Failed(excess));
    }
    for (name, drift) in gauge.drifts() {
        if length >= MEMORY_MIN && drift > MEMORY_GROWTH {
            return Err(Ending::Failed(format!(
                "RssAnon of {name:?} has grown by {:.1} % from the middle to the end",
                drift * 100.0
            )));
        }
    }
    servers.all().iter().try_for_each(|node| node.stop())?;
    Ok(())
}

/// The soak itself.
fn strain(
    servers: &Servers,
    workers: &mut [Worker],
    tally: &Arc<Tally>,
    length: Duration,
    seed: u64,
) -> Gauge {
    let nodes = servers.all();
    let faults = Faults {
        nodes: nodes.clone(),
        refusing: Arc::clone(&servers.tls),
        waiting: Arc::clone(&servers.full),
        poor: Arc::clone(&servers.poor),
        robust: Arc::clone(&servers.memcached),
        tally: Arc::clone(tally),
    };
    let mut gauge = Gauge::new(&nodes);
    thread::scope(|scope| {
        workers.iter_mut().for_each(|worker| drop(scope.spawn(|| worker.run())));
        scope.spawn(|| faults.run(seed ^ 0xFA));
        scope.spawn(|| faults.idle());
        scope.spawn(|| observers::observe(&nodes, tally, seed ^ 0x0B));
        scope.spawn(|| observers::direct(&nodes, tally, seed ^ 0xD1));
        let bar = ProgressBar::new(length.as_secs());
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} s  {msg}") {
            bar.set_style(style);
        }
        let start = Instant::now();
        while !tally.ends() {
            tally.pause(1000);
            let elapsed = start.elapsed();
            gauge.sample(elapsed, &nodes);
            bar.set_position(elapsed.as_secs());
            bar.set_message(format!("{} requests", tally.requests.load(Ordering::Relaxed)));
            if elapsed >= length {
                tally.end();
            }
            if let Some(node) = nodes.iter().find(|node| !node.is_alive()) {
                tally.fail(format!("server {:?} has fallen", node.name));
            }
        }
        bar.finish_and_clear();
    });
    let requests = tally.requests.load(Ordering::Relaxed);
    println!("{requests} requests with the right answer in {:.0} s", length.as_secs_f64());
    gauge
}

/// Conditions on a server after all clients have disconnected.
fn settle(node: &Arc<Node>, workers: &mut [Worker], shared: Option<&Shared>) -> Result<(), String> {
    let text = |error: std::io::Error| format!("server {:?}: {error}", node.name);
    for worker in workers.iter_mut() {
        worker.verify().map_err(|error| format!("worker {}: {error}", worker.name))?;
    }
    let found = census::take(node, workers)?;
    let (_, mut wire) = node.ask_for("version").map_err(text)?;
    if let Some(shared) = shared {
        shared.verify(&mut wire)?;
    }
    drop(wire);
    // Those who left may still be on their way out.
    node.eventually("keeps connections or files of those who have gone", || {
        let Ok((_, mut wire)) = node.ask_for("version") else { return false };
        let connections = stats(&mut wire, "").ok().and_then(|all| stat(&all, "curr_connections").ok());
        connections == Some(node.connections_before) && node.files() == node.files_before
    })?;
    let all = node.stats("").map_err(text)?;
    let number = |name: &str| stat(&all, name).map_err(|error| format!("server {:?}: {error}", node.name));
    if number("get_hits")? + number("get_misses")? != number("cmd_get")? {
        return Err(format!("server {:?}: hits and misses are not all", node.name));
    }
    let refused = node.seen.refused.load(Ordering::Relaxed);
    let perhaps = node.seen.perhaps_refused.load(Ordering::Relaxed);
    // Under -o no_maxconns_fast there is no such number.
    let rejected = number("rejected_connections").unwrap_or(0);
    if rejected < refused || rejected > refused + perhaps {
        return Err(format!(
            "server {:?} counts {rejected} connections refused; its clients {refused}, and perhaps {perhaps} more",
            node.name
        ));
    }
    let kicked = node.seen.kicked.load(Ordering::Relaxed);
    if kicked > 0 && number("idle_kicks")? < kicked {
        return Err(format!("server {:?} has closed {kicked} idle connections and counts fewer", node.name));
    }
    println!(
        "{:10} {found}; evictions {}, connections {} in all, {rejected} refused, accepting paused {} times",
        node.name,
        number("evictions")?,
        number("total_connections")?,
        number("listen_disabled_num")?,
    );
    Ok(())
}
