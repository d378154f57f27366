//! Decoding of the requests of a connection, each of which goes to its procedure.

use super::answers::CallAnswer;
use super::background_call::{AnswerForm, BackgroundCall};
use super::scope::{ANSWER_MAX, CallContext};
use super::session::{KyotoSession, KyotoWait, WaitingCall};
use super::signals::SignalPurpose;
use super::work;
use crate::databases::pending_commits::Changes;
use crate::execution::{AnyExecutor, Completion, Executor};
use crate::handle::Stopping;
use crate::session::background::JobRefused;
use crate::session::context::WorkerContext;
use crate::session::login::LoginVerdict;
use crate::session::wake::{WaitingConnections, Wake};
use crate::session::{BATCH, Next, RetainedMemory, Session, SessionTurn, Step};
use crate::transport::output::{OUTPUT_MAX, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana::Clock;
use todana_protocol::kyoto::{
    self, AnswerBanner, BulkOperation, BulkPiece, CallFailure, KyotoLimits, KyotoRequest,
    KyotoStep as Decoded, MapScratch, ProcedureCall, ScriptCall, SignalSend, answer_failure, answer_refusal,
    answer_stranger, binary,
};

/// The longest wait, which is practically unlimited.
const WAIT_MAX_S: f64 = 1e9;
/// The longest name of a signal to wait for.
const SIGNAL_LEN_MAX: usize = 64 << 10;

/// The state of a worker for the sessions of Kyoto's protocols.
pub(crate) struct KyotoWorker {
    pub(super) scope: CallContext,
    banner: AnswerBanner,
    /// The limits of requests, without the host names.
    limits: KyotoLimits<'static>,
    /// The host names that browsers may use.
    hosts: Vec<String>,
    scratch: MapScratch,
    pairs: kyoto::AnswerPairs,
}

/// The records of a bulk request that have been prefetched into the cache.
#[derive(Default)]
struct RecordPrefetch {
    /// The position of the first record that is not prefetched ...
    at: usize,
    /// ... and the number of prefetched records.
    count: usize,
}

impl RecordPrefetch {
    /// Prefetches further records; `next` is the position of the record after the current one.
    #[inline]
    fn look(
        &mut self,
        executor: &AnyExecutor,
        operation: BulkOperation,
        left: u32,
        data: &[u8],
        next: usize,
    ) {
        self.count = self.count.saturating_sub(1);
        if self.at <= next {
            (self.at, self.count) = (next, 0);
        }
        while self.count < BATCH.min(left as usize) {
            let rest = data.get(self.at..).unwrap_or_default();
            let Some((database, key, len)) = binary::peek_record(operation, rest) else { break };
            executor.prefetch(usize::from(database), key);
            (self.at, self.count) = (self.at + len, self.count + 1);
        }
    }
}

impl KyotoWorker {
    pub(crate) fn new(context: &WorkerContext) -> KyotoWorker {
        let shared = &context.shared;
        KyotoWorker {
            scope: CallContext::new(context),
            banner: AnswerBanner::new(super::VERSION, shared.clock.now().0),
            limits: KyotoLimits {
                pages_allowed: shared.options.protocols.kyoto.pages_allowed,
                login_wanted: shared.logins.are_wanted(),
                ..KyotoLimits::default()
            },
            hosts: shared.options.protocols.http_hosts.clone(),
            scratch: MapScratch::default(),
            pairs: kyoto::AnswerPairs::default(),
        }
    }

    /// Serves requests while there are any, within the connection's share.
    fn serve_all(
        &mut self,
        session: &mut KyotoSession,
        turn: &mut SessionTurn<'_>,
        limits: &KyotoLimits<'_>,
        scratch: &mut MapScratch,
        data: &[u8],
        at: &mut usize,
    ) -> Next {
        let mut ahead = RecordPrefetch::default();
        loop {
            if *turn.budget == 0 {
                return if *at == data.len() { Next::READ } else { Next::Yield };
            }
            if turn.output.len() > OUTPUT_MAX {
                return Next::Flush;
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
                        // Decoded again once its signal or its replies have come.
                        session.dialect = before;
                        return next;
                    }
                    session.pending.abandon(turn.context);
                    *at += consumed;
                    if !matches!(next, Next::Continue) {
                        return next;
                    }
                    // The records of a bulk request share its turn, as far as the peer takes the
                    // output.
                    if !matches!(request, KyotoRequest::Bulk(piece) if piece.remaining > 0) {
                        *turn.budget -= 1;
                        continue;
                    }
                    match self.records(session, turn, data, at, &mut ahead) {
                        (Next::Continue, is_done) => *turn.budget -= u32::from(is_done),
                        (next, _) => return next,
                    }
                }
                Decoded::Login { consumed, authorization } => {
                    *at += consumed;
                    match self.login(session, &mut turn.context.waits, authorization) {
                        LoginVerdict::Known | LoginVerdict::Admitted => session.dialect.admit(),
                        LoginVerdict::Pending(_) => return Next::Wait,
                        LoginVerdict::Refused | LoginVerdict::Nameless => {
                            *turn.budget -= 1;
                            self.scope.counters().refused.add(1);
                            let form = session.dialect.turn_away(&self.limits);
                            answer_stranger(&form, &self.banner, turn.output);
                            if !form.keeps_alive {
                                return Next::Close;
                            }
                        }
                    }
                }
                Decoded::NeedMore { consumed, at_least } => {
                    *at += consumed;
                    return Next::Read { at_least };
                }
                Decoded::Close => return Next::Close,
            }
        }
    }

    /// Applies the records of a bulk request that have arrived. Also returns true after the last
    /// one.
    fn records(
        &self,
        session: &mut KyotoSession,
        turn: &mut SessionTurn<'_>,
        data: &[u8],
        at: &mut usize,
        ahead: &mut RecordPrefetch,
    ) -> (Next, bool) {
        loop {
            let before = session.dialect;
            let Some((consumed, piece)) = session.dialect.decode_record(&self.limits, &data[*at..]) else {
                return (Next::Continue, false);
            };
            let is_last = piece.remaining == 0;
            if !is_last {
                let executor = &turn.context.executor;
                ahead.look(executor, piece.operation, piece.remaining, data, *at + consumed);
            }
            let next = self.scope.bulk_piece(session, turn.context, &piece, turn.output);
            if session.keeps_request() {
                session.dialect = before;
                return (next, false);
            }
            *at += consumed;
            self.scope.counters().binary.add(u64::from(is_last));
            if is_last || !matches!(next, Next::Continue) {
                return (next, is_last);
            }
        }
    }

    /// Checks the login of a request, whose head has arrived.
    fn login(
        &self,
        session: &mut KyotoSession,
        waits: &mut WaitingConnections,
        authorization: Option<&[u8]>,
    ) -> LoginVerdict {
        let shared = &self.scope.shared;
        let passage = shared.logins.pass(authorization, &mut session.basic, waits);
        let counters = &shared.observation.workers[self.scope.worker];
        counters.logins.add(u64::from(matches!(passage, LoginVerdict::Admitted | LoginVerdict::Refused)));
        counters.logins_refused.add(u64::from(passage == LoginVerdict::Refused));
        passage
    }

    fn execute(
        &mut self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        request: &KyotoRequest<'_>,
        output: &mut Output,
    ) -> Next {
        match request {
            KyotoRequest::Call(call) => {
                let next = self.call(session, context, call, output);
                // A waiting request is decoded again, and counted then.
                self.scope.counters().calls.add(u64::from(!session.keeps_request()));
                next
            }
            KyotoRequest::Rest(rest) => {
                match self.scope.resource(session, context, rest, &self.banner, output) {
                    Completion::Pending(_) => return Next::Wait,
                    Completion::Done => self.scope.counters().resources.add(1),
                }
                if rest.form.keeps_alive { Next::Continue } else { Next::Close }
            }
            KyotoRequest::Bulk(piece) => {
                let next = self.scope.bulk_piece(session, context, piece, output);
                let is_done = piece.remaining == 0 && !session.keeps_request();
                self.scope.counters().binary.add(u64::from(is_done));
                next
            }
            KyotoRequest::Script(script) => {
                self.scope.counters().binary.add(1);
                self.script(session, context, script, output)
            }
            KyotoRequest::Replicate(hello) => {
                session.follows = Some(*hello);
                Next::Close
            }
            KyotoRequest::Acknowledged => {
                binary::put_error(output);
                Next::Close
            }
            KyotoRequest::Refused(refusal) => {
                self.scope.counters().refused.add(1);
                answer_refusal(&self.banner, *refusal, output);
                Next::Close
            }
        }
    }

    /// Starts a script of the binary protocol.
    fn script(
        &mut self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        script: &ScriptCall<'_>,
        output: &mut Output,
    ) -> Next {
        let form = AnswerForm::Binary { is_silent: script.is_silent };
        let outcome = self.scope.binary_script(context, script);
        match outcome.and_then(|work| self.submit(session, &mut context.waits, work, form, true)) {
            Ok(_) => return Next::Wait,
            Err(_) if script.is_silent => {}
            Err(_) => binary::put_error(output),
        }
        Next::Continue
    }

    /// Submits a call to another thread; the connection waits.
    fn submit(
        &mut self,
        session: &mut KyotoSession,
        waits: &mut WaitingConnections,
        work: work::LongCall,
        form: AnswerForm,
        keeps_alive: bool,
    ) -> Result<Completion, CallFailure<'static>> {
        let shared = &self.scope.shared;
        if shared.lifecycle.stopping() != Stopping::No {
            return Err(JobRefused::Closed.into());
        }
        let (only_looks, is_script) = (work.only_looks(), work.is_script());
        let jobs = if is_script { &shared.kyoto.script_calls } else { &shared.kyoto.calls };
        let call = BackgroundCall { shared: Arc::clone(shared), work, form };
        let handle = waits.enter_new();
        let ticket = handle.ticket;
        let job = jobs.submit(Box::new(call), handle).inspect_err(|_| waits.leave(ticket))?;
        session.wait =
            KyotoWait::Job { call: WaitingCall { job, keeps_alive, only_looks, is_script }, ticket };
        Ok(Completion::Pending(ticket))
    }

    fn call(
        &mut self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        call: &ProcedureCall<'_>,
        output: &mut Output,
    ) -> Next {
        let goes_on = if call.form.keeps_alive { Next::Continue } else { Next::Close };
        let mut done = None;
        let signal = if call.has_signals() { call.signal() } else { None };
        match std::mem::take(&mut session.wait) {
            KyotoWait::Signalled => {}
            // The call was executed before; its signal had come by then.
            _ if session.pending.is_ready() => {}
            KyotoWait::TimedOut => {
                // Neither the procedure nor its signal is executed.
                answer_failure(&call.form, &self.banner, &CallFailure::TimedOut, output);
                return goes_on;
            }
            _ => {
                if let Some(wait) = call.wait() {
                    if self.scope.shared.lifecycle.stopping() != Stopping::No {
                        answer_failure(&call.form, &self.banner, &CallFailure::TimedOut, output);
                        return goes_on;
                    }
                    if wait.name.len() > SIGNAL_LEN_MAX {
                        answer_failure(&call.form, &self.banner, &CallFailure::InvalidParameters, output);
                        return goes_on;
                    }
                    let ticket = context.waits.ticket();
                    let deadline = Instant::now() + Duration::from_secs_f64(wait.seconds.min(WAIT_MAX_S));
                    context.waits.enter(ticket, Some(deadline));
                    self.scope.shared.kyoto.signals.wait(SignalPurpose::Signal, wait.name, ticket);
                    session.wait = KyotoWait::For { name: wait.name.to_vec(), ticket };
                    return Next::Wait;
                }
            }
        }
        if work::may_take_long(call.procedure) {
            let shared = &self.scope.shared;
            done = Some(match self.scope.work(context, call) {
                Ok(work) if work.is_brief() => work.perform(shared, &Arc::default(), false, &mut Vec::new()),
                Ok(work) => {
                    let own = |signal: &SignalSend<'_>| (signal.name.to_vec(), signal.is_broadcast);
                    let signal = signal.as_ref().map(own);
                    let form = AnswerForm::Call { form: call.form, banner: self.banner.clone(), signal };
                    match self.submit(session, &mut context.waits, work, form, call.form.keeps_alive) {
                        Ok(_) => return Next::Wait,
                        Err(failure) => Err(failure),
                    }
                }
                Err(failure) => Err(failure),
            });
        }
        let KyotoWorker { scope, banner, pairs, .. } = self;
        let signals = &scope.shared.kyoto.signals;
        let mut answer = CallAnswer { form: call.form, banner, signal, signals, output };
        match done {
            Some(done) => work::write_answer(done, pairs, &mut answer),
            None => match scope.procedure(session, context, call, pairs, &mut answer) {
                Completion::Done => {}
                Completion::Pending(_) => return Next::Wait,
            },
        }
        goes_on
    }
}

