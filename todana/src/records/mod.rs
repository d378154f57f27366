//! The operations on records for a program that embeds the library. A database and a transaction
//! have the same operations.

pub(crate) mod replies;
mod visitors;

use crate::Database;
use crate::db::{ClosestKeys, KeySymbols, RecordCursor, RecordIter};
use crate::kyoto::{IncrementOrigin, IncrementSum, SumError};
use crate::transaction::Transaction;
use replies::{query, record_of, refusal_error, store, with_key};
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;
use todana_core::{
    Attributes, Delete, Engine, Error, ErrorKind, Expiry, Get, Operation, Record, Reply, ReplyNeeds, Result,
    ScanPosition, Store, StoreMode, Touch, Ttl, Visitor,
};
use visitors::{SeizeVisitor, SwapVisitor, TextSum, TextSumError, UpdateVisitor};

/// A copy of a record, with its value and its attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedRecord {
    /// The value.
    pub value: Vec<u8>,
    /// The client's flags.
    pub flags: u32,
    /// When the record expires.
    pub expiry: Expiry,
    /// The version, if it was requested. Otherwise the last version that a client has seen, or 0.
    pub version: u64,
}

impl OwnedRecord {
    pub(crate) fn of(record: Record<'_>) -> OwnedRecord {
        let Attributes { flags, expiry, version, .. } = record.attributes;
        OwnedRecord { value: record.value.to_vec(), flags, expiry, version }
    }
}

/// The outcome of a compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOutcome {
    /// The record had the expected version and was replaced.
    Stored,
    /// The record has another version, because it was changed.
    Changed,
    /// The record does not exist.
    Missing,
}

/// The decision of a function that is passed to [`Records::update`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateAction {
    /// Leaves the record unchanged.
    Keep,
    /// Replaces the value; flags and expiry stay.
    Value(Vec<u8>),
    /// Replaces the record with its flags and expiry.
    Record(OwnedRecord),
    /// Removes the record.
    Remove,
}

/// The direction of an ordered scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanDirection {
    /// From the first to the last key.
    Up,
    /// From the last to the first key.
    Down,
}

/// The operations on records, implemented by [`Db`](crate::Db) and [`Transaction`].
///
/// Expired records do not exist for these methods. Keys and values are arbitrary bytes. All methods
/// fail with `Full` if there is no room and nothing may be evicted, with `Invalid` for a key or
/// value longer than any engine accepts, with `Corrupt` if the record is damaged on disk, and with
/// `Unavailable` if the database is on disk and the disk cannot be read or written. Writes fail
/// with `Busy` if the thread has an open transaction and writes past it.
///
/// ```
/// use todana::{Db, Records};
///
/// fn visits(records: &impl Records) -> todana::Result<i64> {
///     records.increment(b"visits", 1, Some(0))
/// }
///
/// let db = Db::open("mem:hash")?;
/// assert_eq!(visits(&db)?, 0);
/// let transaction = db.begin()?;
/// assert_eq!((visits(&transaction)?, visits(&transaction)?), (1, 2));
/// assert_eq!(db.get(b"visits")?.as_deref(), Some(&b"0"[..]));
/// transaction.commit()?;
/// assert_eq!(db.get(b"visits")?.as_deref(), Some(&b"2"[..]));
/// # Ok::<(), todana::Error>(())
/// ```
pub trait Records {
    /// Executes an operation. `reply` is called once with the reply. It may run under a lock of the
    /// engine, so it must not call the database.
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()>;

    /// Calls a visitor on a record, atomically. The visitor does not see an expired record. All
    /// writes are visits.
    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()>;

    /// Returns true if the database is ordered, so that [`walk`](Records::walk) and the methods
    /// based on it can be used.
    fn is_ordered(&self) -> bool;

