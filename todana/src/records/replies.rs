//! What the replies to commands mean to a program.

use crate::Records;
use crate::database::read_only;
use todana_core::{Error, ErrorKind, Operation, Record, RefusalReason, Reply, Result, Store};

/// Runs a command, and reads its reply. That there is none is an error that is made only then: it takes memory, and a read of a record shall
/// not (from Python, one of a record in the processor's cache took a quarter longer).
#[inline]
pub(super) fn ask<T>(
    records: &(impl Records + ?Sized),
    command: &Operation<'_>,
    mut read: impl FnMut(Reply<'_>) -> Result<T>,
) -> Result<T> {
    let mut outcome = None;
    records.execute(command, &mut |reply| outcome = Some(read(reply)))?;
    outcome.unwrap_or_else(|| Err(unexpected()))
}

/// Whether it was stored; not that the condition did not hold.
pub(crate) fn store(records: &(impl Records + ?Sized), store: &Store<'_>) -> Result<bool> {
    ask(records, &Operation::Store(*store), |reply| match reply {
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

/// An error that names the record.
#[cold]
pub(super) fn of_key(key: &[u8], error: &Error) -> Error {
    /// Of a longer key.
    const SHOWN: usize = 100;
    let shown = key[..key.len().min(SHOWN)].escape_ascii();
    let more = if key.len() > SHOWN { "..." } else { "" };
    Error::new(error.kind(), format!("record \"{shown}{more}\": {error}"))
}

#[cold]
pub(super) fn refused(reply: Reply<'_>) -> Error {
    match reply {
        Reply::Refused(RefusalReason::TooLarge) => {
            Error::new(ErrorKind::Invalid, "key or value is longer than the engine takes")
        }
        Reply::Refused(RefusalReason::OutOfMemory) => {
            Error::new(ErrorKind::Full, "there is no room for the record")
        }
        Reply::Refused(RefusalReason::LogUnwritable) => {
            Error::new(ErrorKind::Unavailable, "the update log cannot be written")
        }
        Reply::Refused(RefusalReason::FilesUnwritable) => {
            Error::new(ErrorKind::Unavailable, "the files of the database cannot be written")
        }
        Reply::Refused(RefusalReason::ReadOnly) => read_only(),
        Reply::Refused(RefusalReason::Damaged) => {
            Error::new(ErrorKind::Corrupt, "the record is damaged on disk")
        }
        Reply::Refused(RefusalReason::Unavailable) => Error::new(
            ErrorKind::Unavailable,
            "the disk cannot be read or written, or the database is closed",
        ),
        Reply::Refused(RefusalReason::Busy) => {
            let message = "a transaction is in the way: if it is this thread's own, write through it, or end it; \
                           if it is another's, it was not waited for";
            Error::new(ErrorKind::Busy, message)
        }
        _ => unexpected(),
    }
}

#[cold]
fn unexpected() -> Error {
    Error::new(ErrorKind::Invalid, "the command cannot be answered here")
}
