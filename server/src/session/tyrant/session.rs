//! The state of a connection. Requests are decoded in batches, so that their records are fetched
//! into the cache together, and executed in order.
//!
//! A request that does not begin with the binary protocol's first byte is HTTP, or a command of
//! memcached's. For the latter the connection becomes one whose dialect is not detected yet; its
//! session returns here at the next request of these protocols.

use super::DATABASE;
use super::background_call::{TyrantCall, TyrantTask};
use super::http::HttpCall;
use crate::databases::pending_commits::DatabaseCommits;
use crate::execution::Executor;
use crate::handle::StopStage;
use crate::replica::ReplicaRequest;
use crate::session::background_jobs::{BackgroundJob, BackgroundJobs, BackgroundWork};
use crate::session::memcached::session::MemcachedSession;
use crate::session::pending_replies::PendingReplies;
use crate::session::wake::{WakeReason, WakeTicket};
use crate::session::worker_context::WorkerContext;
use crate::session::{AnySession, BATCH, NextAction, RetainedMemory, Session, SessionProgress, SessionTurn};
use crate::transport::output::{ConnectionOutput, OUTPUT_MAX};
use std::sync::Arc;
use todana_protocol::memcached::DialectChoice;
use todana_protocol::tyrant::{FieldList, TyrantDecoder, TyrantLimits, TyrantRequest, TyrantStep, reply};
use todana_script::tyrant::MiscBounds;

/// A connection that speaks Tokyo Tyrant's protocol.
#[derive(Default)]
pub(crate) struct TyrantSession {
    decoder: TyrantDecoder,
    /// The replies that must arrive before the session continues.
    pub(super) pending: PendingReplies,
    wait: TyrantWait,
    /// The bounds of a script that waits for the result, so that nothing runs as a background job.
    script: Option<MiscBounds>,
    /// Changes that a script has made on another thread. They must be durable before more is sent.
    changes: DatabaseCommits,
    /// The call over HTTP that a background job executes.
    pub(super) http: Option<HttpCall>,
    /// Set if the connection is a replica's and continues on a thread of its own.
    pub(super) follows: Option<ReplicaRequest>,
}

/// The wait for a background job, which executes a request whose bytes are consumed.
#[derive(Default)]
enum TyrantWait {
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

