//! `todana restore`: creates a database from a backup, with the state at its end or at an earlier
//! time.

use crate::amount::amount;
use crate::command_target::expect_directory;
use crate::progress::progress;
use crate::{CommandFailure, salvage};
use clap::Args;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use todana::backup::BackupReceiver;
use todana::disk::SystemDisk;
use todana::moment;
use todana::update_log::LogTail;
use todana::{
    Clock, Database, DatabaseName, EngineOptions, LoadProgress, RestorationReport, RestoreInto,
    RestoreOptions, SystemClock, refuse_overlap, seed_of,
};
use todana_core::{Error, ErrorKind};

pub(crate) const AFTER_HELP: &str = "\
--log continues after the end of the backup with the update log of the same
database: that of a data directory, even while its server runs, or what remains
of one. `todana serve --log-keep-size` and `--log-keep-age` determine how much of
the log a server keeps for this purpose.

TIME is RFC 3339 (2026-11-21T14:30:00Z, 2026-11-21T15:30:00+01:00) or Unix
seconds. Changes of that second are included, later ones are not. `todana log`
shows the times of all changes.

Damaged data is refused, and nothing is created: `todana salvage` recovers the
intact records.

The records are read into memory, as a server would, unless TARGET is a database
on disk. The result is a new database with a new ID. To serve it:
  todana serve --data-dir TARGET    or    todana serve TARGET.tree

A backup of a hash on disk becomes a hash on disk again, as of the start of the
backup. All other backups become the kind of database that TARGET names.

Examples:
  todana restore /backup/monday /var/lib/todana
  todana restore /backup/users ./users.tree
  todana restore /backup/monday saved --log /var/lib/todana --until 2026-11-21T14:30:00Z";

/// The source and target of a restore or a salvage.
#[derive(Debug, Args)]
pub(crate) struct RestoreRequest {
    /// A backup (a directory, or the file that `synchronize` passes to a command), or a data
    /// directory that no server has open
    #[arg(value_name = "SOURCE")]
    from: PathBuf,
    /// The data directory or database on disk (NAME.hash, NAME.tree) to create, with its parents;
    /// nothing existing is replaced
    target: PathBuf,
    /// Restore the state at this time instead of the state at the end: RFC 3339 or Unix seconds
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    until: Option<u64>,
    /// Also apply the changes in this log of the same database: a data directory, or a directory of
    /// log segments
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
}

/// The arguments of `todana restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArguments {
    #[command(flatten)]
    wanted: RestoreRequest,
    /// Salvage, as `todana salvage` does (until the next version)
    #[arg(long, hide = true)]
    damaged: bool,
}

pub(crate) fn run(arguments: RestoreArguments) -> Result<(), CommandFailure> {
    if arguments.damaged {
        return salvage::run(arguments.wanted);
    }
    // Errors must name the file. The directory in which it was unpacked no longer exists when a
    // user reads the error.
    let source = arguments.wanted.from.clone();
    create(arguments.wanted, "restore", &mut |options, into, clock, progress| {
        let restored = todana::restore(Arc::new(SystemDisk), options, into, clock, progress);
        restored.map_err(|error| refused(error, &source))
    })
}

/// A function that creates the new database from its source.
type MakeDatabase<'m> = dyn FnMut(
        &RestoreOptions,
        RestoreInto<'_>,
        Arc<dyn Clock>,
        &mut dyn FnMut(LoadProgress),
    ) -> Result<RestorationReport, CommandFailure>
    + 'm;

