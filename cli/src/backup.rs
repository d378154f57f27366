//! `todana backup`: a consistent copy of a database, with its place in the update log.

use crate::CommandFailure;
use crate::amount::amount;
use crate::command_failure::kept_nothing;
use crate::command_target::{DirectoryOrServer, database, expect_source};
use crate::interruption_flag::InterruptionFlag;
use crate::progress::progress;
use crate::serve::size;
use crate::server_options::ServerOptions;
use clap::Args;
use std::ffi::OsString;
use std::io::Write;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::backup::{BackedUp, Backup, Receiver};
use todana::disk::SystemDisk;
use todana::moment;
use todana::update_log::LogTail;
use todana::{DataDirectory, Db, Name, refuse_overlap};
use todana_client::{Destination, ExportFrame};
use todana_core::ErrorKind;

pub(crate) const AFTER_HELP: &str = "\
A backup is a directory of its own: a checkpoint, the update log behind it, and
a list of both with their checksums. It has its name only once all of it is on
disk and has been read again. What is there already is not replaced.

Of a hash on disk it holds the files instead, as of one moment. What is damaged
in them is backed up as it is, and told; the exit code is 1 then.

A server goes on working meanwhile; all that it has acknowledged before the
command is in the backup, and what is changed until its end may be.

HOST:PORT is a server, and so is what has :// in it or begins with unix: or [;
everything else is a directory. ./HOST:PORT is a directory of such a name.

Examples:
  todana backup 127.0.0.1:11311 /backup/monday --rate 20m
  todana backup -S todanas://cache:11311 --tls-ca ca.pem /backup/monday
  todana backup 127.0.0.1:11311 /backup/users --database users
  todana backup /var/lib/todana /backup/monday
  todana backup ./carts.hash /backup/carts
  todana verify /backup/monday
  todana restore /backup/monday /var/lib/todana.new";

/// What `backup` is told.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct BackupArguments {
    /// A server at work, by its address (host:port, todanas://host:port, unix:/path ...) or by -S, or a data directory or a
    /// database on disk that none has open
    #[arg(value_name = "SERVER|DIR")]
    source: Option<OsString>,
    /// Where the backup is to be; made, with those above it
    target: PathBuf,
    /// Bytes a second at most, from a server; k, m or g behind the number
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    rate: Option<NonZeroU64>,
    #[command(flatten)]
    server: ServerOptions,
}

fn rate(text: &str) -> Result<NonZeroU64, String> {
    NonZeroU64::new(size(text)?).ok_or_else(|| "0 is no rate".into())
}

pub(crate) fn run(arguments: &BackupArguments) -> Result<(), CommandFailure> {
    let named = arguments.server.named(arguments.source.is_some())?;
    match DirectoryOrServer::of(arguments.source.as_deref(), named, "SERVER|DIR")? {
        DirectoryOrServer::Directory(_) if arguments.rate.is_some() => {
            Err(CommandFailure::usage("--rate is for a backup of a server at work"))
        }
        DirectoryOrServer::Directory(directory) => {
            arguments.server.expect_no_database()?;
            refuse_overlap([&*directory], &arguments.target)?;
            match database(&directory) {
                Some(name) => of_database(&name, &arguments.target),
                None => of_directory(&directory, &arguments.target),
            }
        }
        DirectoryOrServer::Server(server) => of_server(&server, arguments),
    }
}

fn of_server(server: &Destination, arguments: &BackupArguments) -> Result<(), CommandFailure> {
    let mut connection = arguments.server.connect(server)?;
    let mut is_begun = false;
    take(&arguments.target, &mut |bytes, interruption| {
        if !is_begun {
            // Not before it is known that there is a place for it.
            connection.give_up_when(interruption.flag());
            let database = arguments.server.database_number(&mut connection)?;
            connection.begin_backup(database, arguments.rate)?;
            is_begun = true;
        }
        let goes_on = connection.next_frame(|frame| match frame {
            ExportFrame::Data(data) => {
                bytes.extend_from_slice(data);
                true
            }
            ExportFrame::Wait => true,
            ExportFrame::End => false,
        });
        interruption.check()?;
        goes_on.map_err(kept_nothing)
    })
}

