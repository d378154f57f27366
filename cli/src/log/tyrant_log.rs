//! Prints update logs in the format of Tokyo Tyrant's `ttulmgr export`: logs of ttserver, and
//! Todana's own.

use super::{LogArguments, LogFormat, LogStart, put_value};
use crate::formats::ttulog::{self, STAMPS_A_MS};
use crate::{CommandFailure, tsv};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use todana::moment;
use todana::replication::{ChangeOrigin, StampAssigner, StampScheme};
use todana::table::are_definitions;
use todana::tyrant::take_part;
use todana::update_log::{LogChange, LogEntry, LogPosition};
use todana_protocol::tyrant::log_text::put_line;
use todana_protocol::tyrant::update_log::LogRecord;
use todana_protocol::tyrant::{AbsoluteChange, LoggedCommand, TyrantRequest};

/// Prints a log of Tokyo Tyrant.
pub(super) fn show(directory: &Path, arguments: &LogArguments) -> Result<(), CommandFailure> {
    if arguments.follow {
        return Err(CommandFailure::usage(
            "--follow: not available for a log of Tokyo Tyrant; `todana serve --replicate` follows its server",
        ));
    }
    let files = ttulog::files(directory)?;
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    if arguments.segments {
        for file in &files {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy();
            writeln!(out, "{name}\t{}", file.len)?;
        }
        out.flush()?;
        return Ok(());
    }
    let from = match arguments.from {
        None => 0,
        Some(LogStart::Position(stamp)) => stamp,
        Some(LogStart::End) => return Ok(()),
    };
    let mut line = Vec::new();
    ttulog::each(&files, &mut |_, _, record| {
        let time_ms = record.stamp_micros / STAMPS_A_MS;
        if record.stamp_micros < from || !arguments.wants(time_ms) || !arguments.wants_more(time_ms) {
            return Ok(());
        }
        if arguments.format == LogFormat::Ttulog {
            line.clear();
            put_line(record, &mut line);
            out.write_all(&line)?;
            return Ok(());
        }
        put(&mut out, record, arguments)?;
        Ok(())
    })?;
    out.flush()?;
    Ok(())
}

fn put(out: &mut impl Write, record: &LogRecord<'_>, arguments: &LogArguments) -> io::Result<()> {
    let stamp = record.stamp_micros;
    let origin = ChangeOrigin::new(record.server_id, record.master_id);
    write!(out, "{stamp}\t{}\t{origin}\t", moment::text(stamp / STAMPS_A_MS))?;
    let Some(command) = LoggedCommand::parse(record.body) else {
        return out.write_all(b"damaged\t\t-\t\n");
    };
    let (key, value) = match command.request {
        TyrantRequest::Put { key, value, .. } | TyrantRequest::PutShl { key, value, .. } => (key, value),
        TyrantRequest::Out { key }
        | TyrantRequest::AddInt { key, .. }
        | TyrantRequest::AddDouble { key, .. } => (key, &b""[..]),
        TyrantRequest::Misc { name, .. } => (name, &b""[..]),
        _ => (&b""[..], &b""[..]),
    };
    let words = match command.request {
        TyrantRequest::Put { value, .. } => format!("size={}", value.len()),
        TyrantRequest::PutShl { value, width, .. } => format!("size={} width={width}", value.len()),
        TyrantRequest::AddInt { delta, .. } => format!("delta={delta}"),
        TyrantRequest::AddDouble { delta, .. } => format!("delta={delta}"),
        TyrantRequest::Misc { arguments, .. } => format!("arguments={}", arguments.len()),
        _ => String::new(),
    };
    let failed = if command.is_done { "" } else { " failed" };
    let words = format!("{words}{failed}");
    let words = if words.is_empty() { "-" } else { words.trim_start() };
    write!(out, "{}\t", command.request.command().name())?;
    tsv::escape(out, key)?;
    write!(out, "\t{words}\t")?;
    put_value(out, value, arguments.values)?;
    out.write_all(b"\n")
}

