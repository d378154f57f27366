//! The writer thread of the update log. It writes all entries that have accumulated by one write
//! and one sync.

use super::entry::{LogChange, LogEntry, LogPosition};
use super::pending::{EntryBatch, PendingEntries};
use super::recent::{RecentEntries, remove_recent};
use super::segment::{DatabaseIdentity, HEADER_LEN, SegmentHeader, name_of};
use super::{LOST, LogOptions, STUCK, SyncPolicy, UpdateLogState, WELL};
use crate::clock::Clock;
use crate::data_directory::DirectoryLock;
use crate::disk::{Disk, File};
use std::fmt::Display;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use todana_core::{Error, ErrorKind, Result};
use todana_engine::reserve::ReserveDisk;
use todana_engine::waiting::MutexGuard;

/// The delay before a failed write is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// The delay before a failed creation of a segment or of the reserve is repeated.
const SLOW_RETRY_DELAY: Duration = Duration::from_secs(1);
/// With [`SyncPolicy::Always`], the writer waits after a sync for requests from the clients that
/// just got their replies: for the time of this number of syncs, but at most `GATHER_MAX`. With 50
/// connections, a sync then covers 42 writes instead of 17, and a write takes a fifth less
/// processor time.
const GATHER_SYNCS: u32 = 3;
const GATHER_MAX: Duration = Duration::from_millis(1);
/// The delay before entries are passed to the kernel if they need no sync.
const NEVER_INTERVAL: Duration = Duration::from_secs(1);

/// The place where segments are created, and the identity that they contain.
pub(crate) struct LogPlace {
    pub(crate) disk: ReserveDisk,
    pub(crate) directory: PathBuf,
    pub(crate) identity: DatabaseIdentity,
    /// The number of times the database has been opened, including this one.
    pub(crate) openings: u32,
    /// Excludes other processes from the directory while the writer thread lives, even if the
    /// thread was abandoned because the disk did not answer. If the thread wrote to the log after
    /// another process had opened it, the log would have a gap.
    pub(crate) _lock: DirectoryLock,
}

impl LogPlace {
    /// Creates the first segment of an opening, in the space of the reserve if necessary.
    fn first_segment(&self, start: LogPosition, created_ms: u64) -> io::Result<Box<dyn File>> {
        self.segment(&self.disk, start, created_ms).map_err(|missing| missing.error)
    }

    /// Creates a further segment. The reserve is not used for it: if there is no space, the log
    /// continues in the current segment.
    fn next_segment(
        &self,
        start: LogPosition,
        created_ms: u64,
    ) -> std::result::Result<Box<dyn File>, MissingSegment> {
        self.segment(&*self.disk.disk, start, created_ms).map(|file| self.disk.adopt(file))
    }

    /// Creates a segment. The file gets its name only when its header is on disk, so every segment
    /// has a header. An empty segment with the same name is replaced. Any other file with this name
    /// stays, and is reported.
    fn segment(
        &self,
        disk: &dyn Disk,
        start: LogPosition,
        created_ms: u64,
    ) -> std::result::Result<Box<dyn File>, MissingSegment> {
        self.refuse_foreign(&self.directory.join(name_of(start)), start)?;
        let partial = self.directory.join(name_of(start) + ".partial");
        let created = self.named_segment(disk, &partial, start, created_ms);
        if created.is_err() {
            let _ = disk.remove(&partial);
        }
        created
    }

