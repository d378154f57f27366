//! The commands on records, such as `get` and `set`, with their options; and these commands on a
//! running server.
//!
//! Not here: the same commands on a database on disk (`database`).

use crate::amount::amount;
use crate::command_output::CommandOutput;
use crate::dump::dump;
use crate::formats::{DumpOptions, LoadOptions};
use crate::load::load;
use crate::open_target::{CommandPlace, OpenTarget};
use crate::record_servers::RecordServers;
use crate::server_options::{ServerOptions, ServerTarget};
use crate::time_to_live::{exptime, warn_if_past};
use crate::{CommandFailure, database, statistics, tsv};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::{Args, Subcommand};
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use todana_client::{FetchedRecord, StoreVerb, TextStore, WriteOutcome};

/// The description of the format tsv, for users who have only the executable.
const TSV_HELP: &str = "\
tsv has one record per line: KEY, tab, VALUE; optionally tab, FLAGS; optionally
tab, EXPIRY as a Unix time, 0 for never. In key and value, backslash, tab, LF and
CR are escaped as \\\\ \\t \\n \\r, and any byte can be written as \\xHH.";

/// The pause before `ping` tries again.
const PING_PAUSE: Duration = Duration::from_millis(20);

/// The option that suppresses messages about missing records.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct QuietOption {
    /// Print no message about a missing record; the exit code is still 1
    #[arg(short, long)]
    quiet: bool,
}

impl QuietOption {
    /// Prints a message about a key on standard error.
    pub(crate) fn report(self, key: &OsStr, what: &str) {
        if !self.quiet {
            let safe = |letter: char| if letter.is_control() { '\u{FFFD}' } else { letter };
            eprintln!("todana: {}: {what}", key.to_string_lossy().chars().map(safe).collect::<String>());
        }
    }

    /// Prints a message and fails if the record does not exist.
    pub(crate) fn found(self, key: &OsStr, is_there: bool) -> Result<(), CommandFailure> {
        if is_there {
            return Ok(());
        }
        self.report(key, "no such record");
        Err(CommandFailure::miss())
    }
}

