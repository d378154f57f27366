//! The thread that writes: one write and one sync for whatever has come together meanwhile.

use super::entry::{Change, Entry, Position};
use super::pending::{Batch, Pending};
use super::recent::{RecentEntries, remove_recent};
use super::segment::{HEADER_LEN, Header, Identity, name_of};
use super::{LOST, LogOptions, STUCK, Shared, Sync, WELL};
use crate::clock::Clock;
use crate::data_directory::Lock;
use crate::disk::{Disk, File};
use parking_lot::MutexGuard;
use std::fmt::Display;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use todana_core::{Error, ErrorKind, Result};
use todana_engine::reserve::ReserveDisk;

/// How long a write that failed waits until it is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// How long after a failure it is tried again to create a segment, or the reserve.
const AGAIN: Duration = Duration::from_secs(1);
/// Where each write is synced, those who have just been answered are waited for as long as so many syncs take, and no longer than
/// `GATHER_MAX`. With 50 connections a sync is for 42 writes instead of 17, and a write takes a fifth less processor time.
const GATHER_SYNCS: u32 = 3;
const GATHER_MAX: Duration = Duration::from_millis(1);
/// How long entries wait to be handed to the kernel where nobody wants them synced.
const NEVER_INTERVAL: Duration = Duration::from_secs(1);

/// Where segments are made.
pub(crate) struct LogPlace {
    pub(crate) disk: ReserveDisk,
    pub(crate) directory: PathBuf,
    pub(crate) identity: Identity,
    /// How often the database has been opened, this time included.
    pub(crate) openings: u32,
    /// Keeps others out as long as the thread lives, also one that a disk has kept waiting until it was left to itself: a late write behind
    /// the end that the next opening has read would be a gap in the log.
    pub(crate) _lock: Lock,
}

impl LogPlace {
    /// Creates the segment that an opening begins with, if need be in the room of the reserve.
    fn first_segment(&self, start: Position, made_ms: u64) -> io::Result<Box<dyn File>> {
        self.segment(&self.disk, start, made_ms).map_err(|missing| missing.error)
    }

    /// Creates a further segment. Where there is no room for one the log goes on in the last one, so that the reserve is left alone.
    fn next_segment(
        &self,
        start: Position,
        made_ms: u64,
    ) -> std::result::Result<Box<dyn File>, MissingSegment> {
        self.segment(&*self.disk.disk, start, made_ms).map(|file| self.disk.adopt(file))
    }

    /// A new segment, on disk with its name, which it gets only then: a segment always has its header. An empty one of this name
    /// is replaced; anything else stays, and is reported.
    fn segment(
        &self,
        disk: &dyn Disk,
        start: Position,
        made_ms: u64,
    ) -> std::result::Result<Box<dyn File>, MissingSegment> {
        self.refuse_foreign(&self.directory.join(name_of(start)), start)?;
        let partial = self.directory.join(name_of(start) + ".partial");
        let made = self.named_segment(disk, &partial, start, made_ms);
        if made.is_err() {
            let _ = disk.remove(&partial);
        }
        made
    }

    fn named_segment(
        &self,
        disk: &dyn Disk,
        partial: &Path,
        start: Position,
        made_ms: u64,
    ) -> std::result::Result<Box<dyn File>, MissingSegment> {
        let file = match disk.create(partial) {
            // What a failed try has left.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                disk.remove(partial).map_err(|error| in_the_way(partial, &error))?;
                disk.create(partial)?
            }
            outcome => outcome?,
        };
        let LogPlace { identity, openings, .. } = *self;
        let header = Header { identity, openings, start, made_ms }.encode();
        file.write_at(0, &mut [IoSlice::new(&header)])?;
        file.sync()?;
        disk.rename(partial, &self.directory.join(name_of(start)))?;
        disk.sync_directory(&self.directory).map_err(|error| MissingSegment { error, has_name: true })?;
        Ok(file)
    }

    /// Fails if there is a file of a segment's name that is no segment of this log without entries, nor the beginning of one.
    fn refuse_foreign(&self, path: &Path, start: Position) -> io::Result<()> {
        let file = match self.disk.open(path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(0, &mut bytes).map_err(|error| in_the_way(path, &error))?;
        let is_empty = file.len()? <= HEADER_LEN as u64;
        let is_ours = match Header::decode(&bytes) {
            Ok(header) => header.start == start && header.identity.database_id == self.identity.database_id,
            Err(_) => {
                let LogPlace { identity, openings, .. } = *self;
                let header = Header { identity, openings, start, made_ms: 0 }.encode();
                // Up to where it tells the time.
                let known = got.min(MADE_AT);
                got < HEADER_LEN && header[..known] == bytes[..known]
            }
        };
        match is_empty && is_ours {
            true => Ok(()),
            false => Err(in_the_way(path, &"it is not a segment that is empty")),
        }
    }
}

