//! Samples a Redis or Valkey.

use super::sample::{RecordSample, SampledRecord, SampledServer};
use crate::CommandFailure;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use todana_client::Login;

/// The number of keys of a step.
const KEYS_AT_ONCE: &str = "128";
/// The longest reply that is read, in bytes, and the most parts of one.
const REPLY_LEN_MAX: usize = 512 << 20;
const PARTS_MAX: usize = 1 << 20;

/// Reads records in the order of SCAN, which is that of their hashes.
pub(super) fn sample(
    stream: &TcpStream,
    login: Option<&Login>,
    sample: &mut RecordSample,
) -> Result<SampledServer, CommandFailure> {
    let mut client = RedisClient { stream, input: BufReader::new(stream) };
    if let Some(login) = login {
        let (user, password) = (login.user().as_bytes(), login.password().as_bytes());
        let words = [&b"AUTH"[..], user, password];
        // Redis before 6.0 knows only passwords, which are those of this user.
        let without_user = [words[0], password];
        client.call(if user == b"default" { &without_user } else { &words })?;
    }
    let info = client.text(&[b"INFO"])?;
    let figures: BTreeMap<&str, &str> =
        info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let count = |name: &str| figures.get(name).and_then(|text| text.parse::<u64>().ok());
    let records = client.text(&[b"DBSIZE"])?.parse().unwrap_or(0);
    // Redis from 7.2 on: reads do not count as accesses.
    let _ = client.call(&[b"CLIENT", b"NO-TOUCH", b"ON"]);
    let (mut others, mut cursor) = (BTreeMap::<String, u64>::new(), b"0".to_vec());
    loop {
        let RedisReply::Parts(parts) = client.call(&[b"SCAN", &cursor, b"COUNT", KEYS_AT_ONCE.as_bytes()])?
        else {
            return Err(unexpected());
        };
        let [RedisReply::Text(next), RedisReply::Parts(keys)] = parts.as_slice() else {
            return Err(unexpected());
        };
        read(&mut client, keys, sample, &mut others)?;
        if next == b"0" || sample.is_complete() {
            break;
        }
        cursor.clone_from(next);
    }
    let name = match figures.get("valkey_version") {
        Some(version) => format!("valkey {version}"),
        None => format!("redis {}", figures.get("redis_version").unwrap_or(&"")),
    };
    let memory = count("used_memory_rss").map(|bytes| (bytes, "used_memory_rss"));
    let skipped: u64 = others.values().sum();
    let seen = skipped + sample.len();
    // Only strings become records here.
    let strings = (records as f64 * sample.len() as f64 / seen.max(1) as f64).round() as u64;
    Ok(SampledServer { name, records: strings, memory, notes: notes(&figures, &others, seen) })
}

fn notes(figures: &BTreeMap<&str, &str>, others: &BTreeMap<String, u64>, seen: u64) -> Vec<String> {
    let mut notes = Vec::new();
    for (kind, count) in others {
        let percent = *count as f64 * 100.0 / seen.max(1) as f64;
        notes.push(format!("{percent:.1} % of the keys are of type {kind}, which does not carry over; the memory there includes them"));
    }
    let further: Vec<&str> =
        figures.keys().filter(|name| is_database(name) && **name != "db0").copied().collect();
    if !further.is_empty() {
        notes.push(format!("{} not sampled; the memory there includes them", further.join(", ")));
    }
    notes.push("scripts, transactions, streams and publish/subscribe do not carry over; clients need memcached's or Kyoto Tycoon's protocols".into());
    notes
}

