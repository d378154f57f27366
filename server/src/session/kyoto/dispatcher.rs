//! Decodes the requests of a connection and passes each to its procedure.

use super::answers::{CallAnswer, NOT_THROUGH_PROXY, TOO_OLD};
use super::background_call::{AnswerForm, BackgroundCall};
use super::call_context::{ANSWER_MAX, CallContext};
use super::long_call;
use super::procedures::is_for_any_server;
use super::session::{KyotoSession, KyotoWait, WaitingCall};
use super::signals::SignalPurpose;
use crate::databases::pending_commits::DatabaseCommits;
use crate::execution::{AnyExecutor, Completion};
use crate::handle::StopStage;
use crate::replica::freshness::{self, FreshnessCheck};
use crate::session::announced_keys::AnnouncedKeys;
use crate::session::background_jobs::JobRefused;
use crate::session::login::LoginVerdict;
use crate::session::wake::{WaitingConnections, WakeReason};
use crate::session::worker_context::WorkerContext;
use crate::session::{NextAction, RetainedMemory, Session, SessionProgress, SessionTurn};
use crate::shared::SharedState;
use crate::transport::output::{ConnectionOutput, OUTPUT_MAX};
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana::Clock;
use todana_core::RefusalReason;
use todana_protocol::kyoto::{
    self, AnswerBanner, AnswerStatus, BulkOperation, BulkPiece, CallFailure, DatabaseTarget, FreshnessHeader,
    HttpForm, KyotoLimits, KyotoRequest, KyotoStep as Decoded, MapScratch, ProcedureCall, RestAnswer,
    ScriptCall, SignalSend, answer_failure, answer_refusal, answer_rest, answer_unauthorized, binary,
};

/// The longest wait, which is practically unlimited.
const WAIT_MAX_S: f64 = 1e9;
/// The maximum length of the name of a signal that a client waits for.
const SIGNAL_LEN_MAX: usize = 64 << 10;

/// The state of a worker for the sessions of Kyoto's protocols.
pub(crate) struct KyotoWorker {
    pub(super) call_context: CallContext,
    banner: AnswerBanner,
    /// The limits of requests, without the host names.
    limits: KyotoLimits<'static>,
    /// The host names that browsers may use.
    hosts: Vec<String>,
    scratch: MapScratch,
    pairs: kyoto::AnswerPairs,
}

/// The progress of announcing the records of a bulk request to the executor.
#[derive(Default)]
struct AnnouncedRecords {
    /// The position of the first record that is not announced.
    at: usize,
}

impl AnnouncedRecords {
    /// Announces further records if none of the announced ones is left. `next` is the position of
    /// the record after the current one, and `left` is the number of records from there on.
    #[inline]
    fn look(
        &mut self,
        executor: &AnyExecutor,
        operation: BulkOperation,
        left: u32,
        data: &[u8],
        next: usize,
    ) {
        if self.at > next {
            return;
        }
        self.at = next;
        let mut first = None;
        let records = std::iter::from_fn(|| {
            let rest = data.get(self.at..).unwrap_or_default();
            let (database, key, len) = binary::peek_record(operation, rest)?;
            // Records of another database are announced with the next ones.
            (*first.get_or_insert(database) == database).then(|| {
                self.at += len;
                key
            })
        });
        let keys: AnnouncedKeys<'_> = records.take(left as usize).collect();
        if let Some(database) = first {
            keys.announce(executor, usize::from(database));
        }
    }
}

impl KyotoWorker {
    pub(crate) fn new(context: &WorkerContext) -> KyotoWorker {
        let shared = &context.shared;
        KyotoWorker {
            call_context: CallContext::new(context),
            banner: AnswerBanner::new(super::VERSION, shared.clock.now().0),
            limits: KyotoLimits {
                pages_allowed: shared.options.protocols.kyoto.pages_allowed,
                login_required: shared.logins.are_wanted(),
                ..KyotoLimits::default()
            },
            hosts: shared.options.protocols.http_hosts.clone(),
            scratch: MapScratch::default(),
            pairs: kyoto::AnswerPairs::default(),
        }
    }

