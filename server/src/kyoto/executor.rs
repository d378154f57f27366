//! Requests to whoever knows them.

use super::answer_memory::Collected;
use super::counters::Counters;
use super::errands::{Errands, Manner};
use super::procedures::NO_PERMISSION;
use super::reach::Reach;
use super::session::{Session, Wait};
use super::signals::{Purpose, Signals, Ticket, Waiting};
use super::work;
use crate::flow::{BATCH, Pause};
use crate::handle::Stopping;
use crate::login::{Decided, Passage};
use crate::output::Output;
use crate::shared::Shared;
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana::kyoto::Kyoto;
use todana::{Clock, Lane};
use todana_core::{Error, ErrorKind};
use todana_protocol::kyoto::{
    self, Banner, Bulk, BulkOperation, Call, Failure, Form, Limits, Request, Scratch, Script, Signal, Status,
    Step, Target, Trouble, answer, answer_failure, answer_refusal, answer_stranger, binary,
};

/// What is kept of waiting: as good as for ever.
const WAIT_MAX_S: f64 = 1e9;
/// The longest name of a signal that somebody may wait for.
const SIGNAL_LEN_MAX: usize = 64 << 10;
/// What an answer may hold, in bytes, as a request of the original's.
const ANSWER_MAX: usize = 1 << 28;

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

/// What the requests of a worker get at.
pub(super) struct Scope {
    pub(super) shared: Arc<Shared>,
    pub(super) worker: usize,
    /// What the answer to the request at hand may hold, in bytes.
    pub(super) answer_max: usize,
    reaches: Vec<Reach>,
}

/// How it goes on after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Go,
    /// The request is looked at again when a signal has come, or has not.
    Waits,
    Closes,
}

/// Whom an answer goes to, and what is to be done with it.
pub(super) struct Answer<'a> {
    pub(super) form: Form,
    pub(super) banner: &'a Banner,
    pub(super) signal: Option<Signal<'a>>,
    pub(super) signals: &'a Signals,
    pub(super) output: &'a mut Output,
}

impl Answer<'_> {
    /// It is done: these are its few pairs, in the order of their names.
    pub(super) fn done(&mut self, pairs: &[(&str, &[u8])]) {
        match self.signal.take() {
            None => answer(&self.form, self.banner, Status::Ok, pairs, self.output),
            Some(signal) => {
                let mut map = kyoto::Output::default();
                pairs.iter().for_each(|(name, value)| map.push(name.as_bytes(), value));
                self.finish(Some(signal), Status::Ok, &mut map);
            }
        }
    }

    /// It is done: these are its pairs.
    pub(super) fn done_with(&mut self, pairs: &mut kyoto::Output) {
        let signal = self.signal.take();
        self.finish(signal, Status::Ok, pairs);
    }

    /// It is done: these are its pairs, which may be many.
    pub(super) fn done_with_many(&mut self, mut collected: Collected) {
        let waiting = self
            .signal
            .take()
            .map(|Signal { name, is_broadcast }| self.signals.signal(Purpose::Signal, name, is_broadcast));
        let signalled = waiting.map_or(Ok(()), |count| {
            collected.push(b"", b"SIGNALED", itoa::Buffer::new().format(count).as_bytes(), None)
        });
        match signalled {
            Ok(()) => collected.write(&self.form, self.banner, Status::Ok, self.output),
            Err(lack) => self.failed(lack.into()),
        }
    }

    /// It has failed.
    pub(super) fn failed(&mut self, failure: Failure<'_>) {
        match self.signal.take() {
            None => answer_failure(&self.form, self.banner, &failure, self.output),
            Some(signal) => {
                let mut map = kyoto::Output::default();
                map.push(b"ERROR", &failure.text());
                self.finish(Some(signal), failure.status(), &mut map);
            }
        }
    }

    fn finish(&mut self, signal: Option<Signal<'_>>, status: Status, pairs: &mut kyoto::Output) {
        if let Some(Signal { name, is_broadcast }) = signal {
            pairs.push_number(b"SIGNALED", self.signals.signal(Purpose::Signal, name, is_broadcast));
        }
        pairs.write(&self.form, self.banner, status, self.output);
    }
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
            if let Some(reach) = scope.reaches.get(usize::from(database)) {
                reach.served().database.engine().prefetch(key);
            }
            (self.at, self.count) = (self.at + len, self.count + 1);
        }
    }
}

/// What clients are told of an error. Where something lies on the server is not their business.
pub(super) fn failure(error: Error) -> Failure<'static> {
    if error.is_read_only() {
        return NO_PERMISSION;
    }
    let (trouble, detail) = match error.kind() {
        ErrorKind::Invalid => (Trouble::InvalidOperation, "the engine does not take this"),
        ErrorKind::Full => (Trouble::SystemError, "there is no room for the record"),
        ErrorKind::Busy => (Trouble::SystemError, "the database is busy"),
        ErrorKind::Corrupt => (Trouble::BrokenFile, "the record is damaged"),
        ErrorKind::Unavailable => (Trouble::SystemError, "the files cannot be read or written"),
        ErrorKind::Closed => (Trouble::InvalidOperation, "not opened"),
    };
    Failure::Detailed { status: Status::InternalError, trouble, detail }
}

impl Executor {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        worker: usize,
        lanes: &[Arc<Lane>],
        decided: &Arc<Decided>,
    ) -> Executor {
        let reach = |(number, lane)| Reach::new(shared, number, Arc::clone(lane));
        let reaches = lanes.iter().enumerate().map(reach).collect();
        Executor {
            scope: Scope { shared: Arc::clone(shared), worker, answer_max: ANSWER_MAX, reaches },
            waiting: Waiting::default(),
            decided: Arc::clone(decided),
            banner: Banner::new(super::VERSION, shared.clock.now().0),
            limits: Limits {
                pages_allowed: shared.options.kyoto_pages_allowed,
                login_wanted: shared.logins.are_wanted(),
                ..Limits::default()
            },
            hosts: shared.options.http_hosts.clone(),
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

impl Scope {
    #[inline]
    pub(super) fn counters(&self) -> &Counters {
        &self.shared.observation.workers[self.worker].kyoto
    }

    /// Clients may change nothing.
    #[inline]
    pub(super) fn is_read_only(&self) -> bool {
        self.shared.options.read_only
    }

    pub(super) fn now(&self) -> u64 {
        self.shared.clock.now().0
    }

    /// All databases, by number.
    pub(super) fn reaches(&self) -> &[Reach] {
        &self.reaches
    }

    /// The database that a request is for.
    #[inline]
    pub(super) fn reach(&self, target: Target<'_>) -> Result<&Reach, Failure<'static>> {
        let number = match target {
            Target::Index(number) => usize::try_from(number).ok(),
            Target::Name(name) => self.number_of(name),
        };
        number.and_then(|number| self.reaches.get(number)).ok_or(Failure::NoSuchDatabase)
    }

    /// The database of a name: of equal ones the last.
    fn number_of(&self, name: &[u8]) -> Option<usize> {
        let is_it = |reach: &Reach| {
            let served = &reach.served().name;
            let base = served.path.as_deref().and_then(|path| path.file_name());
            served.label().as_bytes() == name || base.is_some_and(|base| base.as_encoded_bytes() == name)
        };
        self.reaches.iter().rposition(is_it)
    }
}

/// The records of a database as Kyoto's clients mean them.
#[inline]
pub(super) fn records(reach: &Reach) -> Kyoto<&Reach> {
    Kyoto::new(reach, reach.served().name.tuning.persistent)
}
