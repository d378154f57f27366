//! Where commands go: those about data to the database, the server's own stay here.

use crate::databases::exports::{NO_DATABASE, Receiving};
use crate::handle::Stopping;
use crate::observation::logging::set_verbosity;
use crate::observation::statistics;
use crate::observation::watchers::Place;
use crate::session::flow::{Execute, Flow, Pause, answer};
use crate::session::kyoto::{Executor, PluginSession, Session};
use crate::session::login::{Decided, Login, Outcome};
use crate::session::memcached::crawler::DISABLED;
use crate::session::memcached::listing::{Listing, Walk};
use crate::session::tickets::Ticket;
use crate::shared::Shared;
use crate::transport::output::{OUTPUT_MAX, Output};
use crate::transport::tls::Tls;
use mio::Waker;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use todana::update_log::Position;
use todana::{Database, Lane, Limiter};
use todana_core::{
    Arithmetic, Authenticate, Buffer, ClockShift, Command, Export, Exported, List, Refusal, Reply, Store,
    Streams,
};
use todana_protocol::memcached::{Form, Head, Request};

/// The version that clients are told: they choose their features by memcached's.
pub(crate) const MEMCACHED_VERSION: &str = "1.6.45";

/// memcached's bounds for `cache_memlimit`, in MiB.
const CACHE_MEMLIMIT_MIN_MIB: u64 = 8;
const CACHE_MEMLIMIT_MAX_MIB: u64 = 1_000_000_000;

/// One worker's way to the database.
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
    /// The number of the database that memcached's commands go to, as the connection at hand has chosen.
    pub(crate) database_number: usize,
    /// That database ...
    database: Arc<Database>,
    /// ... and this worker's lane there.
    pub(crate) lane: Arc<Lane>,
    /// Of all databases, in their order.
    pub(crate) lanes: Vec<Arc<Lane>>,
    /// Where the connection is that is served.
    pub(crate) place: Place,
    /// A walk that the last request asked for and that has not been begun.
    pub(crate) begun: Option<Box<Listing>>,
    /// An export that the last request asked for.
    pub(crate) export: Option<Receiving>,
    /// Where the worker hears of passwords that have been checked.
    pub(crate) decided: Arc<Decided>,
    /// What has been waited for, by those who wait in place.
    pub(crate) settled: Position,
    /// Requests are told; looked up at each turn.
    pub(crate) is_aloud: bool,
    /// Kyoto Tycoon's protocols.
    pub(crate) kyoto: Executor,
}

impl Service {
    /// That of a worker, which is woken so; it serves no connection yet.
    pub(crate) fn new(shared: &Arc<Shared>, worker: usize, waker: &Arc<Waker>) -> Service {
        let decided = Decided::new(Arc::clone(waker));
        let lanes: Vec<Arc<Lane>> = shared.databases.iter().map(|served| served.database.lane()).collect();
        Service {
            database_number: 0,
            database: Arc::clone(&shared.databases.primary().database),
            lane: Arc::clone(&lanes[0]),
            kyoto: Executor::new(shared, worker, &lanes, &decided),
            lanes,
            shared: Arc::clone(shared),
            place: Place { worker, index: 0, descriptor: -1, waker: Arc::clone(waker) },
            begun: None,
            export: None,
            decided,
            settled: Position::default(),
            is_aloud: false,
        }
    }
}

impl Service {
    /// Has memcached's commands go to this database from here on.
    #[inline]
    pub(crate) fn use_database(&mut self, number: usize) {
        if number != self.database_number {
            self.database_number = number;
            self.database = Arc::clone(&self.shared.databases[number].database);
            self.lane = Arc::clone(&self.lanes[number]);
        }
    }
}

impl Service {
    /// Returns when the first of the connections that wait has waited long enough.
    pub(crate) fn first_end(&self) -> Option<Instant> {
        self.kyoto.first_end()
    }

    /// Returns the connections that have been signalled, with their tickets.
    pub(crate) fn signalled(&mut self) -> Vec<(Ticket, usize)> {
        self.kyoto.signalled()
    }

    /// Returns the connections that have waited long enough; all of them where the server stops.
    pub(crate) fn over(&mut self, is_stopping: bool) -> Vec<(Ticket, usize)> {
        self.kyoto.over(is_stopping)
    }

