//! The update log: every change of a database, in order, on disk (docs/format/update-log.md).
//!
//! ```text
//! visit that changed a record --append--> pending, in memory --writer thread--> segment files
//!    under the engine's lock         |                     one write and one sync for many entries
//!                                    +-----> recent, in a mapped file: survives the process until
//!                                            the entry is written
//! ```
//!
//! Invariants: positions only grow. Entries before `synced` survive a crash of the machine. The
//! entries of one key stand in the order of its changes, because they are appended under the
//! engine's lock. No file is accessed under a lock of the engine, except the memory that `recent`
//! maps from its file (or that file itself, on a file system that cannot map files).
//!
//! Before the server sends the reply to a change, it calls [`UpdateLog::is_durable`]. If the result
//! is false, the server waits: with [`UpdateLog::wait`], or with [`UpdateLog::on_progress`] on a
//! thread that must not block.

mod entry;
mod follower;
mod log_bytes;
mod packed;
mod pending;
mod reader;
mod recent;
mod segment;
mod writer;

use crate::clock::Clock;
use pending::PendingEntries;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana_core::{Error, ErrorKind, Expiry, Result};
use todana_engine::reserve::Reserve;
use todana_engine::waiting::{Condvar, Mutex, MutexGuard};

pub(crate) use entry::{ByteReader, TransactionEncoder, decode, encode, put_varint};
pub use entry::{Epoch, EpochPlace, EpochStart, LogChange, LogEntry, LogId, LogPosition, TransactionChanges};
pub(crate) use follower::last_mark_ms;
pub use follower::{EntryCallback, LogFollower, SegmentInfo, segments};
pub use log_bytes::{EntryDecoder, LogBytes};
pub use packed::{LogPacker, LogPart};
pub(crate) use pending::seal_entries;
pub use reader::{LogDamage, LogReader, LogTail};
pub(crate) use reader::{MendedSegments, can_mark_lost, mend_segments, write_lost_segment};
pub(crate) use recent::{append_recent, with_recent};
pub use segment::DatabaseIdentity;
pub(crate) use segment::{
    HEADER_LEN as SEGMENT_HEADER_LEN, created_ms, name_of as segment_name, openings_of, position_of,
    segment_header, start_of as segment_start,
};
pub(crate) use writer::LogPlace;

/// Determines when a change counts as durable, so that its reply may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// A change is durable when it is on disk.
    Always,
    /// A change is durable when it survives the death of the process. A power failure can lose the
    /// changes of at most this time. A sync starts after half of the time; the other half is for
    /// the disk. If the disk needs longer, replies wait.
    Every(Duration),
    /// A change is durable at once, and the kernel decides when to write it to the disk. Changes
    /// are passed to the kernel within a second, so the death of the process can lose the changes
    /// of the last second.
    Never,
}

/// Options of an update log.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// When a change counts as durable.
    pub sync: SyncPolicy,
    /// When a segment has grown to this many bytes, a new one is created.
    pub segment_len: u64,
    /// When a segment that has entries is older than this, a new one is created.
    pub segment_age: Duration,
    /// The most bytes that may wait in memory to be written. Above this limit, threads that append
    /// wait.
    pub backlog_max: u64,
    /// With [`SyncPolicy::Every`]: the most unwritten bytes that `recent` keeps in memory that
    /// survives the process. Above this limit, replies wait until their entries are written.
    pub recent_max: u64,
    /// Bytes of the disk that are reserved, so that removals and the next opening succeed when the
    /// disk is full. 0 reserves nothing.
    pub reserve_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            sync: SyncPolicy::Every(Duration::from_secs(1)),
            segment_len: 64 << 20,
            segment_age: Duration::from_secs(24 * 60 * 60),
            backlog_max: 32 << 20,
            recent_max: 2 << 20,
            reserve_bytes: 2 << 20,
        }
    }
}

/// States whether changes can be made durable. Returned by [`UpdateLog::health`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DurabilityHealth {
    /// Changes can be written.
    #[default]
    Well,
    /// A write has failed and is repeated until it succeeds. While the process lives, nothing is
    /// lost.
    Stuck(String),
    /// A sync has failed, so it is unknown whether written changes are on disk, and no later change
    /// counts as durable. Also the state after the log was closed.
    Lost(String),
}

/// How often a waiting thread calls its `keep_waiting` function.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

const WELL: u8 = 0;
const STUCK: u8 = 1;
const LOST: u8 = 2;
const CLOSED: u8 = 3;