    /// Passes the live records from the position `from` on (`None`: the start) to `see`, in an
    /// order that the engine chooses, until `see` breaks. Returns the position at which to
    /// continue, or `None` at the end. A record that exists all the time is passed at least once,
    /// even if other records are written in the meantime. After `see` breaks, it may be called for
    /// a few more records, which are not passed again by the next call.
    ///
    /// `see` may run under a lock of the engine, so it must be brief and must not call the
    /// database. [`iter`](Records::iter) has none of these restrictions.
    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>>;

    /// Calls `see` for the live records from a key on, in the order of their keys, until `see`
    /// breaks. Fails with `Invalid` for an unordered database. `see` may run under a lock of the
    /// engine: it must be brief and must not call the database.
    ///
    /// ```
    /// # use std::ops::{Bound, ControlFlow};
    /// # use todana::{Db, ScanDirection, Records};
    /// let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])?;
    /// let mut keys = Vec::new();
    /// db.walk(ScanDirection::Down, Bound::Excluded(b"c"), &mut |key, _| {
    ///     keys.push(key.to_vec());
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(keys, [b"b", b"a"]);
    /// let unordered = Db::open("mem:hash")?;
    /// let see = &mut |_: &[u8], _: todana::Record<'_>| ControlFlow::Continue(());
    /// assert!(unordered.walk(ScanDirection::Up, Bound::Unbounded, see).is_err());
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn walk(
        &self,
        direction: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Returns a cursor that stands at no record yet.
    fn cursor(&self) -> RecordCursor<&Self>
    where
        Self: Sized,
    {
        RecordCursor::new(self)
    }

    /// Iterates over all records, in the order of their keys if there is one. The records are
    /// fetched in batches: no lock is held while the caller works, and the caller may write in the
    /// meantime.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])?;
    /// for record in db.iter() {
    ///     let (key, value) = record?;
    ///     db.set(&key, &[value.as_slice(), b"0"].concat())?;
    /// }
    /// let values = db.iter().rev().map(|record| record.map(|(_, value)| value));
    /// let values = values.collect::<todana::Result<Vec<_>>>()?;
    /// assert_eq!(values, [b"30", b"20", b"10"]);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn iter(&self) -> RecordIter<&Self>
    where
        Self: Sized,
    {
        RecordIter::new(self)
    }

    /// Iterates over the records with keys in a range, in order. Fails with `Invalid` for an
    /// unordered database.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])?;
    /// let from_b: Vec<_> = db.range("b"..)?.keys().collect::<todana::Result<_>>()?;
    /// assert_eq!(from_b, [b"b", b"c"]);
    /// assert_eq!(db.range("a"..="b")?.count(), 2);
    /// assert!(Db::open("mem:hash")?.range("a".."b").is_err());
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<RecordIter<&Self>>
    where
        Self: Sized,
    {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        RecordIter::within(self, own(range.start_bound()), own(range.end_bound()))
    }

    /// Iterates over the records with keys that begin with `prefix`. In an unordered database all
    /// records are read.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// for name in ["mem:hash", "mem:tree"] {
    ///     let db = Db::open(name)?;
    ///     db.set_many(&[(b"user:1", b"ada"), (b"user:2", b"bob"), (b"vat", b"19")])?;
    ///     assert_eq!(db.prefix(b"user:").count(), 2);
    /// }
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn prefix(&self, prefix: &[u8]) -> RecordIter<&Self>
    where
        Self: Sized,
    {
        RecordIter::with_prefix(self, prefix)
    }

    /// Returns up to `limit` keys that begin with `prefix`: the first ones if keys are ordered. In
    /// an unordered database all keys are read.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"user:1", b"ada"), (b"user:2", b"bob"), (b"vat", b"19")])?;
    /// assert_eq!(db.match_prefix(b"user:", 10)?, [b"user:1", b"user:2"]);
    /// assert_eq!(db.match_prefix(b"user:", 1)?, [b"user:1"]);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn match_prefix(&self, prefix: &[u8], limit: usize) -> Result<Vec<Vec<u8>>>
    where
        Self: Sized,
    {
        self.prefix(prefix).keys().take(limit).collect()
    }

    /// Returns up to `limit` keys in which a regular expression matches (of the crate
    /// [`regex`](https://docs.rs/regex), over bytes), in the order of the keys if there is one. All
    /// keys are read, in time proportional to their length for any pattern. Fails with `Invalid` if
    /// the pattern is invalid or too large.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"user:1", b"ada"), (b"user:22", b"bob"), (b"vat", b"19")])?;
    /// assert_eq!(db.match_regex(r"^user:\d$", 10)?, [b"user:1"]);
    /// assert_eq!(db.match_regex("(", 10).unwrap_err().kind(), todana::ErrorKind::Invalid);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn match_regex(&self, pattern: &str, limit: usize) -> Result<Vec<Vec<u8>>>
    where
        Self: Sized,
    {
        let regex = regex::bytes::Regex::new(pattern).map_err(|error| {
            let message = format!("regular expression \"{pattern}\": {error}");
            Error::new(ErrorKind::Invalid, message)
        })?;
        let matches = |key: &Result<Vec<u8>>| key.as_ref().map_or(true, |key| regex.is_match(key));
        self.iter().keys().filter(matches).take(limit).collect()
    }

    /// Returns up to `limit` keys that are most similar to `key`, with their distances: the least
    /// number of symbols to insert, remove or replace to turn one key into the other, at most
    /// `distance_max`. The most similar keys come first, equal distances in the order of their
    /// bytes. All keys are read.
    ///
    /// ```
    /// # use todana::{Db, Records, KeySymbols};
    /// let db = Db::open("mem:hash")?;
    /// db.set_many(&[(b"crane", b""), (b"crate", b""), (b"crab", b""), (b"heron", b"")])?;
    /// let similar = db.match_similar(b"crane", 2, KeySymbols::Bytes, 2)?;
    /// assert_eq!(similar, [(b"crane".to_vec(), 0), (b"crate".to_vec(), 1)]);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn match_similar(
        &self,
        key: &[u8],
        distance_max: usize,
        symbols: KeySymbols,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, usize)>>
    where
        Self: Sized,
    {
        let mut closest = ClosestKeys::new(key, distance_max, symbols, limit);
        for key in self.iter().keys() {
            closest.offer(&key?);
        }
        Ok(closest.into_sorted())
    }

