//! Defines the server: it opens its listeners and databases, runs its threads and stops them.

#[cfg(feature = "cassandra")]
use crate::databases::ServedDatabase;
use crate::databases::maintenance;
use crate::databases::memory::MemoryBudget;
use crate::databases::opening::{self, DatabaseOpener, when_full};
use crate::databases::shards;
use crate::databases::shutdown_deadline::{self, ProgressDisk, ShutdownDeadline};
use crate::databases::snapshots;
use crate::databases::{self, PersistenceState, ServedDatabases, failed};
use crate::handle::{ServerHandle, StopStage};
use crate::lifecycle::ServerLifecycle;
use crate::observation::ServerObservation;
use crate::observation::admin::{self, AdminListener, AdminStopper};
use crate::observation::connection_table::ConnectionTable;
use crate::observation::nutcracker_port::NutcrackerPort;
use crate::options::ServerOptions;
use crate::pid_file::PidFile;
use crate::process;
use crate::proxy::{LiveProxy, ProxyReloader, ProxyState, ServerResolver};
use crate::replica::{MasterLink, ReplicaAcks, ReplicaTable};
use crate::session::kyoto::{KyotoState, LuaProcedures};
use crate::session::login::LoginAuthenticator;
use crate::session::tyrant::{TyrantScripts, TyrantState};
use crate::session::wake::WakeQueues;
use crate::shared::{ListeningAddresses, SharedState};
use crate::transport::acceptor::ConnectionAcceptor;
use crate::transport::client_ring;
use crate::transport::descriptors::DescriptorLimit;
use crate::transport::listener::ClientListener;
use crate::transport::served_listener::ServedListener;
use crate::transport::tls::Tls;
use crate::transport::udp::{self, UdpThread};
use crate::transport::worker::Worker;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana::disk::{Disk, SystemDisk};
use todana::{CachedClock, Clock, DatabaseStorage, LoadProgress, OpenDatabase, OpeningReport};
use todana_engine::EvictionObserver;
use todana_protocol::memcached::{CHUNK_SIZES, DialectChoice, ITEM_OVERHEAD_BYTES};

/// The number of descriptors that are reserved for the files of each hash on disk.
const HASH_FILES: u64 = 8192;

/// A server that listens and is ready to run.
pub struct Server {
    shared: Arc<SharedState>,
    acceptor: ConnectionAcceptor,
    workers: Vec<Worker>,
    udp: Option<UdpThread>,
    tcp_addresses: Vec<SocketAddr>,
    /// The pid file, which is removed when the server ends.
    pid_file: Option<PidFile>,
    admin: Option<AdminState>,
    udp_addresses: Vec<SocketAddr>,
    /// The owner of each database.
    owners: Vec<OpenDatabase>,
    disk: Arc<dyn Disk>,
    /// The descriptor and the dialect of each listener.
    listening: Vec<(i32, Option<DialectChoice>)>,
    proxy_reloader: Option<ProxyReloader>,
    nutcracker_port: Option<NutcrackerPort>,
}

/// The admin pages.
enum AdminState {
    /// The listener is bound; its thread is not running yet.
    Bound(AdminListener),
    AdminThread(AdminThread),
}

