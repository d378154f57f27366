//! The server as a whole: opened, run, stopped.

use crate::acceptor::Acceptor;
use crate::admin::{self, Admin, Ending};
use crate::conversation_log::{ConversationLog, Entry};
use crate::counters::{ConnectionCounters, WorkerCounters, WorkerSums};
use crate::crawler::Crawler;
use crate::databases::{self, Kept, Making, Served, failed, when_full};
use crate::exports::Exports;
use crate::janitor;
use crate::listener::Listener;
use crate::login::Logins;
use crate::observers::Observers;
use crate::options::{DataPlace, Options};
use crate::patience::{self, Patience, Pulse, Watched};
use crate::pid_file::PidFile;
use crate::prefixes::Prefixes;
use crate::process;
use crate::roster::Roster;
use crate::settling::Settling;
use crate::statistics::Baseline;
use crate::tls::Tls;
use crate::udp::{self, Udp};
use crate::watchers::Watchers;
use crate::worker::Worker;
use mio::Waker;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use todana::disk::{Disk, SystemDisk};
use todana::update_log::LogOptions;
use todana::{CachedClock, Catalog, CatalogEntry, Clock, DataOptions, Database, Kind, Opened, Progress};
use todana_core::{LONG_VALUE_LEN, MemoryLimit};
use todana_engine::EvictionObserver;
use todana_protocol::memcached::{CHUNK_SIZES, Choice, ITEM_OVERHEAD_BYTES};

/// What connections may keep together where there is no memory limit.
const HELD_MAX: u64 = 1 << 30;

/// How much of the update log may wait for the disk in memory: a share of the memory limit, within these bounds. The disk gets
/// it in pieces of a quarter of a megabyte at least.
const BACKLOG_MIN: u64 = 1 << 20;
const BACKLOG_MAX: u64 = 32 << 20;

/// Descriptors that are asked for besides, for each hash on disk.
const HASH_FILES: u64 = 4096;

/// Beyond so many shards, threads do not meet in one more rarely.
const SHARDS_FOR_THREADS_MAX: usize = 256;
/// What a shard is planned to hold: half of the 32 GiB that its handles can address, as records are not spread evenly and
/// its pages are not all full.
const SHARD_BYTES: u64 = 16 << 30;
/// More the engine does not take.
const SHARDS_MAX: u64 = 4096;

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
    No,
    /// What has been received is answered, within seconds.
    Drain,
    AtOnce,
}

/// Stops a server from another thread.
#[derive(Clone)]
pub struct Handle(Arc<HandleState>);

struct HandleState {
    stopping: AtomicU8,
    wakers: Mutex<Vec<Arc<Waker>>>,
}

impl Handle {
    pub(crate) fn new() -> Handle {
        Handle(Arc::new(HandleState { stopping: AtomicU8::new(0), wakers: Mutex::new(Vec::new()) }))
    }

    /// Stops the server: no new connections, what has been received is answered, then it ends. The second time it
    /// ends at once.
    pub fn stop(&self) {
        let _ = self
            .0
            .stopping
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |stage| Some((stage + 1).min(2)));
        for waker in self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // A loop that is gone needs no waking.
            let _ = waker.wake();
        }
    }

    pub(crate) fn stopping(&self) -> Stopping {
        match self.0.stopping.load(Ordering::SeqCst) {
            0 => Stopping::No,
            1 => Stopping::Drain,
            _ => Stopping::AtOnce,
        }
    }

    fn add(&self, waker: Arc<Waker>) {
        self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
    }
}

