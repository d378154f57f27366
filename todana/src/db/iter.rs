//! Iterators over records, fetched in batches: no lock is held while the caller works, and writes go on meanwhile.

use super::batch::Batch;
use crate::records::ScanDirection;
use crate::{OwnedRecord, Records};
use std::cmp::Ordering;
use std::fmt;
use std::ops::{Bound, ControlFlow};
use todana_core::{Error, ErrorKind, Result, ScanPosition};

/// The first batch is small, as whoever wants the first ten records shall not pay for a thousand.
const FIRST_BATCH: usize = 16;
const LAST_BATCH: usize = 1024;

/// An iterator over the records of a database or a transaction: [`Records::iter`], [`Records::range`], [`Records::prefix`].
///
/// It yields keys and values; [`records`](RecordIter::records) and [`keys`](RecordIter::keys) make others of it. What is written meanwhile is
/// seen or not. On an engine without an order a record that is there throughout comes at least once; on an ordered one exactly once, in the
/// order of the keys, and [`rev`](Iterator::rev) goes the other way. After an error there is nothing more.
pub struct RecordIter<R>(Walk<R>);

/// An iterator over records with their attributes: [`RecordIter::records`].
pub struct IterRecords<R>(Walk<R>);

/// An iterator over keys: [`RecordIter::keys`].
pub struct IterKeys<R>(Walk<R>);

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
    /// All records of `records`: of a clone of a [`Db`](crate::Db), for an iterator that borrows nothing.
    pub fn new(records: R) -> RecordIter<R> {
        RecordIter::with_prefix(records, b"")
    }

    /// The records whose keys lie between these bounds, in their order: [`Records::range`]. Fails with `Invalid` where they have none.
    ///
    /// ```
    /// # use std::ops::Bound;
    /// # use todana::{Db, RecordIter, Records};
    /// let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])?;
    /// let from_b: RecordIter<Db> = RecordIter::within(db.clone(), Bound::Included(b"b".to_vec()), Bound::Unbounded)?;
    /// assert_eq!(from_b.count(), 2);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn within(records: R, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Result<RecordIter<R>> {
        if !records.is_ordered() {
            return Err(unordered("there are no ranges of them"));
        }
        Ok(RecordIter(Walk::new(records, Source::Order { lower, upper })))
    }

    /// The records whose keys begin with this: [`Records::prefix`]. Where keys have no order all are looked at.
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
            Source::Order { lower, upper }
        } else {
            Source::Places { next: None, prefix: prefix.to_vec() }
        };
        RecordIter(Walk::new(records, source))
    }

    /// The same with the attributes of each record.
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

    /// Only the keys; values are not copied.
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

    /// Fetches the next records in one go, so that whoever has many threads can deal them out. False when there are none.
    pub(crate) fn fill(&mut self, batch: &mut Batch) -> Result<bool> {
        self.0.batch_len = LAST_BATCH;
        self.0.fetch(ScanDirection::Up)?;
        std::mem::swap(&mut self.0.front, batch);
        self.0.front.clear();
        Ok(!batch.is_empty())
    }
}

/// The first key behind all that begin with this; `None` if there is none.
pub(crate) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut key = prefix[..=last].to_vec();
    key[last] += 1;
    Some(key)
}

struct Walk<R> {
    records: R,
    source: Source,
    wants_values: bool,
    is_over: bool,
    batch_len: usize,
    front: Batch,
    /// What was fetched from the other end; descending.
    back: Batch,
}

enum Source {
    /// What lies between these has not been fetched.
    Order { lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>> },
    /// What lies from here on has not been fetched.
    Places { next: Option<ScanPosition>, prefix: Vec<u8> },
}

impl<R: Records> Walk<R> {
    fn new(records: R, source: Source) -> Walk<R> {
        let (front, back) = (Batch::default(), Batch::default());
        Walk { records, source, wants_values: true, is_over: false, batch_len: FIRST_BATCH, front, back }
    }

    fn next(&mut self) -> Option<Result<(Vec<u8>, OwnedRecord)>> {
        if self.front.is_empty()
            && let Err(error) = self.fetch(ScanDirection::Up)
        {
            self.is_over = true;
            return Some(Err(error));
        }
        // What was fetched from the other end lies behind all that comes from this one.
        self.front.take_first().or_else(|| self.back.take_last()).map(Ok)
    }

    fn next_back(&mut self) -> Option<Result<(Vec<u8>, OwnedRecord)>> {
        if self.back.is_empty()
            && let Err(error) = self.fetch(ScanDirection::Down)
        {
            self.is_over = true;
            return Some(Err(error));
        }
        self.back.take_first().or_else(|| self.front.take_last()).map(Ok)
    }

    /// Fetches the next batch from one end; there may be nothing in it only when all has been fetched.
    fn fetch(&mut self, heading: ScanDirection) -> Result<()> {
        let batch = match heading {
            ScanDirection::Up => &mut self.front,
            ScanDirection::Down => &mut self.back,
        };
        batch.clear();
        let (wants_values, records_max) = (self.wants_values, self.batch_len);
        self.batch_len = (records_max * 2).min(LAST_BATCH);
        match &mut self.source {
            _ if self.is_over => {}
            Source::Order { lower, upper } => {
                let (near, far) = match heading {
                    ScanDirection::Up => (lower, &*upper),
                    ScanDirection::Down => (upper, &*lower),
                };
                self.is_over = true;
                self.records.walk(heading, borrow(near), &mut |key, record| {
                    if is_past(key, heading, far) {
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
            Source::Places { .. } if heading == ScanDirection::Down => {
                return Err(unordered("there is no going backwards in it"));
            }
            Source::Places { next, prefix } => {
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

/// What cannot be done where keys have no order.
pub(crate) fn unordered(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("this kind of database keeps no order of keys: {what}"))
}

pub(crate) fn borrow(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Whether a key lies beyond the other end.
fn is_past(key: &[u8], heading: ScanDirection, far: &Bound<Vec<u8>>) -> bool {
    let (Bound::Included(end) | Bound::Excluded(end)) = far else { return false };
    match (key.cmp(end), heading) {
        (Ordering::Equal, _) => matches!(far, Bound::Excluded(_)),
        (ordering, ScanDirection::Up) => ordering.is_gt(),
        (ordering, ScanDirection::Down) => ordering.is_lt(),
    }
}

impl<R: Records> Iterator for RecordIter<R> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|item| item.map(|(key, record)| (key, record.value)))
    }
}

impl<R: Records> DoubleEndedIterator for RecordIter<R> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|item| item.map(|(key, record)| (key, record.value)))
    }
}

impl<R: Records> Iterator for IterRecords<R> {
    type Item = Result<(Vec<u8>, OwnedRecord)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl<R: Records> DoubleEndedIterator for IterRecords<R> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back()
    }
}

impl<R: Records> Iterator for IterKeys<R> {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|item| item.map(|(key, _)| key))
    }
}

impl<R: Records> DoubleEndedIterator for IterKeys<R> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|item| item.map(|(key, _)| key))
    }
}
