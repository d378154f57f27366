//! Serves the requests of a connection. They are decoded in batches, so that their records are
//! fetched into the cache together, and executed in order.
//!
//! A request that does not begin with the binary protocol's first byte is HTTP, or a command of
//! memcached's. For the latter the connection becomes one whose dialect is not detected yet; its
//! session returns here at the next request of these protocols.

use super::session_state::{TyrantSession, TyrantWait, TyrantWorker};
use crate::databases::PRIMARY_DATABASE;
use crate::databases::pending_commits::DatabaseCommits;
use crate::session::announced_keys::AnnouncedKeys;
use crate::session::memcached::session::MemcachedSession;
use crate::session::wake::WakeReason;
use crate::session::worker_context::WorkerContext;
use crate::session::{AnySession, BATCH, NextAction, RetainedMemory, Session, SessionProgress, SessionTurn};
use crate::transport::output::OUTPUT_MAX;
use std::sync::Arc;
use todana_protocol::memcached::DialectChoice;
use todana_protocol::tyrant::{TyrantDecoder, TyrantLimits, TyrantRequest, TyrantStep};

impl TyrantSession {
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
                keys.collect::<AnnouncedKeys<'_>>().announce(&turn.context.executor, PRIMARY_DATABASE);
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
                if shared.is_proxy() {
                    return NextAction::Fail;
                }
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
