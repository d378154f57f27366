//! What the replies to commands mean to a program.

use crate::Records;
use todana_core::{Command, Error, ErrorKind, Record, Refusal, Reply, Result, Store};

/// Runs a command, and reads its reply.
pub(super) fn ask<T>(
    records: &(impl Records + ?Sized),
    command: &Command<'_>,
    mut read: impl FnMut(Reply<'_>) -> Result<T>,
) -> Result<T> {
    let mut outcome = Err(unexpected());
    records.execute(command, &mut |reply| outcome = read(reply))?;
    outcome
}

/// Whether it was stored; not that the condition did not hold.
pub(super) fn store(records: &(impl Records + ?Sized), store: &Store<'_>) -> Result<bool> {
    ask(records, &Command::Store(*store), |reply| match reply {
        Reply::Stored(_) => Ok(true),
        Reply::NotStored | Reply::NotFound => Ok(false),
        other => Err(refused(other)),
    })
}

/// What a read has found; not that it could not be read.
pub(super) fn found(reply: Reply<'_>) -> Result<Option<Record<'_>>> {
    match reply {
        Reply::Hit(hit) => Ok(Some(hit.record)),
        Reply::Miss => Ok(None),
        other => Err(refused(other)),
    }
}

pub(super) fn refused(reply: Reply<'_>) -> Error {
    match reply {
        Reply::Refused(Refusal::TooLarge) => {
            Error::new(ErrorKind::Invalid, "key or value is longer than the engine takes")
        }
        Reply::Refused(Refusal::OutOfMemory) => {
            Error::new(ErrorKind::Full, "there is no room for the record")
        }
        Reply::Refused(Refusal::LogUnwritable) => {
            Error::new(ErrorKind::Unavailable, "the update log cannot be written")
        }
        Reply::Refused(Refusal::FilesUnwritable) => {
            Error::new(ErrorKind::Unavailable, "the files of the database cannot be written")
        }
        Reply::Refused(Refusal::Damaged) => Error::new(ErrorKind::Corrupt, "the record is damaged on disk"),
        Reply::Refused(Refusal::Unavailable) => Error::new(
            ErrorKind::Unavailable,
            "the disk cannot be read or written, or the database is closed",
        ),
        Reply::Refused(Refusal::Busy) => {
            Error::new(ErrorKind::Busy, "this thread has a transaction open: write through it, or end it")
        }
        _ => unexpected(),
    }
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Invalid, "the command cannot be answered here")
}
