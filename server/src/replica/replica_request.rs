//! The request of a replica, in one of two protocols, and the messages that this server sends to
//! it.

use crate::databases::ServedDatabase;
use todana::replication::{ChangeOrigin, StampScheme};
use todana::{Expiry, kyoto};
use todana_core::Record;
use todana_protocol::kyoto::binary::ReplicaRequest as KyotoRequest;
use todana_protocol::kyoto::message::{StoredValue, UpdateChange, UpdateMessage};
use todana_protocol::kyoto::replication as kyoto_stream;
use todana_protocol::tyrant::replication as tyrant_stream;
use todana_protocol::tyrant::{AbsoluteChange, LoggedCommand, TyrantRequest};

/// The request of a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReplicaRequest {
    Kyoto(KyotoRequest),
    /// For the changes from a time stamp on, which is at least 1.
    Tyrant {
        since_micros: u64,
        server_id: u16,
    },
}

/// A change for a replica.
#[derive(Clone, Copy)]
pub(super) enum SentChange<'a> {
    Put {
        key: &'a [u8],
        record: Record<'a>,
    },
    Remove {
        key: &'a [u8],
    },
    /// Adds values to those of a key. Only Tokyo Tyrant's protocol has this change.
    Add {
        key: &'a [u8],
        values: &'a [&'a [u8]],
    },
    Clear,
}

/// The encoder of the changes of one database.
#[derive(Clone, Copy)]
pub(super) struct ChangeEncoder {
    is_tyrant: bool,
    database: u16,
    is_persistent: bool,
    is_table: bool,
    takes_lists: bool,
}

impl ReplicaRequest {
    /// Returns the ID of the replica.
    pub(crate) fn server_id(&self) -> u16 {
        match self {
            ReplicaRequest::Kyoto(request) => request.server_id,
            ReplicaRequest::Tyrant { server_id, .. } => *server_id,
        }
    }

    /// Returns the last time stamp that the replica has.
    pub(super) fn position(&self) -> u64 {
        match self {
            ReplicaRequest::Kyoto(request) => request.timestamp,
            ReplicaRequest::Tyrant { since_micros, .. } => since_micros.saturating_sub(1),
        }
    }

    /// Returns the time stamps of a database.
    pub(super) fn stamps(&self, number: usize, databases: usize) -> StampScheme {
        match self {
            ReplicaRequest::Kyoto(_) => {
                StampScheme::Bytes { number: number as u64, databases: databases as u64 }
            }
            ReplicaRequest::Tyrant { .. } => StampScheme::Changes,
        }
    }

    /// Returns the stamp that is sent for a change, after the last one that was sent.
    pub(super) fn next_stamp(&self, last: u64, stamp: u64) -> u64 {
        match self {
            // Time stamps must never decrease, even if a change is sent again.
            ReplicaRequest::Kyoto(_) => stamp.max(last.saturating_add(1)),
            ReplicaRequest::Tyrant { .. } => stamp.max(last),
        }
    }

    /// Returns the number of databases that are sent, out of all: Tokyo Tyrant has one.
    pub(super) fn databases(&self, all: usize) -> usize {
        match self {
            ReplicaRequest::Kyoto(_) => all,
            ReplicaRequest::Tyrant { .. } => all.min(1),
        }
    }

    /// Returns true if the replica wants a change with this origin.
    pub(super) fn wants(&self, origin: ChangeOrigin) -> bool {
        match self {
            ReplicaRequest::Kyoto(request) => request.wants(origin.server_id),
            ReplicaRequest::Tyrant { server_id, .. } => !origin.has_passed(*server_id),
        }
    }

    /// Returns true if the changes hold the expiry of records.
    pub(super) fn carries_expiry(&self) -> bool {
        matches!(self, ReplicaRequest::Kyoto(_))
    }

    /// Returns true if a record with several values is sent as a removal and additions of values.
    pub(super) fn adds_values(&self) -> bool {
        matches!(self, ReplicaRequest::Tyrant { .. })
    }

    /// Returns true if the replica gets only the first of several values.
    pub(super) fn lacks_lists(&self) -> bool {
        matches!(self, ReplicaRequest::Kyoto(request) if !request.takes_lists)
    }

    /// Returns true if this server would not receive its own changes back, and so has the ID of the
    /// replica by mistake.
    pub(super) fn conflicts_with(&self, own: u16) -> bool {
        match self {
            ReplicaRequest::Kyoto(request) => request.server_id == own && !request.wants_only,
            ReplicaRequest::Tyrant { .. } => false,
        }
    }

