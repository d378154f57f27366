//! Those who look on: statistics, metrics, lists of keys, watchers. And who moves the clocks, and
//! flushes.

use super::node::{Node, stats};
use super::tally::{Part, Tally};
use super::wire::{PATIENCE, Wire};
use rustix::process::Signal;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// Looks at one server after the other until the end.
pub(super) fn observe(nodes: &[Arc<Node>], tally: &Tally, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !tally.ends() {
        for node in nodes {
            if let Err(error) = look(node, tally, &mut random) {
                tally.fail(format!("observer of {:?}: {error}", node.name));
                return;
            }
        }
        tally.pause(100);
    }
}

fn look(node: &Node, tally: &Tally, random: &mut fastrand::Rng) -> io::Result<()> {
    let kind = match random.u32(..8) {
        0..=2 => {
            let (_, mut wire) = node.ask_for("version")?;
            for group in ["", "settings", "items", "slabs", "sizes", "conns"] {
                let all = stats(&mut wire, group)?;
                if group.is_empty() && all.len() < 50 {
                    return Err(io::Error::other(format!("there are only {} statistics", all.len())));
                }
            }
            "statistics"
        }
        3 | 4 => {
            let Some(address) = &node.admin else { return Ok(()) };
            for (path, needle) in [("metrics", "memcached_up 1"), ("healthz", "200 OK"), ("readyz", "200 OK")]
            {
                let page = page(address, path)?;
                if !page.starts_with("HTTP/1.1 200") || !page.contains(needle) {
                    return Err(io::Error::other(format!("/{path} is {page:.200}")));
                }
            }
            "metrics"
        }
        5 => {
            list(node, "lru_crawler metadump all", "END", |_| {})?;
            "metadump"
        }
        6 => {
            list(node, "lru_crawler mgdump all", "EN", |_| {})?;
            "mgdump"
        }
        _ => {
            let (answer, mut wire) =
                node.ask_for("watch fetchers mutations evictions connevents deletions")?;
            if answer != "OK" {
                return Err(io::Error::other(format!("watch was answered {answer:?}")));
            }
            for _ in 0..50 {
                let line = match wire.line() {
                    // After the end of the load nothing more is reported.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    outcome => outcome?,
                };
                if !line.starts_with("ts=") && !line.starts_with("skipped=") {
                    return Err(io::Error::other(format!("a watcher was told {line:?}")));
                }
            }
            "watcher"
        }
    };
    tally.count(Part::Requests, &format!("observers: {kind}"), 1);
    Ok(())
}

fn page(address: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream
        .write_all(format!("GET /{path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

/// A list of all keys, line by line.
pub(super) fn list(node: &Node, command: &str, end: &str, mut see: impl FnMut(&str)) -> io::Result<()> {
    let (answer, mut wire) = node.ask_for(command)?;
    if answer != "OK" {
        return Err(io::Error::other(format!("{command} was answered {answer:?}")));
    }
    loop {
        let line = wire.line()?;
        if line == end {
            return Ok(());
        }
        see(&line);
    }
}

/// Moves the clocks, flushes where that is allowed, and sends signals, until the end.
pub(super) fn direct(nodes: &[Arc<Node>], tally: &Tally, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut round = 0;
    while !tally.ends() {
        tally.pause(400);
        let node = &nodes[round % nodes.len()];
        round += 1;
        let done = node.ask_for("version").and_then(|(_, mut wire)| {
            // Evenly, as it takes seconds to fill up again, and memory is compared over time.
            if node.is_flushed && (round / nodes.len()) % 10 == 9 {
                flush(node, &mut wire, &mut random)?;
                tally.count(Part::Faults, "flush_all", 1);
            }
            advance(node, &mut wire, random.u64(1..30))?;
            if random.u32(..10) == 0 {
                node.signal(Signal::HUP);
                tally.count(Part::Faults, "SIGHUP", 1);
            }
            Ok(())
        });
        if let Err(error) = done {
            tally.fail(format!("director of {:?}: {error}", node.name));
        }
    }
}

fn poisoned<T>(_: T) -> io::Error {
    io::Error::other("a thread has failed")
}

fn advance(node: &Node, wire: &mut Wire, seconds: u64) -> io::Result<()> {
    let mut moment = node.moment.write().map_err(poisoned)?;
    let answer = wire.ask(&format!("debugtime +{seconds}"))?;
    if answer != "OK" {
        return Err(io::Error::other(format!("debugtime was answered {answer:?}")));
    }
    moment.now += seconds;
    if moment.flush_at.is_some_and(|at| at <= moment.now) {
        moment.flush_at = None;
        moment.flushes += 1;
    }
    Ok(())
}

fn flush(node: &Node, wire: &mut Wire, random: &mut fastrand::Rng) -> io::Result<()> {
    let delay = random.bool().then(|| random.u64(1..40));
    let mut moment = node.moment.write().map_err(poisoned)?;
    let answer = wire.ask(&delay.map_or("flush_all".into(), |delay| format!("flush_all {delay}")))?;
    if answer != "OK" {
        return Err(io::Error::other(format!("flush_all was answered {answer:?}")));
    }
    // A later one takes the place of one that is still to come.
    moment.flush_at = delay.map(|delay| moment.now + delay);
    moment.flushes += u64::from(delay.is_none());
    Ok(())
}
