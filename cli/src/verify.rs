//! `todana verify`: checks every checksum of a database, data directory or backup.

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
use todana::{NewestCheckpoint, VerificationReport, holds_hash, moment, verify};
use todana_core::{Error, ErrorKind};

pub(crate) const AFTER_HELP: &str = "\
Nothing is changed. A server may have the data directory open; a database on disk
must not be open.

Trees of format version 1 have records without checksums, in which a changed byte
goes undetected. The number of such records is reported; `todana copy` writes a
tree with checksums.

Exit codes: 0 everything is intact, 1 data is damaged, 3 data cannot be read.

Examples:
  todana verify /var/lib/todana
  todana verify /backup/monday
  todana verify ./carts.hash";

/// The most passes. Even on a busy server, one of them takes place without a checkpoint in between.
const PASSES_MAX: u32 = 10;

/// The arguments of `todana verify`.
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
    // A relative path such as `.` may be a database too.
    let whole_path = arguments.directory.canonicalize().unwrap_or_else(|_| arguments.directory.clone());
    if let Some(name) = database(&arguments.directory).or_else(|| database(&whole_path)) {
        return check(&name);
    }
    if arguments.directory.join("tree/data.mdb").is_file() {
        let path = arguments.directory.display();
        return Err(CommandFailure::usage(format!(
            "{path}: is a tree on disk, not a data directory; rename the directory to NAME.tree"
        )));
    }
    if holds_hash(&SystemDisk, &arguments.directory) {
        let path = arguments.directory.display();
        return Err(CommandFailure::trouble(format!(
            "{path}: has the files of a hash on disk; rename the directory to NAME.hash"
        )));
    }
    let verified = match verify_until_stable(arguments) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            // If the line cannot be written, the exit code still reports the damage.
            let _ = writeln!(std::io::stdout(), "damaged: {error}");
            return Err(CommandFailure::miss());
        }
        verified => verified?,
    };
    let reported = report(&verified, &arguments.directory);
    if !verified.damages.is_empty() {
        return Err(CommandFailure::miss());
    }
    Ok(reported?)
}

fn report(verified: &VerificationReport, directory: &Path) -> io::Result<()> {
    let mut out = std::io::stdout().lock();
    if let Some(backup) = &verified.backup {
        writeln!(out, "a backup as of {}", moment::text(backup.created_ms))?;
    }
    if verified.backup.as_ref().is_some_and(|backup| backup.is_hash) {
        for damage in &verified.damages {
            writeln!(out, "damaged: {damage}")?;
        }
        let files = amount(verified.hash_segments, "file");
        writeln!(out, "{files} of a hash on disk, {} bytes, are intact", verified.hash_bytes)?;
        if !verified.damages.is_empty() {
            let of_before = match verified.inherited == verified.damages.len() {
                true => "the source was damaged before the backup; ",
                false => "",
            };
            let what = "`todana salvage` recovers the intact records";
            writeln!(out, "{of_before}{what}; another backup may be intact")?;
        }
        return Ok(());
    }
    let VerificationReport { checkpoint_bytes, log_bytes, .. } = verified;
    let torn = if let LogTail::Torn { len, .. } = verified.tail { len } else { 0 };
    write!(out, "checkpoints: {} intact, {checkpoint_bytes} bytes", verified.checkpoints)?;
    if let Some(NewestCheckpoint { records, created_ms, .. }) = &verified.newest {
        let (which, made) =
            (if verified.checkpoints > 1 { "the newest" } else { "it" }, moment::text(*created_ms));
        write!(out, "; {which} has {}, as of {made}", amount(*records, "record"))?;
    }
    let (from, to) = verified.log;
    let entries = match verified.entries {
        0 => "no entries".to_string(),
        entries => {
            let (changes, entries) = (amount(verified.changes, "change"), amount(entries, "entry"));
            format!("{changes} in {entries} (the others are time marks)")
        }
    };
    let segments = amount(verified.segments, "segment");
    writeln!(out, "\nlog: {segments}, {log_bytes} bytes; {entries}, from position {} to {}", from.0, to.0)?;
    if verified.lost > 0 {
        writeln!(out, "{} bytes of changes are marked as lost", verified.lost)?;
    }
    if let LogTail::Torn { path, offset, len } = &verified.tail {
        let why = match verified.backup {
            Some(_) => "",
            None => {
                "; a server is writing them, or was stopped while it did, and removes them at its next start"
            }
        };
        writeln!(out, "{} at offset {offset}: {len} bytes of an incomplete entry{why}", path.display())?;
    }
    for damage in &verified.damages {
        writeln!(out, "damaged: {damage}")?;
        if let Some(substitute) = substitute(damage, verified, directory) {
            writeln!(out, "  {substitute}")?;
        }
    }
    writeln!(out, "{} bytes of checkpoints and log are intact", checkpoint_bytes + log_bytes - torn)?;
    if !verified.damages.is_empty() {
        writeln!(out, "{}", advice(directory))?;
    }
    Ok(())
}

/// Returns a sentence about the checkpoint that a server would use instead of a damaged one.
/// Returns `None` if the server could not start.
fn substitute(damage: &str, verified: &VerificationReport, directory: &Path) -> Option<String> {
    let checkpoints = format!("{}/", directory.join("checkpoints").display());
    let starts =
        verified.backup.is_none() && verified.damages.iter().all(|damage| damage.starts_with(&checkpoints));
    let newest = &verified.newest.as_ref().filter(|_| starts)?.path;
    let (name, newest) =
        (damage.strip_prefix(&checkpoints)?.split(' ').next()?, newest.file_name()?.to_str()?);
    // The names of checkpoints are positions with the same number of digits, so they can be
    // compared as text.
    Some(match name.cmp(newest) {
        Ordering::Less => {
            format!("an older checkpoint: the server starts with {newest} and does not need it")
        }
        _ => format!("the server starts with the older {newest}, and reads more of the log"),
    })
}

/// Verifies repeatedly until two passes agree. A server may remove or complete a file during a
/// pass, but real damage is found again.
fn verify_until_stable(arguments: &VerifyArguments) -> Result<VerificationReport, Error> {
    let what_is_wrong = |outcome: &Result<VerificationReport, Error>| match outcome {
        Ok(verified) => verified.damages.clone(),
        Err(error) => vec![error.to_string()],
    };
    let mut outcome = verify_once(arguments);
    for _ in 1..PASSES_MAX {
        let before = what_is_wrong(&outcome);
        if before.is_empty() {
            break;
        }
        outcome = verify_once(arguments);
        if what_is_wrong(&outcome) == before {
            break;
        }
    }
    outcome
}

fn verify_once(arguments: &VerifyArguments) -> Result<VerificationReport, Error> {
    let bar = progress(None, "reading {spinner} {bytes} {bytes_per_sec}");
    let verified = verify(Arc::new(SystemDisk), &arguments.directory, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    verified
}
