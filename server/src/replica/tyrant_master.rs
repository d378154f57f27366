//! The stream of a master in Tokyo Tyrant's protocol. It holds commands, which this server executes
//! on its first database.

use super::applied_message::{Applied, ApplyError, FollowError, MessageEvent};
use super::served_target::ServedTarget;
use crate::databases::PRIMARY_DATABASE;
use crate::shared::SharedState;
use std::sync::Arc;
use todana::DataDirectory;
use todana::WorkerCounters;
use todana::replication::{ChangeOrigin, RestorableKeys, UndoLog};
use todana::tyrant::{AppliedOutcome, apply_logged};
use todana::update_log::{EntryDecoder, LogChange, LogPosition};
use todana_protocol::tyrant::replication::{MasterDecoder, MasterStep, TyrantMasterMessage};
use todana_protocol::tyrant::{LoggedCommand, TyrantRequest};

/// The ID that a server without one sends, as the original does: a master refuses 0.
const WITHOUT_ID: u32 = i32::MAX as u32;

/// The number of bytes of the log that are read at a time.
const LOG_PIECE: usize = 1 << 20;

/// The stream of a master.
pub(super) struct TyrantMaster {
    shared: Arc<SharedState>,
    worker_counters: Arc<WorkerCounters>,
    decoder: MasterDecoder,
    server_id: u16,
    /// The ID of the master, once it is known.
    master_id: u16,
    checks_outcomes: bool,
    /// The number of idle messages. The first one comes before the records that are waiting.
    idle: u64,
}

impl TyrantMaster {
    pub(super) fn new(
        shared: &Arc<SharedState>,
        counters: &Arc<WorkerCounters>,
        checks_outcomes: bool,
    ) -> TyrantMaster {
        TyrantMaster {
            worker_counters: Arc::clone(counters),
            decoder: MasterDecoder::default(),
            server_id: shared.options.databases.replication.server_id,
            master_id: 0,
            checks_outcomes,
            idle: 0,
            shared: Arc::clone(shared),
        }
    }

    pub(super) fn put_request(&self, position: u64, out: &mut Vec<u8>) {
        let since_micros = position.saturating_add(1);
        let server_id = if self.server_id == 0 { WITHOUT_ID } else { self.server_id.into() };
        TyrantRequest::Repl { since_micros, server_id }.encode(out);
    }

    /// Applies the message at the beginning of the unread bytes.
    pub(super) fn apply_next(
        &mut self,
        unread: &[u8],
        mut undo: Option<&mut UndoLog>,
    ) -> Result<Applied, ApplyError> {
        let lost = |why: &str| Err(ApplyError::from(FollowError::Lost(why.into())));
        let (consumed, message) = match self.decoder.decode(unread) {
            MasterStep::Message { consumed, message } => (consumed, message),
            MasterStep::NeedMore { at_least } => return Ok(Applied::NeedMore { at_least }),
            MasterStep::Malformed => return lost("the replication stream is malformed"),
        };
        let (position, event) = match message {
            TyrantMasterMessage::ServerId(0) => return lost("the master has no update log"),
            TyrantMasterMessage::ServerId(server_id) => {
                self.master_id = server_id as u16;
                (None, MessageEvent::Accepted)
            }
            TyrantMasterMessage::Idle => {
                self.idle += 1;
                (None, if self.idle > 1 { MessageEvent::CaughtUp } else { MessageEvent::None })
            }
            TyrantMasterMessage::Record { stamp_micros, server_id, body } => {
                // Each record advances the position, even if it is not applied.
                if let Some(undo) = undo.as_deref_mut().filter(|undo| undo.must_restore()) {
                    self.restore_records(undo)?;
                }
                if server_id != u32::from(self.server_id) {
                    self.apply(stamp_micros, server_id as u16, body, undo)?;
                }
                (Some(stamp_micros), MessageEvent::None)
            }
        };
        Ok(Applied::Message { consumed, position, event })
    }

    /// Executes a record of the master's log.
    fn apply(
        &self,
        stamp_micros: u64,
        server_id: u16,
        body: &[u8],
        undo: Option<&mut UndoLog>,
    ) -> Result<(), ApplyError> {
        // The next connection continues after a record that cannot be applied, as in the original.
        let after = |why| ApplyError { position: Some(stamp_micros), why };
        let Some(command) = LoggedCommand::parse(body) else {
            let why = format!("record {stamp_micros} of the master is damaged and was skipped");
            return Err(after(FollowError::Lost(why)));
        };
        let mut target = ServedTarget {
            database: &self.shared.databases.primary().database,
            worker_counters: &self.worker_counters,
            origin: ChangeOrigin::new(server_id, self.master_id),
            undo,
        };
        let outcome = apply_logged(&command, &mut target)?;
        if outcome == AppliedOutcome::Different {
            let name = command.request.command().name();
            let what = format!("{name} with time stamp {stamp_micros} has another outcome here");
            if self.checks_outcomes {
                return Err(after(FollowError::Differs(what)));
            }
            tracing::warn!("replication: {what} than at the master; the databases differ");
        }
        Ok(())
    }

    /// Puts back the records on which changes after the stored position depend, before the first of
    /// these changes is executed again. Records that clients of this server have changed stay.
    fn restore_records(&self, undo: &mut UndoLog) -> Result<(), ApplyError> {
        let database = &self.shared.databases.primary().database;
        let directory = self.shared.persistence.exports.directory(PRIMARY_DATABASE);
        let exclude = |from: LogPosition, keys: &mut RestorableKeys| {
            if let (Some(directory), Some(log)) = (directory, database.log())
                && let Err(error) = exclude_own_changes(&directory, from, log.end(), keys)
            {
                // A hash on disk begins a new log after the death of the process.
                tracing::info!(
                    "replication: no changes of clients are known since the stored position: {error}"
                );
            }
        };
        undo.restore(exclude, |origin, key, visitor| {
            database.visit_record_from(origin, &self.worker_counters, key, visitor).map(|_| ())
        })?;
        Ok(())
    }
}

/// Removes the keys that this server has changed first, between two positions of its log.
fn exclude_own_changes(
    directory: &DataDirectory,
    from: LogPosition,
    until: LogPosition,
    keys: &mut RestorableKeys,
) -> todana_core::Result<()> {
    let mut bytes = directory.log_bytes(Some(from))?;
    let mut entries = EntryDecoder::new(bytes.identity().database_id, from);
    let mut piece = Vec::new();
    while bytes.position() < until {
        piece.clear();
        bytes.read(until, LOG_PIECE, &mut piece)?;
        entries.push(&piece);
        while let Some((_, entry)) = entries.next_entry()? {
            if entry.origin.is_some() {
                continue;
            }
            match entry.change {
                LogChange::Put { key, .. } | LogChange::Retag { key, .. } | LogChange::Remove { key } => {
                    keys.remove(key);
                }
                LogChange::Transaction(changes) => changes.iter().for_each(|change| {
                    if let LogChange::Put { key, .. } | LogChange::Remove { key } = change {
                        keys.remove(key);
                    }
                }),
                LogChange::Clear => keys.clear(),
                LogChange::PlanClear { .. }
                | LogChange::Mark { .. }
                | LogChange::Epoch(_)
                | LogChange::Lost { .. } => {}
            }
        }
    }
    Ok(())
}
