//! Replays the log on all processors.
//!
//! ```text
//! log --read and checked in order--> batches, by the hash of the key --one thread each--> engine
//! ```
//!
//! Invariant: the changes of one key are applied in the log's order, because one thread applies all
//! of them. The reading thread itself applies clears, planned clears and long values, after it has
//! waited for all earlier changes.

use crate::Database;
use crate::checkpoint::cancelled;
use crate::update_log::{LogChange, LogPosition, LogReader, decode};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use todana_core::{Error, LONG_VALUE_LEN, RecordLoad, Result};

/// The most threads. More of them would mainly wait for each other's locks in the engine.
const THREADS_MAX: usize = 8;
/// A batch is sent to its thread when it has this many bytes.
const BATCH_LEN: usize = 64 << 10;
/// The most batches that may wait for one thread.
const QUEUE_LEN: usize = 4;
/// The number of entries whose records are prefetched together.
const GROUP_LEN: usize = 16;
/// Bytes of the log between two calls of `progress`.
const REPORT_EVERY_BYTES: u64 = 1 << 20;

/// Counts of the replayed entries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplaySummary {
    /// Number of entries.
    pub(crate) entries: u64,
    /// Bytes of changes that are lost, according to entries that record a loss.
    pub(crate) lost: u64,
    /// True if changes are lost after the last removal of all records.
    pub(crate) has_gap: bool,
}

impl ReplaySummary {
    fn count(&mut self, change: &LogChange<'_>) {
        self.entries += 1;
        match change {
            LogChange::Lost { len } => {
                self.lost += len;
                self.has_gap = true;
            }
            LogChange::Clear => self.has_gap = false,
            _ => {}
        }
    }
}

/// Applies all changes that the reader has not read yet. `progress` is called regularly with the
/// reader and may stop the replay. If several changes fail, returns the error of the first of them
/// in the log, as if the changes were applied one after another.
pub(crate) fn replay(
    database: &Database,
    reader: &mut LogReader,
    progress: &mut dyn FnMut(&LogReader) -> ControlFlow<()>,
) -> Result<ReplaySummary> {
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get().min(THREADS_MAX));
    if threads == 1 {
        return replay_alone(database, reader, progress);
    }
    let failed = AtomicBool::new(false);
    let (outcome, failure) = thread::scope(|scope| {
        let mut channels = Vec::new();
        let mut workers = Vec::new();
        for _ in 0..threads {
            let (sender, receiver) = sync_channel(QUEUE_LEN);
            let (done, spares) = sync_channel(QUEUE_LEN + 2);
            let failed = &failed;
            workers.push(scope.spawn(move || replay_batches(database, &receiver, &done, failed)));
            channels.push(ReplayChannel { batch: EntryBatch::default(), sender, spares, sent_count: 0 });
        }
        let outcome = distribute(database, reader, &mut channels, &failed, progress);
        drop(channels);
        let errors = workers
            .into_iter()
            .filter_map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        (outcome, errors.min_by_key(|failure| failure.position))
    });
    // The entries that the threads applied come before the place where the reader failed.
    match failure {
        Some(failure) => Err(failure.error),
        None => outcome,
    }
}

fn replay_alone(
    database: &Database,
    reader: &mut LogReader,
    progress: &mut dyn FnMut(&LogReader) -> ControlFlow<()>,
) -> Result<ReplaySummary> {
    let (mut read, mut reported) = (ReplaySummary::default(), reader.position());
    while let Some((_, content, entry)) = reader.next_content()? {
        compress_for(database, content.len());
        database.replay(&entry.change)?;
        read.count(&entry.change);
        if reader.position().0 - reported.0 >= REPORT_EVERY_BYTES {
            reported = reader.position();
            if progress(reader).is_break() {
                return Err(cancelled());
            }
        }
    }
    Ok(read)
}

