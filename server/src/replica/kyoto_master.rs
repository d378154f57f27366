//! The stream of a master in Kyoto Tycoon's protocol.

use super::applied_message::{Applied, ApplyError, FollowError, MessageEvent};
use crate::shared::SharedState;
use std::cell::Cell;
use std::sync::Arc;
use todana::{Action, Database, OverwriteVisitor, Record, WorkerCounters, kyoto};
use todana_core::{Attributes, Expiry, Result};
use todana_protocol::kyoto::binary::ReplicaRequest;
use todana_protocol::kyoto::message::{UpdateChange, UpdateMessage};
use todana_protocol::kyoto::replication::{MasterMessage, ReplicaDecoder, ReplicaStep};

/// The stream of a master.
pub(super) struct KyotoMaster {
    shared: Arc<SharedState>,
    worker_counters: Vec<Arc<WorkerCounters>>,
    decoder: ReplicaDecoder,
    server_id: u16,
    /// True once a record lost values, because this server has another kind of database.
    has_dropped_values: Cell<bool>,
}

impl KyotoMaster {
    pub(super) fn new(shared: &Arc<SharedState>, counters: &[Arc<WorkerCounters>]) -> KyotoMaster {
        KyotoMaster {
            worker_counters: counters.to_vec(),
            decoder: ReplicaDecoder::default(),
            has_dropped_values: Cell::new(false),
            server_id: shared.options.databases.replication.server_id,
            shared: Arc::clone(shared),
        }
    }

    pub(super) fn put_request(&self, position: u64, out: &mut Vec<u8>) {
        let server_id = self.server_id;
        ReplicaRequest { timestamp: position, server_id, wants_only: false, takes_lists: true }.put(out);
    }

    /// Applies the message at the beginning of the unread bytes.
    pub(super) fn apply_next(&mut self, unread: &[u8]) -> std::result::Result<Applied, ApplyError> {
        let (consumed, message) = match self.decoder.decode(unread) {
            ReplicaStep::Message { consumed, master_message } => (consumed, master_message),
            ReplicaStep::NeedMore { at_least } => return Ok(Applied::NeedMore { at_least }),
            ReplicaStep::Malformed => {
                return Err(FollowError::Lost("the replication stream is malformed".into()).into());
            }
        };
        let (position, event) = match message {
            MasterMessage::Accepted => (None, MessageEvent::Accepted),
            MasterMessage::Refused => {
                let why = "the master has no update log, or cannot read it";
                return Err(FollowError::Lost(why.into()).into());
            }
            MasterMessage::Progress { timestamp } => (Some(timestamp), MessageEvent::None),
            MasterMessage::CaughtUp { timestamp } => (Some(timestamp), MessageEvent::CaughtUp),
            MasterMessage::Update { timestamp, message } => {
                if message.server_id != self.server_id {
                    self.apply(&message)?;
                }
                // After a clear, the position is stored at once. If the clear were applied a second
                // time, it would also remove records that were stored after it.
                let is_clear = message.change == UpdateChange::Clear;
                (Some(timestamp), if is_clear { MessageEvent::MustStore } else { MessageEvent::None })
            }
        };
        Ok(Applied::Message { consumed, position, event })
    }

    fn apply(&self, message: &UpdateMessage<'_>) -> Result<()> {
        let number = usize::from(message.database);
        // The master may have databases that this server does not have.
        let Some(served) = self.shared.databases.get(number) else { return Ok(()) };
        let (database, worker_counters, origin) =
            (&served.database, &self.worker_counters[number], u32::from(message.server_id));
        match message.change {
            UpdateChange::Set { key, stored } | UpdateChange::SetList { key, stored } => {
                let (expiry, value) = if served.name.tuning.persistent {
                    (Expiry::Never, stored.as_raw().unwrap_or_default())
                } else {
                    let Some((time, value)) = stored.split() else {
                        tracing::warn!("replication: a record without its expiry time was skipped");
                        return Ok(());
                    };
                    (kyoto::expiry_of(time), value)
                };
                let has_value_list = matches!(message.change, UpdateChange::SetList { .. });
                let attributes = Attributes { expiry, has_value_list, ..Attributes::default() };
                let record = self.storable(database, Record::new(value, attributes));
                database.visit_record_from(
                    origin,
                    worker_counters,
                    key,
                    &mut OverwriteVisitor(Action::Put(record)),
                )?;
            }
            UpdateChange::Remove { key } => {
                database.visit_record_from(
                    origin,
                    worker_counters,
                    key,
                    &mut OverwriteVisitor(Action::Remove),
                )?;
            }
            UpdateChange::Clear => {
                database.clear_from(origin, worker_counters)?;
            }
            UpdateChange::Other { .. } => {}
        }
        Ok(())
    }
    /// Returns the record as the database can hold it: only a tree holds several values of a key.
    fn storable<'r>(&self, database: &Database, record: Record<'r>) -> Record<'r> {
        if !record.attributes.has_value_list || database.holds_value_lists() {
            return record;
        }
        if !self.has_dropped_values.replace(true) {
            tracing::warn!(
                "replication: a record of the master has several values, of which this database keeps the first; \
                 only trees keep all"
            );
        }
        record.with_first_value()
    }
}