    /// Serves the complete requests of the input, up to the connection's share of requests for this
    /// turn.
    fn serve_all(
        &mut self,
        session: &mut KyotoSession,
        turn: &mut SessionTurn<'_>,
        limits: &KyotoLimits<'_>,
        scratch: &mut MapScratch,
        data: &[u8],
        at: &mut usize,
    ) -> NextAction {
        let mut ahead = AnnouncedRecords::default();
        loop {
            if *turn.budget == 0 {
                return if *at == data.len() { NextAction::READ } else { NextAction::Yield };
            }
            if turn.output.len() > OUTPUT_MAX {
                return NextAction::Flush;
            }
            let before = session.dialect;
            match session.dialect.decode(limits, &data[*at..], scratch) {
                Decoded::Request { consumed, request } => {
                    if let KyotoRequest::Bulk(BulkPiece { operation, remaining: remaining @ 1.., .. }) =
                        request
                    {
                        ahead.look(&turn.context.executor, operation, remaining, data, *at + consumed);
                    }
                    let next = self.execute(session, turn.context, &request, turn.output);
                    if session.keeps_request() {
                        // The request is decoded again once its signal or its replies have arrived.
                        session.dialect = before;
                        return next;
                    }
                    session.pending.abandon(turn.context);
                    *at += consumed;
                    if !matches!(next, NextAction::Continue) {
                        return next;
                    }
                    // All records of a bulk request count as one request.
                    if !matches!(request, KyotoRequest::Bulk(piece) if piece.remaining > 0) {
                        *turn.budget -= 1;
                        continue;
                    }
                    match self.records(session, turn, data, at, &mut ahead) {
                        (NextAction::Continue, is_done) => *turn.budget -= u32::from(is_done),
                        (next, _) => return next,
                    }
                }
                Decoded::Login { consumed, authorization } => {
                    *at += consumed;
                    match self.login(session, &mut turn.context.waits, authorization) {
                        LoginVerdict::Known | LoginVerdict::Admitted => session.dialect.accept_login(),
                        LoginVerdict::Pending(_) => return NextAction::Wait,
                        LoginVerdict::Refused | LoginVerdict::Nameless => {
                            *turn.budget -= 1;
                            self.call_context.counters().refused.add(1);
                            let form = session.dialect.refuse_login(&self.limits);
                            answer_unauthorized(&form, &self.banner, turn.output);
                            if !form.keeps_alive {
                                return NextAction::Close;
                            }
                        }
                    }
                }
                Decoded::NeedMore { consumed, at_least } => {
                    *at += consumed;
                    return NextAction::Read { at_least };
                }
                Decoded::Close => return NextAction::Close,
            }
        }
    }

    /// Applies the records of a bulk request that have arrived. The second result is true after the
    /// last record.
    fn records(
        &self,
        session: &mut KyotoSession,
        turn: &mut SessionTurn<'_>,
        data: &[u8],
        at: &mut usize,
        ahead: &mut AnnouncedRecords,
    ) -> (NextAction, bool) {
        loop {
            let before = session.dialect;
            let Some((consumed, piece)) = session.dialect.decode_record(&self.limits, &data[*at..]) else {
                return (NextAction::Continue, false);
            };
            let is_last = piece.remaining == 0;
            if !is_last {
                let executor = &turn.context.executor;
                ahead.look(executor, piece.operation, piece.remaining, data, *at + consumed);
            }
            let next = self.call_context.bulk_piece(session, turn.context, &piece, turn.output);
            if session.keeps_request() {
                session.dialect = before;
                return (next, false);
            }
            *at += consumed;
            self.call_context.counters().binary.add(u64::from(is_last));
            if is_last || !matches!(next, NextAction::Continue) {
                return (next, is_last);
            }
        }
    }

