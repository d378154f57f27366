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

use crate::records::replies::store;
use crate::{Records, Ttl};
use todana_core::{Action, Attributes, Expiry, Record, Result, Store, StoreMode, UnixSeconds, Visitor};

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

/// When a record with this time dies.
pub fn expiry_of(time: u64) -> Expiry {
    expiry(time)
}

fn expiry(time: u64) -> Expiry {
    if time >= NEVER { Expiry::Never } else { Expiry::At(UnixSeconds(time + 1)) }
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

    fn expiry(&self, time: u64) -> Expiry {
        if self.is_persistent { Expiry::Never } else { expiry(time) }
    }

    /// The time of a record; `None` if it never dies, or there are no times here.
    pub fn time_of(&self, expiry: Expiry) -> Option<u64> {
        if self.is_persistent { None } else { time_of(expiry) }
    }

    fn put(&self, mode: StoreMode, key: &[u8], value: &[u8], time: u64) -> Result<bool> {
        let ttl = match self.expiry(time) {
            Expiry::At(at) => Ttl::At(at.0),
            _ => Ttl::Never,
        };
        store(&self.records, &Store { key, value, ttl, mode, ..Store::default() })
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

    /// Puts a piece behind a value; where there is none it becomes the value.
    pub fn append(&self, key: &[u8], piece: &[u8], time: u64) -> Result<()> {
        self.change(key, time, &mut |old, new| {
            new.extend_from_slice(old.unwrap_or_default());
            new.extend_from_slice(piece);
            ValueChange::Put
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
        let mut sum = None;
        self.change(key, time, &mut |old, new| {
            let found = origin.sum(old, delta).ok();
            sum = found.map(|found| found.sum);
            let Some(found) = found.filter(|found| found.is_new) else { return ValueChange::Keep };
            new.extend_from_slice(&found.sum.to_be_bytes());
            ValueChange::Put
        })?;
        Ok(sum)
    }

    /// The same for a number with a fraction, of sixteen bytes ([`Fixed`]). What is no number at all is never stored.
    pub fn increment_double(
        &self,
        key: &[u8],
        delta: f64,
        origin: IncrementOrigin<f64>,
        time: u64,
    ) -> Result<Option<f64>> {
        let mut sum = None;
        self.change(key, time, &mut |old, new| {
            let found = origin.sum(old, delta).ok();
            sum = found.map(|found| f64::from(found.sum));
            let Some(found) = found.filter(|found| found.is_new) else { return ValueChange::Keep };
            new.extend_from_slice(&found.sum.to_bytes());
            ValueChange::Put
        })?;
        Ok(sum)
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
        let mut is_equal = false;
        self.change(key, time, &mut |value, into| {
            is_equal = value == old;
            match new {
                _ if !is_equal => ValueChange::Keep,
                Some(new) => {
                    into.extend_from_slice(new);
                    ValueChange::Put
                }
                None => ValueChange::Remove,
            }
        })?;
        Ok(is_equal)
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

    /// Removes a record and shows its value and time (`None`: it never dies); returns whether there was one. `see` may run under a lock of the
    /// engine, and more than once.
    pub fn seize(&self, key: &[u8], see: &mut dyn FnMut(&[u8], Option<u64>)) -> Result<bool> {
        struct Seize<'s, F> {
            see: &'s mut dyn FnMut(&[u8], Option<u64>),
            time_of: F,
            was_there: bool,
        }
        impl<F: Fn(Expiry) -> Option<u64>> Visitor for Seize<'_, F> {
            fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
                self.was_there = old.is_some();
                let Some(record) = old else { return Action::Keep };
                (self.see)(record.value, (self.time_of)(record.attributes.expiry));
                Action::Remove
            }
        }
        let mut seize = Seize { see, time_of: |expiry| self.time_of(expiry), was_there: false };
        self.records.visit(key, &mut seize)?;
        Ok(seize.was_there)
    }

    /// Does with a record what `decide` says of its value (`None`: there is no record), atomically. It may run more than once; what it
    /// puts is to be in the buffer then, which is empty before. Client flags stay.
    pub fn change(&self, key: &[u8], time: u64, decide: &mut Decision<'_>) -> Result<()> {
        self.records.visit(key, &mut Decide { decide, new: Vec::new(), expiry: self.expiry(time) })
    }
}

/// Decides from a value, which may not be there, and puts what is to take its place in the buffer.
pub type Decision<'d> = dyn FnMut(Option<&[u8]>, &mut Vec<u8>) -> ValueChange + 'd;

/// What [`KyotoRecords::change`] makes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueChange {
    /// It stays as it is.
    Keep,
    /// It gets the value in the buffer.
    Put,
    /// It goes.
    Remove,
}

struct Decide<'d> {
    decide: &'d mut Decision<'d>,
    new: Vec<u8>,
    expiry: Expiry,
}

impl Visitor for Decide<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.new.clear();
        match (self.decide)(old.map(|record| record.value), &mut self.new) {
            ValueChange::Keep => Action::Keep,
            ValueChange::Put => {
                let flags = old.map_or(0, |record| record.attributes.flags);
                let attributes = Attributes { flags, expiry: self.expiry, ..Attributes::default() };
                Action::Put(Record::new(&self.new, attributes))
            }
            ValueChange::Remove => Action::Remove,
        }
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
