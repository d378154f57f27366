//! Databases on disk that a command opens itself, without a server.
//!
//! `records` has the commands on records, such as `get`, for `-S ./x.hash`. `commands` has the
//! commands on whole databases, such as `list` and `copy`. `transfer` imports and exports files.

#[cfg(feature = "cassandra")]
mod cluster_copy;
mod commands;
mod key_range;
mod records;
mod refusal;
mod transfer;

pub(crate) use commands::{DatabaseCommand, check, run as run_whole, size_of};
pub(crate) use key_range::keys;
pub(crate) use records::run;

use crate::CommandFailure;
use crate::command_target::LocalDatabase;
use crate::progress::progress;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use todana::{DatabaseName, Db, DbOptions, cabinet_file_problem};
use todana_core::{Error, ErrorKind};

/// Opens a database. Creates a missing database only if `makes` is true, because a command that
/// only reads must not leave an empty database.
pub(crate) fn open(local: &LocalDatabase, makes: bool) -> Result<Db, CommandFailure> {
    let path = local.path();
    let name = match local {
        LocalDatabase::Named(name) => name,
        LocalDatabase::DataDirectory(path) => return open_data_directory(path),
    };
    if !makes {
        expect_no_truncation(name)?;
    }
    if !makes || name.tuning.must_exist {
        expect_database(path)?;
    }
    with_spinner("opening", || DbOptions::default().open(&name.to_string()))
        .map(print_notes)
        .map_err(|error| open_failure(error, path))
}

/// Opens an existing data directory of a server, by reading its records into an ordered database in
/// memory.
fn open_data_directory(path: &Path) -> Result<Db, CommandFailure> {
    expect_database(path)?;
    let shown = path.display();
    if path.join("backup").is_file() {
        return Err(CommandFailure::usage(format!(
            "{shown}: is a backup; `todana restore` creates a database from it"
        )));
    }
    if !path.join("identity").is_file() {
        return Err(CommandFailure::trouble(format!(
            "{shown}: is not a data directory; the file `identity` is missing"
        )));
    }
    let open = || DbOptions::default().data_dir(path).open("mem:tree");
    with_spinner("reading it into memory", open).map(print_notes).map_err(|error| open_failure(error, path))
}

/// Prints the notes of the opening.
fn print_notes(db: Db) -> Db {
    db.notes().iter().for_each(|note| eprintln!("todana: {note}"));
    db
}

/// Runs `work`, and shows a spinner if it takes longer than a second. Used for steps that do not
/// report their progress.
fn with_spinner<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    std::thread::scope(|scope| {
        let (done, waits) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            if waits.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                let bar = progress(None, "{spinner} {msg} {elapsed}").with_message(what);
                bar.enable_steady_tick(Duration::from_millis(100));
                // This returns when `work` has ended, even by a panic.
                let _ = waits.recv();
                bar.finish_and_clear();
            }
        });
        let outcome = work();
        drop(done);
        outcome
    })
}

/// Fails if the tuning in the name empties the database at the opening. A user who runs a command
/// that reads the database cannot mean that.
fn expect_no_truncation(name: &DatabaseName) -> Result<(), CommandFailure> {
    match name.tuning.truncate {
        true => Err(CommandFailure::usage(format!(
            "{name}: would be emptied when opened; leave out erase=true and the t of mode="
        ))),
        false => Ok(()),
    }
}

/// Fails if no database exists at the path.
fn expect_database(path: &Path) -> Result<(), CommandFailure> {
    // Only the name of a database on a cluster has no path.
    if path.as_os_str().is_empty() {
        return Err(CommandFailure::usage(
            "a database on a cluster has no files here; name a server of it with -S, or copy it with `todana copy`",
        ));
    }
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => {
            let problem = cabinet_file_problem(path);
            let problem = problem.unwrap_or_else(|| "is a file; a database is a directory".into());
            Err(CommandFailure::trouble(format!("{shown}: {problem}")))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(CommandFailure::trouble(format!("{shown}: does not exist")))
        }
        Err(error) => Err(CommandFailure::trouble(format!("{shown}: cannot read it: {error}"))),
    }
}

/// Returns the failure for a database that cannot be opened. If another process has the database
/// open, the message says what to do.
fn open_failure(error: Error, path: &Path) -> CommandFailure {
    if error.kind() != ErrorKind::Busy {
        return error.into();
    }
    let shown = path.display();
    CommandFailure::trouble(format!(
        "{shown}: in use, probably by a server; name that server with -S HOST:PORT, or stop it first ({error})"
    ))
}
