//! A server of the soak test: its process, its clock, and counts of its connections.

use super::connection::{ClientConnection, ServerAddress};
use crate::step::built;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// The time within which a server must start, stop, or reach a state. No server needs nearly as
/// long.
const LIMIT: Duration = Duration::from_secs(60);

/// The server's policy when memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FullMemoryPolicy {
    /// Memory is never full, so the model is exact.
    Never,
    /// Records are evicted, so a miss is valid at any time.
    Evicts,
    /// Stores are refused.
    Refuses,
}

/// The state of the server's paused clock, and the number of its flushes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClockState {
    pub(super) now: u64,
    pub(super) flushes: u64,
    /// The time of a flush that is scheduled but not due.
    pub(super) flush_at: Option<u64>,
}

/// Counts of the connections that clients lost.
#[derive(Debug, Default)]
pub(super) struct ConnectionCounts {
    /// Refused with the expected line.
    pub(super) refused: AtomicU64,
    /// Closed immediately, with that line or without it.
    pub(super) perhaps_refused: AtomicU64,
    pub(super) closed_idle: AtomicU64,
}

/// A server of the soak test. Dropping it kills the process.
pub(super) struct SoakServer {
    pub(super) name: &'static str,
    child: Mutex<Child>,
    pub(super) pid: u32,
    /// The addresses it listens on; the first serves for statistics and administration.
    pub(super) addresses: Vec<ServerAddress>,
    /// The address of its admin pages.
    pub(super) admin: Option<String>,
    pub(super) fullness: FullMemoryPolicy,
    /// The director sends `flush_all` to it.
    pub(super) is_flushed: bool,
    /// The memory limit of its process.
    pub(super) memory_mib: f64,
    /// The maximum size of an item.
    pub(super) item_max: usize,
    /// Clients hold the read lock while requests are in flight; the director writes to advance it.
    pub(super) clock: RwLock<ClockState>,
    pub(super) connection_counts: ConnectionCounts,
    /// The number of open files, and the server's own count of connections, while one client was
    /// connected.
    pub(super) files_before: usize,
    /// The number of different files then.
    pub(super) distinct_before: usize,
    pub(super) connections_before: u64,
}

/// The settings with which a server is started.
pub(super) struct ServerPlan<'a> {
    pub(super) name: &'static str,
    pub(super) words: Vec<String>,
    pub(super) fullness: FullMemoryPolicy,
    pub(super) is_flushed: bool,
    pub(super) item_max: usize,
    /// The folder for its log and port file.
    pub(super) folder: &'a Path,
}

/// Returns the value of `-m`.
fn memory_mib(words: &[String]) -> f64 {
    let value = words.iter().skip_while(|word| *word != "-m").nth(1);
    value.and_then(|value| value.parse().ok()).unwrap_or(f64::INFINITY)
}

