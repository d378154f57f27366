//! memcached's commands. Operations go to the executor; commands about the server are executed
//! here.

use super::crawler::DISABLED;
use super::export::ExportSession;
use super::listing::{ListingKind, ListingProgress};
use super::session::{MemcachedSession, PendingLogin};
use super::watcher::WatcherSession;
use crate::databases::exports::NO_DATABASE;
use crate::execution::{Completion, Executor};
use crate::observation::logging::set_verbosity;
use crate::observation::observers::RecordBefore;
use crate::observation::statistics;
use crate::session::context::WorkerContext;
use crate::session::login::LoginOutcome;
use crate::session::{AnySession, Next};
use crate::shared::Shared;
use crate::transport::output::Output;
use crate::transport::tls::Tls;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use todana::{Database, TransactionHolder};
use todana_core::{Operation, RefusalReason, Reply};
use todana_protocol::memcached::{
    Authenticate, ClockShift, ExportKind, ExportRequest, MemcachedCommand, RecordListing, WatchStreams,
};
use todana_protocol::memcached::{MemcachedRequest, ReplyForm, RequestHead, encode};

/// The version that clients see, by which they choose features.
pub(crate) const MEMCACHED_VERSION: &str = "1.6.45";

/// memcached's bounds for `cache_memlimit`, in MiB.
const CACHE_MEMLIMIT_MIN_MIB: u64 = 8;
const CACHE_MEMLIMIT_MAX_MIB: u64 = 1_000_000_000;

/// Writes a reply in the form of its request.
#[inline]
pub(crate) fn answer(request: &MemcachedRequest<'_>, reply: &Reply<'_>, output: &mut Output) {
    encode(&request.form, reply, output);
}

