//! `KyotoCursor`: a cursor that behaves as Kyoto Cabinet's. Reading and removing a record can move
//! it to the next record.
//!
//! If the record of the cursor was removed by another caller, the cursor moves to the next record
//! before it reads or does anything. After `last`, `jump_back` and `step_back`, "next" means
//! backwards, until `first`, `jump` or `step` is called. A database named `+` has no such
//! direction: its cursors always move forward, and a cursor at no record counts as standing after
//! the last one.
//!
//! Source: the behaviour of the original, compared by `curs.py`.

use super::{KyotoRecords, NEVER, time_of};
use crate::{DatabaseName, RecordCursor, Records};
use std::fmt;
use todana_core::{Expiry, Result};

/// A cursor over records in the form that users of Kyoto Tycoon know.
///
/// ```
/// use todana::kyoto::KyotoCursor;
/// use todana::{Db, Records};
///
/// let db = Db::open("%")?;
/// db.set_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])?;
/// let mut cursor = KyotoCursor::new(db.clone(), db.name());
/// cursor.last()?;
/// let mut keys = Vec::new();
/// while let Some(entry) = cursor.read(true)? {
///     keys.push(entry.key);
/// }
/// assert_eq!(keys, [b"c", b"b", b"a"]);
/// # Ok::<(), todana::Error>(())
/// ```
pub struct KyotoCursor<R> {
    cursor: RecordCursor<R>,
    is_persistent: bool,
    /// True if the direction of the last move is kept; false for a database named `+`.
    keeps_direction: bool,
    is_backward: bool,
}

/// A record that a cursor has read or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorEntry {
    /// Key of the record.
    pub key: Vec<u8>,
    /// Value of the record.
    pub value: Vec<u8>,
    /// The last second in which the record is live; `None` if it never expires.
    pub time: Option<u64>,
}

impl<R> fmt::Debug for KyotoCursor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KyotoCursor").field("cursor", &self.cursor).field("back", &self.is_backward).finish()
    }
}

impl<R: Records> KyotoCursor<R> {
    /// Creates a cursor over the records of the database with this name. At first it stands at no
    /// record.
    pub fn new(records: R, name: &DatabaseName) -> KyotoCursor<R> {
        KyotoCursor {
            cursor: RecordCursor::new(records),
            is_persistent: name.tuning.persistent,
            keeps_direction: name.asked() != "+",
            is_backward: false,
        }
    }

    /// Returns the records that the cursor moves over.
    pub fn records(&self) -> &R {
        self.cursor.records()
    }

    /// Returns the key at the cursor, or `None` if it stands at no record.
    pub fn key(&self) -> Option<&[u8]> {
        self.cursor.key()
    }

    /// Moves to the first record. Like all moves, returns false if there is no such record.
    pub fn first(&mut self) -> Result<bool> {
        self.is_backward = false;
        self.cursor.first()
    }

    /// Moves to the last record. From then on, the cursor moves backwards.
    pub fn last(&mut self) -> Result<bool> {
        self.is_backward = self.keeps_direction;
        self.cursor.last()
    }

    /// Moves to the record of this key, or to the first record after it.
    pub fn jump(&mut self, key: &[u8]) -> Result<bool> {
        self.is_backward = false;
        self.cursor.jump(key)
    }

    /// Moves to the record of this key, or to the last record before it. From then on, the cursor
    /// moves backwards.
    pub fn jump_back(&mut self, key: &[u8]) -> Result<bool> {
        self.is_backward = self.keeps_direction;
        self.cursor.jump_back(key)
    }

    /// Moves to the next record. From then on, the cursor moves forward.
    pub fn step(&mut self) -> Result<bool> {
        self.is_backward = false;
        self.cursor.step()
    }

    /// Moves to the previous record. From then on, the cursor moves backwards.
    pub fn step_back(&mut self) -> Result<bool> {
        if self.cursor.key().is_none() && !self.keeps_direction {
            return self.cursor.last();
        }
        let moved = self.cursor.step_back();
        self.is_backward = self.keeps_direction && moved.is_ok();
        moved
    }

    /// Moves to the next record in the cursor's direction. After the last one, the cursor stands at
    /// no record.
    pub fn advance(&mut self) -> Result<()> {
        if self.is_backward { self.cursor.step_back() } else { self.cursor.step() }.map(drop)
    }

    /// Calls `act` with the key at the cursor. If `act` returns `None` because the record was
    /// removed, calls `act` with the next key, and so on. Returns `None` if no record is left.
    pub fn at_record<T>(&mut self, mut act: impl FnMut(&R, &[u8]) -> Result<Option<T>>) -> Result<Option<T>> {
        while let Some(key) = self.cursor.key() {
            let key = key.to_vec();
            if let Some(done) = act(self.cursor.records(), &key)? {
                return Ok(Some(done));
            }
            // As in the original, a cursor at a removed key first moves forward, even if its
            // direction is backwards. Only from the end it moves back.
            if !self.cursor.step()? && self.is_backward {
                self.cursor.jump_back(&key)?;
            }
        }
        Ok(None)
    }

