//! Defines the state of a connection that speaks Kyoto Tycoon's protocols.

#[cfg(feature = "cassandra")]
use super::cluster_cursors::ClusterCursorTable;
use super::cursor_table::CursorTable;
use crate::databases::pending_commits::DatabaseCommits;
use crate::session::background_jobs::BackgroundJob;
use crate::session::login::BasicLogin;
use crate::session::pending_replies::PendingReplies;
use crate::session::wake::WakeTicket;
use std::sync::Arc;
use std::time::Instant;
use todana_protocol::kyoto::KyotoDecoder;
use todana_protocol::kyoto::binary::ReplicaRequest;

/// A connection that speaks Kyoto Tycoon's protocols.
#[derive(Default)]
pub(crate) struct KyotoSession {
    pub(super) dialect: KyotoDecoder,
    /// The login of the current request.
    pub(super) basic: BasicLogin,
    pub(super) cursors: CursorTable,
    #[cfg(feature = "cassandra")]
    pub(super) cluster_cursors: ClusterCursorTable,
    /// The current bulk request.
    pub(super) bulk: BulkProgress,
    pub(super) wait: KyotoWait,
    /// The replies that must arrive before the session continues.
    pub(super) pending: PendingReplies,
    /// Changes that scripts have made for this connection on other threads. They must be durable
    /// before the next bytes are sent.
    pub(super) changes: DatabaseCommits,
    /// The greeting of a replica, if the client is one. The connection then continues on a thread
    /// of its own.
    pub(super) follows: Option<ReplicaRequest>,
}

/// The progress of a bulk request.
#[derive(Default)]
pub(super) struct BulkProgress {
    pub(super) hits: u32,
    /// The records found so far. Their number precedes them in the answer, so they are sent at the
    /// end.
    pub(super) found: Vec<u8>,
    pub(super) has_failed: bool,
}

/// The wait of the current request.
#[derive(Default)]
pub(super) enum KyotoWait {
    #[default]
    No,
    /// The request waits for a signal of this name.
    For { name: Vec<u8>, ticket: WakeTicket },
    /// The request, first seen at this time, waits for changes of the master.
    ForMaster { asked_at: Instant, ticket: WakeTicket },
    /// The request has waited for changes of the master, and is checked again.
    AskedAt(Instant),
    /// The request has waited and was signalled.
    Signalled,
    /// The request has waited until its deadline.
    TimedOut,
    /// A background job executes the request. The bytes of the request are consumed.
    Job { call: WaitingCall, ticket: WakeTicket },
    /// The job is done, or was cancelled.
    JobDone(WaitingCall),
}

/// A call that a background job answers.
pub(super) struct WaitingCall {
    pub(super) job: Arc<BackgroundJob>,
    /// True if the connection stays open after the answer.
    pub(super) keeps_alive: bool,
    /// True if the call has no effect besides its answer.
    pub(super) only_reads: bool,
    /// True for a script, which runs to its end even if the connection has closed.
    pub(super) is_script: bool,
}

impl KyotoSession {
    /// Returns the greeting of a replica, if the client is one.
    pub(crate) fn replica(&self) -> Option<ReplicaRequest> {
        self.follows
    }

    /// Returns the name of the signal that the request waits for.
    pub(super) fn waits_for(&self) -> Option<(&[u8], WakeTicket)> {
        match &self.wait {
            KyotoWait::For { name, ticket } => Some((name, *ticket)),
            _ => None,
        }
    }

    /// Returns true if the current request stays in the input and is decoded again after its wait.
    pub(super) fn keeps_request(&self) -> bool {
        let waits = matches!(self.wait, KyotoWait::For { .. } | KyotoWait::ForMaster { .. });
        self.pending.is_waiting() || waits
    }

    /// Returns the ticket that the request waits for.
    pub(super) fn ticket(&self) -> Option<WakeTicket> {
        match &self.wait {
            KyotoWait::For { ticket, .. }
            | KyotoWait::ForMaster { ticket, .. }
            | KyotoWait::Job { ticket, .. } => Some(*ticket),
            _ => None,
        }
    }

    /// Ends the wait. `has_come` is true if the awaited event has happened, false at the deadline.
    pub(super) fn end_wait(&mut self, has_come: bool) {
        self.wait = match std::mem::take(&mut self.wait) {
            KyotoWait::Job { call, .. } => {
                if !has_come {
                    call.job.cancel();
                }
                KyotoWait::JobDone(call)
            }
            KyotoWait::ForMaster { asked_at, .. } => KyotoWait::AskedAt(asked_at),
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
            // The answer is no longer needed. A script continues, because it may have effects.
            call.job.cancel();
        }
    }
}