impl MemcachedSession {
    /// Executes a request, and answers it.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        output: &mut Output,
    ) -> Next {
        let MemcachedCommand::Operation(operation) = &request.command else {
            return self.execute_own(context, request, output);
        };
        let reply = &mut |reply: Reply<'_>| answer(request, &reply, output);
        let completion = if context.shared.observation.observers.is_active() {
            execute_observed(context, self.database, operation, reply)
        } else {
            context.executor.execute(self.database, operation, reply)
        };
        if let Completion::Pending(ticket) = completion {
            self.pending.add(ticket, &mut context.waits);
            return Next::Wait;
        }
        if request.form.closes() { Next::Close } else { Next::Continue }
    }

    /// Answers a request whose reply has come since it was executed.
    pub(super) fn answer_pending(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        output: &mut Output,
    ) -> Next {
        let MemcachedCommand::Operation(operation) = &request.command else { return Next::Close };
        let at = output.end();
        let WorkerContext { shared, executor, descriptor, .. } = context;
        let observers = &shared.observation.observers;
        let reply = &mut |reply: Reply<'_>| answer(request, &reply, output);
        observers.observe(*descriptor, operation, RecordBefore::default(), reply, |reply| {
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
        if request.form.closes() { Next::Close } else { Next::Continue }
    }

    /// Executes a command about the server or the connection.
    fn execute_own(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        output: &mut Output,
    ) -> Next {
        let mut reply = |reply: Reply<'_>| answer(request, &reply, output);
        let shared = &context.shared;
        match &request.command {
            // Executed by the caller.
            MemcachedCommand::Operation(_) => {}
            // These replace the session, or change the limits of the next turn.
            MemcachedCommand::List(list) => return self.list_records(context, request, list, output),
            MemcachedCommand::Watch(streams) => return watch(context, request, *streams, output),
            MemcachedCommand::Export(export) => return self.export(context, request, *export, output),
            MemcachedCommand::UseDatabase(number) => {
                let number = *number as usize;
                if number < shared.databases.len() {
                    self.database = number;
                    reply(Reply::Done);
                    return Next::Yield;
                }
                reply(Reply::Faulty(NO_DATABASE));
            }
            MemcachedCommand::Quit => return Next::Close,
            MemcachedCommand::Crawler(order) => {
                let wake = || shared.databases.each(Database::want_sweep);
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
                // Statistics describe the first database.
                if let Some((form, walk)) = form {
                    self.begin(shared, 0, form, walk);
                    return Next::Continue;
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
            MemcachedCommand::RefreshCertificates => refresh_certificates(shared, &mut reply),
            MemcachedCommand::ShiftClock(shift) => {
                match *shift {
                    ClockShift::Pause => shared.clock.pause(),
                    ClockShift::Resume => shared.clock.resume(),
                    ClockShift::Forward { seconds } => shared.clock.advance(seconds),
                }
                shared.databases.each(Database::tell_time);
                reply(Reply::Done);
            }
            MemcachedCommand::Shutdown { graceful } => {
                if !shared.options.limits.shutdown_allowed {
                    reply(Reply::Refused(RefusalReason::NotEnabled));
                    return Next::Continue;
                }
                tracing::info!(graceful, "stopping at a client's request");
                shared.lifecycle.handle.stop();
                return Next::Close;
            }
        }
        if request.form.closes() { Next::Close } else { Next::Continue }
    }

    /// Executes a request, and logs it and its reply.
    #[cold]
    pub(crate) fn execute_logged(
        &mut self,
        context: &mut WorkerContext,
        head: RequestHead<'_>,
        request: &MemcachedRequest<'_>,
        output: &mut Output,
    ) -> Next {
        let descriptor = context.descriptor;
        if request.form.is_silent() {
            // The outcome is logged, as in memcached.
            let mut silenced = Output::default();
            let next =
                self.execute(context, &MemcachedRequest { form: ReplyForm::LINE, ..*request }, &mut silenced);
            context.shared.observation.log_request(|entry| {
                entry.request(descriptor, head);
                entry.silenced(descriptor, silenced.copied_from(0));
            });
            return next;
        }
        let at = output.end();
        let next = self.execute(context, request, output);
        let (reply, is_binary) = (output.copied_from(at), self.dialect.is_binary());
        // Statistics are not logged, nor their end alone; the answer to a login is logged later.
        let is_statistics = matches!(request.command, MemcachedCommand::Stats { .. });
        let is_logged = !matches!(next, Next::Wait) && !(is_statistics && (is_binary || reply == b"END\r\n"));
        context.shared.observation.log_request(|entry| {
            entry.request(descriptor, head);
            if is_logged {
                entry.answer(descriptor, is_binary, request.form.is_last_of_line(), reply);
            }
        });
        next
    }

    /// Begins to check a login. A result that is known is sent at once.
    #[cold]
    fn authenticate(
        &mut self,
        context: &mut WorkerContext,
        message: &Authenticate<'_>,
        form: ReplyForm<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Next {
        let shared = &context.shared;
        match shared.logins.authenticate(message, &mut self.login, &mut context.waits) {
            LoginOutcome::Pending(ticket) => {
                self.pending_login = Some(Box::new(PendingLogin { ticket, form: form.detached() }));
                Next::Wait
            }
            outcome => {
                self.logged_in(outcome, context, reply);
                Next::Continue
            }
        }
    }

    /// Answers a login.
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
            return self.dialect.admit();
        }
        self.dialect.expel();
        match outcome {
            LoginOutcome::Challenge => reply(Reply::Challenge(b"")),
            _ => reply(Reply::Refused(RefusalReason::NotAuthenticated)),
        }
    }

    /// Begins a walk over all records of a database.
    fn begin(&mut self, shared: &Shared, database: usize, form: ReplyForm<'static>, walk: ListingKind) {
        let database = Arc::clone(&shared.databases[database].database);
        let crawler = Arc::clone(&shared.observation.crawler);
        self.listing = Some(Box::new(ListingProgress::new(crawler, database, form, walk)));
    }

    fn list_records(
        &mut self,
        context: &WorkerContext,
        request: &MemcachedRequest<'_>,
        list: &RecordListing,
        output: &mut Output,
    ) -> Next {
        if let Some(refusal) = list_refusal(&context.shared, list, output) {
            answer(request, &Reply::Faulty(refusal), output);
        } else {
            answer(request, &Reply::Done, output);
            let walk = ListingKind::Records(list.classes);
            self.begin(&context.shared, self.database, request.form.detached(), walk);
        }
        Next::Continue
    }

    #[cold]
    fn export(
        &mut self,
        context: &mut WorkerContext,
        request: &MemcachedRequest<'_>,
        export: ExportRequest,
        output: &mut Output,
    ) -> Next {
        let is_allowed = context.shared.options.limits.dump_allowed;
        let refusal = match export.what {
            ExportKind::Backup { .. } if !is_allowed => "ERROR backup not allowed",
            ExportKind::Log { .. } if !is_allowed => "ERROR log not allowed",
            _ => match ExportSession::start(context, export, self) {
                Ok(session) => return Next::Become(Box::new(AnySession::Export(Box::new(session)))),
                Err(refusal) => refusal,
            },
        };
        answer(request, &Reply::Faulty(refusal), output);
        Next::Continue
    }
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
    let local = executor.databases().get(database).map(TransactionHolder::database);
    let before = observers.report_request(local, *descriptor, operation);
    observers
        .observe(*descriptor, operation, before, reply, |reply| executor.execute(database, operation, reply))
}

fn watch(
    context: &mut WorkerContext,
    request: &MemcachedRequest<'_>,
    streams: WatchStreams,
    output: &mut Output,
) -> Next {
    let refusal = if !context.shared.options.limits.watch_allowed {
        "CLIENT_ERROR watch commands not allowed"
    } else if !output.is_empty() {
        "ERROR cannot pipeline other commands before watch"
    } else if let Some(watcher) = WatcherSession::start(context, streams) {
        answer(request, &Reply::Done, output);
        return Next::Become(Box::new(AnySession::Watcher(watcher)));
    } else {
        "WATCHER_TOO_MANY log watcher limit reached"
    };
    answer(request, &Reply::Faulty(refusal), output);
    Next::Continue
}

/// Returns the reason why records are not listed.
fn list_refusal(shared: &Shared, list: &RecordListing, output: &Output) -> Option<&'static str> {
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

#[cold]
fn refresh_certificates(shared: &Shared, reply: &mut dyn FnMut(Reply<'_>)) {
    match shared.listening.tls.as_deref().map(Tls::refresh) {
        None => reply(Reply::Faulty("Error TLS not enabled")),
        Some(Ok(())) => reply(Reply::Done),
        Some(Err(error)) => reply(Reply::Faulty(&error.to_string())),
    }
}

fn set_memory_limit(shared: &Shared, mebibytes: u64) -> Reply<'static> {
    if mebibytes < CACHE_MEMLIMIT_MIN_MIB {
        return Reply::Refused(RefusalReason::LimitTooSmall);
    }
    if mebibytes > CACHE_MEMLIMIT_MAX_MIB {
        return Reply::Refused(RefusalReason::LimitInBytes);
    }
    // At a higher limit the shards would be full first, and refuse writes instead of evicting.
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
