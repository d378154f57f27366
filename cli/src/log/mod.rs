//! `todana log`: prints an update log as text. With --follow, also prints the changes that are
//! appended later.

mod kyoto_log;
mod tyrant_log;

use crate::command_failure::no_stored_data;
use crate::command_target::{DirectoryOrServer, expect_source};
use crate::formats::{ttulog, ulog};
use crate::server_options::ServerOptions;
use crate::{CommandFailure, tsv};
use clap::{Args, ValueEnum, value_parser};
use std::cmp::Ordering;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use todana::DatabaseKind;
use todana::disk::SystemDisk;
use todana::moment;
use todana::replication::ChangeOrigin;
use todana::update_log::{EntryDecoder, LogChange, LogEntry, LogFollower, LogPosition, segments};
use todana_client::{ExportFrame, LogFrom, LoginDestination};
use todana_core::Attributes;
use tyrant_log::TyrantLines;

pub(crate) const AFTER_HELP: &str = "\
One line per change, with tabs between the columns:
  position  time  origin  operation  key  attributes  value
origin is the ID of the server that made the change, and :ID of the server that
it was received from, if that is a third one. The operations are put,
retag (new attributes, same value), remove, clear, plan-clear, transaction,
epoch (a server was promoted) and lost. Attributes: size=BYTES of the value, flags=, expiry=UNIX-SECONDS,
span=SECONDS of a sliding expiry, version=, stale, token-out, at=UNIX-SECONDS of
a planned clear, changes= of a transaction, epoch=, bytes= lost, values= of a list; - for
none. Key and value are escaped as in a dump: \\\\ \\t \\n \\r \\xHH. A truncated value
ends in \\... A list is printed as it is stored: each value after its length.

The log is not locked: a server may write to it. --follow continues as the log
grows, until it is stopped. From a directory, it may show changes that are not
on disk yet. A server sends only changes that are on disk (with --sync never:
that the kernel has accepted).

In a log of Kyoto Tycoon (files NUMBER.ulog) the position is the time stamp, the
attributes have db=NUMBER of the database, and --segments shows file, bytes and
newest time stamp. --follow is not available for it. Changes after POSITION and
before the first time mark show the year 1970.