    /// Reads the record at the cursor. Then moves to the next record if `steps` is true.
    pub fn read(&mut self, steps: bool) -> Result<Option<CursorEntry>> {
        let is_persistent = self.is_persistent;
        let found = self.at_record(|records, key| {
            let mut found = None;
            records.view(key, &mut |record| {
                let time = time(is_persistent, record.attributes.expiry);
                found = Some(CursorEntry { key: key.to_vec(), value: record.value.to_vec(), time });
            })?;
            Ok(found)
        })?;
        if steps && found.is_some() {
            self.advance()?;
        }
        Ok(found)
    }

    /// Removes the record at the cursor, moves to the next one, and returns the removed record.
    pub fn take(&mut self) -> Result<Option<CursorEntry>>
    where
        for<'r> &'r R: Records,
    {
        let is_persistent = self.is_persistent;
        let taken = self.at_record(|records, key| {
            let mut taken = None;
            let mut see = |value: &[u8], time: Option<u64>| {
                taken = Some(CursorEntry { key: key.to_vec(), value: value.to_vec(), time });
            };
            let was_there = KyotoRecords::new(records, is_persistent).seize(key, &mut see)?;
            Ok(taken.filter(|_| was_there))
        })?;
        if taken.is_some() {
            self.advance()?;
        }
        Ok(taken)
    }

    /// Replaces the value and the time of the record at the cursor. Then moves to the next record
    /// if `steps` is true. Returns false if there is no record.
    pub fn replace(&mut self, value: &[u8], time: u64, steps: bool) -> Result<bool>
    where
        for<'r> &'r R: Records,
    {
        let is_persistent = self.is_persistent;
        let replaced = self.at_record(|records, key| {
            Ok(KyotoRecords::new(records, is_persistent).replace(key, value, time)?.then_some(()))
        })?;
        if steps && replaced.is_some() {
            self.advance()?;
        }
        Ok(replaced.is_some())
    }
}

impl CursorEntry {
    /// Returns the last second in which the record is live, or [`NEVER`] if it never expires.
    pub fn time_number(&self) -> u64 {
        self.time.unwrap_or(NEVER)
    }
}

fn time(is_persistent: bool, expiry: Expiry) -> Option<u64> {
    if is_persistent { None } else { time_of(expiry) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Db;

    fn keys(name: &str, start: impl FnOnce(&mut KyotoCursor<Db>)) -> String {
        let db = Db::open(name).unwrap();
        for key in ["a", "b", "c", "d", "e"] {
            db.set(key.as_bytes(), b"v").unwrap();
        }
        let mut cursor = KyotoCursor::new(db.clone(), db.name());
        start(&mut cursor);
        let mut keys = String::new();
        while let Some(entry) = cursor.read(true).unwrap() {
            keys.push_str(std::str::from_utf8(&entry.key).unwrap());
        }
        keys
    }

    /// A cursor once forgot that `jump_back` had moved it, so popping from the tail of a queue
    /// returned only one record.
    #[test]
    fn ordered_cursor_keeps_its_direction() {
        assert_eq!(keys("%", |cursor| assert!(cursor.last().unwrap())), "edcba");
        assert_eq!(keys("%", |cursor| assert!(cursor.jump_back(b"cc").unwrap())), "cba");
        let step_back = |cursor: &mut KyotoCursor<Db>| {
            cursor.jump(b"c").unwrap();
            assert!(cursor.step_back().unwrap());
        };
        assert_eq!(keys("%", step_back), "ba");
        let turn = |cursor: &mut KyotoCursor<Db>| {
            cursor.jump_back(b"c").unwrap();
            assert!(cursor.step().unwrap());
        };
        assert_eq!(keys("%", turn), "de");
        assert_eq!(keys("+", |cursor| assert!(cursor.last().unwrap())), "e");
        assert_eq!(keys("+", |cursor| assert!(cursor.jump_back(b"cc").unwrap())), "cde");
        assert_eq!(keys("+", step_back), "bcde");
    }

    #[test]
    fn cursor_past_the_end_returns_only_on_plus() {
        let past_the_end = |cursor: &mut KyotoCursor<Db>| {
            cursor.jump(b"e").unwrap();
            assert!(!cursor.step().unwrap());
            assert_eq!(cursor.step_back().unwrap(), cursor.records().name().asked() == "+");
        };
        assert_eq!(keys("+", past_the_end), "e");
        assert_eq!(keys("%", past_the_end), "");
    }

    #[test]
    fn removed_record_under_a_cursor_is_passed_forward() {
        let removed = |cursor: &mut KyotoCursor<Db>| {
            cursor.jump_back(b"c").unwrap();
            cursor.records().clone().remove(b"c").unwrap();
            assert_eq!(cursor.read(false).unwrap().unwrap().key, b"d");
        };
        assert_eq!(keys("%", removed), "dba");
        let last = |cursor: &mut KyotoCursor<Db>| {
            cursor.last().unwrap();
            cursor.records().clone().remove(b"e").unwrap();
        };
        assert_eq!(keys("%", last), "dcba");
    }
}
