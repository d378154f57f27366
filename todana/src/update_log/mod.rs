//! The update log: every change of a database, in order, on disk (docs/format/update-log.md).
//!
//! ```text
//! a visit that has changed something --append--> pending, in memory --writer thread--> segment files
//!     under the engine's lock          |                            one write and one sync for many
//!                                      +-------> recent: a copy that outlives the process until then
//! ```
//!
//! Always true: positions only grow; what stands before `synced` survives a crash of the machine; entries of one key stand in
//! the order of its changes, as they are appended under the engine's lock. No file is touched under any
//! lock of the engine's, but for memory that `recent` shares with one (and that file itself, where the file system has no such memory).
//!
//! Whoever answers a request asks [`UpdateLog::is_settled`] before the answer leaves, and waits if it is not
//! ([`UpdateLog::wait`], or [`UpdateLog::on_progress`] for those that must not block).

mod entry;
mod follower;
mod pending;
mod reader;
mod recent;
mod segment;
mod stretch;
mod writer;

use crate::clock::Clock;
use parking_lot::{Condvar, Mutex, MutexGuard};
use pending::Pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana_core::{Error, ErrorKind, Result};
use todana_engine::reserve::Reserve;

pub use entry::{Change, Changes, Entry, Position};
pub(crate) use entry::{Gathered, Rest, decode, put_varint};
pub(crate) use follower::last_told_ms;
pub use follower::{Follower, See, SegmentInfo, segments};
pub use reader::{Finding, Reader, Tail};
pub(crate) use reader::{MendedSegments, begin_anew, can_be_marked, mend_segments};
pub(crate) use recent::{append_recent, with_recent};
pub use segment::Identity;
pub(crate) use segment::{
    HEADER_LEN as SEGMENT_HEADER_LEN, made_ms, name_of as segment_name, openings_of, position_of,
    start_of as segment_start,
};
pub use stretch::{Entries, LogBytes};
pub(crate) use writer::LogPlace;

/// When a change counts as made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Once it is on disk.
    Always,
    /// Once it outlives the process. A loss of power loses changes of at most so long a time: half of it until they are written and
    /// synced, the rest for the disk; answers wait for a disk that takes longer.
    Every(Duration),
    /// At once; the kernel decides when it writes to the disk. Handed to the kernel within a second, so the death of the process, too,
    /// loses what was changed in the last second.
    Never,
}

/// How the log is kept.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// When a change counts as made.
    pub sync: Sync,
    /// A segment that has grown to so many bytes is followed by a new one.
    pub segment_len: u64,
    /// So is one that is so old and not empty.
    pub segment_age: Duration,
    /// So many bytes may wait, in memory, to be written before those who append more have to wait themselves.
    pub backlog_max: u64,
    /// With [`Sync::Every`]: so many bytes that are not written yet are kept in memory that outlives the process. Those who append more
    /// than that wait until they are written.
    pub recent_max: u64,
    /// So many bytes of the disk are kept free for removals and for the next opening, should the disk be full; 0 for none.
    pub reserve_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            sync: Sync::Every(Duration::from_secs(1)),
            segment_len: 64 << 20,
            segment_age: Duration::from_secs(24 * 60 * 60),
            backlog_max: 32 << 20,
            recent_max: 2 << 20,
            reserve_bytes: 2 << 20,
        }
    }
}

/// Whether the log can be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// It can.
    #[default]
    Well,
    /// A write has failed and is tried again until it succeeds; nothing is lost as long as the process lives.
    Stuck(String),
    /// What was written may not be on disk although the system was asked to see to it: nothing more is promised. So too when the
    /// log is closed.
    Lost(String),
}

/// How often those who wait are asked whether they still do.
const ASK_EVERY: Duration = Duration::from_millis(20);

const WELL: u8 = 0;
const STUCK: u8 = 1;
const LOST: u8 = 2;
const CLOSED: u8 = 3;