    /// Checks the login of a request. The head of the request has arrived; its body may follow
    /// later.
    fn login(
        &self,
        session: &mut KyotoSession,
        waits: &mut WaitingConnections,
        authorization: Option<&[u8]>,
    ) -> LoginVerdict {
        let shared = &self.call_context.shared;
        let passage = shared.logins.pass(authorization, &mut session.basic, waits);
        let counters = &shared.observation.workers[self.call_context.worker];
        counters.logins.add(u64::from(matches!(passage, LoginVerdict::Admitted | LoginVerdict::Refused)));
        counters.logins_refused.add(u64::from(passage == LoginVerdict::Refused));
        passage
    }

    fn execute(
        &mut self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        request: &KyotoRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let required = match request {
            KyotoRequest::Call(call) => self.require(session, context, &call.form, call.target()),
            KyotoRequest::Rest(rest) => self.require(session, context, &rest.form, rest.target),
            _ => Ok(true),
        };
        match required {
            Ok(true) => {}
            Ok(false) => return NextAction::Wait,
            Err(failure) => {
                match request {
                    KyotoRequest::Call(call) => answer_failure(&call.form, &self.banner, &failure, output),
                    KyotoRequest::Rest(rest) => {
                        answer_rest(rest, &self.banner, &RestAnswer::Failed(failure), output);
                    }
                    _ => {}
                }
                let closes = matches!(request, KyotoRequest::Call(call) if !call.form.keeps_alive)
                    || matches!(request, KyotoRequest::Rest(rest) if !rest.form.keeps_alive);
                return if closes { NextAction::Close } else { NextAction::Continue };
            }
        }
        match request {
            KyotoRequest::Call(call) => {
                let next = self.call(session, context, call, output);
                // A request that has to wait is decoded again, and is counted then.
                self.call_context.counters().calls.add(u64::from(!session.keeps_request()));
                next
            }
            KyotoRequest::Rest(rest) => {
                match self.call_context.resource(session, context, rest, &self.banner, output) {
                    Completion::Pending(_) => return NextAction::Wait,
                    Completion::Done => self.call_context.counters().resources.add(1),
                }
                if rest.form.keeps_alive { NextAction::Continue } else { NextAction::Close }
            }
            KyotoRequest::Bulk(piece) => {
                let next = self.call_context.bulk_piece(session, context, piece, output);
                let is_done = piece.remaining == 0 && !session.keeps_request();
                self.call_context.counters().binary.add(u64::from(is_done));
                next
            }
            KyotoRequest::Script(script) => {
                self.call_context.counters().binary.add(1);
                self.script(session, context, script, output)
            }
            KyotoRequest::Replicate(_) if self.call_context.shared.is_proxy() => {
                binary::put_error(output);
                NextAction::Close
            }
            KyotoRequest::Replicate(hello) => {
                session.follows = Some(*hello);
                NextAction::Close
            }
            KyotoRequest::Acknowledged => {
                binary::put_error(output);
                NextAction::Close
            }
            KyotoRequest::Refused(refusal) => {
                self.call_context.counters().refused.add(1);
                answer_refusal(&self.banner, *refusal, output);
                NextAction::Close
            }
        }
    }

