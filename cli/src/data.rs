//! Commands on the records of a running server.

use crate::{Failure, tsv};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use todana_client::{Address, Connection, Outcome, Store, Verb};

/// Requests that `load` sends ahead of their replies.
const AHEAD: usize = 512;
/// Keys that `dump` asks for at once.
const KEYS_AT_ONCE: usize = 64;
/// Bytes that `load` gathers before it sends.
const SEND_BYTES: usize = 64 << 10;

#[derive(Debug, Args)]
pub(crate) struct Server {
    /// The server: host:port, todana://host:port or unix:/path
    #[arg(short = 'S', long = "server", env = "TODANA_SERVER", default_value = "127.0.0.1:11211")]
    address: Address,
}

impl Server {
    fn connect(&self) -> Result<Connection, Failure> {
        Ok(Connection::open(&self.address)?)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Read records
    #[command(
        after_help = "Examples:\n  todana get hello\n  todana get a b c --json\n\nExit code 1 if any is missing."
    )]
    Get {
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
        /// One JSON object a record, with flags and version
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        server: Server,
    },
    /// Store a record
    #[command(
        after_help = "Examples:\n  todana set hello world\n  todana set page - <page.html --ttl 3600\n  todana set counter 0 --add\n\nExit code 1 if a condition (--add, --replace ...) does not hold."
    )]
    Set {
        /// The key
        key: String,
        /// The value; - reads it from standard input
        value: String,
        /// Seconds to live (up to 30 days), or a Unix time; 0 is for ever
        #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
        ttl: i64,
        /// The client's flags
        #[arg(long, default_value_t = 0)]
        flags: u32,
        /// Only if there is no such record
        #[arg(long, group = "how")]
        add: bool,
        /// Only if there is such a record
        #[arg(long, group = "how")]
        replace: bool,
        /// Behind the value that is there
        #[arg(long, group = "how")]
        append: bool,
        /// Before the value that is there
        #[arg(long, group = "how")]
        prepend: bool,
        /// Only if its version is this (`get --json` shows it)
        #[arg(long, group = "how", value_name = "VERSION")]
        cas: Option<u64>,
        #[command(flatten)]
        server: Server,
    },
    /// Remove a record
    Delete {
        /// The key
        key: String,
        #[command(flatten)]
        server: Server,
    },
    /// Add to a number and print it
    Incr {
        /// The key
        key: String,
        /// How much
        #[arg(default_value_t = 1)]
        by: u64,
        #[command(flatten)]
        server: Server,
    },
    /// Subtract from a number (not below 0) and print it
    Decr {
        /// The key
        key: String,
        /// How much
        #[arg(default_value_t = 1)]
        by: u64,
        #[command(flatten)]
        server: Server,
    },
    /// Give a record a new time to live
    Touch {
        /// The key
        key: String,
        /// Seconds to live, or a Unix time; 0 is for ever
        #[arg(allow_negative_numbers = true)]
        ttl: i64,
        #[command(flatten)]
        server: Server,
    },
    /// Print statistics
    Stats {
        /// The group: items, slabs, settings, sizes, reset
        #[arg(default_value = "")]
        group: String,
        /// As one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        server: Server,
    },
    /// Remove all records
    Flush {
        /// Seconds from now
        #[arg(long, default_value_t = 0)]
        delay: u32,
        #[command(flatten)]
        server: Server,
    },
    /// Ask whether the server answers, and print its version
    Ping {
        #[command(flatten)]
        server: Server,
    },
    /// Store the records of a tab-separated file (docs/format/tsv.md)
    #[command(
        after_help = "Examples:\n  todana load records.tsv\n  todana dump - -S old:11211 | todana load - -S new:11211"
    )]
    Load {
        /// The file; - is standard input
        file: PathBuf,
        #[command(flatten)]
        server: Server,
    },
    /// Write all records to a tab-separated file (docs/format/tsv.md)
    Dump {
        /// The file; - is standard output
        file: PathBuf,
        #[command(flatten)]
        server: Server,
    },
}

fn done(outcome: Outcome) -> Result<(), Failure> {
    if outcome == Outcome::Done { Ok(()) } else { Err(Failure::miss()) }
}

fn counted(number: Option<u64>) -> Result<(), Failure> {
    let number = number.ok_or_else(Failure::miss)?;
    writeln!(io::stdout(), "{number}")?;
    Ok(())
}

pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Get { keys, json, server } => get(&mut server.connect()?, keys, *json),
        Command::Set { key, value, ttl, flags, add, replace, append, prepend, cas, server } => {
            let verb = match (add, replace, append, prepend, cas) {
                (true, ..) => Verb::Add,
                (_, true, ..) => Verb::Replace,
                (_, _, true, ..) => Verb::Append,
                (_, _, _, true, _) => Verb::Prepend,
                (.., Some(version)) => Verb::Cas(*version),
                _ => Verb::Set,
            };
            let value = if value == "-" {
                let mut bytes = Vec::new();
                io::stdin().lock().read_to_end(&mut bytes)?;
                bytes
            } else {
                value.clone().into_bytes()
            };
            let store = Store { verb, key: key.as_bytes(), value: &value, flags: *flags, exptime: *ttl };
            done(server.connect()?.store(&store)?)
        }
        Command::Delete { key, server } => done(server.connect()?.delete(key.as_bytes())?),
        Command::Incr { key, by, server } => counted(server.connect()?.count(key.as_bytes(), *by, true)?),
        Command::Decr { key, by, server } => counted(server.connect()?.count(key.as_bytes(), *by, false)?),
        Command::Touch { key, ttl, server } => done(server.connect()?.touch(key.as_bytes(), *ttl)?),
        Command::Stats { group, json, server } => stats(&mut server.connect()?, group, *json),
        Command::Flush { delay, server } => {
            let line = if *delay == 0 { "flush_all".to_string() } else { format!("flush_all {delay}") };
            done(server.connect()?.simple(&line)?)
        }
        Command::Ping { server } => {
            writeln!(io::stdout(), "{} answers: version {}", server.address, server.connect()?.version()?)?;
            Ok(())
        }
        Command::Load { file, server } => load(&mut server.connect()?, file),
        Command::Dump { file, server } => dump(server, file),
    }
}

fn get(connection: &mut Connection, keys: &[String], json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let ends_lines = out.is_terminal() || keys.len() > 1;
    let mut missing = false;
    for key in keys {
        let items = connection.get(&[key.as_bytes()], json)?;
        let Some(item) = items.first() else {
            missing = true;
            continue;
        };
        if json {
            let value = String::from_utf8_lossy(&item.value);
            let object = serde_json::json!({
                "key": key, "value": value, "flags": item.flags, "version": item.version, "bytes": item.value.len(),
            });
            writeln!(out, "{object}")?;
        } else {
            out.write_all(&item.value)?;
            if ends_lines {
                out.write_all(b"\n")?;
            }
        }
    }
    out.flush()?;
    if missing { Err(Failure::miss()) } else { Ok(()) }
}

fn stats(connection: &mut Connection, group: &str, json: bool) -> Result<(), Failure> {
    let statistics = connection.stats(group)?;
    let mut out = io::stdout().lock();
    if json {
        let object: serde_json::Map<String, serde_json::Value> =
            statistics.into_iter().map(|(name, value)| (name, value.into())).collect();
        writeln!(out, "{}", serde_json::Value::Object(object))?;
        return Ok(());
    }
    let width = statistics.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in statistics {
        writeln!(out, "{name:width$}  {value}")?;
    }
    Ok(())
}