/// An update log that is being written.
pub struct UpdateLog {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What the writer's thread and the others share.
struct Shared {
    sync: Sync,
    backlog_max: u64,
    pending: Mutex<Pending>,
    /// There is something to write, or the end has come.
    work: Condvar,
    /// Behind the last entry appended.
    appended: AtomicU64,
    /// Behind the last entry that the system has taken.
    written: AtomicU64,
    /// Behind the last entry that does not outlive the process before it is written.
    exposed: AtomicU64,
    /// Behind the last entry that is on disk.
    synced: AtomicU64,
    /// Where the segment begins that is being written.
    started: AtomicU64,
    /// When the oldest change that is not on disk has waited for as long as it may, in microseconds since `born`, plus one;
    /// 0: nothing waits.
    due_us: AtomicU64,
    born: Instant,
    state: AtomicU8,
    /// Room that is given up when the disk is full.
    reserve: Arc<Reserve>,
    /// Why a new segment that was asked for could not be created the last time, and how often that was.
    rotation_trouble: Mutex<String>,
    refused_rotations: AtomicU64,
    /// The writer's thread has come to its end.
    has_left: AtomicBool,
    /// Why, unless all is well. Its lock goes with `progress`.
    trouble: Mutex<String>,
    /// More is on disk, or the state has changed.
    progress: Condvar,
    listeners: Mutex<Vec<Listener>>,
}

/// Called by the writer's thread.
type Listener = Box<dyn Fn() + Send + std::marker::Sync>;

impl UpdateLog {
    /// Goes on writing behind `end`, in a new segment of the place's directory; the log that is there ends there (see
    /// [`Reader`]). The segment, which tells the number of the opening, is on disk when this returns.
    pub(crate) fn start(
        place: LogPlace,
        end: Position,
        clock: Arc<dyn Clock>,
        options: LogOptions,
    ) -> Result<UpdateLog> {
        let shared = Arc::new(Shared {
            sync: options.sync,
            backlog_max: options.backlog_max,
            pending: Mutex::new(Pending::new(end)),
            work: Condvar::new(),
            appended: AtomicU64::new(end.0),
            written: AtomicU64::new(end.0),
            exposed: AtomicU64::new(end.0),
            synced: AtomicU64::new(end.0),
            started: AtomicU64::new(end.0),
            due_us: AtomicU64::new(0),
            born: Instant::now(),
            state: AtomicU8::new(WELL),
            reserve: Arc::clone(&place.disk.reserve),
            rotation_trouble: Mutex::default(),
            refused_rotations: AtomicU64::new(0),
            has_left: AtomicBool::new(false),
            trouble: Mutex::new(String::new()),
            progress: Condvar::new(),
            listeners: Mutex::new(Vec::new()),
        });
        shared.reserve.hold(options.reserve_bytes);
        let writer = writer::Writer::new(place, Arc::clone(&shared), Arc::clone(&clock), options, end)?;
        // What the opening has spent is there again if there is room after all.
        shared.reserve.hold(options.reserve_bytes);
        shared.pending.lock().recent = writer.recent();
        let thread = std::thread::Builder::new()
            .name("update-log".into())
            .spawn(move || writer.run())
            .map_err(|error| {
                Error::new(ErrorKind::Unavailable, format!("cannot start the update log's thread: {error}"))
            })?;
        Ok(UpdateLog { shared, clock, writer: Mutex::new(Some(thread)) })
    }

    /// Appends a change; returns the position behind it. A long value is kept until it is
    /// written, not copied. Costs a short lock and a copy; called under the engine's lock of the record that has changed.
    ///
    /// Whoever finds that no changes are taken makes none; those that were on their way are appended, for they have been made, and
    /// written when that can be done again. When it never will be, they are dropped, and never settled.
    pub fn append(&self, change: &Change<'_>) -> Position {
        self.append_from(None, change)
    }

    /// The same of a change that was first made by another server, `origin`.
    pub(crate) fn append_from(&self, origin: Option<u32>, change: &Change<'_>) -> Position {
        let now_ms = self.clock.now().0.saturating_mul(1000);
        let mut pending = self.shared.pending.lock();
        if self.shared.has_ended() || pending.is_over {
            return pending.give_up();
        }
        let (is_first, start) = (pending.is_empty(), pending.batch.end());
        let end = pending.append(now_ms, &Entry { origin, change: *change });
        if self.shared.keeps_recent() && !pending.keep(start, self.written(), self.synced()) {
            pending.writes = true;
            self.shared.exposed.store(end.0, Ordering::Release);
        }
        self.shared.appended.store(end.0, Ordering::Release);
        if is_first {
            self.shared.begin_waiting(pending.since);
        }
        if pending.wakes_writer(is_first) {
            self.shared.work.notify_one();
        }
        end
    }

    /// Behind the last entry.
    pub fn end(&self) -> Position {
        Position(self.shared.appended.load(Ordering::Acquire))
    }

    /// Returns the time that marks tell now, Unix time in milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now().0.saturating_mul(1000)
    }

    /// What stands before this has been handed to the system.
    pub fn written(&self) -> Position {
        Position(self.shared.written.load(Ordering::Acquire))
    }

    /// What stands before this is on disk.
    pub fn synced(&self) -> Position {
        self.shared.synced()
    }

