//! Records in the form that users of Kyoto Tycoon know: an expiry that lasts to the end of its
//! second, binary sums, swaps by value.
//!
//! ```text
//! cursor   a position among the records, with a direction
//! dump     writing and reading Kyoto Cabinet's dumps
//! number   numbers of 16 bytes
//! pattern  POSIX regular expressions
//! sum      sums, and the origin of a missing record
//! ```
//!
//! A time is the last second of a record's life, since 1970, as in Kyoto Tycoon; [`NEVER`] is the
//! greatest. Every write sets a new time.

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
use todana_core::{Expiry, Modification, Modify, Operation, Reply, Result, Store, StoreMode, UnixSeconds};

/// The time of a record that never expires: the greatest number of 40 bits.
pub const NEVER: u64 = (1 << 40) - 1;

/// How [`KyotoRecords::increment`] and [`Records::increment_binary`] treat a missing record and an
/// existing number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IncrementOrigin<T> {
    /// A missing record counts as this number.
    Number(T),
    /// A missing record is an error.
    Try,
    /// The sum is the added number itself, whatever number exists. An existing value that is not a
    /// number is an error, and stays.
    Set,
}

impl<T> IncrementOrigin<T> {
    /// Returns the number for a missing record, and true if an existing number is ignored.
    pub fn parts(self) -> (Option<T>, bool) {
        match self {
            IncrementOrigin::Number(number) => (Some(number), false),
            IncrementOrigin::Try => (None, false),
            IncrementOrigin::Set => (None, true),
        }
    }
}

/// Converts as the original does, whose clients send these constants.
impl From<i64> for IncrementOrigin<i64> {
    fn from(number: i64) -> IncrementOrigin<i64> {
        match number {
            i64::MAX => IncrementOrigin::Set,
            i64::MIN => IncrementOrigin::Try,
            number => IncrementOrigin::Number(number),
        }
    }
}

/// Converts infinities to `Set` and `Try`, as the original does.
impl From<f64> for IncrementOrigin<f64> {
    fn from(number: f64) -> IncrementOrigin<f64> {
        match number {
            f64::INFINITY => IncrementOrigin::Set,
            f64::NEG_INFINITY => IncrementOrigin::Try,
            number => IncrementOrigin::Number(number),
        }
    }
}

/// The records of a database in the form that users of Kyoto Tycoon know.
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

/// Returns the expiry of a record with this time.
pub fn expiry_of(time: u64) -> Expiry {
    if time >= NEVER { Expiry::Never } else { Expiry::At(UnixSeconds(time + 1)) }
}

/// Returns the time to live of a record with this time; in a persistent database nothing expires.
pub fn ttl_of(time: u64, is_persistent: bool) -> Ttl {
    if is_persistent || time >= NEVER { Ttl::Never } else { Ttl::At(time + 1) }
}

/// Returns the time of a record, or `None` if it never expires.
pub fn time_of(expiry: Expiry) -> Option<u64> {
    expiry.at().map(|at| at.0.saturating_sub(1).min(NEVER)).filter(|&time| time < NEVER)
}

impl<R: Records> KyotoRecords<R> {
    /// Wraps `records`. If `is_persistent` is true, times are ignored and nothing expires.
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

    /// Stores a record, whether it exists or not.
    pub fn set(&self, key: &[u8], value: &[u8], time: u64) -> Result<()> {
        self.store(StoreMode::Set, key, value, time).map(drop)
    }

    /// Stores a record if there is none. Returns false if there is one.
    pub fn add(&self, key: &[u8], value: &[u8], time: u64) -> Result<bool> {
        self.store(StoreMode::Add, key, value, time)
    }

    /// Stores a record if there is one. Returns false if there is none.
    pub fn replace(&self, key: &[u8], value: &[u8], time: u64) -> Result<bool> {
        self.store(StoreMode::Replace, key, value, time)
    }

    /// Modifies a record and converts the reply.
    fn modify<T>(
        &self,
        key: &[u8],
        ttl: Option<Ttl>,
        change: Modification<'_>,
        mut read: impl FnMut(Reply<'_>) -> Result<T>,
    ) -> Result<T> {
        query(&self.records, &Operation::Modify(Modify { key, ttl, change }), &mut read)
    }

    /// Appends a piece to a value. A missing record gets the piece as its value.
    pub fn append(&self, key: &[u8], piece: &[u8], time: u64) -> Result<()> {
        self.modify(key, Some(self.ttl(time)), Modification::Append(piece), |reply| match reply {
            Reply::Stored(_) => Ok(()),
            other => Err(refusal_error(other)),
        })
    }

    /// Adds to a number of 8 bytes and returns the sum. Returns `None`, and changes nothing, if the
    /// value is not 8 bytes long, if the sum exceeds them, or if there is no record and `origin`
    /// requires one. Adding 0 to an existing number writes nothing.
    pub fn increment(
        &self,
        key: &[u8],
        delta: i64,
        origin: IncrementOrigin<i64>,
        time: u64,
    ) -> Result<Option<i64>> {
        let (initial, overwrites) = origin.parts();
        let change = Modification::AddInteger { delta, initial, overwrites };
        self.modify(key, Some(self.ttl(time)), change, |reply| match reply {
            Reply::Integer(sum) => Ok(Some(sum)),
            Reply::NotStored => Ok(None),
            other => Err(refusal_error(other)),
        })
    }

    /// Adds to a number with a fraction, of 16 bytes ([`FixedPoint`]), under the same conditions. A
    /// sum that is not a number is never stored.
    pub fn increment_double(
        &self,
        key: &[u8],
        delta: f64,
        origin: IncrementOrigin<f64>,
        time: u64,
    ) -> Result<Option<f64>> {
        let (initial, overwrites) = origin.parts();
        let change = Modification::AddReal { delta, initial, overwrites };
        self.modify(key, Some(self.ttl(time)), change, |reply| match reply {
            Reply::Real(sum) => Ok(Some(sum)),
            Reply::NotStored => Ok(None),
            other => Err(refusal_error(other)),
        })
    }

    /// Replaces the value by `new` (`None`: removes the record) if it is `old` (`None`: there is no
    /// record). Returns true if it was.
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        time: u64,
    ) -> Result<bool> {
        let change = Modification::Swap { old, new };
        self.modify(key, Some(self.ttl(time)), change, |reply| match reply {
            Reply::Done => Ok(true),
            Reply::Exists => Ok(false),
            other => Err(refusal_error(other)),
        })
    }

    /// Removes a record. Returns false if there is none.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.records.remove(key)
    }

    /// Calls `see` with a value and its time (`None`: it never expires). Returns true if there is a
    /// record. `see` may run under a lock of the engine: it must be brief and must not call the
    /// database.
    pub fn view(&self, key: &[u8], see: &mut dyn FnMut(&[u8], Option<u64>)) -> Result<bool> {
        self.records.view(key, &mut |record| see(record.value, self.time_of(record.attributes.expiry)))
    }

    /// Removes a record and calls `see` with its value and time (`None`: it never expired). Returns
    /// true if there was a record.
    pub fn seize(&self, key: &[u8], see: &mut dyn FnMut(&[u8], Option<u64>)) -> Result<bool> {
        self.modify(key, None, Modification::Take, |reply| {
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
        // A value that is not a number was overwritten once; it must stay.
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
        // If there was no record, the parts were added, not the numbers: 1 and -0.25 was stored.
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
        // Long ago, so that a step of the clock does not matter.
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
