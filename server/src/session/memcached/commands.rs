//! Executes memcached's commands. Operations go to the executor; commands about the server are
//! executed here.

use super::crawler::DISABLED;
use super::export::ExportSession;
use super::listing::{ListingKind, ListingProgress};
use super::session::{LockWait, MemcachedSession, PendingLogin};
use super::watcher::WatcherSession;
use crate::databases::exports::NO_DATABASE;
use crate::execution::{Completion, Executor};
use crate::handle::StopStage;
use crate::observation::logging::set_verbosity;
use crate::observation::observers::PreviousRecord;
use crate::observation::spans::open_spans::TracedRequest;
use crate::observation::statistics;
use crate::replica::freshness::{self, FreshnessCheck};
use crate::session::login::LoginOutcome;
use crate::session::tyrant::text;
use crate::session::worker_context::WorkerContext;
use crate::session::{AnySession, NextAction};
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use todana::{Database, TransactionHolder};
use todana_core::{Get, Operation, RefusalReason, Reply};
use todana_protocol::freshness::RequiredFreshness;
use todana_protocol::memcached::{
    ClockShift, ExportKind, ExportRequest, LoginCredentials, MemcachedCommand, RecordListing, WatchStreams,
};
use todana_protocol::memcached::{MemcachedRequest, ReplyForm, RequestHead, encode};

/// The version of memcached that the server reports. Clients choose features by it.
pub(crate) const MEMCACHED_VERSION: &str = "1.6.45";

/// memcached's bounds for the command `cache_memlimit`, in MiB.
const CACHE_MEMLIMIT_MIN_MIB: u64 = 8;
const CACHE_MEMLIMIT_MAX_MIB: u64 = 1_000_000_000;

/// Writes a reply in the form that its request needs.
#[inline]
pub(crate) fn answer(request: &MemcachedRequest<'_>, reply: &Reply<'_>, output: &mut ConnectionOutput) {
    encode(&request.form, reply, output);
}

/// Writes a reply with the position in the log.
#[cold]
fn answer_with_position(
    shared: &SharedState,
    database: usize,
    request: &MemcachedRequest<'_>,
    reply: &Reply<'_>,
    output: &mut ConnectionOutput,
) {
    let required = request.form.freshness().unwrap_or(RequiredFreshness::Any);
    if !freshness::still_holds(shared, database, required) {
        return answer(request, &Reply::Refused(RefusalReason::TooOld), output);
    }
    let position = freshness::position(shared, database);
    let text = position.map(|position| position.to_string()).unwrap_or_default();
    encode(&request.form.with_position(text.as_bytes()), reply, output);
}

