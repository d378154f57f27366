//! A server under soak: its process, its clock, and what is known of its connections.

use super::wire::{Place, Wire};
use crate::step::built;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// In which a server must come up, go, and settle; far above what it takes.
const LIMIT: Duration = Duration::from_secs(60);

/// The policy of the server when memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fullness {
    /// There never are: the model is exact.
    Never,
    /// Some go: a miss is right at any time.
    Evicts,
    /// Stores are refused.
    Refuses,
}

/// The server's clock, which stands still between two moves, and the number of its flushes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    pub(super) now: u64,
    pub(super) flushes: u64,
    /// A flush that is still to come.
    pub(super) flush_at: Option<u64>,
}

/// The observations of clients on their connections.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Refused with the right line.
    pub(super) refused: AtomicU64,
    /// Closed at once, with that line or without it.
    pub(super) perhaps_refused: AtomicU64,
    pub(super) kicked: AtomicU64,
}

/// A server.
pub(super) struct Node {
    pub(super) name: &'static str,
    child: Mutex<Child>,
    pub(super) pid: u32,
    /// Where it can be reached; the first is for whoever wants to ask it something.
    pub(super) places: Vec<Place>,
    /// Where its admin pages are.
    pub(super) admin: Option<String>,
    pub(super) fullness: Fullness,
    /// Takes `flush_all` from us.
    pub(super) is_flushed: bool,
    /// Limit of the memory of its process.
    pub(super) memory_mib: f64,
    /// Limit of an item's size.
    pub(super) item_max: usize,
    /// Read by whoever has a request under way, written by whoever moves the clock.
    pub(super) moment: RwLock<Moment>,
    pub(super) seen: Seen,
    /// Open files when there was one connection, and how many connections it counted then.
    pub(super) files_before: usize,
    pub(super) connections_before: u64,
}

/// How to start one.
pub(super) struct Plan<'a> {
    pub(super) name: &'static str,
    pub(super) words: Vec<String>,
    pub(super) fullness: Fullness,
    pub(super) is_flushed: bool,
    pub(super) item_max: usize,
    /// For its log, and its port file.
    pub(super) folder: &'a Path,
}

/// The value of `-m`.
fn memory_mib(words: &[String]) -> f64 {
    let value = words.iter().skip_while(|word| *word != "-m").nth(1);
    value.and_then(|value| value.parse().ok()).unwrap_or(f64::INFINITY)
}

impl Node {
    /// Starts it; `places` makes them from what it says on its standard output and in its port
    /// file.
    pub(super) fn start(
        plan: Plan<'_>,
        places: impl FnOnce(&str, &str) -> Result<Vec<Place>, String>,
    ) -> Result<Node, String> {
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
        // Made first, so that it is stopped whatever happens.
        let mut node = Node {
            name: plan.name,
            memory_mib: memory_mib(&plan.words),
            child: Mutex::new(child),
            pid,
            places: Vec::new(),
            admin: None,
            fullness: plan.fullness,
            is_flushed: plan.is_flushed,
            item_max: plan.item_max,
            moment: RwLock::default(),
            seen: Seen::default(),
            files_before: 0,
            connections_before: 0,
        };
        let mut banner = String::new();
        let mut ports = String::new();
        if plan.words.first().is_some_and(|word| word == "as") {
            node.eventually("has no port file", || port_file.exists())?;
            ports = std::fs::read_to_string(&port_file).map_err(text)?;
        } else {
            let output = node.child.get_mut().ok().and_then(|child| child.stdout.take());
            for line in BufReader::new(output.ok_or("a server has no output")?).lines().take(3) {
                banner += &line.map_err(text)?;
                banner.push('\n');
            }
        }
        node.places = places(&banner, &ports)?;
        node.admin = banner
            .split_once("metrics: http://")
            .and_then(|(_, rest)| rest.split_once('/'))
            .map(|(address, _)| address.to_string());
        let (_, mut asker) = node.ask_for("version").map_err(text)?;
        if asker.ask("debugtime p").map_err(text)? != "OK" {
            return Err(format!("{} does not pause its clock", plan.name));
        }
        let all = stats(&mut asker, "").map_err(text)?;
        let now = stat(&all, "time")?;
        node.connections_before = stat(&all, "curr_connections")?;
        node.moment = RwLock::new(Moment { now, flushes: 0, flush_at: None });
        node.files_before = node.files();
        Ok(node)
    }