/// Prints entries of Todana's log as records of Tokyo Tyrant's, with the time stamps that its
/// replicas receive.
pub(super) struct TyrantLines {
    stamps: StampAssigner,
    /// The ID of the server whose log this is, for changes without another origin.
    own: u16,
    /// True if the log is that of a table. Its record with the empty key holds the definitions of
    /// the indexes, and is no row.
    is_table: bool,
    body: Vec<u8>,
    line: Vec<u8>,
}

impl TyrantLines {
    /// Creates the printer. If it is not known that the log is that of a table, the first
    /// definition of an index shows it.
    pub(super) fn new(own: u16, is_table: bool) -> TyrantLines {
        let stamps = StampAssigner::new(StampScheme::Changes);
        TyrantLines { stamps, own, is_table, body: Vec::new(), line: Vec::new() }
    }

    /// Converts an entry, and prints it if `is_wanted` is true. Entries that change no record have
    /// no line.
    pub(super) fn put(
        &mut self,
        out: &mut impl Write,
        position: LogPosition,
        entry: &LogEntry<'_>,
        is_wanted: bool,
    ) -> io::Result<()> {
        let origin = entry.origin.map_or(ChangeOrigin::new(self.own, 0), ChangeOrigin::from);
        match &entry.change {
            LogChange::Mark { time_ms, .. } => self.stamps.mark(position.0, *time_ms),
            LogChange::Transaction(changes) => {
                for change in changes.iter() {
                    self.put_change(out, position, origin, &change, is_wanted)?;
                }
            }
            LogChange::PlanClear { .. } | LogChange::Epoch(_) | LogChange::Lost { .. } => {}
            change => self.put_change(out, position, origin, change, is_wanted)?,
        }
        Ok(())
    }

    fn put_change(
        &mut self,
        out: &mut impl Write,
        position: LogPosition,
        origin: ChangeOrigin,
        change: &LogChange<'_>,
        is_wanted: bool,
    ) -> io::Result<()> {
        let stamp_micros = self.stamps.at(position.0);
        if let LogChange::Put { key: b"", record } = *change {
            self.is_table |= are_definitions(record.value);
        }
        let key = match *change {
            LogChange::Put { key, .. } | LogChange::Remove { key } => Some(key),
            LogChange::Clear => None,
            _ => return Ok(()),
        };
        if !is_wanted || (self.is_table && key == Some(b"")) {
            return Ok(());
        }
        match *change {
            LogChange::Put { key, record } if record.attributes.has_value_list => {
                // The new values are added after a removal of the old ones, as replicas get them.
                let earlier = stamp_micros.saturating_sub(1);
                self.put_line(out, earlier, origin, AbsoluteChange::Remove { key })?;
                let mut values = record.values();
                loop {
                    let part = take_part(key, &mut values);
                    let is_last = values.encoded_len() == 0;
                    let stamp = if is_last { stamp_micros } else { earlier };
                    self.put_line(out, stamp, origin, AbsoluteChange::Add { key, values: &part })?;
                    if is_last {
                        return Ok(());
                    }
                }
            }
            LogChange::Put { key, record } => {
                let change = AbsoluteChange::Put { key, value: record.value };
                self.put_line(out, stamp_micros, origin, change)
            }
            LogChange::Remove { key } => {
                self.put_line(out, stamp_micros, origin, AbsoluteChange::Remove { key })
            }
            _ => self.put_line(out, stamp_micros, origin, AbsoluteChange::Clear),
        }
    }

    fn put_line(
        &mut self,
        out: &mut impl Write,
        stamp_micros: u64,
        origin: ChangeOrigin,
        change: AbsoluteChange<'_>,
    ) -> io::Result<()> {
        self.body.clear();
        self.line.clear();
        change.put_body(&mut self.body);
        let ChangeOrigin { server_id, master_id } = origin;
        put_line(&LogRecord { stamp_micros, server_id, master_id, body: &self.body }, &mut self.line);
        out.write_all(&self.line)
    }
}
