//! Defines an operation of a client of another protocol, as requests in memcached's terms.
//!
//! Most operations are one request. memcached has no request whose effect depends on the old value
//! in the way of Kyoto Tycoon's calls. Such an operation reads the record with its version and
//! computes the new value as a database does. It stores that value on the condition that the
//! version is the same. If another client was faster, it begins again.

use todana::ModifyVisitor;
use todana_core::{
    Action, Attributes, Delete, Expiry, Get, HitReply, Modify, NOT_EXECUTED, Operation, OwnedOperation,
    Record, RefusalReason, Reply, ReplyNeeds, Store, StoreMode, UnixSeconds, ValueChange, Visitor,
};

/// The number of times that an operation begins again before it fails.
const ATTEMPTS_MAX: u32 = 64;

/// The progress of an operation.
pub(super) struct RecordRun {
    operation: OwnedOperation,
    step: RecordStep,
    attempts: u32,
}

/// The request that was sent last.
enum RecordStep {
    /// The operation itself.
    Only,
    /// The record is read.
    Read,
    /// The new value is stored, or the record is removed. Then this is the reply.
    Write(OwnedOutcome),
    /// The piece is appended to the existing value.
    Append,
    /// There was no record, so the piece is stored.
    AddPiece,
}

/// The reply to an operation whose write has succeeded.
struct OwnedOutcome {
    reply: Reply<'static>,
    /// The removed record, if that is the reply.
    taken: Option<(Vec<u8>, Attributes)>,
}

impl RecordRun {
    /// Begins an operation. Returns the first request as well.
    pub(super) fn new(operation: OwnedOperation) -> (RecordRun, OwnedOperation) {
        let step = match operation.borrowed() {
            Operation::Modify(Modify { change: ValueChange::Append(_), ttl: None, .. }) => RecordStep::Append,
            Operation::Modify(_) => RecordStep::Read,
            _ => RecordStep::Only,
        };
        let run = RecordRun { operation, step, attempts: 0 };
        let first = run.request();
        (run, first)
    }

    /// Returns the request of the current step.
    fn request(&self) -> OwnedOperation {
        let operation = self.operation.borrowed();
        let key = operation.key().unwrap_or_default();
        let store = |mode| match operation {
            Operation::Modify(Modify { change: ValueChange::Append(value), .. }) => {
                Operation::Store(Store { key, value, mode, ..Store::default() })
            }
            operation => operation,
        };
        OwnedOperation::new(&match self.step {
            RecordStep::Only | RecordStep::Write(_) => operation,
            RecordStep::Read => {
                let needs = ReplyNeeds { version: true, access: false };
                Operation::Get(Get { key, needs, ..Get::default() })
            }
            RecordStep::Append => store(StoreMode::Append),
            RecordStep::AddPiece => store(StoreMode::Add),
        })
    }

