//! Writes answers to calls, and the failures that several procedures share.

use super::answer_memory::CollectedAnswer;
use super::signals::{SignalPurpose, SignalTable};
use crate::replica::freshness;
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use todana_core::{Error, ErrorKind, RefusalReason, Reply};
use todana_protocol::kyoto::{
    self, AnswerBanner, AnswerStatus, CallFailure, DatabaseError, HttpForm, SignalSend, answer,
    answer_failure,
};

/// The result of a procedure. A procedure that succeeds has written its answer; one that fails has
/// written nothing.
pub(super) type CallResult = Result<(), CallFailure<'static>>;

pub(super) const NO_RECORD: CallFailure<'static> = CallFailure::Database(DatabaseError::NoRecord);
pub(super) const NO_PERMISSION: CallFailure<'static> = CallFailure::Database(DatabaseError::NoPermission);
pub(super) const DUPLICATION: CallFailure<'static> = CallFailure::Database(DatabaseError::Duplication);
/// The failure of a call that is not available through a proxy.
pub(super) const NOT_THROUGH_PROXY: CallFailure<'static> = CallFailure::Detailed {
    status: AnswerStatus::NotImplemented,
    error: DatabaseError::NotImplemented,
    detail: "not through a proxy",
};
/// The failure of a call that a database on a cluster cannot execute.
pub(super) const NOT_ON_CLUSTER: CallFailure<'static> = CallFailure::Detailed {
    status: AnswerStatus::NotImplemented,
    error: DatabaseError::NotImplemented,
    detail: "not possible in a database on a cluster",
};
/// The failure of a call that the server of its record has not executed.
const PROXY_FAILURE: CallFailure<'static> = CallFailure::Detailed {
    status: AnswerStatus::InternalError,
    error: DatabaseError::SystemError,
    detail: "the server of the record has not executed the call",
};

/// The records are older than the request allows.
pub(super) const TOO_OLD: CallFailure<'static> =
    CallFailure::Other { status: AnswerStatus::TimedOut, text: "the records of this replica are too old" };

/// The parts from which the answer to a call is written: its form, its signal and its output.
pub(super) struct CallAnswer<'a> {
    pub(super) form: HttpForm,
    /// The database whose position in the log the answer shows, if the request asks for it.
    pub(super) position_of: Option<(&'a SharedState, usize)>,
    pub(super) banner: &'a AnswerBanner,
    pub(super) signal: Option<SignalSend<'a>>,
    pub(super) signals: &'a SignalTable,
    pub(super) output: &'a mut ConnectionOutput,
}

impl CallAnswer<'_> {
    /// Returns the form with the current position in the log.
    fn form(&self) -> HttpForm {
        let position = self.position_of.and_then(|(shared, index)| freshness::position(shared, index));
        HttpForm { position, ..self.form }
    }

    /// Writes a successful answer with a few pairs, in the order of their names.
    pub(super) fn done(&mut self, pairs: &[(&str, &[u8])]) {
        match self.signal.take() {
            None => answer(&self.form(), self.banner, AnswerStatus::Ok, pairs, self.output),
            Some(signal) => {
                let mut map = kyoto::AnswerPairs::default();
                pairs.iter().for_each(|(name, value)| map.push(name.as_bytes(), value));
                self.finish(Some(signal), AnswerStatus::Ok, &mut map);
            }
        }
    }

    /// Writes a successful answer with pairs.
    pub(super) fn done_with(&mut self, pairs: &mut kyoto::AnswerPairs) {
        let signal = self.signal.take();
        self.finish(signal, AnswerStatus::Ok, pairs);
    }

    /// Writes a successful answer with many pairs.
    pub(super) fn done_with_many(&mut self, mut collected: CollectedAnswer) {
        let waiting = self.signal.take().map(|SignalSend { name, is_broadcast }| {
            self.signals.signal(SignalPurpose::Signal, name, is_broadcast)
        });
        let signalled = waiting.map_or(Ok(()), |count| {
            collected.push(b"", b"SIGNALED", itoa::Buffer::new().format(count).as_bytes(), None)
        });
        match signalled {
            Ok(()) => collected.write(&self.form(), self.banner, AnswerStatus::Ok, self.output),
            Err(lack) => self.failed(lack.into()),
        }
    }

    /// Writes the answer of a failed call.
    pub(super) fn failed(&mut self, failure: CallFailure<'_>) {
        match self.signal.take() {
            None => answer_failure(&self.form(), self.banner, &failure, self.output),
            Some(signal) => {
                let mut map = kyoto::AnswerPairs::default();
                map.push(b"ERROR", &failure.text());
                self.finish(Some(signal), failure.status(), &mut map);
            }
        }
    }

    fn finish(
        &mut self,
        signal: Option<SignalSend<'_>>,
        status: AnswerStatus,
        pairs: &mut kyoto::AnswerPairs,
    ) {
        if let Some(SignalSend { name, is_broadcast }) = signal {
            pairs.push_number(b"SIGNALED", self.signals.signal(SignalPurpose::Signal, name, is_broadcast));
        }
        pairs.write(&self.form(), self.banner, status, self.output);
    }
}