    fn named_segment(
        &self,
        disk: &dyn Disk,
        partial: &Path,
        start: LogPosition,
        created_ms: u64,
    ) -> std::result::Result<Box<dyn File>, MissingSegment> {
        let file = match disk.create(partial) {
            // A failed attempt has left this file.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                disk.remove(partial).map_err(|error| name_taken(partial, &error))?;
                disk.create(partial)?
            }
            outcome => outcome?,
        };
        let LogPlace { identity, openings, .. } = *self;
        let header = SegmentHeader { identity, openings, start, created_ms }.encode();
        file.write_at(0, &mut [IoSlice::new(&header)])?;
        file.sync()?;
        disk.rename(partial, &self.directory.join(name_of(start)))?;
        disk.sync_directory(&self.directory)
            .map_err(|error| MissingSegment { error, may_have_name: true })?;
        Ok(file)
    }

    /// Fails if a file with the name of the segment exists and cannot be replaced. It can be
    /// replaced if it is a segment of this log without entries, even with an incomplete header.
    fn refuse_foreign(&self, path: &Path, start: LogPosition) -> io::Result<()> {
        let file = match self.disk.open(path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(0, &mut bytes).map_err(|error| name_taken(path, &error))?;
        let is_empty = file.len()? <= HEADER_LEN as u64;
        let is_ours = match SegmentHeader::decode(&bytes) {
            Ok(header) => header.start == start && header.identity.database_id == self.identity.database_id,
            Err(_) => {
                let LogPlace { identity, openings, .. } = *self;
                let header = SegmentHeader { identity, openings, start, created_ms: 0 }.encode();
                // The creation time may differ, so only the fields before it are compared.
                let known = got.min(CREATED_AT_OFFSET);
                got < HEADER_LEN && header[..known] == bytes[..known]
            }
        };
        match is_empty && is_ours {
            true => Ok(()),
            false => Err(name_taken(path, &"not an empty segment")),
        }
    }
}

/// The error of a segment that could not be created.
struct MissingSegment {
    error: io::Error,
    /// True if a file may already have the name of the segment, so that a reader would continue in
    /// that file.
    may_have_name: bool,
}

impl From<io::Error> for MissingSegment {
    fn from(error: io::Error) -> MissingSegment {
        MissingSegment { error, may_have_name: false }
    }
}

/// Offset of the creation time in a header.
const CREATED_AT_OFFSET: usize = 48;

fn name_taken(path: &Path, why: &dyn Display) -> io::Error {
    let message =
        format!("{}: {why}; move the file away, because a new segment needs its name", path.display());
    io::Error::new(io::ErrorKind::AlreadyExists, message)
}

pub(crate) struct LogWriter {
    place: LogPlace,
    shared: Arc<UpdateLogState>,
    clock: Arc<dyn Clock>,
    options: LogOptions,
    file: Box<dyn File>,
    /// The start of the current segment, and the time of its creation.
    start: LogPosition,
    created_at: Instant,
    /// The end of the last entry that was written.
    end: LogPosition,
    /// The time at which the oldest entry that is written but not synced was appended.
    unsynced_since: Option<Instant>,
    batch: EntryBatch,
    /// A failed rotation is not retried before this time.
    rotation_retry_at: Instant,
    /// True if the next segment must be created before anything else is written. Its name may
    /// already exist although its creation failed, so entries that were appended to the current
    /// segment would lie in a gap.
    must_rotate: bool,
    /// True if the reserve was in use at the last report.
    reserve_was_spent: bool,
    /// The time at which the creation of the reserve is tried again.
    reserve_retry_at: Instant,
    /// The number of entries of the last batch, and the time until which the writer waits for the
    /// same number again.
    entries: u64,
    gather_until: Instant,
}

impl LogWriter {
    pub(crate) fn new(
        place: LogPlace,
        shared: Arc<UpdateLogState>,
        clock: Arc<dyn Clock>,
        options: LogOptions,
        end: LogPosition,
    ) -> Result<LogWriter> {
        let file = place.first_segment(end, clock.now().0.saturating_mul(1000)).map_err(|error| {
            let name = place.directory.join(name_of(end));
            Error::new(ErrorKind::Unavailable, format!("{}: cannot create it: {error}", name.display()))
        })?;
        let created_at = Instant::now();
        let batch = EntryBatch::default();
        Ok(LogWriter {
            place,
            shared,
            clock,
            options,
            file,
            start: end,
            created_at,
            end,
            unsynced_since: None,
            batch,
            rotation_retry_at: created_at,
            must_rotate: false,
            reserve_was_spent: false,
            reserve_retry_at: created_at,
            entries: 0,
            gather_until: created_at,
        })
    }

