//! Defines operations and replies that own their bytes, so that they can be kept while another
//! machine executes an operation.

use crate::{
    Arithmetic, Delete, Get, Inspect, Modify, Operation, RefusalReason, RefusedStore, Reply, SharedValue,
    Store, Touch, ValueChange,
};

/// An operation that owns its bytes.
pub struct OwnedOperation {
    operation: Operation<'static>,
    key: Vec<u8>,
    /// The value to store or append, or the value that a swap expects.
    value: Vec<u8>,
    /// The value that a swap stores.
    new: Vec<u8>,
}

/// Returns the operation with these bytes in place of its own.
fn with_bytes<'a>(operation: &Operation<'_>, key: &'a [u8], value: &'a [u8], new: &'a [u8]) -> Operation<'a> {
    match *operation {
        Operation::Get(Get {
            key: _,
            touch,
            vivify,
            recache_below_s,
            recache_after_touch,
            version,
            needs,
            silent,
            counts_as_touch,
            syntax,
            reads_shared,
        }) => Operation::Get(Get {
            key,
            touch,
            vivify,
            recache_below_s,
            recache_after_touch,
            version,
            needs,
            silent,
            counts_as_touch,
            syntax,
            reads_shared,
        }),
        Operation::Store(Store {
            key: _,
            value: _,
            shared: _,
            flags,
            ttl,
            mode,
            compare,
            stale_if_older,
            version,
            vivify,
            needs,
            item_size_max,
            syntax,
        }) => Operation::Store(Store {
            key,
            value,
            shared: SharedValue::default(),
            flags,
            ttl,
            mode,
            compare,
            stale_if_older,
            version,
            vivify,
            needs,
            item_size_max,
            syntax,
        }),
        Operation::RefusedStore(RefusedStore {
            key: _,
            value_len,
            flags,
            mode,
            compares,
            discards,
            refusal,
        }) => {
            Operation::RefusedStore(RefusedStore { key, value_len, flags, mode, compares, discards, refusal })
        }
        Operation::Delete(Delete {
            key: _,
            compare,
            mark_stale,
            drop_value,
            ttl,
            flags,
            version,
            syntax,
        }) => Operation::Delete(Delete { key, compare, mark_stale, drop_value, ttl, flags, version, syntax }),
        Operation::Arithmetic(Arithmetic {
            key: _,
            direction,
            delta,
            vivify,
            initial,
            touch,
            compare,
            version,
            needs,
            syntax,
        }) => Operation::Arithmetic(Arithmetic {
            key,
            direction,
            delta,
            vivify,
            initial,
            touch,
            compare,
            version,
            needs,
            syntax,
        }),
        Operation::Touch(Touch { key: _, ttl }) => Operation::Touch(Touch { key, ttl }),
        Operation::Modify(Modify { key: _, ttl, change }) => {
            let change = match change {
                ValueChange::Append(_) => ValueChange::Append(value),
                ValueChange::Swap { old, new: stored } => {
                    ValueChange::Swap { old: old.map(|_| value), new: stored.map(|_| new) }
                }
                ValueChange::AddInteger { delta, initial, overwrites } => {
                    ValueChange::AddInteger { delta, initial, overwrites }
                }
                ValueChange::AddReal { delta, initial, overwrites } => {
                    ValueChange::AddReal { delta, initial, overwrites }
                }
                ValueChange::AddDecimal { delta, suffix_len } => {
                    ValueChange::AddDecimal { delta, suffix_len }
                }
                ValueChange::Take => ValueChange::Take,
            };
            Operation::Modify(Modify { key, ttl, change })
        }
        Operation::Inspect(Inspect { key: _ }) => Operation::Inspect(Inspect { key }),
        Operation::Flush { at } => Operation::Flush { at },
        Operation::Noop => Operation::Noop,
    }
}

impl OwnedOperation {
    /// Copies an operation and its bytes.
    pub fn new(operation: &Operation<'_>) -> OwnedOperation {
        let (value, new): (&[u8], &[u8]) = match operation {
            Operation::Store(store) => (store.value, b""),
            Operation::Modify(Modify { change: ValueChange::Append(piece), .. }) => (piece, b""),
            Operation::Modify(Modify { change: ValueChange::Swap { old, new }, .. }) => {
                (old.unwrap_or_default(), new.unwrap_or_default())
            }
            _ => (b"", b""),
        };
        OwnedOperation {
            operation: with_bytes(operation, b"", b"", b""),
            key: operation.key().unwrap_or_default().to_vec(),
            value: value.to_vec(),
            new: new.to_vec(),
        }
    }

    /// Returns the operation with the bytes of this copy.
    pub fn borrowed(&self) -> Operation<'_> {
        with_bytes(&self.operation, &self.key, &self.value, &self.new)
    }
}

/// The reply to an operation that another server has not executed.
pub const NOT_EXECUTED: Reply<'static> = Reply::Faulty("the server has not executed the operation");

/// A reply that owns its bytes. Of an error text, only the kind of reply is kept.
pub struct OwnedReply {
    reply: Reply<'static>,
    value: Vec<u8>,
}

impl OwnedReply {
    /// Copies a reply and its value.
    pub fn new(reply: Reply<'_>) -> OwnedReply {
        let (reply, value) = match reply {
            Reply::Hit(hit) => {
                let record = crate::Record::new(b"", hit.record.attributes);
                let (expiry_before, access_before) = (hit.expiry_before, hit.access_before);
                let (recache, now) = (hit.recache, hit.now);
                let empty = crate::HitReply { record, expiry_before, access_before, recache, now };
                (Reply::Hit(empty), hit.record.with_plain_value(|record| record.value.to_vec()))
            }
            Reply::Miss => (Reply::Miss, vec![]),
            Reply::Stored(stored) => (Reply::Stored(stored), vec![]),
            Reply::NotStored => (Reply::NotStored, vec![]),
            Reply::Exists => (Reply::Exists, vec![]),
            Reply::NotFound => (Reply::NotFound, vec![]),
            Reply::Deleted => (Reply::Deleted, vec![]),
            Reply::Touched => (Reply::Touched, vec![]),
            Reply::Number(number) => (Reply::Number(number), vec![]),
            Reply::Integer(sum) => (Reply::Integer(sum), vec![]),
            Reply::Real(sum) => (Reply::Real(sum), vec![]),
            Reply::Inspection(inspection) => (Reply::Inspection(inspection), vec![]),
            Reply::Done => (Reply::Done, vec![]),
            Reply::Refused(refusal) => (Reply::Refused(refusal), vec![]),
            Reply::Faulty(_) => (NOT_EXECUTED, vec![]),
            // No operation has another reply.
            _ => (Reply::Refused(RefusalReason::Unavailable), vec![]),
        };
        OwnedReply { reply, value }
    }

    /// Returns the length of the value.
    pub fn len_bytes(&self) -> usize {
        self.value.len()
    }

    /// Returns the reply with the value of this copy.
    pub fn borrowed(&self) -> Reply<'_> {
        match self.reply {
            Reply::Hit(hit) => {
                let record = crate::Record::new(&self.value, hit.record.attributes);
                Reply::Hit(crate::HitReply { record, ..hit })
            }
            other => other,
        }
    }
}