    /// Returns true if the records are as new as a request requires. Otherwise lets the connection
    /// wait, or fails.
    fn require(
        &self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        form: &HttpForm,
        target: DatabaseTarget<'_>,
    ) -> Result<bool, CallFailure<'static>> {
        let required = match form.freshness {
            FreshnessHeader::Absent => return Ok(true),
            FreshnessHeader::Invalid => {
                let text = "X-Todana-Freshness: neither milliseconds nor a position";
                return Err(CallFailure::Other { status: AnswerStatus::BadRequest, text });
            }
            FreshnessHeader::Present(_) if self.call_context.shared.is_proxy() => {
                return Err(NOT_THROUGH_PROXY);
            }
            FreshnessHeader::Present(required) => required,
        };
        let asked_at = match session.wait {
            KyotoWait::AskedAt(asked_at) => asked_at,
            KyotoWait::No | KyotoWait::Signalled => Instant::now(),
            // The request is not executed, or was executed before.
            _ => return Ok(true),
        };
        let shared = &self.call_context.shared;
        let checked = freshness::check(shared, self.call_context.database(target)?, required, asked_at);
        let was_signalled = matches!(session.wait, KyotoWait::Signalled);
        let outcome = match checked {
            // The call continues after its signal.
            FreshnessCheck::Fresh if was_signalled => return Ok(true),
            FreshnessCheck::Fresh => Ok(true),
            // A call that was signalled does not wait again.
            FreshnessCheck::TooOld if !was_signalled && freshness::may_wait(shared, asked_at) => Ok(false),
            FreshnessCheck::Never(RefusalReason::OtherLog) => {
                let text = "the position is not in the log of this server or its master";
                Err(CallFailure::Other { status: AnswerStatus::BadRequest, text })
            }
            FreshnessCheck::TooOld | FreshnessCheck::Never(_) => Err(TOO_OLD),
        };
        if !matches!(outcome, Ok(false)) {
            session.wait = KyotoWait::No;
            return outcome;
        }
        let ticket = context.waits.ticket();
        context.waits.enter(ticket, Some(freshness::next_check(asked_at)));
        session.wait = KyotoWait::ForMaster { asked_at, ticket };
        Ok(false)
    }

    /// Starts a script that was called through the binary protocol.
    fn script(
        &mut self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        script: &ScriptCall<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let form = AnswerForm::Binary { is_silent: script.is_silent };
        let outcome = match self.call_context.shared.is_proxy() {
            true => Err(NOT_THROUGH_PROXY),
            false => self.call_context.binary_script(context, script),
        };
        match outcome.and_then(|long_call| self.submit(session, &mut context.waits, long_call, form, true)) {
            Ok(_) => return NextAction::Wait,
            Err(_) if script.is_silent => {}
            Err(_) => binary::put_error(output),
        }
        NextAction::Continue
    }

    /// Submits a call to another thread. The connection waits for the answer.
    fn submit(
        &mut self,
        session: &mut KyotoSession,
        waits: &mut WaitingConnections,
        long_call: long_call::LongCall,
        form: AnswerForm,
        keeps_alive: bool,
    ) -> Result<Completion, CallFailure<'static>> {
        let shared = &self.call_context.shared;
        if shared.lifecycle.stopping() != StopStage::No {
            return Err(JobRefused::Closed.into());
        }
        let (only_reads, is_script) = (long_call.only_reads(), long_call.is_script());
        let jobs = if is_script { &shared.kyoto.script_calls } else { &shared.kyoto.calls };
        let call = BackgroundCall { shared: Arc::clone(shared), long_call, form };
        let handle = waits.enter_new();
        let ticket = handle.ticket;
        let job = jobs.submit(Box::new(call), handle).inspect_err(|_| waits.leave(ticket))?;
        session.wait =
            KyotoWait::Job { call: WaitingCall { job, keeps_alive, only_reads, is_script }, ticket };
        Ok(Completion::Pending(ticket))
    }

    fn call(
        &mut self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        call: &ProcedureCall<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let may_continue = if call.form.keeps_alive { NextAction::Continue } else { NextAction::Close };
        if self.call_context.shared.is_proxy() && call.procedure.is_some_and(|one| !is_for_any_server(one)) {
            answer_failure(&call.form, &self.banner, &NOT_THROUGH_PROXY, output);
            return may_continue;
        }
        if let Some(refusal) = self.call_context.cluster_refusal(call) {
            answer_failure(&call.form, &self.banner, &refusal, output);
            return may_continue;
        }
        let mut done = None;
        let signal = if call.has_signals() { call.signal() } else { None };
        match std::mem::take(&mut session.wait) {
            KyotoWait::Signalled => {}
            // The operations of the call have been executed already, after its signal had arrived.
            _ if session.pending.is_ready() => {}
            KyotoWait::TimedOut => {
                // The procedure is not executed, and its signal is not sent.
                answer_failure(&call.form, &self.banner, &CallFailure::TimedOut, output);
                return may_continue;
            }
            _ => {
                if let Some(wait) = call.wait() {
                    if self.call_context.shared.lifecycle.stopping() != StopStage::No {
                        answer_failure(&call.form, &self.banner, &CallFailure::TimedOut, output);
                        return may_continue;
                    }
                    if wait.name.len() > SIGNAL_LEN_MAX {
                        answer_failure(&call.form, &self.banner, &CallFailure::InvalidParameters, output);
                        return may_continue;
                    }
                    let ticket = context.waits.ticket();
                    let deadline = Instant::now() + Duration::from_secs_f64(wait.seconds.min(WAIT_MAX_S));
                    context.waits.enter(ticket, Some(deadline));
                    self.call_context.shared.kyoto.signals.wait(SignalPurpose::Signal, wait.name, ticket);
                    session.wait = KyotoWait::For { name: wait.name.to_vec(), ticket };
                    return NextAction::Wait;
                }
            }
        }
        let cluster_cursor = self.call_context.cluster_cursor(session, context, call);
        if cluster_cursor.is_some() || long_call::may_take_long(call.procedure) {
            let shared = &self.call_context.shared;
            let long_call = cluster_cursor.unwrap_or_else(|| self.call_context.long_call(context, call));
            done = Some(match long_call {
                Ok(long_call) if long_call.is_brief() => {
                    long_call.perform(shared, &Arc::default(), false, &mut Vec::new())
                }
                Ok(long_call) => {
                    let own = |signal: &SignalSend<'_>| (signal.name.to_vec(), signal.is_broadcast);
                    let signal = signal.as_ref().map(own);
                    let form = AnswerForm::Call { form: call.form, banner: self.banner.clone(), signal };
                    match self.submit(session, &mut context.waits, long_call, form, call.form.keeps_alive) {
                        Ok(_) => return NextAction::Wait,
                        Err(failure) => Err(failure),
                    }
                }
                Err(failure) => Err(failure),
            });
        }
        let KyotoWorker { call_context, banner, pairs, .. } = self;
        let signals = &call_context.shared.kyoto.signals;
        let position_of = position_of(call_context, &call.form, call.target());
        let mut answer = CallAnswer { form: call.form, position_of, banner, signal, signals, output };
        match done {
            Some(done) => long_call::write_answer(done, pairs, &mut answer),
            None => match call_context.procedure(session, context, call, pairs, &mut answer) {
                Completion::Done => {}
                Completion::Pending(_) => return NextAction::Wait,
            },
        }
        may_continue
    }
}