    /// Creates the ring that keeps entries until they are written. Removes the ring of an earlier
    /// opening, whose entries are in the segments.
    pub(crate) fn recent(&self) -> Option<RecentEntries> {
        let LogPlace { disk, directory, identity, openings, .. } = &self.place;
        remove_recent(&*disk.disk, directory);
        // On a full disk, the space that is left is for removals.
        let keeps = self.shared.uses_recent() && !self.shared.reserve.is_spent();
        let len = if keeps { self.options.recent_max } else { 0 };
        (len > 0).then(|| RecentEntries::create(&*disk.disk, directory, *identity, *openings, len)).flatten()
    }

    pub(crate) fn run(mut self) {
        let _end_guard = WriterEndGuard(Arc::clone(&self.shared));
        loop {
            let (ends, rotates, syncs) = self.next_work();
            if !self.write_until_done(rotates) {
                return;
            }
            if !(syncs || ends) {
                // This wakes threads that wait only for space in the backlog.
                self.shared.notify();
            } else if !self.sync() {
                return;
            }
            if ends {
                self.write_final_mark();
                return;
            }
        }
    }

    /// Waits for work, and moves the pending entries to the writer's batch. Returns three flags:
    /// whether this is the last batch, whether a new segment was requested, and whether to sync.
    fn next_work(&mut self) -> (bool, bool, bool) {
        let shared = Arc::clone(&self.shared);
        let mut pending = shared.pending.lock();
        loop {
            let now = Instant::now();
            let is_enough = pending.entries >= pending.awaited_entries || pending.is_worth_writing();
            if is_enough || now >= self.gather_until {
                pending.awaited_entries = 0;
            }
            let since = self.unsynced_since.or(pending.oldest_at);
            let due = match pending.awaited_entries {
                0 => since.and_then(|since| since.checked_add(self.sync_delay())),
                _ => Some(self.gather_until),
            };
            let is_due = due.is_some_and(|due| now >= due);
            let is_asked =
                pending.sync_now || pending.rotate_requested || pending.close_requested || pending.write_now;
            if is_due || is_asked || pending.is_worth_writing() {
                let syncs = pending.sync_now || (is_due && self.options.sync != SyncPolicy::Never);
                if pending.close_requested {
                    // A change that is appended after this is not written, so its reply must not be
                    // sent.
                    pending.is_closed = true;
                    shared.exposed.store(u64::MAX, Ordering::Release);
                }
                let orders = (pending.close_requested, std::mem::take(&mut pending.rotate_requested), syncs);
                pending.sync_now = false;
                // Under `SyncPolicy::Never`, entries wait for nothing after they were passed to the
                // kernel.
                self.unsynced_since = since.filter(|_| self.options.sync != SyncPolicy::Never);
                self.entries = pending.entries;
                self.batch = pending.take(std::mem::take(&mut self.batch));
                return orders;
            }
            if !shared.reserve.is_spent() {
                self.wait_for_work(&mut pending, due);
            } else if now < self.reserve_retry_at {
                self.wait_for_work(
                    &mut pending,
                    Some(due.map_or(self.reserve_retry_at, |due| due.min(self.reserve_retry_at))),
                );
            } else {
                MutexGuard::unlocked(&mut pending, || self.hold_reserve());
            }
        }
    }

    /// Tries to create the reserve again. With a reserve, the log accepts all changes and not only
    /// removals.
    fn hold_reserve(&mut self) {
        self.reserve_retry_at = Instant::now() + SLOW_RETRY_DELAY;
        self.shared.reserve.hold(self.options.reserve_bytes);
        self.report_reserve();
    }

    /// Wakes waiting threads if the reserve was freed or created, because that changes the health
    /// of the log.
    fn report_reserve(&mut self) {
        let is_spent = self.shared.reserve.is_spent();
        if std::mem::replace(&mut self.reserve_was_spent, is_spent) != is_spent {
            // The new state lasts at least this long, so that threads that check it regularly
            // notice it.
            self.reserve_retry_at = Instant::now() + SLOW_RETRY_DELAY;
            self.shared.notify();
        }
    }

