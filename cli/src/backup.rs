//! `todana backup`: writes a consistent copy of a database to a directory, and prints the position
//! in the update log up to which the copy goes.

use crate::CommandFailure;
use crate::amount::amount;
use crate::command_failure::no_stored_data;
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
use todana::backup::{BackedUp, BackupReceiver, BackupSender};
use todana::disk::SystemDisk;
use todana::moment;
use todana::update_log::LogTail;
use todana::{DataDirectory, DatabaseName, Db, refuse_overlap};
use todana_client::{ExportFrame, LoginDestination};
use todana_core::ErrorKind;

pub(crate) const AFTER_HELP: &str = "\
A backup is a new directory with a checkpoint, the update log after it, and a
list of both with their checksums. It gets its final name only when everything
is on disk and has been read again. An existing directory is never replaced.

A backup of a hash on disk holds copies of its files at one point in time.
Damaged files are copied as they are and reported; the exit code is then 1.

A server keeps serving during the backup. The backup contains every write that
was acknowledged before the command, and may contain later ones.

HOST:PORT is a server, and so is anything that contains :// or begins with
unix: or [; everything else is a directory. ./HOST:PORT is always a directory.

Examples:
  todana backup 127.0.0.1:11311 /backup/monday --rate 20m
  todana backup -S todanas://cache:11311 --tls-ca ca.pem /backup/monday
  todana backup 127.0.0.1:11311 /backup/users --database users
  todana backup /var/lib/todana /backup/monday
  todana backup ./carts.hash /backup/carts
  todana verify /backup/monday
  todana restore /backup/monday /var/lib/todana.new";

/// The arguments of `todana backup`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct BackupArguments {
    /// A running server (host:port, todanas://host:port, unix:/path ...; or use -S), or a data
    /// directory or database on disk that no server has open
    #[arg(value_name = "SERVER|DIR")]
    source: Option<OsString>,
    /// The directory to create for the backup, with its parents
    target: PathBuf,
    /// Maximum rate from a server in bytes per second; with k, m or g after the number
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    rate: Option<NonZeroU64>,
    #[command(flatten)]
    server: ServerOptions,
}

fn rate(text: &str) -> Result<NonZeroU64, String> {
    NonZeroU64::new(size(text)?).ok_or_else(|| "must be at least 1".into())
}

pub(crate) fn run(arguments: &BackupArguments) -> Result<(), CommandFailure> {
    let named = arguments.server.named(arguments.source.is_some())?;
    match DirectoryOrServer::of(arguments.source.as_deref(), named, "SERVER|DIR")? {
        DirectoryOrServer::Directory(_) if arguments.rate.is_some() => {
            Err(CommandFailure::usage("--rate: needs a running server as the source"))
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

fn of_server(server: &LoginDestination, arguments: &BackupArguments) -> Result<(), CommandFailure> {
    let mut connection = arguments.server.connect(server)?;
    let mut is_begun = false;
    take(&arguments.target, &mut |bytes, interruption| {
        if !is_begun {
            // The backup is requested only after the target directory was created, so that a wrong
            // target fails at once.
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
        goes_on.map_err(no_stored_data)
    })
}

fn of_database(name: &DatabaseName, target: &Path) -> Result<(), CommandFailure> {
    let db = Db::open(&name.to_string()).map_err(|error| match error.kind() {
        ErrorKind::Busy => CommandFailure::trouble(format!(
            "{name}: in use by a server; give the server's address, and the running server sends the backup"
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
            "{}: in use by a server; give the server's address, and the running server sends the backup",
            directory.display()
        )),
        _ => error.into(),
    })?;
    let checking = bar("checking");
    let mut backup = BackupSender::of_rest(&opened, &mut |done| checking.set_position(done))?;
    checking.finish_and_clear();
    for why in backup.refused() {
        eprintln!("todana: a checkpoint is damaged; using the previous checkpoint and a longer log: {why}");
    }
    if let LogTail::Torn { path, offset, len } = backup.tail() {
        eprintln!(
            "todana: {} at offset {offset}: {len} bytes of unfinished writes are left out",
            path.display()
        );
    }
    take(target, &mut |bytes, _| Ok(backup.next(bytes)?))
}

type NextPiece<'n> = dyn FnMut(&mut Vec<u8>, &InterruptionFlag) -> Result<bool, CommandFailure> + 'n;

/// Writes a backup from a stream, and removes it if the command is interrupted. `next` appends the
/// next bytes of the stream and returns false at the end.
fn take(target: &Path, next: &mut NextPiece<'_>) -> Result<(), CommandFailure> {
    let interruption = InterruptionFlag::watch()?;
    let mut receiver = BackupReceiver::create(Arc::new(SystemDisk), target)?;
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
        eprintln!("todana: already damaged in the source: {damage}");
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
        0 => format!("{changes} since the beginning"),
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
