//! Iterators over records. Records are fetched in batches, so no lock is held while the caller
//! works, and writes continue in the meantime.

use super::batch::{CopiedRecord, RecordBatch};
use crate::records::ScanDirection;
use crate::{OwnedRecord, Records};
use std::cmp::Ordering;
use std::fmt;
use std::ops::{Bound, ControlFlow};
use todana_core::{Attributes, Error, ErrorKind, Result, ScanPosition};

/// The first batch is small, so that fetching ten records does not cost as much as fetching a
/// thousand.
const BATCH_LEN_MIN: usize = 16;
const BATCH_LEN_MAX: usize = 1024;

/// An iterator over the records of a database or a transaction: [`Records::iter`],
/// [`Records::range`], [`Records::prefix`].
///
/// Yields keys and values; [`records`](RecordIter::records) and [`keys`](RecordIter::keys) convert
/// it. Records that are written during the iteration may or may not be yielded. A record that
/// exists all the time is yielded at least once by an unordered database. An ordered database
/// yields it exactly once and in the order of the keys, and [`rev`](Iterator::rev) reverses the
/// order. After an error the iterator ends.
pub struct RecordIter<R>(BatchedScan<R>);

/// An iterator over records with their attributes, from [`RecordIter::records`].
pub struct IterRecords<R>(BatchedScan<R>);

/// An iterator over keys, from [`RecordIter::keys`].
pub struct IterKeys<R>(BatchedScan<R>);

impl<R> fmt::Debug for RecordIter<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for IterRecords<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterRecords").finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for IterKeys<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterKeys").finish_non_exhaustive()
    }
}

impl<R: Records> RecordIter<R> {
    /// Iterates over all records of `records`, which may be a clone of a [`Db`](crate::Db) if the
    /// iterator must not borrow.
    pub fn new(records: R) -> RecordIter<R> {
        RecordIter::with_prefix(records, b"")
    }

    /// Iterates over the records with keys between these bounds, in order; see [`Records::range`].
    /// Fails with `Invalid` for an unordered database.
    ///
    /// ```
    /// # use std::ops::Bound;
    /// # use todana::{Db, RecordIter, Records};
    /// let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])?;
    /// let lower = Bound::Included(b"b".to_vec());
    /// let from_b: RecordIter<Db> = RecordIter::within(db.clone(), lower, Bound::Unbounded)?;
    /// assert_eq!(from_b.count(), 2);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn within(records: R, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Result<RecordIter<R>> {
        if !records.is_ordered() {
            return Err(unordered("ranges of keys are not supported"));
        }
        Ok(RecordIter(BatchedScan::new(records, ScanSource::Order { lower, upper })))
    }

    /// Iterates over the records with keys that begin with `prefix`; see [`Records::prefix`]. In an
    /// unordered database all records are read.
    ///
    /// ```
    /// # use todana::{Db, RecordIter, Records};
    /// let db = Db::open("mem:hash")?;
    /// db.set_many(&[(b"user:1", b"ada"), (b"user:2", b"bob"), (b"vat", b"19")])?;
    /// let users: RecordIter<Db> = RecordIter::with_prefix(db.clone(), b"user:");
    /// assert_eq!(users.count(), 2);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn with_prefix(records: R, prefix: &[u8]) -> RecordIter<R> {
        let source = if records.is_ordered() {
            let lower = if prefix.is_empty() { Bound::Unbounded } else { Bound::Included(prefix.to_vec()) };
            let upper = successor(prefix).map_or(Bound::Unbounded, Bound::Excluded);
            ScanSource::Order { lower, upper }
        } else {
            ScanSource::Places { next: None, prefix: prefix.to_vec() }
        };
        RecordIter(BatchedScan::new(records, source))
    }

    /// Converts this into an iterator over records with their attributes.
    ///
    /// ```
    /// # use todana::{Db, Expiry, Records, Ttl};
    /// let db = Db::open("mem:tree")?;
    /// db.set_with(b"a", b"1", Ttl::Never, 7)?;
    /// let (key, record) = db.iter().records().next().expect("one record")?;
    /// assert_eq!((key.as_slice(), record.flags, record.expiry), (&b"a"[..], 7, Expiry::Never));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn records(self) -> IterRecords<R> {
        IterRecords(self.0)
    }

    /// Converts this into an iterator over records as the source shows them.
    pub(super) fn copied(mut self) -> impl Iterator<Item = Result<CopiedRecord>> {
        std::iter::from_fn(move || self.0.next())
    }

    /// Converts this into an iterator over keys, which copies no values.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"b", b"2"), (b"a", b"1")])?;
    /// let keys: Vec<_> = db.iter().keys().collect::<todana::Result<_>>()?;
    /// assert_eq!(keys, [b"a", b"b"]);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn keys(mut self) -> IterKeys<R> {
        self.0.wants_values = false;
        IterKeys(self.0)
    }

    /// Fetches the next batch for a caller that distributes records over threads. Returns false if
    /// no records remain.
    pub(crate) fn fill(&mut self, batch: &mut RecordBatch) -> Result<bool> {
        self.0.next_batch_len = BATCH_LEN_MAX;
        self.0.fetch(ScanDirection::Up)?;
        std::mem::swap(&mut self.0.front, batch);
        self.0.front.clear();
        Ok(!batch.is_empty())
    }
}