    /// What stands before this can be read from the segments: what is on disk or, where nothing is synced, what the system has taken.
    pub fn readable(&self) -> Position {
        match self.shared.sync {
            Sync::Never => Position(self.shared.written.load(Ordering::Acquire)),
            _ => self.synced(),
        }
    }

    /// Whether an answer to a change that ends there may leave. Costs a few loads.
    #[inline]
    pub fn is_settled(&self, position: Position) -> bool {
        self.shared.is_settled(position)
    }

    /// Whether more waits to be written than there should, so that whoever appends more had better wait, even for what needs no
    /// answer. Costs two loads.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.shared.is_crowded()
    }

    /// Waits until it is. Fails with `Unavailable` when the log cannot be written: whether the change survives a crash is
    /// not known then.
    pub fn wait(&self, position: Position) -> Result<()> {
        self.shared.wait(|| self.is_settled(position))
    }

    /// The same as long as `goes_on`, which is asked now and then; false when it says no.
    pub fn wait_while(&self, position: Position, goes_on: &dyn Fn() -> bool) -> Result<bool> {
        let is_over = || self.is_settled(position);
        self.shared.wait_asking(&is_over, Some(goes_on))
    }

    /// Waits until what stands before this position is on disk, whatever the options say; brings that about at once. Fails
    /// as `wait` does.
    pub fn sync_to(&self, position: Position) -> Result<()> {
        if self.synced() < position {
            self.shared.pending.lock().hurry = true;
            self.shared.work.notify_one();
        }
        self.shared.wait(|| self.synced() >= position)
    }

    /// Whether changes are taken: false when they could not be written.
    #[inline]
    pub fn takes_changes(&self) -> bool {
        self.shared.state.load(Ordering::Acquire) == WELL
    }

    /// Returns true while the disk is full: the log takes removals, and should be given nothing else.
    #[inline]
    pub fn takes_only_removals(&self) -> bool {
        self.shared.reserve.is_spent()
    }

    /// Whether it can be written, and if not, why.
    pub fn health(&self) -> Health {
        let trouble = self.shared.trouble.lock();
        match self.shared.state.load(Ordering::Acquire) {
            WELL if self.takes_only_removals() => {
                Health::Stuck("cannot write the update log: the disk is full; only removals are taken".into())
            }
            WELL => Health::Well,
            STUCK => Health::Stuck(trouble.clone()),
            _ => Health::Lost(trouble.clone()),
        }
    }

    /// `call` is called, by the writer's thread, whenever more has come to be on disk or the health has changed. It must be
    /// brief.
    pub fn on_progress(&self, call: impl Fn() + Send + std::marker::Sync + 'static) {
        self.shared.listeners.lock().push(Box::new(call));
    }

    /// Begins a new segment, so that all that has been appended so far lies in finished ones, on disk. Fails with `Unavailable` if it cannot
    /// be created: the log goes on in the present one then.
    pub fn rotate(&self) -> Result<()> {
        let end = self.end();
        let refused = || self.shared.refused_rotations.load(Ordering::Acquire);
        let before = refused();
        let is_over = || self.shared.started.load(Ordering::Acquire) >= end.0;
        if !is_over() {
            self.shared.pending.lock().rotates = true;
            self.shared.work.notify_one();
        }
        self.shared.wait(|| is_over() || refused() != before)?;
        if is_over() {
            return Ok(());
        }
        let why = self.shared.rotation_trouble.lock().clone();
        Err(Error::new(ErrorKind::Unavailable, format!("cannot begin a segment of the update log: {why}")))
    }

    /// Writes and syncs what there is and ends in good order. Nothing may be appended any more. Fails with `Unavailable` when
    /// it could not be written.
    pub fn close(&self) -> Result<()> {
        self.close_unless(&|| false)
    }

    /// The same; `gives_up` is asked now and then while the disk keeps it waiting. Once it says so, the thread that writes is left
    /// to itself, and the error says how much is not known to be on disk.
    pub fn close_unless(&self, gives_up: &dyn Fn() -> bool) -> Result<()> {
        // Held, so that whoever closes it a second time waits too.
        let mut writer = self.writer.lock();
        if let Some(writer) = writer.take() {
            self.shared.pending.lock().ends = true;
            self.shared.work.notify_one();
            if self.shared.writer_leaves(gives_up) {
                // A thread that has failed has said so.
                let _ = writer.join();
            }
            let unsure = |why: String| {
                let len = self.end().0.saturating_sub(self.synced().0);
                self.shared
                    .set_state(LOST, format!("{why}; {len} bytes of writes are not known to be on disk"));
            };
            // Nobody waits for what nobody will write.
            match self.health() {
                Health::Well if self.shared.has_left.load(Ordering::Acquire) => {
                    self.shared.set_state(CLOSED, "the update log is closed".into());
                }
                Health::Well => unsure("the disk has not answered".into()),
                Health::Stuck(why) => unsure(why),
                Health::Lost(_) => {}
            }
        }
        match self.shared.state.load(Ordering::Acquire) {
            CLOSED => Ok(()),
            _ => Err(Error::new(ErrorKind::Unavailable, self.shared.trouble.lock().clone())),
        }
    }
}

