//! What can be done with the records of a database, in a program's own words: on the database and within a transaction alike.

pub(crate) mod replies;
mod visitors;

use crate::Database;
use crate::db::{ClosestKeys, KeySymbols, RecordCursor, RecordIter};
use crate::kyoto::{IncrementOrigin, Sum, SumFailure};
use crate::transaction::Transaction;
use replies::{ask, found, of_key, refused, store};
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;
use todana_core::{
    Attributes, Delete, Engine, Error, ErrorKind, Expiry, Get, Operation, Record, Reply, ReplyNeeds, Result,
    ScanPosition, Store, StoreMode, Touch, Ttl, Visitor,
};
use visitors::{Seize, Swap, TextSum, Updater, Wrong};

/// A record of one's own: a value and what rides with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedRecord {
    /// The value.
    pub value: Vec<u8>,
    /// The client's flags.
    pub flags: u32,
    /// When it dies.
    pub expiry: Expiry,
    /// The version, where it was asked for; else the one that was shown last, 0 if none was.
    pub version: u64,
}

impl OwnedRecord {
    pub(crate) fn of(record: Record<'_>) -> OwnedRecord {
        let Attributes { flags, expiry, version, .. } = record.attributes;
        OwnedRecord { value: record.value.to_vec(), flags, expiry, version }
    }
}

/// What a compare-and-set has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOutcome {
    /// It was still the same, and is replaced.
    Stored,
    /// Somebody has changed it since.
    Changed,
    /// It is not there.
    Missing,
}

/// What [`Records::update`] shall do with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateAction {
    /// Leave it.
    Keep,
    /// Give it this value; flags and expiry stay.
    Value(Vec<u8>),
    /// Replace it, flags and expiry included.
    Record(OwnedRecord),
    /// Remove it.
    Remove,
}

/// Which way to go through records in the order of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanDirection {
    /// From the first to the last.
    Up,
    /// From the last to the first.
    Down,
}

