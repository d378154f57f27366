//! The visitor of modifications that depend on the old value: appended pieces, swaps, Kyoto's sums,
//! and records that are removed and returned.

use crate::expiry::resolve;
use crate::kyoto::IncrementOrigin;
use todana_core::{
    Action, Attributes, HitReply, Modify, RecacheState, Record, Reply, UnixSeconds, ValueChange, Visitor,
};
use todana_protocol::memcached::plugin::number;

/// Computes the change of a record by [`Modify`], for a database, or for a record that was read
/// from another server.
pub struct ModifyVisitor<'v> {
    modify: &'v Modify<'v>,
    now: UnixSeconds,
    outcome: Reply<'static>,
    /// The new value. If the record is removed, the value that it had.
    value: Vec<u8>,
    taken: Option<Attributes>,
}

/// The decision about the record. A new value is in the visitor's buffer.
enum NewValue {
    Keep,
    Put,
    Remove,
}

impl<'v> ModifyVisitor<'v> {
    /// Creates the visitor. The record's new time to live counts from `now`.
    pub fn new(modify: &'v Modify<'v>, now: UnixSeconds) -> ModifyVisitor<'v> {
        ModifyVisitor { modify, now, outcome: Reply::Miss, value: Vec::new(), taken: None }
    }

    /// Sends the outcome of the visit.
    pub fn answer(&self, reply: &mut dyn FnMut(Reply<'_>)) {
        let Some(attributes) = self.taken else { return reply(self.outcome) };
        reply(Reply::Hit(HitReply {
            record: Record::new(&self.value, attributes),
            expiry_before: attributes.expiry,
            access_before: None,
            recache: RecacheState::default(),
            now: self.now,
        }));
    }

    fn decide(&mut self, old: Option<Record<'_>>) -> NewValue {
        let value = old.map(|record| record.value);
        self.value.clear();
        let (outcome, new) = match self.modify.change {
            ValueChange::Append(piece) => {
                self.value.extend_from_slice(value.unwrap_or_default());
                self.value.extend_from_slice(piece);
                (Reply::Stored(Default::default()), NewValue::Put)
            }
            ValueChange::Swap { old, .. } if value != old => (Reply::Exists, NewValue::Keep),
            ValueChange::Swap { new: None, .. } => (Reply::Done, NewValue::Remove),
            ValueChange::Swap { new: Some(new), .. } => {
                self.value.extend_from_slice(new);
                (Reply::Done, NewValue::Put)
            }
            ValueChange::AddInteger { delta, initial, overwrites } => {
                match origin(initial, overwrites).sum(value, delta) {
                    Ok(sum) => {
                        self.value.extend_from_slice(&sum.sum.to_be_bytes());
                        (Reply::Integer(sum.sum), NewValue::put_if(sum.is_new))
                    }
                    Err(_) => (Reply::NotStored, NewValue::Keep),
                }
            }
            ValueChange::AddReal { delta, initial, overwrites } => {
                match origin(initial, overwrites).sum(value, delta) {
                    Ok(sum) => {
                        self.value.extend_from_slice(&sum.sum.to_bytes());
                        (Reply::Real(sum.sum.into()), NewValue::put_if(sum.is_new))
                    }
                    Err(_) => (Reply::NotStored, NewValue::Keep),
                }
            }
            ValueChange::AddDecimal { delta, suffix_len } => match value {
                None => (Reply::NotFound, NewValue::Keep),
                Some(value) => {
                    let (text, suffix) =
                        value.split_at(value.len().checked_sub(suffix_len).unwrap_or(value.len()));
                    let sum = number(text).wrapping_add(delta).max(0);
                    self.value.extend_from_slice(sum.to_string().as_bytes());
                    self.value.extend_from_slice(suffix);
                    (Reply::Integer(sum), NewValue::Put)
                }
            },
            ValueChange::Take => {
                self.taken = old.map(|record| record.attributes);
                self.value.extend_from_slice(value.unwrap_or_default());
                (Reply::Miss, if old.is_some() { NewValue::Remove } else { NewValue::Keep })
            }
        };
        self.outcome = outcome;
        new
    }
}

impl NewValue {
    fn put_if(is_new: bool) -> NewValue {
        if is_new { NewValue::Put } else { NewValue::Keep }
    }
}

fn origin<T>(initial: Option<T>, overwrites: bool) -> IncrementOrigin<T> {
    match initial {
        _ if overwrites => IncrementOrigin::Set,
        None => IncrementOrigin::Try,
        Some(number) => IncrementOrigin::Number(number),
    }
}

impl Visitor for ModifyVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        match self.decide(old) {
            NewValue::Keep => Action::Keep,
            NewValue::Remove => Action::Remove,
            NewValue::Put => {
                let before = old.map(|record| record.attributes).unwrap_or_default();
                // A client that has seen the old version must notice the new value, so the version
                // changes.
                let attributes = match self.modify.ttl {
                    Some(ttl) => Attributes {
                        flags: before.flags,
                        expiry: resolve(ttl, self.now),
                        ..Attributes::default()
                    },
                    None => Attributes { version: 0, access: None, ..before },
                };
                Action::Put(Record::new(&self.value, attributes))
            }
        }
    }
}
