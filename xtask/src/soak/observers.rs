//! The observer, which requests statistics, metrics, key lists and watches. The director, which
//! advances the clocks, flushes, and sends signals.

use super::connection::{ClientConnection, REPLY_TIMEOUT};
use super::progress::{RunProgress, TableSection};
use super::server::{SoakServer, stats};
use rustix::process::Signal;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// Observes one server after the other until the run stops.
pub(super) fn run_observer(servers: &[Arc<SoakServer>], progress: &RunProgress, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !progress.is_stopped() {
        for server in servers {
            if let Err(error) = observe_once(server, progress, &mut random) {
                progress.fail(format!("observer of {:?}: {error}", server.name));
                return;
            }
        }
        progress.pause(100);
    }
}

fn observe_once(server: &SoakServer, progress: &RunProgress, random: &mut fastrand::Rng) -> io::Result<()> {
    let kind = match random.u32(..8) {
        0..=2 => {
            let (_, mut connection) = server.connect_and_ask("version")?;
            for group in ["", "settings", "items", "slabs", "sizes", "conns"] {
                let all = stats(&mut connection, group)?;
                if group.is_empty() && all.len() < 50 {
                    return Err(io::Error::other(format!("stats: only {} statistics", all.len())));
                }
            }
            "statistics"
        }
        3 | 4 => {
            let Some(address) = &server.admin else { return Ok(()) };
            for (path, needle) in [("metrics", "memcached_up 1"), ("healthz", "200 OK"), ("readyz", "200 OK")]
            {
                let page = http_page(address, path)?;
                if !page.starts_with("HTTP/1.1 200") || !page.contains(needle) {
                    return Err(io::Error::other(format!("/{path}: unexpected page {page:.200}")));
                }
            }
            "metrics"
        }
        5 => {
            list_keys(server, "lru_crawler metadump all", "END", |_| {})?;
            "metadump"
        }
        6 => {
            list_keys(server, "lru_crawler mgdump all", "EN", |_| {})?;
            "mgdump"
        }
        _ => {
            let (answer, mut connection) =
                server.connect_and_ask("watch fetchers mutations evictions connevents deletions")?;
            if answer != "OK" {
                return Err(io::Error::other(format!("watch: unexpected reply {answer:?}")));
            }
            for _ in 0..50 {
                let line = match connection.line() {
                    // Once the load has ended, the server reports no more events.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    outcome => outcome?,
                };
                if !line.starts_with("ts=") && !line.starts_with("skipped=") {
                    return Err(io::Error::other(format!("watch: unexpected line {line:?}")));
                }
            }
            "watcher"
        }
    };
    progress.count(TableSection::Requests, &format!("observers: {kind}"), 1);
    Ok(())
}

fn http_page(address: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream
        .write_all(format!("GET /{path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

/// Requests a list of all keys and calls `on_line` for each line.
pub(super) fn list_keys(
    server: &SoakServer,
    command: &str,
    end: &str,
    mut on_line: impl FnMut(&str),
) -> io::Result<()> {
    let (answer, mut connection) = server.connect_and_ask(command)?;
    if answer != "OK" {
        return Err(io::Error::other(format!("{command}: unexpected reply {answer:?}")));
    }
    loop {
        let line = connection.line()?;
        if line == end {
            return Ok(());
        }
        on_line(&line);
    }
}

/// Advances the clocks, flushes servers that allow it, and sends signals, until the run stops.
pub(super) fn run_director(servers: &[Arc<SoakServer>], progress: &RunProgress, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut round = 0;
    while !progress.is_stopped() {
        progress.pause(400);
        let server = &servers[round % servers.len()];
        round += 1;
        let done = server.connect_and_ask("version").and_then(|(_, mut connection)| {
            // Flushes are evenly spaced, because memory is compared over time and a flushed server
            // needs seconds to fill up.
            if server.is_flushed && (round / servers.len()) % 10 == 9 {
                flush(server, &mut connection, &mut random)?;
                progress.count(TableSection::Faults, "flush_all", 1);
            }
            advance(server, &mut connection, random.u64(1..30))?;
            if random.u32(..10) == 0 {
                server.signal(Signal::HUP);
                progress.count(TableSection::Faults, "SIGHUP", 1);
            }
            Ok(())
        });
        if let Err(error) = done {
            progress.fail(format!("director of {:?}: {error}", server.name));
        }
    }
}

fn poisoned<T>(_: T) -> io::Error {
    io::Error::other("a thread panicked")
}

fn advance(server: &SoakServer, connection: &mut ClientConnection, seconds: u64) -> io::Result<()> {
    let mut clock = server.clock.write().map_err(poisoned)?;
    let answer = connection.ask(&format!("debugtime +{seconds}"))?;
    if answer != "OK" {
        return Err(io::Error::other(format!("debugtime: unexpected reply {answer:?}")));
    }
    clock.now += seconds;
    if clock.flush_at.is_some_and(|at| at <= clock.now) {
        clock.flush_at = None;
        clock.flushes += 1;
    }
    Ok(())
}

fn flush(
    server: &SoakServer,
    connection: &mut ClientConnection,
    random: &mut fastrand::Rng,
) -> io::Result<()> {
    let delay = random.bool().then(|| random.u64(1..40));
    let mut clock = server.clock.write().map_err(poisoned)?;
    let answer = connection.ask(&delay.map_or("flush_all".into(), |delay| format!("flush_all {delay}")))?;
    if answer != "OK" {
        return Err(io::Error::other(format!("flush_all: unexpected reply {answer:?}")));
    }
    // A later flush replaces one that is scheduled.
    clock.flush_at = delay.map(|delay| clock.now + delay);
    clock.flushes += u64::from(delay.is_none());
    Ok(())
}