impl Session for KyotoSession {
    type Worker = KyotoWorker;

    fn advance(
        &mut self,
        worker: &mut KyotoWorker,
        turn: &mut SessionTurn<'_>,
        input: &[u8],
    ) -> SessionProgress {
        let output_before = turn.output.len();
        let mut consumed = 0;
        let mut closes = false;
        if let KyotoWait::JobDone(_) = self.wait
            && let KyotoWait::JobDone(call) = std::mem::take(&mut self.wait)
        {
            let (answer, changes) = call.job.take_answer();
            self.changes.extend(changes);
            answer.append_to(turn.output);
            closes = !call.keeps_alive;
        }
        let next = if closes {
            NextAction::Close
        } else {
            worker.banner.set_time(worker.call_context.now());
            // A request with pending replies was complete before, so it may be longer than the
            // memory that is available now.
            worker.limits.unfinished_len_max = if self.pending.is_ready() { usize::MAX } else { turn.room };
            worker.call_context.answer_max = turn.room.min(ANSWER_MAX);
            let mut scratch = std::mem::take(&mut worker.scratch);
            let hosts = std::mem::take(&mut worker.hosts);
            let limits = KyotoLimits { hosts: &hosts, ..worker.limits };
            let next = worker.serve_all(self, turn, &limits, &mut scratch, input, &mut consumed);
            (worker.scratch, worker.hosts) = (scratch, hosts);
            next
        };
        let counters = worker.call_context.counters();
        counters.bytes_read.add(consumed as u64);
        counters.bytes_written.add((turn.output.len() - output_before) as u64);
        SessionProgress { consumed, next }
    }