impl MemcachedSession {
    /// Executes a request and writes its reply.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        if context.spans.is_some()
            && let Some(traced) = traced(self.database, request)
        {
            return self.execute_traced(context, &traced, request, output);
        }
        self.execute_untraced(context, request, output)
    }

    /// Executes a request that has a span.
    #[cold]
    fn execute_traced(
        &mut self,
        context: &mut WorkerContext,
        traced: &TracedRequest<'_>,
        request: &MemcachedRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let connection = context.waits.connection;
        let at = output.end();
        context.spans.iter_mut().for_each(|spans| spans.resume(connection, traced));
        let next = self.execute_untraced(context, request, output);
        if !matches!(next, NextAction::Wait) {
            let reply = output.copied_from(at);
            context.spans.iter_mut().for_each(|spans| spans.note_reply(connection, reply));
        }
        next
    }

    #[inline]
    fn execute_untraced(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        if let Some(required) = request.form.freshness()
            && let Some(next) = self.await_changes(context, request, required, output)
        {
            return next;
        }
        if self.is_of_tyrant() {
            if let Some(key) = text::locked_key(context, request) {
                return self.execute_locked(context, key, request, output);
            }
            if text::is_answered(context, request, output) {
                return NextAction::Continue;
            }
        }
        self.execute_any(context, request, output)
    }

    /// Lets the connection wait while this server is a replica whose records are too old for a
    /// request. Returns `None` once they are new enough.
    #[cold]
    fn await_changes(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        required: RequiredFreshness,
        output: &mut ConnectionOutput,
    ) -> Option<NextAction> {
        let shared = Arc::clone(&context.shared);
        let asked_at = self.asked_at.take().unwrap_or_else(Instant::now);
        match freshness::check(&shared, self.database, required, asked_at) {
            FreshnessCheck::Fresh => None,
            FreshnessCheck::TooOld if freshness::may_wait(&shared, asked_at) => {
                let ticket = context.waits.ticket();
                context.waits.enter(ticket, Some(freshness::next_check(asked_at)));
                (self.asked_at, self.lock_wait) = (Some(asked_at), LockWait::Waiting(ticket));
                Some(NextAction::Wait)
            }
            FreshnessCheck::TooOld => {
                answer(request, &Reply::Refused(RefusalReason::TooOld), output);
                Some(NextAction::Continue)
            }
            FreshnessCheck::Never(refusal) => {
                answer(request, &Reply::Refused(refusal), output);
                Some(NextAction::Continue)
            }
        }
    }

    /// Executes a request of Tokyo Tyrant under the lock of its key. If a call of a script holds
    /// the lock, the connection waits, and the request is executed later.
    #[cold]
    fn execute_locked(
        &mut self,
        context: &mut WorkerContext,
        key: &[u8],
        request: &MemcachedRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let shared = Arc::clone(&context.shared);
        let locked = shared.tyrant.scripts.slots().map(|slots| slots.try_lock(key, &mut context.waits));
        let _lock = match locked.transpose() {
            Ok(lock) => lock,
            // The server does not wait for scripts.
            Err(ticket) if shared.lifecycle.stopping() != StopStage::No => {
                context.waits.leave(ticket);
                answer(request, &Reply::Refused(RefusalReason::Busy), output);
                return NextAction::Continue;
            }
            Err(ticket) => {
                self.lock_wait = LockWait::Waiting(ticket);
                return NextAction::Wait;
            }
        };
        if text::is_answered(context, request, output) {
            return NextAction::Continue;
        }
        self.execute_any(context, request, output)
    }

    #[inline]
    fn execute_any(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let MemcachedCommand::Operation(operation) = &request.command else {
            return self.execute_own(context, request, output);
        };
        // The output takes a long value in shared form, and decompresses it as the client reads.
        let get;
        let operation = match *operation {
            Operation::Get(of) => {
                get = Operation::Get(Get { reads_shared: true, ..of });
                &get
            }
            _ => operation,
        };
        let shared = request.form.freshness().map(|_| Arc::clone(&context.shared));
        let database = self.database;
        let reply = &mut |reply: Reply<'_>| match &shared {
            None => answer(request, &reply, output),
            Some(shared) => answer_with_position(shared, database, request, &reply, output),
        };
        let completion = if context.shared.observation.observers.is_active() {
            execute_observed(context, self.database, operation, reply)
        } else {
            context.executor.execute_alone(self.database, operation, reply)
        };
        if let Completion::Pending(ticket) = completion {
            self.pending.add(ticket, &mut context.waits);
            return NextAction::Wait;
        }
        if request.form.closes() { NextAction::Close } else { NextAction::Continue }
    }

    /// Writes the reply of a request that was executed earlier, whose reply was pending and has
    /// arrived.
    pub(super) fn answer_pending(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let MemcachedCommand::Operation(operation) = &request.command else { return NextAction::Close };
        let at = output.end();
        let WorkerContext { shared, executor, descriptor, .. } = context;
        let observers = &shared.observation.observers;
        let database = self.database;
        let reply = &mut |reply: Reply<'_>| match request.form.freshness() {
            None => answer(request, &reply, output),
            Some(_) => answer_with_position(shared, database, request, &reply, output),
        };
        observers.observe(*descriptor, operation, PreviousRecord::default(), reply, |reply| {
            self.pending.take(executor, reply);
            Completion::Done
        });
        if context.logs_requests && !request.form.is_silent() {
            let is_binary = self.dialect.is_binary();
            shared.observation.log_request(|entry| {
                let reply = output.copied_from(at);
                entry.answer(*descriptor, is_binary, request.form.is_last_of_line(), reply);
            });
        }
        if let Some(spans) = &mut context.spans
            && request.form.trace().is_some()
        {
            spans.note_reply(context.waits.connection, output.copied_from(at));
        }
        if request.form.closes() { NextAction::Close } else { NextAction::Continue }
    }

    /// Executes a command about the server or the connection.
    fn execute_own(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let mut reply = |reply: Reply<'_>| answer(request, &reply, output);
        let shared = &context.shared;
        match &request.command {
            // The caller executes operations.
            MemcachedCommand::Operation(_) => {}
            // The following commands replace the session, or change the limits of the next turn.
            MemcachedCommand::List(list) => return self.list_records(context, request, list, output),
            MemcachedCommand::Watch(streams) => return watch(context, request, *streams, output),
            MemcachedCommand::Export(export) => return self.export(context, request, *export, output),
            MemcachedCommand::UseDatabase(number) => {
                let number = *number as usize;
                if number < shared.databases.len() {
                    self.database = number;
                    reply(Reply::Done);
                    return NextAction::Yield;
                }
                reply(Reply::Faulty(NO_DATABASE));
            }
            MemcachedCommand::Quit => return NextAction::Close,
            MemcachedCommand::Crawler(order) => {
                let wake = || shared.databases.each(Database::request_sweep);
                match shared.observation.crawler.execute(*order, &wake) {
                    Ok(()) => reply(Reply::Done),
                    Err(message) => reply(Reply::Faulty(message)),
                }
            }
            MemcachedCommand::Stats { group } => {
                let form = match statistics::answer(shared, group, context.descriptor, &mut reply) {
                    Some(walk @ ListingKind::Items { .. }) => Some((ReplyForm::ITEMS, walk)),
                    walk => walk.map(|walk| (request.form.detached(), walk)),
                };
                // Statistics are those of the first database.
                if let Some((form, walk)) = form {
                    self.begin(shared, 0, form, walk);
                    return NextAction::Continue;
                }
            }
            MemcachedCommand::Mechanisms => {
                reply(shared.logins.mechanisms().map_or(Reply::Unknown, Reply::Mechanisms));
            }
            MemcachedCommand::Authenticate(message) => {
                return self.authenticate(context, message, request.form, &mut reply);
            }
            MemcachedCommand::Faulty { message } => {
                shared.observation.observers.send_faulty(context.descriptor);
                reply(Reply::Faulty(message));
            }
            MemcachedCommand::Version => reply(Reply::Version(MEMCACHED_VERSION)),
            MemcachedCommand::Verbosity(verbosity) => {
                shared.observation.verbosity.store(*verbosity, Ordering::Relaxed);
                set_verbosity(shared.observation.log_verbosity());
                context.logs_requests = shared.observation.logs_requests();
                reply(Reply::Done);
            }
            MemcachedCommand::MemoryLimit { mebibytes } => reply(set_memory_limit(shared, *mebibytes)),
            MemcachedCommand::RefreshCertificates => shared.listening.refresh_certificates(&mut reply),
            MemcachedCommand::ShiftClock(shift) => {
                match *shift {
                    ClockShift::Pause => shared.clock.pause(),
                    ClockShift::Resume => shared.clock.resume(),
                    ClockShift::Forward { seconds } => shared.clock.advance(seconds),
                }
                shared.databases.each(Database::report_time);
                reply(Reply::Done);
            }
            MemcachedCommand::Shutdown { graceful } => {
                if !shared.options.limits.shutdown_allowed {
                    reply(Reply::Refused(RefusalReason::NotEnabled));
                    return NextAction::Continue;
                }
                tracing::info!(graceful, "server: stops at a client's request");
                shared.lifecycle.handle.stop();
                return NextAction::Close;
            }
        }
        if request.form.closes() { NextAction::Close } else { NextAction::Continue }
    }

    /// Executes a request, and logs the request and its reply.
    #[cold]
    pub(crate) fn execute_logged(
        &mut self,
        context: &mut WorkerContext,
        head: RequestHead<'_>,
        request: &MemcachedRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let descriptor = context.descriptor;
        if request.form.is_silent() {
            // As in memcached, the outcome is logged even though no reply is sent.
            let mut silenced = ConnectionOutput::default();
            let next =
                self.execute(context, &MemcachedRequest { form: ReplyForm::LINE, ..*request }, &mut silenced);
            context.shared.observation.log_request(|entry| {
                entry.request(descriptor, head);
                entry.silenced(descriptor, silenced.copied_from(0));
            });
            return next;
        }
        let at = output.end();
        let is_first_attempt = self.asked_at.is_none();
        let next = self.execute(context, request, output);
        let (reply, is_binary) = (output.copied_from(at), self.dialect.is_binary());
        // The lines of statistics are not logged, and neither is the `END` after them. The reply to
        // a login is logged later, after the password has been checked.
        let is_statistics = matches!(request.command, MemcachedCommand::Stats { .. });
        let is_logged =
            !matches!(next, NextAction::Wait) && !(is_statistics && (is_binary || reply == b"END\r\n"));
        context.shared.observation.log_request(|entry| {
            if is_first_attempt {
                entry.request(descriptor, head);
            }
            if is_logged {
                entry.answer(descriptor, is_binary, request.form.is_last_of_line(), reply);
            }
        });
        next
    }

    /// Starts to check a login. If the outcome is known at once, writes the reply.
    #[cold]
    fn authenticate(
        &mut self,
        context: &mut WorkerContext,
        message: &LoginCredentials<'_>,
        form: ReplyForm<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> NextAction {
        let shared = &context.shared;
        match shared.logins.authenticate(message, &mut self.login, &mut context.waits) {
            LoginOutcome::Pending(ticket) => {
                self.pending_login = Some(Box::new(PendingLogin { ticket, form: form.detached() }));
                NextAction::Wait
            }
            outcome => {
                self.logged_in(outcome, context, reply);
                NextAction::Continue
            }
        }
    }

    /// Writes the reply to a login.
    #[cold]
    pub(super) fn logged_in(
        &mut self,
        outcome: LoginOutcome,
        context: &WorkerContext,
        reply: &mut dyn FnMut(Reply<'_>),
    ) {
        let counters = &context.shared.observation.workers[context.worker];
        counters.logins.add(u64::from(outcome != LoginOutcome::Challenge));
        counters.logins_refused.add(u64::from(outcome == LoginOutcome::Refused));
        if outcome == LoginOutcome::Admitted {
            reply(Reply::Authenticated);
            return self.dialect.accept_login();
        }
        self.dialect.revoke_login();
        match outcome {
            LoginOutcome::Challenge => reply(Reply::Challenge(b"")),
            _ => reply(Reply::Refused(RefusalReason::NotAuthenticated)),
        }
    }

    /// Starts a walk over all records of a database.
    fn begin(&mut self, shared: &SharedState, database: usize, form: ReplyForm<'static>, walk: ListingKind) {
        let database = Arc::clone(&shared.databases[database].database);
        let crawler = Arc::clone(&shared.observation.crawler);
        self.listing = Some(Box::new(ListingProgress::new(crawler, database, form, walk)));
    }

    fn list_records(
        &mut self,
        context: &WorkerContext,
        request: &MemcachedRequest<'_>,
        list: &RecordListing,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        if let Some(refusal) = list_refusal(&context.shared, list, output) {
            answer(request, &Reply::Faulty(refusal), output);
        } else {
            answer(request, &Reply::Done, output);
            let walk = ListingKind::Records(list.classes);
            self.begin(&context.shared, self.database, request.form.detached(), walk);
        }
        NextAction::Continue
    }

    #[cold]
    fn export(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        export: ExportRequest,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let is_allowed = context.shared.options.limits.dump_allowed;
        let refusal = match export.what {
            ExportKind::Backup { .. } if !is_allowed => "ERROR backup not allowed",
            ExportKind::Log { .. } if !is_allowed => "ERROR log not allowed",
            _ => match ExportSession::start(context, export, self) {
                Ok(session) => return NextAction::Become(Box::new(AnySession::Export(Box::new(session)))),
                Err(refusal) => refusal,
            },
        };
        answer(request, &Reply::Faulty(refusal), output);
        NextAction::Continue
    }
}

/// Returns a request with its trace, if it names one.
pub(super) fn traced<'r>(database: usize, request: &MemcachedRequest<'r>) -> Option<TracedRequest<'r>> {
    let (trace, command) = request.form.trace()?;
    let MemcachedCommand::Operation(operation) = &request.command else { return None };
    Some(TracedRequest { trace, command, database, key: operation.key() })
}