/// The thread of the admin pages. It ends when this value is dropped.
struct AdminThread {
    stopper: AdminStopper,
    addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for AdminThread {
    fn drop(&mut self) {
        self.stopper.end();
        let Some(thread) = self.thread.take() else { return };
        // The thread may wait for the lock of an engine. The holder of this lock may be waiting for
        // a disk that does not respond, so this thread is not joined for longer than a limit.
        let since = Instant::now();
        if databases::has_ended(&thread, &|| since.elapsed() >= shutdown_deadline::SHORT)
            && thread.join().is_err()
        {
            tracing::error!("admin pages: the thread panicked");
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error())
}

impl Server {
    /// Opens the listeners, creates the databases and writes the pid file. Fails if an option is
    /// invalid, or an address or the file cannot be opened; the message names it.
    pub fn bind(options: ServerOptions) -> io::Result<Server> {
        options.validate().map_err(invalid)?;
        let tls = options.listen.tls.as_ref().map(Tls::load).transpose().map_err(invalid)?;
        Server::bind_with(options, tls)
    }

    /// Returns the state that all threads share.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<SharedState> {
        &self.shared
    }

    /// Does the same as [`bind`](Self::bind), with certificates that have been read already, for
    /// example with more privileges.
    pub fn bind_with(options: ServerOptions, tls: Option<Tls>) -> io::Result<Server> {
        Server::bind_on(options, tls, Arc::new(SystemDisk))
    }

    /// Does the same as [`bind_with`](Self::bind_with), with databases on another disk, for tests.
    pub fn bind_on(options: ServerOptions, tls: Option<Tls>, disk: Arc<dyn Disk>) -> io::Result<Server> {
        options.validate().map_err(invalid)?;
        let disk_progress = Arc::default();
        let disk = ProgressDisk::over(disk, &disk_progress);
        let tls = tls.map(Arc::new);
        let uses_rings = client_ring::is_used(&options)?;
        let logins = LoginAuthenticator::open(&options.protocols.authentication)?;
        let scripts = LuaProcedures::open(options.protocols.kyoto.script.as_deref()).map_err(invalid)?;
        let tyrant_scripts =
            TyrantScripts::open(&options.protocols.tyrant, options.limits.threads).map_err(invalid)?;
        let listeners = ServedListener::open_all(&options, tls.as_ref())?;
        let sockets = || listeners.iter().map(|listener| &listener.socket);
        let datagrams = udp::DatagramSocket::open(&options)?;
        let udp_addresses: Vec<SocketAddr> =
            datagrams.iter().filter_map(udp::DatagramSocket::address).collect();
        let tcp_addresses: Vec<SocketAddr> = sockets().filter_map(ClientListener::tcp_address).collect();
        let admin = AdminListener::bind(options.observation.admin.as_ref())?;
        let nutcracker_stats = options.proxy.as_ref().and_then(|proxy| proxy.nutcracker_stats.as_ref());
        let nutcracker_port = nutcracker_stats.map(NutcrackerPort::bind).transpose()?;
        // The server needs descriptors for more than connections: listeners, polls, wakers, rings,
        // standard streams and files.
        let wanted = options.limits.connections_max as u64
            + 3 * options.limits.threads as u64
            + listeners.len() as u64
            + 32;
        let wanted = wanted + if admin.is_some() { admin::CONNECTIONS_MAX as u64 + 8 } else { 0 };
        // A hash on disk has one open file for each 128 MiB, and another one for reads that bypass
        // the system's cache.
        let hashes = options
            .databases
            .all()
            .iter()
            .filter(|one| one.name.kind.storage() == DatabaseStorage::Files)
            .count() as u64;
        let allowed = process::allow_files(wanted + hashes * HASH_FILES);
        let descriptors = DescriptorLimit::new(allowed, options.databases.all().len());
        // From here on, opening a file may exceed the limit of descriptors.
        let named =
            |error: io::Error| if is_out_of_descriptors(&error) { descriptors.too_few() } else { error };
        if allowed < wanted {
            tracing::warn!(
                "open files: the limit of {allowed} is too low for {} connections; raise `ulimit -n`",
                options.limits.connections_max
            );
        }
        for warning in options.memory.without_effect(&options.databases.all()) {
            tracing::warn!("{warning}");
        }
        let clock = Arc::new(CachedClock::new());
        let observers = ServerObservation::observers(&options, &clock);
        let class_bounds: Vec<u32> =
            CHUNK_SIZES.iter().map(|&size| size - ITEM_OVERHEAD_BYTES as u32).collect();
        let shards = shards::count(&options, process::machine_bytes());
        let mut observer = Some(Arc::clone(&observers) as Arc<dyn EvictionObserver>);
        let (mut databases, mut owners) = (Vec::new(), Vec::new());
        let opener = DatabaseOpener {
            options: &options,
            shards,
            class_bounds: &class_bounds,
            clock: &clock,
            disk: &disk,
        };
        for further in options.databases.all() {
            let (served, owner) = opener.open(further, observer.take()).map_err(io::Error::other)?;
            if options.databases.replication.makes_replica(databases.len()) {
                // Its log is loaded without regard to this server's clock, too.
                served.database.follow_master(true);
            }
            databases.push(served);
            owners.push(owner);
        }
        let databases = ServedDatabases::new(databases).map_err(io::Error::other)?;
        let handle = ServerHandle::new();
        let listening: Vec<(i32, Option<DialectChoice>)> = sockets().map(ClientListener::speaks).collect();
        let udp_sockets = datagrams.iter().map(|socket| (socket.descriptor(), socket.address()));
        let connection_table = ConnectionTable::new(sockets(), udp_sockets, clock.now().0);
        let wake_queues = Arc::new(WakeQueues::new(options.limits.threads));
        let reach_mib = shards as u64 * (shards::SHARD_BYTES >> 20);
        let proxy = options.proxy.as_ref().map(ProxyState::new).transpose().map_err(io::Error::other)?;
        let (database_count, replication) = (databases.len(), &options.databases.replication);
        let shared = Arc::new(SharedState {
            proxy: proxy.map(|state| Arc::new(LiveProxy::new(state))),
            observation: ServerObservation::new(&options, &clock, observers, connection_table),
            databases,
            clock,
            lifecycle: ServerLifecycle::new(handle.clone()),
            persistence: PersistenceState::new(disk_progress),
            memory: MemoryBudget::new(options.memory.limit_mib, reach_mib, when_full(&options)),
            logins,
            kyoto: KyotoState::new(scripts, options.limits.threads, &wake_queues),
            tyrant: TyrantState::new(tyrant_scripts),
            wake_queues,
            acks: ReplicaAcks::new(replication.acks, replication.ack_time_max, database_count),
            replicas: ReplicaTable::default(),
            master_link: MasterLink::default(),
            listening: ListeningAddresses {
                tcp_port: tcp_addresses.first().map_or(0, SocketAddr::port),
                udp_port: udp_addresses.first().map_or(0, SocketAddr::port),
                names: sockets().map(ClientListener::name).collect(),
                tls,
            },
            uses_rings,
            options,
        });
        todana_engine::bound_allocator();
        shared.measure_memory();
        let (changes, new_listeners) = channel();
        let proxy_reloader = shared.proxy.as_ref().map(|live| {
            let tls = shared.listening.tls.as_ref();
            ProxyReloader::new(live, &handle, tls, shared.options.listen.port, changes, &listeners)
        });
        let (mut acceptor, waker) =
            ConnectionAcceptor::new(Arc::clone(&shared), listeners, new_listeners, descriptors)
                .map_err(named)?;
        handle.add(waker);
        let mut workers = Vec::new();
        for number in 0..shared.options.limits.threads {
            let (sender, receiver) = channel();
            let (worker, waker) = Worker::new(Arc::clone(&shared), number, receiver).map_err(named)?;
            handle.add(Arc::clone(&waker));
            acceptor.add_worker(sender, waker);
            workers.push(worker);
        }
        acceptor.can_accept()?;
        let mut udp = None;
        if !datagrams.is_empty() {
            let (server, waker) =
                UdpThread::new(Arc::clone(&shared), datagrams, shared.options.limits.threads)?;
            handle.add(waker);
            udp = Some(server);
        }
        if let Some(port) = &nutcracker_port {
            handle.add(port.waker()?);
        }
        // The pid file is written last, so that it exists only if the server listens.
        let write = |path: &Path| {
            PidFile::write(path).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("pid file {}: cannot be written: {error}", path.display()),
                )
            })
        };
        let pid_file = shared.options.observation.pid_file.as_deref().map(write).transpose()?;
        let admin = admin.map(AdminState::Bound);
        Ok(Server {
            shared,
            acceptor,
            workers,
            udp,
            tcp_addresses,
            udp_addresses,
            pid_file,
            admin,
            owners,
            disk,
            listening,
            proxy_reloader,
            nutcracker_port,
        })
    }

    /// Locks the data directories for this process and creates them if they are missing. Starts no
    /// thread, so a process may still fork after it. [`load`](Server::load) calls it if necessary.
    /// Fails when a directory cannot be created, or another process has it.
    pub fn claim_data(&mut self) -> io::Result<()> {
        if let Some(options) = &self.shared.options.databases.snapshots {
            snapshots::prepare(&*self.disk, options, &self.shared.persistence.snapshots)?;
        }
        self.owners.iter_mut().try_for_each(OpenDatabase::lock).map_err(failed)
    }

    /// Loads the data directories and logs all changes from then on. The admin pages report the
    /// progress. [`run`](Server::run) calls it if necessary. Fails if a directory is in use,
    /// damaged or unreadable; the message names the directory and the problem.
    ///
    /// A stop of the server interrupts the loading: it then fails with `Interrupted`, and the
    /// directory is unchanged.
    pub fn load(&mut self, progress: &mut dyn FnMut(LoadProgress)) -> io::Result<Option<OpeningReport>> {
        let loads = self.shared.databases.iter().any(|served| served.data.is_some())
            || self.shared.options.databases.snapshots.is_some();
        self.shared.lifecycle.set_loading(loads);
        let pages = if loads { self.start_pages() } else { Ok(()) };
        let outcome = pages.and_then(|()| self.load_databases(progress));
        self.shared.lifecycle.set_loaded(outcome.is_ok());
        // The memory that only the load needed must not be taken from the records.
        todana_engine::trim_allocator();
        self.shared.measure_memory();
        outcome
    }

    fn load_databases(
        &mut self,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> io::Result<Option<OpeningReport>> {
        let shared = Arc::clone(&self.shared);
        if shared
            .databases
            .iter()
            .any(|served| served.data.is_some() || served.database.engine_sync().is_some())
        {
            // Without this handler, a write beyond the limit of file sizes would end the process.
            // With it, the write fails like any other.
            signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default())?;
        }
        self.claim_data()?;
        let handle = &shared.lifecycle.handle;
        let may_continue = || handle.stopping() == StopStage::No;
        let mut progress = |step| {
            progress(step);
            if may_continue() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        #[cfg(feature = "cassandra")]
        shared.databases.iter().try_for_each(ServedDatabase::connect).map_err(failed)?;
        let mut first = None;
        for (number, owner) in self.owners.iter_mut().enumerate() {
            // This closure must not own the log. Otherwise the log's own thread could drop the log
            // last, and would then wait for itself to end.
            let (wake_queues, exports) =
                (Arc::clone(&shared.wake_queues), Arc::clone(&shared.persistence.exports));
            let on_durable = move || {
                wake_queues.log_advanced();
                exports.notify_log_growth();
            };
            let opened = opening::load(owner, &mut progress, on_durable)?;
            snapshots::restore(&shared, number, opened.as_ref(), &*self.disk, &may_continue)?;
            if number == 0 {
                first = opened;
            }
        }
        shared.persistence.exports.set_directories(self.owners.iter().map(OpenDatabase::directory));
        Ok(first)
    }

    /// Starts the thread of the admin pages, unless it is running.
    fn start_pages(&mut self) -> io::Result<()> {
        self.admin = match self.admin.take() {
            Some(AdminState::Bound(admin)) => {
                let (stopper, addresses) = (admin.stopper(), admin.addresses().to_vec());
                let shared = Arc::clone(&self.shared);
                let thread = std::thread::Builder::new().name("admin".into());
                let thread = Some(thread.spawn(move || admin.run(shared))?);
                Some(AdminState::AdminThread(AdminThread { stopper, addresses, thread }))
            }
            other => other,
        };
        Ok(())
    }

    /// Returns the TCP addresses of the listeners, with the ports that the system chose.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp_addresses
    }

    /// Returns the UDP addresses of the server.
    pub fn udp_addresses(&self) -> &[SocketAddr] {
        &self.udp_addresses
    }

    /// Returns the addresses of the listeners as users write them: TCP addresses (`todanas://` with
    /// TLS), or the path of the Unix socket.
    pub fn listening_on(&self) -> &[String] {
        &self.shared.listening.names
    }

    /// Returns the addresses of the admin pages; empty if there are no pages.
    pub fn admin_addresses(&self) -> &[SocketAddr] {
        match &self.admin {
            None => &[],
            Some(AdminState::Bound(admin)) => admin.addresses(),
            Some(AdminState::AdminThread(answering)) => &answering.addresses,
        }
    }

    /// Returns the handle that stops the server.
    pub fn handle(&self) -> ServerHandle {
        self.shared.lifecycle.handle.clone()
    }

    /// Returns a function that reads the files of certificates, users and scripts again. The
    /// function logs the outcome.
    pub fn reloader(&self) -> impl Fn() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            match shared.listening.tls.as_deref().map(Tls::refresh) {
                None => {}
                Some(Ok(())) => tracing::info!("certificates: reloaded for new connections"),
                Some(Err(error)) => {
                    tracing::error!("certificates: not reloaded, the old ones stay in use: {error}")
                }
            }
            shared.logins.reload();
            shared.kyoto.scripts.reload();
            shared.tyrant.scripts.reload();
        }
    }

    /// Returns the names of the files that the function of [`Server::reloader`] reads.
    pub fn reloadable(&self) -> Vec<&'static str> {
        let protocols = &self.shared.options.protocols;
        let all = [
            ("certificates", self.shared.listening.tls.is_some()),
            ("users", !matches!(self.shared.logins, LoginAuthenticator::Off)),
            ("scripts", protocols.kyoto.script.is_some() || protocols.tyrant.script.is_some()),
        ];
        all.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
    }

    /// Returns the value that replaces the options of a proxy; `None` if this server is none.
    pub fn proxy_reloader(&self) -> Option<ProxyReloader> {
        self.proxy_reloader.clone()
    }

    /// Returns the address of the statistics in twemproxy's form; `None` if they are not served.
    pub fn nutcracker_stats_address(&self) -> Option<SocketAddr> {
        self.nutcracker_port.as_ref().and_then(NutcrackerPort::address)
    }

    fn log_listeners(&self) {
        for &(descriptor, choice) in &self.listening {
            let speaks = match self.shared.choice(choice) {
                DialectChoice::Auto => "auto-negotiate",
                DialectChoice::Text => "ascii",
                DialectChoice::Binary => "binary",
            };
            self.shared.observation.log_request(|entry| entry.listening(descriptor, speaks));
        }
        for info in self.shared.observation.connection_table.datagrams() {
            self.shared.observation.log_request(|entry| entry.listening(info.descriptor, "udp"));
        }
    }

    /// Serves clients until the server is stopped. At the end, removes the pid file.
    pub fn run(self) -> io::Result<()> {
        self.run_reporting(&|_| ())
    }

    /// Does the same as [`run`](Self::run). While the server stops, calls `report` at the begin of
    /// each step and after progress, with the time within which the next call, or the end, follows.
    pub fn run_reporting(mut self, report: &dyn Fn(Duration)) -> io::Result<()> {
        if !self.owners.iter().all(OpenDatabase::is_loaded) {
            self.load(&mut |_| ())?;
        }
        self.start_pages()?;
        let replication_start = self.shared.persistence.snapshots.replication_start();
        self.shared.master_link.start(&self.shared, replication_start, &self.disk)?;
        let snapshots = snapshots::SnapshotKeeper::start(&self.shared, Arc::clone(&self.disk))?;
        self.shared.tyrant.scripts.start(&self.shared)?;
        if self.shared.observation.logs_requests() {
            self.log_listeners();
        }
        let mut threads = Vec::new();
        for (number, worker) in self.workers.into_iter().enumerate() {
            let name = format!("worker-{number}");
            let thread = std::thread::Builder::new().name(name.clone()).spawn(move || worker.run())?;
            threads.push((name, thread));
        }
        if let Some(udp) = self.udp {
            let thread = std::thread::Builder::new().name("udp".into()).spawn(move || udp.run())?;
            threads.push(("udp".into(), thread));
        }
        if let Some(port) = self.nutcracker_port {
            let shared = Arc::clone(&self.shared);
            let serve = move || port.run(&shared);
            threads.push((
                "statistics".into(),
                std::thread::Builder::new().name("statistics".into()).spawn(serve)?,
            ));
        }
        let shared = Arc::clone(&self.shared);
        let maintenance = std::thread::Builder::new()
            .name("maintenance".into())
            .spawn(move || maintenance::run(&shared))?;
        let shared = Arc::clone(&self.shared);
        let verifier = self.shared.logins.are_slow().then(|| {
            std::thread::Builder::new().name("verifier".into()).spawn(move || shared.logins.verify_all())
        });
        let verifier = verifier.transpose()?;
        let resolver = self.shared.proxy.as_ref().map(ServerResolver::start).transpose()?;
        self.acceptor.run();
        drop(resolver);
        maintenance.thread().unpark();
        let disk_progress = &self.shared.persistence.disk_progress;
        let mut deadline = ShutdownDeadline::new(&self.shared.lifecycle.handle, disk_progress, report);
        let mut abandoned = Vec::new();
        for (name, thread) in threads {
            if !databases::has_ended(&thread, &|| deadline.is_over()) {
                abandoned.push(name);
            } else if thread.join().is_err() {
                tracing::error!("{name}: the thread panicked");
            }
        }
        if !abandoned.is_empty() {
            // The abandoned thread may hold locks that all later steps need, so further waiting is
            // useless.
            deadline.has_expired_before = true;
            let names = abandoned.join(", ");
            tracing::warn!("{names}: a request is unfinished, because the disk does not respond");
        }
        // Logins are closed only after the workers have ended, because a worker that still answers
        // requests may wait for a login.
        self.shared.logins.close();
        if let Some(verifier) = verifier {
            let _ = verifier.join();
        }
        let deadline = deadline.renewed();
        let mut closed = maintenance::end(maintenance, &|| deadline.is_over());
        for owner in &mut self.owners {
            if !owner.stop_checkpoints(Some(&|| deadline.is_over())) {
                tracing::warn!("checkpoint: unfinished, because the disk does not respond");
            }
        }
        // The connections of all exports are closed by now. Exports end after the snapshot keeper,
        // because an export may wait for the checkpoint that the keeper has just interrupted.
        self.shared.persistence.exports.close_unless(&|| deadline.is_over());
        if !self.shared.kyoto.calls.close_unless(&|| deadline.is_over()) {
            tracing::warn!("long procedure: unfinished, because the disk does not respond");
        }
        for calls in [&self.shared.tyrant.calls, &self.shared.tyrant.file_calls] {
            if !calls.close_unless(&|| deadline.is_over()) {
                tracing::warn!("long command: unfinished, because the disk does not respond");
            }
        }
        if !self.shared.tyrant.scripts.end(&self.shared, &|| deadline.is_over()) {
            tracing::warn!("script: unfinished, because it did not end in time");
        }
        if !self.shared.kyoto.script_calls.close_unless(&|| deadline.is_over()) {
            tracing::warn!("script: unfinished, because it did not end in time");
        }
        self.shared.kyoto.scripts.close();
        self.shared.replicas.end(&|| deadline.is_over());
        self.shared.master_link.end(&|| deadline.is_over());
        // The last snapshots contain every acknowledged change.
        let deadline = deadline.renewed();
        if !snapshots.is_none_or(|keeper| keeper.end(&|| deadline.is_over())) {
            tracing::warn!("last snapshots: unfinished, because the disk does not respond");
        }
        // Each of the following waits gets a new deadline, because interrupting the work before it
        // may have used up the previous deadline.
        let deadline = deadline.renewed();
        for owner in &mut self.owners {
            opening::make_last_checkpoint(owner, &|| deadline.is_over());
        }
        let deadline = deadline.renewed();
        for mut owner in self.owners {
            let outcome = owner.close(Some(&|| deadline.is_over()));
            // If a database has failed, its error is returned rather than this one.
            closed = outcome.and(closed);
        }
        // The admin pages end last, so that they can report that the server is stopping.
        drop(self.admin);
        drop(self.pid_file);
        if let Some(spans) = &self.shared.observation.spans {
            spans.finish();
        }
        if let Some(log) = &self.shared.observation.request_log {
            log.finish();
        }
        closed.map_err(failed)
    }
}