/// The options for the output of `get`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct GetFormat {
    /// Print each record as a JSON object, with its flags; if the value is not UTF-8, as
    /// value_base64
    #[arg(long)]
    json: bool,
    /// Include the version, for `set --cas`; a record that has no version gets one and grows by 8
    /// bytes
    #[arg(long, requires = "json")]
    pub(crate) versions: bool,
    /// Print KEY, tab, VALUE per line, escaped as by `list --values`; the default for several keys
    /// at a terminal
    #[arg(long, conflicts_with = "json")]
    keys: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecordCommand {
    /// Print the values of records
    #[command(
        after_help = "Examples:\n  todana get hello\n  todana get a b c --json\n  todana get a b c --keys\n\nInto a file or a pipe, the value of a single key is written without a newline after it.\nThe exit code is 1 if a record is missing; standard error names the record."
    )]
    Get {
        /// The keys
        #[arg(required = true, value_name = "KEYS")]
        wanted: Vec<OsString>,
        #[command(flatten)]
        shown: GetFormat,
        #[command(flatten)]
        quiet: QuietOption,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Store a record
    #[command(
        after_help = "Examples:\n  todana set hello world\n  todana set page - <page.html --ttl 1h\n  todana set counter 0 --add\n\nThe exit code is 1 if a condition (--add, --replace ...) is not met."
    )]
    Set {
        /// The key
        key: OsString,
        /// The value; - reads the value from standard input
        #[arg(allow_hyphen_values = true)]
        value: OsString,
        /// Time to live: seconds (up to 30 days), 5m, 1h, 2d, or a Unix time; 0 for never
        #[arg(long, default_value = "0", allow_negative_numbers = true, value_parser = exptime)]
        ttl: i64,
        /// Client flags to store with the value
        #[arg(long, default_value_t = 0)]
        flags: u32,
        /// Store only if the record does not exist
        #[arg(long, group = "how")]
        add: bool,
        /// Store only if the record exists
        #[arg(long, group = "how")]
        replace: bool,
        /// Append to the existing value
        #[arg(long, group = "how")]
        append: bool,
        /// Prepend to the existing value
        #[arg(long, group = "how")]
        prepend: bool,
        /// Store only if the record has this version (see `get --json --versions`)
        #[arg(long, group = "how", value_name = "VERSION")]
        cas: Option<u64>,
        #[command(flatten)]
        quiet: QuietOption,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Remove records
    #[command(visible_alias = "del", after_help = "The exit code is 1 if a record was missing.")]
    Delete {
        /// The keys
        #[arg(required = true)]
        keys: Vec<OsString>,
        #[command(flatten)]
        quiet: QuietOption,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Add to a number and print the result
    #[command(after_help = "Example:\n  todana incr visits --initial 1")]
    Incr {
        #[command(flatten)]
        sum: CounterArguments,
        #[command(flatten)]
        quiet: QuietOption,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Subtract from a number (not below 0) and print the result
    Decr {
        #[command(flatten)]
        sum: CounterArguments,
        #[command(flatten)]
        quiet: QuietOption,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Set the time to live of a record
    #[command(after_help = "Examples:\n  todana touch hello 1h\n  todana touch hello --ttl 1h")]
    Touch {
        /// The key
        key: OsString,
        /// Time to live: seconds (up to 30 days), 5m, 1h, 2d, or a Unix time; 0 for never
        #[arg(allow_negative_numbers = true, value_parser = exptime, required_unless_present = "ttl")]
        time: Option<i64>,
        /// The time to live, as an option
        #[arg(long, allow_negative_numbers = true, value_parser = exptime, conflicts_with = "time", value_name = "TIME")]
        ttl: Option<i64>,
        #[command(flatten)]
        quiet: QuietOption,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Print statistics of a server; of a database on disk: kind, records and bytes
    #[command(
        after_help = "Examples:\n  todana stats\n  todana stats databases\n  todana stats --db ./carts.hash"
    )]
    Stats {
        /// The group of statistics: items, slabs, sizes, settings, conns, databases, detail
        /// on|off|dump, cachedump CLASS LIMIT, reset
        group: Vec<String>,
        /// Print the statistics as one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Remove all records; at a terminal, asks for confirmation first
    #[command(after_help = "Example:\n  todana flush --yes -S 127.0.0.1:11311")]
    Flush {
        /// Remove the records after this delay: seconds, or 5m, 1h ...
        #[arg(long, default_value = "0", value_parser = seconds)]
        delay: i64,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Check that the server replies, and print its version
    Ping {
        /// Try again until the server replies, for at most this time: seconds, or 1m ...
        #[arg(long, default_value = "0", value_parser = seconds, value_name = "TIME")]
        wait: i64,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Store the records of a file: tab-separated text, or a file of Kyoto Tycoon or Kyoto Cabinet
    #[command(
        after_help = format!("Examples:\n  todana load records.tsv\n  todana dump - -S old:11211 | todana load - -S new:11311\n  todana load records.tsv --db ./carts.hash\n  todana load 00000000.ktss --db ./casket.kch\n  todana load ulog --since 2026-11-21T14:00:00Z --db ./casket.kch\n\n{TSV_HELP}\n\nThe exit code is also 3 if a record was refused.")
    )]
    Load {
        /// The file, or - for standard input, or the directory of an update log of Kyoto Tycoon
        file: PathBuf,
        #[command(flatten)]
        options: LoadOptions,
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Write all records to a file
    #[command(
        after_help = format!("Example:\n  todana dump --format ktss 00000000.ktss --db ./casket.kch\n\n{TSV_HELP}\n\nThe exit code is also 3 if a record could not be read. An existing FILE is replaced\nonly when the dump is complete.")
    )]
    Dump {
        /// The file; - for standard output
        file: PathBuf,
        #[command(flatten)]
        options: DumpOptions,
        #[command(flatten)]
        server: ServerOptions,
    },
}

/// The arguments of `incr` and `decr`.
#[derive(Debug, Args)]
pub(crate) struct CounterArguments {
    /// The key
    pub(crate) key: OsString,
    /// The number to add or subtract
    #[arg(default_value_t = 1)]
    pub(crate) by: u64,
    /// If the record is missing, create it with this value instead of failing
    #[arg(long, value_name = "NUMBER")]
    pub(crate) initial: Option<u64>,
}

/// Prints a message and fails if a record was not stored.
pub(crate) fn stored(
    key: &OsStr,
    verb: StoreVerb,
    outcome: WriteOutcome,
    quiet: QuietOption,
) -> Result<(), CommandFailure> {
    let why = match (outcome, verb) {
        (WriteOutcome::Done, _) => return Ok(()),
        (WriteOutcome::NotStored, StoreVerb::Add) => "not stored: the record exists already",
        (WriteOutcome::Exists, _) => "not stored: the record has another version",
        _ => "not stored: no such record",
    };
    quiet.report(key, why);
    Err(CommandFailure::miss())
}

impl RecordCommand {
    fn options(&self) -> &ServerOptions {
        match self {
            RecordCommand::Get { server, .. }
            | RecordCommand::Set { server, .. }
            | RecordCommand::Delete { server, .. }
            | RecordCommand::Incr { server, .. }
            | RecordCommand::Decr { server, .. }
            | RecordCommand::Touch { server, .. }
            | RecordCommand::Stats { server, .. }
            | RecordCommand::Flush { server, .. }
            | RecordCommand::Ping { server, .. }
            | RecordCommand::Load { server, .. }
            | RecordCommand::Dump { server, .. } => server,
        }
    }

    /// Returns the value for a `set`, which may have to be read from standard input.
    pub(crate) fn value(&self) -> Result<Vec<u8>, CommandFailure> {
        match self {
            RecordCommand::Set { value, .. } if value == "-" => {
                let mut bytes = Vec::new();
                io::stdin().lock().read_to_end(&mut bytes)?;
                Ok(bytes)
            }
            RecordCommand::Set { value, .. } => Ok(value.as_bytes().to_vec()),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the request of a `set`, or `None` for other commands.
    pub(crate) fn store<'a>(&'a self, value: &'a [u8]) -> Option<TextStore<'a>> {
        let RecordCommand::Set { key, ttl, flags, add, replace, append, prepend, cas, .. } = self else {
            return None;
        };
        let verb = match (add, replace, append, prepend, cas) {
            (true, ..) => StoreVerb::Add,
            (_, true, ..) => StoreVerb::Replace,
            (_, _, true, ..) => StoreVerb::Append,
            (_, _, _, true, _) => StoreVerb::Prepend,
            (.., Some(version)) => StoreVerb::Cas(*version),
            _ => StoreVerb::Set,
        };
        Some(TextStore { verb, key: key.as_bytes(), value, flags: *flags, exptime: *ttl })
    }
}

/// Runs a command at the place of its options.
pub(crate) fn run(command: &RecordCommand) -> Result<(), CommandFailure> {
    run_at(&mut CommandPlace::default(), command, &mut CommandOutput::process())
}

/// Runs a command at the place of its options, or else at the place of a shell.
pub(crate) fn run_at(
    place: &mut CommandPlace<'_>,
    command: &RecordCommand,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    if let RecordCommand::Set { ttl, .. }
    | RecordCommand::Touch { ttl: Some(ttl), .. }
    | RecordCommand::Touch { time: Some(ttl), .. } = command
    {
        warn_if_past(*ttl);
    }
    match place.of(command.options(), None)? {
        OpenTarget::Database(database) => database::run(command, database, out),
        OpenTarget::Servers(servers) => run_on_servers(servers, command, out),
    }
}

fn run_on_servers(
    servers: &mut RecordServers,
    command: &RecordCommand,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    match command {
        RecordCommand::Get { wanted, shown, quiet, .. } => {
            let read = &mut |key: &[u8]| Ok(servers.connection_of(key)?.get(&[key], shown.versions)?.pop());
            get(wanted, *shown, *quiet, read, out)
        }
        RecordCommand::Set { key, quiet, .. } => {
            let value = command.value()?;
            let Some(store) = command.store(&value) else { return Ok(()) };
            stored(key, store.verb, servers.connection_of(store.key)?.store(&store)?, *quiet)
        }
        RecordCommand::Delete { keys, quiet, .. } => {
            let remove = &mut |key: &[u8]| Ok(servers.connection_of(key)?.delete(key)? == WriteOutcome::Done);
            delete(keys, *quiet, remove)
        }
        RecordCommand::Incr { sum, quiet, .. } => count(servers, sum, true, *quiet, out),
        RecordCommand::Decr { sum, quiet, .. } => count(servers, sum, false, *quiet, out),
        RecordCommand::Touch { key, time, ttl, quiet, .. } => {
            let ttl = time.or(*ttl).unwrap_or(0);
            let outcome = servers.connection_of(key.as_bytes())?.touch(key.as_bytes(), ttl)?;
            quiet.found(key, outcome == WriteOutcome::Done)
        }
        RecordCommand::Stats { group, json, .. } => statistics::print(servers.only()?, group, *json, out),
        RecordCommand::Flush { delay, yes, .. } => {
            let line = if *delay == 0 { "flush_all".to_string() } else { format!("flush_all {delay}") };
            let targets = servers.targets();
            // All servers must be reached before the records of one are removed.
            let connections = targets.iter().map(|target| target.connect());
            let mut connections = connections.collect::<Result<Vec<_>, _>>()?;
            if !yes {
                confirm_flush(statistics::count(targets).ok(), &*servers)?;
            }
            for connection in &mut connections {
                connection.simple(&line)?;
            }
            Ok(())
        }
        RecordCommand::Ping { wait, .. } => {
            let deadline = Instant::now() + Duration::from_secs(wait.max(&0).unsigned_abs());
            for server in servers.targets() {
                let version = version(server, deadline)?;
                writeln!(out, "{} answers: version {version}", server.destination)?;
            }
            Ok(())
        }
        RecordCommand::Load { file, options, .. } => load(servers, file, options),
        RecordCommand::Dump { file, options, .. } => dump(servers.targets(), file, *options),
    }
}

/// Returns the version of a server. Tries again until the deadline.
fn version(server: &ServerTarget, deadline: Instant) -> Result<String, CommandFailure> {
    loop {
        match server.connect().and_then(|mut connection| Ok(connection.version()?)) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(PING_PAUSE),
            outcome => return outcome,
        }
    }
}

fn count(
    servers: &mut RecordServers,
    sum: &CounterArguments,
    up: bool,
    quiet: QuietOption,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    let key = sum.key.as_bytes();
    let connection = servers.connection_of(key)?;
    let number = match sum.initial {
        Some(initial) => Some(connection.count_or_create(key, sum.by, up, initial)?),
        None => connection.count(key, sum.by, up)?,
    };
    quiet.found(&sum.key, number.is_some())?;
    number.map_or(Ok(()), |number| Ok(writeln!(out, "{number}")?))
}

/// Removes records. `remove` returns false if a record does not exist.
pub(crate) fn delete(
    keys: &[OsString],
    quiet: QuietOption,
    remove: &mut dyn FnMut(&[u8]) -> Result<bool, CommandFailure>,
) -> Result<(), CommandFailure> {
    let mut outcome = Ok(());
    for key in keys {
        outcome = quiet.found(key, remove(key.as_bytes())?).and(outcome);
    }
    outcome
}

/// Reads the record of a key.
type ReadRecord<'r> = dyn FnMut(&[u8]) -> Result<Option<FetchedRecord>, CommandFailure> + 'r;

/// Prints the records of these keys, in their order. `read` reads one record.
pub(crate) fn get(
    keys: &[OsString],
    shown: GetFormat,
    quiet: QuietOption,
    read: &mut ReadRecord<'_>,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    let is_one = keys.len() == 1;
    let mut outcome = Ok(());
    for key in keys {
        let Some(item) = read(key.as_bytes())? else {
            out.flush()?;
            outcome = quiet.found(key, false);
            continue;
        };
        if shown.json {
            writeln!(out, "{}", object(&item))?;
        } else if shown.keys || (out.is_terminal && !is_one) {
            tsv::escape(out, &item.key)?;
            out.write_all(b"\t")?;
            tsv::escape(out, &item.value)?;
            out.write_all(b"\n")?;
        } else if out.one_line_values {
            tsv::escape(out, &item.value)?;
            out.write_all(b"\n")?;
        } else {
            out.write_all(&item.value)?;
            if out.is_terminal || !is_one {
                out.write_all(b"\n")?;
            }
        }
    }
    out.flush()?;
    outcome
}

/// Asks the user at a terminal to confirm that all records will be removed.
pub(crate) fn confirm_flush(
    records: Option<u64>,
    place: &dyn std::fmt::Display,
) -> Result<(), CommandFailure> {
    let what = records.map_or_else(|| "all records".to_string(), |count| amount(count, "record"));
    confirm(&format!("{place}: remove {what}?"), "flush: not confirmed, nothing was removed")
}

/// Asks a question at a terminal. Scripts are not asked. Fails if the user does not confirm.
fn confirm(question: &str, otherwise: &str) -> Result<(), CommandFailure> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(());
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CommandFailure::declined(otherwise)),
    }
}

/// Returns a record as a JSON object. A value that is not UTF-8 is encoded in base64, because text
/// would change it.
fn object(item: &FetchedRecord) -> serde_json::Value {
    let mut object = serde_json::Map::new();
    for (name, bytes) in [("key", &item.key), ("value", &item.value)] {
        match std::str::from_utf8(bytes) {
            Ok(text) => object.insert(name.into(), text.into()),
            Err(_) => object.insert(format!("{name}_base64"), BASE64_STANDARD.encode(bytes).into()),
        };
    }
    object.insert("flags".into(), item.flags.into());
    if let Some(version) = item.version {
        object.insert("version".into(), version.into());
    }
    object.insert("bytes".into(), item.value.len().into());
    object.into()
}

/// Parses a duration that is not negative.
fn seconds(text: &str) -> Result<i64, String> {
    let seconds = crate::time_to_live::seconds(text)?;
    if seconds < 0 { Err("must be 0 or more".into()) } else { Ok(seconds) }
}
