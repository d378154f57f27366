//! The thread that writes the update log keeps the directory locked while it lives.
//!
//! A server once abandoned a disk that had not answered in time. It released the lock of the
//! directory, but the thread was still running. The next opening read the log and continued at its
//! end. Then the disk answered, and the thread wrote its last mark after that end. The opening
//! after that failed with "the log goes on at position 22527, not at 22552", and the thread had
//! removed the ring of the opening before, with its recent writes.

use crate::crash_disk;
use crate::kept;

use crash_disk::{CrashDisk, Op};
use kept::{CrashDiskDatabase, open, options};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use todana::update_log::{LogOptions, LogTail, SyncPolicy};
use todana_core::ErrorKind;

const NOW: u64 = 1_700_000_000;

/// Nothing is written before the log is closed.
fn unsynced() -> LogOptions {
    options(SyncPolicy::Every(Duration::from_secs(3600)))
}

/// Makes the first thread that arrives wait until it is released.
#[derive(Default)]
struct WriteGate {
    is_open: Mutex<bool>,
    opened: Condvar,
    has_come: AtomicBool,
}

impl WriteGate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    /// Returns when a thread is waiting.
    fn wait(&self) {
        while !self.has_come.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    fn pass(&self) {
        if !self.has_come.swap(true, Ordering::SeqCst) {
            drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
        }
    }
}

/// Makes the next write wait.
fn hold_writes(disk: &CrashDisk, gate: &Arc<WriteGate>) {
    let gate = Arc::clone(gate);
    disk.fault(move |op| {
        if matches!(op, Op::Write { .. }) {
            gate.pass();
        }
        Ok(())
    });
}

fn busy_or_open(disk: &CrashDisk) -> Option<CrashDiskDatabase> {
    match open(disk, NOW, unsynced()) {
        Ok(kept) => Some(kept),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            None
        }
    }
}

/// Opens the database as soon as its directory is no longer locked.
fn open_when_free(disk: &CrashDisk) -> CrashDiskDatabase {
    loop {
        if let Some(kept) = busy_or_open(disk) {
            return kept;
        }
        std::thread::yield_now();
    }
}

#[test]
fn abandoned_writer_keeps_the_directory_locked() {
    // The thread is interrupted in a write, or before its last mark.
    for waits in ["the write", "the mark"] {
        let (disk, gate) = (CrashDisk::new(), Arc::<WriteGate>::default());
        let kept = open(&disk, NOW, unsynced()).unwrap();
        kept.set(b"first", b"value");
        if waits == "the mark" {
            kept.log().sync_to(kept.logged()).unwrap();
        }
        hold_writes(&disk, &gate);
        let given_up = kept.log().close_unless(&|| gate.has_come.load(Ordering::SeqCst));
        assert_eq!(given_up.unwrap_err().kind(), ErrorKind::Unavailable, "{waits}");
        drop(kept);
        assert!(busy_or_open(&disk).is_none(), "{waits}: the thread can still write");
        gate.open();

        let kept = open_when_free(&disk);
        assert_eq!(kept.opened.tail, LogTail::Clean, "{waits}");
        kept.set(b"second", b"value");
        kept.log().wait(kept.logged()).unwrap();
        let expected = kept.records();
        assert_eq!(expected.len(), 2, "{waits}");
        kept.kill();
        disk.come_up(None);
        assert_eq!(open(&disk, NOW, unsynced()).unwrap().records(), expected, "{waits}: the ring was there");
    }
}

/// A change was stored in the ring and acknowledged while the log was being closed. The close then
/// removed the ring, and the change was lost.
#[test]
fn change_after_the_last_batch_is_not_acknowledged() {
    let (disk, gate) = (CrashDisk::new(), Arc::<WriteGate>::default());
    let kept = open(&disk, NOW, unsynced()).unwrap();
    kept.set(b"first", b"value");
    kept.log().sync_to(kept.logged()).unwrap();
    hold_writes(&disk, &gate);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| kept.log().close());
        gate.wait();
        kept.set(b"late", b"value");
        let late = kept.logged();
        assert!(!kept.log().is_durable(late));
        gate.open();
        closing.join().unwrap().unwrap();
        assert_eq!(kept.log().wait(late).unwrap_err().kind(), ErrorKind::Unavailable);
    });
    drop(kept);
    assert_eq!(open(&disk, NOW, unsynced()).unwrap().get(b"first").unwrap(), b"value");
}

#[test]
fn log_that_outlives_its_directory_keeps_the_lock() {
    let disk = CrashDisk::new();
    let CrashDiskDatabase { database, directory, worker_counters, .. } =
        open(&disk, NOW, unsynced()).unwrap();
    drop(directory);
    assert!(busy_or_open(&disk).is_none());
    drop((worker_counters, database));
    assert!(busy_or_open(&disk).is_some());
}
