//! The transcripts of `tests/transcripts/kyoto`: requests of Kyoto Tycoon's clients and expected
//! answers, as data. Their format is described in `tests/transcripts/README.md`.
//!
//! Each file is played over a socket against each kind of database that it names, with its input at
//! once and byte by byte.

#[cfg(feature = "cassandra")]
mod cassandra;
mod running;
mod transcript;

use running::{Client, Running, options};
use std::fmt::Write as _;
use std::io::Read;
use todana::DatabaseName;
use todana_server::{DatabaseSpec, ServerOptions};
use transcript::{bytes, transcripts};

/// One step of a transcript.
#[derive(Debug, Default)]
struct Step {
    line: usize,
    input: Vec<u8>,
    expected: Vec<Expected>,
    closes: bool,
}

/// The expected answer.
#[derive(Debug)]
enum Expected {
    /// An answer in HTTP.
    Answer { status: u16, headers: Vec<(String, String)>, absent: Vec<String>, body: Vec<u8>, is_head: bool },
    /// Bytes of the binary protocol.
    Bytes(Vec<u8>),
}

#[derive(Debug)]
struct Transcript {
    /// The names of the first database, one for each run.
    databases: Vec<String>,
    options: ServerOptions,
    steps: Vec<Step>,
}

fn hex(text: &str, place: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    assert!(digits.len().is_multiple_of(2) && digits.is_ascii(), "{place}: not so many digits");
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16);
    (0..digits.len()).step_by(2).map(|at| byte(at).unwrap_or_else(|_| panic!("{place}: no digits"))).collect()
}

fn parse(name: &str, text: &str) -> Transcript {
    let mut transcript = Transcript { databases: Vec::new(), options: options(), steps: Vec::new() };
    transcript.options.protocols.kyoto.spoken = todana_server::KyotoMode::Beside;
    transcript.options.limits.threads = 2;
    let mut step: Option<Step> = None;
    for (index, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", index + 1);
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let takes_input =
            |step: &Option<Step>| step.as_ref().is_none_or(|step| step.expected.is_empty() && !step.closes);
        if kind.is_empty() || !takes_input(&step) && matches!(kind, ">" | "#>" | "call") {
            transcript.steps.extend(step.take());
        }
        match kind {
            "" | "#" => {}
            "=" => match rest.split_once(' ').unwrap_or((rest, "")) {
                ("db", names) => transcript.databases.extend(names.split(' ').map(str::to_string)),
                ("further", name) => {
                    let name = DatabaseName::parse(name).unwrap();
                    transcript.options.databases.further.push(DatabaseSpec { name, data: None });
                }
                ("-F", _) => transcript.options.limits.flush_allowed = false,
                ("-X", _) => transcript.options.limits.dump_allowed = false,
                ("pages", _) => transcript.options.protocols.kyoto.pages_allowed = true,
                (other, _) => panic!("{place}: unknown option {other}"),
            },
            _ => {
                let step = step.get_or_insert_with(|| Step { line: index + 1, ..Step::default() });
                match kind {
                    ">" => step.input.extend(bytes(rest, &place)),
                    "#>" => step.input.extend(hex(rest, &place)),
                    "call" => {
                        let (name, map) = rest.split_once(' ').unwrap_or((rest, ""));
                        let body = bytes(map, &place);
                        let head = format!(
                            "POST /rpc/{name} HTTP/1.1\r\nContent-Type: text/tab-separated-values\r\nContent-Length: {}\r\n\r\n",
                            body.len()
                        );
                        step.input.extend([head.as_bytes(), &body].concat());
                    }
                    "<" => {
                        let (status, body) = rest.split_once(' ').unwrap_or((rest, ""));
                        step.expected.push(Expected::Answer {
                            status: status.parse().unwrap_or_else(|_| panic!("{place}: no status")),
                            headers: Vec::new(),
                            absent: Vec::new(),
                            body: bytes(body, &place),
                            is_head: false,
                        });
                    }
                    "#<" => step.expected.push(Expected::Bytes(hex(rest, &place))),
                    "+" | "-" | "head" => {
                        let Some(Expected::Answer { headers, absent, is_head, .. }) =
                            step.expected.last_mut()
                        else {
                            panic!("{place}: a header of nothing");
                        };
                        match kind {
                            "head" => *is_head = true,
                            "-" => absent.push(rest.to_ascii_lowercase()),
                            _ => {
                                let (name, value) =
                                    rest.split_once(": ").unwrap_or_else(|| panic!("{place}: no header"));
                                headers.push((name.to_string(), value.to_string()));
                            }
                        }
                    }
                    "!" => step.closes = true,
                    _ => panic!("{place}: what is {line:?}?"),
                }
            }
        }
    }
    transcript.steps.extend(step);
    transcript
}

/// A received HTTP answer.
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

fn read_answer(client: &mut Client, is_head: bool) -> Result<Answer, String> {
    let line = client.line();
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.ok_or_else(|| format!("no answer: {line:?}"))?;
    let mut headers = Vec::new();
    loop {
        let line = client.line();
        let header = line.strip_suffix("\r\n").ok_or_else(|| format!("no end of a line: {line:?}"))?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(": ").ok_or_else(|| format!("no header: {header:?}"))?;
        headers.push((name.to_string(), value.to_string()));
    }
    let len = headers.iter().find(|(name, _)| name == "Content-Length");
    let len = len.map_or(0, |(_, len)| len.parse().unwrap());
    let body = client.take(if is_head { 0 } else { len });
    Ok(Answer { status, headers, body })
}