/// An update log that is open for writing.
pub struct UpdateLog {
    shared: Arc<UpdateLogState>,
    clock: Arc<dyn Clock>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// State shared by the writer thread and all other threads.
struct UpdateLogState {
    sync: SyncPolicy,
    backlog_max: u64,
    pending: Mutex<PendingEntries>,
    /// Notified when there is something to write, or when the log is being closed.
    work_available: Condvar,
    /// The end of the last entry that was appended.
    appended: AtomicU64,
    /// The end of the last entry that was passed to the system.
    written: AtomicU64,
    /// The end of the last entry that would be lost if the process died now: it is neither in
    /// `recent` nor passed to the system.
    exposed: AtomicU64,
    /// The end of the last entry that is on disk.
    synced: AtomicU64,
    /// The position in the master's log that entries of other servers state as their source. 0 if
    /// they state none.
    source: AtomicU64,
    /// The start of the segment that is being written.
    segment_start: AtomicU64,
    /// The last second in which accesses that move sliding expiries were not logged. 0 if all were.
    last_unlogged_access_s: AtomicU64,
    /// The time at which the oldest change that is not on disk becomes overdue, in microseconds
    /// since `created`, plus one. 0 if no change waits.
    due_us: AtomicU64,
    created: Instant,
    state: AtomicU8,
    /// Disk space that is freed when the disk is full.
    reserve: Arc<Reserve>,
    /// The reason why the last requested rotation failed, and the number of rotations that failed.
    rotation_error: Mutex<String>,
    failed_rotations: AtomicU64,
    /// True when the writer thread has ended.
    writer_ended: AtomicBool,
    /// The reason for a state other than `WELL`. The condition `progress` uses the lock of this
    /// field.
    reason: Mutex<String>,
    /// Notified when more entries are on disk, or when the state has changed.
    progress: Condvar,
    listeners: Mutex<Vec<ProgressListener>>,
}

/// A callback that the writer thread calls after progress.
type ProgressListener = Box<dyn Fn() + Send + std::marker::Sync>;

impl UpdateLog {
    /// Continues the log at `end` in a new segment of the directory in `place`. `end` is the
    /// position at which [`LogReader`] found the end of the existing log. The segment states the
    /// number of openings, and is on disk when this function returns.
    pub(crate) fn start(
        place: LogPlace,
        end: LogPosition,
        clock: Arc<dyn Clock>,
        options: LogOptions,
    ) -> Result<UpdateLog> {
        let shared = Arc::new(UpdateLogState {
            sync: options.sync,
            backlog_max: options.backlog_max,
            pending: Mutex::new(PendingEntries::new(end)),
            work_available: Condvar::new(),
            appended: AtomicU64::new(end.0),
            written: AtomicU64::new(end.0),
            exposed: AtomicU64::new(end.0),
            synced: AtomicU64::new(end.0),
            source: AtomicU64::new(0),
            segment_start: AtomicU64::new(end.0),
            last_unlogged_access_s: AtomicU64::new(0),
            due_us: AtomicU64::new(0),
            created: Instant::now(),
            state: AtomicU8::new(WELL),
            reserve: Arc::clone(&place.disk.reserve),
            rotation_error: Mutex::default(),
            failed_rotations: AtomicU64::new(0),
            writer_ended: AtomicBool::new(false),
            reason: Mutex::new(String::new()),
            progress: Condvar::new(),
            listeners: Mutex::new(Vec::new()),
        });
        shared.reserve.hold(options.reserve_bytes);
        let writer = writer::LogWriter::new(place, Arc::clone(&shared), Arc::clone(&clock), options, end)?;
        // The opening may have used the reserve. It is created again if there is space for it.
        shared.reserve.hold(options.reserve_bytes);
        shared.pending.lock().recent = writer.recent();
        let thread = std::thread::Builder::new()
            .name("update-log".into())
            .spawn(move || writer.run())
            .map_err(|error| {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("update log: its thread cannot be started: {error}"),
                )
            })?;
        Ok(UpdateLog { shared, clock, writer: Mutex::new(Some(thread)) })
    }

    /// Appends a change and returns the position after it. A long value is shared until it is
    /// written, not copied. Costs a short lock and a copy. Called under the engine's lock of the
    /// changed record.
    ///
    /// Callers check [`takes_changes`](Self::takes_changes) before they change a record. If writing
    /// fails after this check, the change has been made, so it is still appended, and it is written
    /// when writing succeeds again. If writing never succeeds, the change never becomes durable.
    pub fn append(&self, change: &LogChange<'_>) -> LogPosition {
        self.append_from(None, change)
    }