    /// Returns the value of a record.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// let db = Db::open("mem:hash")?;
    /// assert_eq!(db.get(b"hello")?, None);
    /// db.set(b"hello", b"world")?;
    /// assert_eq!(db.get(b"hello")?, Some(b"world".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = None;
        self.view(key, &mut |record| value = Some(record.value.to_vec()))?;
        Ok(value)
    }

    /// Calls `see` with a record in place, without a copy. Returns true if there is one. `see` may
    /// run under a lock of the engine: it must be brief and must not call the database.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// # let db = Db::open("mem:hash")?;
    /// db.set(b"hello", b"world")?;
    /// let mut len = 0;
    /// assert!(db.view(b"hello", &mut |record| len = record.value.len())?);
    /// assert_eq!(len, 5);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let get = Get { key, ..Get::default() };
        query(self, &Operation::Get(get), |reply| Ok(record_of(reply)?.map(&mut *see).is_some()))
    }

    /// Returns a record with its attributes and a version, with which
    /// [`compare_and_set`](Records::compare_and_set) detects changes. The first call for a record
    /// costs a write, because a version is assigned only when it is requested.
    ///
    /// ```
    /// # use todana::{CompareOutcome, Db, Records};
    /// # let db = Db::open("mem:hash")?;
    /// db.set(b"stock", b"3")?;
    /// let seen = db.get_record(b"stock")?.expect("it was just set");
    /// db.set(b"stock", b"2")?;
    /// assert_eq!(db.compare_and_set(b"stock", b"9", seen.version)?, CompareOutcome::Changed);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn get_record(&self, key: &[u8]) -> Result<Option<OwnedRecord>> {
        let get = Get { key, needs: ReplyNeeds { version: true, access: false }, ..Get::default() };
        query(self, &Operation::Get(get), |reply| Ok(record_of(reply)?.map(OwnedRecord::of)))
    }

    /// Returns true if the record exists. Does not count as an access.
    fn contains(&self, key: &[u8]) -> Result<bool> {
        let look = Get { key, silent: true, ..Get::default() };
        query(self, &Operation::Get(look), |reply| Ok(record_of(reply)?.is_some()))
    }

    /// Stores a record that does not expire. An existing one is replaced.
    fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.set_with(key, value, Ttl::Never, 0)
    }

    /// Stores a record with a time to live and flags.
    ///
    /// ```
    /// # use todana::{Db, Records, Ttl};
    /// # let db = Db::open("mem:hash")?;
    /// db.set_with(b"session:7", b"{}", Ttl::Sliding(900), 0)?;
    /// assert!(db.contains(b"session:7")?);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn set_with(&self, key: &[u8], value: &[u8], ttl: Ttl, flags: u32) -> Result<()> {
        store(self, &Store { key, value, ttl, flags, ..Store::default() }).map(|_| ())
    }

    /// Stores a record unless it exists. Returns true if it was stored.
    fn add(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.add_with(key, value, Ttl::Never, 0)
    }

    /// Stores a record with a time to live and flags if there is none. Returns true if it was
    /// stored.
    ///
    /// ```
    /// # use todana::{Db, Records, Ttl};
    /// # let db = Db::open("mem:hash")?;
    /// assert!(db.add_with(b"lock", b"mine", Ttl::Seconds(30), 0)?);
    /// assert!(!db.add_with(b"lock", b"theirs", Ttl::Seconds(30), 0)?);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn add_with(&self, key: &[u8], value: &[u8], ttl: Ttl, flags: u32) -> Result<bool> {
        store(self, &Store { key, value, ttl, flags, mode: StoreMode::Add, ..Store::default() })
    }

    /// Replaces a record, with its flags and expiry, if it exists. Returns true if it existed.
    fn replace(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.replace_with(key, value, Ttl::Never, 0)
    }

    /// Replaces a record if it exists, with a time to live and flags. Returns true if it existed.
    fn replace_with(&self, key: &[u8], value: &[u8], ttl: Ttl, flags: u32) -> Result<bool> {
        store(self, &Store { key, value, ttl, flags, mode: StoreMode::Replace, ..Store::default() })
    }

    /// Appends `piece` to a value; creates the record if there is none.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// # let db = Db::open("mem:hash")?;
    /// db.append(b"line", b"Hello, ")?;
    /// db.append(b"line", b"world")?;
    /// assert_eq!(db.get(b"line")?, Some(b"Hello, world".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn append(&self, key: &[u8], piece: &[u8]) -> Result<()> {
        let vivify = Some(Ttl::Never);
        let append = Store { key, value: piece, mode: StoreMode::Append, vivify, ..Store::default() };
        store(self, &append).map(|_| ())
    }

    /// Prepends `piece` to a value. A missing record is created.
    fn prepend(&self, key: &[u8], piece: &[u8]) -> Result<()> {
        let vivify = Some(Ttl::Never);
        let prepend = Store { key, value: piece, mode: StoreMode::Prepend, vivify, ..Store::default() };
        store(self, &prepend).map(|_| ())
    }

    /// Adds to a decimal number, which may be negative, and returns the sum. If the record is
    /// missing, stores `initial` and does not add `delta`. Fails with `Invalid` if the record is
    /// missing and `initial` is `None`, if the value is not a number, or if the sum exceeds 64
    /// bits.
    fn increment(&self, key: &[u8], delta: i64, initial: Option<i64>) -> Result<i64> {
        let mut sum = TextSum { delta, initial, outcome: Err(TextSumError::Missing), text: String::new() };
        self.visit(key, &mut sum)?;
        sum.outcome.map_err(|wrong| {
            let key = key.escape_ascii();
            let message = match wrong {
                TextSumError::Missing => format!("record \"{key}\": no such record to add to"),
                TextSumError::NoNumber => format!("record \"{key}\": not a 64-bit number"),
                TextSumError::Range => format!("record \"{key}\": the sum exceeds 64 bits"),
            };
            Error::new(ErrorKind::Invalid, message)
        })
    }

    /// Adds to a number in the format of Kyoto Cabinet and Kyoto Tycoon, 8 bytes with the most
    /// significant first, and returns the sum. Without a record, `origin` is the number to add to.
    /// `IncrementOrigin::Set` stores `delta` itself and ignores an existing number, and
    /// `IncrementOrigin::Try` requires a record. [`i64::MAX`] and [`i64::MIN`] may be given in
    /// their place, as in Kyoto Cabinet. Flags and expiry stay. Adding 0 to an existing number
    /// writes nothing. Fails with `Invalid`, and changes nothing, if the value is not 8 bytes long,
    /// if the sum exceeds 64 bits, or if `Try` finds no record.
    ///
    /// ```
    /// # use todana::{Db, IncrementOrigin, Records};
    /// let db = Db::open("mem:hash")?;
    /// assert_eq!(db.increment_binary(b"visits", 5, IncrementOrigin::Number(100))?, 105);
    /// assert_eq!(db.increment_binary(b"visits", -6, IncrementOrigin::Try)?, 99);
    /// assert_eq!(db.get(b"visits")?, Some(99i64.to_be_bytes().to_vec()));
    /// assert_eq!(db.increment_binary(b"visits", 7, i64::MAX.into())?, 7);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn increment_binary(&self, key: &[u8], delta: i64, origin: IncrementOrigin<i64>) -> Result<i64> {
        let mut outcome = Err(SumError::Missing);
        self.update(key, &mut |record| {
            let found = origin.sum(record.map(|record| record.value), delta);
            outcome = found.map(|found| found.sum);
            match found {
                Ok(IncrementSum { sum, is_new: true }) => UpdateAction::Value(sum.to_be_bytes().to_vec()),
                _ => UpdateAction::Keep,
            }
        })?;
        outcome.map_err(|failure| failure.error(key, 8))
    }

    /// Adds to a number with a fraction in the format of Kyoto Cabinet and Kyoto Tycoon, 16 bytes
    /// ([`FixedPoint`](crate::kyoto::FixedPoint)), and returns the sum. Works as
    /// [`increment_binary`](Records::increment_binary) does, except that infinities as `origin`
    /// take the place of `Set` and `Try`, and that a sum beyond the range is infinite. Also fails
    /// with `Invalid` if the sum is not a number.
    ///
    /// ```
    /// # use todana::{Db, IncrementOrigin, Records};
    /// let db = Db::open("mem:hash")?;
    /// assert_eq!(db.increment_double(b"balance", 1.5, IncrementOrigin::Number(0.0))?, 1.5);
    /// assert_eq!(db.increment_double(b"balance", -3.25, IncrementOrigin::Number(0.0))?, -1.75);
    /// assert!(db.increment_double(b"other", 1.0, f64::NEG_INFINITY.into()).is_err());
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn increment_double(&self, key: &[u8], delta: f64, origin: IncrementOrigin<f64>) -> Result<f64> {
        let mut outcome = Err(SumError::Missing);
        self.update(key, &mut |record| {
            let found = origin.sum(record.map(|record| record.value), delta);
            outcome = found.map(|found| f64::from(found.sum));
            match found {
                Ok(IncrementSum { sum, is_new: true }) => UpdateAction::Value(sum.to_bytes().to_vec()),
                _ => UpdateAction::Keep,
            }
        })?;
        outcome.map_err(|failure| failure.error(key, 16))
    }

    /// Replaces a record if it still has this version, which [`get_record`](Records::get_record)
    /// has returned.
    fn compare_and_set(&self, key: &[u8], value: &[u8], version: u64) -> Result<CompareOutcome> {
        let cas = Store { key, value, compare: Some(version), ..Store::default() };
        query(self, &Operation::Store(cas), |reply| match reply {
            Reply::Stored(_) => Ok(CompareOutcome::Stored),
            Reply::Exists => Ok(CompareOutcome::Changed),
            Reply::NotFound => Ok(CompareOutcome::Missing),
            other => Err(refusal_error(other)),
        })
    }

    /// Replaces a record by `new` (`None`: removes it) if its value is `old` (`None`: if there is
    /// no record). Returns true if it was. Flags and expiry stay.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// # let db = Db::open("mem:hash")?;
    /// assert!(db.compare_and_swap(b"lock", None, Some(b"mine"))?);
    /// assert!(!db.compare_and_swap(b"lock", None, Some(b"theirs"))?);
    /// assert!(db.compare_and_swap(b"lock", Some(b"mine"), None)?);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn compare_and_swap(&self, key: &[u8], old: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        let mut swap = SwapVisitor { old, new, is_equal: false };
        self.visit(key, &mut swap)?;
        Ok(swap.is_equal)
    }

    /// Removes a record. Returns true if it existed.
    fn remove(&self, key: &[u8]) -> Result<bool> {
        let delete = Delete { key, ..Delete::default() };
        query(self, &Operation::Delete(delete), |reply| match reply {
            Reply::Deleted => Ok(true),
            Reply::NotFound => Ok(false),
            other => Err(refusal_error(other)),
        })
    }

    /// Removes a record and returns its value.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// # let db = Db::open("mem:hash")?;
    /// db.set(b"job:1", b"sweep")?;
    /// assert_eq!(db.seize(b"job:1")?, Some(b"sweep".to_vec()));
    /// assert_eq!(db.seize(b"job:1")?, None);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn seize(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut seize = SeizeVisitor(None);
        self.visit(key, &mut seize)?;
        Ok(seize.0)
    }

    /// Sets a new time to live. Returns true if the record exists.
    fn touch(&self, key: &[u8], ttl: Ttl) -> Result<bool> {
        query(self, &Operation::Touch(Touch { key, ttl }), |reply| match reply {
            Reply::Touched => Ok(true),
            Reply::NotFound => Ok(false),
            other => Err(refusal_error(other)),
        })
    }

    /// Calls `update` on a record and applies its decision, atomically: no other thread changes the
    /// record in between. `update` may run more than once, under a lock of the engine: it must be
    /// brief and must not call the database.
    ///
    /// ```
    /// # use todana::{Db, Records, UpdateAction};
    /// # let db = Db::open("mem:hash")?;
    /// db.set(b"name", b"ada")?;
    /// db.update(b"name", &mut |record| match record {
    ///     Some(record) => UpdateAction::Value(record.value.to_ascii_uppercase()),
    ///     None => UpdateAction::Keep,
    /// })?;
    /// assert_eq!(db.get(b"name")?, Some(b"ADA".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn update(&self, key: &[u8], update: &mut dyn FnMut(Option<Record<'_>>) -> UpdateAction) -> Result<()> {
        self.visit(key, &mut UpdateVisitor { update, new: OwnedRecord::default() })
    }

    /// Returns the values of several records, in the order of `keys`. If a record cannot be read,
    /// because it is damaged or the disk fails, returns no values, and the error names the record.
    /// In this case [`get_each`](Records::get_each) returns the other values.
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(key).map_err(|error| with_key(key, &error))).collect()
    }

    /// Returns the values of several records, in the order of `keys`, each with its own error if it
    /// cannot be read. `None` means that there is no such record.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// # let db = Db::open("mem:hash")?;
    /// db.set(b"b", b"2")?;
    /// let mut found = Vec::new();
    /// for value in db.get_each(&[b"a", b"b"]) {
    ///     match value {
    ///         Ok(value) => found.push(value),
    ///         Err(error) => eprintln!("{error}"),
    ///     }
    /// }
    /// assert_eq!(found, [None, Some(b"2".to_vec())]);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn get_each(&self, keys: &[&[u8]]) -> Vec<Result<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(key).map_err(|error| with_key(key, &error))).collect()
    }

    /// Stores several records, one after another. In a transaction they take effect together.
    fn set_many(&self, records: &[(&[u8], &[u8])]) -> Result<()> {
        records.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    /// Removes several records, one after another. Returns how many of them existed.
    fn remove_many(&self, keys: &[&[u8]]) -> Result<usize> {
        keys.iter().try_fold(0, |count, key| Ok(count + usize::from(self.remove(key)?)))
    }
}