impl Drop for UpdateLog {
    fn drop(&mut self) {
        // Whoever wants to know how it went has closed it.
        let _ = self.close();
    }
}

impl Shared {
    fn synced(&self) -> Position {
        Position(self.synced.load(Ordering::Acquire))
    }

    /// Nothing more will be written.
    #[inline]
    fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) >= LOST
    }

    #[inline]
    fn is_settled(&self, position: Position) -> bool {
        if self.has_ended() {
            return self.synced() >= position;
        }
        match self.sync {
            Sync::Always => self.synced() >= position,
            // Whoever else waits for the disk, what is there already waits for nobody.
            Sync::Every(_) => {
                self.synced() >= position
                    || (self.outlives_process(position) && !self.is_overdue() && !self.is_crowded())
            }
            Sync::Never => self.written.load(Ordering::Acquire) >= position.0 || !self.is_crowded(),
        }
    }

    /// Whether entries are to outlive the process before they are written.
    fn keeps_recent(&self) -> bool {
        matches!(self.sync, Sync::Every(_))
    }

    fn outlives_process(&self, position: Position) -> bool {
        let written = self.written.load(Ordering::Acquire);
        written >= position.0 || written >= self.exposed.load(Ordering::Acquire)
    }

    fn is_crowded(&self) -> bool {
        self.appended.load(Ordering::Relaxed) > self.written.load(Ordering::Relaxed) + self.backlog_max
    }

    fn is_overdue(&self) -> bool {
        let due_us = self.due_us.load(Ordering::Acquire);
        due_us != 0 && self.born.elapsed().as_micros() as u64 >= due_us
    }

    /// A change has waited to be synced since then. Called with `pending` locked.
    fn begin_waiting(&self, since: Option<Instant>) {
        if self.due_us.load(Ordering::Relaxed) == 0 {
            self.due_us.store(self.due_us_of(since), Ordering::Release);
        }
    }

    /// What `due_us` is to be when the oldest change has waited since then.
    fn due_us_of(&self, since: Option<Instant>) -> u64 {
        let (Sync::Every(interval), Some(since)) = (self.sync, since) else { return 0 };
        let due = since.saturating_duration_since(self.born).saturating_add(interval);
        u64::try_from(due.as_micros()).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn wait(&self, is_over: impl Fn() -> bool) -> Result<()> {
        self.wait_asking(&is_over, None).map(|_| ())
    }

    /// Waits until it is over, as long as `goes_on`; false if that comes to its end first.
    fn wait_asking(&self, is_over: &dyn Fn() -> bool, goes_on: Option<&dyn Fn() -> bool>) -> Result<bool> {
        if is_over() {
            return Ok(true);
        }
        let mut trouble = self.trouble.lock();
        loop {
            if is_over() {
                return Ok(true);
            }
            if self.state.load(Ordering::Acquire) != WELL {
                return Err(Error::new(ErrorKind::Unavailable, trouble.clone()));
            }
            let Some(goes_on) = goes_on else {
                self.progress.wait(&mut trouble);
                continue;
            };
            // Not while the lock is held.
            if !MutexGuard::unlocked(&mut trouble, goes_on) {
                return Ok(is_over());
            }
            self.progress.wait_for(&mut trouble, ASK_EVERY);
        }
    }

    /// Waits until the writer's thread has come to its end; false if `gives_up` comes first.
    fn writer_leaves(&self, gives_up: &dyn Fn() -> bool) -> bool {
        let mut trouble = self.trouble.lock();
        while !self.has_left.load(Ordering::Acquire) {
            // Not while the lock is held.
            if MutexGuard::unlocked(&mut trouble, gives_up) {
                return self.has_left.load(Ordering::Acquire);
            }
            self.progress.wait_for(&mut trouble, ASK_EVERY);
        }
        true
    }

    /// Tells all who wait.
    fn tell(&self) {
        // Whoever is between its look and its wait holds this lock.
        drop(self.trouble.lock());
        self.progress.notify_all();
        self.listeners.lock().iter().for_each(|listener| listener());
    }

    fn set_state(&self, state: u8, why: String) {
        {
            let mut trouble = self.trouble.lock();
            *trouble = why;
            self.state.store(state, Ordering::Release);
        }
        self.tell();
    }
}
