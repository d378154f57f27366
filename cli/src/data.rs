//! Commands on the records of a running server; those of a database on disk go to `database`.

use crate::amount::amount;
use crate::client_login::ClientLogin;
use crate::client_tls::ClientTls;
use crate::dump::dump;
use crate::formats::{DumpOptions, LoadOptions};
use crate::load::load;
use crate::place::Place;
use crate::{Failure, database, source};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use todana_client::{Connection, Destination, Item, Outcome, Store, Verb};

#[derive(Debug, Args)]
pub(crate) struct Server {
    /// The server: host:port, todana://host:port, todanas://host:port (TLS) or unix:/path; user:password@ may stand
    /// before a host behind ://. Or a database on disk that no server has open: ./x.hash, ./x.tree
    // Its value may hold a password.
    #[arg(
        short = 'S',
        long = "server",
        visible_alias = "db",
        value_name = "SERVER",
        env = "TODANA_SERVER",
        hide_env_values = true,
        default_value = "127.0.0.1:11211"
    )]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) login: ClientLogin,
    #[command(flatten)]
    pub(crate) tls: ClientTls,
}

impl Server {
    pub(crate) fn connect(&self) -> Result<Connection, Failure> {
        self.connect_to(self.destination()?)
    }

    /// The server; fails for a database on disk.
    pub(crate) fn destination(&self) -> Result<&Destination, Failure> {
        match &self.place {
            Place::Server(destination) => Ok(destination),
            Place::Database(name) => {
                Err(Failure::usage(format!("{name} is a database on disk; this needs a server")))
            }
        }
    }

    /// The same to another server.
    pub(crate) fn connect_to(&self, destination: &Destination) -> Result<Connection, Failure> {
        source::connect(destination, &self.login, &self.tls)
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
        keys: Vec<OsString>,
        /// One JSON object a record, with flags; value_base64 where the value is no text
        #[arg(long)]
        json: bool,
        /// With its version, for `set --cas`; a record without one is given one, and grows by it
        #[arg(long, requires = "json")]
        versions: bool,
        #[command(flatten)]
        server: Server,
    },
    /// Store a record
    #[command(
        after_help = "Examples:\n  todana set hello world\n  todana set page - <page.html --ttl 3600\n  todana set counter 0 --add\n\nExit code 1 if a condition (--add, --replace ...) does not hold."
    )]
    Set {
        /// The key
        key: OsString,
        /// The value; - reads it from standard input
        #[arg(allow_hyphen_values = true)]
        value: OsString,
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
        /// Only if its version is this (`get --json --versions` shows it)
        #[arg(long, group = "how", value_name = "VERSION")]
        cas: Option<u64>,
        #[command(flatten)]
        server: Server,
    },
    /// Remove a record
    Delete {
        /// The key
        key: OsString,
        #[command(flatten)]
        server: Server,
    },
    /// Add to a number and print it
    Incr {
        /// The key
        key: OsString,
        /// How much
        #[arg(default_value_t = 1)]
        by: u64,
        #[command(flatten)]
        server: Server,
    },
    /// Subtract from a number (not below 0) and print it
    Decr {
        /// The key
        key: OsString,
        /// How much
        #[arg(default_value_t = 1)]
        by: u64,
        #[command(flatten)]
        server: Server,
    },
    /// Give a record a new time to live
    Touch {
        /// The key
        key: OsString,
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
    /// Remove all records; asks first where somebody sits at a terminal
    #[command(after_help = "Example:\n  todana flush --yes -S 127.0.0.1:11311")]
    Flush {
        /// Seconds from now
        #[arg(long, default_value_t = 0)]
        delay: u32,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        server: Server,
    },
    /// Ask whether the server answers, and print its version
    Ping {
        #[command(flatten)]
        server: Server,
    },
    /// Store the records of a file: tab-separated text (docs/format/tsv.md), or one of Kyoto Tycoon's or Kyoto Cabinet's
    #[command(
        after_help = "Examples:\n  todana load records.tsv\n  todana dump - -S old:11211 | todana load - -S new:11211\n  todana load 00000000.ktss --db ./casket.kch\n  todana load ulog --since 2026-11-21T14:00:00Z --db ./casket.kch\n\nExit code 3 also if a record was refused."
    )]
    Load {
        /// The file; - is standard input. Or the directory of an update log of Kyoto Tycoon's
        file: PathBuf,
        #[command(flatten)]
        options: LoadOptions,
        #[command(flatten)]
        server: Server,
    },
    /// Write all records to a file
    #[command(
        after_help = "Example:\n  todana dump --format ktss 00000000.ktss --db ./casket.kch\n\nExit code 3 also if a record had to be left out. FILE is replaced at the end, by a whole dump."
    )]
    Dump {
        /// The file; - is standard output
        file: PathBuf,
        #[command(flatten)]
        options: DumpOptions,
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

impl Command {
    fn server(&self) -> &Server {
        match self {
            Command::Get { server, .. }
            | Command::Set { server, .. }
            | Command::Delete { server, .. }
            | Command::Incr { server, .. }
            | Command::Decr { server, .. }
            | Command::Touch { server, .. }
            | Command::Stats { server, .. }
            | Command::Flush { server, .. }
            | Command::Ping { server }
            | Command::Load { server, .. }
            | Command::Dump { server, .. } => server,
        }
    }

    /// The value of a `set`, which may have to be read.
    pub(crate) fn value(&self) -> Result<Vec<u8>, Failure> {
        match self {
            Command::Set { value, .. } if value == "-" => {
                let mut bytes = Vec::new();
                io::stdin().lock().read_to_end(&mut bytes)?;
                Ok(bytes)
            }
            Command::Set { value, .. } => Ok(value.as_bytes().to_vec()),
            _ => Ok(Vec::new()),
        }
    }

    /// What a `set` stores; `None` for other commands.
    pub(crate) fn store<'a>(&'a self, value: &'a [u8]) -> Option<Store<'a>> {
        let Command::Set { key, ttl, flags, add, replace, append, prepend, cas, .. } = self else {
            return None;
        };
        let verb = match (add, replace, append, prepend, cas) {
            (true, ..) => Verb::Add,
            (_, true, ..) => Verb::Replace,
            (_, _, true, ..) => Verb::Append,
            (_, _, _, true, _) => Verb::Prepend,
            (.., Some(version)) => Verb::Cas(*version),
            _ => Verb::Set,
        };
        Some(Store { verb, key: key.as_bytes(), value, flags: *flags, exptime: *ttl })
    }
}

pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    if let Place::Database(name) = &command.server().place {
        return database::run(command, name);
    }
    match command {
        Command::Get { keys, json, versions, server } => get(&mut server.connect()?, keys, *json, *versions),
        Command::Set { server, .. } => {
            let value = command.value()?;
            command.store(&value).map_or(Ok(()), |store| done(server.connect()?.store(&store)?))
        }
        Command::Delete { key, server } => done(server.connect()?.delete(key.as_bytes())?),
        Command::Incr { key, by, server } => counted(server.connect()?.count(key.as_bytes(), *by, true)?),
        Command::Decr { key, by, server } => counted(server.connect()?.count(key.as_bytes(), *by, false)?),
        Command::Touch { key, ttl, server } => done(server.connect()?.touch(key.as_bytes(), *ttl)?),
        Command::Stats { group, json, server } => stats(&mut server.connect()?, group, *json),
        Command::Flush { delay, yes, server } => {
            let mut connection = server.connect()?;
            if !yes {
                let records = connection.statistic("curr_items")?;
                confirm_flush(records.and_then(|count| count.parse().ok()), &server.place)?;
            }
            let line = if *delay == 0 { "flush_all".to_string() } else { format!("flush_all {delay}") };
            done(connection.simple(&line)?)
        }
        Command::Ping { server } => {
            writeln!(io::stdout(), "{} answers: version {}", server.place, server.connect()?.version()?)?;
            Ok(())
        }
        Command::Load { file, options, server } => load(&mut server.connect()?, file, options),
        Command::Dump { file, options, server } => dump(server, file, *options),
    }
}