impl Records for Transaction<'_> {
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        self.run(command, reply);
        Ok(())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.visit_record(key, visitor)
    }

    fn is_ordered(&self) -> bool {
        self.database().engine().ordered().is_some()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let mut see = live_only(self.database(), false, see);
        self.within(|space| space.engine.scan(from, &mut see))
    }

    fn walk(
        &self,
        direction: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut see = live_only(self.database(), false, see);
        self.within(|space| walk(space.engine, direction, from, &mut see))
    }
}

/// A handle to records that are stored elsewhere and may cease to exist, such as a pointer or a
/// handle of another language. Implements [`Records`] by delegation.
pub trait RecordsHandle {
    /// Calls `run` with the records. Fails if the records no longer exist.
    fn with_records<T>(&self, run: impl FnOnce(&dyn Records) -> Result<T>) -> Result<T>;

    /// Returns true if the database is ordered.
    fn has_order(&self) -> bool {
        self.with_records(|records| Ok(records.is_ordered())).unwrap_or(false)
    }
}

impl<H: RecordsHandle> Records for H {
    #[inline]
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        self.with_records(|records| records.execute(command, reply))
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.with_records(|records| records.visit(key, visitor))
    }

    fn is_ordered(&self) -> bool {
        self.has_order()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.with_records(|records| records.scan(from, see))
    }

    fn walk(
        &self,
        direction: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.with_records(|records| records.walk(direction, from, see))
    }
}