    /// A connection to ask something over, and the first answer.
    pub(super) fn ask_for(&self, line: &str) -> io::Result<(String, Wire)> {
        let start = Instant::now();
        loop {
            let attempt = Wire::open(&self.places[0]).and_then(|mut wire| Ok((wire.ask(line)?, wire)));
            match attempt {
                Ok((answer, _)) if answer == REFUSED => {
                    self.seen.refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) if start.elapsed() < LIMIT => {
                    self.seen.perhaps_refused.fetch_add(1, Ordering::Relaxed);
                }
                outcome => return outcome,
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Some statistics, over a connection of its own.
    pub(super) fn stats(&self, group: &str) -> io::Result<Vec<(String, String)>> {
        let (_, mut wire) = self.ask_for("version")?;
        stats(&mut wire, group)
    }

    pub(super) fn is_alive(&self) -> bool {
        self.child.lock().is_ok_and(|mut child| matches!(child.try_wait(), Ok(None)))
    }

    pub(super) fn signal(&self, signal: Signal) {
        // A child that was not waited for keeps its id.
        if let Some(pid) = Pid::from_raw(self.pid as i32)
            && self.is_alive()
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// RssAnon in KiB.
    pub(super) fn resident_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    }

    /// Open files.
    pub(super) fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }

    /// Bounds its open files from now on.
    pub(super) fn limit_files(&self, count: u64) -> Result<(), String> {
        let maximum = getrlimit(Resource::Nofile).maximum;
        prlimit(Pid::from_raw(self.pid as i32), Resource::Nofile, Rlimit { current: Some(count), maximum })
            .map(drop)
            .map_err(|error| format!("{}: {error}", self.name))
    }

    /// Waits until something holds.
    pub(super) fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
        let start = Instant::now();
        while !holds() {
            if start.elapsed() > LIMIT || !self.is_alive() {
                let fate = if self.is_alive() { "" } else { " (it has fallen)" };
                return Err(format!("server {:?} {what}{fate}", self.name));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Asks it to stop, and waits for its end.
    pub(super) fn stop(&self) -> Result<(), String> {
        self.signal(Signal::TERM);
        let start = Instant::now();
        loop {
            let ended = self.child.lock().map_err(|_| "a thread has failed")?.try_wait();
            match ended {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("server {:?} ended with {status}", self.name)),
                Ok(None) if start.elapsed() < LIMIT => thread::sleep(Duration::from_millis(20)),
                Ok(None) => return Err(format!("server {:?} does not stop", self.name)),
                Err(error) => return Err(format!("server {:?}: {error}", self.name)),
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Ok(child) = self.child.get_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The message to a connection above the limit.
pub(super) const REFUSED: &str = "ERROR Too many open connections";

/// `stats GROUP` over a connection.
pub(super) fn stats(wire: &mut Wire, group: &str) -> io::Result<Vec<(String, String)>> {
    wire.send(format!("stats{}{group}\r\n", if group.is_empty() { "" } else { " " }).as_bytes())?;
    let mut all = Vec::new();
    loop {
        let line = wire.line()?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["END"] => return Ok(all),
            ["STAT", name, ref value @ ..] => all.push((name.to_string(), value.join(" "))),
            _ => return Err(io::Error::other(format!("{line:?} among the statistics"))),
        }
    }
}

/// A number among statistics.
pub(super) fn stat(stats: &[(String, String)], name: &str) -> Result<u64, String> {
    let found = stats.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.parse().ok());
    found.ok_or_else(|| format!("there is no number {name} among the statistics"))
}