#[cold]
fn execute_observed(
    context: &mut WorkerContext,
    database: usize,
    operation: &Operation<'_>,
    reply: &mut dyn FnMut(Reply<'_>),
) -> Completion {
    let WorkerContext { shared, executor, descriptor, .. } = context;
    let observers = &shared.observation.observers;
    let local = executor.local(database).map(TransactionHolder::database);
    let before = observers.report_request(local, *descriptor, operation);
    observers
        .observe(*descriptor, operation, before, reply, |reply| executor.execute(database, operation, reply))
}

fn watch(
    context: &mut WorkerContext,
    request: &MemcachedRequest<'_>,
    streams: WatchStreams,
    output: &mut ConnectionOutput,
) -> NextAction {
    let refusal = if !context.shared.options.limits.watch_allowed {
        "CLIENT_ERROR watch commands not allowed"
    } else if !output.is_empty() {
        "ERROR cannot pipeline other commands before watch"
    } else if let Some(watcher) = WatcherSession::start(context, streams) {
        answer(request, &Reply::Done, output);
        return NextAction::Become(Box::new(AnySession::Watcher(watcher)));
    } else {
        "WATCHER_TOO_MANY log watcher limit reached"
    };
    answer(request, &Reply::Faulty(refusal), output);
    NextAction::Continue
}

/// Returns the reason why this list of records is refused. Returns `None` if it is allowed.
fn list_refusal(
    shared: &SharedState,
    list: &RecordListing,
    output: &ConnectionOutput,
) -> Option<&'static str> {
    if !shared.observation.crawler.is_enabled() {
        Some(DISABLED)
    } else if !shared.options.limits.dump_allowed {
        Some(if list.keys_only { "ERROR key dump not allowed" } else { "ERROR metadump not allowed" })
    } else if !output.is_empty() {
        Some("ERROR cannot pipeline other commands before metadump")
    } else {
        None
    }
}

fn set_memory_limit(shared: &SharedState, mebibytes: u64) -> Reply<'static> {
    if mebibytes < CACHE_MEMLIMIT_MIN_MIB {
        return Reply::Refused(RefusalReason::LimitTooSmall);
    }
    if mebibytes > CACHE_MEMLIMIT_MAX_MIB {
        return Reply::Refused(RefusalReason::LimitInBytes);
    }
    // With a higher limit, the shards would be full before the limit is reached, and would refuse
    // writes instead of evicting records.
    let reach_mib = shared.memory.reach_mib();
    if mebibytes > reach_mib {
        tracing::warn!(
            "cache_memlimit: {mebibytes} MiB exceeds the reachable {reach_mib} MiB; restart with -m"
        );
        return Reply::Refused(RefusalReason::LimitNotAdjustable);
    }
    shared.memory.set_limit_mib(mebibytes, &shared.databases);
    shared.observation.observers.send(WatchStreams::SYSTEM, |line| {
        line.extend_from_slice(format!("memory_limit mib={mebibytes}").as_bytes());
    });
    Reply::Done
}
