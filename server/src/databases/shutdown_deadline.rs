//! The deadline up to which a server that stops waits for its disk.
//!
//! ```text
//! databases --> ProgressDisk --counts the disk's answers--> DiskProgress
//!     --> ShutdownDeadline: over once no more answers come
//! ```
//!
//! A slow disk or a busy machine must not be mistaken for a disk that hangs, so the deadline is
//! extended after every completed operation. Operations that bypass the [`Disk`] (on the tree's own
//! file) are not counted, and get the time of one operation.

use crate::handle::{ServerHandle, Stopping};
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana::disk::{Disk, File, MappedFile, SharedMemory};

/// Time for one operation. A slow disk writes the pending data, at most about 32 MiB, within this
/// time.
const LONG: Duration = Duration::from_secs(30);
/// Time for one operation after a second request to stop; an intact disk needs less.
pub(crate) const SHORT: Duration = Duration::from_secs(1);
/// A disk that answers but never completes is given up after this many times that time.
const TIMES_MAX: u32 = 20;

/// Counts the completed operations of a disk, once counting is enabled.
#[derive(Debug, Default)]
pub(crate) struct DiskProgress {
    /// Disabled by default, because workers would contend for the counter at each read.
    is_felt: AtomicBool,
    answers: AtomicU64,
}

impl DiskProgress {
    fn answered<T>(&self, outcome: T) -> T {
        if self.is_felt.load(Ordering::Relaxed) {
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Enables counting.
    fn feel(&self) {
        self.is_felt.store(true, Ordering::Relaxed);
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

    fn share(&self, len: u64) -> Option<Box<dyn SharedMemory>> {
        self.file.share(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk_progress.answered(self.file.sync())
    }
}

/// The deadline up to which a server that stops waits for its disk.
pub(crate) struct ShutdownDeadline<'s> {
    handle: &'s ServerHandle,
    disk_progress: &'s DiskProgress,
    begun: Instant,
    /// Number of completed operations, and the time since when it has not changed.
    heard: Cell<(u64, Instant)>,
    /// True if the disk has already exceeded the deadline once.
    pub(crate) has_been_tried: bool,
}

impl<'s> ShutdownDeadline<'s> {
    pub(crate) fn new(handle: &'s ServerHandle, disk_progress: &'s DiskProgress) -> ShutdownDeadline<'s> {
        disk_progress.feel();
        ShutdownDeadline::from(handle, disk_progress, Instant::now())
    }

    fn from(handle: &'s ServerHandle, disk_progress: &'s DiskProgress, now: Instant) -> ShutdownDeadline<'s> {
        let heard = Cell::new((disk_progress.answers.load(Ordering::Relaxed), now));
        ShutdownDeadline { handle, disk_progress, begun: now, heard, has_been_tried: false }
    }

    /// Returns a fresh deadline for the next step.
    pub(crate) fn again(&self) -> ShutdownDeadline<'s> {
        let has_been_tried = self.has_been_tried;
        ShutdownDeadline {
            has_been_tried,
            ..ShutdownDeadline::from(self.handle, self.disk_progress, Instant::now())
        }
    }

    /// Returns true if the disk hangs. Must be called repeatedly: the progress between two calls
    /// counts.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over_at(Instant::now())
    }

    fn is_over_at(&self, now: Instant) -> bool {
        let answers = self.disk_progress.answers.load(Ordering::Relaxed);
        if answers != self.heard.get().0 {
            self.heard.set((answers, now));
        }
        let is_short = self.has_been_tried || self.handle.stopping() == Stopping::AtOnce;
        let long = if is_short { SHORT } else { LONG };
        now.duration_since(self.heard.get().1) >= long || now.duration_since(self.begun) >= long * TIMES_MAX
    }
}

/// Waits for a thread to end. Returns false if `gives_up` returns true first.
pub(crate) fn has_ended<T>(thread: &JoinHandle<T>, gives_up: &dyn Fn() -> bool) -> bool {
    while !thread.is_finished() {
        if gives_up() {
            return false;
        }
        // Nothing unparks this thread: the stop of a server is not urgent.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_answers_is_waited_for_and_one_that_does_not_is_given_up() {
        let (handle, disk_progress, began) = (ServerHandle::new(), DiskProgress::default(), Instant::now());
        let deadline = ShutdownDeadline::from(&handle, &disk_progress, began);
        disk_progress.feel();
        let at = |long: Duration, parts: u32| began + long * parts / 10;
        assert!(!deadline.is_over_at(at(LONG, 9)));
        disk_progress.answered(());
        // Ten times as long as without an answer.
        for parts in (10..100).step_by(9) {
            assert!(!deadline.is_over_at(at(LONG, parts)), "{parts}");
            disk_progress.answered(());
        }
        assert!(!deadline.is_over_at(at(LONG, 101)));
        assert!(!deadline.is_over_at(at(LONG, 110)));
        assert!(deadline.is_over_at(at(LONG, 111)));
        // After a second request to stop, it waits for a shorter time.
        handle.stop();
        handle.stop();
        let deadline = ShutdownDeadline::from(&handle, &disk_progress, began);
        assert!(!deadline.is_over_at(at(SHORT, 9)));
        disk_progress.answered(());
        assert!(!deadline.is_over_at(at(SHORT, 18)));
        assert!(!deadline.is_over_at(at(SHORT, 27)));
        assert!(deadline.is_over_at(at(SHORT, 28)));
    }

    #[test]
    fn a_disk_that_answers_for_ever_is_given_up_some_time() {
        let (handle, disk_progress, began) = (ServerHandle::new(), DiskProgress::default(), Instant::now());
        let mut deadline = ShutdownDeadline::from(&handle, &disk_progress, began);
        deadline.has_been_tried = true;
        disk_progress.feel();
        let given_up = (1..1000).find(|tenths| {
            disk_progress.answered(());
            deadline.is_over_at(began + SHORT * *tenths / 10)
        });
        assert_eq!(given_up, Some(10 * TIMES_MAX));
    }
}