    /// Appends a change that another server, `origin`, made first.
    pub(crate) fn append_from(&self, origin: Option<u32>, change: &LogChange<'_>) -> LogPosition {
        let now_ms = self.clock.now().0.saturating_mul(1000);
        let mut pending = self.shared.pending.lock();
        if self.shared.has_ended() || pending.is_closed {
            return pending.discard();
        }
        let (is_first, start) = (pending.is_empty(), pending.batch.end());
        let source = self.shared.source.load(Ordering::Relaxed);
        let source = (source > 0 && origin.is_some()).then_some(LogPosition(source));
        let end = pending.append(now_ms, &LogEntry { origin, source, change: *change });
        if self.shared.uses_recent() && !pending.keep_recent(start, self.written(), self.synced()) {
            pending.write_now = true;
            self.shared.exposed.store(end.0, Ordering::Release);
        }
        self.shared.appended.store(end.0, Ordering::Release);
        if is_first {
            self.shared.start_due_timer(pending.oldest_at);
        }
        if pending.wakes_writer(is_first) {
            self.shared.work_available.notify_one();
        }
        end
    }

    /// Makes the following entries with another origin state this source. Called by the thread that
    /// applies the changes of a master, before each of them.
    pub fn set_source(&self, source: Option<LogPosition>) {
        self.shared.source.store(source.map_or(0, |source| source.0), Ordering::Relaxed);
    }

    /// Returns the position after the last entry.
    pub fn end(&self) -> LogPosition {
        LogPosition(self.shared.appended.load(Ordering::Acquire))
    }