    fn wake(&mut self, wake: WakeReason, context: &mut WorkerContext) -> bool {
        if self.pending.is_complete_with(wake, &mut context.waits) {
            return true;
        }
        let Some(waiting) = self.ticket() else {
            // The wake-up may belong to a password check that has ended.
            let ticket = self.basic.ticket().filter(|&ticket| wake == WakeReason::Ready(ticket));
            ticket.into_iter().for_each(|ticket| context.waits.leave(ticket));
            return ticket.is_some();
        };
        let has_come = match wake {
            WakeReason::Ready(ticket) if ticket == waiting => true,
            WakeReason::TimedOut(ticket) if ticket != waiting => return false,
            WakeReason::Ready(_) => return false,
            WakeReason::TimedOut(_) | WakeReason::Cancelled => {
                if let KyotoWait::Job { call, .. } = &self.wait
                    && call.is_script
                {
                    // The cancelled script ends soon, and its answer is sent.
                    call.job.cancel();
                    return false;
                }
                // The signal may have arrived just before the deadline.
                let signals = &context.shared.kyoto.signals;
                let is_signalled = |(name, ticket)| !signals.forget(SignalPurpose::Signal, name, ticket);
                self.waits_for().is_some_and(is_signalled)
            }
        };
        context.waits.leave(waiting);
        self.end_wait(has_come);
        true
    }

    fn is_waiting(&self) -> bool {
        self.pending.is_waiting() || self.ticket().is_some() || self.basic.is_waiting()
    }

    fn ends_with_reset(&self) -> bool {
        self.pending.is_waiting()
    }

    fn has_work(&self) -> bool {
        self.pending.is_some() || matches!(self.wait, KyotoWait::JobDone(_) | KyotoWait::AskedAt(_))
    }

    fn ends_with_peer(&self) -> bool {
        match &self.wait {
            KyotoWait::For { .. } => true,
            KyotoWait::Job { call, .. } => call.only_reads,
            _ => false,
        }
    }

    fn take_changes(&mut self) -> DatabaseCommits {
        std::mem::take(&mut self.changes)
    }

    fn cut_short(&self, worker: &mut KyotoWorker, output: &mut ConnectionOutput) {
        if let Some(refusal) = self.dialect.interrupted() {
            worker.banner.set_time(worker.call_context.now());
            worker.call_context.counters().refused.add(1);
            answer_refusal(&worker.banner, refusal, output);
        }
    }

    fn retained(&self) -> RetainedMemory {
        let name_len = self.waits_for().map_or(0, |(name, _)| name.len());
        let job_len = match &self.wait {
            KyotoWait::Job { call, .. } => call.job.len_bytes(),
            _ => 0,
        };
        let own = self.bulk.found.capacity() + self.basic.kept_len() + name_len + self.cursors.len_bytes();
        RetainedMemory { own: own + job_len, of_engine: 0 }
    }

    fn leave(&mut self, context: &mut WorkerContext) {
        self.pending.abandon(context);
        if let Some((name, ticket)) = self.waits_for() {
            context.shared.kyoto.signals.forget(SignalPurpose::Signal, name, ticket);
        }
        for ticket in [self.ticket(), self.basic.ticket()].into_iter().flatten() {
            context.waits.leave(ticket);
        }
    }
}

/// Returns the database whose position in the log the answer shows, if the request asks for it.
fn position_of<'c>(
    context: &'c CallContext,
    form: &HttpForm,
    target: DatabaseTarget<'_>,
) -> Option<(&'c SharedState, usize)> {
    match form.freshness {
        FreshnessHeader::Absent => None,
        _ => context.database(target).ok().map(|index| (&*context.shared, index)),
    }
}
