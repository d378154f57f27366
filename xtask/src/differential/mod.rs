//! Random requests to a memcached and to Todana: the answers must be the same, but for what
//! docs/protocol/memcached.md ("Differences to memcached 1.6.45") lists.
//!
//! Sessions of a few requests each go over a connection of their own, to keys of their own. Where
//! answers differ, requests are taken away as long as they still do, and what is left is printed.

mod draft;
mod exceptions;
mod pair;
mod request;

use crate::step::{Outcome, built};
use fastrand::Rng;
use pair::{Difference, Pair};
use request::{Part, Request};
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of printed findings; a broken server would fill the screen.
const FINDINGS_MAX: usize = 20;

/// The version whose answers are ours.
const VERSION: &str = "memcached 1.6.45";

/// Sends so many requests to the memcached of this machine, if it is the right one, and to this
/// server.
pub(crate) fn run_installed(requests: u64) -> Outcome {
    let output = std::process::Command::new("memcached").arg("-V").output();
    let Ok(output) = output else { return Outcome::Skipped("memcached is not installed".into()) };
    let version = String::from_utf8_lossy(&output.stdout);
    if version.trim() != VERSION {
        return Outcome::Skipped(format!("{} is installed, and {VERSION} is compared with", version.trim()));
    }
    run(Path::new("memcached"), &built("todana"), requests, Some(1))
}

/// Sends this number of requests to both servers.
pub(crate) fn run(memcached: &Path, todana: &Path, requests: u64, seed: Option<u64>) -> Outcome {
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}");
    match search(memcached, todana, requests, seed) {
        Ok(0) => Outcome::Passed,
        Ok(found) => Outcome::Failed(format!("{found} kinds of differences, seed {seed}")),
        Err(error) => Outcome::Failed(error),
    }
}

fn search(memcached: &Path, todana: &Path, requests: u64, seed: u64) -> Result<usize, String> {
    let mut pair = Pair::start(memcached, todana)?;
    let mut random = Rng::with_seed(seed);
    let (mut sent, mut sessions, mut excepted) = (0, 0_u64, 0_u64);
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    while sent < requests && found.len() < FINDINGS_MAX {
        let mut session = draft::session(&mut random);
        let drafted = session.len();
        exceptions::leave_out(&mut session);
        excepted += (drafted - session.len()) as u64;
        sent += session.len() as u64;
        sessions += 1;
        if pair.compare(&session)?.is_none() {
            continue;
        }
        let Some((session, difference)) = minimise(&mut pair, session)? else { continue };
        let times = found.entry(shape(&session)).or_default();
        *times += 1;
        if *times == 1 {
            print(&session, &difference);
        }
    }
    println!("{sent} requests in {sessions} sessions, {excepted} left out as documented differences");
    for (shape, times) in &found {
        println!("{times} times: {shape}");
    }
    Ok(found.len())
}

/// The session with all taken away that the difference does not need; `None` if it does not show
/// again.
fn minimise(
    pair: &mut Pair,
    mut session: Vec<Request>,
) -> Result<Option<(Vec<Request>, Difference)>, String> {
    let mut at = 0;
    while at < session.len() {
        let mut shorter = session.clone();
        shorter.remove(at);
        if pair.compare(&shorter)?.is_some() {
            session = shorter;
        } else {
            at += 1;
        }
    }
    // Then pieces of requests: flags and words.
    for request in 0..session.len() {
        // Command, key and the length of a block stay.
        let has_block = session[request].parts.iter().any(|part| matches!(part, Part::Block(_)));
        let mut piece = if has_block { 3 } else { 2 };
        while piece < session[request].parts.len() {
            let mut shorter = session.clone();
            let removed = shorter[request].parts.remove(piece);
            let ends_line = matches!(&removed, Part::Text(text) | Part::Block(text) if text.ends_with(b"\n"));
            if !ends_line && pair.compare(&shorter)?.is_some() {
                session = shorter;
            } else {
                piece += 1;
            }
        }
    }
    Ok(pair.compare(&session)?.map(|difference| (session, difference)))
}

/// The signature by which findings are grouped: commands and letters, no keys and numbers.
fn shape(session: &[Request]) -> String {
    let word = |word: &str, index: usize| -> String {
        let keeps = index == 0 || !word.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
        if keeps { word.chars().take(if index == 0 { 8 } else { 1 }).collect() } else { "#".into() }
    };
    let shapes = session.iter().map(|request| {
        let bytes = request.render("");
        let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default().escape_ascii().to_string();
        let words = line.split(' ').enumerate().filter(|(index, _)| *index != 1);
        words.map(|(index, text)| word(text, index)).collect::<Vec<_>>().join(" ")
    });
    shapes.collect::<Vec<_>>().join("; ")
}

fn print(session: &[Request], difference: &Difference) {
    println!("\n--- a difference");
    session.iter().for_each(|request| println!("> {}", request.show()));
    println!("memcached:\n{}", difference.memcached);
    println!("todana:\n{}", difference.todana);
}