    /// Lets a connection wait on although the server stops: what it waits for comes soon.
    pub(crate) fn keep_waiting(&mut self, ticket: Ticket, connection: usize) {
        self.kyoto.keep_waiting(ticket, connection);
    }
}

impl Execute for Service {
    #[inline]
    fn prefetch(&self, key: &[u8]) {
        self.database.engine().prefetch(key);
    }

    fn buffer(&self, len: usize) -> Option<Box<dyn Buffer>> {
        self.database.buffer(len).ok()
    }

    fn room<'b>(&self, buffer: &'b mut dyn Buffer, len: usize) -> Option<&'b mut [u8]> {
        // An engine without a limit of its own bounds neither what it is given nor how many give.
        if self.database.engine().bounded().is_none()
            && self.shared.observation.unfinished_bytes() > self.shared.memory.held_max()
        {
            return None;
        }
        self.database.room(buffer, len).ok()
    }

    fn converse(
        &mut self,
        session: &mut Session,
        data: &[u8],
        room: usize,
        budget: &mut u32,
        output: &mut Output,
    ) -> (usize, usize, Pause) {
        self.kyoto.serve(session, self.place.index, data, room, OUTPUT_MAX, budget, output)
    }

    fn converse_as_plugin(
        &mut self,
        session: &mut PluginSession,
        data: &[u8],
        room: usize,
        budget: &mut u32,
        output: &mut Output,
    ) -> (usize, usize, Pause) {
        self.kyoto.serve_plugin(session, self.place.index, data, room, OUTPUT_MAX, budget, output)
    }

    #[inline]
    fn execute(&mut self, request: &Request<'_>, login: &mut Login, output: &mut Output) -> Flow {
        // They leave the connection to a stream of its own, which memcached begins only with nothing before it.
        match &request.command {
            Command::List(list) => return self.list_records(request, list, output),
            Command::Watch(streams) => return self.watch(request, *streams, output),
            Command::Export(export) => return self.export(request, *export, output),
            Command::UseDatabase(number) => {
                let number = *number as usize;
                if number >= self.shared.databases.len() {
                    answer(request, &Reply::Faulty(NO_DATABASE), output);
                    return Flow::Continue;
                }
                self.use_database(number);
                answer(request, &Reply::Done, output);
                return Flow::Use;
            }
            _ => {}
        }
        let mut reply = |reply: Reply<'_>| answer(request, &reply, output);
        match &request.command {
            Command::Quit => return Flow::Close,
            Command::Crawler(order) => {
                match self
                    .shared
                    .observation
                    .crawler
                    .obey(*order, &|| self.shared.databases.each(Database::want_sweep))
                {
                    Ok(()) => reply(Reply::Done),
                    Err(message) => reply(Reply::Faulty(message)),
                }
            }
            Command::Stats { group } => {
                match statistics::answer(&self.shared, group, self.place.descriptor, &mut reply) {
                    Some(walk @ Walk::Items { .. }) => return self.begin_statistics(Form::ITEMS, walk),
                    Some(walk) => return self.begin_statistics(request.form.detached(), walk),
                    None => {}
                }
            }
            Command::Mechanisms => {
                reply(self.shared.logins.mechanisms().map_or(Reply::Unknown, Reply::Mechanisms));
            }
            Command::Authenticate(message) => return self.authenticate(message, login, &mut reply),
            Command::Version => reply(Reply::Version(MEMCACHED_VERSION)),
            Command::Verbosity(verbosity) => {
                self.shared.observation.verbosity.store(*verbosity, Ordering::Relaxed);
                set_verbosity(self.shared.observation.log_verbosity());
                self.is_aloud = self.shared.observation.is_aloud();
                reply(Reply::Done);
            }
            Command::MemoryLimit { mebibytes } => reply(self.set_memory_limit(*mebibytes)),
            Command::RefreshCertificates => self.refresh_certificates(&mut reply),
            Command::ShiftClock(shift) => {
                match *shift {
                    ClockShift::Pause => self.shared.clock.pause(),
                    ClockShift::Resume => self.shared.clock.resume(),
                    ClockShift::Forward { seconds } => self.shared.clock.advance(seconds),
                }
                self.shared.databases.each(Database::tell_time);
                reply(Reply::Done);
            }
            Command::Shutdown { graceful } => {
                if !self.shared.options.limits.shutdown_allowed {
                    reply(Reply::Refused(Refusal::NotEnabled));
                    return Flow::Continue;
                }
                tracing::info!(graceful, "stopping: a client asked for it");
                self.shared.lifecycle.handle.stop();
                return Flow::Close;
            }
            command if self.shared.observation.observers.are_there() => {
                let (observers, database) = (&self.shared.observation.observers, &self.database);
                observers.look_on(database, self.place.descriptor, command, &mut reply, |reply| {
                    database.execute(&self.lane, command, reply);
                });
                if matches!(command, Command::Flush { .. }) {
                    observers.tell(Streams::SYSTEM, |line| line.extend_from_slice(b"flush"));
                }
            }
            command => self.database.execute(&self.lane, command, &mut reply),
        }
        if let Some(limiter) = &self.shared.databases[self.database_number].limiter {
            self.limit(limiter, &request.command);
        }
        if request.form.closes() { Flow::Close } else { Flow::Continue }
    }

    #[inline]
    fn is_aloud(&self) -> bool {
        self.is_aloud
    }

    fn tell_dialect(&self, is_binary: bool) {
        self.shared.observation.tell(|entry| entry.chosen(self.place.descriptor, is_binary));
    }

    #[cold]
    fn execute_aloud(
        &mut self,
        head: Head<'_>,
        request: &Request<'_>,
        login: &mut Login,
        output: &mut Output,
    ) -> Flow {
        let descriptor = self.place.descriptor;
        if request.form.is_silent() {
            // How it went is told all the same, as in memcached.
            let mut unsaid = Output::default();
            let flow = self.execute(&Request { form: Form::LINE, ..*request }, login, &mut unsaid);
            self.shared.observation.tell(|entry| {
                entry.request(descriptor, head);
                entry.unsaid(descriptor, unsaid.copied_from(0));
            });
            return flow;
        }
        let at = output.end();
        let flow = self.execute(request, login, output);
        // It is executed again, and told then.
        if flow != Flow::Wait {
            let reply = output.copied_from(at);
            let is_statistics = matches!(request.command, Command::Stats { .. });
            self.shared.observation.tell(|entry| {
                entry.request(descriptor, head);
                match head {
                    Head::Packet { .. } if is_statistics => {}
                    // Nor is it told that there are none, or no more.
                    _ if is_statistics && reply == b"END\r\n" => {}
                    Head::Packet { .. } => entry.response(descriptor, reply),
                    _ => entry.reply(descriptor, reply, request.form.is_last_of_line()),
                }
            });
        }
        flow
    }

    fn settle(&mut self) -> bool {
        let end = self.lane.logged();
        // Nothing has changed since: what is only read waits for nothing.
        if self.settled != end {
            let Some(log) = self.shared.databases.primary().ledger() else { return true };
            // A stop does not wait for a disk that does not answer.
            let goes_on = || self.shared.lifecycle.stopping() == Stopping::No;
            if !log.wait_while(log.position(end), &goes_on) {
                return false;
            }
            self.settled = end;
        }
        true
    }

    fn list(&mut self, listing: Option<Box<Listing>>, output: &mut Output) -> Option<Box<Listing>> {
        let mut listing = listing.or_else(|| self.begun.take())?;
        (!listing.step(output)).then_some(listing)
    }
}

