//! The iterator over a database, which all connections share.
//!
//! It holds a few keys that it has read ahead, and the position after them. A record that was
//! removed meanwhile is passed over. It moves in steps of bounded work, because all threads wait
//! for the one that moves it.

use super::numbers::first_from;
use super::records_seen::{expect_wanted, see_keys};
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::AtomicBool;
use todana::{Database, ScanDirection};
use todana_core::{Record, Result, ScanPosition, key_of_number};

/// The number of keys that are read ahead.
const KEYS_AHEAD: usize = 64;
/// The number of bytes of keys that are read ahead, unless it is one key.
const BYTES_AHEAD: usize = 64 << 10;

/// The outcome of a step of an iterator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IteratorStep {
    /// A record was shown.
    Shown,
    /// No record is left.
    End,
    /// Another step is needed.
    Unfinished,
}

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
            see_keys(database, key, is_cancelled, &mut |_| {
                is_any = true;
                ControlFlow::Break(())
            })?;
            let rest = RestOfRecords::Ordered(Bound::Included(key.to_vec()));
            return Ok(is_any.then(|| SharedIterator { keys: VecDeque::new(), rest }));
        }
        if database.engine().numbered().is_some() {
            let rest = first_from(database, key, is_cancelled)?.map(RestOfRecords::Numbered);
            return Ok(rest.map(|rest| SharedIterator { keys: VecDeque::new(), rest }));
        }
        let (mut keys, mut place) = (VecDeque::new(), None);
        loop {
            place = database.scan_keys_group(place, &mut |found, _| {
                if !keys.is_empty() || found == key {
                    keys.push_back(found.to_vec());
                }
                if keys.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            if !keys.is_empty() {
                let rest = place.map_or(RestOfRecords::None, |place| RestOfRecords::Unordered(Some(place)));
                return Ok(Some(SharedIterator { keys, rest }));
            }
            if place.is_none() {
                return Ok(None);
            }
            expect_wanted(is_cancelled)?;
        }
    }

    /// Does a bounded part of the work until the next record: shows it and moves past it, or moves
    /// past some records that have expired or were removed.
    pub(super) fn step(
        &mut self,
        database: &Database,
        see: &mut dyn FnMut(&[u8], Record<'_>),
    ) -> Result<IteratorStep> {
        if self.keys.is_empty() && !self.read_ahead(database)? {
            return Ok(IteratorStep::End);
        }
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
                return Ok(IteratorStep::Shown);
            }
        }
        Ok(IteratorStep::Unfinished)
    }

    /// Reads further keys, if there are any in the next group of records. Returns false if no
    /// records are left.
    fn read_ahead(&mut self, database: &Database) -> Result<bool> {
        let mut bytes = 0;
        let keys = &mut self.keys;
        let mut see = |key: &[u8]| {
            bytes += key.len();
            keys.push_back(key.to_vec());
            if keys.len() < KEYS_AHEAD && bytes < BYTES_AHEAD {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        // If reading fails, the iterator ends.
        let rest = match std::mem::replace(&mut self.rest, RestOfRecords::None) {
            RestOfRecords::None => return Ok(false),
            RestOfRecords::Unordered(place) => {
                let place = database.scan_keys_group(place, &mut |key, _| see(key))?;
                place.map(|place| RestOfRecords::Unordered(Some(place)))
            }
            RestOfRecords::Numbered(from) => {
                let mut text = [0; 20];
                let see = &mut |number, _: Record<'_>| see(key_of_number(number, &mut text));
                let last = database.walk_numbers_group(ScanDirection::Up, from..=u64::MAX, see)?;
                last.map(|last| RestOfRecords::Numbered(last.saturating_add(1)))
            }
            RestOfRecords::Ordered(from) => {
                let from = from.as_ref().map(Vec::as_slice);
                let last = database.walk_group(ScanDirection::Up, from, &mut |key, _| see(key))?;
                last.map(|last| RestOfRecords::Ordered(Bound::Excluded(last)))
            }
        };
        self.rest = rest.unwrap_or(RestOfRecords::None);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use todana::disk::SystemDisk;
    use todana::{CachedClock, Database, DatabaseName, EngineOptions, Ttl};
    use todana_core::{Operation, Store};

    /// All threads waited for the one that moved past the expired records.
    #[test]
    fn step_passes_a_bounded_number_of_records() {
        for name in ["mem:hash", "mem:tree", "mem:fixed"] {
            // No thread removes the expired records of this database meanwhile.
            let name = DatabaseName::parse(name).unwrap();
            let engine = name.open_engine(Arc::new(SystemDisk), EngineOptions::default()).unwrap();
            let database = Database::new(engine, Arc::new(CachedClock::new()));
            let counters = database.worker_counters();
            let set = |number: u32, ttl| {
                let key = number.to_string();
                let store = Store { key: key.as_bytes(), ttl, ..Store::default() };
                database.execute(&counters, &Operation::Store(store), &mut |_| ());
            };
            (1..=3000).for_each(|number| set(number, Ttl::At(1)));
            set(5000, Ttl::Never);
            let (mut iterator, mut steps, mut found) = (SharedIterator::new(&database), 0, Vec::new());
            while iterator.step(&database, &mut |key, _| found.extend_from_slice(key)).unwrap()
                != IteratorStep::End
            {
                steps += 1;
            }
            assert_eq!(found, b"5000");
            assert!(steps > 3000 / 512, "{name}: {steps}");
        }
    }
}
