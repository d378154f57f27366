//! `todana log`: an update log as text, and as it grows.

mod kyoto_log;

use crate::command_failure::kept_nothing;
use crate::command_target::{DirectoryOrServer, expect_source};
use crate::formats::ulog;
use crate::server_options::ServerOptions;
use crate::{CommandFailure, tsv};
use clap::{Args, ValueEnum};
use std::cmp::Ordering;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use todana::disk::SystemDisk;
use todana::moment;
use todana::update_log::{EntryDecoder, LogChange, LogEntry, LogFollower, LogPosition, segments};
use todana_client::{Destination, ExportFrame, LogFrom};
use todana_core::Attributes;

pub(crate) const AFTER_HELP: &str = "\
A line a change, its columns with tabs between them:
  position  time  origin  operation  key  attributes  value
origin is the id of the server that first made the change. The operations are
put, retag (new attributes, the same value), remove, clear, plan-clear and lost.
Attributes: size=BYTES of the value, flags=, expiry=UNIX-SECONDS, span=SECONDS
of a sliding expiry, version=, stale, token-out, at=UNIX-SECONDS of a planned
clear, bytes= of what is lost; - for none. Key and value are escaped as in a
dump: \\\\ \\t \\n \\r \\xHH. A value that is cut short ends in \\...

Nothing is locked: a server may be writing to it. With --follow it goes on as
the log grows, until it is stopped; what is not on disk yet may be shown. A
server sends what is on disk (with --sync never: what the system has taken).
Of Kyoto Tycoon's log (files NUMBER.ulog) the position is the time stamp, the
attributes have db=NUMBER of the database, and --segments shows file, bytes and
newest time stamp; --follow is not for it. Times before the first mark behind POSITION are not known: 1970.

HOST:PORT is a server, and so is what has :// in it or begins with unix: or [;
everything else is a directory. ./HOST:PORT is a directory of such a name.

Examples:
  todana log 127.0.0.1:11311 --from end --follow
  todana log /var/lib/todana --since 2026-11-21T14:00:00Z
  todana log /var/lib/todana --follow --values none
  todana log /var/lib/todana --segments
  todana log /var/ktserver/ulog --since 2026-11-21T14:00:00Z --values whole";

/// How often it looks for more.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Bytes of a value that are shown in short.
const SHORT: usize = 40;

/// What `log` is told.
#[derive(Debug, Args)]
pub(crate) struct LogArguments {
    /// A data directory, a backup, a directory of log segments or of Kyoto Tycoon's logs, or a server by its address
    /// (host:port, unix:/path ...) or by -S
    #[arg(value_name = "DIR|SERVER")]
    source: Option<OsString>,
    /// From this position on, that of a line; or from the `end`: with --follow what is changed from now on
    #[arg(long, value_name = "POSITION")]
    from: Option<LogStart>,
    /// Changes of this time and later ones: RFC 3339 or Unix seconds
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    since: Option<u64>,
    /// Up to the changes of this time
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    until: Option<u64>,
    /// How much of the values is shown
    #[arg(long, default_value = "short", value_name = "HOW")]
    values: ValueDetail,
    /// Go on as the log grows
    #[arg(long, conflicts_with = "segments")]
    follow: bool,
    /// List the segments: file, first position, bytes, when it was made, how often the database had been opened
    #[arg(long)]
    segments: bool,
    /// Kyoto Tycoon's log: values stand alone, without the time before them (databases with ktopts=p)
    #[arg(long)]
    bare: bool,
    #[command(flatten)]
    server: ServerOptions,
}

/// Where to begin.
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
            text => text.parse().map(LogStart::Position).map_err(|_| "neither a position nor `end`"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ValueDetail {
    /// Nothing
    None,
    /// Their first 40 bytes
    Short,
    /// All
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
            Err(CommandFailure::usage("--segments is for a directory, not for a server"))
        }
        DirectoryOrServer::Server(server) => of_server(&server, arguments),
    }
}

