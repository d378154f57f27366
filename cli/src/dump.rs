//! `todana dump`: writes all records of a server, or of several, to a file.
//!
//! A dump does not count as an access: it reads records by meta commands, which do not extend a
//! sliding expiry. Only if the server has no meta commands, as memcached before 1.6, it uses `get`.

use crate::amount::amount;

use crate::formats::{DumpOptions, RecordWriter};
use crate::progress::progress;
use crate::server_options::ServerTarget;
use crate::{CommandFailure, statistics, tsv};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use todana_client::{Connection, Error, FoundRecord};

/// The number of keys in one request.
const KEYS_AT_ONCE: usize = 64;

/// A key and the expiry of its record.
pub(crate) type ListedKey = (Vec<u8>, tsv::TsvExpiry);

pub(crate) fn dump(
    servers: &[ServerTarget],
    path: &Path,
    options: DumpOptions,
) -> Result<(), CommandFailure> {
    let mut writer = RecordWriter::create(path, options)?;
    let wanted = RecordSelection { keys: &|_| true, values: true };
    let left_out = walk_servers(servers, &wanted, &mut |key, value, flags, expiry| {
        writer.put(key, value, flags, expiry)?;
        Ok(ControlFlow::Continue(()))
    })?;
    let written = writer.finish()?;
    eprintln!("{} written", amount(written, "record"));
    left_out.fail_if_any()
}

/// Selects the records to read, and whether their values are needed.
pub(crate) struct RecordSelection<'w> {
    pub(crate) keys: &'w dyn Fn(&[u8]) -> bool,
    pub(crate) values: bool,
}

/// Receives each record of a server: its key, value, flags and expiry.
pub(crate) type RecordSink<'s> =
    dyn FnMut(&[u8], &[u8], u32, tsv::TsvExpiry) -> Result<ControlFlow<()>, CommandFailure> + 's;

/// Counts the records that could not be read.
#[derive(Default)]
pub(crate) struct OmittedRecords {
    records: u64,
    /// The first key that could not be read, with the reason.
    example: Option<String>,
    /// The number of values after the first of their keys, which the protocol does not return.
    values: u64,
}

impl OmittedRecords {
    fn add(&mut self, other: OmittedRecords) {
        self.records += other.records;
        self.values += other.values;
        self.example = self.example.take().or(other.example);
    }

    /// Fails if a record could not be read.
    pub(crate) fn fail_if_any(self) -> Result<(), CommandFailure> {
        match self.example {
            None if self.values > 0 => Err(CommandFailure::trouble(format!(
                "{} left out, each after the first of its key; a backup contains all values",
                amount(self.values, "value")
            ))),
            None => Ok(()),
            Some(example) => Err(CommandFailure::trouble(format!(
                "{} left out; for example {example}",
                amount(self.records, "record")
            ))),
        }
    }
}

/// Passes the records of servers to `see` until `see` breaks, one server after the other. The order
/// of the records is undefined.
pub(crate) fn walk_servers(
    servers: &[ServerTarget],
    wanted: &RecordSelection<'_>,
    see: &mut RecordSink<'_>,
) -> Result<OmittedRecords, CommandFailure> {
    let (mut left_out, mut is_over) = (OmittedRecords::default(), false);
    for server in servers {
        left_out.add(walk_server(server, wanted, &mut |key, value, flags, expiry| {
            let flow = see(key, value, flags, expiry)?;
            is_over = flow.is_break();
            Ok(flow)
        })?);
        if is_over {
            break;
        }
    }
    Ok(left_out)
}

