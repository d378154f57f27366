//! Entries that have been appended but not written yet.

use super::entry::{self, FRAME_LEN, LogChange, LogEntry, LogPosition, MARK_LEN};
use super::recent::RecentEntries;
use std::io::IoSlice;
use std::time::Instant;
use todana_core::{SharedBytes, plain_value};

/// When this many bytes are pending, the writer thread is woken even if it could wait longer.
const WORTH_WRITING: u64 = 256 << 10;
/// How much memory of a written batch is kept for the next batch.
const KEPT_BYTES: usize = 1 << 20;

/// The pending entries, and requests to the writer thread. The lock around this value is held only
/// for short copies.
pub(crate) struct PendingEntries {
    pub(crate) batch: EntryBatch,
    /// Requests an immediate sync.
    pub(crate) sync_now: bool,
    /// Requests a new segment.
    pub(crate) rotate_requested: bool,
    /// Requests that everything is written and the writer thread ends.
    pub(crate) close_requested: bool,
    /// True when the writer thread has taken its last batch.
    pub(crate) is_closed: bool,
    /// Requests an immediate write, because a thread waits for an entry that is not in `recent`.
    pub(crate) write_now: bool,
    /// The ring that keeps entries until they are written, if there is one.
    pub(crate) recent: Option<RecentEntries>,
    /// When the oldest pending entry was appended.
    pub(crate) oldest_at: Option<Instant>,
    /// The number of pending entries. Marks do not count.
    pub(crate) entries: u64,
    /// The writer thread waits, for a limited time, until this number of entries is pending. 0 if
    /// it does not wait for entries.
    pub(crate) awaited_entries: u64,
    /// The time in the last mark.
    last_mark_ms: u64,
}

/// Consecutive entries of the log. Long values are stored separately, because they are shared
/// instead of copied.
#[derive(Default)]
pub(crate) struct EntryBatch {
    pub(crate) start: LogPosition,
    pub(crate) len: u64,
    pieces: Vec<BatchPiece>,
    /// The entries after the last long value.
    tail: Vec<u8>,
}

enum BatchPiece {
    /// Complete entries, except that the value of the last one may follow as the next piece.
    Entries(Vec<u8>),
    /// The value of the last entry in the previous piece, in plain form.
    Value(SharedBytes),
}

impl PendingEntries {
    pub(crate) fn new(start: LogPosition) -> PendingEntries {
        PendingEntries {
            batch: EntryBatch::new(start),
            sync_now: false,
            rotate_requested: false,
            close_requested: false,
            is_closed: false,
            write_now: false,
            recent: None,
            oldest_at: None,
            entries: 0,
            awaited_entries: 0,
            last_mark_ms: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.len == 0
    }

    /// Returns true if the writer thread must be woken after the entry that was just appended.
    pub(crate) fn wakes_writer(&self, is_first: bool) -> bool {
        let is_enough =
            if self.awaited_entries > 0 { self.entries == self.awaited_entries } else { is_first };
        is_enough || self.write_now || self.is_worth_writing()
    }

    pub(crate) fn is_worth_writing(&self) -> bool {
        self.batch.len >= WORTH_WRITING
    }

    /// Appends an entry, and before it a mark if the batch is empty or the time has changed.
    /// Returns the position after the entry.
    pub(crate) fn append(&mut self, now_ms: u64, entry: &LogEntry<'_>) -> LogPosition {
        if self.is_empty() || now_ms != self.last_mark_ms {
            self.last_mark_ms = now_ms;
            self.oldest_at.get_or_insert_with(Instant::now);
            // The writer thread replaces the synced position later.
            let change = LogChange::Mark { time_ms: now_ms, synced: LogPosition(0) };
            self.batch.push(&LogEntry::own(change));
        }
        self.batch.push(entry);
        self.entries += 1;
        self.batch.end()
    }

    /// Copies the entries appended after `from` to `recent`, so that they survive the process.
    /// Returns false if that is impossible. The entries before `written` have been passed to the
    /// system.
    pub(crate) fn keep_recent(
        &mut self,
        from: LogPosition,
        written: LogPosition,
        synced: LogPosition,
    ) -> bool {
        let Some(recent) = &mut self.recent else { return false };
        let len = (self.batch.end().0 - from.0) as usize;
        // If the value is stored separately, the entry cannot be copied.
        let Some(start) = self.batch.tail.len().checked_sub(len) else { return false };
        recent.keep(from, &mut self.batch.tail[start..], synced, written)
    }

    /// Discards an entry that will never be written. Returns a position beyond the end of the log,
    /// so that a thread that waits for this position is never woken as if the entry were on disk.
    pub(crate) fn discard(&mut self) -> LogPosition {
        let after = LogPosition(self.batch.end().0.saturating_add(1));
        (self.batch, self.oldest_at) = (EntryBatch::new(after), None);
        after
    }

    /// Returns the batch to the writer thread. `spare` is a batch that has been written; its memory
    /// is reused.
    pub(crate) fn take(&mut self, mut spare: EntryBatch) -> EntryBatch {
        spare.clear(self.batch.end());
        (self.oldest_at, self.entries, self.awaited_entries, self.write_now) = (None, 0, 0, false);
        std::mem::replace(&mut self.batch, spare)
    }
}

impl EntryBatch {
    pub(crate) fn end(&self) -> LogPosition {
        LogPosition(self.start.0 + self.len)
    }

