//! The state of a connection, and the wait for its background job.

use super::background_call::{TyrantCall, TyrantTask};
use super::http_call::HttpCall;
use crate::databases::pending_commits::DatabaseCommits;
use crate::handle::StopStage;
use crate::replica::ReplicaRequest;
use crate::session::NextAction;
use crate::session::background_jobs::{BackgroundJob, BackgroundJobs, BackgroundWork};
use crate::session::pending_replies::PendingReplies;
use crate::session::wake::WakeTicket;
use crate::session::worker_context::WorkerContext;
use crate::transport::output::ConnectionOutput;
use std::sync::Arc;
use todana_protocol::tyrant::{FieldList, TyrantDecoder, reply};
use todana_script::tyrant::MiscBounds;

/// A connection that speaks Tokyo Tyrant's protocol.
#[derive(Default)]
pub(crate) struct TyrantSession {
    pub(super) decoder: TyrantDecoder,
    /// The replies that must arrive before the session continues.
    pub(super) pending: PendingReplies,
    pub(super) wait: TyrantWait,
    /// The bounds of a script that waits for the result, so that nothing runs as a background job.
    script: Option<MiscBounds>,
    /// Changes that a script has made on another thread. They must be durable before more is sent.
    pub(super) changes: DatabaseCommits,
    /// The call over HTTP that a background job executes.
    pub(super) http: Option<HttpCall>,
    /// Set if the connection is a replica's and continues on a thread of its own.
    pub(super) follows: Option<ReplicaRequest>,
}

/// The wait for a background job, which executes a request whose bytes are consumed.
#[derive(Default)]
pub(super) enum TyrantWait {
    #[default]
    No,
    Job {
        job: Arc<BackgroundJob>,
        ticket: WakeTicket,
        only_reads: bool,
        /// True for a script, which runs to its end even if nobody waits.
        is_script: bool,
    },
    /// The job is done, or was cancelled.
    JobDone(Arc<BackgroundJob>),
}

/// The state of a worker for the sessions of Tokyo Tyrant's protocol.
#[derive(Default)]
pub(crate) struct TyrantWorker {
    /// The bytes of a list, which are sent after their number.
    pub(super) list: Vec<u8>,
    /// The largest length of a list in a reply, in bytes.
    pub(super) list_len_max: usize,
}

impl TyrantWorker {
    /// Creates the state for calls by a script.
    pub(super) fn for_script(list_len_max: usize) -> TyrantWorker {
        TyrantWorker { list: Vec::new(), list_len_max }
    }
}

impl TyrantSession {
    /// Returns the request of a replica, if it is one.
    pub(crate) fn replica(&self) -> Option<ReplicaRequest> {
        self.follows
    }

    /// Creates the session of a script, whose calls return only when they are done.
    pub(super) fn for_script(bounds: MiscBounds) -> TyrantSession {
        TyrantSession { script: Some(bounds), ..TyrantSession::default() }
    }

    /// Executes a command that may take long, on another thread unless it is brief.
    pub(super) fn perform(
        &mut self,
        context: &mut WorkerContext,
        task: TyrantTask,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        if let Some(MiscBounds { is_cancelled, list_len_max }) = &self.script {
            task.perform(&context.shared, is_cancelled, *list_len_max, output);
            return NextAction::Continue;
        }
        if task.perform_if_brief(&context.shared, output) {
            return NextAction::Continue;
        }
        let (is_misc, only_reads) = (task.is_misc, task.only_reads());
        let calls = Arc::clone(&context.shared.tyrant.calls);
        let call = Box::new(TyrantCall { shared: Arc::clone(&context.shared), task });
        self.submit(context, &calls, call, false, only_reads).unwrap_or_else(|| {
            if is_misc {
                reply::put_fields(false, &FieldList::default(), output);
            } else {
                reply::put_status(false, output);
            }
            NextAction::Continue
        })
    }

    /// Has a background job execute a request; the connection waits. Returns `None` if there is no
    /// room for the job.
    pub(super) fn submit(
        &mut self,
        context: &mut WorkerContext,
        jobs: &Arc<BackgroundJobs>,
        call: Box<dyn BackgroundWork>,
        is_script: bool,
        only_reads: bool,
    ) -> Option<NextAction> {
        if context.shared.lifecycle.stopping() != StopStage::No {
            return None;
        }
        let handle = context.waits.enter_new();
        let ticket = handle.ticket;
        match jobs.submit(call, handle) {
            Ok(job) => {
                self.wait = TyrantWait::Job { job, ticket, only_reads, is_script };
                Some(NextAction::Wait)
            }
            Err(_) => {
                context.waits.leave(ticket);
                None
            }
        }
    }
}
