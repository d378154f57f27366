//! Executes operations on records that are kept elsewhere, for example on a cluster. The caller
//! reads the record, and stores the change if the record is still the same.

use crate::access::AccessTracking;
use crate::arithmetic::ArithmeticVisitor;
use crate::delete::DeleteVisitor;
use crate::get::GetVisitor;
use crate::inspect::InspectVisitor;
use crate::modify::ModifyVisitor;
use crate::store::{LongJoin, StoreVisitor};
use crate::touch::TouchVisitor;
use crate::versions::VersionCounter;
use todana_core::{
    Action, Attributes, Operation, OwnedReply, Record, RefusalReason, Reply, UnixSeconds, Visitor,
};

/// The change that an operation makes to a record.
#[derive(Clone, Debug, PartialEq)]
pub enum DetachedChange {
    /// The record stays as it is.
    Keep,
    /// A record is stored in place of the old one.
    Put {
        /// The new value.
        value: Vec<u8>,
        /// The new attributes.
        attributes: Attributes,
    },
    /// The value stays, and the attributes are replaced.
    Retag(Attributes),
    /// The record is removed.
    Remove,
}

impl DetachedChange {
    /// Calls a visitor on a record, and returns the change. Then calls the visitor's `applied`, as
    /// if the change had been stored.
    pub fn by(visitor: &mut dyn Visitor, old: Option<Record<'_>>) -> DetachedChange {
        let change = match (visitor.visit(old), old) {
            (Action::Keep, _) | (Action::Retag(_) | Action::Remove, None) => return DetachedChange::Keep,
            (Action::Put(record), _) => {
                DetachedChange::Put { value: record.value.to_vec(), attributes: record.attributes }
            }
            (Action::Retag(attributes), Some(_)) => DetachedChange::Retag(attributes),
            (Action::Remove, Some(_)) => DetachedChange::Remove,
        };
        match &change {
            DetachedChange::Put { value, attributes } => {
                visitor.applied(Some(Record::new(value, *attributes)));
            }
            DetachedChange::Retag(attributes) => {
                visitor.applied(old.map(|old| Record { attributes: *attributes, ..old }));
            }
            DetachedChange::Keep | DetachedChange::Remove => visitor.applied(None),
        }
        change
    }
}

/// Executes an operation on the record that was read, as a database does. `version` is the version
/// of the record if the operation changes it and gives no version. Returns the reply, which is
/// valid once the change has been stored.
///
/// ```
/// use todana::{DetachedChange, UnixSeconds, execute_detached};
/// use todana_core::{Arithmetic, Attributes, Operation, Record, Reply};
///
/// let incr = Arithmetic { key: b"visits", delta: 2, ..Arithmetic::default() };
/// let old = Record::new(b"40", Attributes::default());
/// let incr = Operation::Arithmetic(incr);
/// let (reply, change) = execute_detached(&incr, Some(old), UnixSeconds(1), 7);
/// assert!(matches!(reply.borrowed(), Reply::Number(number) if number.value == 42));
/// let DetachedChange::Put { value, attributes } = change else { panic!() };
/// assert_eq!((value.as_slice(), attributes.version), (&b"42"[..], 7));
/// ```
pub fn execute_detached(
    operation: &Operation<'_>,
    old: Option<Record<'_>>,
    now: UnixSeconds,
    version: u64,
) -> (OwnedReply, DetachedChange) {
    let (versions, tracking) = (VersionCounter::default(), AccessTracking::default());
    versions.note_assigned(version.saturating_sub(1));
    let done = |reply: Reply<'_>, change| (OwnedReply::new(reply), change);
    match *operation {
        Operation::Get(mut get) => {
            get.needs.access = false;
            let mut reply = OwnedReply::new(Reply::Miss);
            let take = &mut |found: Reply<'_>| reply = OwnedReply::new(found);
            let mut visitor = GetVisitor::new(&get, now, &tracking, &versions, take, false);
            let change = DetachedChange::by(&mut visitor, old);
            (reply, change)
        }
        Operation::Store(mut store) => {
            store.needs.version = true;
            let mut visitor = StoreVisitor::new(&store, now, &tracking, &versions);
            // There is no lock, so a long value is assembled at once.
            visitor.go_on(LongJoin::UnderLock);
            let change = DetachedChange::by(&mut visitor, old);
            done(visitor.outcome, change)
        }
        Operation::Delete(delete) => {
            let mut visitor =
                DeleteVisitor { delete: &delete, now, versions: &versions, outcome: Reply::NotFound };
            let change = DetachedChange::by(&mut visitor, old);
            done(visitor.outcome, change)
        }
        Operation::Arithmetic(mut arithmetic) => {
            arithmetic.needs.version = true;
            let mut visitor = ArithmeticVisitor::new(&arithmetic, now, &tracking, &versions);
            let change = DetachedChange::by(&mut visitor, old);
            done(visitor.outcome, change)
        }
        Operation::Touch(touch) => {
            let mut visitor = TouchVisitor { touch: &touch, now, tracking: &tracking, found: false };
            let change = DetachedChange::by(&mut visitor, old);
            done(if visitor.found { Reply::Touched } else { Reply::NotFound }, change)
        }
        Operation::Modify(modify) => {
            let mut visitor = ModifyVisitor::new(&modify, now);
            let change = DetachedChange::by(&mut visitor, old);
            let mut reply = OwnedReply::new(Reply::Miss);
            visitor.answer(&mut |answer| reply = OwnedReply::new(answer));
            (reply, change)
        }
        Operation::Inspect(inspect) => {
            let mut visitor =
                InspectVisitor { inspect: &inspect, now, versions: &versions, outcome: Reply::Miss };
            let change = DetachedChange::by(&mut visitor, old);
            done(visitor.outcome, change)
        }
        Operation::RefusedStore(refused) => {
            let is_removed = refused.discards && old.is_some();
            let change = if is_removed { DetachedChange::Remove } else { DetachedChange::Keep };
            done(Reply::Refused(refused.refusal), change)
        }
        Operation::Flush { .. } => done(Reply::Refused(RefusalReason::NotOnCluster), DetachedChange::Keep),
        Operation::Noop => done(Reply::Done, DetachedChange::Keep),
    }
}
