//! Runs exports: checkpoints that a client or the admin page requests, and backups and update logs
//! that are sent to the client (docs/protocol/exports.md). A backup that the admin page requests is
//! written to a directory of the server.
//!
//! ```text
//! a thread for each export (reads files, limits the rate)
//!     --frames--> pipe (bounded) --> worker --> the connection's output
//!     or, for the admin page, --> a directory
//! ```
//!
//! Invariants: no worker waits for an export, and a slow receiver delays only the thread of its own
//! export. This thread ends, and releases the files that it held, once its receiver has closed, has
//! read nothing for minutes, or causes too many bytes of the log or of removed files to stay on
//! disk. The number of exports is limited.

mod pipe;
mod producer;
mod rate_limit;

use crate::session::wake::WakeHandle;
use crate::transport::output::ConnectionOutput;
use pipe::{ExportPipe, TakenFrames};
use producer::ExportSource;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use todana::{DataDirectory, Database};
use todana_protocol::memcached::{ExportKind, ExportRequest};

/// Maximum number of checkpoints and backups at a time.
const BACKUPS_MAX: usize = 2;
/// Maximum number of readers of update logs at a time. Readers that follow a log stay connected.
const LOGS_MAX: usize = 8;
/// The number of maintenance ticks, ten per second, between two checks of the exports. At each
/// check a line is sent to idle receivers, so that each receives something every three seconds.
const CHECK_EVERY_TICKS: u64 = 30;
/// The number of checks without progress after which a receiver is disconnected (five minutes),
/// because the log on disk grows as long as the receiver is connected.
const QUIET_CHECKS_MAX: u32 = 100;

/// The maximum number of bytes of the log, or of files that compaction has replaced, that stay on
/// disk because of one receiver. The limit is higher if the checkpoints, or the records of the
/// hash, take more.
const HELD_MAX: u64 = 1 << 30;

/// The interval at which a waiting thread checks whether it should give up.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

const NO_LOG: &str = "SERVER_ERROR a hash on disk has neither checkpoints nor an update log: its files are its log; a backup can be made of it";
pub(crate) const NO_DATABASE: &str = "SERVER_ERROR there is no database of this number";
const NO_DIRECTORY: &str = "SERVER_ERROR no data directory: the server was started without --data-dir";
const BUSY: &str = "SERVER_ERROR busy";
const TOO_SLOW: &str = "SERVER_ERROR too slow: too much is kept on disk for this alone\r\n";
const NO_THREAD: &str = "SERVER_ERROR no thread can be started";

/// All exports of a server.
#[derive(Default)]
pub(crate) struct ExportTable {
    /// The data directory of each database, in order, set once they have been loaded.
    directories: OnceLock<Vec<Option<Weak<DataDirectory>>>>,
    jobs: Mutex<Vec<ExportJob>>,
    /// The number of exports, which can be read without the lock.
    count: AtomicUsize,
    /// The number of bytes that are kept on disk for exports, as of the last check.
    held_bytes: AtomicU64,
}

struct ExportJob {
    export: ExportRequest,
    database: Weak<Database>,
    pipe: Arc<ExportPipe>,
    thread: JoinHandle<()>,
}

/// The receiving end of an export, which its connection owns. Dropping the value ends the export.
pub(crate) struct ExportReceiver(Arc<ExportPipe>);

/// The progress of a checkpoint or a backup that no client receives.
#[derive(Debug, Default)]
pub(crate) struct ExportProgress {
    /// The bytes that are written, and those of the whole. Both are 0 for a checkpoint.
    pub(crate) done: AtomicU64,
    pub(crate) total: AtomicU64,
    /// The result in words, once it is over.
    pub(crate) outcome: OnceLock<Result<String, String>>,
}

impl ExportReceiver {
    /// Moves frames to an output while the output holds less than `len_max` bytes. Returns true if
    /// the export is complete.
    pub(crate) fn take(&self, output: &mut ConnectionOutput, len_max: usize) -> bool {
        self.0.take(output, len_max) == TakenFrames::All
    }

    /// Returns true if the export was ended early, so that no more frames follow.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.0.is_receiver_closed()
    }
}

impl Drop for ExportReceiver {
    fn drop(&mut self) {
        self.0.close_receiver();
    }
}