impl Session for KyotoSession {
    type Worker = KyotoWorker;

    fn advance(&mut self, worker: &mut KyotoWorker, turn: &mut SessionTurn<'_>, input: &[u8]) -> Step {
        let output_before = turn.output.len();
        let mut consumed = 0;
        let mut closes = false;
        if let KyotoWait::JobDone(_) = self.wait
            && let KyotoWait::JobDone(call) = std::mem::take(&mut self.wait)
        {
            let (answer, changes) = call.job.take_answer();
            self.changes.extend(changes);
            answer.give_to(turn.output);
            closes = !call.keeps_alive;
        }
        let next = if closes {
            Next::Close
        } else {
            worker.banner.set_time(worker.scope.now());
            // A request with pending replies was complete before, whatever the room is now.
            worker.limits.unfinished_len_max = if self.pending.is_ready() { usize::MAX } else { turn.room };
            worker.scope.answer_max = turn.room.min(ANSWER_MAX);
            let mut scratch = std::mem::take(&mut worker.scratch);
            let hosts = std::mem::take(&mut worker.hosts);
            let limits = KyotoLimits { hosts: &hosts, ..worker.limits };
            let next = worker.serve_all(self, turn, &limits, &mut scratch, input, &mut consumed);
            (worker.scratch, worker.hosts) = (scratch, hosts);
            next
        };
        let counters = worker.scope.counters();
        counters.bytes_read.add(consumed as u64);
        counters.bytes_written.add((turn.output.len() - output_before) as u64);
        Step { consumed, next }
    }