impl Service {
    /// Others go for what has just been written, where there are too many.
    #[cold]
    fn limit(&self, limiter: &Limiter, command: &Command<'_>) {
        if let Command::Store(Store { key, .. }) | Command::Arithmetic(Arithmetic { key, .. }) = command {
            // Where nothing can be removed, the next change is refused.
            let _ = limiter.enforce(&self.database, &self.lane, key);
        }
    }

    #[cold]
    fn refresh_certificates(&self, reply: &mut dyn FnMut(Reply<'_>)) {
        match self.shared.listening.tls.as_deref().map(Tls::refresh) {
            None => reply(Reply::Faulty("Error TLS not enabled")),
            Some(Ok(())) => reply(Reply::Done),
            Some(Err(error)) => reply(Reply::Faulty(&error.to_string())),
        }
    }

    #[cold]
    fn authenticate(
        &self,
        message: &Authenticate<'_>,
        login: &mut Login,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Flow {
        let outcome = self.shared.logins.authenticate(message, login, self.place.index, &self.decided);
        if outcome == Outcome::Wait {
            return Flow::Wait;
        }
        let counters = &self.shared.observation.workers[self.place.worker];
        counters.logins.add(u64::from(outcome != Outcome::Challenge));
        counters.logins_refused.add(u64::from(outcome == Outcome::Refused));
        match outcome {
            Outcome::Admitted => {
                reply(Reply::Authenticated);
                return Flow::Admit;
            }
            Outcome::Challenge => reply(Reply::Challenge(b"")),
            _ => reply(Reply::Refused(Refusal::NotAuthenticated)),
        }
        Flow::Expel
    }

    fn begin(&mut self, database: Arc<Database>, form: Form<'static>, walk: Walk) -> Flow {
        self.begun =
            Some(Box::new(Listing::new(Arc::clone(&self.shared.observation.crawler), database, form, walk)));
        Flow::List
    }

    /// Begins a walk for statistics, which are those of the first database.
    fn begin_statistics(&mut self, form: Form<'static>, walk: Walk) -> Flow {
        self.begin(Arc::clone(&self.shared.databases.primary().database), form, walk)
    }

    fn list_records(&mut self, request: &Request<'_>, list: &List, output: &mut Output) -> Flow {
        if let Some(refusal) = self.refuses(list, output) {
            answer(request, &Reply::Faulty(refusal), output);
            return Flow::Continue;
        }
        answer(request, &Reply::Done, output);
        self.begin(Arc::clone(&self.database), request.form.detached(), Walk::Records(list.classes))
    }

    fn watch(&mut self, request: &Request<'_>, streams: Streams, output: &mut Output) -> Flow {
        let refusal = if !self.shared.options.limits.watch_allowed {
            "CLIENT_ERROR watch commands not allowed"
        } else if !output.is_empty() {
            "ERROR cannot pipeline other commands before watch"
        } else if !self.shared.observation.observers.watch(self.place.clone(), streams) {
            "WATCHER_TOO_MANY log watcher limit reached"
        } else {
            answer(request, &Reply::Done, output);
            return Flow::Watch;
        };
        answer(request, &Reply::Faulty(refusal), output);
        Flow::Continue
    }

    #[cold]
    fn export(&mut self, request: &Request<'_>, export: Export, output: &mut Output) -> Flow {
        let refusal = match export.what {
            Exported::Backup { .. } if !self.shared.options.limits.dump_allowed => "ERROR backup not allowed",
            Exported::Log { .. } if !self.shared.options.limits.dump_allowed => "ERROR log not allowed",
            _ => match self.shared.persistence.exports.start(
                export,
                self.place.clone(),
                &self.shared.databases.catalog,
            ) {
                Ok(export) => {
                    self.export = Some(export);
                    return Flow::Export;
                }
                Err(refusal) => refusal,
            },
        };
        answer(request, &Reply::Faulty(refusal), output);
        Flow::Continue
    }

    /// What stands against a list of records.
    fn refuses(&self, list: &List, output: &Output) -> Option<&'static str> {
        if !self.shared.observation.crawler.is_enabled() {
            Some(DISABLED)
        } else if !self.shared.options.limits.dump_allowed {
            let refusal =
                if list.keys_only { "ERROR key dump not allowed" } else { "ERROR metadump not allowed" };
            Some(refusal)
        } else if !output.is_empty() {
            Some("ERROR cannot pipeline other commands before metadump")
        } else {
            None
        }
    }

    fn set_memory_limit(&self, mebibytes: u64) -> Reply<'static> {
        if mebibytes < CACHE_MEMLIMIT_MIN_MIB {
            return Reply::Refused(Refusal::LimitTooSmall);
        }
        if mebibytes > CACHE_MEMLIMIT_MAX_MIB {
            return Reply::Refused(Refusal::LimitInBytes);
        }
        // Beyond it the shards would be full before the limit is near, and then refuse instead of evicting.
        let reach_mib = self.shared.memory.reach_mib();
        if mebibytes > reach_mib {
            tracing::warn!("{mebibytes} MiB cannot be reached from here, only {reach_mib}: restart with -m");
            return Reply::Refused(Refusal::LimitNotAdjustable);
        }
        self.shared.memory.set_limit_mib(mebibytes, &self.shared.databases);
        self.shared.observation.observers.tell(Streams::SYSTEM, |line| {
            line.extend_from_slice(format!("memory_limit mib={mebibytes}").as_bytes());
        });
        Reply::Done
    }
}
