//! `CursorTable`: the cursors of a connection, by number.
//!
//! Invariant: all cursors together take at most [`BYTES_MAX`], or there is only one. If a new
//! cursor or a longer key would exceed the bound, cursors without a position are dropped first,
//! then the least recently used, down to half of the bound. A client that names a dropped cursor
//! gets a new one without a position.

use crate::execution::LocalDatabase;
use std::collections::HashMap;
use todana::kyoto::KyotoCursor;

/// The memory of a cursor besides its key.
const CURSOR_LEN: usize = 256;
/// The memory of all cursors of a connection: 4,096 of them, less their keys.
pub(super) const BYTES_MAX: usize = 1 << 20;

#[derive(Default)]
pub(super) struct CursorTable {
    by_number: HashMap<u64, TableCursor>,
    /// The number of uses so far.
    uses: u64,
    bytes: usize,
}

struct TableCursor {
    cursor: KyotoCursor<LocalDatabase>,
    /// The number of its last use.
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

    /// Returns the memory of all cursors.
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

    /// Uses a cursor; `None` if there is none with this number. May drop other cursors.
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
            self.forget();
        }
        Some(outcome)
    }

    /// Drops all but the cursor used last, down to half of the bound: those without a position
    /// first, then the oldest.
    fn forget(&mut self) {
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
