//! Operations on records with the semantics of Kyoto Tycoon: a record lives to the end of the
//! second at which it expires, sums are stored in binary, and swaps compare values.
//!
//! ```text
//! cursor   a cursor that moves when it reads or removes
//! dump     writes and reads Kyoto Cabinet's dumps
//! number   numbers of 16 bytes with a fraction
//! pattern  POSIX regular expressions
//! sum      sums, and their start value if the record is missing
//! ```
//!
//! The time of a record is the last second (since 1970) in which it is live, as in Kyoto Tycoon.
//! The highest time, [`NEVER`], means that the record never expires. Every write sets a new time.

mod cursor;
mod dump;
mod number;
mod pattern;
mod sum;
mod unread;

pub use cursor::{CursorEntry, KyotoCursor};
pub use dump::{DumpFailure, DumpWriter, SeeDumped, read_dump};
pub use number::FixedPoint;
pub use pattern::translate;
pub(crate) use sum::{IncrementSum, SumError};
pub use unread::UnreadBytes;

use crate::records::replies::{self, query, record_of, refusal_error};
use crate::{Records, Ttl};
use todana_core::{Expiry, Modify, Operation, Reply, Result, Store, StoreMode, UnixSeconds, ValueChange};

/// The time of a record that never expires: the highest number of 40 bits.
pub const NEVER: u64 = (1 << 40) - 1;

/// The number to which [`KyotoRecords::increment`] and [`Records::increment_binary`] add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IncrementOrigin<T> {
    /// The stored number. If the record is missing, this number instead.
    Number(T),
    /// The stored number. If the record is missing, the operation fails.
    Try,
    /// Zero: the result is the added number itself, and a stored number is ignored. If a stored
    /// value is not a number, the operation fails and the value stays.
    Set,
}

impl<T> IncrementOrigin<T> {
    /// Returns the start number for a missing record, if one is allowed, and true if a stored
    /// number is ignored.
    pub fn parts(self) -> (Option<T>, bool) {
        match self {
            IncrementOrigin::Number(number) => (Some(number), false),
            IncrementOrigin::Try => (None, false),
            IncrementOrigin::Set => (None, true),
        }
    }
}

/// Converts the constants that clients of Kyoto Tycoon send, as the original does.
impl From<i64> for IncrementOrigin<i64> {
    fn from(number: i64) -> IncrementOrigin<i64> {
        match number {
            i64::MAX => IncrementOrigin::Set,
            i64::MIN => IncrementOrigin::Try,
            number => IncrementOrigin::Number(number),
        }
    }
}

/// Converts positive infinity to `Set` and negative infinity to `Try`, as the original does.
impl From<f64> for IncrementOrigin<f64> {
    fn from(number: f64) -> IncrementOrigin<f64> {
        match number {
            f64::INFINITY => IncrementOrigin::Set,
            f64::NEG_INFINITY => IncrementOrigin::Try,
            number => IncrementOrigin::Number(number),
        }
    }
}

/// The records of a database, with operations that have the semantics of Kyoto Tycoon.
///
/// ```
/// use todana::kyoto::{KyotoRecords, NEVER, IncrementOrigin};
/// use todana::{Db, Records};
///
/// let db = Db::open("mem:tree")?;
/// let records = KyotoRecords::new(&db, false);
/// assert_eq!(records.increment(b"visits", 5, IncrementOrigin::Number(0), NEVER)?, Some(5));
/// assert_eq!(db.get(b"visits")?, Some(5i64.to_be_bytes().to_vec()));
/// records.set(b"token", b"x", 2_000_000_000)?;
/// let mut time = None;
/// records.view(b"token", &mut |_, at| time = at)?;
/// assert_eq!(time, Some(2_000_000_000));
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct KyotoRecords<R> {
    records: R,
    is_persistent: bool,
}

/// Converts the time of a record to an expiry.
pub fn expiry_of(time: u64) -> Expiry {
    if time >= NEVER { Expiry::Never } else { Expiry::At(UnixSeconds(time + 1)) }
}

/// Converts the time of a record to a time to live. In a persistent database records never expire.
pub fn ttl_of(time: u64, is_persistent: bool) -> Ttl {
    if is_persistent || time >= NEVER { Ttl::Never } else { Ttl::At(time + 1) }
}

