//! Defines the failures of commands whose operation a database has refused.

use crate::CommandFailure;
use todana_core::{RefusalReason, Reply};

/// Returns the failure for a reply that is not the expected one.
pub(super) fn refused(reply: &Reply<'_>) -> CommandFailure {
    CommandFailure::trouble(match reply {
        Reply::Refused(RefusalReason::TooLarge) => {
            "the key or value is too long for this database, or the key must be a number"
        }
        Reply::Refused(RefusalReason::OutOfMemory) => {
            "the database cannot store the record; is the disk full?"
        }
        Reply::Refused(RefusalReason::LogUnwritable | RefusalReason::FilesUnwritable) => {
            "the database cannot be written"
        }
        Reply::Refused(RefusalReason::ReadOnly) => "the database is open for reading only",
        Reply::Refused(RefusalReason::Replica | RefusalReason::Superseded) => {
            "another server is the master; send changes to it"
        }
        Reply::Refused(RefusalReason::Damaged) => "the record is damaged on disk",
        Reply::Refused(RefusalReason::Unavailable) => "the disk cannot be read or written",
        Reply::Refused(RefusalReason::Unreachable) => "the cluster has not executed the request",
        Reply::Refused(RefusalReason::OutcomeUnknown) => {
            "the cluster has not answered in time; a write may have been executed"
        }
        Reply::Refused(RefusalReason::NonNumeric) => "the value is not a number",
        _ => "the database does not support this operation",
    })
}