    pub(crate) fn new(start: LogPosition) -> EntryBatch {
        EntryBatch { start, ..EntryBatch::default() }
    }

    pub(crate) fn push(&mut self, entry: &LogEntry<'_>) {
        let shared = match &entry.change {
            // A compressed value is put again only with new attributes, which is rare.
            LogChange::Put { record, .. } => record.shared.map(plain_value),
            _ => None,
        };
        let before = self.tail.len();
        entry::encode(entry, shared.is_some(), &mut self.tail);
        self.len += (self.tail.len() - before) as u64;
        if let Some(value) = shared {
            self.len += value.len() as u64;
            self.pieces.push(BatchPiece::Entries(std::mem::take(&mut self.tail)));
            self.pieces.push(BatchPiece::Value(value));
        }
    }

    pub(crate) fn clear(&mut self, start: LogPosition) {
        self.pieces.clear();
        self.tail.clear();
        self.tail.shrink_to(KEPT_BYTES);
        (self.start, self.len) = (start, 0);
    }

    /// Fills in the checksums of the entries and the synced position of the marks.
    pub(crate) fn seal(&mut self, seed: u32, synced: LogPosition) {
        let mut position = self.start;
        if self.pieces.is_empty() {
            seal_entries(&mut self.tail, seed, &mut position, None, synced, 0);
            return;
        }
        let mut pieces = self.pieces.iter_mut().peekable();
        while let Some(piece) = pieces.next() {
            if let BatchPiece::Entries(entries) = piece {
                let value = match pieces.peek() {
                    Some(BatchPiece::Value(value)) => value.plain(),
                    _ => None,
                };
                seal_entries(entries, seed, &mut position, value, synced, 0);
            }
        }
        seal_entries(&mut self.tail, seed, &mut position, None, synced, 0);
    }

    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let pieces = self.pieces.iter().map(|piece| match piece {
            BatchPiece::Entries(entries) => IoSlice::new(entries),
            BatchPiece::Value(value) => IoSlice::new(value.plain().unwrap_or_default()),
        });
        pieces.chain([IoSlice::new(&self.tail)]).collect()
    }
}

/// Fills in the checksums of the entries in `bytes`; `value` is the value of the last one if it is
/// stored separately. The checksums are XORed with `mask`, which is 0 for the segments.
pub(crate) fn seal_entries(
    bytes: &mut [u8],
    seed: u32,
    position: &mut LogPosition,
    value: Option<&[u8]>,
    synced: LogPosition,
    mask: u32,
) {
    let mut at = 0;
    while at < bytes.len() {
        let size = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let end = at + FRAME_LEN + size as usize;
        let (content_end, apart) = match value {
            Some(value) if end > bytes.len() => (bytes.len(), value),
            _ => (end, &b""[..]),
        };
        let content = &mut bytes[at + FRAME_LEN..content_end];
        if size as usize == MARK_LEN - FRAME_LEN && content[0] == 0 {
            content[9..].copy_from_slice(&synced.0.to_le_bytes());
        }
        let crc = crc32c::crc32c_append(entry::crc_of_frame(seed, *position, size), content);
        let crc = crc32c::crc32c_append(crc, apart) ^ mask;
        bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        position.0 += (FRAME_LEN + size as usize) as u64;
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_wakes_at_the_awaited_number_of_entries() {
        let mut pending = PendingEntries::new(LogPosition(0));
        let mut append = |wanted: Option<u64>| {
            if let Some(wanted) = wanted {
                pending.take(EntryBatch::default());
                pending.awaited_entries = wanted;
            }
            let is_first = pending.is_empty();
            pending.append(1_000, &LogEntry::own(LogChange::Remove { key: b"k" }));
            pending.wakes_writer(is_first)
        };
        assert_eq!([append(Some(0)), append(None)], [true, false]);
        assert_eq!([append(Some(1)), append(None)], [true, false]);
        assert_eq!([append(Some(3)), append(None), append(None), append(None)], [false, false, true, false]);
    }
}