With --format ttulog each change of a record is a line of Tokyo Tyrant's `ttulmgr
export`: time stamp in microseconds, server ID:ID of its master, put or misc (a
removal, `outlist`) or vanish, bytes. `ttulmgr import` writes a log of the lines, for `tcrmgr restore`. A
log of ttserver (files NUMBER.ulog with 8 digits) is printed in both formats.

HOST:PORT is a server, and so is anything that contains :// or begins with
unix: or [; everything else is a directory. ./HOST:PORT is always a directory.

Examples:
  todana log 127.0.0.1:11311 --from end --follow
  todana log /var/lib/todana --since 2026-11-21T14:00:00Z
  todana log /var/lib/todana --follow --values none
  todana log /var/lib/todana --segments
  todana log /var/ktserver/ulog --since 2026-11-21T14:00:00Z --values whole
  todana log /var/lib/todana --format ttulog | ttulmgr import ulog";

/// The time between two checks for new entries.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The number of bytes that are printed of a long value.
const SHORT: usize = 40;

/// The arguments of `todana log`.
#[derive(Debug, Args)]
pub(crate) struct LogArguments {
    /// A data directory, a backup, a directory of log segments or of Kyoto Tycoon's logs, or a
    /// server (host:port, unix:/path ...; or use -S)
    #[arg(value_name = "DIR|SERVER")]
    source: Option<OsString>,
    /// Start at this position, as printed at the start of a line, or at `end`: with --follow, print
    /// only new changes
    #[arg(long, value_name = "POSITION")]
    from: Option<LogStart>,
    /// Print only changes of this time and later: RFC 3339 or Unix seconds
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    since: Option<u64>,
    /// Print only changes up to this time
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    until: Option<u64>,
    /// How much of each value to print
    #[arg(long, default_value = "short", value_name = "HOW")]
    values: ValueDetail,
    /// Continue to print changes as the log grows
    #[arg(long, conflicts_with = "segments")]
    follow: bool,
    /// List the segments: file, first position, bytes, time of creation, and how many times the
    /// database had been opened
    #[arg(long)]
    segments: bool,
    /// Print columns, or the text of Tokyo Tyrant's `ttulmgr`
    #[arg(long, default_value = "columns", value_name = "FORMAT", conflicts_with_all = ["from", "segments"])]
    format: LogFormat,
    /// ttulog: server ID of the changes that were made at the server of this log
    #[arg(long, default_value = "1", value_name = "NUMBER", value_parser = value_parser!(u16).range(1..))]
    server_id: u16,
    /// For a log of Kyoto Tycoon: values are stored without an expiry (databases with ktopts=p)
    #[arg(long)]
    bare: bool,
    #[command(flatten)]
    server: ServerOptions,
}

/// The place where the output starts.
#[derive(Clone, Copy, Debug)]
enum LogStart {
    Position(u64),
    End,
}

impl FromStr for LogStart {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<LogStart, Self::Err> {
        match text {
            "end" => Ok(LogStart::End),
            text => text.parse().map(LogStart::Position).map_err(|_| "must be a position or `end`"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// A line per change, with the columns below
    Columns,
    /// The text of Tokyo Tyrant's `ttulmgr`; `ttulmgr import` writes a log of it
    Ttulog,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ValueDetail {
    /// No values
    None,
    /// The first 40 bytes
    Short,
    /// Complete values
    Whole,
}

pub(crate) fn run(arguments: &LogArguments) -> Result<(), CommandFailure> {
    let named = arguments.server.named(arguments.source.is_some())?;
    match DirectoryOrServer::of(arguments.source.as_deref(), named, "DIR|SERVER")? {
        DirectoryOrServer::Directory(directory) => {
            arguments.server.expect_no_database()?;
            of_directory(&directory, arguments)
        }
        DirectoryOrServer::Server(_) if arguments.segments => {
            Err(CommandFailure::usage("--segments: needs a directory, not a server"))
        }
        DirectoryOrServer::Server(server) => of_server(&server, arguments),
    }
}

/// Prints the log that a server sends. This process checks each entry.
fn of_server(server: &LoginDestination, arguments: &LogArguments) -> Result<(), CommandFailure> {
    let mut connection = arguments.server.connect(server)?;
    let from = match arguments.from {
        None => LogFrom::First,
        Some(LogStart::Position(position)) => LogFrom::At(position),
        Some(LogStart::End) => LogFrom::End,
    };
    let database = arguments.server.database_number(&mut connection)?;
    let head = connection.begin_log(database, from, arguments.follow).map_err(no_stored_data)?;
    let mut entries = EntryDecoder::new(head.database_id, LogPosition(head.position));
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut time_ms = 0;
    let mut printer = EntryPrinter::new(arguments, head.server_id, false);
    loop {
        let frame = connection.next_frame(|frame| match frame {
            ExportFrame::Data(data) => {
                entries.push(data);
                true
            }
            ExportFrame::Wait => true,
            ExportFrame::End => false,
        });
        let goes_on = frame.map_err(|error| {
            let position = entries.position().0;
            CommandFailure::trouble(format!(
                "{error}; all changes before position {position} have been printed"
            ))
        })?;
        while let Some((position, entry)) = entries.next_entry()? {
            if let LogChange::Mark { time_ms: now, .. } = entry.change {
                time_ms = now;
            }
            if !arguments.wants_more(time_ms) {
                out.flush()?;
                return Ok(());
            }
            printer.put(&mut out, position, time_ms, &entry, arguments.wants(time_ms))?;
        }
        // With --follow, each line is printed at once.
        if arguments.follow || !goes_on {
            out.flush()?;
        }
        if !goes_on && entries.is_empty() {
            return Ok(());
        }
        if !goes_on {
            let position = entries.position().0;
            return Err(CommandFailure::trouble(format!(
                "the update log ends within the entry at position {position}"
            )));
        }
    }
}

impl LogArguments {
    /// Returns true if changes of this time are printed. The marks of a log contain only complete
    /// seconds.
    fn wants(&self, time_ms: u64) -> bool {
        self.since.is_none_or(|since| time_ms / 1000 >= since / 1000)
    }

    /// Returns true if changes of this time or of a later time may have to be printed.
    fn wants_more(&self, time_ms: u64) -> bool {
        self.until.is_none_or(|until| time_ms <= until)
    }
}

fn of_directory(directory: &Path, arguments: &LogArguments) -> Result<(), CommandFailure> {
    expect_source(directory, "log")?;
    let within = directory.join("log");
    if !within.is_dir() && !ttulog::files(directory)?.is_empty() {
        return tyrant_log::show(directory, arguments);
    }
    if !within.is_dir() && !ulog::files(directory)?.is_empty() {
        return kyoto_log::show(directory, arguments);
    }
    let log = if within.is_dir() { within } else { directory.to_path_buf() };
    if arguments.segments {
        return list(&log);
    }
    let stdout = io::stdout().lock();
    // At a terminal, each line is printed at once.
    let is_watched = stdout.is_terminal();
    let mut out = BufWriter::with_capacity(1 << 16, stdout);
    let segments = segments(&SystemDisk, &log)?;
    let is_table = DatabaseKind::at(&SystemDisk, directory) == Some(DatabaseKind::DiskTable);
    let own = segments.first().map_or(0, |one| one.identity.server_id);
    let mut printer = EntryPrinter::new(arguments, own, is_table);
    let mut from = match arguments.from {
        Some(LogStart::End) => segments.last().map(|last| last.start),
        Some(LogStart::Position(position)) => Some(LogPosition(position)),
        None => None,
    };
    // Time stamps of Tokyo Tyrant count the changes of a second, so they need the log before it.
    let since = arguments.since.filter(|_| arguments.format == LogFormat::Columns);
    let mut follower = LogFollower::open(Arc::new(SystemDisk), &log, from, since)?;
    match from {
        Some(_) if matches!(arguments.from, Some(LogStart::End)) => {
            follower.read_new(&mut |_, _, _| ControlFlow::Continue(()))?;
            from = None;
        }
        Some(from) if from < follower.position() => {
            let (from, oldest) = (from.0, follower.position().0);
            let what = format!("the update log does not go back to position {from}, only to {oldest}");
            return Err(CommandFailure::trouble(what));
        }
        _ => {}
    }
    loop {
        let mut outcome = Ok(());
        let is_over = !follower.read_new(&mut |position, time_ms, entry| {
            // A position that is not between two entries is refused, as a server does. A reader
            // that continued from it would miss a change.
            if let Some(from) = from.take_if(|from| *from != position) {
                outcome = Err(not_between(from));
                return ControlFlow::Break(());
            }
            from = None;
            if !arguments.wants_more(time_ms) {
                return ControlFlow::Break(());
            }
            outcome = printer.put(&mut out, position, time_ms, entry, arguments.wants(time_ms));
            if is_watched && outcome.is_ok() {
                outcome = out.flush();
            }
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
        // Either no entry follows the position, or the position is not between two entries.
        if let Some(from) = from.take() {
            let end = follower.position();
            match from.cmp(&end) {
                Ordering::Less => return Err(not_between(from).into()),
                Ordering::Equal => {}
                Ordering::Greater => {
                    return Err(CommandFailure::trouble(format!(
                        "the update log ends at position {}",
                        end.0
                    )));
                }
            }
        }
        if let Some((from, to)) = follower.take_gap() {
            eprintln!("todana: the log from position {} to {} has been removed meanwhile", from.0, to.0);
        }
        out.flush()?;
        if is_over || !arguments.follow {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn not_between(position: LogPosition) -> io::Error {
    io::Error::other(format!("position {} of the update log is not between two entries", position.0))
}

fn list(log: &Path) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    for segment in segments(&SystemDisk, log)? {
        let name = segment.path.file_name().unwrap_or_default().to_string_lossy();
        let made = moment::text(segment.created_ms);
        writeln!(out, "{name}\t{}\t{}\t{made}\t{}", segment.start.0, segment.len, segment.openings)?;
    }
    Ok(())
}

/// Prints the entries of a log in one of the formats.
enum EntryPrinter {
    Columns { own: u32, values: ValueDetail },
    Tyrant(TyrantLines),
}

impl EntryPrinter {
    /// Creates the printer. `own` is the ID in the columns of changes without another origin.
    fn new(arguments: &LogArguments, own: u32, is_table: bool) -> EntryPrinter {
        match arguments.format {
            LogFormat::Columns => EntryPrinter::Columns { own, values: arguments.values },
            LogFormat::Ttulog => EntryPrinter::Tyrant(TyrantLines::new(arguments.server_id, is_table)),
        }
    }

    /// Reads an entry, and prints it if it `is_wanted`.
    fn put(
        &mut self,
        out: &mut impl Write,
        position: LogPosition,
        time_ms: u64,
        entry: &LogEntry<'_>,
        is_wanted: bool,
    ) -> io::Result<()> {
        match self {
            EntryPrinter::Columns { own, values } if is_wanted => {
                put(out, position, time_ms, *own, entry, *values)
            }
            EntryPrinter::Columns { .. } => Ok(()),
            EntryPrinter::Tyrant(lines) => lines.put(out, position, entry, is_wanted),
        }
    }
}

/// Writes a line for an entry. A mark has no line.
fn put(
    out: &mut impl Write,
    position: LogPosition,
    time_ms: u64,
    own: u32,
    entry: &LogEntry<'_>,
    values: ValueDetail,
) -> io::Result<()> {
    let none = Attributes::default();
    let (operation, key, attributes, value) = match &entry.change {
        LogChange::Mark { .. } => return Ok(()),
        LogChange::Put { key, record } => ("put", Some(*key), record.attributes, Some(record.value)),
        LogChange::Retag { key, attributes } => ("retag", Some(*key), *attributes, None),
        LogChange::Remove { key } => ("remove", Some(*key), none, None),
        LogChange::Clear => ("clear", None, none, None),
        LogChange::PlanClear { .. } => ("plan-clear", None, none, None),
        LogChange::Transaction(_) => ("transaction", None, none, None),
        LogChange::Epoch(_) => ("epoch", None, none, None),
        LogChange::Lost { .. } => ("lost", None, none, None),
    };
    let (position, time) = (position.0, moment::text(time_ms));
    let origin =
        entry.origin.map_or_else(|| own.to_string(), |origin| ChangeOrigin::from(origin).to_string());
    write!(out, "{position}\t{time}\t{origin}\t{operation}\t")?;
    tsv::escape(out, key.unwrap_or_default())?;
    out.write_all(b"\t")?;
    let mut words = Vec::new();
    if let Some(value) = value {
        words.push(format!("size={}", value.len()));
    }
    match entry.change {
        LogChange::PlanClear { at } => words.push(format!("at={}", at.map_or(0, |at| at.0))),
        LogChange::Epoch(start) => words.push(format!("epoch={}", start.epoch)),
        LogChange::Lost { len } => words.push(format!("bytes={len}")),
        LogChange::Transaction(changes) => words.push(format!("changes={}", changes.iter().count())),
        _ => {}
    }
    let Attributes { flags, expiry, version, marks, .. } = attributes;
    let numbers = [
        ("flags", Some(u64::from(flags)).filter(|&flags| flags != 0)),
        ("expiry", expiry.at().map(|at| at.0)),
        ("span", expiry.span_s().map(u64::from)),
        ("version", Some(version).filter(|&version| version != 0)),
    ];
    words.extend(numbers.iter().filter_map(|(name, number)| number.map(|number| format!("{name}={number}"))));
    if let LogChange::Put { record, .. } = entry.change
        && record.attributes.has_value_list
    {
        words.push(format!("values={}", record.values().count()));
    }
    words.extend(marks.stale.then(|| "stale".into()));
    words.extend(marks.token_sent.then(|| "token-out".into()));
    let words = if words.is_empty() { "-".into() } else { words.join(" ") };
    write!(out, "{words}\t")?;
    put_value(out, value.unwrap_or_default(), values)?;
    out.write_all(b"\n")?;
    // The changes of a transaction have one line each, for programs that know only puts and
    // removals.
    if let LogChange::Transaction(changes) = entry.change {
        for change in changes.iter() {
            put(out, LogPosition(position), time_ms, own, &LogEntry { change, ..*entry }, values)?;
        }
    }
    Ok(())
}

/// Writes a value, or the part of it that `values` requests.
fn put_value(out: &mut impl Write, value: &[u8], values: ValueDetail) -> io::Result<()> {
    match values {
        ValueDetail::None => Ok(()),
        ValueDetail::Short if value.len() > SHORT => {
            tsv::escape(out, &value[..SHORT])?;
            out.write_all(b"\\...")
        }
        ValueDetail::Short | ValueDetail::Whole => tsv::escape(out, value),
    }
}
