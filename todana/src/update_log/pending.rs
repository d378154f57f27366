//! What has been appended and not been written.

use super::entry::{self, Change, Entry, FRAME_LEN, MARK_LEN, Position};
use super::recent::RecentEntries;
use std::io::IoSlice;
use std::time::Instant;
use todana_core::SharedBytes;

/// The writer is woken for so much, however long it may wait.
const WORTH_WRITING: u64 = 256 << 10;
/// Memory of a batch that is kept for the next one.
const KEPT: usize = 1 << 20;

/// The entries that wait, and what the writer is asked to do. Under a lock that is held only for a copy.
pub(crate) struct Pending {
    pub(crate) batch: Batch,
    /// Sync at once.
    pub(crate) hurry: bool,
    /// Begin a new segment first.
    pub(crate) rotates: bool,
    /// Write all and stop.
    pub(crate) ends: bool,
    /// The writer has taken the last of them.
    pub(crate) is_over: bool,
    /// Write at once: somebody waits for what is not kept beside the log.
    pub(crate) writes: bool,
    /// Where entries are kept until they are written.
    pub(crate) recent: Option<RecentEntries>,
    /// When the first of the entries came.
    pub(crate) since: Option<Instant>,
    /// How many there are, marks aside.
    pub(crate) entries: u64,
    /// The writer waits, for a bounded time, until there are so many; 0: it does not.
    pub(crate) wanted: u64,
    /// The time that the last mark told.
    marked_ms: u64,
}

/// Entries one behind the other, most of them in one piece.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) start: Position,
    pub(crate) len: u64,
    pieces: Vec<Piece>,
    /// What follows the last long value.
    tail: Vec<u8>,
}

enum Piece {
    /// Whole entries, the last one perhaps without its value.
    Entries(Vec<u8>),
    /// The value of the entry before it.
    Value(SharedBytes),
}

impl Pending {
    pub(crate) fn new(start: Position) -> Pending {
        Pending {
            batch: Batch::new(start),
            hurry: false,
            rotates: false,
            ends: false,
            is_over: false,
            writes: false,
            recent: None,
            since: None,
            entries: 0,
            wanted: 0,
            marked_ms: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.len == 0
    }

    /// Whether what has just been appended is worth waking the writer for.
    pub(crate) fn wakes_writer(&self, is_first: bool) -> bool {
        let is_enough = if self.wanted > 0 { self.entries == self.wanted } else { is_first };
        is_enough || self.writes || self.is_worth_writing()
    }

    pub(crate) fn is_worth_writing(&self) -> bool {
        self.batch.len >= WORTH_WRITING
    }

    /// Appends an entry, and a mark before it if the batch is new or time has passed; returns the position behind it.
    pub(crate) fn append(&mut self, now_ms: u64, entry: &Entry<'_>) -> Position {
        if self.is_empty() || now_ms != self.marked_ms {
            self.marked_ms = now_ms;
            self.since.get_or_insert_with(Instant::now);
            // The writer fills in what is synced.
            let change = Change::Mark { time_ms: now_ms, synced: Position(0) };
            self.batch.push(&Entry { origin: None, change });
        }
        self.batch.push(entry);
        self.entries += 1;
        self.batch.end()
    }

    /// Keeps what has been appended behind `from`, so that it outlives the process; returns false if that cannot be. `written`: what
    /// stands before this the system has.
    pub(crate) fn keep(&mut self, from: Position, written: Position, synced: Position) -> bool {
        let Some(recent) = &mut self.recent else { return false };
        let len = (self.batch.end().0 - from.0) as usize;
        // Not one whose value lies elsewhere.
        let Some(start) = self.batch.tail.len().checked_sub(len) else { return false };
        recent.keep(from, &mut self.batch.tail[start..], synced, written)
    }

    /// Nobody will write what comes from now on, and nobody who waits for it is to be told that it is on disk: all of it stands
    /// behind whatever was.
    pub(crate) fn give_up(&mut self) -> Position {
        let behind = Position(self.batch.end().0.saturating_add(1));
        (self.batch, self.since) = (Batch::new(behind), None);
        behind
    }

    /// What there is, for the writer. `spare`: a batch that has been written, whose memory is used again.
    pub(crate) fn take(&mut self, mut spare: Batch) -> Batch {
        spare.clear(self.batch.end());
        (self.since, self.entries, self.wanted, self.writes) = (None, 0, 0, false);
        std::mem::replace(&mut self.batch, spare)
    }
}

impl Batch {
    pub(crate) fn end(&self) -> Position {
        Position(self.start.0 + self.len)
    }

    pub(crate) fn new(start: Position) -> Batch {
        Batch { start, ..Batch::default() }
    }

    pub(crate) fn push(&mut self, entry: &Entry<'_>) {
        let shared = match &entry.change {
            Change::Put { record, .. } => record.shared,
            _ => None,
        };
        let before = self.tail.len();
        entry::encode(entry, shared.is_some(), &mut self.tail);
        self.len += (self.tail.len() - before) as u64;
        if let Some(value) = shared {
            self.len += (**value).as_ref().len() as u64;
            self.pieces.push(Piece::Entries(std::mem::take(&mut self.tail)));
            self.pieces.push(Piece::Value(SharedBytes::clone(value)));
        }
    }

    pub(crate) fn clear(&mut self, start: Position) {
        self.pieces.clear();
        self.tail.clear();
        self.tail.shrink_to(KEPT);
        (self.start, self.len) = (start, 0);
    }

    /// Fills in what only the writer knows: the checksums, and in marks how much is synced.
    pub(crate) fn seal(&mut self, seed: u32, synced: Position) {
        let mut position = self.start;
        if self.pieces.is_empty() {
            seal_entries(&mut self.tail, seed, &mut position, None, synced, 0);
            return;
        }
        let mut pieces = self.pieces.iter_mut().peekable();
        while let Some(piece) = pieces.next() {
            if let Piece::Entries(entries) = piece {
                let value = match pieces.peek() {
                    Some(Piece::Value(value)) => Some((**value).as_ref()),
                    _ => None,
                };
                seal_entries(entries, seed, &mut position, value, synced, 0);
            }
        }
        seal_entries(&mut self.tail, seed, &mut position, None, synced, 0);
    }

    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let pieces = self.pieces.iter().map(|piece| match piece {
            Piece::Entries(entries) => IoSlice::new(entries),
            Piece::Value(value) => IoSlice::new((**value).as_ref()),
        });
        pieces.chain([IoSlice::new(&self.tail)]).collect()
    }
}

/// Seals the entries in `bytes`; the last one goes on in `value`. `mask`: the bits in which the checksums are to differ from the log's.
pub(crate) fn seal_entries(
    bytes: &mut [u8],
    seed: u32,
    position: &mut Position,
    value: Option<&[u8]>,
    synced: Position,
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
    fn the_writer_is_woken_by_the_first_entry_or_by_as_many_as_it_waits_for() {
        let mut pending = Pending::new(Position(0));
        let mut append = |wanted: Option<u64>| {
            if let Some(wanted) = wanted {
                pending.take(Batch::default());
                pending.wanted = wanted;
            }
            let is_first = pending.is_empty();
            pending.append(1_000, &Entry { origin: None, change: Change::Remove { key: b"k" } });
            pending.wakes_writer(is_first)
        };
        assert_eq!([append(Some(0)), append(None)], [true, false]);
        assert_eq!([append(Some(1)), append(None)], [true, false]);
        assert_eq!([append(Some(3)), append(None), append(None), append(None)], [false, false, true, false]);
    }
}
