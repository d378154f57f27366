//! Replays the log, on all processors.
//!
//! ```text
//! log --read, checked, in order--> batches, by the hash of the key --one thread each--> engine
//! ```
//!
//! Invariant: changes of one key are made in the log's order, because they all go to one thread.
//! The reading thread itself makes clears, planned clears and long values, after all earlier
//! changes.

use crate::Database;
use crate::checkpoint::called_off;
use crate::update_log::{LogChange, LogPosition, LogReader, decode};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use todana_core::{Error, LONG_VALUE_LEN, Result};

/// More threads only wait for each other.
const THREADS_MAX: usize = 8;
/// Bytes of a batch at which it is handed over.
const BATCH_LEN: usize = 64 << 10;
/// Batches that may wait for a thread.
const QUEUE: usize = 4;
/// Entries whose records are fetched from memory together.
const GROUP: usize = 16;
/// Bytes of the log between two calls of `progress`.
const TELL_EVERY: u64 = 1 << 20;

/// The entries that were replayed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replayed {
    /// Number of entries.
    pub(crate) entries: u64,
    /// Bytes of changes that an entry marks as lost.
    pub(crate) lost: u64,
}

impl Replayed {
    fn count(&mut self, change: &LogChange<'_>) {
        self.entries += 1;
        if let LogChange::Lost { len } = change {
            self.lost += len;
        }
    }
}

/// Makes all changes that have not been read yet. `progress` is called with the reader regularly
/// and may stop the replay. The error returned is the first one by its position in the log, as if
/// the changes were made one by one.
pub(crate) fn replay(
    database: &Database,
    reader: &mut LogReader,
    progress: &mut dyn FnMut(&LogReader) -> ControlFlow<()>,
) -> Result<Replayed> {
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get().min(THREADS_MAX));
    if threads == 1 {
        return replay_alone(database, reader, progress);
    }
    let failed = AtomicBool::new(false);
    let (outcome, trouble) = thread::scope(|scope| {
        let mut lanes = Vec::new();
        let mut workers = Vec::new();
        for _ in 0..threads {
            let (sender, receiver) = sync_channel(QUEUE);
            let (done, spares) = sync_channel(QUEUE + 2);
            let failed = &failed;
            workers.push(scope.spawn(move || make_all(database, &receiver, &done, failed)));
            lanes.push(Lane { batch: Batch::default(), sender, spares, away: 0 });
        }
        let outcome = share_out(database, reader, &mut lanes, &failed, progress);
        drop(lanes);
        let troubles = workers
            .into_iter()
            .filter_map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        (outcome, troubles.min_by_key(|trouble| trouble.position))
    });
    // The reader's error comes after those of the threads.
    match trouble {
        Some(trouble) => Err(trouble.error),
        None => outcome,
    }
}

fn replay_alone(
    database: &Database,
    reader: &mut LogReader,
    progress: &mut dyn FnMut(&LogReader) -> ControlFlow<()>,
) -> Result<Replayed> {
    let (mut read, mut told) = (Replayed::default(), reader.position());
    while let Some((_, entry)) = reader.next_entry()? {
        database.replay(&entry.change)?;
        read.count(&entry.change);
        if reader.position().0 - told.0 >= TELL_EVERY {
            told = reader.position();
            if progress(reader).is_break() {
                return Err(called_off());
            }
        }
    }
    Ok(read)
}