/// Plays a step. Fails with a description of the first difference.
fn play(client: &mut Client, step: &Step, by_bytes: bool, port: u16) -> Result<(), String> {
    // Input that arrives after the server has closed resets the connection, and its last answer is
    // lost.
    if by_bytes && !step.closes && step.input.len() < 2000 {
        step.input.iter().for_each(|&byte| client.send(&[byte]));
    } else {
        client.send(&step.input);
    }
    for expected in &step.expected {
        match expected {
            Expected::Bytes(expected) => {
                let came = client.take(expected.len());
                if came != *expected {
                    return Err(format!("{} where {} is due", came.escape_ascii(), expected.escape_ascii()));
                }
            }
            Expected::Answer { status, headers, absent, body, is_head } => {
                let came = read_answer(client, *is_head)?;
                let mut wrong = String::new();
                if came.status != *status {
                    let _ = write!(wrong, "{} where {status} is due; ", came.status);
                }
                if came.body != *body {
                    let _ =
                        write!(wrong, "{} where {} is due; ", came.body.escape_ascii(), body.escape_ascii());
                }
                for (name, value) in headers {
                    let value = value.replace("$PORT", &port.to_string());
                    if !came.headers.iter().any(|header| *header == (name.clone(), value.clone())) {
                        let _ = write!(wrong, "no {name}: {value} in {:?}; ", came.headers);
                    }
                }
                for name in absent {
                    if came.headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name)) {
                        let _ = write!(wrong, "there is a {name}; ");
                    }
                }
                if !wrong.is_empty() {
                    return Err(wrong);
                }
            }
        }
    }
    if step.closes {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = client.stream.read_to_end(&mut rest);
        if !rest.is_empty() {
            return Err(format!("{} where it is to be closed", rest.escape_ascii()));
        }
    }
    Ok(())
}

/// Plays a transcript on a server with this database. Fails with the first difference.
fn run(transcript: Transcript, database: DatabaseName, by_bytes: bool) -> Result<(), String> {
    let Transcript { mut options, steps, .. } = transcript;
    let shown = database.to_string();
    options.databases.database = Some(database);
    let server = Running::start(options);
    let port = server.addresses[0].port();
    let mut client = server.connect();
    for step in &steps {
        play(&mut client, step, by_bytes, port)
            .map_err(|wrong| format!(":{} on {shown}: {wrong}", step.line))?;
        if step.closes {
            client = server.connect();
        }
    }
    // If nothing more has come, this is the next answer.
    client.send(b"POST /rpc/void HTTP/1.1\r\nConnection: close\r\n\r\n");
    let last = client.rest();
    match last.starts_with(b"HTTP/1.1 200 OK\r\n") {
        true => Ok(()),
        false => Err(format!(" on {shown}: more came: {}", last.escape_ascii())),
    }
}

/// Transcripts that do not hold on a cluster, with the reason.
#[cfg(feature = "cassandra")]
const NOT_ON_A_CLUSTER: &[(&str, &str)] = &[
    ("bulk.txt", "a cluster has no empty keys"),
    ("match_hash.txt", "the keys of a hash come in the order of their tokens"),
    ("records.txt", "a cluster has no empty keys"),
];

#[test]
#[cfg(feature = "cassandra")]
fn transcripts_hold_on_a_cluster() {
    let (mut failures, mut played) = (Vec::new(), 0);
    for (name, text) in &transcripts("kyoto") {
        let transcript = parse(name, text);
        // A transcript of `+` alone shows the directions of that kind.
        let is_of_plus = transcript.databases == ["+"];
        if is_of_plus || NOT_ON_A_CLUSTER.iter().any(|(other, _)| other == name) {
            continue;
        }
        let is_unordered = transcript.databases[0] == ":";
        let (keyspace, words) =
            if is_unordered { ("todana_kyoto_hash", "") } else { ("todana_kyoto_tree", "#ordered=4") };
        let Some(database) = cassandra::empty(keyspace, words) else { return };
        played += 1;
        failures.extend(run(transcript, database, false).err().map(|wrong| format!("{name}{wrong}")));
    }
    transcript::none_fails(&failures, played);
}

#[test]
fn every_transcript_holds() {
    let transcripts = transcripts("kyoto");
    let (mut failures, mut steps) = (Vec::new(), 0);
    for (name, text) in &transcripts {
        for (database, by_bytes) in
            parse(name, text).databases.iter().flat_map(|database| [(database, false), (database, true)])
        {
            let how = if by_bytes { "byte by byte" } else { "whole" };
            let transcript = parse(name, text);
            steps += transcript.steps.len();
            let database = DatabaseName::parse(database).unwrap();
            failures.extend(
                run(transcript, database, by_bytes).err().map(|wrong| format!("{name}{wrong}, {how}")),
            );
            if !failures.is_empty() {
                break;
            }
        }
    }
    println!("{} transcripts, {steps} steps", transcripts.len());
    assert!(transcripts.len() >= 8, "the transcripts are there");
    transcript::none_fails(&failures, transcripts.len());
}