    /// Serves requests while there are any, within the connection's share.
    fn serve_all(
        &mut self,
        worker: &mut TyrantWorker,
        turn: &mut SessionTurn<'_>,
        limits: &TyrantLimits,
        input: &[u8],
        at: &mut usize,
    ) -> NextAction {
        loop {
            if *turn.budget == 0 {
                return if *at == input.len() { NextAction::READ } else { NextAction::Yield };
            }
            if turn.output.len() > OUTPUT_MAX {
                return NextAction::Flush;
            }
            let mut batch: [Option<(TyrantRequest<'_>, usize)>; BATCH] = [const { None }; BATCH];
            let (mut len, mut end) = (0, None);
            let (mut decoded_to, mut has_text) = (*at, false);
            while len < BATCH.min(*turn.budget as usize) {
                match self.decoder.decode(limits, &input[decoded_to..]) {
                    TyrantStep::Request { consumed, request } => {
                        decoded_to += consumed;
                        batch[len] = Some((request, decoded_to));
                        len += 1;
                    }
                    TyrantStep::NeedMore { at_least } => {
                        end = Some(NextAction::Read { at_least });
                        break;
                    }
                    TyrantStep::Text => {
                        has_text = true;
                        break;
                    }
                    TyrantStep::Close => {
                        end = Some(NextAction::Fail);
                        break;
                    }
                }
            }
            let batch = &batch[..len];
            if len > 1 {
                let keys = batch.iter().flatten().filter_map(|(request, _)| key_of(request));
                keys.for_each(|key| turn.context.executor.prefetch(DATABASE, key));
            }
            for (index, (request, after)) in batch.iter().flatten().enumerate() {
                let next = self.execute(worker, turn.context, request, turn.output);
                if self.pending.is_waiting() {
                    // The request is decoded again, and answered, once its replies have come.
                    self.decoder = TyrantDecoder::default();
                    return NextAction::Wait;
                }
                self.pending.abandon(turn.context);
                *at = *after;
                *turn.budget -= 1;
                let is_full = turn.output.len() > OUTPUT_MAX && index + 1 < len;
                let next =
                    if is_full && matches!(next, NextAction::Continue) { NextAction::Flush } else { next };
                if !matches!(next, NextAction::Continue) {
                    // Later requests of the batch are decoded again.
                    self.decoder = TyrantDecoder::default();
                    return next;
                }
            }
            if has_text && *turn.budget > 0 && turn.output.len() <= OUTPUT_MAX {
                let shared = &turn.context.shared;
                if !shared.begins_tyrant(input[*at]) {
                    let session = MemcachedSession::of_listener(shared, Some(DialectChoice::Auto));
                    return NextAction::Become(Box::new(AnySession::Undetected(session)));
                }
                match self.serve_http(worker, turn, limits, input, at) {
                    NextAction::Continue => {}
                    next => return next,
                }
            }
            if let Some(end) = end {
                return end;
            }
        }
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

impl Session for TyrantSession {
    type Worker = TyrantWorker;

    fn advance(
        &mut self,
        worker: &mut TyrantWorker,
        turn: &mut SessionTurn<'_>,
        input: &[u8],
    ) -> SessionProgress {
        if matches!(self.wait, TyrantWait::JobDone(_))
            && let TyrantWait::JobDone(job) = std::mem::take(&mut self.wait)
        {
            let (answer, changes) = job.take_answer();
            self.changes = changes;
            match self.http.take() {
                None => answer.append_to(turn.output),
                Some(http) => {
                    http.put_answer(&answer.into_bytes(), turn.output);
                    if !http.keeps_alive {
                        return SessionProgress { consumed: 0, next: NextAction::Close };
                    }
                }
            }
        }
        // A request with pending replies was complete before, even if there is less room now.
        let unfinished_len_max = if self.pending.is_ready() { usize::MAX } else { turn.room };
        let limits = TyrantLimits { unfinished_len_max, ..TyrantLimits::default() };
        worker.list_len_max = turn.room.min(super::background_call::ANSWER_MAX);
        let mut consumed = 0;
        let next = self.serve_all(worker, turn, &limits, input, &mut consumed);
        SessionProgress { consumed, next }
    }

    fn wake(&mut self, wake: WakeReason, context: &mut WorkerContext) -> bool {
        if self.pending.is_complete_with(wake, &mut context.waits) {
            return true;
        }
        let TyrantWait::Job { job, ticket, .. } = &self.wait else { return false };
        match wake {
            WakeReason::Ready(ready) | WakeReason::TimedOut(ready) if ready != *ticket => return false,
            WakeReason::Ready(_) => {}
            WakeReason::TimedOut(_) | WakeReason::Cancelled => job.cancel(),
        }
        context.waits.leave(*ticket);
        self.wait = TyrantWait::JobDone(Arc::clone(job));
        true
    }

    fn is_waiting(&self) -> bool {
        self.pending.is_waiting() || matches!(self.wait, TyrantWait::Job { .. })
    }

    fn ends_with_reset(&self) -> bool {
        self.pending.is_waiting()
    }

    fn has_work(&self) -> bool {
        self.pending.is_some() || matches!(self.wait, TyrantWait::JobDone(_))
    }

    fn ends_with_peer(&self) -> bool {
        matches!(self.wait, TyrantWait::Job { only_reads: true, .. })
    }

    fn take_changes(&mut self) -> DatabaseCommits {
        std::mem::take(&mut self.changes)
    }

    fn retained(&self) -> RetainedMemory {
        let own = match &self.wait {
            TyrantWait::Job { job, .. } => job.len_bytes(),
            _ => 0,
        };
        RetainedMemory { own, of_engine: 0 }
    }

    fn leave(&mut self, context: &mut WorkerContext) {
        self.pending.abandon(context);
        if let TyrantWait::Job { job, ticket, is_script, .. } = &self.wait {
            context.waits.leave(*ticket);
            // Nobody wants the answer. A script continues, because it may have effects.
            if !is_script {
                job.cancel();
            }
        }
    }
}

/// Returns the key of a command about one record.
#[inline]
fn key_of<'a>(request: &TyrantRequest<'a>) -> Option<&'a [u8]> {
    match *request {
        TyrantRequest::Get { key }
        | TyrantRequest::Put { key, .. }
        | TyrantRequest::PutShl { key, .. }
        | TyrantRequest::Out { key }
        | TyrantRequest::VSiz { key }
        | TyrantRequest::AddInt { key, .. }
        | TyrantRequest::AddDouble { key, .. } => Some(key),
        _ => None,
    }
}
