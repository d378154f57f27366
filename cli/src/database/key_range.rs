//! The records of a database one after the other, taken out of its engine in pieces.

use crate::CommandFailure;
use std::ops::{Bound, ControlFlow};
use todana::{Db, Record};
use todana_core::{Attributes, OrderedEngine};

/// Records are taken out of an engine in pieces of so many, or so many bytes: its locks are not held while they are written.
const PIECE_RECORDS: usize = 512;
const PIECE_BYTES: usize = 1 << 20;

/// Which records, and which way.
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

    /// Whether a key lies before all that is wanted: a walk downwards may end there, and one upwards behind.
    fn is_before(&self, key: &[u8]) -> bool {
        let before = |least: &Option<Vec<u8>>| least.as_ref().is_some_and(|least| key < least.as_slice());
        before(&self.prefix) || before(&self.from)
    }

    /// Where a walk upwards begins.
    fn least(&self) -> Option<&Vec<u8>> {
        self.prefix.iter().chain(&self.from).max()
    }

    /// Where a walk downwards begins: nothing that is wanted lies there or behind. `None`: at the end.
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

/// A record taken out of an engine.
pub(super) struct OwnedRecord {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) attributes: Attributes,
}

/// A piece of records that are taken out together.
#[derive(Default)]
struct RecordBatch {
    records: Vec<OwnedRecord>,
    bytes: usize,
    /// The last key that was seen, wanted or not.
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
        let is_full = self.bytes >= PIECE_BYTES || self.seen >= PIECE_RECORDS;
        if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Shows the live records of a range, in order where the database keeps one, until `see` breaks. No lock is held meanwhile.
pub(super) fn walk(
    db: &Db,
    range: &KeyRange,
    see: &mut dyn FnMut(&OwnedRecord) -> Result<ControlFlow<()>, CommandFailure>,
) -> Result<(), CommandFailure> {
    match db.database().engine().ordered() {
        Some(ordered) => walk_in_order(db, ordered, range, see),
        None if range.reverse => {
            Err(CommandFailure::usage(format!("{} keeps no order: --reverse needs a tree", db.name())))
        }
        None => {
            let mut place = None;
            loop {
                let mut piece = RecordBatch::default();
                place = db
                    .database()
                    .scan(place.take(), &mut |key, record| piece.take(key, record, range.has(key)))?;
                for record in &piece.records {
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
        let (mut piece, mut is_over) = (RecordBatch::default(), true);
        let mut take = |key: &[u8], record: Record<'_>| {
            let is_beyond = !range.has(key) && (range.is_before(key) == range.reverse);
            if is_beyond {
                return ControlFlow::Break(());
            }
            let flow = piece.take(key, record, range.has(key) && record.attributes.expiry.is_live(now));
            is_over = flow.is_continue();
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
        for record in &piece.records {
            if see(record)?.is_break() {
                return Ok(());
            }
        }
        if is_over {
            return Ok(());
        }
        last = Some(piece.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_downwards_begins_behind_a_prefix() {
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
