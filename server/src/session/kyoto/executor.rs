//! Requests to whoever knows them.

use super::answers::Answer;
use super::errands::{Errands, Manner};
use super::scope::{ANSWER_MAX, Next, Scope};
use super::session::{Session, Wait};
use super::work;
use crate::handle::Stopping;
use crate::session::flow::{BATCH, Pause};
use crate::session::login::{Decided, Passage};
use crate::session::tickets::{Purpose, Ticket, Waiting};
use crate::shared::Shared;
use crate::transport::output::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana::{Clock, Lane};
use todana_protocol::kyoto::{
    self, Banner, Bulk, BulkOperation, Call, Failure, Limits, Request, Scratch, Script, Signal, Step,
    answer_failure, answer_refusal, answer_stranger, binary,
};

/// What is kept of waiting: as good as for ever.
const WAIT_MAX_S: f64 = 1e9;
/// The longest name of a signal that somebody may wait for.
const SIGNAL_LEN_MAX: usize = 64 << 10;
/// What a worker executes requests with.
pub(crate) struct Executor {
    pub(super) scope: Scope,
    pub(super) waiting: Waiting,
    /// Where the worker hears of passwords that have been checked.
    decided: Arc<Decided>,
    banner: Banner,
    /// But for the hosts.
    limits: Limits<'static>,
    /// Names by which browsers may ask.
    hosts: Vec<String>,
    scratch: Scratch,
    pairs: kyoto::Output,
}

/// How far the records of a bulk request have been fetched into the cache before it is their turn.
#[derive(Default)]
struct Ahead {
    /// Where the first one stands that has not been ...
    at: usize,
    /// ... and how many have been.
    count: usize,
}

impl Ahead {
    /// Goes on; `next`: where the one stands whose turn comes next, which the one at hand comes before.
    #[inline]
    fn look(&mut self, scope: &Scope, operation: BulkOperation, left: u32, data: &[u8], next: usize) {
        self.count = self.count.saturating_sub(1);
        if self.at <= next {
            (self.at, self.count) = (next, 0);
        }
        while self.count < BATCH.min(left as usize) {
            let rest = data.get(self.at..).unwrap_or_default();
            let Some((database, key, len)) = binary::peek_record(operation, rest) else { break };
            if let Some(reach) = scope.reaches().get(usize::from(database)) {
                reach.served().database.engine().prefetch(key);
            }
            (self.at, self.count) = (self.at + len, self.count + 1);
        }
    }
}