fn of_database(name: &Name, target: &Path) -> Result<(), CommandFailure> {
    let db = Db::open(&name.to_string()).map_err(|error| match error.kind() {
        ErrorKind::Busy => CommandFailure::trouble(format!(
            "{name} is in use by a server: give the server's address instead, and it is backed up at work"
        )),
        _ => error.into(),
    })?;
    let mut backup = db.backup()?;
    drop(db);
    take(target, &mut |bytes, _| Ok(backup.next(bytes)?))
}

fn of_directory(directory: &Path, target: &Path) -> Result<(), CommandFailure> {
    expect_source(directory, "backup")?;
    let opened = DataDirectory::open_existing(Arc::new(SystemDisk), directory);
    let opened = opened.map_err(|error| match error.kind() {
        ErrorKind::Busy => CommandFailure::trouble(format!(
            "{} is in use by a server: give the server's address instead, and it is backed up at work",
            directory.display()
        )),
        _ => error.into(),
    })?;
    let checking = bar("checking");
    let mut backup = Backup::of_rest(&opened, &mut |done| checking.set_position(done))?;
    checking.finish_and_clear();
    for why in backup.refused() {
        eprintln!(
            "todana: a checkpoint is damaged, the one before it and a longer log take its place: {why}"
        );
    }
    if let LogTail::Torn { path, offset, len } = backup.tail() {
        eprintln!(
            "todana: {} at offset {offset}: {len} bytes of writes that were not finished are left out",
            path.display()
        );
    }
    take(target, &mut |bytes, _| Ok(backup.next(bytes)?))
}

type NextPiece<'n> = dyn FnMut(&mut Vec<u8>, &InterruptionFlag) -> Result<bool, CommandFailure> + 'n;

/// Writes a backup from a stream: `next` appends some more of it, and says whether there may be more. Nothing stays of one
/// that is interrupted.
fn take(target: &Path, next: &mut NextPiece<'_>) -> Result<(), CommandFailure> {
    let interruption = InterruptionFlag::watch()?;
    let mut receiver = Receiver::create(Arc::new(SystemDisk), target)?;
    let bar = bar("writing");
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let goes_on = next(&mut bytes, &interruption)?;
        interruption.check()?;
        receiver.take(&bytes)?;
        let progress = receiver.progress();
        bar.set_length(progress.done + progress.remaining);
        bar.set_position(progress.done);
        if !goes_on {
            break;
        }
    }
    let checking = receiver.progress().done;
    bar.set_message("checking");
    bar.set_length(checking);
    let backed_up = receiver.finish(&mut |done| bar.set_position(done))?;
    bar.finish_and_clear();
    report(&backed_up, target)?;
    for damage in &backed_up.damages {
        eprintln!("todana: damaged before it was backed up, and so in the backup: {damage}");
    }
    if backed_up.damages.is_empty() { Ok(()) } else { Err(CommandFailure::miss()) }
}

fn report(backed_up: &BackedUp, target: &Path) -> Result<(), CommandFailure> {
    let BackedUp { start, end, created_ms, records, len, is_hash, .. } = backed_up;
    if *is_hash {
        writeln!(
            std::io::stdout(),
            "{}: a hash on disk of {}, {len} bytes, as of {}",
            target.display(),
            amount(*records, "record"),
            moment::text(*created_ms),
        )?;
        return Ok(());
    }
    let changes = match end.0 - start.0 {
        0 => "no change".to_string(),
        bytes => format!("{} of changes", amount(bytes, "byte")),
    };
    let what = match records {
        0 => format!("{changes} from the beginning"),
        _ => format!("a checkpoint of {}, and {changes} after it", amount(*records, "record")),
    };
    let (target, made) = (target.display(), moment::text(*created_ms));
    writeln!(std::io::stdout(), "{target}: {what}; {len} bytes, as of {made}")?;
    Ok(())
}

fn bar(what: &'static str) -> indicatif::ProgressBar {
    let bar = progress(Some(0), "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}");
    bar.set_message(what);
    bar
}