/// What can be done with records, on a [`Db`](crate::Db) and within a [`Transaction`] alike.
///
/// Expired records are not there. Keys and values are any bytes. All methods fail with `Full` where there is no room and nothing
/// may be evicted, with `Invalid` for keys and values longer than any engine takes, with `Corrupt` where the record's bytes on disk are damaged, with
/// `Unavailable` where the database is kept on disk and the disk cannot be read or written, and writes with `Busy` where the thread has a
/// transaction open that they are not part of.
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
    /// Runs a command; `reply` is called once, perhaps under a lock of the engine: it shall not call the database.
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()>;

    /// Runs a visitor on a record, atomically; it sees no expired record. The only way in which anything is written.
    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()>;

    /// Whether keys have an order here, so that [`walk`](Records::walk) and what stands on it go.
    fn is_ordered(&self) -> bool;

    /// Shows the live records from `from` (the start: `None`) on, in an order of the engine's own, until `see` breaks; returns where to go
    /// on, `None` at the end. A record that is there throughout is shown at least once, whatever is written meanwhile. `see` may
    /// be shown a few more after it has broken, which are not shown again. It may run under a lock of the engine: it must be brief and must not
    /// call the database. [`iter`](Records::iter) has none of these rules.
    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>>;

    /// Shows the live records from a key on in the order of their keys, until `see` breaks. Fails with `Invalid` where keys have no
    /// order. `see` may run under a lock of the engine: it must be brief and must not call the database.
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
    /// assert!(Db::open("mem:hash")?.walk(ScanDirection::Up, Bound::Unbounded, &mut |_, _| ControlFlow::Continue(())).is_err());
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn walk(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// A cursor, which stands nowhere at first.
    fn cursor(&self) -> RecordCursor<&Self>
    where
        Self: Sized,
    {
        RecordCursor::new(self)
    }

    /// All records, in the order of their keys if they have one. They are fetched in batches: no lock is held while the caller works,
    /// who may write meanwhile.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])?;
    /// for record in db.iter() {
    ///     let (key, value) = record?;
    ///     db.set(&key, &[value.as_slice(), b"0"].concat())?;
    /// }
    /// let values: Vec<_> = db.iter().rev().map(|record| record.map(|(_, value)| value)).collect::<todana::Result<_>>()?;
    /// assert_eq!(values, [b"30", b"20", b"10"]);
    /// # Ok::<(), todana::Error>(())
    /// ```
    fn iter(&self) -> RecordIter<&Self>
    where
        Self: Sized,
    {
        RecordIter::new(self)
    }

    /// The records whose keys lie in a range, in their order. Fails with `Invalid` where they have none.
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

    /// The records whose keys begin with `prefix`. Where keys have no order all of them are looked at.
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

    /// The keys that begin with `prefix`, at most `limit` of them; the first ones where keys have an order. Where they have none all are
    /// looked at.
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

    /// The keys in which a regular expression (of the crate [`regex`](https://docs.rs/regex), over bytes) matches somewhere, at most `limit` of
    /// them, in the order of the keys if they have one. All keys are looked at, in time proportional to their length whatever the
    /// pattern is. Fails with `Invalid` for a pattern that is none, or too large.
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
            let message = format!("\"{pattern}\" is no regular expression: {error}");
            Error::new(ErrorKind::Invalid, message)
        })?;
        let matches = |key: &Result<Vec<u8>>| key.as_ref().map_or(true, |key| regex.is_match(key));
        self.iter().keys().filter(matches).take(limit).collect()
    }

    /// The keys that are most like `key`, at most `limit` of them, with their distance from it: the fewest symbols to insert, remove or
    /// replace that make the one of the other, at most `distance_max`. The best come first, those alike in the order of their bytes. All
    /// keys are looked at.
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

    /// The value of a record.
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

    /// Shows a record where it lies, without a copy; returns whether there is one. `see` may run under a lock of the engine: it must be
    /// brief and must not call the database.
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
        ask(self, &Operation::Get(get), |reply| Ok(found(reply)?.map(&mut *see).is_some()))
    }

    /// A record with its attributes and a version, by which [`compare_and_set`](Records::compare_and_set) tells whether it has
    /// changed. The first time costs a write, as a version is made only when it is asked for.
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
        ask(self, &Operation::Get(get), |reply| Ok(found(reply)?.map(OwnedRecord::of)))
    }

    /// Whether there is such a record. Does not count as a use of it.
    fn contains(&self, key: &[u8]) -> Result<bool> {
        let look = Get { key, silent: true, ..Get::default() };
        ask(self, &Operation::Get(look), |reply| Ok(found(reply)?.is_some()))
    }

    /// Stores a record, whatever was there; it stays until it is removed.
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

    /// Stores a record if there is none; returns whether it did.
    fn add(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.add_with(key, value, Ttl::Never, 0)
    }

    /// The same with a time to live and flags.
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

    /// Replaces a record if there is one, flags and expiry included; returns whether there was.
    fn replace(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.replace_with(key, value, Ttl::Never, 0)
    }

    /// The same with a time to live and flags.
    fn replace_with(&self, key: &[u8], value: &[u8], ttl: Ttl, flags: u32) -> Result<bool> {
        store(self, &Store { key, value, ttl, flags, mode: StoreMode::Replace, ..Store::default() })
    }

    /// Puts a piece behind a value; makes the record if there is none.
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

    /// Puts a piece before a value; makes the record if there is none.
    fn prepend(&self, key: &[u8], piece: &[u8]) -> Result<()> {
        let vivify = Some(Ttl::Never);
        let prepend = Store { key, value: piece, mode: StoreMode::Prepend, vivify, ..Store::default() };
        store(self, &prepend).map(|_| ())
    }

    /// Adds to a decimal number, which may be negative, and returns the sum. Where there is none it is `initial`, to which nothing is
    /// added; without that it fails with `Invalid`, as it does for what is no number or when the sum leaves the range of 64 bits.
    fn increment(&self, key: &[u8], delta: i64, initial: Option<i64>) -> Result<i64> {
        let mut sum = TextSum { delta, initial, outcome: Err(Wrong::Missing), text: String::new() };
        self.visit(key, &mut sum)?;
        sum.outcome.map_err(|wrong| {
            let key = key.escape_ascii();
            let message = match wrong {
                Wrong::Missing => format!("there is no record \"{key}\" to add to"),
                Wrong::NoNumber => format!("the value of \"{key}\" is no number of 64 bits"),
                Wrong::Range => format!("the sum at \"{key}\" leaves the range of 64 bits"),
            };
            Error::new(ErrorKind::Invalid, message)
        })
    }

    /// Adds to a number as Kyoto Cabinet and Kyoto Tycoon store it, 8 bytes with the most significant first, and returns the sum.
    /// Without a record, `origin` is the number to add to. `IncrementOrigin::Set` stores `delta` itself, whatever number was there, and
    /// `IncrementOrigin::Try` requires a record. In place of them, [`i64::MAX`] and [`i64::MIN`] may be given, as Kyoto Cabinet has it. Flags
    /// and expiry stay. Adding 0 to a number that is there writes nothing. Fails with `Invalid`, and changes nothing, if the value is
    /// not 8 bytes long, the sum leaves the range of 64 bits, or there is no record to try.
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
        let mut outcome = Err(SumFailure::Missing);
        self.update(key, &mut |record| {
            let found = origin.sum(record.map(|record| record.value), delta);
            outcome = found.map(|found| found.sum);
            match found {
                Ok(Sum { sum, is_new: true }) => UpdateAction::Value(sum.to_be_bytes().to_vec()),
                _ => UpdateAction::Keep,
            }
        })?;
        outcome.map_err(|failure| failure.error(key, 8))
    }

    /// Adds to a number with a fraction as Kyoto Cabinet and Kyoto Tycoon store it, in 16 bytes ([`Fixed`](crate::kyoto::Fixed)), and
    /// returns the sum. All else is as with [`increment_binary`](Records::increment_binary); the words are infinities as `origin`,
    /// and a sum beyond the range is infinite. Fails with `Invalid` for a sum that is not a number, too.
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
        let mut outcome = Err(SumFailure::Missing);
        self.update(key, &mut |record| {
            let found = origin.sum(record.map(|record| record.value), delta);
            outcome = found.map(|found| f64::from(found.sum));
            match found {
                Ok(Sum { sum, is_new: true }) => UpdateAction::Value(sum.to_bytes().to_vec()),
                _ => UpdateAction::Keep,
            }
        })?;
        outcome.map_err(|failure| failure.error(key, 16))
    }

    /// Replaces a record if it is still of this version ([`get_record`](Records::get_record)).
    fn compare_and_set(&self, key: &[u8], value: &[u8], version: u64) -> Result<CompareOutcome> {
        let cas = Store { key, value, compare: Some(version), ..Store::default() };
        ask(self, &Operation::Store(cas), |reply| match reply {
            Reply::Stored(_) => Ok(CompareOutcome::Stored),
            Reply::Exists => Ok(CompareOutcome::Changed),
            Reply::NotFound => Ok(CompareOutcome::Missing),
            other => Err(refused(other)),
        })
    }

    /// Puts `new` (`None`: nothing) in the place of a record if its value is `old` (`None`: if there is none); returns
    /// whether it was. Flags and expiry stay.
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
        let mut swap = Swap { old, new, is_equal: false };
        self.visit(key, &mut swap)?;
        Ok(swap.is_equal)
    }

    /// Removes a record; returns whether there was one.
    fn remove(&self, key: &[u8]) -> Result<bool> {
        let delete = Delete { key, ..Delete::default() };
        ask(self, &Operation::Delete(delete), |reply| match reply {
            Reply::Deleted => Ok(true),
            Reply::NotFound => Ok(false),
            other => Err(refused(other)),
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
        let mut seize = Seize(None);
        self.visit(key, &mut seize)?;
        Ok(seize.0)
    }

    /// Gives a record a new time to live; returns whether there is one.
    fn touch(&self, key: &[u8], ttl: Ttl) -> Result<bool> {
        ask(self, &Operation::Touch(Touch { key, ttl }), |reply| match reply {
            Reply::Touched => Ok(true),
            Reply::NotFound => Ok(false),
            other => Err(refused(other)),
        })
    }

    /// Runs `update` on a record and does as it says, atomically: nobody changes the record in between. `update` may run more than once,
    /// under a lock of the engine: it must be brief and must not call the database.
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
        self.visit(key, &mut Updater { update, new: OwnedRecord::default() })
    }

    /// The values of several records, in the order of the keys. The first one that cannot be read, as it is damaged or the disk does not
    /// answer, is named in the error, and no values are returned: [`get_each`](Records::get_each) has the others.
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(key).map_err(|error| of_key(key, &error))).collect()
    }

    /// The values of several records, in the order of the keys, each with an error of its own if it cannot be read. `None` says that there is
    /// no such record, and never that it is not known.
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
        keys.iter().map(|key| self.get(key).map_err(|error| of_key(key, &error))).collect()
    }

    /// Stores several records, one after the other. Within a transaction they are stored as one.
    fn set_many(&self, records: &[(&[u8], &[u8])]) -> Result<()> {
        records.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    /// Removes several records, one after the other; returns how many there were.
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
        let mut see = living(self.database(), see);
        self.within(|space| space.engine.scan(from, &mut see))
    }

    fn walk(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut see = living(self.database(), see);
        self.within(|space| walk(space.engine, heading, from, &mut see))
    }
}