/// What all threads of a server share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    /// The first one, that memcached's protocols use.
    pub(crate) database: Arc<Database>,
    /// All of them, in their order.
    pub(crate) databases: Vec<Served>,
    /// The same by number and name, for protocols whose clients choose.
    pub(crate) catalog: Catalog,
    /// Values from this length on come straight into memory of the engine's, where it has such memory. Else they wait in the
    /// connection's, bounded as all that is not whole.
    pub(crate) long_block_len: usize,
    pub(crate) clock: Arc<CachedClock>,
    pub(crate) handle: Handle,
    /// Of the disk of the databases.
    pulse: Arc<Pulse>,
    pub(crate) started: Instant,
    pub(crate) started_at: u64,
    pub(crate) connections: ConnectionCounters,
    pub(crate) workers: Vec<WorkerCounters>,
    /// What they had counted at the last `stats reset`.
    at_reset: Mutex<WorkerSums>,
    pub(crate) logins: Logins,
    pub(crate) memory_limit_mib: AtomicU64,
    /// The highest limit that the engine's shards can fill. How many there are is settled at the start.
    pub(crate) memory_reach_mib: u64,
    pub(crate) verbosity: AtomicU32,
    /// Where requests are told, if they may be.
    conversation: Option<ConversationLog>,
    pub(crate) roster: Roster,
    pub(crate) crawler: Crawler,
    /// Rounds of the janitor.
    pub(crate) housekeepings: AtomicU64,
    /// What had been counted when the statistics were last reset.
    pub(crate) baseline: Baseline,
    pub(crate) observers: Arc<Observers>,
    /// A database lies in a file that is mapped into memory ...
    has_mapped_files: bool,
    /// ... before which so much of other files was: the program.
    mapped_at_start: u64,
    /// What the process held besides the engine when last measured.
    outside_bytes: AtomicU64,
    /// Workers that wait for the update log.
    pub(crate) settling: Arc<Settling>,
    /// Checkpoints, backups and logs under way to clients.
    pub(crate) exports: Arc<Exports>,
    /// What is kept is being read back.
    is_loading: AtomicBool,
    /// It could not be.
    has_not_loaded: AtomicBool,
    /// What connections keep between their turns.
    held_bytes: AtomicU64,
    pub(crate) tcp_port: u16,
    pub(crate) udp_port: u16,
    pub(crate) listening_on: Vec<String>,
    pub(crate) tls: Option<Arc<Tls>>,
}

impl Shared {
    /// The first database, that memcached's protocols use.
    #[inline]
    pub(crate) fn first(&self) -> &Served {
        &self.databases[0]
    }

    /// Does this to each database.
    pub(crate) fn each(&self, act: impl Fn(&Database)) {
        self.databases.iter().for_each(|served| act(&served.database));
    }

    pub(crate) fn stopping(&self) -> Stopping {
        self.handle.stopping()
    }

    /// The dialect of connections that have come where this one is spoken. Where clients have to log in, how they do that
    /// decides instead: no listener lets them in by another dialect without.
    pub(crate) fn choice(&self, of_listener: Option<Choice>) -> Choice {
        self.logins.limits(of_listener.unwrap_or(self.options.protocol)).choice
    }

    /// Whether requests are told.
    pub(crate) fn is_aloud(&self) -> bool {
        self.conversation.is_some() && self.verbosity.load(Ordering::Relaxed) > 1
    }