    /// Returns the encoder of the changes of a database.
    pub(super) fn encoder(&self, number: usize, served: &ServedDatabase) -> ChangeEncoder {
        ChangeEncoder {
            is_tyrant: matches!(self, ReplicaRequest::Tyrant { .. }),
            database: number as u16,
            is_persistent: served.name.tuning.persistent,
            is_table: served.database.engine().indexed().is_some(),
            takes_lists: !self.lacks_lists(),
        }
    }

    /// Writes the beginning of the stream.
    pub(super) fn put_accepted(&self, own: u16, out: &mut Vec<u8>) {
        match self {
            ReplicaRequest::Kyoto(_) => kyoto_stream::put_accepted(out),
            ReplicaRequest::Tyrant { .. } => {
                tyrant_stream::put_server_id(own.into(), out);
                tyrant_stream::put_idle(out);
            }
        }
    }

    /// Writes that the replica is refused; the connection is closed after it.
    pub(super) fn put_refused(&self, own: u16, out: &mut Vec<u8>) {
        match self {
            ReplicaRequest::Kyoto(_) => kyoto_stream::put_refused(out),
            ReplicaRequest::Tyrant { .. } => tyrant_stream::put_server_id(own.into(), out),
        }
    }

    /// Writes a change that [`ChangeEncoder`] has encoded.
    pub(super) fn put_change(&self, stamp: u64, origin: ChangeOrigin, change: &[u8], out: &mut Vec<u8>) {
        match self {
            ReplicaRequest::Kyoto(_) => {
                kyoto_stream::put_update_head(stamp, change.len() as u32, out);
            }
            ReplicaRequest::Tyrant { .. } => {
                tyrant_stream::put_record_head(stamp, origin.server_id.into(), change.len() as u32, out);
            }
        }
        out.extend_from_slice(change);
    }

    /// Writes that no change for this replica precedes this time stamp, if the protocol can say so.
    pub(super) fn put_progress(&self, stamp: u64, out: &mut Vec<u8>) {
        match self {
            ReplicaRequest::Kyoto(_) => kyoto_stream::put_progress(stamp, out),
            ReplicaRequest::Tyrant { .. } => {}
        }
    }

    /// Writes that all records of a scan have been sent, and that later changes have later time
    /// stamps. Without it, a replica of Tokyo Tyrant's protocol would begin again.
    pub(super) fn put_end_of_scan(&self, stamp: u64, own: ChangeOrigin, out: &mut Vec<u8>) {
        if let ReplicaRequest::Tyrant { .. } = self {
            let mut change = Vec::new();
            LoggedCommand { request: TyrantRequest::Sync, is_done: true }.put(&mut change);
            self.put_change(stamp, own, &change, out);
        }
    }
}

impl ChangeEncoder {
    /// Returns true if changes of the record with this key are sent. In Tokyo Tyrant's protocol,
    /// the empty key of a table means a new number, and not the definitions of the indexes.
    pub(super) fn sends(&self, key: &[u8]) -> bool {
        !(self.is_tyrant && self.is_table && key.is_empty())
    }

    /// Writes a change, without its time stamp.
    pub(super) fn put(&self, origin: ChangeOrigin, change: SentChange<'_>, out: &mut Vec<u8>) {
        if self.is_tyrant {
            return put_command(change, out);
        }
        let change = match change {
            SentChange::Put { key, record } if record.attributes.has_value_list && self.takes_lists => {
                UpdateChange::SetList { key, stored: stored(&record, self.is_persistent) }
            }
            SentChange::Put { key, record } => {
                UpdateChange::Set { key, stored: stored(&record.with_first_value(), self.is_persistent) }
            }
            SentChange::Remove { key } => UpdateChange::Remove { key },
            SentChange::Add { .. } => return,
            SentChange::Clear => UpdateChange::Clear,
        };
        UpdateMessage { server_id: origin.server_id, database: self.database, change }.put(out);
    }
}

/// Writes a change as a command of Tokyo Tyrant's log.
fn put_command(change: SentChange<'_>, out: &mut Vec<u8>) {
    let change = match change {
        SentChange::Put { key, record } => AbsoluteChange::Put { key, value: record.value },
        SentChange::Remove { key } => AbsoluteChange::Remove { key },
        SentChange::Add { key, values } => AbsoluteChange::Add { key, values },
        SentChange::Clear => AbsoluteChange::Clear,
    };
    change.put_body(out);
}

/// Returns the value of a record in the form in which a replica of Kyoto Tycoon's protocol stores
/// it.
fn stored<'r>(record: &Record<'r>, is_persistent: bool) -> StoredValue<'r> {
    if is_persistent {
        return StoredValue::raw(record.value);
    }
    StoredValue::with_expiry(time(record.attributes.expiry), record.value)
}

fn time(expiry: Expiry) -> u64 {
    kyoto::time_of(expiry).unwrap_or(kyoto::NEVER)
}