    /// Returns the time that a mark would have if it were written now, as Unix time in
    /// milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now().0.saturating_mul(1000)
    }

    /// Returns the position up to which entries have been passed to the system.
    pub fn written(&self) -> LogPosition {
        LogPosition(self.shared.written.load(Ordering::Acquire))
    }

    /// Returns the position up to which entries are on disk.
    pub fn synced(&self) -> LogPosition {
        self.shared.synced()
    }

    /// Returns the position up to which entries can be read from the segments. These are the
    /// entries on disk or, under [`SyncPolicy::Never`], the entries passed to the system.
    pub fn readable(&self) -> LogPosition {
        match self.shared.sync {
            SyncPolicy::Never => LogPosition(self.shared.written.load(Ordering::Acquire)),
            _ => self.synced(),
        }
    }

    /// Returns true if the reply to a change whose entry ends at `position` may be sent. Costs a
    /// few loads of atomics.
    #[inline]
    pub fn is_durable(&self, position: LogPosition) -> bool {
        self.shared.is_durable(position)
    }

    /// Returns true if more bytes wait to be written than the options allow. Threads should then
    /// wait before they append more, even for changes without a reply. Costs two loads of atomics.
    #[inline]
    pub fn is_backlogged(&self) -> bool {
        self.shared.is_backlogged()
    }

    /// Notes that accesses of this second are not logged.
    pub(crate) fn skip_accesses(&self) {
        self.shared.last_unlogged_access_s.store(self.clock.now().0, Ordering::Relaxed);
    }

    /// Returns true if an access was not logged since the log was opened.
    #[inline]
    pub(crate) fn has_skipped_accesses(&self) -> bool {
        self.shared.last_unlogged_access_s.load(Ordering::Relaxed) != 0
    }

    /// Returns true if the log may lack the last access of a record with this expiry.
    pub(crate) fn lacks_access(&self, expiry: Expiry) -> bool {
        let skipped_s = self.shared.last_unlogged_access_s.load(Ordering::Relaxed);
        match (expiry.at(), expiry.span_s()) {
            (Some(at), Some(span_s)) => at.0.saturating_sub(span_s.into()) <= skipped_s,
            _ => false,
        }
    }

    /// Waits until the log is durable up to `position`. Fails with `Unavailable` if the log cannot
    /// be written; it is then unknown whether the change will survive a crash.
    pub fn wait(&self, position: LogPosition) -> Result<()> {
        self.shared.wait(|| self.is_durable(position))
    }

    /// Waits as [`wait`](Self::wait) does, as long as `keep_waiting` returns true. Returns false if
    /// `keep_waiting` ended the wait.
    pub fn wait_while(&self, position: LogPosition, keep_waiting: &dyn Fn() -> bool) -> Result<bool> {
        let is_over = || self.is_durable(position);
        self.shared.wait_until_or(&is_over, Some(keep_waiting))
    }

    /// Starts a sync at once, and waits until the entries before this position are on disk, under
    /// any sync policy. Fails as [`wait`](Self::wait) does.
    pub fn sync_to(&self, position: LogPosition) -> Result<()> {
        if self.synced() < position {
            self.shared.pending.lock().sync_now = true;
            self.shared.work_available.notify_one();
        }
        self.shared.wait(|| self.synced() >= position)
    }

    /// Returns false while changes cannot be written and must be refused.
    #[inline]
    pub fn takes_changes(&self) -> bool {
        self.shared.state.load(Ordering::Acquire) == WELL
    }

    /// Returns true while the disk is full. Callers should then append removals only.
    #[inline]
    pub fn takes_only_removals(&self) -> bool {
        self.shared.reserve.is_spent()
    }

    /// Returns the state of the log, with the reason if the log cannot be written.
    pub fn health(&self) -> DurabilityHealth {
        let reason = self.shared.reason.lock();
        match self.shared.state.load(Ordering::Acquire) {
            WELL if self.takes_only_removals() => DurabilityHealth::Stuck(
                "update log: cannot write to it: the disk is full; only removals are accepted".into(),
            ),
            WELL => DurabilityHealth::Well,
            STUCK => DurabilityHealth::Stuck(reason.clone()),
            _ => DurabilityHealth::Lost(reason.clone()),
        }
    }

    /// Registers a callback that the writer thread calls whenever more entries are on disk or the
    /// health has changed. The callback must be brief.
    pub fn on_progress(&self, call: impl Fn() + Send + std::marker::Sync + 'static) {
        self.shared.listeners.lock().push(Box::new(call));
    }

    /// Starts a new segment. All entries appended before are then on disk, in older segments. Fails
    /// with `Unavailable` if the segment cannot be created; the log then continues in the current
    /// segment.
    pub fn rotate(&self) -> Result<()> {
        let end = self.end();
        let refused = || self.shared.failed_rotations.load(Ordering::Acquire);
        let before = refused();
        let is_over = || self.shared.segment_start.load(Ordering::Acquire) >= end.0;
        if !is_over() {
            self.shared.pending.lock().rotate_requested = true;
            self.shared.work_available.notify_one();
        }
        self.shared.wait(|| is_over() || refused() != before)?;
        if is_over() {
            return Ok(());
        }
        let why = self.shared.rotation_error.lock().clone();
        Err(Error::new(ErrorKind::Unavailable, format!("update log: cannot begin a segment: {why}")))
    }

    /// Writes and syncs all pending entries, and ends the log. Nothing may be appended afterwards.
    /// Fails with `Unavailable` if the log could not be written.
    pub fn close(&self) -> Result<()> {
        self.close_unless(&|| false)
    }

    /// Closes the log as [`close`](Self::close) does, but calls `gives_up` regularly while it waits
    /// for the disk. If `gives_up` returns true, the writer thread is abandoned, and the error
    /// states how many bytes may not be on disk.
    pub fn close_unless(&self, gives_up: &dyn Fn() -> bool) -> Result<()> {
        // The lock is held during the wait, so that a second call to `close` waits as well.
        let mut writer = self.writer.lock();
        if let Some(writer) = writer.take() {
            self.shared.pending.lock().close_requested = true;
            self.shared.work_available.notify_one();
            if self.shared.wait_for_writer(gives_up) {
                // If the writer thread has panicked, the log is already in the state `Lost`.
                let _ = writer.join();
            }
            let unsure = |why: String| {
                let len = self.end().0.saturating_sub(self.synced().0);
                self.shared
                    .set_state(LOST, format!("{why}; {len} bytes of writes are not known to be on disk"));
            };
            // From now on, threads that wait for entries are woken and return an error.
            match self.health() {
                DurabilityHealth::Well if self.shared.writer_ended.load(Ordering::Acquire) => {
                    self.shared.set_state(CLOSED, "update log: is closed".into());
                }
                DurabilityHealth::Well => unsure("update log: the disk has not answered".into()),
                DurabilityHealth::Stuck(why) => unsure(why),
                DurabilityHealth::Lost(_) => {}
            }
        }
        match self.shared.state.load(Ordering::Acquire) {
            CLOSED => Ok(()),
            _ => Err(Error::new(ErrorKind::Unavailable, self.shared.reason.lock().clone())),
        }
    }
}

impl Drop for UpdateLog {
    fn drop(&mut self) {
        // Callers that need the result call `close` before the drop.
        let _ = self.close();
    }
}