    fn wait_for_work(&self, pending: &mut MutexGuard<'_, PendingEntries>, until: Option<Instant>) {
        match until {
            Some(due) => {
                self.shared.work_available.wait_until(pending, due);
            }
            None => self.shared.work_available.wait(pending),
        }
    }

    /// Returns how long entries may accumulate before a sync: half of the time whose changes may be
    /// lost. The other half is for the disk.
    fn sync_delay(&self) -> Duration {
        match self.options.sync {
            SyncPolicy::Always => Duration::ZERO,
            SyncPolicy::Every(interval) => interval / 2,
            SyncPolicy::Never => NEVER_INTERVAL,
        }
    }

    /// Writes the batch, and tries again until this succeeds. Returns false if the log is closed
    /// before.
    fn write_until_done(&mut self, rotates: bool) -> bool {
        if self.batch.len == 0 && !rotates {
            return true;
        }
        loop {
            match self.write(rotates) {
                Ok(()) => break,
                Err(WriteFailure::Lost(error)) => return self.fail(&error),
                Err(WriteFailure::Stuck(error)) => {
                    if self.shared.state.load(Ordering::Relaxed) == WELL {
                        self.shared.set_state(STUCK, format!("update log: cannot write to it: {error}"));
                    }
                    let mut pending = self.shared.pending.lock();
                    if pending.close_requested {
                        return false;
                    }
                    self.shared.work_available.wait_for(&mut pending, RETRY_DELAY);
                }
            }
        }
        if self.shared.state.load(Ordering::Relaxed) == STUCK {
            self.shared.set_state(WELL, String::new());
        }
        self.report_reserve();
        true
    }

    fn write(&mut self, rotates: bool) -> std::result::Result<(), WriteFailure> {
        let is_old = self.created_at.elapsed() >= self.options.segment_age;
        let is_due = is_old || self.end.0 - self.start.0 >= self.options.segment_len;
        if is_due && Instant::now() >= self.rotation_retry_at {
            self.rotate_if_possible()?;
        }
        if self.batch.len > 0 {
            self.write_batch()?;
        }
        if rotates && let Some(error) = self.rotate_if_possible()? {
            *self.shared.rotation_error.lock() = error.to_string();
            self.shared.failed_rotations.fetch_add(1, Ordering::AcqRel);
            self.shared.notify();
        }
        Ok(())
    }

