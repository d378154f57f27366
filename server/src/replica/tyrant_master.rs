//! The stream of a master in Tokyo Tyrant's protocol. It holds commands, which this server executes
//! on its first database.

use super::applied_message::{Applied, ApplyError, FollowError, MessageEvent};
use super::served_target::ServedTarget;
use crate::shared::SharedState;
use std::sync::Arc;
use todana::WorkerCounters;
use todana::replication::{ChangeOrigin, UndoLog};
use todana::tyrant::{AppliedOutcome, apply_logged};
use todana_protocol::tyrant::replication::{MasterDecoder, MasterStep, TyrantMasterMessage};
use todana_protocol::tyrant::{LoggedCommand, TyrantRequest};

/// The ID that a server without one sends, as the original does: a master refuses 0.
const WITHOUT_ID: u32 = i32::MAX as u32;

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
        undo: Option<&mut UndoLog>,
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
}