/// A bar on standard error; none where nobody looks.
pub(crate) fn progress(len: Option<u64>, template: &str) -> ProgressBar {
    let bar = match len {
        _ if !io::stderr().is_terminal() => ProgressBar::hidden(),
        Some(len) => ProgressBar::new(len),
        None => ProgressBar::new_spinner(),
    };
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn load(connection: &mut Connection, file: &Path) -> Result<(), Failure> {
    let named = |error: io::Error| Failure::trouble(format!("{}: {error}", file.display()));
    let (input, len): (Box<dyn Read>, _) = if file == Path::new("-") {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(file).map_err(named)?;
        let len = file.metadata().map(|metadata| metadata.len()).ok();
        (Box::new(file), len)
    };
    let bar = progress(len, "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}");
    let mut input = BufReader::with_capacity(1 << 18, input);
    let (mut line, mut number, mut waiting, mut refused) = (Vec::new(), 0u64, 0usize, 0u64);
    let mut skipped = 0u64;
    let mut take = |connection: &mut Connection| -> Result<(), Failure> {
        match connection.read_outcome() {
            Ok(Outcome::Done) => {}
            Ok(_) | Err(todana_client::Error::Refused(_)) => refused += 1,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    };
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line).map_err(named)?;
        if read == 0 {
            break;
        }
        number += 1;
        bar.inc(read as u64);
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let at = |what: &dyn std::fmt::Display| {
            Failure::usage(format!("{}, line {number}: {what}", file.display()))
        };
        let record = tsv::parse(text).map_err(|error| at(&error))?;
        if record.expires_at != 0 && record.expires_at <= now() {
            skipped += 1;
            continue;
        }
        let exptime =
            i64::try_from(record.expires_at).unwrap_or(i64::from(i32::MAX)).min(i64::from(i32::MAX));
        let store =
            Store { verb: Verb::Set, key: &record.key, value: &record.value, flags: record.flags, exptime };
        connection.write_store(&store).map_err(|error| at(&error))?;
        waiting += 1;
        if connection.unsent_len() >= SEND_BYTES || waiting >= AHEAD {
            connection.flush()?;
            while waiting > 0 {
                take(connection)?;
                waiting -= 1;
            }
        }
    }
    connection.flush()?;
    for _ in 0..waiting {
        take(connection)?;
    }
    bar.finish_and_clear();
    eprintln!(
        "{} records loaded, {skipped} expired ones skipped, {refused} refused",
        number - refused - skipped
    );
    if refused > 0 { Err(Failure::trouble(format!("the server refused {refused} records"))) } else { Ok(()) }
}

/// The value of `name=` in a line of a metadump.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn decode_uri(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        bytes.push((digit()? * 16 + digit()?) as u8);
    }
    Some(bytes)
}

fn dump(server: &Server, file: &Path) -> Result<(), Failure> {
    let named = |error: io::Error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::from(error),
        _ => Failure::trouble(format!("{}: {error}", file.display())),
    };
    let out: Box<dyn Write> = if file == Path::new("-") {
        Box::new(io::stdout())
    } else {
        Box::new(File::create(file).map_err(named)?)
    };
    let mut out = io::BufWriter::with_capacity(1 << 18, out);
    let mut keys = server.connect()?;
    let mut values = server.connect()?;
    let total = values.stats("")?.into_iter().find(|(name, _)| name == "curr_items");
    let total = total.and_then(|(_, value)| value.parse().ok());
    let bar = progress(total, "{wide_bar} {pos}/{len} records {per_sec} eta {eta}");
    let (mut batch, mut written, mut unsendable) = (Vec::new(), 0u64, 0u64);
    let mut failure = None;
    let mut take = |batch: &mut Vec<(Vec<u8>, u64)>| -> Result<(), Failure> {
        let wanted: Vec<&[u8]> = batch.iter().map(|(key, _)| key.as_slice()).collect();
        let items = values.get(&wanted, false)?;
        let mut items = items.into_iter().peekable();
        let mut text = Vec::new();
        // What was removed since the key was listed is not there, and not missed.
        for (key, expires_at) in batch.drain(..) {
            if let Some(item) = items.next_if(|item| item.key == key) {
                tsv::put(&mut text, &tsv::Line { key, value: item.value, flags: item.flags, expires_at });
                written += 1;
            }
        }
        bar.set_position(written);
        out.write_all(&text).map_err(named)
    };
    keys.metadump(|line| {
        let key = field(line, "key").and_then(decode_uri).ok_or(todana_client::Error::Malformed)?;
        let expires_at = field(line, "exp").and_then(|text| text.parse().ok()).unwrap_or(0);
        if todana_protocol::memcached::client::check_key(&key).is_err() {
            unsendable += 1;
            return Ok(());
        }
        batch.push((key, expires_at));
        if batch.len() == KEYS_AT_ONCE && failure.is_none() {
            failure = take(&mut batch).err();
        }
        if failure.is_some() {
            batch.clear()
        }
        Ok(())
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    if !batch.is_empty() {
        take(&mut batch)?;
    }
    out.flush().map_err(named)?;
    bar.finish_and_clear();
    if unsendable > 0 {
        eprintln!(
            "{unsendable} records have keys that the text protocol cannot ask for; they are not in the dump"
        );
    }
    eprintln!("{written} records written");
    Ok(())
}
