//! `todana verify`: reads all of a data directory or a backup and checks every checksum.

use crate::data::progress;
use crate::{Failure, moment};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::update_log::Tail;
use todana::{Verified, verify};
use todana_core::{Error, ErrorKind};

pub(crate) const AFTER_HELP: &str = "\
Nothing is changed and nothing is locked: a server may be at work on the
directory meanwhile.

Exit codes: 0 all is whole, 1 something is damaged, 3 it cannot be read.

Examples:
  todana verify /var/lib/todana
  todana verify /backup/monday";

/// What `verify` is told.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The data directory or backup
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let first = look(arguments);
    let is_sound = first.as_ref().is_ok_and(|verified| verified.damages.is_empty());
    // A server may have removed or finished a file while it was read. What is damaged is so the second time, too.
    let verified = match if is_sound { first } else { look(arguments) } {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            writeln!(std::io::stdout(), "damaged: {error}")?;
            return Err(Failure::miss());
        }
        verified => verified?,
    };
    let mut out = std::io::stdout().lock();
    if let Some(backup) = &verified.backup {
        writeln!(out, "a backup as of {}", moment::text(backup.made_ms))?;
    }
    writeln!(out, "checkpoints: {} whole, of {} records", verified.checkpoints, verified.records)?;
    let (from, to) = verified.log;
    writeln!(out, "log: {} whole entries, from position {} to {}", verified.entries, from.0, to.0)?;
    if let Tail::Torn { path, offset, len } = &verified.tail {
        writeln!(
            out,
            "{} at offset {offset}: {len} bytes that are no whole entry; a server is writing them, or has been \
             stopped at it, and cuts them off when it is started",
            path.display()
        )?;
    }
    for damage in &verified.damages {
        writeln!(out, "damaged: {damage}")?;
    }
    writeln!(out, "{} bytes read", verified.bytes)?;
    if verified.damages.is_empty() { Ok(()) } else { Err(Failure::miss()) }
}

fn look(arguments: &Arguments) -> Result<Verified, Error> {
    let bar = progress(None, "reading {spinner} {bytes} {bytes_per_sec}");
    let verified = verify(Arc::new(SystemDisk), &arguments.directory, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    verified
}