fn invalid(error: impl std::error::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{DatabaseOptions, DatabaseSpec, LimitOptions, ListenOptions, MemoryOptions};
    use todana::DatabaseName;
    use todana_core::{Operation, Store};

    /// The index and the files of a hash on disk were once counted as memory outside of the
    /// engines. The database in memory in the same server therefore got less memory than the limit
    /// allowed.
    #[test]
    fn database_on_disk_takes_no_memory_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let name = DatabaseName::parse(folder.path().join("x.hash").to_str().unwrap()).unwrap();
        let further = vec![DatabaseSpec { name, data: None }];
        let options = ServerOptions {
            listen: ListenOptions { port: 0, ..ListenOptions::default() },
            memory: MemoryOptions { limit_mib: 256, ..MemoryOptions::default() },
            databases: DatabaseOptions { further, ..DatabaseOptions::default() },
            limits: LimitOptions { threads: 1, ..LimitOptions::default() },
            ..ServerOptions::default()
        };
        let mut server = Server::bind(options).unwrap();
        server.load(&mut |_| ()).unwrap();
        let shared = Arc::clone(&server.shared);
        let hash = &shared.databases[1].database;
        let (worker_counters, value) = (hash.worker_counters(), [7; 4000]);
        let keys = || (0..20_000u32).map(u32::to_le_bytes);
        for key in keys() {
            let store = Operation::Store(Store { key: &key, value: &value, ..Store::default() });
            hash.execute(&worker_counters, &store, &mut |_| ());
        }
        hash.engine().durable().unwrap().sync().unwrap();
        for _ in 0..2 {
            keys().for_each(|key| assert!(hash.engine().view(&key, &mut |_| ()).unwrap()));
        }
        // The files of the hash are mapped. Its index and its write buffers are anonymous memory of
        // the process.
        let anonymous = || process::anonymous_bytes().unwrap();
        let mapped = process::resident_bytes() - anonymous();
        let held = hash.status().committed_bytes;
        assert!(mapped > 8 << 20 && held > 0, "{mapped}, {held}");
        // Other tests of this process may allocate and free memory at the same time.
        let before = anonymous();
        shared.measure_memory();
        let most = before.max(anonymous());
        let outside = shared.memory.outside_bytes();
        assert!(outside + held <= most + (8 << 20), "{outside} + {held}, {most}");
        let limit = shared.databases.primary().database.engine().bounded().unwrap().limit().bytes.unwrap();
        assert_eq!(limit, crate::databases::memory::engine_limit(256 << 20, outside));
    }
}
