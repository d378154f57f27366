//! Answers to calls, and the failures that several procedures share.

use super::answer_memory::Collected;
use super::signals::{Purpose, Signals};
use crate::transport::output::Output;
use todana_core::{Error, ErrorKind, RefusalReason, Reply};
use todana_protocol::kyoto::{self, Banner, Failure, Form, Signal, Status, Trouble, answer, answer_failure};

/// How a procedure ends that has not answered yet.
pub(super) type Ended = Result<(), Failure<'static>>;

pub(super) const NO_RECORD: Failure<'static> = Failure::Database(Trouble::NoRecord);
pub(super) const NO_PERMISSION: Failure<'static> = Failure::Database(Trouble::NoPermission);
pub(super) const DUPLICATION: Failure<'static> = Failure::Database(Trouble::Duplication);

/// Whom an answer goes to, and what is to be done with it.
pub(super) struct Answer<'a> {
    pub(super) form: Form,
    pub(super) banner: &'a Banner,
    pub(super) signal: Option<Signal<'a>>,
    pub(super) signals: &'a Signals,
    pub(super) output: &'a mut Output,
}

impl Answer<'_> {
    /// It is done: these are its few pairs, in the order of their names.
    pub(super) fn done(&mut self, pairs: &[(&str, &[u8])]) {
        match self.signal.take() {
            None => answer(&self.form, self.banner, Status::Ok, pairs, self.output),
            Some(signal) => {
                let mut map = kyoto::Output::default();
                pairs.iter().for_each(|(name, value)| map.push(name.as_bytes(), value));
                self.finish(Some(signal), Status::Ok, &mut map);
            }
        }
    }

    /// It is done: these are its pairs.
    pub(super) fn done_with(&mut self, pairs: &mut kyoto::Output) {
        let signal = self.signal.take();
        self.finish(signal, Status::Ok, pairs);
    }

    /// It is done: these are its pairs, which may be many.
    pub(super) fn done_with_many(&mut self, mut collected: Collected) {
        let waiting = self
            .signal
            .take()
            .map(|Signal { name, is_broadcast }| self.signals.signal(Purpose::Signal, name, is_broadcast));
        let signalled = waiting.map_or(Ok(()), |count| {
            collected.push(b"", b"SIGNALED", itoa::Buffer::new().format(count).as_bytes(), None)
        });
        match signalled {
            Ok(()) => collected.write(&self.form, self.banner, Status::Ok, self.output),
            Err(lack) => self.failed(lack.into()),
        }
    }

    /// It has failed.
    pub(super) fn failed(&mut self, failure: Failure<'_>) {
        match self.signal.take() {
            None => answer_failure(&self.form, self.banner, &failure, self.output),
            Some(signal) => {
                let mut map = kyoto::Output::default();
                map.push(b"ERROR", &failure.text());
                self.finish(Some(signal), failure.status(), &mut map);
            }
        }
    }

    fn finish(&mut self, signal: Option<Signal<'_>>, status: Status, pairs: &mut kyoto::Output) {
        if let Some(Signal { name, is_broadcast }) = signal {
            pairs.push_number(b"SIGNALED", self.signals.signal(Purpose::Signal, name, is_broadcast));
        }
        pairs.write(&self.form, self.banner, status, self.output);
    }
}

/// What clients are told of an error. Where something lies on the server is not their business.
pub(super) fn failure(error: Error) -> Failure<'static> {
    if error.is_read_only() {
        return NO_PERMISSION;
    }
    failure_of_kind(error.kind())
}

/// Returns the failure of an operation with this reply, which is no outcome that its procedure knows.
pub(super) fn refused(reply: &Reply<'_>) -> Failure<'static> {
    failure_of_kind(match reply {
        Reply::Refused(RefusalReason::ReadOnly) => return NO_PERMISSION,
        Reply::Refused(RefusalReason::OutOfMemory) => ErrorKind::Full,
        Reply::Refused(RefusalReason::Damaged) => ErrorKind::Corrupt,
        Reply::Refused(RefusalReason::Busy) => ErrorKind::Busy,
        Reply::Refused(
            RefusalReason::LogUnwritable | RefusalReason::FilesUnwritable | RefusalReason::Unavailable,
        ) => ErrorKind::Unavailable,
        _ => ErrorKind::Invalid,
    })
}

fn failure_of_kind(kind: ErrorKind) -> Failure<'static> {
    let (trouble, detail) = match kind {
        ErrorKind::Invalid => (Trouble::InvalidOperation, "the engine does not take this"),
        ErrorKind::Full => (Trouble::SystemError, "there is no room for the record"),
        ErrorKind::Busy => (Trouble::SystemError, "the database is busy"),
        ErrorKind::Corrupt => (Trouble::BrokenFile, "the record is damaged"),
        ErrorKind::Unavailable => (Trouble::SystemError, "the files cannot be read or written"),
        ErrorKind::Closed => (Trouble::InvalidOperation, "not opened"),
    };
    Failure::Detailed { status: Status::InternalError, trouble, detail }
}
