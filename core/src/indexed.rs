//! Defines engines whose records are rows of named columns, with indexes on columns.

use crate::Result;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

/// The kind of an index, which determines the queries that the index can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexKind {
    /// An index of texts, in the order of their bytes.
    Lexical,
    /// An index of the numbers at the start of texts, in numeric order.
    Decimal,
    /// An index of the words of texts. Spaces and commas separate words.
    Token,
    /// An index of all pieces of three characters, for full-text searches. The texts are folded
    /// first, so that searches ignore case and accents.
    QGram,
}

impl IndexKind {
    /// All kinds.
    pub const ALL: [IndexKind; 4] =
        [IndexKind::Lexical, IndexKind::Decimal, IndexKind::Token, IndexKind::QGram];

    /// Returns the name that is stored and shown: `LEXICAL`, `DECIMAL`, `TOKEN` or `QGRAM`.
    pub fn name(self) -> &'static str {
        match self {
            IndexKind::Lexical => "LEXICAL",
            IndexKind::Decimal => "DECIMAL",
            IndexKind::Token => "TOKEN",
            IndexKind::QGram => "QGRAM",
        }
    }
}

/// An index on a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnIndex {
    /// The name of the column. The empty name means the key of the row.
    pub column: Vec<u8>,
    /// The kind of the index.
    pub kind: IndexKind,
    /// True once the index has an entry for every row that has the column. Until then the index
    /// cannot be used.
    pub is_complete: bool,
}

/// An entry of an index: a term of a column, and the key of a row in which the term occurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The encoded term, followed by the key. A scan can continue after this entry by its position.
    pub position: Vec<u8>,
    /// The length of the term.
    pub term_len: usize,
}

impl IndexEntry {
    /// Returns the key of the row.
    pub fn key(&self) -> &[u8] {
        &self.position[self.term_len..]
    }

    /// Converts the entry to the key of its row.
    pub fn into_key(mut self) -> Vec<u8> {
        self.position.drain(..self.term_len);
        self.position
    }

    /// Returns the encoded term.
    pub fn term(&self) -> &[u8] {
        &self.position[..self.term_len]
    }
}

/// A range of positions in an index.
pub type IndexRange<'r> = (Bound<&'r [u8]>, Bound<&'r [u8]>);

/// An engine with indexes on the columns of its rows.
///
/// The definitions of the indexes are the value of the record with the empty key. It is an ordinary
/// record, so update logs, checkpoints, backups and replicas need no special rule for the
/// definitions. A change of this record creates and drops indexes.
pub trait IndexedEngine: Send + Sync {
    /// Returns the defined indexes.
    fn indexes(&self) -> Vec<ColumnIndex>;

    /// Appends up to `entries_max` entries of an index to `found`, in descending order of their
    /// positions if `is_descending`, otherwise in ascending order. Returns false if the index does
    /// not exist or is not complete.
    ///
    /// An entry is only a candidate, because its row may have changed meanwhile. Every change of a
    /// row that ended before the call is in the index.
    fn index_entries(
        &self,
        column: &[u8],
        kind: IndexKind,
        range: IndexRange<'_>,
        is_descending: bool,
        entries_max: usize,
        found: &mut Vec<IndexEntry>,
    ) -> Result<bool>;

    /// Returns true if each entry belongs to a row that exists and does not expire, apart from rows
    /// that are being changed. A query whose condition is decided by the terms of a complete index
    /// then need not read rows.
    fn has_exact_entries(&self) -> bool;

    /// Returns the source of numbers for new rows.
    fn row_numbers(&self) -> &RowNumbers;
}

/// The source of numbers for new rows. No number is returned twice, not even after a restart,
/// because numbers are reserved in the record of the index definitions before they are used.
#[derive(Debug)]
pub struct RowNumbers {
    /// The lock that is held while numbers are reserved.
    reserving: Mutex<()>,
    range: Mutex<NumberRange>,
}

/// The numbers that may be returned, and the end of the range being reserved.
#[derive(Debug)]
struct NumberRange {
    next: u64,
    end: u64,
    requested_end: u64,
}

/// The count of numbers that are reserved at a time. A restart skips the reserved numbers that were
/// not used.
const NUMBERS_RESERVED: u64 = 1000;

impl Default for RowNumbers {
    fn default() -> RowNumbers {
        let range = NumberRange { next: 1, end: 1, requested_end: 1 };
        RowNumbers { reserving: Mutex::new(()), range: Mutex::new(range) }
    }
}

impl RowNumbers {
    /// Returns a new number. If no reserved number is left, first calls `reserve`, which must store
    /// the end of a new range in the record of the definitions.
    pub fn next(&self, reserve: impl FnOnce(u64) -> Result<()>) -> Result<u64> {
        let _one_at_a_time = self.reserving.lock().unwrap_or_else(PoisonError::into_inner);
        let requested_end = {
            let mut range = self.range();
            (range.next == range.end).then(|| {
                range.requested_end = range.end + NUMBERS_RESERVED;
                range.requested_end
            })
        };
        if let Some(end) = requested_end {
            reserve(end)?;
            let mut range = self.range();
            range.end = range.end.max(end);
        }
        let mut range = self.range();
        range.next += 1;
        Ok(range.next - 1)
    }

    /// Notes the end of the reserved range that the definitions contain. If this process has not
    /// reserved that range, the numbers below its end may be in use and are skipped.
    pub fn note_reserved(&self, end: u64) {
        let mut range = self.range();
        if end > range.end.max(range.requested_end) {
            *range = NumberRange { next: end, end, requested_end: end };
        }
    }

    /// Skips the numbers below this one.
    pub fn skip_to(&self, number: u64) {
        let mut range = self.range();
        range.next = range.next.max(number);
        range.end = range.end.max(range.next);
    }

    fn range(&self) -> std::sync::MutexGuard<'_, NumberRange> {
        self.range.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::RowNumbers;
    use crate::{Error, ErrorKind};

    #[test]
    fn numbers_are_reserved_before_their_use() {
        let (numbers, mut reserved) = (RowNumbers::default(), Vec::new());
        for expected in 1..=1001 {
            let number = numbers.next(|end| {
                reserved.push(end);
                numbers.note_reserved(end);
                Ok(())
            });
            assert_eq!(number, Ok(expected));
        }
        assert_eq!(reserved, [1001, 2001]);
        numbers.note_reserved(9000);
        numbers.note_reserved(50);
        let refused = numbers.next(|_| Err(Error::new(ErrorKind::Full, "full")));
        assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Full));
        let number = numbers.next(|end| {
            reserved.push(end);
            Ok(())
        });
        assert_eq!(number, Ok(9000));
        assert_eq!(reserved, [1001, 2001, 10_000]);
        // Skipped numbers need not be reserved, but the next one is.
        for (skipped, next, end) in [(9500, 9500, None), (50_000, 50_000, Some(51_000)), (7, 50_001, None)] {
            numbers.skip_to(skipped);
            reserved.clear();
            let number = numbers.next(|end| {
                reserved.push(end);
                Ok(())
            });
            assert_eq!((number, reserved.first().copied()), (Ok(next), end));
        }
    }
}