/// Reads the log and distributes the changes to the threads.
fn share_out(
    database: &Database,
    reader: &mut LogReader,
    lanes: &mut [Lane],
    failed: &AtomicBool,
    progress: &mut dyn FnMut(&LogReader) -> ControlFlow<()>,
) -> Result<Replayed> {
    let (mut read, mut told) = (Replayed::default(), reader.position());
    while let Some((position, content, entry)) = reader.next_content()? {
        read.count(&entry.change);
        match entry.change {
            LogChange::Put { key, .. } | LogChange::Retag { key, .. } | LogChange::Remove { key }
                if content.len() < LONG_VALUE_LEN =>
            {
                let lane = &mut lanes[lane_of(key, lanes.len())];
                lane.batch.push(position, content);
                if lane.batch.bytes.len() >= BATCH_LEN {
                    lane.hand_over();
                }
            }
            LogChange::Mark { .. } | LogChange::Lost { .. } => {}
            change => {
                lanes.iter_mut().for_each(Lane::finish);
                if !failed.load(Ordering::Relaxed) {
                    database.replay(&change)?;
                }
            }
        }
        if reader.position().0 - told.0 >= TELL_EVERY {
            told = reader.position();
            if failed.load(Ordering::Relaxed) {
                // The thread that failed reports the reason.
                break;
            }
            if progress(reader).is_break() {
                return Err(called_off());
            }
        }
    }
    lanes.iter_mut().for_each(Lane::finish);
    Ok(read)
}

fn lane_of(key: &[u8], lanes: usize) -> usize {
    ((u64::from(crc32c::crc32c(key)) * lanes as u64) >> 32) as usize
}

/// The channel to one thread.
struct Lane {
    batch: Batch,
    sender: SyncSender<Batch>,
    /// Batches that were replayed, to be filled again.
    spares: Receiver<Batch>,
    /// Number of batches that the thread has.
    away: usize,
}

impl Lane {
    fn hand_over(&mut self) {
        let spare = match self.spares.try_recv() {
            Ok(spare) => {
                self.away -= 1;
                spare
            }
            Err(_) => Batch::default(),
        };
        // A thread that is gone has panicked, which is reported when it is joined.
        if self.sender.send(std::mem::replace(&mut self.batch, spare)).is_ok() {
            self.away += 1;
        }
    }

    /// Returns once all changes that were sent have been made.
    fn finish(&mut self) {
        if !self.batch.entries.is_empty() {
            self.hand_over();
        }
        while self.away > 0 && self.spares.recv().is_ok() {
            self.away -= 1;
        }
    }
}

/// Entries in their order.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// The position of each entry, and the end of its content.
    entries: Vec<(LogPosition, usize)>,
}

impl Batch {
    fn push(&mut self, position: LogPosition, content: &[u8]) {
        self.bytes.extend_from_slice(content);
        self.entries.push((position, self.bytes.len()));
    }
}

/// An error, and the position of its entry.
struct Trouble {
    position: LogPosition,
    error: Error,
}

/// The work of one thread: makes changes until there are no more. After an error, which it reports
/// at once, it only counts the remaining ones as done.
fn make_all(
    database: &Database,
    batches: &Receiver<Batch>,
    done: &SyncSender<Batch>,
    failed: &AtomicBool,
) -> Option<Trouble> {
    let mut trouble = None;
    while let Ok(mut batch) = batches.recv() {
        if trouble.is_none() {
            trouble = make(database, &batch).err();
            if trouble.is_some() {
                failed.store(true, Ordering::Relaxed);
            }
        }
        batch.bytes.clear();
        batch.entries.clear();
        // The reading thread has ended, so the batch is not filled again.
        let _ = done.send(batch);
    }
    trouble
}

fn make(database: &Database, batch: &Batch) -> std::result::Result<(), Trouble> {
    let mut start = 0;
    let mut group = Vec::with_capacity(GROUP);
    for entries in batch.entries.chunks(GROUP) {
        for &(position, end) in entries {
            let entry = decode(&batch.bytes[start..end]).expect("it was decoded when it was read");
            if let LogChange::Put { key, .. } | LogChange::Retag { key, .. } | LogChange::Remove { key } =
                entry.change
            {
                database.engine().prefetch(key);
            }
            group.push((position, entry));
            start = end;
        }
        for (position, entry) in group.drain(..) {
            database.replay(&entry.change).map_err(|error| Trouble { position, error })?;
        }
    }
    Ok(())
}
