//! Databases on disk, worked on without a server.
//!
//! `records` has the data commands that `-S ./x.hash` sends here; `whole` those on whole databases (`inform`, `list` ...);
//! `transfer` files in and out.

mod commands;
mod key_range;
mod records;
mod transfer;

pub(crate) use commands::{DatabaseCommand, check, run as run_whole};
pub(crate) use records::run;

use crate::CommandFailure;
use crate::command_target::LocalDatabase;
use crate::progress::progress;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use todana::{Db, DbOptions, Name};
use todana_core::{Error, ErrorKind};

/// Opens a database. One that is only read, or removed from, is not made.
pub(crate) fn open(local: &LocalDatabase, makes: bool) -> Result<Db, CommandFailure> {
    let path = local.path();
    let name = match local {
        LocalDatabase::Named(name) => name,
        LocalDatabase::Kept(path) => return open_kept(path),
    };
    if !makes {
        expect_kept(name)?;
    }
    if !makes || name.tuning.must_exist {
        expect(path)?;
    }
    patiently("opening", || DbOptions::default().open(&name.to_string()))
        .map(noted)
        .map_err(|error| trouble(error, path))
}

/// Opens what a server has kept of a database in memory; none is made. It is read into memory, in the order of the keys.
fn open_kept(path: &Path) -> Result<Db, CommandFailure> {
    expect(path)?;
    let shown = path.display();
    if path.join("backup").is_file() {
        return Err(CommandFailure::usage(format!(
            "{shown} is a backup: `todana restore` makes a database of it"
        )));
    }
    if !path.join("identity").is_file() {
        return Err(CommandFailure::trouble(format!(
            "{shown} is no data directory: there is no file `identity` in it"
        )));
    }
    let open = || DbOptions::default().data_dir(path).open("mem:tree");
    patiently("reading it into memory", open).map(noted).map_err(|error| trouble(error, path))
}

/// Tells what opening it has found.
fn noted(db: Db) -> Db {
    db.notes().iter().for_each(|note| eprintln!("todana: {note}"));
    db
}

/// Shows that something is at work which does not say how far it has come, once that has taken a second.
fn patiently<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    std::thread::scope(|scope| {
        let (done, waits) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            if waits.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                let bar = progress(None, "{spinner} {msg} {elapsed}").with_message(what);
                bar.enable_steady_tick(Duration::from_millis(100));
                // Until it is done, whichever way.
                let _ = waits.recv();
                bar.finish_and_clear();
            }
        });
        let outcome = work();
        drop(done);
        outcome
    })
}

/// Fails for a name that has the database emptied as it is opened: whoever wants what is in it cannot mean that.
fn expect_kept(name: &Name) -> Result<(), CommandFailure> {
    match name.tuning.truncate {
        true => Err(CommandFailure::usage(format!(
            "{name} is emptied when it is opened so: leave out erase=true, and the t of mode="
        ))),
        false => Ok(()),
    }
}

/// Fails if there is no database at a path.
fn expect(path: &Path) -> Result<(), CommandFailure> {
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(CommandFailure::trouble(format!("{shown} is a file; a database is a directory"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(CommandFailure::trouble(format!("{shown} does not exist")))
        }
        Err(error) => Err(CommandFailure::trouble(format!("cannot read {shown}: {error}"))),
    }
}

/// Says what to do about a database that somebody else has.
fn trouble(error: Error, path: &Path) -> CommandFailure {
    if error.kind() != ErrorKind::Busy {
        return error.into();
    }
    let shown = path.display();
    CommandFailure::trouble(format!(
        "{shown} is in use, probably by a server: name that server with -S HOST:PORT, or stop it first ({error})"
    ))
}