/// Returns true for `db0`, `db1` ...
fn is_database(name: &str) -> bool {
    name.strip_prefix("db")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Reads the strings of these keys. Keys of other types are counted in `others`.
fn read(
    client: &mut RedisClient<'_>,
    keys: &[RedisReply],
    sample: &mut RecordSample,
    others: &mut BTreeMap<String, u64>,
) -> Result<(), CommandFailure> {
    let mut names = Vec::new();
    let mut requests = Vec::new();
    for key in keys {
        let RedisReply::Text(key) = key else { return Err(unexpected()) };
        names.push(key);
        for command in [&b"TYPE"[..], b"PTTL", b"GET"] {
            put_request(&[command, key], &mut requests);
        }
    }
    client.stream.write_all(&requests)?;
    for key in names {
        let mut next = || read_reply(&mut client.input, 0);
        let (kind, expiry, value) = (next()?, next()?, next()?);
        let RedisReply::Text(kind) = kind else { return Err(unexpected()) };
        match value {
            RedisReply::Text(value) if !sample.is_complete() => {
                let expires = expiry != RedisReply::Text(b"-1".to_vec());
                sample.add(SampledRecord { key: key.clone(), value, flags: 0, expires: Some(expires) });
            }
            // The key has been removed, or the sample is complete.
            RedisReply::Text(_) | RedisReply::Null => {}
            // GET of another type is an error.
            _ => *others.entry(String::from_utf8_lossy(&kind).into_owned()).or_default() += 1,
        }
    }
    Ok(())
}

fn unexpected() -> CommandFailure {
    CommandFailure::trouble("the server's reply is not one of Redis")
}

/// A reply in the protocol RESP2.
#[derive(Debug, PartialEq, Eq)]
enum RedisReply {
    /// A string, or a number as text.
    Text(Vec<u8>),
    /// An array.
    Parts(Vec<RedisReply>),
    /// No value.
    Null,
    /// An error.
    Error(String),
}

struct RedisClient<'s> {
    stream: &'s TcpStream,
    input: BufReader<&'s TcpStream>,
}

impl RedisClient<'_> {
    /// Sends a command and returns its reply.
    fn call(&mut self, words: &[&[u8]]) -> Result<RedisReply, CommandFailure> {
        let mut request = Vec::new();
        put_request(words, &mut request);
        self.stream.write_all(&request)?;
        match read_reply(&mut self.input, 0)? {
            RedisReply::Error(text) => Err(CommandFailure::trouble(format!("the server says: {text}"))),
            reply => Ok(reply),
        }
    }

    fn text(&mut self, words: &[&[u8]]) -> Result<String, CommandFailure> {
        match self.call(words)? {
            RedisReply::Text(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            _ => Err(unexpected()),
        }
    }
}

/// Appends a command.
fn put_request(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Reads a reply. Arrays may be nested twice.
fn read_reply(input: &mut impl BufRead, depth: u8) -> Result<RedisReply, CommandFailure> {
    let mut line = Vec::new();
    // No line is longer than an error message.
    input.by_ref().take(64 << 10).read_until(b'\n', &mut line)?;
    let line = line.strip_suffix(b"\r\n").ok_or_else(unexpected)?;
    let (kind, rest) = line.split_first().ok_or_else(unexpected)?;
    let number = || std::str::from_utf8(rest).ok().and_then(|text| text.parse::<i64>().ok());
    match kind {
        b'+' | b':' => Ok(RedisReply::Text(rest.to_vec())),
        b'-' => Ok(RedisReply::Error(String::from_utf8_lossy(rest).into_owned())),
        b'$' | b'*' if number() == Some(-1) => Ok(RedisReply::Null),
        b'$' => {
            let len = number().and_then(|len| usize::try_from(len).ok()).filter(|len| *len <= REPLY_LEN_MAX);
            let len = len.ok_or_else(unexpected)?;
            let mut text = Vec::new();
            // Memory grows with the bytes that arrive, not with the announced length.
            input.by_ref().take(len as u64 + 2).read_to_end(&mut text)?;
            if text.len() != len + 2 {
                return Err(unexpected());
            }
            text.truncate(len);
            Ok(RedisReply::Text(text))
        }
        b'*' if depth < 2 => {
            let count =
                number().and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= PARTS_MAX);
            let count = count.ok_or_else(unexpected)?;
            let parts = (0..count).map(|_| read_reply(input, depth + 1));
            parts.collect::<Result<_, _>>().map(RedisReply::Parts)
        }
        _ => Err(unexpected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_and_bounded() {
        let read = |bytes: &str| read_reply(&mut bytes.as_bytes(), 0);
        let text = |text: &str| RedisReply::Text(text.into());
        let scanned = "*2\r\n$1\r\n0\r\n*2\r\n$1\r\na\r\n$3\r\nb\r\n\r\n";
        let keys = RedisReply::Parts(vec![text("a"), text("b\r\n")]);
        assert_eq!(read(scanned).unwrap(), RedisReply::Parts(vec![text("0"), keys]));
        assert_eq!(read(":17\r\n").unwrap(), text("17"));
        assert_eq!(read("$-1\r\n").unwrap(), RedisReply::Null);
        assert_eq!(read("-ERR no\r\n").unwrap(), RedisReply::Error("ERR no".into()));
        for wrong in [
            "",
            "VERSION 1\r\n",
            "$5\r\nab\r\n",
            "$99999999999\r\n",
            "*99999999\r\n",
            "*1\r\n*1\r\n*1\r\n:1\r\n",
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
