//! Defines the deadline up to which a server that stops waits for its disk.
//!
//! ```text
//! databases --> ProgressDisk --counts the completed operations of the disk--> DiskProgress
//!     --> ShutdownDeadline: is over once no more operations are completed
//! ```
//!
//! A slow disk or a busy machine must not be mistaken for a disk that hangs, so the deadline is
//! extended after every completed operation. Operations that bypass the [`Disk`] (those of LMDB on
//! its own file) are not counted, so each of them must complete within the time of one operation.

use crate::handle::{ServerHandle, StopStage};
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana::disk::{Disk, File, MappedFile, SharedMemory};

/// The time for one operation. Within this time even a slow disk writes the pending data, which is
/// at most about 32 MiB.
const LONG: Duration = Duration::from_secs(30);
/// The time for one operation after a second request to stop. An intact disk needs less.
pub(crate) const SHORT: Duration = Duration::from_secs(1);
/// The time that is announced at the begin of a wait and after progress. It exceeds `LONG`, because
/// progress is announced up to `ANNOUNCED_EVERY` late.
const ANNOUNCED: Duration = LONG.saturating_mul(2);
/// The minimum time between two announcements of progress.
const ANNOUNCED_EVERY: Duration = Duration::from_secs(1);
/// The maximum total time, as a multiple of the time for one operation. The deadline is never
/// extended beyond it, even if the disk still completes operations.
const TIMES_MAX: u32 = 20;

/// Counts the completed operations of a disk, once the counting is enabled.
#[derive(Debug, Default)]
pub(crate) struct DiskProgress {
    /// Counting is disabled until the server stops, because otherwise all workers would write to
    /// the same counter at each read.
    is_counting: AtomicBool,
    answers: AtomicU64,
}

impl DiskProgress {
    fn answered<T>(&self, outcome: T) -> T {
        if self.is_counting.load(Ordering::Relaxed) {
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Enables counting.
    fn start_counting(&self) {
        self.is_counting.store(true, Ordering::Relaxed);
    }
}

/// A disk that counts its completed operations.
pub(crate) struct ProgressDisk {
    disk: Arc<dyn Disk>,
    disk_progress: Arc<DiskProgress>,
}

impl ProgressDisk {
    pub(crate) fn over(disk: Arc<dyn Disk>, disk_progress: &Arc<DiskProgress>) -> Arc<dyn Disk> {
        Arc::new(ProgressDisk { disk, disk_progress: Arc::clone(disk_progress) })
    }

    fn file(&self, opened: io::Result<Box<dyn File>>) -> io::Result<Box<dyn File>> {
        let file = self.disk_progress.answered(opened)?;
        Ok(Box::new(ProgressFile { file, disk_progress: Arc::clone(&self.disk_progress) }))
    }
}

impl Disk for ProgressDisk {
    fn below(&self) -> Option<&dyn Disk> {
        Some(&*self.disk)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.file(self.disk.create(path))
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn File>> {
        self.file(self.disk.open(path, writable))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.disk_progress.answered(self.disk.list(directory))
    }

    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        self.disk_progress.answered(self.disk.make_directory(directory))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk_progress.answered(self.disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk_progress.answered(self.disk.remove(path))
    }

    fn remove_directory(&self, directory: &Path) -> io::Result<()> {
        self.disk_progress.answered(self.disk.remove_directory(directory))
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.disk_progress.answered(self.disk.sync_directory(directory))
    }
}

struct ProgressFile {
    file: Box<dyn File>,
    disk_progress: Arc<DiskProgress>,
}

impl File for ProgressFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.disk_progress.answered(self.file.read_at(offset, into))
    }

    fn write_at(&self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.disk_progress.answered(self.file.write_at(offset, pieces))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk_progress.answered(self.file.set_len(len))
    }

    fn map(&self, len: u64) -> Option<MappedFile> {
        self.file.map(len)
    }

    fn open_direct(&self) -> Option<std::fs::File> {
        self.file.open_direct()
    }

    fn share(&self, len: u64) -> Option<Box<dyn SharedMemory>> {
        self.file.share(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk_progress.answered(self.file.sync())
    }
}

/// Receives the time within which the next step of the stop ends, or makes progress.
pub(crate) type StopReport<'s> = &'s dyn Fn(Duration);

/// The deadline up to which a server that stops waits for its disk.
pub(crate) struct ShutdownDeadline<'s> {
    handle: &'s ServerHandle,
    disk_progress: &'s DiskProgress,
    report: StopReport<'s>,
    /// The time of the last report.
    reported: Cell<Instant>,
    begun: Instant,
    /// The number of completed operations, and the time since which this number has not changed.
    last_progress: Cell<(u64, Instant)>,
    /// True if an earlier wait has exceeded its deadline already.
    pub(crate) has_expired_before: bool,
}

impl<'s> ShutdownDeadline<'s> {
    pub(crate) fn new(
        handle: &'s ServerHandle,
        disk_progress: &'s DiskProgress,
        report: StopReport<'s>,
    ) -> ShutdownDeadline<'s> {
        disk_progress.start_counting();
        ShutdownDeadline::from(handle, disk_progress, report, Instant::now())
    }

