//! `todana log` for an update log of Kyoto Tycoon: prints the log as text.

use super::{LogArguments, LogFormat, LogStart, put_value};
use crate::formats::ulog;
use crate::{CommandFailure, tsv};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use todana::kyoto::NEVER;
use todana::moment;
use todana_protocol::kyoto::message::{UpdateChange, UpdateMessage};

pub(super) fn show(directory: &Path, arguments: &LogArguments) -> Result<(), CommandFailure> {
    if arguments.follow {
        return Err(CommandFailure::usage(
            "--follow: not available for a log of Kyoto Tycoon; `todana serve --replicate` follows its server",
        ));
    }
    if arguments.format != LogFormat::Columns {
        return Err(CommandFailure::usage("--format: not available for a log of Kyoto Tycoon"));
    }
    let files = ulog::files(directory)?;
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    if arguments.segments {
        for file in &files {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy();
            let newest = ulog::head(file)?.newest;
            writeln!(out, "{name}\t{}\t{newest}\t{}", file.len, moment::text(ulog::unix_ms(newest)))?;
        }
        out.flush()?;
        return Ok(());
    }
    let from = match arguments.from {
        None => 0,
        Some(LogStart::Position(stamp)) => stamp,
        Some(LogStart::End) => return Ok(()),
    };
    let since = arguments.since.map_or(0, |since| (since / 1000 * 1000).saturating_mul(ulog::STAMPS_PER_MS));
    ulog::each(&files, Some(from.max(since)), &mut |_, _, stamp, message| {
        // `--until` includes the complete second, as for the other logs.
        if arguments.wants_more(ulog::unix_ms(stamp)) {
            put(&mut out, stamp, message, arguments)?;
        }
        Ok(())
    })?;
    out.flush()?;
    Ok(())
}

fn put(
    out: &mut impl Write,
    stamp: u64,
    message: &UpdateMessage<'_>,
    arguments: &LogArguments,
) -> io::Result<()> {
    let mut words = vec![format!("db={}", message.database)];
    let (operation, key, value) = match message.change {
        UpdateChange::Set { key, stored } => {
            let stored_raw = stored.as_raw().unwrap_or_default();
            let (time, value) = stored.split().filter(|_| !arguments.bare).unwrap_or((NEVER, stored_raw));
            words.push(format!("size={}", value.len()));
            if time < NEVER {
                words.push(format!("expiry={}", time + 1));
            }
            ("put", key, value)
        }
        UpdateChange::Remove { key } => ("remove", key, &b""[..]),
        UpdateChange::Clear => ("clear", &b""[..], &b""[..]),
        // No log contains a list of values, which only replicas receive.
        UpdateChange::SetList { key, .. } => ("set-list", key, &b""[..]),
        UpdateChange::Other { operation, .. } => {
            words.push(format!("operation={operation}"));
            ("unknown", &b""[..], &b""[..])
        }
    };
    let (time, origin) = (moment::text(ulog::unix_ms(stamp)), message.server_id);
    write!(out, "{stamp}\t{time}\t{origin}\t{operation}\t")?;
    tsv::escape(out, key)?;
    write!(out, "\t{}\t", words.join(" "))?;
    put_value(out, value, arguments.values)?;
    out.write_all(b"\n")
}