impl Executor {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        worker: usize,
        lanes: &[Arc<Lane>],
        decided: &Arc<Decided>,
    ) -> Executor {
        Executor {
            scope: Scope::new(shared, worker, lanes),
            waiting: Waiting::default(),
            decided: Arc::clone(decided),
            banner: Banner::new(super::VERSION, shared.clock.now().0),
            limits: Limits {
                pages_allowed: shared.options.protocols.kyoto.pages_allowed,
                login_wanted: shared.logins.are_wanted(),
                ..Limits::default()
            },
            hosts: shared.options.protocols.http_hosts.clone(),
            scratch: Scratch::default(),
            pairs: kyoto::Output::default(),
        }
    }

    /// When the first of those who wait has waited long enough.
    pub(crate) fn first_end(&self) -> Option<Instant> {
        self.waiting.first_end()
    }

    /// Connections that have been signalled, with their tickets.
    pub(crate) fn signalled(&mut self) -> Vec<(Ticket, usize)> {
        self.waiting.signalled(&self.scope.shared.kyoto.signals, self.scope.worker)
    }

    /// Connections that have waited long enough; all of them where the server stops.
    pub(crate) fn over(&mut self, is_stopping: bool) -> Vec<(Ticket, usize)> {
        if is_stopping { self.waiting.all() } else { self.waiting.over(Instant::now()) }
    }

    /// No more comes of a request that has begun: it is answered before the connection is closed.
    pub(crate) fn cut_short(&mut self, session: &Session, output: &mut Output) {
        if let Some(refusal) = session.dialect.interrupted() {
            self.banner.set_time(self.scope.now());
            self.scope.counters().refused.add(1);
            answer_refusal(&self.banner, refusal, output);
        }
    }

    /// A connection goes on waiting, although the server stops: what it waits for comes soon.
    pub(crate) fn keep_waiting(&mut self, ticket: Ticket, connection: usize) {
        self.waiting.enter(ticket, connection, None);
    }

    /// Whether what waits has not been signalled in the last moment.
    pub(crate) fn gives_up(&self, session: &Session, ticket: Ticket) -> bool {
        session
            .waits_for()
            .is_none_or(|(name, _)| self.scope.shared.kyoto.signals.forget(Purpose::Signal, name, ticket))
    }

    /// A connection goes.
    pub(crate) fn leave(&mut self, session: &Session) {
        if let Some((name, ticket)) = session.waits_for() {
            self.scope.shared.kyoto.signals.forget(Purpose::Signal, name, ticket);
        }
        if let Some(ticket) = session.ticket() {
            self.waiting.leave(ticket);
        }
    }

    /// Serves what has come of a connection's requests: returns how much is done with, how much more is needed at least, and why it
    /// stopped. `room`: how much of a request that is not whole may be kept; `output_max`: what may wait for a reader.
    #[allow(
        clippy::too_many_arguments,
        reason = "the fields of a connection and of its worker, borrowed apart"
    )]
    pub(crate) fn serve(
        &mut self,
        session: &mut Session,
        connection: usize,
        data: &[u8],
        room: usize,
        output_max: usize,
        budget: &mut u32,
        output: &mut Output,
    ) -> (usize, usize, Pause) {
        self.banner.set_time(self.scope.now());
        self.limits.unfinished_len_max = room;
        self.scope.answer_max = room.min(ANSWER_MAX);
        let mut scratch = std::mem::take(&mut self.scratch);
        let hosts = std::mem::take(&mut self.hosts);
        let limits = Limits { hosts: &hosts, ..self.limits };
        let (mut at, output_before) = (0, output.len());
        let mut ahead = Ahead::default();
        let (wanted, pause) = loop {
            if *budget == 0 {
                break (0, if at == data.len() { Pause::NeedsInput } else { Pause::Yields });
            }
            if output.len() > output_max {
                break (0, Pause::Blocked);
            }
            let before = session.dialect;
            match session.dialect.decode(&limits, &data[at..], &mut scratch) {
                Step::Request { consumed, request } => {
                    if let Request::Bulk(Bulk { operation, remaining: remaining @ 1.., .. }) = request {
                        ahead.look(&self.scope, operation, remaining, data, at + consumed);
                    }
                    match self.execute(session, connection, &request, output) {
                        Next::Go => {}
                        Next::Waits => {
                            session.dialect = before;
                            break (0, Pause::Waits);
                        }
                        Next::Closes => {
                            at += consumed;
                            break (0, Pause::Closes);
                        }
                    }
                    at += consumed;
                    // The records of a bulk request share its turn, as far as the reader takes what it brings.
                    if !matches!(request, Request::Bulk(piece) if piece.remaining > 0) {
                        *budget -= 1;
                        continue;
                    }
                    match self.records(session, data, &mut at, &mut ahead, output) {
                        (Next::Go, is_done) => *budget -= u32::from(is_done),
                        _ => break (0, Pause::Closes),
                    }
                }
                Step::Login { consumed, authorization } => {
                    at += consumed;
                    match self.login(session, connection, authorization) {
                        Passage::Known | Passage::Admitted => session.dialect.admit(),
                        Passage::Wait => break (0, Pause::Waits),
                        Passage::Refused | Passage::Nameless => {
                            *budget -= 1;
                            self.scope.counters().refused.add(1);
                            let form = session.dialect.turn_away(&self.limits);
                            answer_stranger(&form, &self.banner, output);
                            if !form.keeps_alive {
                                break (0, Pause::Closes);
                            }
                        }
                    }
                }
                Step::NeedMore { consumed, at_least } => {
                    at += consumed;
                    break (at_least, Pause::NeedsInput);
                }
                Step::Close => break (0, Pause::Closes),
            }
        };
        (self.scratch, self.hosts) = (scratch, hosts);
        let counters = self.scope.counters();
        counters.bytes_read.add(at as u64);
        counters.bytes_written.add((output.len() - output_before) as u64);
        (at, wanted, pause)
    }

    /// Goes through what has come of the records of a bulk request; tells too whether that were all of them.
    fn records(
        &self,
        session: &mut Session,
        data: &[u8],
        at: &mut usize,
        ahead: &mut Ahead,
        output: &mut Output,
    ) -> (Next, bool) {
        while let Some((consumed, piece)) = session.dialect.decode_record(&self.limits, &data[*at..]) {
            *at += consumed;
            let is_last = piece.remaining == 0;
            if is_last {
                self.scope.counters().binary.add(1);
            } else {
                ahead.look(&self.scope, piece.operation, piece.remaining, data, *at);
            }
            let next = self.scope.bulk_piece(&mut session.bulk, &piece, output);
            if is_last || next != Next::Go {
                return (next, is_last);
            }
        }
        (Next::Go, false)
    }

    /// Finds out who has sent a request, whose head has come.
    fn login(&self, session: &mut Session, connection: usize, authorization: Option<&[u8]>) -> Passage {
        let shared = &self.scope.shared;
        let passage = shared.logins.pass(authorization, &mut session.basic, connection, &self.decided);
        let counters = &shared.observation.workers[self.scope.worker];
        counters.logins.add(u64::from(matches!(passage, Passage::Admitted | Passage::Refused)));
        counters.logins_refused.add(u64::from(passage == Passage::Refused));
        passage
    }

    fn execute(
        &mut self,
        session: &mut Session,
        connection: usize,
        request: &Request<'_>,
        output: &mut Output,
    ) -> Next {
        match request {
            Request::Call(call) => {
                let next = self.call(session, connection, call, output);
                // It is looked at again.
                self.scope.counters().calls.add(u64::from(next != Next::Waits));
                next
            }
            Request::Rest(rest) => {
                self.scope.counters().resources.add(1);
                self.scope.resource(rest, &self.banner, output);
                if rest.form.keeps_alive { Next::Go } else { Next::Closes }
            }
            Request::Bulk(piece) => {
                self.scope.counters().binary.add(u64::from(piece.remaining == 0));
                self.scope.bulk_piece(&mut session.bulk, piece, output)
            }
            Request::Script(script) => {
                let next = self.script(session, connection, script, output);
                self.scope.counters().binary.add(u64::from(next != Next::Waits));
                next
            }
            Request::Replicate(hello) => {
                session.follows = Some(*hello);
                Next::Closes
            }
            Request::Acknowledged => {
                binary::put_error(output);
                Next::Closes
            }
            Request::Refused(refusal) => {
                self.scope.counters().refused.add(1);
                answer_refusal(&self.banner, *refusal, output);
                Next::Closes
            }
        }
    }

    /// A script of the binary protocol.
    fn script(
        &mut self,
        session: &mut Session,
        connection: usize,
        script: &Script<'_>,
        output: &mut Output,
    ) -> Next {
        let waited = std::mem::take(&mut session.wait);
        let outcome = match waited {
            Wait::Done(errand) => errand.answer().map(|(answer, changes)| {
                session.changes.extend(changes);
                answer.give_to(output);
                Next::Go
            }),
            _ => self.scope.binary_script(script).and_then(|work| {
                let manner = Manner::Binary { is_silent: script.is_silent };
                self.submit(session, connection, work, manner)
            }),
        };
        outcome.unwrap_or_else(|_| {
            if !script.is_silent {
                binary::put_error(output);
            }
            Next::Go
        })
    }

    /// Has something done on another thread, while the connection waits.
    fn submit(
        &mut self,
        session: &mut Session,
        connection: usize,
        work: work::Work,
        manner: Manner,
    ) -> Result<Next, Failure<'static>> {
        let Scope { shared, worker, .. } = &self.scope;
        let ticket = shared.kyoto.signals.ticket();
        let errand = Errands::submit(shared, work, manner, *worker, ticket)?;
        self.waiting.enter(ticket, connection, None);
        session.wait = Wait::Errand { errand, ticket };
        Ok(Next::Waits)
    }

    fn call(
        &mut self,
        session: &mut Session,
        connection: usize,
        call: &Call<'_>,
        output: &mut Output,
    ) -> Next {
        let goes_on = if call.form.keeps_alive { Next::Go } else { Next::Closes };
        let waited = std::mem::take(&mut session.wait);
        let mut signal = None;
        let mut done = None;
        if call.has_signals() {
            signal = call.signal();
        }
        match waited {
            Wait::Done(errand) => match errand.answer() {
                Ok((answer, changes)) => {
                    session.changes.extend(changes);
                    answer.give_to(output);
                    return goes_on;
                }
                Err(failure) => done = Some(Err(failure)),
            },
            Wait::Signalled => {}
            Wait::TimedOut => {
                // Neither the procedure nor its signal happens.
                answer_failure(&call.form, &self.banner, &Failure::TimedOut, output);
                return goes_on;
            }
            Wait::No | Wait::For { .. } | Wait::Errand { .. } => {
                if let Some(wait) = call.wait() {
                    if self.scope.shared.lifecycle.stopping() != Stopping::No {
                        answer_failure(&call.form, &self.banner, &Failure::TimedOut, output);
                        return goes_on;
                    }
                    if wait.name.len() > SIGNAL_LEN_MAX {
                        answer_failure(&call.form, &self.banner, &Failure::InvalidParameters, output);
                        return goes_on;
                    }
                    let Scope { shared, worker, .. } = &self.scope;
                    let ticket = shared.kyoto.signals.wait(Purpose::Signal, wait.name, *worker);
                    let until = Instant::now() + Duration::from_secs_f64(wait.seconds.min(WAIT_MAX_S));
                    self.waiting.enter(ticket, connection, Some(until));
                    session.wait = Wait::For { name: wait.name.to_vec(), ticket };
                    return Next::Waits;
                }
            }
        }
        if done.is_none() && work::may_take_long(call.procedure) {
            let shared = &self.scope.shared;
            match self.scope.work(call) {
                Ok(work) if work.is_brief(shared) => {
                    done = Some(work.perform(shared, &Arc::default(), false, &mut Vec::new()));
                }
                Ok(work) => {
                    let own = |signal: &Signal<'_>| (signal.name.to_vec(), signal.is_broadcast);
                    let signal = signal.as_ref().map(own);
                    let manner = Manner::Call { form: call.form, banner: self.banner.clone(), signal };
                    match self.submit(session, connection, work, manner) {
                        Ok(next) => return next,
                        Err(failure) => done = Some(Err(failure)),
                    }
                }
                Err(failure) => done = Some(Err(failure)),
            }
        }
        let Executor { scope, banner, pairs, .. } = self;
        let signals = &scope.shared.kyoto.signals;
        let mut answer = Answer { form: call.form, banner, signal, signals, output };
        match done {
            Some(done) => work::tell(done, pairs, &mut answer),
            None => scope.procedure(session, call, pairs, &mut answer),
        }
        goes_on
    }
}
