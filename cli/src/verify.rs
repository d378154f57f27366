//! `todana verify`: reads all of a database, data directory or backup and checks every checksum.

use crate::CommandFailure;
use crate::amount::amount;
use crate::command_target::{database, expect_directory};
use crate::database::check;
use crate::progress::progress;
use crate::salvage::advice;
use clap::Args;
use std::cmp::Ordering;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::update_log::LogTail;
use todana::{Newest, Verified, holds_hash, moment, verify};
use todana_core::{Error, ErrorKind};

pub(crate) const AFTER_HELP: &str = "\
Nothing is changed. A server may be at work on a data directory meanwhile; a
database on disk must not be open.

A tree of version 1 of the format has records without checksums, where a changed
byte of a value is not found: how many there are is reported, and `todana copy`
makes a tree without them.

Exit codes: 0 all is whole, 1 something is damaged, 3 it cannot be read.

Examples:
  todana verify /var/lib/todana
  todana verify /backup/monday
  todana verify ./carts.hash";

/// However busy the server is, one look of these comes between two checkpoints.
const LOOKS_MAX: u32 = 10;

/// What `verify` is told.
#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// The data directory, backup, or database on disk (./x.hash, ./x.tree)
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl VerifyArguments {
    pub(crate) fn of(directory: &Path) -> VerifyArguments {
        VerifyArguments { directory: directory.into() }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

pub(crate) fn run(arguments: &VerifyArguments) -> Result<(), CommandFailure> {
    expect_directory(&arguments.directory, "verify")?;
    // `.` may be within one.
    let whole_path = arguments.directory.canonicalize().unwrap_or_else(|_| arguments.directory.clone());
    if let Some(name) = database(&arguments.directory).or_else(|| database(&whole_path)) {
        return check(&name);
    }
    if arguments.directory.join("tree/data.mdb").is_file() {
        let path = arguments.directory.display();
        return Err(CommandFailure::usage(format!(
            "{path} is a tree on disk, no data directory; name the directory NAME.tree"
        )));
    }
    if holds_hash(&SystemDisk, &arguments.directory) {
        let path = arguments.directory.display();
        return Err(CommandFailure::trouble(format!(
            "{path}: the files of a hash on disk; name the directory NAME.hash"
        )));
    }
    let verified = match look_until_sure(arguments) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            // Whoever reads no further is told by the exit code all the same.
            let _ = writeln!(std::io::stdout(), "damaged: {error}");
            return Err(CommandFailure::miss());
        }
        verified => verified?,
    };
    let told = tell(&verified, &arguments.directory);
    if !verified.damages.is_empty() {
        return Err(CommandFailure::miss());
    }
    Ok(told?)
}

fn tell(verified: &Verified, directory: &Path) -> io::Result<()> {
    let mut out = std::io::stdout().lock();
    if let Some(backup) = &verified.backup {
        writeln!(out, "a backup as of {}", moment::text(backup.created_ms))?;
    }
    if verified.backup.as_ref().is_some_and(|backup| backup.is_hash) {
        for damage in &verified.damages {
            writeln!(out, "damaged: {damage}")?;
        }
        let files = amount(verified.hash_segments, "file");
        writeln!(out, "{files} of a hash on disk, {} bytes, are whole", verified.hash_bytes)?;
        if !verified.damages.is_empty() {
            let of_before = match verified.inherited == verified.damages.len() {
                true => "it was damaged before it was backed up; ",
                false => "",
            };
            let what = "`todana salvage` makes a hash of what is complete";
            writeln!(out, "{of_before}{what}; another backup of it may be whole")?;
        }
        return Ok(());
    }
    let Verified { checkpoint_bytes, log_bytes, .. } = verified;
    let torn = if let LogTail::Torn { len, .. } = verified.tail { len } else { 0 };
    write!(out, "checkpoints: {} whole, {checkpoint_bytes} bytes", verified.checkpoints)?;
    if let Some(Newest { records, created_ms, .. }) = &verified.newest {
        let (which, made) =
            (if verified.checkpoints > 1 { "the newest" } else { "it" }, moment::text(*created_ms));
        write!(out, "; {which} has {}, as of {made}", amount(*records, "record"))?;
    }
    let (from, to) = verified.log;
    let entries = match verified.entries {
        0 => "no entries".to_string(),
        entries => {
            let (changes, entries) = (amount(verified.changes, "change"), amount(entries, "entry"));
            format!("{changes} among {entries} (the others tell the time)")
        }
    };
    let segments = amount(verified.segments, "segment");
    writeln!(out, "\nlog: {segments}, {log_bytes} bytes; {entries}, from position {} to {}", from.0, to.0)?;
    if verified.lost > 0 {
        writeln!(out, "{} bytes of changes are lost, as a repair has marked", verified.lost)?;
    }
    if let LogTail::Torn { path, offset, len } = &verified.tail {
        let why = match verified.backup {
            Some(_) => "",
            None => {
                "; a server is writing them, or has been stopped at it, and cuts them off when it is started"
            }
        };
        writeln!(out, "{} at offset {offset}: {len} bytes that are no whole entry{why}", path.display())?;
    }
    for damage in &verified.damages {
        writeln!(out, "damaged: {damage}")?;
        if let Some(substitute) = substitute(damage, verified, directory) {
            writeln!(out, "  {substitute}")?;
        }
    }
    writeln!(out, "{} bytes of checkpoints and log are whole", checkpoint_bytes + log_bytes - torn)?;
    if !verified.damages.is_empty() {
        writeln!(out, "{}", advice(directory))?;
    }
    Ok(())
}

/// What the server does about a damaged checkpoint, as long as it starts at all.
fn substitute(damage: &str, verified: &Verified, directory: &Path) -> Option<String> {
    let checkpoints = format!("{}/", directory.join("checkpoints").display());
    let starts =
        verified.backup.is_none() && verified.damages.iter().all(|damage| damage.starts_with(&checkpoints));
    let newest = &verified.newest.as_ref().filter(|_| starts)?.path;
    let (name, newest) =
        (damage.strip_prefix(&checkpoints)?.split(' ').next()?, newest.file_name()?.to_str()?);
    // Their names are their positions, all of one length.
    Some(match name.cmp(newest) {
        Ordering::Less => format!("an older one: the server starts with {newest} and does not need it"),
        _ => format!("the server starts with {newest}, an older one, and more of the log"),
    })
}

/// A server may have removed or finished a file while it was read. What is damaged is so the next time, too.
fn look_until_sure(arguments: &VerifyArguments) -> Result<Verified, Error> {
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

fn look(arguments: &VerifyArguments) -> Result<Verified, Error> {
    let bar = progress(None, "reading {spinner} {bytes} {bytes_per_sec}");
    let verified = verify(Arc::new(SystemDisk), &arguments.directory, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    verified
}