/// Stands for records that are elsewhere, and may be gone: a pointer, a handle of another language. It implements [`Records`] by way of
/// them.
pub trait RecordsHandle {
    /// Runs with the records. Fails if they are gone.
    fn with_records<T>(&self, run: impl FnOnce(&dyn Records) -> Result<T>) -> Result<T>;

    /// Returns true if their keys have an order.
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
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.with_records(|records| records.walk(heading, from, see))
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

/// Shows `see` no expired record.
pub(crate) fn living<'s>(
    database: &Database,
    see: &'s mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> impl FnMut(&[u8], Record<'_>) -> ControlFlow<()> + 's {
    let now = database.now();
    move |key, record| {
        if record.attributes.expiry.is_live(now) { see(key, record) } else { ControlFlow::Continue(()) }
    }
}

/// Goes through an engine in the order of its keys.
pub(crate) fn walk(
    engine: &dyn Engine,
    heading: ScanDirection,
    from: Bound<&[u8]>,
    see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> Result<()> {
    match (engine.ordered(), heading) {
        (Some(ordered), ScanDirection::Up) => ordered.ascend(from, see),
        (Some(ordered), ScanDirection::Down) => ordered.descend(from, see),
        (None, _) => Err(crate::db::unordered("there is no going through it from key to key")),
    }
}
