//! Encodes and decodes updates, as update logs contain them and masters send them to replicas.
//!
//! ```text
//! message = server_id:u16 database:u16 operation
//! operation:
//! A1 set       key_len:varnum value_len:varnum key stored_value
//! A2 remove    key_len:varnum key
//! A5 clear
//! C1 set list  key_len:varnum value_len:varnum key stored_value
//! ```
//!
//! The operation C1 is Todana's own. Its value is a list of values, and only replicas that ask for
//! it receive it.

use super::varnum;
use crate::ReplySink;

const SET: u8 = 0xA1;
const REMOVE: u8 = 0xA2;
const CLEAR: u8 = 0xA5;
const SET_LIST: u8 = 0xC1;

/// The longest message that is accepted, in bytes: the longest key, the longest value, and the
/// numbers before them.
pub const LEN_MAX: usize = 2 * (1 << 28) + 64;

/// An update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateMessage<'a> {
    /// The ID of the server at which the update originated.
    pub server_id: u16,
    /// The number of the database that was changed.
    pub database: u16,
    /// The change.
    pub change: UpdateChange<'a>,
}

/// The change of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateChange<'a> {
    /// Stores a record.
    Set {
        /// The key.
        key: &'a [u8],
        /// The value as stored. The expiry precedes the value (see
        /// [`expiry::split_stored`](super::expiry::split_stored)), unless the database is
        /// persistent.
        stored: StoredValue<'a>,
    },
    /// Stores a record with several values.
    SetList {
        /// The key.
        key: &'a [u8],
        /// The list of values, in the form of one value of [`Set`](UpdateChange::Set).
        stored: StoredValue<'a>,
    },
    /// Removes a record.
    Remove {
        /// The key.
        key: &'a [u8],
    },
    /// Removes all records.
    Clear,
    /// An unknown change, which must be skipped.
    Other {
        /// The number of the operation.
        operation: u8,
        /// The rest of the message.
        body: &'a [u8],
    },
}

/// A value as stored: preceded by the expiry, unless the database is persistent.
#[derive(Clone, Copy, Debug)]
pub struct StoredValue<'a> {
    /// The expiry, or `Nothing` if the database is persistent or if `rest` already contains the
    /// expiry.
    before: ValuePrefix,
    rest: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
enum ValuePrefix {
    Nothing,
    Time([u8; super::expiry::STORED_LEN]),
}

impl PartialEq for StoredValue<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.before().iter().chain(self.rest).eq(other.before().iter().chain(other.rest))
    }
}

impl Eq for StoredValue<'_> {}

impl<'a> StoredValue<'a> {
    /// Creates a value that expires at this time.
    pub fn with_expiry(time: u64, value: &'a [u8]) -> StoredValue<'a> {
        StoredValue { before: ValuePrefix::Time(super::expiry::stored(time)), rest: value }
    }

    /// Creates a value from stored bytes, or from a value of a persistent database.
    pub fn raw(stored: &'a [u8]) -> StoredValue<'a> {
        StoredValue { before: ValuePrefix::Nothing, rest: stored }
    }

    /// Returns the expiry and the value of a record in a database that is not persistent. Returns
    /// `None` if the bytes are too short.
    pub fn split(&self) -> Option<(u64, &'a [u8])> {
        match self.before {
            ValuePrefix::Nothing => super::expiry::split_stored(self.rest),
            ValuePrefix::Time(time) => Some((super::expiry::split_stored(&time)?.0, self.rest)),
        }
    }

    /// Returns the stored bytes if the value was created from stored bytes.
    pub fn as_raw(&self) -> Option<&'a [u8]> {
        match self.before {
            ValuePrefix::Nothing => Some(self.rest),
            ValuePrefix::Time(_) => None,
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.before().len() + self.rest.len()
    }

    /// Returns true if there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn put(&self, out: &mut impl ReplySink) {
        out.put(self.before());
        out.put(self.rest);
    }

    fn before(&self) -> &[u8] {
        match &self.before {
            ValuePrefix::Nothing => &[],
            ValuePrefix::Time(time) => time,
        }
    }
}

impl<'a> UpdateMessage<'a> {
    /// Parses an update; returns `None` if the bytes are invalid.
    pub fn parse(bytes: &'a [u8]) -> Option<UpdateMessage<'a>> {
        let (head, body) = bytes.split_first_chunk::<5>()?;
        let change = match head[4] {
            operation @ (SET | SET_LIST) => {
                let (key_len, rest) = number(body)?;
                let (value_len, rest) = number(rest)?;
                let (key, rest) = rest.split_at_checked(key_len)?;
                let (value, _) = rest.split_at_checked(value_len)?;
                let stored = StoredValue::raw(value);
                match operation {
                    SET => UpdateChange::Set { key, stored },
                    _ => UpdateChange::SetList { key, stored },
                }
            }
            REMOVE => {
                let (key_len, rest) = number(body)?;
                UpdateChange::Remove { key: rest.get(..key_len)? }
            }
            CLEAR => UpdateChange::Clear,
            operation => UpdateChange::Other { operation, body },
        };
        let server_id = u16::from_be_bytes([head[0], head[1]]);
        let database = u16::from_be_bytes([head[2], head[3]]);
        Some(UpdateMessage { server_id, database, change })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        let body = match self.change {
            UpdateChange::Set { key, stored } | UpdateChange::SetList { key, stored } => {
                varnum::len(key.len() as u64) + varnum::len(stored.len() as u64) + key.len() + stored.len()
            }
            UpdateChange::Remove { key } => varnum::len(key.len() as u64) + key.len(),
            UpdateChange::Clear => 0,
            UpdateChange::Other { body, .. } => body.len(),
        };
        5 + body
    }

    /// Returns false: no message is empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the update.
    pub fn put(&self, out: &mut impl ReplySink) {
        let operation = match self.change {
            UpdateChange::Set { .. } => SET,
            UpdateChange::SetList { .. } => SET_LIST,
            UpdateChange::Remove { .. } => REMOVE,
            UpdateChange::Clear => CLEAR,
            UpdateChange::Other { operation, .. } => operation,
        };
        let ([a, b], [c, d]) = (self.server_id.to_be_bytes(), self.database.to_be_bytes());
        out.put(&[a, b, c, d, operation]);
        match self.change {
            UpdateChange::Set { key, stored } | UpdateChange::SetList { key, stored } => {
                varnum::put(key.len() as u64, out);
                varnum::put(stored.len() as u64, out);
                out.put(key);
                stored.put(out);
            }
            UpdateChange::Remove { key } => {
                varnum::put(key.len() as u64, out);
                out.put(key);
            }
            UpdateChange::Clear => {}
            UpdateChange::Other { body, .. } => out.put(body),
        }
    }
}

fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match varnum::read(bytes) {
        varnum::VarnumRead::Whole(number, len) => Some((usize::try_from(number).ok()?, &bytes[len..])),
        _ => None,
    }
}