    /// Starts a new segment. If the segment cannot be created (no inode, too many open files),
    /// returns the error, and the log continues in the current segment.
    fn rotate_if_possible(&mut self) -> std::result::Result<Option<io::Error>, WriteFailure> {
        match self.rotate() {
            Ok(()) => Ok(None),
            // A foreign file with the segment's name stays there, so continuing in the current
            // segment would not help.
            Err(WriteFailure::Stuck(error))
                if error.kind() != io::ErrorKind::AlreadyExists && !self.must_rotate =>
            {
                self.rotation_retry_at = Instant::now() + SLOW_RETRY_DELAY;
                Ok(Some(error))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Starts a new segment, unless the current segment is empty.
    fn rotate(&mut self) -> std::result::Result<(), WriteFailure> {
        if self.end == self.start {
            return Ok(());
        }
        // A failed write may have left bytes after the last entry. A reader accepts such bytes only
        // in the last segment, so they are cut off here.
        self.file.set_len(HEADER_LEN as u64 + (self.end.0 - self.start.0)).map_err(WriteFailure::Stuck)?;
        // The current segment must be on disk before the next one exists.
        self.file.sync().map_err(WriteFailure::Lost)?;
        self.store_synced();
        let created_ms = self.clock.now().0.saturating_mul(1000);
        let created = self.place.next_segment(self.end, created_ms);
        self.must_rotate |= created.as_ref().is_err_and(|missing| missing.may_have_name);
        self.file = created.map_err(|missing| WriteFailure::Stuck(missing.error))?;
        self.must_rotate = false;
        (self.start, self.created_at) = (self.end, Instant::now());
        self.shared.segment_start.store(self.start.0, Ordering::Release);
        Ok(())
    }

    fn write_batch(&mut self) -> std::result::Result<(), WriteFailure> {
        self.batch.seal(self.place.identity.seed(), self.shared.synced());
        let offset = HEADER_LEN as u64 + (self.end.0 - self.start.0);
        if let Err(error) = self.file.write_at(offset, &mut self.batch.slices()) {
            // The bytes that were written are cut off. If the process ends before the next attempt,
            // a reader would treat them as a torn tail, which does no harm.
            let _ = self.file.set_len(offset);
            return Err(WriteFailure::Stuck(error));
        }
        self.end = self.batch.end();
        // The batch is written. If a later step fails, it must not be written again.
        self.batch.clear(self.end);
        self.shared.written.store(self.end.0, Ordering::Release);
        Ok(())
    }

    /// Syncs the written entries. Returns false if the sync failed; it is then unknown which
    /// entries are on disk.
    fn sync(&mut self) -> bool {
        if self.shared.synced() == self.end {
            self.finish_sync();
            return true;
        }
        let began = Instant::now();
        match self.file.sync() {
            Ok(()) => {
                // This must come before any thread is woken, because a woken thread may append at
                // once.
                self.await_next_batch(began.elapsed());
                self.store_synced();
                self.finish_sync();
                true
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Starts the wait for the next batch. Clients that just got their replies will probably send
    /// again at once, and other clients have sent in the meantime. One sync for all of them is less
    /// work than alternating syncs for two halves. If there is only one client, the writer does not
    /// wait.
    fn await_next_batch(&mut self, took: Duration) {
        if self.options.sync == SyncPolicy::Always {
            self.gather_until = Instant::now() + (took * GATHER_SYNCS).min(GATHER_MAX);
            let mut pending = self.shared.pending.lock();
            pending.awaited_entries = pending.entries + self.entries;
        }
    }

    fn store_synced(&self) {
        self.shared.synced.store(self.end.0, Ordering::Release);
    }

    /// Finishes a sync: restarts the time limit for entries that were appended during the sync, and
    /// wakes waiting threads.
    fn finish_sync(&mut self) {
        self.unsynced_since = None;
        {
            let pending = self.shared.pending.lock();
            // This is a single store, so that an overdue change does not appear durable in between.
            self.shared.due_us.store(self.shared.due_us_of(pending.oldest_at), Ordering::Release);
        }
        self.shared.notify();
    }

    fn fail(&self, error: &io::Error) -> bool {
        self.shared.set_state(LOST, format!("update log: recent writes may not be on disk: {error}"));
        self.shared.pending.lock().discard();
        false
    }

    /// Writes a final mark, which states that everything before it is on disk. With this mark, a
    /// reader can distinguish damage from a torn tail.
    fn write_final_mark(&mut self) {
        let mut last = EntryBatch::new(self.end);
        let change = LogChange::Mark { time_ms: self.clock.now().0.saturating_mul(1000), synced: self.end };
        last.push(&LogEntry::own(change));
        last.seal(self.place.identity.seed(), self.end);
        let offset = HEADER_LEN as u64 + (self.end.0 - self.start.0);
        // If the mark cannot be written, readers lose only that distinction.
        let _ = self.file.write_at(offset, &mut last.slices()).and_then(|()| self.file.sync());
        remove_recent(&*self.place.disk.disk, &self.place.directory);
    }
}

enum WriteFailure {
    /// A write failed and can be repeated.
    Stuck(io::Error),
    /// A sync failed, so it is unknown which entries are on disk.
    Lost(io::Error),
}

/// Wakes all waiting threads when the writer thread ends, even by a panic.
struct WriterEndGuard(Arc<UpdateLogState>);

impl Drop for WriterEndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set_state(LOST, "update log: its thread has failed".into());
        }
        self.0.writer_ended.store(true, Ordering::Release);
        // The listeners are not called, because one of them may have caused the panic.
        drop(self.0.reason.lock());
        self.0.progress.notify_all();
    }
}
