//! A range of keys, and the walk over its records in batches.

use crate::CommandFailure;
use std::ops::{Bound, ControlFlow};
use todana::{Db, Record};
use todana_core::{Attributes, OrderedEngine};

/// The most records, and the most bytes, that are copied out of the engine at once. The engine's
/// locks are not held while the copies are printed.
const BATCH_RECORDS: usize = 512;
const BATCH_BYTES: usize = 1 << 20;

/// The requested keys, and the direction of the walk.
#[derive(Default)]
pub(super) struct KeyRange {
    pub(super) prefix: Option<Vec<u8>>,
    pub(super) from: Option<Vec<u8>>,
    pub(super) to: Option<Vec<u8>>,
    pub(super) reverse: bool,
}

impl KeyRange {
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix))
            && self.from.as_ref().is_none_or(|from| key >= from.as_slice())
            && self.to.as_ref().is_none_or(|to| key < to.as_slice())
    }

    /// Returns true if the key comes before the range, so that a descending walk can end.
    fn is_before(&self, key: &[u8]) -> bool {
        let before = |least: &Option<Vec<u8>>| least.as_ref().is_some_and(|least| key < least.as_slice());
        before(&self.prefix) || before(&self.from)
    }

    /// Returns the key at which an ascending walk starts.
    fn least(&self) -> Option<&Vec<u8>> {
        self.prefix.iter().chain(&self.from).max()
    }

    /// Returns the key before which a descending walk starts, or `None` to start at the end of the
    /// database.
    fn most(&self) -> Option<Vec<u8>> {
        let behind = self.prefix.as_ref().and_then(|prefix| {
            let last = prefix.iter().rposition(|&byte| byte != 0xFF)?;
            let mut behind = prefix[..=last].to_vec();
            behind[last] += 1;
            Some(behind)
        });
        behind.into_iter().chain(self.to.clone()).min()
    }
}

/// A record copied out of an engine. If its attributes say so, its value is a list of values.
pub(super) struct OwnedRecord {
    pub(super) key: Vec<u8>,
    /// The value, or the list of several values.
    value: Vec<u8>,
    pub(super) attributes: Attributes,
}

impl OwnedRecord {
    /// Returns the record as the engine holds it.
    pub(super) fn record(&self) -> Record<'_> {
        Record::new(&self.value, self.attributes)
    }
}

/// A batch of copied records.
#[derive(Default)]
struct RecordBatch {
    records: Vec<OwnedRecord>,
    bytes: usize,
    /// The last key that was visited, even if it is not in the range.
    last: Vec<u8>,
    seen: usize,
}

impl RecordBatch {
    fn take(&mut self, key: &[u8], record: Record<'_>, is_wanted: bool) -> ControlFlow<()> {
        self.last.clear();
        self.last.extend_from_slice(key);
        self.seen += 1;
        if is_wanted {
            self.bytes += key.len() + record.value.len();
            self.records.push(OwnedRecord {
                key: key.to_vec(),
                value: record.value.to_vec(),
                attributes: record.attributes,
            });
        }
        let is_full = self.bytes >= BATCH_BYTES || self.seen >= BATCH_RECORDS;
        if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Passes keys to `see` until it returns false: those with the prefix, or all keys of an unordered
/// database.
pub(crate) fn keys(db: &Db, prefix: &[u8], see: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), CommandFailure> {
    let prefix = db.database().engine().ordered().map(|_| prefix.to_vec());
    walk(db, &KeyRange { prefix, ..KeyRange::default() }, &mut |record| {
        Ok(if see(&record.key) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })
}

/// Passes the live records of a range to `see` until `see` breaks, in the order of their keys if
/// the database is ordered. No lock is held while `see` runs.
pub(super) fn walk(
    db: &Db,
    range: &KeyRange,
    see: &mut dyn FnMut(&OwnedRecord) -> Result<ControlFlow<()>, CommandFailure>,
) -> Result<(), CommandFailure> {
    match db.database().engine().ordered() {
        Some(ordered) => walk_in_order(db, ordered, range, see),
        None if range.reverse => Err(CommandFailure::usage(format!(
            "{}: unordered database; --reverse needs a .tree database",
            db.name()
        ))),
        None => {
            let mut place = None;
            loop {
                let mut batch = RecordBatch::default();
                place = db.database().read_all_stored(place.take(), &mut |key, record| {
                    batch.take(key, record, range.has(key))
                })?;
                for record in &batch.records {
                    if see(record)?.is_break() {
                        return Ok(());
                    }
                }
                if place.is_none() {
                    return Ok(());
                }
            }
        }
    }
}

fn walk_in_order(
    db: &Db,
    ordered: &dyn OrderedEngine,
    range: &KeyRange,
    see: &mut dyn FnMut(&OwnedRecord) -> Result<ControlFlow<()>, CommandFailure>,
) -> Result<(), CommandFailure> {
    let mut last: Option<Vec<u8>> = None;
    loop {
        let now = db.database().now();
        let (mut batch, mut is_complete) = (RecordBatch::default(), true);
        let mut take = |key: &[u8], record: Record<'_>| {
            let is_beyond = !range.has(key) && (range.is_before(key) == range.reverse);
            if is_beyond {
                return ControlFlow::Break(());
            }
            let flow = batch.take(key, record, range.has(key) && record.attributes.expiry.is_live(now));
            is_complete = flow.is_continue();
            flow
        };
        if range.reverse {
            let most = range.most();
            let from = last.as_ref().or(most.as_ref());
            ordered
                .descend(from.map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice())), &mut take)?;
        } else {
            let from = match (&last, range.least()) {
                (Some(last), _) => Bound::Excluded(last.as_slice()),
                (None, Some(least)) => Bound::Included(least.as_slice()),
                (None, None) => Bound::Unbounded,
            };
            ordered.ascend(from, &mut take)?;
        }
        for record in &batch.records {
            if see(record)?.is_break() {
                return Ok(());
            }
        }
        if is_complete {
            return Ok(());
        }
        last = Some(batch.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descending_walk_starts_after_the_prefix() {
        let most = |prefix: &[u8], to: Option<&[u8]>| {
            KeyRange { prefix: Some(prefix.to_vec()), to: to.map(<[u8]>::to_vec), ..KeyRange::default() }
                .most()
        };
        assert_eq!(most(b"ab", None), Some(b"ac".to_vec()));
        assert_eq!(most(b"a\xFF", None), Some(b"b".to_vec()));
        assert_eq!(most(b"\xFF\xFF", None), None);
        assert_eq!(most(b"ab", Some(b"abc")), Some(b"abc".to_vec()));
    }
}