    /// Tells a part of the conversation.
    #[cold]
    pub(crate) fn tell(&self, write: impl FnOnce(&mut Entry<'_>)) {
        if let Some(log) = &self.conversation {
            log.tell(write);
        }
    }

    /// How much is logged: nothing twice, where requests and connections are told.
    pub(crate) fn log_verbosity(&self) -> u32 {
        let verbosity = self.verbosity.load(Ordering::Relaxed);
        if self.conversation.is_some() { verbosity.min(1) } else { verbosity }
    }

    /// What the workers have counted since the last reset.
    pub(crate) fn worker_sums(&self) -> WorkerSums {
        // Read under the lock, so that no reset comes in between.
        let at_reset = self.at_reset.lock().unwrap_or_else(PoisonError::into_inner);
        WorkerSums::of(&self.workers).since(*at_reset)
    }

    pub(crate) fn reset_worker_sums(&self) {
        let mut at_reset = self.at_reset.lock().unwrap_or_else(PoisonError::into_inner);
        *at_reset = WorkerSums::of(&self.workers);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.current.fetch_sub(1, Ordering::Relaxed);
    }

    /// The limit of the whole process in bytes, `None` for none.
    pub(crate) fn memory_limit_bytes(&self) -> Option<u64> {
        Some(self.memory_limit_mib.load(Ordering::Relaxed)).filter(|&mib| mib != 0).map(|mib| mib << 20)
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn held_changed(&self, before: u64, now: u64) {
        // Wraps around where it shrinks.
        self.held_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// What all connections together may keep besides long values, which are the engine's.
    pub(crate) fn held_max(&self) -> u64 {
        self.memory_limit_bytes().map_or(HELD_MAX, |limit| limit / 4)
    }

    /// What a connection that keeps `own` bytes may keep.
    pub(crate) fn held_room(&self, own: u64) -> usize {
        let others = self.held_bytes().saturating_sub(own);
        usize::try_from(self.held_max().saturating_sub(others)).unwrap_or(usize::MAX)
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading.load(Ordering::Relaxed)
    }

    pub(crate) fn has_not_loaded(&self) -> bool {
        self.has_not_loaded.load(Ordering::Relaxed)
    }

    /// Measures what the process holds besides the engine, and gives the engine the rest.
    pub(crate) fn measure_memory(&self) {
        if self.memory_limit_bytes().is_some() {
            // Those on disk, too: what they hold is theirs besides the limit, and takes nothing from those in memory.
            let committed = || {
                let all = self.databases.iter().map(|served| served.database.engine());
                all.map(|engine| engine.status().committed_bytes).sum()
            };
            let before = committed();
            // Files of databases are mapped: what is resident of them is the system's to take back.
            let mapped = match self.has_mapped_files {
                true => process::mapped_bytes().saturating_sub(self.mapped_at_start),
                false => 0,
            };
            let resident = process::resident_bytes().saturating_sub(mapped);
            if resident == 0 {
                // There is no descriptor left to read it by. What was measured last is nearer to the truth than nothing, by
                // which the engine would take the rest's memory.
                return;
            }
            let last = self.outside_bytes.load(Ordering::Relaxed);
            let outside = janitor::outside_bytes(last, resident, before, committed());
            self.outside_bytes.store(outside, Ordering::Relaxed);
            self.apply_memory_limit();
        }
    }

    /// Tells the engine its limit.
    pub(crate) fn apply_memory_limit(&self) {
        let outside = self.outside_bytes.load(Ordering::Relaxed);
        let bounded = || {
            let bounded = |served: &'_ Served| served.database.engine().bounded().is_some();
            self.databases.iter().filter(move |served| bounded(served))
        };
        // Those in memory share alike.
        let count = bounded().count().max(1) as u64;
        let share = self.memory_limit_bytes().map(|limit| janitor::engine_limit(limit, outside) / count);
        for served in bounded() {
            let bytes = share.into_iter().chain(served.name.tuning.bytes_max).min();
            if let Some(bounded) = served.database.engine().bounded() {
                bounded.set_limit(MemoryLimit { bytes, when_full: when_full(&self.options) });
            }
        }
    }
}

/// A server that listens and is ready to run.
pub struct Server {
    shared: Arc<Shared>,
    acceptor: Acceptor,
    workers: Vec<Worker>,
    udp: Option<Udp>,
    tcp_addresses: Vec<SocketAddr>,
    /// Removed when the server ends.
    pid_file: Option<PidFile>,
    admin: Option<Pages>,
    udp_addresses: Vec<SocketAddr>,
    /// What keeps each database.
    kept: Vec<Kept>,
    /// Descriptors of what it listens on, and what is spoken there.
    listening: Vec<(i32, Option<Choice>)>,
}

/// The pages for monitoring.
enum Pages {
    /// They have their sockets.
    Bound(Admin),
    Answering(Answering),
}

/// The thread that answers for them. It ends when this is dropped.
struct Answering {
    ending: Ending,
    addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.ending.end();
        let Some(thread) = self.thread.take() else { return };
        // It may ask an engine whose lock is held by whoever waits for a disk that does not answer.
        let since = Instant::now();
        if databases::has_ended(&thread, &|| since.elapsed() >= patience::SHORT) && thread.join().is_err() {
            tracing::error!("the admin thread ended by a panic");
        }
    }
}

impl Server {
    /// Opens the listeners, makes the database and writes the pid file. Fails when an option is impossible, or an address
    /// or the file cannot be had; the message names it.
    pub fn bind(options: Options) -> io::Result<Server> {
        options.validate().map_err(invalid)?;
        let tls = options.tls.as_ref().map(Tls::load).transpose().map_err(invalid)?;
        Server::bind_with(options, tls)
    }

    /// The same with certificates that have been read already, perhaps by a user who may read more.
    pub fn bind_with(options: Options, tls: Option<Tls>) -> io::Result<Server> {
        Server::bind_on(options, tls, Arc::new(SystemDisk))
    }

    /// The same with databases on a disk that need not be the machine's: for tests.
    pub fn bind_on(options: Options, tls: Option<Tls>, disk: Arc<dyn Disk>) -> io::Result<Server> {
        options.validate().map_err(invalid)?;
        let pulse = Arc::default();
        let disk = Watched::over(disk, &pulse);
        let tls = tls.map(Arc::new);
        let logins = Logins::open(&options.authentication)?;
        let listeners = Listener::open(&options, tls.as_ref())?;
        let datagrams = udp::Socket::open(&options)?;
        let udp_addresses: Vec<SocketAddr> = datagrams.iter().filter_map(udp::Socket::address).collect();
        let tcp_addresses: Vec<SocketAddr> = listeners.iter().filter_map(Listener::tcp_address).collect();
        let admin = Admin::bind(options.admin.as_ref())?;
        // Descriptors besides those of connections: listeners, polls, wakers, standard streams, files.
        let wanted =
            options.connections_max as u64 + 2 * options.threads as u64 + listeners.len() as u64 + 32;
        let wanted = wanted + if admin.is_some() { admin::CONNECTIONS_MAX as u64 + 8 } else { 0 };
        // A hash on disk has a file open for each 128 MiB.
        let hashes = options.databases().iter().filter(|one| one.name.kind == Kind::DiskHash).count() as u64;
        let allowed = process::allow_files(wanted + hashes * HASH_FILES);
        if allowed < wanted {
            tracing::warn!(
                "only {allowed} files may be open, so fewer than {} connections can be; raise `ulimit -n`",
                options.connections_max
            );
        }
        let clock = Arc::new(CachedClock::new());
        let observers = Arc::new(Observers::new(
            Watchers::new(options.watcher_buffer_bytes),
            Prefixes::new(options.prefix_delimiter.unwrap_or(b':')),
            Arc::clone(&clock),
        ));
        observers.count_prefixes(options.prefix_delimiter.is_some());
        let class_bounds: Vec<u32> =
            CHUNK_SIZES.iter().map(|&size| size - ITEM_OVERHEAD_BYTES as u32).collect();
        let shards = shards(&options, process::machine_bytes());
        let mut observer = Some(Arc::clone(&observers) as Arc<dyn EvictionObserver>);
        let mapped_at_start = process::mapped_bytes();
        let (mut databases, mut kept) = (Vec::new(), Vec::new());
        for further in options.databases() {
            let (class_bounds, clock) = (class_bounds.as_slice(), &clock);
            let (observer, disk) = (observer.take(), &disk);
            let making = Making { options: &options, shards, class_bounds, observer, clock, disk };
            let (one, its_own) = making.open(further).map_err(io::Error::other)?;
            databases.push(one);
            kept.push(its_own);
        }
        let entry =
            |one: &Served| CatalogEntry { name: one.name.clone(), database: Arc::clone(&one.database) };
        let catalog = Catalog::new(databases.iter().map(entry).collect()).map_err(io::Error::other)?;
        let is_on_disk = |one: &Served| matches!(one.name.kind, Kind::DiskTree | Kind::DiskHash);
        let has_mapped_files = databases.iter().any(is_on_disk);
        let handle = Handle::new();
        let listening: Vec<(i32, Option<Choice>)> = listeners.iter().map(Listener::speaks).collect();
        let shared = Arc::new(Shared {
            started: Instant::now(),
            started_at: clock.now().0,
            roster: Roster::new(&listeners, &datagrams, clock.now().0),
            database: Arc::clone(&databases[0].database),
            long_block_len: if databases[0].has_buffers { LONG_VALUE_LEN } else { usize::MAX },
            databases,
            catalog,
            clock,
            handle: handle.clone(),
            pulse,
            connections: ConnectionCounters::default(),
            // One more, for UDP.
            workers: (0..=options.threads).map(|_| WorkerCounters::default()).collect(),
            at_reset: Mutex::default(),
            logins,
            memory_limit_mib: AtomicU64::new(options.memory_limit_mib),
            memory_reach_mib: options.memory_limit_mib.max(shards as u64 * (SHARD_BYTES >> 20)),
            verbosity: AtomicU32::new(options.verbosity.into()),
            conversation: options.tells_requests.then(ConversationLog::new),
            crawler: Crawler::new(options.crawler_enabled),
            housekeepings: AtomicU64::new(0),
            baseline: Baseline::default(),
            observers,
            has_mapped_files,
            mapped_at_start,
            outside_bytes: AtomicU64::new(0),
            settling: Arc::new(Settling::new(options.threads)),
            exports: Arc::default(),
            is_loading: AtomicBool::new(false),
            has_not_loaded: AtomicBool::new(false),
            held_bytes: AtomicU64::new(0),
            tcp_port: tcp_addresses.first().map_or(0, SocketAddr::port),
            udp_port: udp_addresses.first().map_or(0, SocketAddr::port),
            listening_on: listeners.iter().map(Listener::name).collect(),
            tls,
            options,
        });
        shared.measure_memory();
        let (mut acceptor, waker) = Acceptor::new(Arc::clone(&shared), listeners)?;
        handle.add(waker);
        let (mut workers, mut wakers) = (Vec::new(), Vec::new());
        for number in 0..shared.options.threads {
            let (sender, receiver) = channel();
            let (worker, waker) = Worker::new(Arc::clone(&shared), number, receiver)?;
            handle.add(Arc::clone(&waker));
            wakers.push(Arc::clone(&waker));
            acceptor.add_worker(sender, waker);
            workers.push(worker);
        }
        shared.settling.set_wakers(wakers);
        let mut udp = None;
        if !datagrams.is_empty() {
            let (server, waker) = Udp::new(Arc::clone(&shared), datagrams, shared.options.threads)?;
            handle.add(waker);
            udp = Some(server);
        }
        // Last, so that whoever finds the file finds a server that listens.
        let pid_file = shared.options.pid_file.as_deref().map(PidFile::write).transpose()?;
        let admin = admin.map(Pages::Bound);
        Ok(Server {
            shared,
            acceptor,
            workers,
            udp,
            tcp_addresses,
            udp_addresses,
            pid_file,
            admin,
            kept,
            listening,
        })
    }

    /// Locks the data directory for this process, if there is to be one; it is made if it is not there. Starts no thread, so a
    /// process may still fork behind it. `load` does so if it has not been done. Fails when the directory cannot be made, or
    /// another process has it.
    pub fn claim_data(&mut self) -> io::Result<()> {
        self.claim_data_on(Watched::over(Arc::new(SystemDisk), &self.shared.pulse))
    }

    fn claim_data_on(&mut self, disk: Arc<dyn Disk>) -> io::Result<()> {
        for (served, kept) in self.shared.databases.iter().zip(&mut self.kept) {
            if let Some(place) = &served.data {
                kept.claim(Arc::clone(&disk), &place.directory).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Reads back what is kept in the data directory, if there is one, and keeps what changes from then on; the pages for
    /// monitoring tell of it meanwhile. `run` does so if it has not been done. Fails when the directory is in use, damaged or
    /// cannot be read; the message says which, and where.
    ///
    /// A stop calls it off: then it fails with `Interrupted`, and the directory is as it was.
    pub fn load(&mut self, progress: &mut dyn FnMut(Progress)) -> io::Result<Option<Opened>> {
        self.load_from(Arc::new(SystemDisk), progress)
    }

    /// The same from a disk that need not be the machine's: for tests.
    pub fn load_from(
        &mut self,
        disk: Arc<dyn Disk>,
        progress: &mut dyn FnMut(Progress),
    ) -> io::Result<Option<Opened>> {
        let loads = self.shared.databases.iter().any(|served| served.data.is_some());
        self.shared.is_loading.store(loads, Ordering::Relaxed);
        let pages = if loads { self.start_pages() } else { Ok(()) };
        let outcome = pages.and_then(|()| self.open(disk, progress));
        self.shared.has_not_loaded.store(outcome.is_err(), Ordering::Relaxed);
        self.shared.is_loading.store(false, Ordering::Relaxed);
        self.shared.measure_memory();
        outcome
    }

    fn open(
        &mut self,
        disk: Arc<dyn Disk>,
        progress: &mut dyn FnMut(Progress),
    ) -> io::Result<Option<Opened>> {
        let shared = Arc::clone(&self.shared);
        let disk = Watched::over(disk, &shared.pulse);
        if shared.databases.iter().any(|served| served.data.is_some() || served.syncing.is_some()) {
            // A limit to the size of files is to be an error like others, not the end of the process.
            signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default())?;
        }
        self.claim_data_on(Arc::clone(&disk))?;
        let backlog_max = shared.memory_limit_bytes().map_or(BACKLOG_MAX, |limit| limit / 16);
        let backlog_max = backlog_max.clamp(BACKLOG_MIN, BACKLOG_MAX);
        let handle = &shared.handle;
        let mut goes_on = |step| {
            progress(step);
            if handle.stopping() == Stopping::No { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let mut first = None;
        for (number, (served, kept)) in shared.databases.iter().zip(&mut self.kept).enumerate() {
            let options = served.data.as_ref().map_or_else(DataOptions::default, |place| {
                let DataPlace { sync, segment_len, segment_age, checkpoints, .. } = place.clone();
                DataOptions { log: LogOptions { sync, segment_len, segment_age, backlog_max }, checkpoints }
            });
            // Nothing that holds the log itself: its own thread would be the last to let go of it, and wait for itself.
            let (settling, exports) = (Arc::clone(&shared.settling), Arc::clone(&shared.exports));
            let came_on = move || {
                settling.came_on();
                exports.came_on();
            };
            let clock = Arc::clone(&shared.clock) as Arc<dyn Clock>;
            let opened = kept.start(served, Arc::clone(&disk), clock, &options, &mut goes_on, came_on)?;
            if number == 0 {
                first = opened;
            }
        }
        shared.exports.set_directories(self.kept.iter().map(|kept| kept.directory.as_ref()));
        Ok(first)
    }

    /// Starts the thread that answers for the pages, unless it runs.
    fn start_pages(&mut self) -> io::Result<()> {
        self.admin = match self.admin.take() {
            Some(Pages::Bound(admin)) => {
                let (ending, addresses) = (admin.ending(), admin.addresses().to_vec());
                let shared = Arc::clone(&self.shared);
                let thread = std::thread::Builder::new().name("admin".into());
                let thread = Some(thread.spawn(move || admin.run(shared))?);
                Some(Pages::Answering(Answering { ending, addresses, thread }))
            }
            other => other,
        };
        Ok(())
    }

    /// The TCP addresses it listens on, with the ports that the system chose.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp_addresses
    }

    /// The UDP addresses it listens on.
    pub fn udp_addresses(&self) -> &[SocketAddr] {
        &self.udp_addresses
    }

    /// Where it listens, as people write it: TCP addresses (`todanas://` with TLS), or the path of the Unix socket.
    pub fn listening_on(&self) -> &[String] {
        &self.shared.listening_on
    }

    /// Where the pages for monitoring are; empty where there are none.
    pub fn admin_addresses(&self) -> &[SocketAddr] {
        match &self.admin {
            None => &[],
            Some(Pages::Bound(admin)) => admin.addresses(),
            Some(Pages::Answering(answering)) => &answering.addresses,
        }
    }

    /// What stops it.
    pub fn handle(&self) -> Handle {
        self.shared.handle.clone()
    }

    /// What reads again from its files what may change while it runs: certificates and users. Says in the log how that
    /// went.
    pub fn reloader(&self) -> impl Fn() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            match shared.tls.as_deref().map(Tls::refresh) {
                None => {}
                Some(Ok(())) => tracing::info!("certificates read again, for new connections"),
                Some(Err(error)) => tracing::error!("the certificates in use stay: {error}"),
            }
            shared.logins.reload();
        }
    }

    fn tell_listeners(&self) {
        for &(descriptor, choice) in &self.listening {
            let speaks = match self.shared.choice(choice) {
                Choice::Auto => "auto-negotiate",
                Choice::Text => "ascii",
                Choice::Binary => "binary",
            };
            self.shared.tell(|entry| entry.listening(descriptor, speaks));
        }
        for seat in self.shared.roster.datagrams() {
            self.shared.tell(|entry| entry.listening(seat.descriptor, "udp"));
        }
    }

    /// Serves until it is stopped. The pid file is removed at the end.
    pub fn run(mut self) -> io::Result<()> {
        if !self.kept.iter().all(Kept::is_kept) {
            self.load(&mut |_| ())?;
        }
        self.start_pages()?;
        if self.shared.is_aloud() {
            self.tell_listeners();
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
        let shared = Arc::clone(&self.shared);
        let janitor =
            std::thread::Builder::new().name("janitor".into()).spawn(move || janitor::run(&shared))?;
        let shared = Arc::clone(&self.shared);
        let verifier = self.shared.logins.are_slow().then(|| {
            std::thread::Builder::new().name("verifier".into()).spawn(move || shared.logins.verify_all())
        });
        let verifier = verifier.transpose()?;
        self.acceptor.run();
        janitor.thread().unpark();
        let mut patience = Patience::new(&self.shared.handle, &self.shared.pulse);
        let mut abandoned = Vec::new();
        for (name, thread) in threads {
            if !databases::has_ended(&thread, &|| patience.is_over()) {
                abandoned.push(name);
            } else if thread.join().is_err() {
                tracing::error!("a thread ended by a panic");
            }
        }
        if !abandoned.is_empty() {
            // It may hold locks that everything else needs: there is nothing to wait for.
            patience.has_been_tried = true;
            let who = abandoned.join(", ");
            tracing::warn!("{who}: a request is left unfinished, the disk of a database does not answer");
        }
        // Not before: workers that drain may wait for it.
        self.shared.logins.close();
        if let Some(verifier) = verifier {
            let _ = verifier.join();
        }
        let patience = patience.again();
        let mut closed = janitor::end(janitor, &|| patience.is_over());
        for kept in &mut self.kept {
            if !kept.end_keeper(&|| patience.is_over()) {
                tracing::warn!(
                    "a checkpoint that was being made is left unfinished: the disk does not answer"
                );
            }
        }
        // Their connections are closed. Behind the keeper: they may wait for the checkpoint that it has just called off.
        self.shared.exports.close_unless(&|| patience.is_over());
        // With patience of their own: what was called off may have used up that.
        let patience = patience.again();
        for (served, kept) in self.shared.databases.iter().zip(&mut self.kept) {
            kept.settle(served, &|| patience.is_over());
        }
        let patience = patience.again();
        for (served, mut kept) in self.shared.databases.iter().zip(self.kept) {
            let outcome = kept.close(served, &|| patience.is_over());
            // What a database says weighs more.
            closed = outcome.and(closed);
        }
        // Not before, so that it can say meanwhile that the server is stopping.
        drop(self.admin);
        drop(self.pid_file);
        if let Some(log) = &self.shared.conversation {
            log.finish();
        }
        closed.map_err(failed)
    }
}

fn invalid(error: impl std::error::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
}

/// Few shards where memory is scarce, as each keeps part-filled pages of its own; more where many threads write, or where
/// fewer could not address all the memory. Without a limit that is the machine's.
fn shards(options: &Options, machine_bytes: u64) -> usize {
    let by_threads = (options.threads * 2).next_power_of_two().min(SHARDS_FOR_THREADS_MAX);
    let (by_memory, bytes) = match options.memory_limit_mib {
        0 => (by_threads, machine_bytes),
        mib => ((mib / 8).clamp(1, SHARDS_FOR_THREADS_MAX as u64) as usize, mib << 20),
    };
    let addressing = bytes.div_ceil(SHARD_BYTES).min(SHARDS_MAX).next_power_of_two();
    by_threads.min(by_memory).max(addressing as usize)
}

/// Runs a server until SIGINT, SIGTERM or SIGUSR1; a second signal ends it at once. `progress` is told while data is read
/// back; `ready` is called once it serves.
pub fn serve(
    options: Options,
    progress: &mut dyn FnMut(Progress),
    ready: impl FnOnce(&Server, Option<&Opened>),
) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
    let mut server = Server::bind(options)?;
    let (handle, reload) = (server.handle(), server.reloader());
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1])?;
    let closer = signals.handle();
    let loads = Arc::new(AtomicBool::new(true));
    let still_loads = Arc::clone(&loads);
    let watcher = std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            if signal == SIGHUP {
                // Closed terminals and log rotations send it too; a cache must not go with them.
                reload();
                continue;
            }
            tracing::info!(signal, "stopping");
            handle.stop();
            if handle.stopping() == Stopping::AtOnce && still_loads.load(Ordering::SeqCst) {
                // The disk keeps it from hearing of it, and there is nothing to bring to an end.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        }
    })?;
    let outcome = match server.load(progress) {
        Ok(opened) => {
            loads.store(false, Ordering::SeqCst);
            ready(&server, opened.as_ref());
            server.run()
        }
        // It was asked to stop, and has, with everything on disk as it was.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            tracing::info!("stopped before all of the data was read back");
            Ok(())
        }
        Err(error) => Err(error),
    };
    closer.close();
    let _ = watcher.join();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Further;
    use todana::Name;
    use todana_core::{Command, Store};

    const GIB: u64 = 1 << 30;

    /// Index and files of a hash on disk were taken for the server's own, and the database in memory beside it had to make do with less.
    #[test]
    fn what_a_database_on_disk_holds_takes_nothing_from_one_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let name = Name::parse(folder.path().join("x.hash").to_str().unwrap()).unwrap();
        let further = vec![Further { name, data: None }];
        let options = Options { port: 0, threads: 1, memory_limit_mib: 256, further, ..Options::default() };
        let mut server = Server::bind(options).unwrap();
        server.load(&mut |_| ()).unwrap();
        let shared = Arc::clone(&server.shared);
        let hash = &shared.databases[1].database;
        let (lane, value) = (hash.lane(), [7; 4000]);
        let keys = || (0..20_000u32).map(u32::to_le_bytes);
        for key in keys() {
            let store = Command::Store(Store { key: &key, value: &value, ..Store::default() });
            hash.execute(&lane, &store, &mut |_| ());
        }
        hash.engine().durable().unwrap().sync().unwrap();
        for _ in 0..2 {
            keys().for_each(|key| assert!(hash.engine().view(&key, &mut |_| ()).unwrap()));
        }
        // Its index and what it gathers, and its files, which are mapped.
        let mapped = process::mapped_bytes() - shared.mapped_at_start;
        let held = hash.status().committed_bytes + mapped;
        assert!(mapped > 8 << 20 && held > mapped, "{mapped}, {held}");
        // Other tests may come and go in this process meanwhile.
        let before = process::resident_bytes();
        shared.measure_memory();
        let resident = before.max(process::resident_bytes());
        let outside = shared.outside_bytes.load(Ordering::Relaxed);
        assert!(outside + held <= resident + (8 << 20), "{outside} + {held}, {resident}");
        let limit = shared.first().database.engine().bounded().unwrap().limit().bytes.unwrap();
        assert_eq!(limit, janitor::engine_limit(256 << 20, outside));
    }

    fn shards_of(threads: usize, memory_limit_mib: u64, machine_bytes: u64) -> usize {
        shards(&Options { threads, memory_limit_mib, ..Options::default() }, machine_bytes)
    }

    #[test]
    fn small_memories_have_few_shards_and_many_threads_have_many() {
        assert_eq!(shards_of(4, 8, GIB), 1);
        assert_eq!(shards_of(4, 64, 512 * GIB), 8);
        assert_eq!(shards_of(32, 64, GIB), 8);
        assert_eq!(shards_of(32, 1024, GIB), 64);
        assert_eq!(shards_of(4, 0, GIB), 8);
        assert_eq!(shards_of(1, 64, GIB), 2);
    }

    /// A shard's handles end at 32 GiB: 8 of them left a limit of 300 GiB unreachable, and then nothing was evicted.
    #[test]
    fn all_of_a_large_memory_is_within_reach_of_the_shards() {
        for gib in [100, 256, 257, 300, 1 << 10, 50 << 10] {
            let limited = shards_of(1, gib << 10, GIB) as u64;
            let unlimited = shards_of(1, 0, gib * GIB) as u64;
            assert_eq!(limited, unlimited);
            assert!(limited * 16 >= gib, "{limited} shards for {gib} GiB");
        }
        assert_eq!(shards_of(1, 1 << 30, GIB), 4096);
    }
}
