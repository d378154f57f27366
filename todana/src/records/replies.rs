//! Converts the replies to operations into results.

use crate::Records;
use crate::database::{read_only, replica};
use todana_core::{Error, ErrorKind, Operation, Record, RefusalReason, Reply, Result, Store};

/// Executes an operation and converts its reply. The error for a missing reply is created only when
/// it is needed, because it allocates memory, and a read must not do that (from Python, reading a
/// record in the processor's cache took a quarter longer).
#[inline]
pub(crate) fn query<T>(
    records: &(impl Records + ?Sized),
    command: &Operation<'_>,
    mut read: impl FnMut(Reply<'_>) -> Result<T>,
) -> Result<T> {
    let mut outcome = None;
    records.execute(command, &mut |reply| outcome = Some(read(reply)))?;
    outcome.unwrap_or_else(|| Err(unexpected()))
}

/// Executes a store. Returns true if the record was stored, and false if the condition of the
/// operation did not hold.
pub(crate) fn store(records: &(impl Records + ?Sized), store: &Store<'_>) -> Result<bool> {
    query(records, &Operation::Store(*store), |reply| match reply {
        Reply::Stored(_) => Ok(true),
        Reply::NotStored | Reply::NotFound => Ok(false),
        other => Err(refusal_error(other)),
    })
}

/// Returns the record that a read has found.
pub(crate) fn record_of(reply: Reply<'_>) -> Result<Option<Record<'_>>> {
    match reply {
        Reply::Hit(hit) => Ok(Some(hit.record)),
        Reply::Miss => Ok(None),
        other => Err(refusal_error(other)),
    }
}

/// Adds the key of the record to an error.
#[cold]
pub(crate) fn with_key(key: &[u8], error: &Error) -> Error {
    /// How many bytes of a long key are shown.
    const SHOWN: usize = 100;
    let shown = key[..key.len().min(SHOWN)].escape_ascii();
    let more = if key.len() > SHOWN { "..." } else { "" };
    Error::new(error.kind(), format!("record \"{shown}{more}\": {error}"))
}

#[cold]
pub(crate) fn refusal_error(reply: Reply<'_>) -> Error {
    match reply {
        Reply::Refused(RefusalReason::TooLarge) => Error::new(
            ErrorKind::Invalid,
            "the key or value is too long for this database, or the key must be a number",
        ),
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
        Reply::Refused(RefusalReason::Replica | RefusalReason::Superseded) => replica(),
        Reply::Refused(RefusalReason::Damaged) => {
            Error::new(ErrorKind::Corrupt, "the record is damaged on disk")
        }
        Reply::Refused(RefusalReason::Unavailable) => Error::new(
            ErrorKind::Unavailable,
            "the disk cannot be read or written, or the database is closed",
        ),
        Reply::Refused(RefusalReason::Busy) => {
            let message = "a transaction is open; if it is this thread's own, write through it, or end it; \
                           if it is another thread's, try again later";
            Error::new(ErrorKind::Busy, message)
        }
        Reply::Refused(RefusalReason::Unreachable) => {
            Error::new(ErrorKind::Unavailable, "the cluster has not executed the request")
        }
        Reply::Refused(RefusalReason::OutcomeUnknown) => Error::new(
            ErrorKind::Unavailable,
            "the cluster has not answered in time; a write may have been executed",
        ),
        Reply::Refused(RefusalReason::Overloaded) => {
            Error::new(ErrorKind::Busy, "too many requests wait for the cluster; try again later")
        }
        Reply::Refused(RefusalReason::NotOnCluster) => {
            Error::new(ErrorKind::Invalid, "a database on a cluster cannot execute this request")
        }
        _ => unexpected(),
    }
}

#[cold]
fn unexpected() -> Error {
    Error::new(ErrorKind::Invalid, "the command cannot be answered here")
}
