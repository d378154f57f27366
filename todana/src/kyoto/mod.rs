//! Records as Kyoto Tycoon's users mean them: an expiry that lasts to the end of its second, sums in binary, swaps by value.
//!
//! ```text
//! cursor   a place among the records, with a direction
//! dump     Kyoto Cabinet's dumps, to a file and from one
//! number   sums of 8 and of 16 bytes
//! pattern  regular expressions of POSIX
//! sum      what is added to, and what a missing record begins with
//! ```
//!
//! A time is the last second in which a record lives, since 1970, as Kyoto Tycoon counts; [`NEVER`] is its greatest.
//! Every write gives a record a new one.

mod cursor;
mod dump;
mod number;
mod pattern;
mod sum;
mod unread;

pub use cursor::{CursorEntry, KyotoCursor};
pub use dump::{DumpFailure, DumpWriter, SeeDumped, read_dump};
pub use number::Fixed;
pub use pattern::translate;
pub(crate) use sum::{Sum, SumFailure};
pub use unread::UnreadBytes;

use crate::records::replies::{query, record_of, refusal_error, store};
use crate::{Records, Ttl};
use todana_core::{Expiry, Modification, Modify, Operation, Reply, Result, Store, StoreMode, UnixSeconds};

/// The time of what never expires: the greatest of 40 bits.
pub const NEVER: u64 = (1 << 40) - 1;

/// What [`KyotoRecords::increment`] and [`Records::increment_binary`] do where there is no record, or what counts besides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IncrementOrigin<T> {
    /// It starts from this number.
    Number(T),
    /// It fails.
    Try,
    /// It stores the number that was to be added, whatever number was there; what is no number stays, and it fails.
    Set,
}

impl<T> IncrementOrigin<T> {
    /// Returns the number that a missing record begins with, and true if the number that is there is overwritten.
    pub fn parts(self) -> (Option<T>, bool) {
        match self {
            IncrementOrigin::Number(number) => (Some(number), false),
            IncrementOrigin::Try => (None, false),
            IncrementOrigin::Set => (None, true),
        }
    }
}

/// The borders stand for the words, as in the original: clients send its constants.
impl From<i64> for IncrementOrigin<i64> {
    fn from(number: i64) -> IncrementOrigin<i64> {
        match number {
            i64::MAX => IncrementOrigin::Set,
            i64::MIN => IncrementOrigin::Try,
            number => IncrementOrigin::Number(number),
        }
    }
}

/// Infinities stand for the words.
impl From<f64> for IncrementOrigin<f64> {
    fn from(number: f64) -> IncrementOrigin<f64> {
        match number {
            f64::INFINITY => IncrementOrigin::Set,
            f64::NEG_INFINITY => IncrementOrigin::Try,
            number => IncrementOrigin::Number(number),
        }
    }
}

/// The records of a database, as Kyoto Tycoon's users mean them.
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

/// The time of a record, `None` if it never dies.
pub fn time_of(expiry: Expiry) -> Option<u64> {
    expiry.at().map(|at| at.0.saturating_sub(1).min(NEVER)).filter(|&time| time < NEVER)
}

impl<R: Records> KyotoRecords<R> {
    /// The records of `records`. `is_persistent`: times are ignored there, and nothing expires.
    pub fn new(records: R, is_persistent: bool) -> KyotoRecords<R> {
        KyotoRecords { records, is_persistent }
    }

    /// What is below.
    pub fn records(&self) -> &R {
        &self.records
    }

    /// Returns the time to live of a record with this time.
    fn ttl(&self, time: u64) -> Ttl {
        ttl_of(time, self.is_persistent)
    }

    /// The time of a record; `None` if it never dies, or there are no times here.
    pub fn time_of(&self, expiry: Expiry) -> Option<u64> {
        if self.is_persistent { None } else { time_of(expiry) }
    }

    fn put(&self, mode: StoreMode, key: &[u8], value: &[u8], time: u64) -> Result<bool> {
        store(&self.records, &Store { key, value, ttl: self.ttl(time), mode, ..Store::default() })
    }

    /// Stores a record, whatever is there.
    pub fn set(&self, key: &[u8], value: &[u8], time: u64) -> Result<()> {
        self.put(StoreMode::Set, key, value, time).map(drop)
    }

    /// Stores a record where there is none; false if there is one.
    pub fn add(&self, key: &[u8], value: &[u8], time: u64) -> Result<bool> {
        self.put(StoreMode::Add, key, value, time)
    }

    /// Stores a record where there is one; false if there is none.
    pub fn replace(&self, key: &[u8], value: &[u8], time: u64) -> Result<bool> {
        self.put(StoreMode::Replace, key, value, time)
    }

    /// Changes a record by its value, and reads the reply.
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

    /// Adds to a number of eight bytes and returns the sum. `None`, with nothing changed, where what is there is not eight bytes long,
    /// the sum would need more, or there is none and `origin` asks for one. Nothing is written to add 0 to what is there.
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

    /// The same for a number with a fraction, of sixteen bytes ([`Fixed`]). What is no number at all is never stored.
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

    /// Where the value is `old` (`None`: where there is no record) it becomes `new` (`None`: the record is removed); returns whether it
    /// was so.
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

    /// Removes a record; false if there is none.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.records.remove(key)
    }

    /// Shows a value and its time (`None`: it never dies); returns whether there is one. `see` may run under a lock of the engine: it
    /// must be brief and must not call the database.
    pub fn view(&self, key: &[u8], see: &mut dyn FnMut(&[u8], Option<u64>)) -> Result<bool> {
        self.records.view(key, &mut |record| see(record.value, self.time_of(record.attributes.expiry)))
    }

    /// Removes a record and shows its value and time (`None`: it never dies); returns whether there was one.
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
    fn a_sum_of_eight_bytes_keeps_its_range() {
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
        // It was overwritten once: what is no number stays, whatever is asked.
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
    fn a_sum_with_a_fraction_is_stored_as_the_original_does() {
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
        // Where there was no record the parts were added, not the numbers: 1 and -0.25 was stored.
        records.increment_double(b"f", -0.75, IncrementOrigin::Number(1.5), NEVER).unwrap();
        assert_eq!(stored(b"f"), "00000000000000000002aa1efb94e000");
    }

    #[test]
    fn a_swap_by_value_knows_absence() {
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
    fn a_write_gives_a_new_time_and_an_append_makes_what_is_mortal_immortal() {
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
    fn a_record_lives_to_the_end_of_its_second() {
        let db = db();
        let now = db.database().now().0;
        let records = KyotoRecords::new(&db, false);
        // Long past, whatever the clock does meanwhile.
        records.set(b"dead", b"", now - 1).unwrap();
        assert!(!records.view(b"dead", &mut |_, _| ()).unwrap());
        let mut stored = None;
        records.set(b"k", b"", now + 100).unwrap();
        db.view(b"k", &mut |record| stored = record.attributes.expiry.at()).unwrap();
        assert_eq!(stored, Some(UnixSeconds(now + 101)));
    }

    #[test]
    fn a_persistent_database_knows_no_times() {
        let db = db();
        let records = KyotoRecords::new(&db, true);
        records.set(b"k", b"v", 5).unwrap();
        let mut seen = None;
        assert!(records.view(b"k", &mut |value, at| seen = Some((value.to_vec(), at))).unwrap());
        assert_eq!(seen, Some((b"v".to_vec(), None)));
    }
}