    /// Handles a reply. Returns the next request, or else passes the reply to the operation to
    /// `answer`. `now` is the time, to which times in the reply are converted.
    pub(super) fn receive(
        &mut self,
        reply: Reply<'_>,
        now: UnixSeconds,
        answer: &mut dyn FnMut(Reply<'_>),
    ) -> Option<OwnedOperation> {
        let reply = at_time(reply, now);
        match (&self.step, reply) {
            (RecordStep::Only, reply) => answer(reply),
            (RecordStep::Read, Reply::Hit(hit)) => return self.change(Some(hit.record), now, answer),
            (RecordStep::Read, Reply::Miss) => return self.change(None, now, answer),
            (RecordStep::Write(outcome), Reply::Stored(_) | Reply::Deleted) => outcome.answer(now, answer),
            (RecordStep::Append | RecordStep::AddPiece, Reply::Stored(stored)) => {
                answer(Reply::Stored(stored));
            }
            (RecordStep::Append, Reply::NotStored) => return self.go_to(RecordStep::AddPiece, answer),
            (RecordStep::AddPiece, Reply::NotStored) => return self.go_to(RecordStep::Append, answer),
            // Another client was faster.
            (RecordStep::Write(_), Reply::Exists | Reply::NotFound | Reply::NotStored) => {
                return self.go_to(RecordStep::Read, answer);
            }
            (_, Reply::Refused(refusal)) => answer(Reply::Refused(refusal)),
            _ => answer(NOT_EXECUTED),
        }
        None
    }

    /// Continues with another step. Fails if there were too many.
    fn go_to(&mut self, step: RecordStep, answer: &mut dyn FnMut(Reply<'_>)) -> Option<OwnedOperation> {
        self.attempts += 1;
        if self.attempts > ATTEMPTS_MAX {
            answer(Reply::Refused(RefusalReason::Busy));
            return None;
        }
        self.step = step;
        Some(self.request())
    }

    /// Computes the change of the record that was read.
    fn change(
        &mut self,
        old: Option<Record<'_>>,
        now: UnixSeconds,
        answer: &mut dyn FnMut(Reply<'_>),
    ) -> Option<OwnedOperation> {
        let Operation::Modify(modify) = self.operation.borrowed() else {
            answer(NOT_EXECUTED);
            return None;
        };
        let version = old.map(|record| record.attributes.version);
        // A server without versions would store unconditionally.
        if version == Some(0) {
            answer(NOT_EXECUTED);
            return None;
        }
        let mut visitor = ModifyVisitor::new(&modify, now);
        let key = modify.key;
        let request = match (visitor.visit(old), modify.ttl) {
            (Action::Put(Record { value, attributes, .. }), Some(ttl)) => {
                let mode = if version.is_some() { StoreMode::Set } else { StoreMode::Add };
                let (compare, flags) = (version, attributes.flags);
                let store = Store { key, value, flags, ttl, mode, compare, ..Store::default() };
                Some(OwnedOperation::new(&Operation::Store(store)))
            }
            (Action::Remove, _) => {
                let delete = Delete { key, compare: version, ..Delete::default() };
                Some(OwnedOperation::new(&Operation::Delete(delete)))
            }
            // The time to live of the record is not known exactly, so it cannot be kept.
            (Action::Put(_), None) => {
                answer(Reply::Refused(RefusalReason::NotEnabled));
                return None;
            }
            _ => None,
        };
        let Some(request) = request else {
            visitor.answer(answer);
            return None;
        };
        let mut outcome = OwnedOutcome { reply: Reply::Miss, taken: None };
        visitor.answer(&mut |reply| match reply {
            Reply::Hit(hit) => outcome.taken = Some((hit.record.value.to_vec(), hit.record.attributes)),
            Reply::Stored(stored) => outcome.reply = Reply::Stored(stored),
            Reply::Integer(sum) => outcome.reply = Reply::Integer(sum),
            Reply::Real(sum) => outcome.reply = Reply::Real(sum),
            _ => outcome.reply = Reply::Done,
        });
        self.step = RecordStep::Write(outcome);
        Some(request)
    }
}

impl OwnedOutcome {
    fn answer(&self, now: UnixSeconds, answer: &mut dyn FnMut(Reply<'_>)) {
        match &self.taken {
            Some((value, attributes)) => answer(Reply::Hit(hit_of(Record::new(value, *attributes), now))),
            None => answer(self.reply),
        }
    }
}

fn hit_of(record: Record<'_>, now: UnixSeconds) -> HitReply<'_> {
    let expiry_before = record.attributes.expiry;
    HitReply { record, expiry_before, access_before: None, recache: Default::default(), now }
}

/// Returns the reply with the time to live of its record in terms of this time. Those of servers
/// are relative to a time of their own.
fn at_time(reply: Reply<'_>, now: UnixSeconds) -> Reply<'_> {
    let Reply::Hit(hit) = reply else { return reply };
    let left = hit.record.attributes.expiry.seconds_left(hit.now);
    let expiry =
        left.map_or(Expiry::Never, |left| Expiry::At(UnixSeconds(now.0.saturating_add_signed(left))));
    let attributes = Attributes { expiry, ..hit.record.attributes };
    Reply::Hit(hit_of(Record { attributes, ..hit.record }, now))
}
