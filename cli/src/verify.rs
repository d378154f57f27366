//! `todana verify`: reads all of a data directory or a backup and checks every checksum.

use crate::data::progress;
use crate::source::expect_directory;
use crate::{Failure, moment};
use clap::Args;
use std::io::{self, Write};
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

/// However busy the server is, one look of these comes between two checkpoints.
const LOOKS_MAX: u32 = 10;

/// What `verify` is told.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The data directory or backup
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    expect_directory(&arguments.directory, "verify")?;
    let verified = match look_until_sure(arguments) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            // Whoever reads no further is told by the exit code all the same.
            let _ = writeln!(std::io::stdout(), "damaged: {error}");
            return Err(Failure::miss());
        }
        verified => verified?,
    };
    let told = tell(&verified);
    if !verified.damages.is_empty() {
        return Err(Failure::miss());
    }
    Ok(told?)
}

fn tell(verified: &Verified) -> io::Result<()> {
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
    writeln!(out, "{} bytes read", verified.bytes)
}

/// A server may have removed or finished a file while it was read. What is damaged is so the next time, too.
fn look_until_sure(arguments: &Arguments) -> Result<Verified, Error> {
    let what_is_wrong = |outcome: &Result<Verified, Error>| match outcome {
        Ok(verified) => verified.damages.clone(),
        Err(error) => vec![error.to_string()],
    };
    let mut outcome = look(arguments);
    for _ in 1..LOOKS_MAX {
        let before = what_is_wrong(&outcome);
        if before.is_empty() {
            break;
        }
        outcome = look(arguments);
        if what_is_wrong(&outcome) == before {
            break;
        }
    }
    outcome
}

fn look(arguments: &Arguments) -> Result<Verified, Error> {
    let bar = progress(None, "reading {spinner} {bytes} {bytes_per_sec}");
    let verified = verify(Arc::new(SystemDisk), &arguments.directory, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    verified
}