/// Returns the first key that is greater than all keys that begin with `prefix`, or `None` if there
/// is no such key.
pub(crate) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut key = prefix[..=last].to_vec();
    key[last] += 1;
    Some(key)
}

struct BatchedScan<R> {
    records: R,
    source: ScanSource,
    wants_values: bool,
    is_over: bool,
    next_batch_len: usize,
    front: RecordBatch,
    /// Records fetched from the other end, in descending order.
    back: RecordBatch,
}

enum ScanSource {
    /// The bounds of the keys that have not been fetched yet.
    Order { lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>> },
    /// The position of the first record that has not been fetched yet.
    Places { next: Option<ScanPosition>, prefix: Vec<u8> },
}

impl<R: Records> BatchedScan<R> {
    fn new(records: R, source: ScanSource) -> BatchedScan<R> {
        let (front, back) = (RecordBatch::default(), RecordBatch::default());
        BatchedScan {
            records,
            source,
            wants_values: true,
            is_over: false,
            next_batch_len: BATCH_LEN_MIN,
            front,
            back,
        }
    }

    fn next(&mut self) -> Option<Result<CopiedRecord>> {
        if self.front.is_empty()
            && let Err(error) = self.fetch(ScanDirection::Up)
        {
            self.is_over = true;
            return Some(Err(error));
        }
        // Records that were fetched from the back follow all records that are fetched from the
        // front.
        self.front.take_first().or_else(|| self.back.take_last()).map(Ok)
    }

    fn next_back(&mut self) -> Option<Result<CopiedRecord>> {
        if self.back.is_empty()
            && let Err(error) = self.fetch(ScanDirection::Down)
        {
            self.is_over = true;
            return Some(Err(error));
        }
        self.back.take_first().or_else(|| self.front.take_last()).map(Ok)
    }

    /// Fetches the next batch from one end. The batch stays empty only if everything was fetched.
    fn fetch(&mut self, direction: ScanDirection) -> Result<()> {
        let batch = match direction {
            ScanDirection::Up => &mut self.front,
            ScanDirection::Down => &mut self.back,
        };
        batch.clear();
        let (wants_values, records_max) = (self.wants_values, self.next_batch_len);
        self.next_batch_len = (records_max * 2).min(BATCH_LEN_MAX);
        match &mut self.source {
            _ if self.is_over => {}
            ScanSource::Order { lower, upper } => {
                let (near, far) = match direction {
                    ScanDirection::Up => (lower, &*upper),
                    ScanDirection::Down => (upper, &*lower),
                };
                self.is_over = true;
                self.records.walk(direction, borrow(near), &mut |key, record| {
                    if is_past(key, direction, far) {
                        return ControlFlow::Break(());
                    }
                    let flow = batch.push(key, wants_values.then_some(record), records_max);
                    self.is_over = flow.is_continue();
                    flow
                })?;
                if let Some(key) = batch.last() {
                    *near = Bound::Excluded(key.to_vec());
                }
            }
            ScanSource::Places { .. } if direction == ScanDirection::Down => {
                return Err(unordered("there is no reverse order"));
            }
            ScanSource::Places { next, prefix } => {
                while !self.is_over && batch.is_empty() {
                    *next = self.records.scan(next.take(), &mut |key, record| {
                        if key.starts_with(prefix) {
                            batch.push(key, wants_values.then_some(record), records_max)
                        } else {
                            ControlFlow::Continue(())
                        }
                    })?;
                    self.is_over = next.is_none();
                }
            }
        }
        Ok(())
    }
}

/// Returns the error of an operation that needs an ordered database.
pub(crate) fn unordered(what: &str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("unordered database: {what}; use an ordered one (mem:tree, PATH.tree)"),
    )
}

pub(crate) fn borrow(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Returns true if a key lies after the bound at the far end.
fn is_past(key: &[u8], direction: ScanDirection, far: &Bound<Vec<u8>>) -> bool {
    let (Bound::Included(end) | Bound::Excluded(end)) = far else { return false };
    match (key.cmp(end), direction) {
        (Ordering::Equal, _) => matches!(far, Bound::Excluded(_)),
        (ordering, ScanDirection::Up) => ordering.is_gt(),
        (ordering, ScanDirection::Down) => ordering.is_lt(),
    }
}

impl<R: Records> Iterator for RecordIter<R> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|item| item.map(|copied| (copied.key, copied.value)))
    }
}

impl<R: Records> DoubleEndedIterator for RecordIter<R> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|item| item.map(|copied| (copied.key, copied.value)))
    }
}

impl<R: Records> Iterator for IterRecords<R> {
    type Item = Result<(Vec<u8>, OwnedRecord)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|item| item.map(owned))
    }
}

impl<R: Records> DoubleEndedIterator for IterRecords<R> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|item| item.map(owned))
    }
}

fn owned(copied: CopiedRecord) -> (Vec<u8>, OwnedRecord) {
    let Attributes { flags, expiry, version, .. } = copied.attributes;
    (copied.key, OwnedRecord { value: copied.value, flags, expiry, version })
}

impl<R: Records> Iterator for IterKeys<R> {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|item| item.map(|copied| copied.key))
    }
}

impl<R: Records> DoubleEndedIterator for IterKeys<R> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|item| item.map(|copied| copied.key))
    }
}