    fn from(
        handle: &'s ServerHandle,
        disk_progress: &'s DiskProgress,
        report: StopReport<'s>,
        now: Instant,
    ) -> ShutdownDeadline<'s> {
        let last_progress = Cell::new((disk_progress.answers.load(Ordering::Relaxed), now));
        report(ANNOUNCED);
        ShutdownDeadline {
            handle,
            disk_progress,
            report,
            reported: Cell::new(now),
            begun: now,
            last_progress,
            has_expired_before: false,
        }
    }

    /// Returns a new deadline for the next step of the stop.
    pub(crate) fn renewed(&self) -> ShutdownDeadline<'s> {
        let has_expired_before = self.has_expired_before;
        ShutdownDeadline {
            has_expired_before,
            ..ShutdownDeadline::from(self.handle, self.disk_progress, self.report, Instant::now())
        }
    }

    /// Returns true if the disk hangs. Call this repeatedly: an operation that is completed between
    /// two calls extends the deadline.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over_at(Instant::now())
    }

    fn is_over_at(&self, now: Instant) -> bool {
        let answers = self.disk_progress.answers.load(Ordering::Relaxed);
        if answers != self.last_progress.get().0 {
            self.last_progress.set((answers, now));
            if now.duration_since(self.reported.get()) >= ANNOUNCED_EVERY {
                self.reported.set(now);
                (self.report)(ANNOUNCED);
            }
        }
        let is_short = self.has_expired_before || self.handle.stopping() == StopStage::AtOnce;
        let long = if is_short { SHORT } else { LONG };
        now.duration_since(self.last_progress.get().1) >= long
            || now.duration_since(self.begun) >= long * TIMES_MAX
    }
}

/// Waits for a thread to end. Once `gives_up` returns true, returns false.
pub(crate) fn has_ended<T>(thread: &JoinHandle<T>, gives_up: &dyn Fn() -> bool) -> bool {
    while !thread.is_finished() {
        if gives_up() {
            return false;
        }
        // This thread waits by polling, because the end of a server is not urgent.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shutdown_waits_only_for_a_responding_disk() {
        let (handle, disk_progress, began) = (ServerHandle::new(), DiskProgress::default(), Instant::now());
        let deadline = ShutdownDeadline::from(&handle, &disk_progress, &|_| (), began);
        disk_progress.start_counting();
        let at = |long: Duration, parts: u32| began + long * parts / 10;
        assert!(!deadline.is_over_at(at(LONG, 9)));
        disk_progress.answered(());
        // The disk completes operations for ten times as long as the time for one.
        for parts in (10..100).step_by(9) {
            assert!(!deadline.is_over_at(at(LONG, parts)), "{parts}");
            disk_progress.answered(());
        }
        assert!(!deadline.is_over_at(at(LONG, 101)));
        assert!(!deadline.is_over_at(at(LONG, 110)));
        assert!(deadline.is_over_at(at(LONG, 111)));
        // After a second request to stop, the deadline is shorter.
        handle.stop();
        handle.stop();
        let deadline = ShutdownDeadline::from(&handle, &disk_progress, &|_| (), began);
        assert!(!deadline.is_over_at(at(SHORT, 9)));
        disk_progress.answered(());
        assert!(!deadline.is_over_at(at(SHORT, 18)));
        assert!(!deadline.is_over_at(at(SHORT, 27)));
        assert!(deadline.is_over_at(at(SHORT, 28)));
    }

    #[test]
    fn shutdown_wait_for_a_responding_disk_is_bounded() {
        let (handle, disk_progress, began) = (ServerHandle::new(), DiskProgress::default(), Instant::now());
        let mut deadline = ShutdownDeadline::from(&handle, &disk_progress, &|_| (), began);
        deadline.has_expired_before = true;
        disk_progress.start_counting();
        let given_up = (1..1000).find(|tenths| {
            disk_progress.answered(());
            deadline.is_over_at(began + SHORT * *tenths / 10)
        });
        assert_eq!(given_up, Some(10 * TIMES_MAX));
    }

    #[test]
    fn progress_is_announced_once_a_second() {
        let (handle, disk_progress, began) = (ServerHandle::new(), DiskProgress::default(), Instant::now());
        let announced = Cell::new(0);
        let report = |time: Duration| {
            assert!(time >= LONG + ANNOUNCED_EVERY);
            announced.set(announced.get() + 1);
        };
        let deadline = ShutdownDeadline::from(&handle, &disk_progress, &report, began);
        disk_progress.start_counting();
        let after = |millis| {
            assert!(!deadline.is_over_at(began + Duration::from_millis(millis)));
            announced.take()
        };
        assert_eq!(after(2000), 1, "the begin");
        disk_progress.answered(());
        assert_eq!((after(2001), after(4000)), (1, 0), "progress, then none");
        disk_progress.answered(());
        assert_eq!(after(4001), 1);
        disk_progress.answered(());
        assert_eq!(after(4500), 0, "too soon");
        assert_eq!(deadline.renewed().last_progress.get().0, 3);
        assert_eq!(announced.get(), 1, "the next step");
    }
}