/// Returns the time of a record, or `None` if it never expires.
pub fn time_of(expiry: Expiry) -> Option<u64> {
    expiry.at().map(|at| at.0.saturating_sub(1).min(NEVER)).filter(|&time| time < NEVER)
}

impl<R: Records> KyotoRecords<R> {
    /// Wraps `records`. If `is_persistent` is true, times are ignored and records never expire.
    pub fn new(records: R, is_persistent: bool) -> KyotoRecords<R> {
        KyotoRecords { records, is_persistent }
    }

    /// Returns the wrapped records.
    pub fn records(&self) -> &R {
        &self.records
    }

    /// Returns the time to live of a record with this time.
    fn ttl(&self, time: u64) -> Ttl {
        ttl_of(time, self.is_persistent)
    }

    /// Returns the time of a record, or `None` if it never expires or times are ignored.
    pub fn time_of(&self, expiry: Expiry) -> Option<u64> {
        if self.is_persistent { None } else { time_of(expiry) }
    }

    fn store(&self, mode: StoreMode, key: &[u8], value: &[u8], time: u64) -> Result<bool> {
        replies::store(&self.records, &Store { key, value, ttl: self.ttl(time), mode, ..Store::default() })
    }

    /// Stores a record. An existing one is replaced.
    pub fn set(&self, key: &[u8], value: &[u8], time: u64) -> Result<()> {
        self.store(StoreMode::Set, key, value, time).map(drop)
    }

    /// Stores a record unless it exists. Returns false if it exists.
    pub fn add(&self, key: &[u8], value: &[u8], time: u64) -> Result<bool> {
        self.store(StoreMode::Add, key, value, time)
    }

    /// Replaces a record if it exists. Returns false if it does not.
    pub fn replace(&self, key: &[u8], value: &[u8], time: u64) -> Result<bool> {
        self.store(StoreMode::Replace, key, value, time)
    }

    /// Modifies a record and converts the reply.
    fn modify<T>(
        &self,
        key: &[u8],
        ttl: Option<Ttl>,
        change: ValueChange<'_>,
        mut read: impl FnMut(Reply<'_>) -> Result<T>,
    ) -> Result<T> {
        query(&self.records, &Operation::Modify(Modify { key, ttl, change }), &mut read)
    }

    /// Appends `piece` to the value of a record. A missing record is created with `piece` as its
    /// value.
    pub fn append(&self, key: &[u8], piece: &[u8], time: u64) -> Result<()> {
        self.modify(key, Some(self.ttl(time)), ValueChange::Append(piece), |reply| match reply {
            Reply::Stored(_) => Ok(()),
            other => Err(refusal_error(other)),
        })
    }

    /// Adds to a number of 8 bytes and returns the sum. Adding 0 to an existing number writes
    /// nothing. Returns `None` and changes nothing if the value is not 8 bytes long, if the sum
    /// does not fit into 8 bytes, or if the record is missing and `origin` requires it.
    pub fn increment(
        &self,
        key: &[u8],
        delta: i64,
        origin: IncrementOrigin<i64>,
        time: u64,
    ) -> Result<Option<i64>> {
        let (initial, overwrites) = origin.parts();
        let change = ValueChange::AddInteger { delta, initial, overwrites };
        self.modify(key, Some(self.ttl(time)), change, |reply| match reply {
            Reply::Integer(sum) => Ok(Some(sum)),
            Reply::NotStored => Ok(None),
            other => Err(refusal_error(other)),
        })
    }

    /// Adds to a number of 16 bytes, which has a fraction ([`FixedPoint`]), under the same
    /// conditions as [`increment`](Self::increment). If the sum is not a number, it is not stored.
    pub fn increment_double(
        &self,
        key: &[u8],
        delta: f64,
        origin: IncrementOrigin<f64>,
        time: u64,
    ) -> Result<Option<f64>> {
        let (initial, overwrites) = origin.parts();
        let change = ValueChange::AddReal { delta, initial, overwrites };
        self.modify(key, Some(self.ttl(time)), change, |reply| match reply {
            Reply::Real(sum) => Ok(Some(sum)),
            Reply::NotStored => Ok(None),
            other => Err(refusal_error(other)),
        })
    }

    /// Replaces the value of a record by `new` if the value is `old`. If `old` is `None`, the
    /// record must not exist; if `new` is `None`, the record is removed. Returns true if the
    /// condition held.
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        time: u64,
    ) -> Result<bool> {
        let change = ValueChange::Swap { old, new };
        self.modify(key, Some(self.ttl(time)), change, |reply| match reply {
            Reply::Done => Ok(true),
            Reply::Exists => Ok(false),
            other => Err(refusal_error(other)),
        })
    }