fn walk_server(
    server: &ServerTarget,
    wanted: &RecordSelection<'_>,
    see: &mut RecordSink<'_>,
) -> Result<OmittedRecords, CommandFailure> {
    let mut keys = server.connect()?;
    let mut values = server.connect()?;
    let total = match server.options.has_database() {
        true => statistics::count_of_server(server).ok(),
        false => values.statistic("curr_items")?.and_then(|count| count.parse().ok()),
    };
    let reads = if values.takes_meta()? { ReadMethod::Peeks } else { ReadMethod::Gets };
    let mut walk =
        ServerWalk { see, values: wanted.values, reads, left_out: OmittedRecords::default(), is_over: false };
    let bar = progress(total, "{wide_bar} {pos}/{len} records {per_sec} eta {eta}");

    let (mut batch, mut failure, mut passed) = (Vec::new(), None, 0);
    let listed = keys.metadump(|line| {
        let listed: ListedKey = read_listed(line).ok_or(Error::MalformedReply)?;
        passed += 1;
        if !(wanted.keys)(&listed.0) {
            return Ok(());
        }
        walk.left_out.values += further_values(line);
        batch.push(listed);
        if batch.len() < KEYS_AT_ONCE {
            return Ok(());
        }
        let outcome = walk.take(&mut values, &mut batch);
        bar.set_position(passed);
        if let Err(error) = outcome {
            failure = Some(error);
        } else if !walk.is_over {
            return Ok(());
        }
        // This error only ends the listing; the caller does not report it.
        Err(io::Error::from(io::ErrorKind::Interrupted).into())
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    if !walk.is_over {
        listed?;
        walk.take(&mut values, &mut batch)?;
    }
    bar.finish_and_clear();
    Ok(walk.left_out)
}

/// The command by which values are read.
enum ReadMethod {
    /// `mg` with flags that do not count as an access.
    Peeks,
    Gets,
}

struct ServerWalk<'a, 's> {
    see: &'a mut RecordSink<'s>,
    values: bool,
    reads: ReadMethod,
    left_out: OmittedRecords,
    /// True when the receiver needs no more records.
    is_over: bool,
}

impl ServerWalk<'_, '_> {
    /// Reads the records of these keys. Records that were removed after they were listed are
    /// skipped.
    fn take(&mut self, values: &mut Connection, batch: &mut Vec<ListedKey>) -> Result<(), CommandFailure> {
        let mut outcome = Ok(());
        let (see, is_over) = (&mut self.see, &mut self.is_over);
        let mut show = |key: &[u8], value: &[u8], flags, expiry| {
            if outcome.is_err() || *is_over {
                return;
            }
            match see(key, value, flags, expiry) {
                Ok(flow) => *is_over = flow.is_break(),
                Err(failure) => outcome = Err(failure),
            }
        };
        if !self.values {
            batch.drain(..).for_each(|(key, expiry)| show(&key, b"", 0, expiry));
            return outcome;
        }
        let left_out = &mut self.left_out;
        let keys: Vec<&[u8]> = batch.iter().map(|(key, _)| key.as_slice()).collect();
        let found = |at: usize, found: Result<FoundRecord<'_>, Error>| {
            let (key, expiry) = &batch[at];
            match found {
                Ok(FoundRecord { value, flags }) => show(key, value, flags, *expiry),
                Err(error) => {
                    left_out.records += 1;
                    let reason = match error {
                        Error::Invalid(_) => "no request can carry the key".to_string(),
                        error => error.to_string(),
                    };
                    left_out.example.get_or_insert_with(|| format!("{}: {reason}", shown(key)));
                }
            }
        };
        match self.reads {
            ReadMethod::Peeks => values.peek_any(&keys, found)?,
            ReadMethod::Gets => values.read_any(&keys, found)?,
        }
        batch.clear();
        outcome
    }
}

/// Returns a key for a message. A long key is cut off, and its length is added.
fn shown(key: &[u8]) -> String {
    const SHOWN_MAX: usize = 250;
    match key.get(..SHOWN_MAX) {
        Some(start) if key.len() > SHOWN_MAX => {
            format!("\"{}\"... ({} bytes)", start.escape_ascii(), key.len())
        }
        _ => format!("\"{}\"", key.escape_ascii()),
    }
}

/// Parses a line of the reply to `lru_crawler metadump`.
pub(crate) fn read_listed(line: &str) -> Option<ListedKey> {
    let field = |name| line.split(' ').find_map(|word| word.strip_prefix(name));
    let at = field("exp=").and_then(|text| text.parse().ok()).unwrap_or(0);
    let span_s = field("sliding=").and_then(|text| text.parse().ok()).unwrap_or(0);
    Some((decode_uri(field("key=")?)?, tsv::TsvExpiry { at, span_s }))
}

/// Returns the number of values that a record has besides the first.
fn further_values(line: &str) -> u64 {
    let values = line.split(' ').find_map(|word| word.strip_prefix("values="));
    values.and_then(|text| text.parse::<u64>().ok()).unwrap_or(1).saturating_sub(1)
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