impl SoakServer {
    /// Starts a server. `addresses` parses its banner and its port file.
    pub(super) fn start(
        plan: ServerPlan<'_>,
        addresses: impl FnOnce(&str, &str) -> Result<Vec<ServerAddress>, String>,
    ) -> Result<SoakServer, String> {
        let text = |error: io::Error| format!("{}: {error}", plan.name);
        let port_file = plan.folder.join(format!("{}.ports", plan.name));
        let log = File::create(plan.folder.join(format!("{}.log", plan.name))).map_err(text)?;
        let mut command = Command::new(built("todana"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TODANA_") {
                command.env_remove(name);
            }
        }
        let child = command
            .args(&plan.words)
            .env("MEMCACHED_PORT_FILENAME", &port_file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(text)?;
        let pid = child.id();
        // Constructed before the banner is read, so that an error stops the process.
        let mut server = SoakServer {
            name: plan.name,
            memory_mib: memory_mib(&plan.words),
            child: Mutex::new(child),
            pid,
            addresses: Vec::new(),
            admin: None,
            fullness: plan.fullness,
            is_flushed: plan.is_flushed,
            item_max: plan.item_max,
            clock: RwLock::default(),
            connection_counts: ConnectionCounts::default(),
            files_before: 0,
            distinct_before: 0,
            connections_before: 0,
        };
        let mut banner = String::new();
        let mut ports = String::new();
        if plan.words.first().is_some_and(|word| word == "as") {
            server.wait_until("wrote no port file", || port_file.exists())?;
            ports = std::fs::read_to_string(&port_file).map_err(text)?;
        } else {
            let output = server.child.get_mut().ok().and_then(|child| child.stdout.take());
            for line in BufReader::new(output.ok_or("server: has no output")?).lines().take(3) {
                banner += &line.map_err(text)?;
                banner.push('\n');
            }
        }
        server.addresses = addresses(&banner, &ports)?;
        server.admin = banner
            .split_once("admin page: http://")
            .and_then(|(_, rest)| rest.split_once('/'))
            .map(|(address, _)| address.to_string());
        let (_, mut asker) = server.connect_and_ask("version").map_err(text)?;
        if asker.ask("debugtime p").map_err(text)? != "OK" {
            return Err(format!("{}: does not pause its clock", plan.name));
        }
        let all = stats(&mut asker, "").map_err(text)?;
        let now = stat(&all, "time")?;
        server.connections_before = stat(&all, "curr_connections")?;
        server.clock = RwLock::new(ClockState { now, flushes: 0, flush_at: None });
        server.files_before = server.open_files();
        server.distinct_before = server.distinct_files();
        Ok(server)
    }

    /// Connects, sends a line, and returns the first line of the reply with the connection.
    pub(super) fn connect_and_ask(&self, line: &str) -> io::Result<(String, ClientConnection)> {
        let start = Instant::now();
        loop {
            let attempt = ClientConnection::open(&self.addresses[0])
                .and_then(|mut connection| Ok((connection.ask(line)?, connection)));
            match attempt {
                Ok((answer, _)) if answer == REFUSED => {
                    self.connection_counts.refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) if start.elapsed() < LIMIT => {
                    self.connection_counts.perhaps_refused.fetch_add(1, Ordering::Relaxed);
                }
                outcome => return outcome,
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns a group of statistics, over a new connection.
    pub(super) fn stats(&self, group: &str) -> io::Result<Vec<(String, String)>> {
        let (_, mut connection) = self.connect_and_ask("version")?;
        stats(&mut connection, group)
    }

    pub(super) fn is_alive(&self) -> bool {
        self.child.lock().is_ok_and(|mut child| matches!(child.try_wait(), Ok(None)))
    }

    pub(super) fn signal(&self, signal: Signal) {
        // The process id stays valid until the child is waited for.
        if let Some(pid) = Pid::from_raw(self.pid as i32)
            && self.is_alive()
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Returns the process's RssAnon in KiB.
    pub(super) fn resident_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    }

    /// Returns the number of open files.
    pub(super) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }

    /// Returns the number of different files, sockets and so on that the process has opened. With
    /// `verbosity`, a client makes the server open its standard error a second time.
    pub(super) fn distinct_files(&self) -> usize {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten().flatten();
        let targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let (paths, others): (Vec<_>, Vec<_>) = targets.partition(|target| target.is_absolute());
        BTreeSet::from_iter(paths).len() + others.len()
    }

    /// Limits the number of files that the process may open.
    pub(super) fn limit_files(&self, count: u64) -> Result<(), String> {
        let maximum = getrlimit(Resource::Nofile).maximum;
        prlimit(Pid::from_raw(self.pid as i32), Resource::Nofile, Rlimit { current: Some(count), maximum })
            .map(drop)
            .map_err(|error| format!("{}: {error}", self.name))
    }

    /// Waits until `holds` returns true. Fails with `what` after `LIMIT`.
    pub(super) fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
        let start = Instant::now();
        while !holds() {
            if start.elapsed() > LIMIT || !self.is_alive() {
                let fate = if self.is_alive() { "" } else { " (it crashed)" };
                return Err(format!("server {:?}: {what}{fate}", self.name));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Sends SIGTERM and waits until the process ends.
    pub(super) fn stop(&self) -> Result<(), String> {
        self.signal(Signal::TERM);
        let start = Instant::now();
        loop {
            let ended = self.child.lock().map_err(|_| "a thread panicked")?.try_wait();
            match ended {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("server {:?}: ended with {status}", self.name)),
                Ok(None) if start.elapsed() < LIMIT => thread::sleep(Duration::from_millis(20)),
                Ok(None) => return Err(format!("server {:?}: does not stop", self.name)),
                Err(error) => return Err(format!("server {:?}: {error}", self.name)),
            }
        }
    }
}

impl Drop for SoakServer {
    fn drop(&mut self) {
        if let Ok(child) = self.child.get_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The reply to a connection over the limit.
pub(super) const REFUSED: &str = "ERROR Too many open connections";

/// Sends `stats GROUP` and returns the statistics.
pub(super) fn stats(connection: &mut ClientConnection, group: &str) -> io::Result<Vec<(String, String)>> {
    connection.send(format!("stats{}{group}\r\n", if group.is_empty() { "" } else { " " }).as_bytes())?;
    let mut all = Vec::new();
    loop {
        let line = connection.line()?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["END"] => return Ok(all),
            ["STAT", name, ref value @ ..] => all.push((name.to_string(), value.join(" "))),
            _ => return Err(io::Error::other(format!("{line:?}: not a line of statistics"))),
        }
    }
}

/// Returns a number from the statistics.
pub(super) fn stat(stats: &[(String, String)], name: &str) -> Result<u64, String> {
    let found = stats.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.parse().ok());
    found.ok_or_else(|| format!("{name}: no such number in the statistics"))
}