/// The reason why there is no new segment.
struct MissingSegment {
    error: io::Error,
    /// There may be a file of its name all the same, where a reader goes on.
    has_name: bool,
}

impl From<io::Error> for MissingSegment {
    fn from(error: io::Error) -> MissingSegment {
        MissingSegment { error, has_name: false }
    }
}

/// Where a header tells when it was written.
const MADE_AT: usize = 48;

fn in_the_way(path: &Path, why: &dyn Display) -> io::Error {
    let message = format!("{}: {why}; a new segment needs this name: move it away", path.display());
    io::Error::new(io::ErrorKind::AlreadyExists, message)
}

pub(crate) struct Writer {
    place: LogPlace,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    options: LogOptions,
    file: Box<dyn File>,
    /// Where the segment begins, and since when it is there.
    start: Position,
    born: Instant,
    /// Behind what has been written.
    end: Position,
    /// When the oldest entry came that is written but not synced.
    unsynced_since: Option<Instant>,
    batch: Batch,
    /// A segment that could not be created is not tried again before this.
    rotates_at: Instant,
    /// The next segment may have its name already, though it could not be begun: what the present one took from here on would be a gap.
    must_rotate: bool,
    /// What was last told of the reserve.
    was_spent: bool,
    /// When it is next tried to create the reserve again.
    holds_at: Instant,
    /// Entries of the last batch, and until when as many are waited for.
    entries: u64,
    gathers_until: Instant,
}

impl Writer {
    pub(crate) fn new(
        place: LogPlace,
        shared: Arc<Shared>,
        clock: Arc<dyn Clock>,
        options: LogOptions,
        end: Position,
    ) -> Result<Writer> {
        let file = place.first_segment(end, clock.now().0.saturating_mul(1000)).map_err(|error| {
            let name = place.directory.join(name_of(end));
            Error::new(ErrorKind::Unavailable, format!("cannot make {}: {error}", name.display()))
        })?;
        let born = Instant::now();
        let batch = Batch::default();
        Ok(Writer {
            place,
            shared,
            clock,
            options,
            file,
            start: end,
            born,
            end,
            unsynced_since: None,
            batch,
            rotates_at: born,
            must_rotate: false,
            was_spent: false,
            holds_at: born,
            entries: 0,
            gathers_until: born,
        })
    }

    /// Makes the place where entries are kept until they are written; what is there is nothing any more.
    pub(crate) fn recent(&self) -> Option<RecentEntries> {
        let LogPlace { disk, directory, identity, openings, .. } = &self.place;
        remove_recent(&*disk.disk, directory);
        // Where the disk is full its room is for removals.
        let keeps = self.shared.keeps_recent() && !self.shared.reserve.is_spent();
        let len = if keeps { self.options.recent_max } else { 0 };
        (len > 0).then(|| RecentEntries::create(&*disk.disk, directory, *identity, *openings, len)).flatten()
    }

    pub(crate) fn run(mut self) {
        let _told = TellsOfEnd(Arc::clone(&self.shared));
        loop {
            let (ends, rotates, syncs) = self.take();
            if !self.write_until_done(rotates) {
                return;
            }
            if !(syncs || ends) {
                // Some wait only for room.
                self.shared.tell();
            } else if !self.sync() {
                return;
            }
            if ends {
                self.sign_off();
                return;
            }
        }
    }