/// Asks whether all records may go.
pub(crate) fn confirm_flush(records: Option<u64>, place: &dyn std::fmt::Display) -> Result<(), Failure> {
    let what = records.map_or_else(|| "all records".to_string(), |count| amount(count, "record"));
    confirm(&format!("{place}: remove {what}?"), "nothing was removed")
}

/// Asks for consent where somebody sits at a terminal: scripts mean what they say. Fails if it is not given.
fn confirm(question: &str, otherwise: &str) -> Result<(), Failure> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(());
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::declined(otherwise)),
    }
}

fn get(connection: &mut Connection, keys: &[OsString], json: bool, versions: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let ends_lines = out.is_terminal() || keys.len() > 1;
    let mut missing = false;
    for key in keys {
        let items = connection.get(&[key.as_bytes()], versions)?;
        let Some(item) = items.first() else {
            missing = true;
            continue;
        };
        show(&mut out, item, json, ends_lines)?;
    }
    out.flush()?;
    if missing { Err(Failure::miss()) } else { Ok(()) }
}

/// Writes a record that was asked for.
pub(crate) fn show(out: &mut impl Write, item: &Item, json: bool, ends_line: bool) -> io::Result<()> {
    if json {
        return writeln!(out, "{}", object(item));
    }
    out.write_all(&item.value)?;
    if ends_line { out.write_all(b"\n") } else { Ok(()) }
}

/// A record as a JSON object. What is no text would be another value as one.
fn object(item: &Item) -> serde_json::Value {
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

pub(crate) fn stats(connection: &mut Connection, group: &str, json: bool) -> Result<(), Failure> {
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

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(crate) fn named(file: &Path, error: &io::Error) -> Failure {
    Failure::trouble(format!("{}: {error}", file.display()))
}