impl<R: Records> RecordsHandle for &R {
    #[inline]
    fn with_records<T>(&self, run: impl FnOnce(&dyn Records) -> Result<T>) -> Result<T> {
        run(*self)
    }
}

impl RecordsHandle for &(dyn Records + '_) {
    #[inline]
    fn with_records<T>(&self, run: impl FnOnce(&dyn Records) -> Result<T>) -> Result<T> {
        run(*self)
    }
}

impl<R: Records> RecordsHandle for Arc<R> {
    #[inline]
    fn with_records<T>(&self, run: impl FnOnce(&dyn Records) -> Result<T>) -> Result<T> {
        run(&**self)
    }
}

/// Wraps `see` so that expired records are skipped. Unless `shows_lists` is true, only the first of
/// several values of a key is shown.
pub(crate) fn live_only<'s>(
    database: &Database,
    shows_lists: bool,
    see: &'s mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> impl FnMut(&[u8], Record<'_>) -> ControlFlow<()> + 's {
    let now = database.now();
    move |key, record| {
        if record.attributes.expiry.is_live(now) {
            see(key, if shows_lists { record } else { record.with_first_value() })
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Scans an ordered engine in the order of its keys.
pub(crate) fn walk(
    engine: &dyn Engine,
    direction: ScanDirection,
    from: Bound<&[u8]>,
    see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> Result<()> {
    match (engine.ordered(), direction) {
        (Some(ordered), ScanDirection::Up) => ordered.ascend(from, see),
        (Some(ordered), ScanDirection::Down) => ordered.descend(from, see),
        (None, _) => Err(crate::db::unordered("ordered iteration is not supported")),
    }
}