    /// Waits for work and takes it: whether it is the last, whether a new segment is wanted, whether it is to be synced.
    fn take(&mut self) -> (bool, bool, bool) {
        let shared = Arc::clone(&self.shared);
        let mut pending = shared.pending.lock();
        loop {
            let now = Instant::now();
            let is_enough = pending.entries >= pending.wanted || pending.is_worth_writing();
            if is_enough || now >= self.gathers_until {
                pending.wanted = 0;
            }
            let since = self.unsynced_since.or(pending.since);
            let due = match pending.wanted {
                0 => since.and_then(|since| since.checked_add(self.patience())),
                _ => Some(self.gathers_until),
            };
            let is_due = due.is_some_and(|due| now >= due);
            let is_asked = pending.hurry || pending.rotates || pending.ends || pending.writes;
            if is_due || is_asked || pending.is_worth_writing() {
                let syncs = pending.hurry || (is_due && self.options.sync != Sync::Never);
                if pending.ends {
                    // A change that comes from now on will not be written, so its answer must not leave either.
                    pending.is_over = true;
                    shared.exposed.store(u64::MAX, Ordering::Release);
                }
                let orders = (pending.ends, std::mem::take(&mut pending.rotates), syncs);
                pending.hurry = false;
                // Where nothing is synced, what has been handed over does not wait any longer.
                self.unsynced_since = since.filter(|_| self.options.sync != Sync::Never);
                self.entries = pending.entries;
                self.batch = pending.take(std::mem::take(&mut self.batch));
                return orders;
            }
            if !shared.reserve.is_spent() {
                self.doze(&mut pending, due);
            } else if now < self.holds_at {
                self.doze(&mut pending, Some(due.map_or(self.holds_at, |due| due.min(self.holds_at))));
            } else {
                MutexGuard::unlocked(&mut pending, || self.hold_reserve());
            }
        }
    }

    /// Tries to create the reserve again; everything is taken then.
    fn hold_reserve(&mut self) {
        self.holds_at = Instant::now() + AGAIN;
        self.shared.reserve.hold(self.options.reserve_bytes);
        self.tell_of_reserve();
    }

    /// Notifies those who wait for the health to change.
    fn tell_of_reserve(&mut self) {
        let is_spent = self.shared.reserve.is_spent();
        if std::mem::replace(&mut self.was_spent, is_spent) != is_spent {
            // Long enough for those who look now and then to notice.
            self.holds_at = Instant::now() + AGAIN;
            self.shared.tell();
        }
    }

    fn doze(&self, pending: &mut MutexGuard<'_, Pending>, until: Option<Instant>) {
        match until {
            Some(due) => {
                self.shared.work.wait_until(pending, due);
            }
            None => self.shared.work.wait(pending),
        }
    }

    /// How long entries may gather before they are synced. Half of the time that may be lost: the other half is for the disk.
    fn patience(&self) -> Duration {
        match self.options.sync {
            Sync::Always => Duration::ZERO,
            Sync::Every(interval) => interval / 2,
            Sync::Never => NEVER_INTERVAL,
        }
    }

    /// Writes the batch, again and again if need be. False if the end comes before it succeeds.
    fn write_until_done(&mut self, rotates: bool) -> bool {
        if self.batch.len == 0 && !rotates {
            return true;
        }
        loop {
            match self.write(rotates) {
                Ok(()) => break,
                Err(Failure::Lost(error)) => return self.lose(&error),
                Err(Failure::Stuck(error)) => {
                    if self.shared.state.load(Ordering::Relaxed) == WELL {
                        self.shared.set_state(STUCK, format!("cannot write the update log: {error}"));
                    }
                    let mut pending = self.shared.pending.lock();
                    if pending.ends {
                        return false;
                    }
                    self.shared.work.wait_for(&mut pending, RETRY);
                }
            }
        }
        if self.shared.state.load(Ordering::Relaxed) == STUCK {
            self.shared.set_state(WELL, String::new());
        }
        self.tell_of_reserve();
        true
    }

    fn write(&mut self, rotates: bool) -> std::result::Result<(), Failure> {
        let is_old = self.born.elapsed() >= self.options.segment_age;
        let is_due = is_old || self.end.0 - self.start.0 >= self.options.segment_len;
        if is_due && Instant::now() >= self.rotates_at {
            self.rotate_if_possible()?;
        }
        if self.batch.len > 0 {
            self.write_batch()?;
        }
        if rotates && let Some(error) = self.rotate_if_possible()? {
            *self.shared.rotation_trouble.lock() = error.to_string();
            self.shared.refused_rotations.fetch_add(1, Ordering::AcqRel);
            self.shared.tell();
        }
        Ok(())
    }

