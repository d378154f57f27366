//! What a connection keeps besides its bytes.

use super::cursor_table::CursorTable;
use crate::databases::awaits::Changes;
use crate::session::background::BackgroundJob;
use crate::session::login::BasicLogin;
use crate::session::pending::PendingReplies;
use crate::session::wake::WakeTicket;
use std::sync::Arc;
use todana_protocol::kyoto::KyotoDecoder;
use todana_protocol::kyoto::binary::ReplicaRequest;

/// A connection that speaks Kyoto Tycoon's protocols.
#[derive(Default)]
pub(crate) struct KyotoSession {
    pub(super) dialect: KyotoDecoder,
    /// Where clients have to log in.
    pub(super) basic: BasicLogin,
    pub(super) cursors: CursorTable,
    /// Of the bulk request under way.
    pub(super) bulk: BulkProgress,
    pub(super) wait: KyotoWait,
    /// The replies that have to come before anything else is done.
    pub(super) pending: PendingReplies,
    /// What scripts have changed for it on other threads, to be settled before it is told more.
    pub(super) changes: Changes,
    /// It is a replica: its connection goes to a thread of its own.
    pub(super) follows: Option<ReplicaRequest>,
}

/// How far a bulk request has come.
#[derive(Default)]
pub(super) struct BulkProgress {
    pub(super) hits: u32,
    /// What has been found; it goes out behind its number, which is known at the end.
    pub(super) found: Vec<u8>,
    pub(super) has_failed: bool,
}

/// Whether the request at hand waits.
#[derive(Default)]
pub(super) enum KyotoWait {
    #[default]
    No,
    /// For a signal of this name.
    For { name: Vec<u8>, ticket: WakeTicket },
    /// It has waited, and was signalled.
    Signalled,
    /// It has waited, and was not.
    TimedOut,
    /// For a background job, whose request is done with.
    Job { call: WaitingCall, ticket: WakeTicket },
    /// That has been done, or never will be.
    JobDone(WaitingCall),
}

/// A call that a background job answers.
pub(super) struct WaitingCall {
    pub(super) job: Arc<BackgroundJob>,
    /// The connection stays open after the answer.
    pub(super) keeps_alive: bool,
    /// It leaves nothing but its answer.
    pub(super) only_looks: bool,
    /// It is a script, which runs to its end although nobody waits for it.
    pub(super) is_script: bool,
}

impl KyotoSession {
    /// Returns the greeting of a replica, if it is one.
    pub(crate) fn replica(&self) -> Option<ReplicaRequest> {
        self.follows
    }

    /// Returns the name of the signal that it waits for.
    pub(super) fn waits_for(&self) -> Option<(&[u8], WakeTicket)> {
        match &self.wait {
            KyotoWait::For { name, ticket } => Some((name, *ticket)),
            _ => None,
        }
    }

    /// Returns true if the request at hand is decoded again once it has been waited for.
    pub(super) fn keeps_request(&self) -> bool {
        self.pending.is_waiting() || self.waits_for().is_some()
    }

    /// Returns the ticket that it waits with.
    pub(super) fn ticket(&self) -> Option<WakeTicket> {
        match &self.wait {
            KyotoWait::For { ticket, .. } | KyotoWait::Job { ticket, .. } => Some(*ticket),
            _ => None,
        }
    }

    /// Ends the wait; `has_come`: what it waits for is there.
    pub(super) fn end_wait(&mut self, has_come: bool) {
        self.wait = match std::mem::take(&mut self.wait) {
            KyotoWait::Job { call, .. } => {
                if !has_come {
                    call.job.call_off();
                }
                KyotoWait::JobDone(call)
            }
            _ if has_come => KyotoWait::Signalled,
            _ => KyotoWait::TimedOut,
        };
    }
}

impl Drop for KyotoSession {
    fn drop(&mut self) {
        if let KyotoWait::Job { call, .. } = &self.wait
            && !call.is_script
        {
            // Nobody wants it any more. A script was sent to do something.
            call.job.call_off();
        }
    }
}