    fn wake(&mut self, wake: Wake, context: &mut WorkerContext) -> bool {
        if self.pending.is_complete_with(wake, &mut context.waits) {
            return true;
        }
        let Some(waiting) = self.ticket() else {
            // The wake-up may be that of a checked password.
            let ticket = self.basic.ticket().filter(|&ticket| wake == Wake::Ready(ticket));
            ticket.into_iter().for_each(|ticket| context.waits.leave(ticket));
            return ticket.is_some();
        };
        let has_come = match wake {
            Wake::Ready(ticket) if ticket == waiting => true,
            Wake::TimedOut(ticket) if ticket != waiting => return false,
            Wake::Ready(_) => return false,
            Wake::TimedOut(_) | Wake::Cancelled => {
                if let KyotoWait::Job { call, .. } = &self.wait
                    && call.is_script
                {
                    // The script ends soon, and its answer is sent.
                    call.job.call_off();
                    return false;
                }
                // The signal may have come at the last moment.
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
        self.pending.is_some() || matches!(self.wait, KyotoWait::JobDone(_))
    }

    fn ends_with_peer(&self) -> bool {
        match &self.wait {
            KyotoWait::For { .. } => true,
            KyotoWait::Job { call, .. } => call.only_looks,
            _ => false,
        }
    }

    fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    fn cut_short(&self, worker: &mut KyotoWorker, output: &mut Output) {
        if let Some(refusal) = self.dialect.interrupted() {
            worker.banner.set_time(worker.scope.now());
            worker.scope.counters().refused.add(1);
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