/// Reads the log and distributes its changes to the threads.
fn distribute(
    database: &Database,
    reader: &mut LogReader,
    channels: &mut [ReplayChannel],
    failed: &AtomicBool,
    progress: &mut dyn FnMut(&LogReader) -> ControlFlow<()>,
) -> Result<ReplaySummary> {
    let (mut read, mut reported) = (ReplaySummary::default(), reader.position());
    while let Some((position, content, entry)) = reader.next_content()? {
        read.count(&entry.change);
        match entry.change {
            LogChange::Put { key, .. } | LogChange::Retag { key, .. } | LogChange::Remove { key }
                if content.len() < LONG_VALUE_LEN =>
            {
                let channel = &mut channels[channel_index(key, channels.len())];
                channel.batch.push(position, content);
                if channel.batch.bytes.len() >= BATCH_LEN {
                    channel.send_batch();
                }
            }
            LogChange::Mark { .. } | LogChange::Epoch(_) | LogChange::Lost { .. } => {}
            change => {
                channels.iter_mut().for_each(ReplayChannel::finish);
                if !failed.load(Ordering::Relaxed) {
                    compress_for(database, content.len());
                    database.replay(&change)?;
                }
            }
        }
        if reader.position().0 - reported.0 >= REPORT_EVERY_BYTES {
            reported = reader.position();
            if failed.load(Ordering::Relaxed) {
                // The thread that failed returns the error.
                break;
            }
            if progress(reader).is_break() {
                return Err(cancelled());
            }
        }
    }
    channels.iter_mut().for_each(ReplayChannel::finish);
    Ok(read)
}

/// Compresses records if that is needed before content of the log is applied.
fn compress_for(database: &Database, content_len: usize) {
    // The length of the log does not show how many records will remain.
    database.compress_for_load(RecordLoad { all_bytes: 0, next_bytes: content_len as u64 });
}

fn channel_index(key: &[u8], channels: usize) -> usize {
    ((u64::from(crc32c::crc32c(key)) * channels as u64) >> 32) as usize
}

/// The batches that are sent to one thread.
struct ReplayChannel {
    batch: EntryBatch,
    sender: SyncSender<EntryBatch>,
    /// Empty batches that the thread has returned for reuse.
    spares: Receiver<EntryBatch>,
    /// The number of batches that the thread has not returned.
    sent_count: usize,
}

impl ReplayChannel {
    fn send_batch(&mut self) {
        let spare = match self.spares.try_recv() {
            Ok(spare) => {
                self.sent_count -= 1;
                spare
            }
            Err(_) => EntryBatch::default(),
        };
        // The channel is closed only if the thread has panicked. The panic is reported when the
        // thread is joined.
        if self.sender.send(std::mem::replace(&mut self.batch, spare)).is_ok() {
            self.sent_count += 1;
        }
    }

    /// Sends the current batch, and waits until the thread has applied everything that was sent to
    /// it.
    fn finish(&mut self) {
        if !self.batch.entries.is_empty() {
            self.send_batch();
        }
        while self.sent_count > 0 && self.spares.recv().is_ok() {
            self.sent_count -= 1;
        }
    }
}

/// Entries of the log, in their order.
#[derive(Default)]
struct EntryBatch {
    bytes: Vec<u8>,
    /// The position of each entry, and the end of its content.
    entries: Vec<(LogPosition, usize)>,
}

impl EntryBatch {
    fn push(&mut self, position: LogPosition, content: &[u8]) {
        self.bytes.extend_from_slice(content);
        self.entries.push((position, self.bytes.len()));
    }
}

/// An error, and the position of the entry that could not be applied.
struct ReplayError {
    position: LogPosition,
    error: Error,
}

/// Runs one thread: applies batches until the channel is closed. After an error the thread applies
/// no more changes, but still returns the batches. Sets `failed` at once, and returns the error at
/// the end.
fn replay_batches(
    database: &Database,
    batches: &Receiver<EntryBatch>,
    done: &SyncSender<EntryBatch>,
    failed: &AtomicBool,
) -> Option<ReplayError> {
    let mut failure = None;
    while let Ok(mut batch) = batches.recv() {
        if failure.is_none() {
            failure = apply(database, &batch).err();
            if failure.is_some() {
                failed.store(true, Ordering::Relaxed);
            }
        }
        batch.bytes.clear();
        batch.entries.clear();
        // If this fails, the reading thread has ended and needs no batches.
        let _ = done.send(batch);
    }
    failure
}

fn apply(database: &Database, batch: &EntryBatch) -> std::result::Result<(), ReplayError> {
    compress_for(database, 0);
    let mut start = 0;
    let mut group = Vec::with_capacity(GROUP_LEN);
    for entries in batch.entries.chunks(GROUP_LEN) {
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
            database.replay(&entry.change).map_err(|error| ReplayError { position, error })?;
        }
    }
    Ok(())
}
