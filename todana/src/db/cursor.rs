//! Cursors: positions between records that are kept from one call to the next.

use super::iter::unordered;
use crate::records::ScanDirection;
use crate::{OwnedRecord, Records, UpdateAction};
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Bound, ControlFlow};
use todana_core::{Result, ScanPosition};

/// A cursor over the records of a database or a transaction ([`Records::cursor`]).
///
/// A cursor stores a key, holds no lock, and survives all writes: if its record is removed, it
/// stays at that position and continues with the next record. Each step costs a lookup; an iterator
/// ([`Records::iter`]) is faster for many records.
///
/// Over an ordered database the cursor moves both ways. Over an unordered one it moves forward
/// only, from the first record or from one that it jumped to, and fails with `Invalid` otherwise.
///
/// ```
/// use todana::{Db, Records};
///
/// let db = Db::open("mem:tree")?;
/// db.set_many(&[(b"ant", b"6"), (b"bee", b"6"), (b"crab", b"10")])?;
/// let mut cursor = db.cursor();
/// assert!(cursor.jump(b"b")?);
/// assert_eq!(cursor.key(), Some(&b"bee"[..]));
/// db.remove(b"bee")?;
/// assert_eq!(cursor.value()?, None);
/// assert!(cursor.step()?);
/// assert_eq!((cursor.key(), cursor.value()?), (Some(&b"crab"[..]), Some(b"10".to_vec())));
/// assert!(!cursor.step()?);
/// # Ok::<(), todana::Error>(())
/// ```
pub struct RecordCursor<R> {
    records: R,
    key: Option<Vec<u8>>,
    next: NextKeys,
}

/// The records that follow the cursor in an unordered database.
enum NextKeys {
    /// These keys, which were read together with the last one, and then all records from the
    /// position on. If the position is `None`, no more records follow.
    Places(VecDeque<Vec<u8>>, Option<ScanPosition>),
    /// The cursor has jumped to a key, and the position of that record is unknown.
    Unknown,
}

impl<R> fmt::Debug for RecordCursor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.as_ref().map(|key| key.escape_ascii().to_string());
        f.debug_struct("Cursor").field("key", &key).finish_non_exhaustive()
    }
}