impl UpdateLogState {
    fn synced(&self) -> LogPosition {
        LogPosition(self.synced.load(Ordering::Acquire))
    }

    /// Returns true if no further entry will become durable.
    #[inline]
    fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) >= LOST
    }

    #[inline]
    fn is_durable(&self, position: LogPosition) -> bool {
        if self.has_ended() {
            return self.synced() >= position;
        }
        match self.sync {
            SyncPolicy::Always => self.synced() >= position,
            // If these entries are already on disk, they need not wait because other entries are
            // overdue.
            SyncPolicy::Every(_) => {
                self.synced() >= position
                    || (self.outlives_process(position) && !self.is_overdue() && !self.is_backlogged())
            }
            SyncPolicy::Never => self.written.load(Ordering::Acquire) >= position.0 || !self.is_backlogged(),
        }
    }

    /// Returns true if entries are kept in `recent` until they are written.
    fn uses_recent(&self) -> bool {
        matches!(self.sync, SyncPolicy::Every(_))
    }

    fn outlives_process(&self, position: LogPosition) -> bool {
        let written = self.written.load(Ordering::Acquire);
        written >= position.0 || written >= self.exposed.load(Ordering::Acquire)
    }

    fn is_backlogged(&self) -> bool {
        self.appended.load(Ordering::Relaxed) > self.written.load(Ordering::Relaxed) + self.backlog_max
    }

    fn is_overdue(&self) -> bool {
        let due_us = self.due_us.load(Ordering::Acquire);
        due_us != 0 && self.created.elapsed().as_micros() as u64 >= due_us
    }

    /// Starts the time limit for a change that has waited for a sync since `since`. Called with
    /// `pending` locked.
    fn start_due_timer(&self, since: Option<Instant>) {
        if self.due_us.load(Ordering::Relaxed) == 0 {
            self.due_us.store(self.due_us_of(since), Ordering::Release);
        }
    }

    /// Returns the value of `due_us` if the oldest change has waited since `since`.
    fn due_us_of(&self, since: Option<Instant>) -> u64 {
        let (SyncPolicy::Every(interval), Some(since)) = (self.sync, since) else { return 0 };
        let due = since.saturating_duration_since(self.created).saturating_add(interval);
        u64::try_from(due.as_micros()).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn wait(&self, is_over: impl Fn() -> bool) -> Result<()> {
        self.wait_until_or(&is_over, None).map(|_| ())
    }

    /// Waits until `is_over` returns true. Returns false if `keep_waiting` ended the wait before
    /// that.
    fn wait_until_or(
        &self,
        is_over: &dyn Fn() -> bool,
        keep_waiting: Option<&dyn Fn() -> bool>,
    ) -> Result<bool> {
        if is_over() {
            return Ok(true);
        }
        let mut reason = self.reason.lock();
        loop {
            if is_over() {
                return Ok(true);
            }
            if self.state.load(Ordering::Acquire) != WELL {
                return Err(Error::new(ErrorKind::Unavailable, reason.clone()));
            }
            let Some(keep_waiting) = keep_waiting else {
                self.progress.wait(&mut reason);
                continue;
            };
            // The callback is called without the lock.
            if !MutexGuard::unlocked(&mut reason, keep_waiting) {
                return Ok(is_over());
            }
            self.progress.wait_for(&mut reason, POLL_INTERVAL);
        }
    }

    /// Waits until the writer thread has ended. Returns false if `gives_up` ended the wait before
    /// that.
    fn wait_for_writer(&self, gives_up: &dyn Fn() -> bool) -> bool {
        let mut reason = self.reason.lock();
        while !self.writer_ended.load(Ordering::Acquire) {
            // The callback is called without the lock.
            if MutexGuard::unlocked(&mut reason, gives_up) {
                return self.writer_ended.load(Ordering::Acquire);
            }
            self.progress.wait_for(&mut reason, POLL_INTERVAL);
        }
        true
    }

    /// Wakes all waiting threads and calls the listeners.
    fn notify(&self) {
        // A thread holds this lock from its check to the start of its wait, so it cannot miss the
        // notification.
        drop(self.reason.lock());
        self.progress.notify_all();
        self.listeners.lock().iter().for_each(|listener| listener());
    }

    fn set_state(&self, state: u8, why: String) {
        {
            let mut reason = self.reason.lock();
            *reason = why;
            self.state.store(state, Ordering::Release);
        }
        self.notify();
    }
}
