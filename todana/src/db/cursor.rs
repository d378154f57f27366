//! Cursors: a place among the records that is remembered between calls.

use super::iter::unordered;
use crate::records::ScanDirection;
use crate::{OwnedRecord, Records, UpdateAction};
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Bound, ControlFlow};
use todana_core::{Result, ScanPosition};

/// A cursor over the records of a database or a transaction ([`Records::cursor`]).
///
/// It remembers a key, holds no lock, and survives whatever is written meanwhile: where its record has been removed, it stands where that
/// was, and goes on to the next one. Each step looks anew, at the cost of a lookup; for passing over many records an iterator
/// ([`Records::iter`]) is faster.
///
/// Where keys have an order it goes both ways. Where they have none it goes forward, from the first record or one that it has
/// jumped to, and fails with `Invalid` otherwise.
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
    next: Next,
}

/// What lies ahead where there is no order.
enum Next {
    /// These keys, which came together with the last, and what lies from the place on; at the end, none.
    Places(VecDeque<Vec<u8>>, Option<ScanPosition>),
    /// It has jumped here, and where that lies is not known.
    Unknown,
}

impl<R> fmt::Debug for RecordCursor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.as_ref().map(|key| key.escape_ascii().to_string());
        f.debug_struct("Cursor").field("key", &key).finish_non_exhaustive()
    }
}

impl<R: Records> RecordCursor<R> {
    /// A cursor over `records`: over a clone of a [`Db`](crate::Db), for one that borrows nothing. It stands nowhere at first.
    ///
    /// ```
    /// # use todana::{RecordCursor, Db, Records};
    /// # let db = Db::open("mem:tree")?;
    /// let mut cursor: RecordCursor<Db> = RecordCursor::new(db.clone());
    /// assert!(!cursor.first()?);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn new(records: R) -> RecordCursor<R> {
        RecordCursor { records, key: None, next: Next::Unknown }
    }

    /// What it goes over.
    pub fn records(&self) -> &R {
        &self.records
    }

    /// Goes to the first record. False if there is none, as with all that moves it; it stands nowhere then.
    pub fn first(&mut self) -> Result<bool> {
        if self.records.is_ordered() {
            return self.go(ScanDirection::Up, Bound::Unbounded);
        }
        self.scan_on(VecDeque::new(), None)
    }

    /// Goes to the last record.
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
        self.must_be_ordered("there is no last one")?;
        self.go(ScanDirection::Down, Bound::Unbounded)
    }

    /// Goes to the record of this key or, where keys have an order, the first one behind it. Where they have none the next step
    /// looks for its place among all.
    pub fn jump(&mut self, key: &[u8]) -> Result<bool> {
        if self.records.is_ordered() {
            return self.go(ScanDirection::Up, Bound::Included(key));
        }
        self.next = Next::Unknown;
        self.key = self.records.contains(key)?.then(|| key.to_vec());
        Ok(self.key.is_some())
    }

    /// Goes to the record of this key, or the last one before it.
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
        self.must_be_ordered("nothing lies before a key")?;
        self.go(ScanDirection::Down, Bound::Included(key))
    }

    /// Goes to the next record; from nowhere, nowhere.
    pub fn step(&mut self) -> Result<bool> {
        let Some(key) = self.key.take() else { return Ok(false) };
        if self.records.is_ordered() {
            return self.go(ScanDirection::Up, Bound::Excluded(&key));
        }
        match std::mem::replace(&mut self.next, Next::Unknown) {
            Next::Places(keys, None) if keys.is_empty() => Ok(false),
            Next::Places(keys, place) => self.scan_on(keys, place),
            Next::Unknown => {
                let (keys, place) = self.seek(&key)?;
                if place.is_none() && keys.is_empty() { Ok(false) } else { self.scan_on(keys, place) }
            }
        }
    }

    /// Goes to the record before; from nowhere, nowhere.
    pub fn step_back(&mut self) -> Result<bool> {
        self.must_be_ordered("there is no going backwards in it")?;
        match self.key.take() {
            Some(key) => self.go(ScanDirection::Down, Bound::Excluded(&key)),
            None => Ok(false),
        }
    }

    /// The key where it stands; `None` nowhere.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    /// The value there, as it is now; `None` if the record is gone.
    pub fn value(&self) -> Result<Option<Vec<u8>>> {
        self.key.as_ref().map_or(Ok(None), |key| self.records.get(key))
    }

    /// The record there, with its attributes, as it is now; `None` if it is gone.
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

    /// Gives the record there another value; flags and expiry stay. False if it is gone.
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

    /// Removes the record there; the cursor stays, and steps from there on. False if it is gone.
    pub fn remove(&self) -> Result<bool> {
        self.key.as_ref().map_or(Ok(false), |key| self.records.remove(key))
    }

    /// Removes the record there and returns its value.
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

    fn must_be_ordered(&self, what: &str) -> Result<()> {
        if self.records.is_ordered() { Ok(()) } else { Err(unordered(what)) }
    }

    /// Goes to the first record from a bound on, by the order.
    fn go(&mut self, heading: ScanDirection, from: Bound<&[u8]>) -> Result<bool> {
        let mut found = None;
        self.records.walk(heading, from, &mut |key, _| {
            found = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        self.key = found;
        Ok(self.key.is_some())
    }

    /// Goes to the first of these keys that is still there, or of what lies from the place on.
    fn scan_on(&mut self, mut keys: VecDeque<Vec<u8>>, mut place: Option<ScanPosition>) -> Result<bool> {
        // Which lie together come together: the first of them was seen just now, the others may have gone.
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
                return self.scan_on(keys, place);
            }
        }
        self.next = Next::Places(keys, place);
        Ok(self.key.is_some())
    }

    /// What lies behind this key, in the order of the engine's scans; nothing if it is gone.
    fn seek(&self, key: &[u8]) -> Result<(VecDeque<Vec<u8>>, Option<ScanPosition>)> {
        let (mut behind, mut is_found) = (VecDeque::new(), false);
        let place = self.records.scan(None, &mut |other, _| {
            if is_found {
                behind.push_back(other.to_vec());
            }
            is_found |= other == key;
            if is_found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok((behind, place))
    }
}
