//! Sends random requests to memcached and to Todana: the replies must be equal, apart from the
//! differences in docs/protocol/memcached.md ("Differences to memcached 1.6.45").
//!
//! Each session is a few requests over its own connection and its own keys. If replies differ, the
//! session is reduced to the requests that still show the difference, and then printed.

mod draft;
mod exceptions;
mod pair;
mod request;

use crate::step::{StepOutcome, built};
use fastrand::Rng;
use pair::{ReplyDifference, ServerPair};
use request::{RandomRequest, RequestPart};
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of printed findings; a broken server would print thousands.
const FINDINGS_MAX: usize = 20;

/// The version of memcached with which Todana is compared.
const VERSION: &str = "memcached 1.6.45";

/// Sends up to `requests` requests to this build and to the memcached of this machine, if that has
/// the expected version.
pub(crate) fn run_installed(requests: u64) -> StepOutcome {
    let output = std::process::Command::new("memcached").arg("-V").output();
    let Ok(output) = output else { return StepOutcome::Skipped("memcached: not installed".into()) };
    let version = String::from_utf8_lossy(&output.stdout);
    if version.trim() != VERSION {
        return StepOutcome::Skipped(format!("{}: installed, but {VERSION} is needed", version.trim()));
    }
    run(Path::new("memcached"), &built("todana"), requests, Some(1))
}

/// Sends `requests` requests to both servers and fails if their replies differ.
pub(crate) fn run(memcached: &Path, todana: &Path, requests: u64, seed: Option<u64>) -> StepOutcome {
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}");
    match search(memcached, todana, requests, seed) {
        Ok(0) => StepOutcome::Passed,
        Ok(found) => StepOutcome::Failed(format!("{found} kinds of differences, seed {seed}")),
        Err(error) => StepOutcome::Failed(error),
    }
}

fn search(memcached: &Path, todana: &Path, requests: u64, seed: u64) -> Result<usize, String> {
    let mut pair = ServerPair::start(memcached, todana)?;
    let mut random = Rng::with_seed(seed);
    let (mut sent, mut sessions, mut excepted) = (0, 0_u64, 0_u64);
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    while sent < requests && found.len() < FINDINGS_MAX {
        let mut session = draft::session(&mut random);
        let drafted = session.len();
        exceptions::remove_documented(&mut session);
        excepted += (drafted - session.len()) as u64;
        sent += session.len() as u64;
        sessions += 1;
        if pair.compare(&session)?.is_none() {
            continue;
        }
        let Some((session, difference)) = minimise(&mut pair, session)? else { continue };
        let times = found.entry(signature(&session)).or_default();
        *times += 1;
        if *times == 1 {
            print(&session, &difference);
        }
    }
    println!("{sent} requests in {sessions} sessions, {excepted} left out as documented differences");
    for (signature, times) in &found {
        println!("{times} times: {signature}");
    }
    Ok(found.len())
}

/// Removes the requests and words that the difference does not need. Returns `None` if the
/// difference does not occur again.
fn minimise(
    pair: &mut ServerPair,
    mut session: Vec<RandomRequest>,
) -> Result<Option<(Vec<RandomRequest>, ReplyDifference)>, String> {
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
    // After complete requests, their flags and words are removed.
    for request in 0..session.len() {
        // The command, the key and the length of a block are kept.
        let has_block = session[request].parts.iter().any(|part| matches!(part, RequestPart::Block(_)));
        let mut piece = if has_block { 3 } else { 2 };
        while piece < session[request].parts.len() {
            let mut shorter = session.clone();
            let removed = shorter[request].parts.remove(piece);
            let ends_line = matches!(&removed, RequestPart::Text(text) | RequestPart::Block(text) if text.ends_with(b"\n"));
            if !ends_line && pair.compare(&shorter)?.is_some() {
                session = shorter;
            } else {
                piece += 1;
            }
        }
    }
    Ok(pair.compare(&session)?.map(|difference| (session, difference)))
}

/// Returns the signature by which findings are grouped: commands and letters, without keys and
/// numbers.
fn signature(session: &[RandomRequest]) -> String {
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

fn print(session: &[RandomRequest], difference: &ReplyDifference) {
    println!("\n--- a difference");
    session.iter().for_each(|request| println!("> {}", request.show()));
    println!("memcached:\n{}", difference.memcached);
    println!("todana:\n{}", difference.todana);
}