    /// Removes a record. Returns false if it does not exist.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.records.remove(key)
    }

    /// Calls `see` with the value and the time of a record (`None`: it never expires). Returns true
    /// if the record exists. `see` may run under a lock of the engine, so it must be brief and must
    /// not call the database.
    pub fn view(&self, key: &[u8], see: &mut dyn FnMut(&[u8], Option<u64>)) -> Result<bool> {
        self.records.view(key, &mut |record| see(record.value, self.time_of(record.attributes.expiry)))
    }

    /// Removes a record, and calls `see` with its value and its time (`None`: it never expired).
    /// Returns true if the record existed.
    pub fn seize(&self, key: &[u8], see: &mut dyn FnMut(&[u8], Option<u64>)) -> Result<bool> {
        self.modify(key, None, ValueChange::Take, |reply| {
            let record = record_of(reply)?;
            if let Some(record) = record {
                see(record.value, self.time_of(record.attributes.expiry));
            }
            Ok(record.is_some())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Db;

    fn db() -> Db {
        Db::open("mem:hash").unwrap()
    }

    #[test]
    fn eight_byte_sum_stays_in_range() {
        let db = db();
        let records = KyotoRecords::new(&db, false);
        let add = |delta, origin| records.increment(b"n", delta, origin, NEVER).unwrap();
        assert_eq!(add(1, IncrementOrigin::Try), None);
        assert_eq!(db.count(), 0);
        assert_eq!(add(5, IncrementOrigin::Number(10)), Some(15));
        assert_eq!(add(-7, IncrementOrigin::Number(10)), Some(8));
        assert_eq!(add(-9, IncrementOrigin::Try), Some(-1));
        assert_eq!(db.get(b"n").unwrap().unwrap(), [0xFF; 8]);
        assert_eq!(add(i64::MAX, IncrementOrigin::Set), Some(i64::MAX));
        assert_eq!(add(1, IncrementOrigin::Number(0)), None);
        assert_eq!(add(0, IncrementOrigin::Number(0)), Some(i64::MAX));
        db.set(b"n", b"seven").unwrap();
        assert_eq!(add(0, IncrementOrigin::Number(0)), None);
        // Such a value was once overwritten.
        assert_eq!(add(3, IncrementOrigin::Set), None);
        assert_eq!(db.get(b"n").unwrap().unwrap(), b"seven");
        db.remove(b"n").unwrap();
        assert_eq!(add(3, i64::MIN.into()), None);
        assert_eq!(add(3, i64::MAX.into()), Some(3));
        assert_eq!(add(4, i64::MAX.into()), Some(4));
    }

    #[test]
    fn adding_nothing_reads_and_keeps_the_time() {
        let db = db();
        let records = KyotoRecords::new(&db, false);
        records.increment(b"n", 5, IncrementOrigin::Number(0), 2_000_000_000).unwrap();
        assert_eq!(records.increment(b"n", 0, IncrementOrigin::Number(0), NEVER).unwrap(), Some(5));
        let mut time = None;
        let mut see = |_: &[u8], at| time = at;
        assert!(records.view(b"n", &mut see).unwrap());
        assert_eq!(time, Some(2_000_000_000));
        assert_eq!(records.increment(b"n", 1, IncrementOrigin::Number(0), NEVER).unwrap(), Some(6));
        records.view(b"n", &mut |_, at| time = at).unwrap();
        assert_eq!(time, None);
    }

    #[test]
    fn fraction_sum_is_stored_like_the_original() {
        let db = db();
        let records = KyotoRecords::new(&db, false);
        let add = |key: &[u8], delta| {
            records.increment_double(key, delta, IncrementOrigin::Number(0.0), NEVER).unwrap()
        };
        let stored = |key: &[u8]| {
            let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            db.get(key).unwrap().map(hex).unwrap_or_default()
        };
        assert_eq!((add(b"a", 1.5), &*stored(b"a")), (Some(1.5), "00000000000000010001c6bf52634000"));
        assert_eq!((add(b"a", -3.25), &*stored(b"a")), (Some(-1.75), "fffffffffffffffe0000e35fa931a000"));
        add(b"b", 0.25);
        assert_eq!((add(b"b", -0.5), &*stored(b"b")), (Some(-0.25), "0000000000000000ffff1ca056ce6000"));
        assert_eq!(
            (add(b"c", f64::INFINITY), &*stored(b"c")),
            (Some(f64::INFINITY), "7fffffffffffffff0000000000000000")
        );
        assert_eq!(add(b"c", f64::NEG_INFINITY), Some(f64::INFINITY));
        assert_eq!(
            (add(b"d", f64::NEG_INFINITY), &*stored(b"d")),
            (Some(f64::NEG_INFINITY), "80000000000000000000000000000000")
        );
        assert_eq!((add(b"e", f64::NAN), &*stored(b"e")), (None, ""));
        // If the record was missing, the parts of both numbers were once added separately, so that
        // 1 and -0.25 was stored.
        records.increment_double(b"f", -0.75, IncrementOrigin::Number(1.5), NEVER).unwrap();
        assert_eq!(stored(b"f"), "00000000000000000002aa1efb94e000");
    }

    #[test]
    fn value_swap_handles_a_missing_record() {
        let db = db();
        let records = KyotoRecords::new(&db, false);
        let swap = |old, new| records.compare_and_swap(b"k", old, new, NEVER).unwrap();
        assert!(swap(None, None));
        assert!(!swap(Some(b""), Some(b"x")));
        assert!(swap(None, Some(b"x")));
        assert!(!swap(None, Some(b"y")));
        assert!(swap(Some(b"x"), Some(b"y")));
        assert!(swap(Some(b"y"), None));
        assert_eq!(db.count(), 0);
    }

    #[test]
    fn write_sets_a_new_time() {
        let db = db();
        let records = KyotoRecords::new(&db, false);
        let time = || {
            let mut time = Some(1);
            records.view(b"k", &mut |_, at| time = at).unwrap();
            time
        };
        records.set(b"k", b"a", 3_000_000_000).unwrap();
        assert_eq!(time(), Some(3_000_000_000));
        assert!(records.replace(b"k", b"a", NEVER - 1).unwrap() && !records.add(b"k", b"b", 1).unwrap());
        assert_eq!(time(), Some(NEVER - 1));
        records.append(b"k", b"bc", NEVER).unwrap();
        assert_eq!((time(), db.get(b"k").unwrap().unwrap()), (None, b"abc".to_vec()));
        let mut seized = Vec::new();
        assert!(records.seize(b"k", &mut |value, _| seized = value.to_vec()).unwrap());
        assert!(!records.seize(b"k", &mut |_, _| ()).unwrap());
        assert_eq!((seized, records.remove(b"k").unwrap()), (b"abc".to_vec(), false));
    }

    #[test]
    fn record_lives_to_the_end_of_its_second() {
        let db = db();
        let now = db.database().now().0;
        let records = KyotoRecords::new(&db, false);
        // The record expired long ago, so that a step of the clock during the test does no harm.
        records.set(b"dead", b"", now - 1).unwrap();
        assert!(!records.view(b"dead", &mut |_, _| ()).unwrap());
        let mut stored = None;
        records.set(b"k", b"", now + 100).unwrap();
        db.view(b"k", &mut |record| stored = record.attributes.expiry.at()).unwrap();
        assert_eq!(stored, Some(UnixSeconds(now + 101)));
    }

    #[test]
    fn persistent_database_ignores_times() {
        let db = db();
        let records = KyotoRecords::new(&db, true);
        records.set(b"k", b"v", 5).unwrap();
        let mut seen = None;
        assert!(records.view(b"k", &mut |value, at| seen = Some((value.to_vec(), at))).unwrap());
        assert_eq!(seen, Some((b"v".to_vec(), None)));
    }
}
