//! `CursorTable`: the cursors of a connection, by number.
//!
//! Always true: together they take at most [`BYTES_MAX`], or there is only one. Where a new one or a longer key would exceed that,
//! cursors that stand nowhere are forgotten, and then those that were used longest ago, down to half of it. A client that names
//! a forgotten cursor gets a new one, which stands nowhere.

use crate::execution::LocalDatabase;
use std::collections::HashMap;
use todana::kyoto::KyotoCursor;

/// What a cursor takes besides its key.
const CURSOR_LEN: usize = 256;
/// What all cursors of a connection may take: 4,096 of them, less their keys.
pub(super) const BYTES_MAX: usize = 1 << 20;

#[derive(Default)]
pub(super) struct CursorTable {
    by_number: HashMap<u64, Used>,
    /// Goes up with each use.
    uses: u64,
    bytes: usize,
}

struct Used {
    cursor: KyotoCursor<LocalDatabase>,
    /// The number of its last use.
    last_use: u64,
}

impl Used {
    fn len(&self) -> usize {
        CURSOR_LEN + self.cursor.key().map_or(0, <[u8]>::len)
    }
}

impl CursorTable {
    pub(super) fn contains(&self, number: u64) -> bool {
        self.by_number.contains_key(&number)
    }

    /// Memory that they take.
    pub(super) fn len_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn insert(&mut self, number: u64, cursor: KyotoCursor<LocalDatabase>) {
        self.remove(number);
        let used = Used { cursor, last_use: self.uses };
        self.bytes += used.len();
        self.by_number.insert(number, used);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<()> {
        let removed = self.by_number.remove(&number)?;
        self.bytes -= removed.len();
        Some(())
    }

    /// Uses a cursor; `None` if there is none of this number. Others may be forgotten for it.
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

    /// Forgets all but the last used, down to half of the bound: exhausted ones first, then by age.
    fn forget(&mut self) {
        let of = |(&number, used): (&u64, &Used)| (used.cursor.key().is_some(), used.last_use, number);
        let mut all: Vec<_> = self.by_number.iter().map(of).collect();
        all.sort_unstable();
        for (_, last_use, number) in all {
            if last_use != self.uses && self.bytes > BYTES_MAX / 2 {
                self.remove(number);
            }
        }
    }
}
