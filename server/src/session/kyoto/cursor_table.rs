//! Holds the cursors of a connection by their numbers (`CursorTable`).
//!
//! Invariant: all cursors together take at most [`BYTES_MAX`], or there is only one. If a new
//! cursor or a longer key would exceed this limit, cursors are dropped until half of the limit is
//! reached: first the cursors without a position, then the least recently used ones. A client that
//! names a dropped cursor gets a new one without a position.

use crate::execution::LocalDatabase;
use std::collections::HashMap;
use todana::kyoto::KyotoCursor;

/// The memory of a cursor besides its key.
const CURSOR_LEN: usize = 256;
/// The memory that all cursors of a connection may take: enough for 4,096 cursors with empty keys.
pub(super) const BYTES_MAX: usize = 1 << 20;

#[derive(Default)]
pub(super) struct CursorTable {
    by_number: HashMap<u64, TableCursor>,
    /// The number of uses of all cursors so far.
    uses: u64,
    bytes: usize,
}

struct TableCursor {
    cursor: KyotoCursor<LocalDatabase>,
    /// The value of `CursorTable::uses` at the last use of this cursor.
    last_use: u64,
}

impl TableCursor {
    fn len(&self) -> usize {
        CURSOR_LEN + self.cursor.key().map_or(0, <[u8]>::len)
    }
}

impl CursorTable {
    pub(super) fn contains(&self, number: u64) -> bool {
        self.by_number.contains_key(&number)
    }

    /// Returns the memory of all cursors in bytes.
    pub(super) fn len_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn insert(&mut self, number: u64, cursor: KyotoCursor<LocalDatabase>) {
        self.remove(number);
        let used = TableCursor { cursor, last_use: self.uses };
        self.bytes += used.len();
        self.by_number.insert(number, used);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<()> {
        let removed = self.by_number.remove(&number)?;
        self.bytes -= removed.len();
        Some(())
    }

    /// Uses the cursor with this number, which may cause other cursors to be dropped. Returns
    /// `None` if there is no such cursor.
    pub(super) fn with<T>(
        &mut self,
        number: u64,
        run: impl FnOnce(&mut KyotoCursor<LocalDatabase>) -> T,
    ) -> Option<T> {
        self.uses += 1;
        let used = self.by_number.get_mut(&number)?;
        used.last_use = self.uses;
        self.bytes -= used.len();
        let outcome = run(&mut used.cursor);
        self.bytes += used.len();
        if self.bytes > BYTES_MAX {
            self.drop_excess();
        }
        Some(outcome)
    }

    /// Drops cursors until half of the limit is reached: first those without a position, then the
    /// least recently used ones. Never drops the cursor that was used last.
    fn drop_excess(&mut self) {
        let of = |(&number, used): (&u64, &TableCursor)| (used.cursor.key().is_some(), used.last_use, number);
        let mut all: Vec<_> = self.by_number.iter().map(of).collect();
        all.sort_unstable();
        for (_, last_use, number) in all {
            if last_use != self.uses && self.bytes > BYTES_MAX / 2 {
                self.remove(number);
            }
        }
    }
}