    /// Begins a new segment; if it cannot be created (no inode, too many open files), the log goes on in this one, and the error is
    /// returned.
    fn rotate_if_possible(&mut self) -> std::result::Result<Option<io::Error>, Failure> {
        match self.rotate() {
            Ok(()) => Ok(None),
            // What is in the way of its name does not go by itself.
            Err(Failure::Stuck(error))
                if error.kind() != io::ErrorKind::AlreadyExists && !self.must_rotate =>
            {
                self.rotates_at = Instant::now() + AGAIN;
                Ok(Some(error))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Begins a new segment, unless this one is empty.
    fn rotate(&mut self) -> std::result::Result<(), Failure> {
        if self.end == self.start {
            return Ok(());
        }
        // Of a write that failed nothing stays behind the end: in a segment that is not the last it would be damage.
        self.file.set_len(HEADER_LEN as u64 + (self.end.0 - self.start.0)).map_err(Failure::Stuck)?;
        // The next one must not be there before this one is.
        self.file.sync().map_err(Failure::Lost)?;
        self.publish();
        let made_ms = self.clock.now().0.saturating_mul(1000);
        let made = self.place.next_segment(self.end, made_ms);
        self.must_rotate |= made.as_ref().is_err_and(|missing| missing.has_name);
        self.file = made.map_err(|missing| Failure::Stuck(missing.error))?;
        self.must_rotate = false;
        (self.start, self.born) = (self.end, Instant::now());
        self.shared.started.store(self.start.0, Ordering::Release);
        Ok(())
    }

    fn write_batch(&mut self) -> std::result::Result<(), Failure> {
        self.batch.seal(self.place.identity.seed(), self.shared.synced());
        let offset = HEADER_LEN as u64 + (self.end.0 - self.start.0);
        if let Err(error) = self.file.write_at(offset, &mut self.batch.slices()) {
            // Half an entry is a torn tail, should the process end before the next try.
            let _ = self.file.set_len(offset);
            return Err(Failure::Stuck(error));
        }
        self.end = self.batch.end();
        // Whatever fails from here on, it is not written twice.
        self.batch.clear(self.end);
        self.shared.written.store(self.end.0, Ordering::Release);
        Ok(())
    }

    /// False if it failed: then nobody knows what is on disk.
    fn sync(&mut self) -> bool {
        if self.shared.synced() == self.end {
            self.settle();
            return true;
        }
        let began = Instant::now();
        match self.file.sync() {
            Ok(()) => {
                // Before anybody is told, who may come back at once.
                self.gather(began.elapsed());
                self.publish();
                self.settle();
                true
            }
            Err(error) => self.lose(&error),
        }
    }

    /// Whoever has just been answered is likely to come back at once, and some have come meanwhile: one sync for all of them is less
    /// work than one for each half in turn. Those who are alone wait for nobody.
    fn gather(&mut self, took: Duration) {
        if self.options.sync == Sync::Always {
            self.gathers_until = Instant::now() + (took * GATHER_SYNCS).min(GATHER_MAX);
            let mut pending = self.shared.pending.lock();
            pending.wanted = pending.entries + self.entries;
        }
    }

    fn publish(&self) {
        self.shared.synced.store(self.end.0, Ordering::Release);
    }

    /// What has been written is synced: begins to count the time of what has come meanwhile, and tells those who wait.
    fn settle(&mut self) {
        self.unsynced_since = None;
        {
            let pending = self.shared.pending.lock();
            // In one step: what is overdue already does not look settled in between.
            self.shared.due_us.store(self.shared.due_us_of(pending.since), Ordering::Release);
        }
        self.shared.tell();
    }

    fn lose(&self, error: &io::Error) -> bool {
        self.shared.set_state(LOST, format!("the update log may not be on disk: {error}"));
        self.shared.pending.lock().give_up();
        false
    }

    /// A last mark, which tells that all before it is on disk, so that damage to it can be told from a torn tail.
    fn sign_off(&mut self) {
        let mut last = Batch::new(self.end);
        let change = Change::Mark { time_ms: self.clock.now().0.saturating_mul(1000), synced: self.end };
        last.push(&Entry { origin: None, change });
        last.seal(self.place.identity.seed(), self.end);
        let offset = HEADER_LEN as u64 + (self.end.0 - self.start.0);
        // Without it nothing is lost but that.
        let _ = self.file.write_at(offset, &mut last.slices()).and_then(|()| self.file.sync());
        remove_recent(&*self.place.disk.disk, &self.place.directory);
    }
}

enum Failure {
    /// It can be tried again.
    Stuck(io::Error),
    /// Nobody knows what is on disk.
    Lost(io::Error),
}

/// Nobody waits for a thread that has ended.
struct TellsOfEnd(Arc<Shared>);

impl Drop for TellsOfEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set_state(LOST, "the update log's thread has failed".into());
        }
        self.0.has_left.store(true, Ordering::Release);
        // No listener: one of them may be what has failed.
        drop(self.0.trouble.lock());
        self.0.progress.notify_all();
    }
}
