//! The iterator over a database, which all connections share.
//!
//! It holds a few keys that it has read ahead, and the position after them. A record that was
//! removed meanwhile is passed over.

use super::fixed::first_from;
use super::records_seen::{SCAN_STEP, see_records};
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use todana::{Database, ScanDirection};
use todana_core::{Error, ErrorKind, Record, Result, ScanPosition, key_of_number};

/// The number of keys that are read ahead.
const KEYS_AHEAD: usize = 64;
/// The number of bytes of keys that are read ahead, unless it is one key.
const BYTES_AHEAD: usize = 64 << 10;

/// An iterator that stands before its next record.
pub(super) struct SharedIterator {
    keys: VecDeque<Vec<u8>>,
    rest: RestOfRecords,
}

/// The records after those whose keys have been read.
enum RestOfRecords {
    None,
    Unordered(Option<ScanPosition>),
    Ordered(Bound<Vec<u8>>),
    /// The records from this number on.
    Numbered(u64),
}

impl SharedIterator {
    /// Creates an iterator over all records.
    pub(super) fn new(database: &Database) -> SharedIterator {
        let engine = database.engine();
        let rest = match engine.ordered() {
            // The definitions of a table's indexes are not a row.
            Some(_) if engine.indexed().is_some() => RestOfRecords::Ordered(Bound::Excluded(Vec::new())),
            Some(_) => RestOfRecords::Ordered(Bound::Unbounded),
            None if engine.numbered().is_some() => RestOfRecords::Numbered(1),
            None => RestOfRecords::Unordered(None),
        };
        SharedIterator { keys: VecDeque::new(), rest }
    }

    /// Creates an iterator that begins at a key: in an ordered or numbered database at the first
    /// record from there on, else at the record itself, which is searched for among all. Returns
    /// `None` if there is no such record.
    pub(super) fn beginning_at(
        database: &Database,
        key: &[u8],
        is_cancelled: &AtomicBool,
    ) -> Result<Option<SharedIterator>> {
        if database.engine().ordered().is_some() {
            let mut is_any = false;
            see_records(database, key, is_cancelled, &mut |_, _| {
                is_any = true;
                ControlFlow::Break(())
            })?;
            let rest = RestOfRecords::Ordered(Bound::Included(key.to_vec()));
            return Ok(is_any.then(|| SharedIterator { keys: VecDeque::new(), rest }));
        }
        if database.engine().numbered().is_some() {
            let rest = first_from(database, key)?.map(RestOfRecords::Numbered);
            return Ok(rest.map(|rest| SharedIterator { keys: VecDeque::new(), rest }));
        }
        let (mut keys, mut place) = (VecDeque::new(), None);
        loop {
            let mut seen = 0;
            place = database.scan(place, &mut |found, _| {
                seen += 1;
                if !keys.is_empty() || found == key {
                    keys.push_back(found.to_vec());
                }
                if keys.is_empty() && seen < SCAN_STEP {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            if !keys.is_empty() {
                let rest = place.map_or(RestOfRecords::None, |place| RestOfRecords::Unordered(Some(place)));
                return Ok(Some(SharedIterator { keys, rest }));
            }
            if place.is_none() {
                return Ok(None);
            }
            if is_cancelled.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Closed, "the call was cancelled"));
            }
        }
    }

    /// Shows the next record and moves past it. Returns false at the end.
    pub(super) fn next(
        &mut self,
        database: &Database,
        see: &mut dyn FnMut(&[u8], Record<'_>),
    ) -> Result<bool> {
        loop {
            let now = database.now();
            while let Some(key) = self.keys.pop_front() {
                let mut is_live = false;
                database.peek(&key, &mut |record| {
                    is_live = record.attributes.expiry.is_live(now);
                    if is_live {
                        see(&key, record);
                    }
                })?;
                if is_live {
                    return Ok(true);
                }
            }
            if !self.read_ahead(database)? {
                return Ok(false);
            }
        }
    }

    /// Reads further keys. Returns false if there is nothing more to read.
    fn read_ahead(&mut self, database: &Database) -> Result<bool> {
        let mut bytes = 0;
        let keys = &mut self.keys;
        let mut see = |key: &[u8], _: Record<'_>| {
            bytes += key.len();
            keys.push_back(key.to_vec());
            if keys.len() < KEYS_AHEAD && bytes < BYTES_AHEAD {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        match std::mem::replace(&mut self.rest, RestOfRecords::None) {
            RestOfRecords::None => return Ok(false),
            RestOfRecords::Unordered(place) => {
                let next = database.scan(place, &mut see)?;
                self.rest = next.map_or(RestOfRecords::None, |place| RestOfRecords::Unordered(Some(place)));
            }
            RestOfRecords::Numbered(from) => {
                let (mut text, mut next) = ([0; 20], None);
                database.walk_numbers(ScanDirection::Up, from..=u64::MAX, &mut |number, record| {
                    next = number.checked_add(1);
                    see(key_of_number(number, &mut text), record)
                })?;
                self.rest = next.map_or(RestOfRecords::None, RestOfRecords::Numbered);
            }
            RestOfRecords::Ordered(from) => {
                database.walk(ScanDirection::Up, from.as_ref().map(Vec::as_slice), &mut see)?;
                if let Some(last) = self.keys.back() {
                    self.rest = RestOfRecords::Ordered(Bound::Excluded(last.clone()));
                }
            }
        }
        Ok(true)
    }
}