/// Returns the failure that clients see for an error. It contains no paths of the server.
pub(super) fn failure(error: Error) -> CallFailure<'static> {
    if error.is_read_only() {
        return NO_PERMISSION;
    }
    failure_of_kind(error.kind())
}

/// Returns the failure for a reply that the procedure does not handle itself.
pub(super) fn refused(reply: &Reply<'_>) -> CallFailure<'static> {
    failure_of_kind(match reply {
        Reply::Refused(RefusalReason::ReadOnly | RefusalReason::Replica | RefusalReason::Superseded) => {
            return NO_PERMISSION;
        }
        Reply::Refused(RefusalReason::NotEnabled) => return NOT_THROUGH_PROXY,
        Reply::Refused(RefusalReason::NotOnCluster) => return NOT_ON_CLUSTER,
        Reply::Refused(RefusalReason::Unreachable) => {
            return of_cluster("the cluster has not executed the call");
        }
        Reply::Refused(RefusalReason::OutcomeUnknown) => {
            return of_cluster("the cluster has not answered in time; a write may have been executed");
        }
        Reply::Refused(RefusalReason::Overloaded) => {
            return of_cluster("busy: too many requests wait for the cluster");
        }
        // Only a proxy replies in this way. The text may not live as long as the failure.
        Reply::Faulty(_) => return PROXY_FAILURE,
        Reply::Refused(RefusalReason::OutOfMemory) => ErrorKind::Full,
        Reply::Refused(RefusalReason::Damaged) => ErrorKind::Corrupt,
        Reply::Refused(RefusalReason::Busy) => ErrorKind::Busy,
        Reply::Refused(
            RefusalReason::LogUnwritable
            | RefusalReason::FilesUnwritable
            | RefusalReason::Unavailable
            | RefusalReason::Unconfirmed,
        ) => ErrorKind::Unavailable,
        _ => ErrorKind::Invalid,
    })
}

/// Returns the failure of a call that a cluster has not answered as usual.
fn of_cluster(detail: &'static str) -> CallFailure<'static> {
    CallFailure::Detailed { status: AnswerStatus::InternalError, error: DatabaseError::SystemError, detail }
}

fn failure_of_kind(kind: ErrorKind) -> CallFailure<'static> {
    let (error, detail) = match kind {
        ErrorKind::Invalid => (DatabaseError::InvalidOperation, "the engine does not take this"),
        ErrorKind::Full => (DatabaseError::SystemError, "there is no room for the record"),
        ErrorKind::Busy => (DatabaseError::SystemError, "the database is busy"),
        ErrorKind::Corrupt => (DatabaseError::BrokenFile, "the record is damaged"),
        ErrorKind::Unavailable => (DatabaseError::SystemError, "the files cannot be read or written"),
        ErrorKind::Closed => (DatabaseError::InvalidOperation, "not opened"),
    };
    CallFailure::Detailed { status: AnswerStatus::InternalError, error, detail }
}