impl<R: Records> RecordCursor<R> {
    /// Creates a cursor over `records`, which may be a clone of a [`Db`](crate::Db) if the cursor
    /// must not borrow. At first the cursor stands at no record.
    ///
    /// ```
    /// # use todana::{RecordCursor, Db, Records};
    /// # let db = Db::open("mem:tree")?;
    /// let mut cursor: RecordCursor<Db> = RecordCursor::new(db.clone());
    /// assert!(!cursor.first()?);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn new(records: R) -> RecordCursor<R> {
        RecordCursor { records, key: None, next: NextKeys::Unknown }
    }

    /// Returns the records that the cursor moves over.
    pub fn records(&self) -> &R {
        &self.records
    }

    /// Moves to the first record. Like all moves, returns false if there is no such record; the
    /// cursor then stands at no record.
    pub fn first(&mut self) -> Result<bool> {
        if self.records.is_ordered() {
            return self.move_to(ScanDirection::Up, Bound::Unbounded);
        }
        self.scan_from(VecDeque::new(), None)
    }

    /// Moves to the last record.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// # let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"a", b"1"), (b"b", b"2")])?;
    /// let mut cursor = db.cursor();
    /// assert!(cursor.last()?);
    /// assert_eq!(cursor.key(), Some(&b"b"[..]));
    /// assert!(cursor.step_back()?);
    /// assert_eq!(cursor.key(), Some(&b"a"[..]));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn last(&mut self) -> Result<bool> {
        self.check_ordered("there is no last record")?;
        self.move_to(ScanDirection::Down, Bound::Unbounded)
    }

    /// Moves to the record of this key. In an ordered database, moves to the first record after the
    /// key if the key does not exist. In an unordered database, the next step needs a scan to find
    /// the position.
    pub fn jump(&mut self, key: &[u8]) -> Result<bool> {
        if self.records.is_ordered() {
            return self.move_to(ScanDirection::Up, Bound::Included(key));
        }
        self.next = NextKeys::Unknown;
        self.key = self.records.contains(key)?.then(|| key.to_vec());
        Ok(self.key.is_some())
    }

    /// Moves to the record of this key, or to the last record before it.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// # let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"a", b"1"), (b"c", b"3")])?;
    /// let mut cursor = db.cursor();
    /// assert!(cursor.jump_back(b"b")?);
    /// assert_eq!(cursor.key(), Some(&b"a"[..]));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn jump_back(&mut self, key: &[u8]) -> Result<bool> {
        self.check_ordered("there is no reverse order")?;
        self.move_to(ScanDirection::Down, Bound::Included(key))
    }

    /// Moves to the next record. Returns false if the cursor stands at no record.
    pub fn step(&mut self) -> Result<bool> {
        let Some(key) = self.key.take() else { return Ok(false) };
        if self.records.is_ordered() {
            return self.move_to(ScanDirection::Up, Bound::Excluded(&key));
        }
        match std::mem::replace(&mut self.next, NextKeys::Unknown) {
            NextKeys::Places(keys, None) if keys.is_empty() => Ok(false),
            NextKeys::Places(keys, place) => self.scan_from(keys, place),
            NextKeys::Unknown => {
                let (keys, place) = self.seek(&key)?;
                if place.is_none() && keys.is_empty() { Ok(false) } else { self.scan_from(keys, place) }
            }
        }
    }

    /// Moves to the previous record. Returns false if the cursor stands at no record.
    pub fn step_back(&mut self) -> Result<bool> {
        self.check_ordered("there is no reverse order")?;
        match self.key.take() {
            Some(key) => self.move_to(ScanDirection::Down, Bound::Excluded(&key)),
            None => Ok(false),
        }
    }

    /// Returns the key at the cursor, or `None` if it stands at no record.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    /// Returns the current value of the record, or `None` if the record was removed.
    pub fn value(&self) -> Result<Option<Vec<u8>>> {
        self.key.as_ref().map_or(Ok(None), |key| self.records.get(key))
    }

    /// Returns the present record with its attributes, or `None` if it was removed.
    ///
    /// ```
    /// # use todana::{Db, Records, Ttl};
    /// # let db = Db::open("mem:hash")?;
    /// db.set_with(b"a", b"1", Ttl::Never, 5)?;
    /// let mut cursor = db.cursor();
    /// cursor.first()?;
    /// assert_eq!(cursor.record()?.map(|record| record.flags), Some(5));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn record(&self) -> Result<Option<OwnedRecord>> {
        let mut found = None;
        if let Some(key) = &self.key {
            self.records.view(key, &mut |record| found = Some(OwnedRecord::of(record)))?;
        }
        Ok(found)
    }

    /// Replaces the value of the record; flags and expiry stay. Returns false if the record was
    /// removed.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// # let db = Db::open("mem:hash")?;
    /// db.set(b"a", b"1")?;
    /// let mut cursor = db.cursor();
    /// cursor.first()?;
    /// assert!(cursor.set_value(b"2")?);
    /// assert_eq!(db.get(b"a")?, Some(b"2".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn set_value(&self, value: &[u8]) -> Result<bool> {
        let mut was_there = false;
        if let Some(key) = &self.key {
            self.records.update(key, &mut |old| {
                was_there = old.is_some();
                if was_there { UpdateAction::Value(value.to_vec()) } else { UpdateAction::Keep }
            })?;
        }
        Ok(was_there)
    }

    /// Removes the record. The cursor keeps its position, from which the next step continues.
    /// Returns false if the record was already removed.
    pub fn remove(&self) -> Result<bool> {
        self.key.as_ref().map_or(Ok(false), |key| self.records.remove(key))
    }

    /// Removes the record and returns its value.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// # let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"job 1", b"sweep"), (b"job 2", b"dust")])?;
    /// let mut cursor = db.cursor();
    /// cursor.first()?;
    /// assert_eq!(cursor.seize()?, Some(b"sweep".to_vec()));
    /// assert!(cursor.step()?);
    /// assert_eq!(cursor.key(), Some(&b"job 2"[..]));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn seize(&self) -> Result<Option<Vec<u8>>> {
        self.key.as_ref().map_or(Ok(None), |key| self.records.seize(key))
    }

    fn check_ordered(&self, what: &str) -> Result<()> {
        if self.records.is_ordered() { Ok(()) } else { Err(unordered(what)) }
    }

    /// Moves to the first record within a bound, in the given direction.
    fn move_to(&mut self, direction: ScanDirection, from: Bound<&[u8]>) -> Result<bool> {
        let mut found = None;
        self.records.walk(direction, from, &mut |key, _| {
            found = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        self.key = found;
        Ok(self.key.is_some())
    }

    /// Moves to the first of these keys that still exists, or else to the first record from the
    /// position on.
    fn scan_from(&mut self, mut keys: VecDeque<Vec<u8>>, mut place: Option<ScanPosition>) -> Result<bool> {
        // Records at one position are returned together. The first of them was just read; the
        // others may have been removed since.
        let mut is_fresh = keys.is_empty();
        if is_fresh {
            place = self.records.scan(place, &mut |key, _| {
                keys.push_back(key.to_vec());
                ControlFlow::Break(())
            })?;
        }
        self.key = None;
        while let Some(key) = keys.pop_front() {
            if is_fresh || self.records.contains(&key)? {
                self.key = Some(key);
                break;
            }
            is_fresh = false;
            if keys.is_empty() && place.is_some() {
                return self.scan_from(keys, place);
            }
        }
        self.next = NextKeys::Places(keys, place);
        Ok(self.key.is_some())
    }

    /// Returns the keys that follow this key at its position of the scan, and the next position.
    /// Returns nothing if the key was removed.
    fn seek(&self, key: &[u8]) -> Result<(VecDeque<Vec<u8>>, Option<ScanPosition>)> {
        let (mut following, mut is_found) = (VecDeque::new(), false);
        let place = self.records.scan(None, &mut |other, _| {
            if is_found {
                following.push_back(other.to_vec());
            }
            is_found |= other == key;
            if is_found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok((following, place))
    }
}