impl ExportTable {
    /// Sets the data directories of all databases, in order. Called once.
    pub(crate) fn set_directories<'d>(&self, all: impl Iterator<Item = Option<&'d Arc<DataDirectory>>>) {
        let _ = self.directories.set(all.map(|directory| directory.map(Arc::downgrade)).collect());
    }

    /// Returns the data directory of a database, or `None` once the database has closed.
    pub(crate) fn directory(&self, database: usize) -> Option<Arc<DataDirectory>> {
        self.directories.get()?.get(database)?.as_ref()?.upgrade()
    }

    fn jobs(&self) -> MutexGuard<'_, Vec<ExportJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an export for a connection. Returns the reason if it is refused.
    pub(crate) fn start(
        &self,
        export: ExportRequest,
        handle: WakeHandle,
        database: Option<&Arc<Database>>,
    ) -> Result<ExportReceiver, &'static str> {
        let database = database.ok_or(NO_DATABASE)?;
        let source = self.source(&export, database)?;
        let pipe = Arc::new(ExportPipe::new(handle));
        let what = export.what;
        self.spawn(export, database, &pipe, move |database, pipe| {
            producer::run(what, source, database, pipe);
        })?;
        Ok(ExportReceiver(pipe))
    }

    /// Starts a checkpoint or a backup that no client receives. A backup is written to the
    /// directory `target`. Returns the reason if it is refused.
    pub(crate) fn start_here(
        &self,
        export: ExportRequest,
        database: &Arc<Database>,
        target: PathBuf,
    ) -> Result<Arc<ExportProgress>, &'static str> {
        let source = self.source(&export, database)?;
        let progress = Arc::new(ExportProgress::default());
        let (what, its_own) = (export.what, Arc::clone(&progress));
        let pipe = Arc::new(ExportPipe::new(None));
        self.spawn(export, database, &pipe, move |database, pipe| {
            producer::run_here(what, source, database, pipe, &target, &its_own);
        })?;
        Ok(progress)
    }

    /// Starts a thread that makes a call which may wait, for a connection. Its result is the line
    /// that the connection receives. Returns the reason if the call is refused.
    pub(crate) fn start_call(
        &self,
        export: ExportRequest,
        handle: WakeHandle,
        database: &Arc<Database>,
        call: impl FnOnce() -> String + Send + 'static,
    ) -> Result<ExportReceiver, &'static str> {
        let pipe = Arc::new(ExportPipe::new(handle));
        self.spawn(export, database, &pipe, move |_, pipe| pipe.end((call() + "\r\n").into_bytes()))?;
        Ok(ExportReceiver(pipe))
    }

    fn source(&self, export: &ExportRequest, database: &Database) -> Result<ExportSource, &'static str> {
        match (self.directory(export.database as usize), database.engine().durable()) {
            (_, Some(_)) if !matches!(export.what, ExportKind::Backup { .. }) => Err(NO_LOG),
            (_, Some(_)) => Ok(ExportSource::Files),
            (Some(directory), None) => Ok(ExportSource::Directory(directory)),
            (None, None) => Err(NO_DIRECTORY),
        }
    }

    /// Starts the thread of an export. Returns the reason if there are too many of its kind.
    fn spawn(
        &self,
        export: ExportRequest,
        database: &Arc<Database>,
        pipe: &Arc<ExportPipe>,
        run: impl FnOnce(&Arc<Database>, &Arc<ExportPipe>) + Send + 'static,
    ) -> Result<(), &'static str> {
        let mut jobs = self.jobs();
        self.remove_finished(&mut jobs);
        let group = |export: &ExportRequest| match export.what {
            ExportKind::Log { .. } => ("log", LOGS_MAX),
            ExportKind::Backup { .. } | ExportKind::Checkpoint => ("backup", BACKUPS_MAX),
            ExportKind::Promotion { .. } => ("promotion", 1),
        };
        let is_like = |job: &&ExportJob| group(&job.export) == group(&export) && !job.pipe.is_done();
        if jobs.iter().filter(is_like).count() >= group(&export).1 {
            return Err(BUSY);
        }
        // The export is counted before its thread starts, so that the thread misses no
        // notification.
        self.count.store(jobs.len() + 1, Ordering::Relaxed);
        let of = Arc::downgrade(database);
        let (database, its_own) = (Arc::clone(database), Arc::clone(pipe));
        let thread = std::thread::Builder::new().name("export".into());
        let thread = thread.spawn(move || run(&database, &its_own)).map_err(|_| NO_THREAD)?;
        jobs.push(ExportJob { export, database: of, pipe: Arc::clone(pipe), thread });
        Ok(())
    }

    /// Notifies the exports that the update log has grown.
    pub(crate) fn notify_log_growth(&self) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.jobs().iter().for_each(|job| job.pipe.note_log_growth());
        }
    }

    /// Checks the exports. Called ten times per second.
    pub(crate) fn check(&self, tick: u64) {
        if self.count.load(Ordering::Relaxed) == 0 || !tick.is_multiple_of(CHECK_EVERY_TICKS) {
            return;
        }
        // This reads a number in memory, not the disk.
        let of_directory = |number| self.directory(number).map_or(0, |own| own.footprint().checkpoint_bytes);
        let on_disk = |number, database: &Database| {
            let files = database.engine().durable().map(|files| files.disk_usage().live_bytes);
            files.unwrap_or_else(|| of_directory(number))
        };
        self.end_slow(&|number, database| on_disk(number, database).max(HELD_MAX));
        let mut jobs = self.jobs();
        let mut cut_off = 0;
        for job in jobs.iter() {
            if job.pipe.check_receiver(QUIET_CHECKS_MAX) && !job.pipe.is_receiver_closed() {
                cut_off += 1;
                job.pipe.close_receiver();
            }
        }
        self.remove_finished(&mut jobs);
        // The lock is released before logging, because a slow reader of the log could block the
        // exports.
        drop(jobs);
        for _ in 0..cut_off {
            tracing::warn!("export: the receiver reads nothing and is disconnected");
        }
    }

    /// Returns the bytes kept on disk only for exports, as of the last check.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Ends the exports that keep more bytes of their database on disk than `held_max` returns for
    /// its number.
    fn end_slow(&self, held_max: &dyn Fn(usize, &Database) -> u64) {
        let of = |job: &ExportJob| (job.export.database, job.database.upgrade(), Arc::clone(&job.pipe));
        // The exports are logged after the lock is released.
        let all: Vec<_> = self.jobs().iter().map(of).collect();
        let mut sum = 0;
        for (number, database, pipe) in all {
            let Some(database) = database else { continue };
            let held = pipe.held_len();
            sum += held;
            if held > 0 && !pipe.is_stopped() && held > held_max(number as usize, &database) {
                pipe.end_early(TOO_SLOW.into());
                tracing::warn!("export: ended, because too many bytes stay on disk only for it");
            }
        }
        self.held_bytes.store(sum, Ordering::Relaxed);
    }

    fn remove_finished(&self, jobs: &mut Vec<ExportJob>) {
        jobs.retain(|job| !(job.pipe.is_done() && job.thread.is_finished()));
        self.count.store(jobs.len(), Ordering::Relaxed);
        if jobs.is_empty() {
            self.held_bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Ends all exports and waits for their threads. `gives_up` is called repeatedly. Once it
    /// returns true, threads that still wait for the disk are abandoned.
    pub(crate) fn close_unless(&self, gives_up: &dyn Fn() -> bool) {
        let jobs = std::mem::take(&mut *self.jobs());
        jobs.iter().for_each(|job| job.pipe.close_receiver());
        for job in jobs {
            while !job.thread.is_finished() && !gives_up() {
                // This thread waits by polling, because the end of a server is not urgent.
                std::thread::park_timeout(CHECK_INTERVAL);
            }
            if job.thread.is_finished() && job.thread.join().is_err() {
                tracing::error!("export: the thread panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::wake::{WaitingConnections, WakeQueues};
    use std::num::NonZeroU64;
    use std::sync::atomic::AtomicBool;
    use todana::update_log::{LogOptions, SyncPolicy};
    use todana::{DataOptions, SystemClock};
    use todana_core::{Operation, Reply, Store};
    use todana_engine::{DiskHash, DiskHashOptions, MemHash, MemHashOptions};
    use todana_protocol::memcached::LogStart;

    const TOO_MUCH: u64 = 10_000;

    fn handle() -> WakeHandle {
        WaitingConnections::new(Arc::new(WakeQueues::new(1)), 0).enter_new()
    }

    /// Writes more bytes to the log than the limit allows, and creates checkpoints that do not need
    /// the old log.
    fn write(directory: &DataDirectory, database: &Database) {
        let log = database.log().unwrap();
        for _ in 0..3 {
            let store = Store { key: b"key", value: &[7; TOO_MUCH as usize], ..Store::default() };
            database.execute(&database.worker_counters(), &Operation::Store(store), &mut |_| ());
            log.wait(log.end()).unwrap();
            directory.checkpoint_unless(database, &AtomicBool::new(false)).unwrap();
        }
    }

    /// A reader that is too slow is disconnected with the reason, once more of the log is kept for
    /// this reader than the limit allows.
    #[test]
    fn slow_export_ends_at_the_log_limit() {
        let folder = tempfile::tempdir().unwrap();
        let database =
            Database::new(Box::new(MemHash::new(MemHashOptions::default()).unwrap()), Arc::new(SystemClock));
        let directory =
            Arc::new(DataDirectory::open(Arc::new(todana::disk::SystemDisk), folder.path()).unwrap());
        let log = LogOptions { sync: SyncPolicy::Always, ..LogOptions::default() };
        let options = DataOptions { log, ..DataOptions::default() };
        directory.restore(&database, Arc::new(SystemClock), &options, &mut |_| ()).unwrap();
        let database = Arc::new(database);
        let exports = ExportTable::default();
        exports.set_directories([Some(&directory)].into_iter());
        write(&directory, &database);
        let slow = [
            ExportKind::Backup { rate: NonZeroU64::new(1) },
            // The receiver reads nothing, so the thread blocks once the pipe is full.
            ExportKind::Log { from: LogStart::End, follows: true },
        ];
        assert_eq!(
            exports.start(ExportRequest { database: 1, what: ExportKind::Checkpoint }, handle(), None).err(),
            Some(NO_DATABASE)
        );
        for what in slow {
            let export = ExportRequest { database: 0, what };
            let receiving = exports.start(export, handle(), Some(&database)).unwrap();
            let mut output = ConnectionOutput::default();
            while output.is_empty() {
                receiving.take(&mut output, 1);
                std::thread::yield_now();
            }
            while !receiving.0.is_stopped() {
                write(&directory, &database);
                exports.notify_log_growth();
                // An export within its limit continues.
                exports.end_slow(&|_, _| u64::MAX);
                assert!(!receiving.0.is_stopped());
                exports.end_slow(&|_, _| TOO_MUCH);
            }
            let mut sent = Vec::new();
            while !receiving.take(&mut output, usize::MAX) {}
            output.write_to(&mut sent).unwrap();
            assert!(sent.ends_with(TOO_SLOW.as_bytes()), "{}", sent.escape_ascii());
            // The thread releases the log although its receiver still exists.
            while receiving.0.held_len() > 0 {
                std::thread::yield_now();
            }
            write(&directory, &database);
            let end = database.log().unwrap().end().0;
            assert!(end - directory.log_bytes(None).unwrap().position().0 < 3 * TOO_MUCH);
        }
        exports.close_unless(&|| false);
    }

    /// Files that compaction has replaced stay on disk while a backup still reads them. They are
    /// counted, reported and bounded.
    #[test]
    fn slow_export_ends_at_the_removed_files_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.hash");
        let options = DiskHashOptions {
            segment_bytes_min: 16 << 10,
            segment_bytes_max: 16 << 10,
            ..DiskHashOptions::default()
        };
        let engine = DiskHash::open(&path, options).unwrap();
        let database = Arc::new(Database::new(Box::new(engine), Arc::new(SystemClock)));
        let worker_counters = database.worker_counters();
        let write = || {
            for number in 0..100u32 {
                let key = number.to_string();
                let store = Store { key: key.as_bytes(), value: &[7; 1000], ..Store::default() };
                database.execute(&worker_counters, &Operation::Store(store), &mut |reply| {
                    assert!(matches!(reply, Reply::Stored(_)), "{reply:?}");
                });
            }
            // The server calls `maintain` in the same way, but without an upper bound.
            let _ = (0..1000).find(|_| !database.maintain());
        };
        write();
        let exports = ExportTable::default();
        let export = ExportRequest { database: 0, what: ExportKind::Backup { rate: NonZeroU64::new(1) } };
        let receiving = exports.start(export, handle(), Some(&database)).unwrap();
        let mut output = ConnectionOutput::default();
        while output.is_empty() {
            receiving.take(&mut output, 1);
            std::thread::yield_now();
        }
        exports.end_slow(&|_, _| TOO_MUCH);
        assert!(exports.held_bytes() == 0 && !receiving.0.is_stopped());
        let mut begun = Vec::new();
        output.write_to(&mut begun).unwrap();
        assert!(begun.starts_with(b"DATA "), "{}", begun.escape_ascii());
        while exports.held_bytes() <= TOO_MUCH {
            write();
            exports.end_slow(&|_, _| u64::MAX);
            assert!(!receiving.0.is_stopped());
        }
        exports.end_slow(&|_, _| TOO_MUCH);
        assert!(receiving.0.is_stopped());
        let mut sent = Vec::new();
        while !receiving.take(&mut output, usize::MAX) {}
        output.write_to(&mut sent).unwrap();
        assert!(sent.ends_with(TOO_SLOW.as_bytes()), "{}", sent.escape_ascii());
        while receiving.0.held_len() > 0 {
            std::thread::yield_now();
        }
        exports.close_unless(&|| false);
    }
}