/// Creates the requested database. Errors name the command `command`.
pub(crate) fn create(
    wanted: RestoreRequest,
    command: &str,
    make: &mut MakeDatabase<'_>,
) -> Result<(), CommandFailure> {
    let RestoreRequest { from, target, until, log } = wanted;
    let name =
        target.to_str().and_then(|text| DatabaseName::parse(text).ok()).filter(|name| name.path.is_some());
    let place = name.as_ref().and_then(|name| name.path.as_deref()).unwrap_or(&target);
    refuse_overlap([&*from].into_iter().chain(log.as_deref()), place)?;
    // The temporary directory is removed when this value is dropped.
    let unpacked = if from.is_file() { Some(unpack(&from, &target)?) } else { None };
    let from = unpacked.as_ref().map_or(from, |unpacked| unpacked.path().join(UNPACKED));
    expect_directory(&from, command)?;
    if let Some(log) = &log {
        expect_directory(log, "--log")?;
    }
    let options = RestoreOptions { from, log, until_ms: until, target };
    let bar = progress(Some(0), "reading {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}");
    let mut progress = |step: LoadProgress| {
        bar.set_length(step.done + step.remaining);
        bar.set_position(step.done);
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let restored = match &name {
        // The records are written to disk directly, without a database in memory.
        Some(name) => make(&options, name.into(), clock, &mut progress)?,
        None => {
            let seed = seed_of(Arc::new(SystemDisk), &options.from);
            let engine = EngineOptions { seed, ..EngineOptions::default() };
            let engine = DatabaseName::parse("mem:hash")?.open_engine(Arc::new(SystemDisk), engine)?;
            let database = Database::new(engine, Arc::clone(&clock));
            make(&options, (&database).into(), clock, &mut progress)?
        }
    };
    bar.finish_and_clear();
    report(&options, &restored)
}

/// The name of the unpacked backup within the temporary directory.
const UNPACKED: &str = "backup";
/// The number of bytes that are read at once.
const PIECE: usize = 256 << 10;

/// Unpacks a backup in a single file into a temporary directory beside the target. A server's
/// `synchronize` passes such a file to its command.
fn unpack(file: &Path, target: &Path) -> Result<TempDir, CommandFailure> {
    let unreadable = |error| CommandFailure::trouble(format!("{}: cannot read it: {error}", file.display()));
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let no_backup = |error: Error| match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Invalid => CommandFailure::trouble(format!(
            "{}: neither a directory nor a complete single-file backup: {error}",
            file.display()
        )),
        _ => CommandFailure::from(error),
    };
    let unwritable =
        |error| CommandFailure::trouble(format!("{}: cannot write to it: {error}", parent.display()));
    let folder = tempfile::Builder::new().prefix(".todana-restore").tempdir_in(parent).map_err(unwritable)?;
    let mut receiver = BackupReceiver::create(Arc::new(SystemDisk), &folder.path().join(UNPACKED))?;
    let (mut from, mut piece) = (File::open(file).map_err(unreadable)?, vec![0; PIECE]);
    loop {
        let len = from.read(&mut piece).map_err(unreadable)?;
        if len == 0 {
            break;
        }
        receiver.take(&piece[..len]).map_err(no_backup)?;
    }
    receiver.finish(&mut |_| ()).map_err(no_backup)?;
    Ok(folder)
}

fn refused(error: Error, from: &Path) -> CommandFailure {
    let advice = salvage::advice(from);
    match error.kind() {
        ErrorKind::Corrupt if !error.to_string().contains(&advice) => {
            CommandFailure::trouble(format!("{error}; {advice}"))
        }
        _ => error.into(),
    }
}

fn report(options: &RestoreOptions, restored: &RestorationReport) -> Result<(), CommandFailure> {
    for why in &restored.refused {
        eprintln!("todana: a checkpoint is damaged; using the previous checkpoint and a longer log: {why}");
    }
    if let LogTail::Torn { path, offset, len } = &restored.tail {
        eprintln!(
            "todana: {} at offset {offset}: {len} bytes of unfinished writes are left out",
            path.display()
        );
    }
    if restored.lost > 0 {
        eprintln!("todana: {} bytes of the log are marked as lost", restored.lost);
    }
    if let Some(at) = restored.cancelled_clear {
        let at = moment::text(at.0.saturating_mul(1000));
        eprintln!("todana: a flush planned for {at} was still pending; it is cancelled");
    }
    if restored.ends_before {
        let more = if options.log.is_some() {
            ""
        } else {
            "; use --log DIR to continue with the log of its data directory"
        };
        eprintln!(
            "todana: the source ends before --until; changes after {} are missing{more}",
            moment::text(restored.time_ms)
        );
    }
    let as_of = match restored.time_ms {
        0 => String::new(),
        time_ms => format!(", last changed {}", moment::text(time_ms)),
    };
    let position = match restored.has_log {
        true => format!(" (position {} of the log)", restored.position.0),
        false => String::new(),
    };
    let records = amount(restored.records, "record");
    writeln!(std::io::stdout(), "{}: {records} restored{as_of}{position}", options.target.display())?;
    Ok(())
}