/// What a server sends is checked here, entry by entry.
fn of_server(server: &Destination, arguments: &LogArguments) -> Result<(), CommandFailure> {
    let mut connection = arguments.server.connect(server)?;
    let from = match arguments.from {
        None => LogFrom::First,
        Some(LogStart::Position(position)) => LogFrom::At(position),
        Some(LogStart::End) => LogFrom::End,
    };
    let database = arguments.server.database_number(&mut connection)?;
    let head = connection.begin_log(database, from, arguments.follow).map_err(kept_nothing)?;
    let mut entries = EntryDecoder::new(head.database_id, LogPosition(head.position));
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut time_ms = 0;
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
            CommandFailure::trouble(format!("{error}; what stands before position {position} has been shown"))
        })?;
        while let Some((position, entry)) = entries.next_entry()? {
            if let LogChange::Mark { time_ms: now, .. } = entry.change {
                time_ms = now;
            }
            if !arguments.wants_more(time_ms) {
                out.flush()?;
                return Ok(());
            }
            if arguments.wants(time_ms) {
                put(&mut out, position, time_ms, head.server_id, &entry, arguments.values)?;
            }
        }
        // Whoever follows sees each line as it comes.
        if arguments.follow || !goes_on {
            out.flush()?;
        }
        if !goes_on && entries.is_empty() {
            return Ok(());
        }
        if !goes_on {
            let position = entries.position().0;
            return Err(CommandFailure::trouble(format!(
                "the update log at position {position}: the entry is cut off"
            )));
        }
    }
}

impl LogArguments {
    /// Whether changes of this time are to be shown. Marks tell whole seconds.
    fn wants(&self, time_ms: u64) -> bool {
        self.since.is_none_or(|since| time_ms / 1000 >= since / 1000)
    }

    /// Whether changes of this time or later ones are.
    fn wants_more(&self, time_ms: u64) -> bool {
        self.until.is_none_or(|until| time_ms <= until)
    }
}

fn of_directory(directory: &Path, arguments: &LogArguments) -> Result<(), CommandFailure> {
    expect_source(directory, "log")?;
    let within = directory.join("log");
    if !within.is_dir() && !ulog::files(directory)?.is_empty() {
        return kyoto_log::show(directory, arguments);
    }
    let log = if within.is_dir() { within } else { directory.to_path_buf() };
    if arguments.segments {
        return list(&log);
    }
    let stdout = io::stdout().lock();
    // Whoever watches sees each line at once.
    let is_watched = stdout.is_terminal();
    let mut out = BufWriter::with_capacity(1 << 16, stdout);
    let segments = segments(&SystemDisk, &log)?;
    let own = segments.first().map_or(0, |one| one.identity.server_id);
    let mut from = match arguments.from {
        Some(LogStart::End) => segments.last().map(|last| last.start),
        Some(LogStart::Position(position)) => Some(LogPosition(position)),
        None => None,
    };
    let mut follower = LogFollower::open(Arc::new(SystemDisk), &log, from, arguments.since)?;
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
            // As of a server: what is taken for a place in the log is one, or whoever goes on there misses something.
            if let Some(from) = from.take_if(|from| *from != position) {
                outcome = Err(not_between(from));
                return ControlFlow::Break(());
            }
            from = None;
            if !arguments.wants_more(time_ms) {
                return ControlFlow::Break(());
            }
            if !arguments.wants(time_ms) {
                return ControlFlow::Continue(());
            }
            outcome = put(&mut out, position, time_ms, own, entry, arguments.values);
            if is_watched && outcome.is_ok() {
                outcome = out.flush();
            }
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
        // Nothing stands behind it yet, or it is no place at all.
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
            eprintln!("todana: the log from position {} to {} has been removed", from.0, to.0);
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

/// Writes a line, unless it is a mark, which only tells the time.
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
        LogChange::Lost { .. } => ("lost", None, none, None),
    };
    let (position, time, origin) = (position.0, moment::text(time_ms), entry.origin.unwrap_or(own));
    write!(out, "{position}\t{time}\t{origin}\t{operation}\t")?;
    tsv::escape(out, key.unwrap_or_default())?;
    out.write_all(b"\t")?;
    let mut words = Vec::new();
    if let Some(value) = value {
        words.push(format!("size={}", value.len()));
    }
    match entry.change {
        LogChange::PlanClear { at } => words.push(format!("at={}", at.map_or(0, |at| at.0))),
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
    words.extend(marks.stale.then(|| "stale".into()));
    words.extend(marks.token_sent.then(|| "token-out".into()));
    let words = if words.is_empty() { "-".into() } else { words.join(" ") };
    write!(out, "{words}\t")?;
    put_value(out, value.unwrap_or_default(), values)?;
    out.write_all(b"\n")?;
    // What was made as one is told one by one as well, so that whoever reads puts and removes misses none.
    if let LogChange::Transaction(changes) = entry.change {
        for change in changes.iter() {
            put(out, LogPosition(position), time_ms, own, &LogEntry { change, ..*entry }, values)?;
        }
    }
    Ok(())
}

/// Writes what is to be shown of a value.
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
