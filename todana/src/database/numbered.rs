//! Keys of a database of numbered records: converts the ways to write a number to its canonical
//! key, and resolves the keys `min`, `max`, `prev` and `next`.
//!
//! A key is canonical if it consists of digits without a leading zero. In any other key, as in
//! Tokyo Cabinet, characters other than digits are skipped: `007` and `a7b` both mean 7. Keys are
//! resolved before a visit, so engines, update logs and replicas receive only canonical keys.

use super::visits::{VisitGuarantee, VisitedRecord};
use super::{Database, GROUP_RECORDS};
use crate::counters::WorkerCounters;
use crate::transaction::EngineView;
use crate::{Db, Records, ScanDirection};
use std::cell::Cell;
use std::ops::{ControlFlow, RangeInclusive};
use todana_core::{
    Action, Error, ErrorKind, NumberedEngine, Record, Result, UnixSeconds, Visitor, key_of_number,
    number_of_key,
};

/// The record that a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResolvedKey {
    /// The record with this number.
    Number(u64),
    /// A new record with this number.
    New(u64),
    /// No record, because no record can have this key.
    None,
}

/// Returns the number that the digits of a key form. Returns `None` if the key has no digits, or if
/// the number is 0 or too high.
fn number_of_digits(key: &[u8]) -> Option<u64> {
    let mut digits = key.iter().filter(|byte| byte.is_ascii_digit());
    let number = digits
        .try_fold(0u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?;
    (number > 0).then_some(number)
}

/// Returns the number of the first live record in the given direction.
fn first_live(engine: &dyn NumberedEngine, is_descending: bool, now: UnixSeconds) -> Result<Option<u64>> {
    let mut found = None;
    engine.walk_numbers(1..=engine.number_max(), is_descending, &mut |number, record| {
        if !record.attributes.expiry.is_live(now) {
            return ControlFlow::Continue(());
        }
        found = Some(number);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

fn resolve(engine: &dyn NumberedEngine, key: &[u8], now: UnixSeconds) -> Result<ResolvedKey> {
    let last = |is_descending| first_live(engine, is_descending, now);
    let existing = |number: Option<u64>| number.map_or(ResolvedKey::None, ResolvedKey::Number);
    Ok(match key {
        b"min" => existing(last(false)?),
        b"max" => existing(last(true)?),
        b"prev" => match last(false)? {
            Some(number) if number > 1 => ResolvedKey::New(number - 1),
            _ => ResolvedKey::None,
        },
        b"next" => ResolvedKey::New(last(true)?.unwrap_or(0).saturating_add(1)),
        _ => existing(number_of_digits(key)),
    })
}

/// Passes a visit on to another visitor only if the record does not exist.
struct NewRecordVisitor<'v> {
    visitor: &'v mut dyn Visitor,
    is_taken: bool,
}

impl Visitor for NewRecordVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_taken = old.is_some();
        if self.is_taken { Action::Keep } else { self.visitor.visit(None) }
    }

    fn sees_value_list(&self) -> bool {
        self.visitor.sees_value_list()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.visitor.applied(now);
    }
}

impl Database {
    /// Returns true if the keys of this database are numbers and this key is not canonical.
    #[inline]
    pub(super) fn must_resolve(&self, key: &[u8]) -> bool {
        self.is_numbered && number_of_key(key).is_none()
    }

    /// Returns the number of a key in a database of numbered records. Returns `None` if no record
    /// can have this key, or if the records of this database have no numbers. `min` and `max` are
    /// the lowest and the highest number of a record. For `prev` and `next`, returns the number
    /// that a new record would get now.
    ///
    /// ```
    /// use todana::{Db, Records};
    ///
    /// let db = Db::open("mem:fixed#width=8")?;
    /// db.set(b"7", b"seven")?;
    /// db.set(b"next", b"eight")?;
    /// let number = |key: &[u8]| db.database().number_of(key);
    /// assert_eq!((number(b"min")?, number(b"max")?), (Some(7), Some(8)));
    /// assert_eq!((number(b"next")?, number(b"007")?, number(b"none")?), (Some(9), Some(7), None));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn number_of(&self, key: &[u8]) -> Result<Option<u64>> {
        let Some(engine) = self.engine.numbered() else { return Ok(None) };
        if let Some(number) = number_of_key(key) {
            return Ok(Some(number));
        }
        Ok(match resolve(engine, key, self.now())? {
            ResolvedKey::Number(number) | ResolvedKey::New(number) => Some(number),
            ResolvedKey::None => None,
        })
    }

    /// Returns the canonical form of a key. If no record can have the key, returns the key itself.
    #[cold]
    pub(super) fn resolved<'k>(
        &self,
        space: EngineView<'_>,
        key: &'k [u8],
        now: UnixSeconds,
        text: &'k mut [u8; 20],
    ) -> Result<&'k [u8]> {
        let Some(engine) = space.engine.numbered() else { return Ok(key) };
        Ok(match resolve(engine, key, now)? {
            ResolvedKey::Number(number) | ResolvedKey::New(number) => key_of_number(number, text),
            ResolvedKey::None => key,
        })
    }

    /// Runs a visitor on the record that a key means. For `prev` and `next` the visitor sees no
    /// record. If another writer stores a record with the chosen number first, the visitor runs
    /// again with the next number.
    #[cold]
    pub(super) fn visit_resolved(
        &self,
        space: EngineView<'_>,
        guarantee: VisitGuarantee,
        worker_counters: &WorkerCounters,
        key: &[u8],
        now: UnixSeconds,
        visitor: &mut dyn Visitor,
    ) -> Result<VisitedRecord> {
        let mut text = [0; 20];
        loop {
            let resolved = match space.engine.numbered() {
                Some(engine) => resolve(engine, key, now)?,
                None => ResolvedKey::None,
            };
            match resolved {
                ResolvedKey::Number(number) => {
                    let key = key_of_number(number, &mut text);
                    return self.visit_canonical(space, guarantee, worker_counters, key, now, visitor);
                }
                ResolvedKey::None => {
                    return self.visit_canonical(space, guarantee, worker_counters, key, now, visitor);
                }
                ResolvedKey::New(number) => {
                    let key = key_of_number(number, &mut text);
                    let mut new = NewRecordVisitor { visitor: &mut *visitor, is_taken: false };
                    let met = self.visit_canonical(space, guarantee, worker_counters, key, now, &mut new)?;
                    if !new.is_taken {
                        return Ok(met);
                    }
                }
            }
        }
    }

    /// Passes the live records with numbers in a range to `see`, in ascending or descending order,
    /// until `see` breaks. The guarantees of [`NumberedEngine`] hold. Fails with `Invalid` if the
    /// keys are not numbers.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use todana::{Db, Records, ScanDirection};
    ///
    /// let db = Db::open("mem:fixed")?;
    /// for key in [b"10", b"20", b"30"] {
    ///     db.set(key, b"value")?;
    /// }
    /// let mut numbers = Vec::new();
    /// db.database().walk_numbers(ScanDirection::Down, 1..=25, &mut |number, _record| {
    ///     numbers.push(number);
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(numbers, [20, 10]);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn walk_numbers(
        &self,
        heading: ScanDirection,
        numbers: RangeInclusive<u64>,
        see: &mut dyn FnMut(u64, Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (mut numbers, has_broken) = (numbers, Cell::new(false));
        loop {
            let group = &mut |number, record: Record<'_>| {
                let outcome = see(number, record);
                has_broken.set(outcome.is_break());
                outcome
            };
            numbers = match (self.walk_numbers_group(heading, numbers.clone(), group)?, heading) {
                (Some(last), ScanDirection::Up) if !has_broken.get() => last + 1..=*numbers.end(),
                (Some(last), ScanDirection::Down) if !has_broken.get() => *numbers.start()..=last - 1,
                _ => return Ok(()),
            };
        }
    }

    /// Does the same as [`walk_numbers`](Self::walk_numbers) with a bounded number of records, of
    /// which expired ones count too. Returns the number after which to continue, or `None` at the
    /// end.
    pub fn walk_numbers_group(
        &self,
        heading: ScanDirection,
        numbers: RangeInclusive<u64>,
        see: &mut dyn FnMut(u64, Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<u64>> {
        let Some(engine) = self.engine.numbered() else {
            return Err(Error::new(ErrorKind::Invalid, "the keys of this database are not numbers"));
        };
        let now = self.now();
        self.flush_if_due(now);
        let _no_commit = self.transaction_lock().block_commits();
        let (mut seen, mut last) = (0, None);
        engine.walk_numbers(numbers, heading == ScanDirection::Down, &mut |number, record| {
            seen += 1;
            let is_live = record.attributes.expiry.is_live(now);
            if is_live && see(number, record).is_break() || seen == GROUP_RECORDS {
                last = Some(number);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(last)
    }
}

impl Db {
    /// Returns the numbers and values of the live records in a range, at most `records_max` of
    /// them, in ascending or descending order. Fails with `Invalid` if the keys are not numbers.
    ///
    /// ```
    /// use todana::{Db, ScanDirection};
    ///
    /// let db = Db::open("mem:fixed")?;
    /// for value in [b"a", b"b", b"c"] {
    ///     db.add_numbered(ScanDirection::Up, value)?;
    /// }
    /// let found = db.numbered_records(ScanDirection::Down, 2..=10, 1)?;
    /// assert_eq!(found, [(3, b"c".to_vec())]);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn numbered_records(
        &self,
        heading: ScanDirection,
        numbers: RangeInclusive<u64>,
        records_max: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut found = Vec::new();
        self.database().walk_numbers(heading, numbers, &mut |number, record| {
            if found.len() == records_max {
                return ControlFlow::Break(());
            }
            found.push((number, record.value.to_vec()));
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// Stores a value under a new number and returns the number: the one after the highest for
    /// `Up`, the one before the lowest for `Down`. Fails with `Invalid` if the keys are not
    /// numbers, if there is no such number, or if the value is longer than the width; otherwise as
    /// [`Records::add`] does.
    ///
    /// ```
    /// use todana::{Db, ScanDirection};
    ///
    /// let db = Db::open("mem:fixed")?;
    /// assert_eq!(db.add_numbered(ScanDirection::Up, b"first")?, 1);
    /// assert_eq!(db.add_numbered(ScanDirection::Up, b"second")?, 2);
    /// assert!(db.add_numbered(ScanDirection::Down, b"none").is_err());
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn add_numbered(&self, heading: ScanDirection, value: &[u8]) -> Result<u64> {
        let word: &[u8] = if heading == ScanDirection::Up { b"next" } else { b"prev" };
        let mut text = [0; 20];
        loop {
            let Some(number) = self.database().number_of(word)? else {
                let message = "the keys of this database are not numbers, or there is no lower number";
                return Err(Error::new(ErrorKind::Invalid, message));
            };
            // Another thread may have stored a record with this number meanwhile.
            if self.add(key_of_number(number, &mut text), value)? {
                return Ok(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_a_key_form_its_number() {
        let numbers = [&b"7"[..], b"007", b"a7b", b"1-0", b"", b"x", b"0", b"000", b"18446744073709551616"];
        let expected = [Some(7), Some(7), Some(7), Some(10), None, None, None, None, None];
        assert_eq!(numbers.map(number_of_digits), expected);
    }

    fn databases() -> Vec<(tempfile::TempDir, Db)> {
        let names = ["mem:fixed#width=8", "mem:fixed", "x.fixed"];
        let open = |name: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            let db = Db::open(if name.starts_with("mem") { name } else { path.to_str().unwrap() }).unwrap();
            (folder, db)
        };
        names.into_iter().map(open).collect()
    }

    fn keys(db: &Db) -> Vec<Vec<u8>> {
        db.iter().keys().map(|key| key.unwrap()).collect()
    }

    #[test]
    fn words_mean_the_ends_and_their_neighbours() {
        for (_folder, db) in databases() {
            for key in ["min", "max", "prev", "0", "word", ""] {
                assert_eq!(db.set(key.as_bytes(), b"x").unwrap_err().kind(), ErrorKind::Invalid, "{key}");
                assert_eq!(db.get(key.as_bytes()).unwrap(), None);
            }
            db.set(b"0010", b"ten").unwrap();
            db.set(b"next", b"eleven").unwrap();
            db.set(b"prev", b"nine").unwrap();
            assert_eq!(db.get(b"max").unwrap().as_deref(), Some(&b"eleven"[..]));
            assert_eq!(db.get(b"min").unwrap().as_deref(), Some(&b"nine"[..]));
            assert_eq!((db.get(b"next").unwrap(), db.get(b"prev").unwrap()), (None, None));
            db.append(b"a10", b"+").unwrap();
            assert_eq!(db.get(b"10").unwrap().as_deref(), Some(&b"ten+"[..]));
            assert!(db.remove(b"max").unwrap());
            assert_eq!(keys(&db), [b"9".to_vec(), b"10".to_vec()]);
        }
    }

    #[test]
    fn transaction_resolves_words_among_its_changes() {
        for (_folder, db) in databases() {
            db.set(b"9", b"nine").unwrap();
            let transaction = db.begin().unwrap();
            for expected in [10, 11] {
                transaction.set(b"next", b"new").unwrap();
                assert_eq!(
                    transaction.get(format!("{expected}").as_bytes()).unwrap().as_deref(),
                    Some(&b"new"[..])
                );
            }
            transaction.remove(b"min").unwrap();
            assert_eq!(transaction.get(b"min").unwrap().as_deref(), Some(&b"new"[..]));
            assert_eq!(db.get(b"max").unwrap().as_deref(), Some(&b"nine"[..]));
            transaction.commit().unwrap();
            assert_eq!(keys(&db), [b"10".to_vec(), b"11".to_vec()]);
        }
    }

    #[test]
    fn concurrent_new_records_have_different_numbers() {
        for (_folder, db) in databases() {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..100).for_each(|_| db.append(b"next", b"1").unwrap()));
                }
            });
            let values: Vec<_> = db.iter().map(|record| record.unwrap()).collect();
            assert_eq!(values.len(), 400);
            assert!(
                values.iter().zip(1..).all(|((key, value), number)| {
                    *key == format!("{number}").into_bytes() && value == b"1"
                })
            );
        }
    }

    #[test]
    fn numbers_are_walked_in_both_directions() {
        for (_folder, db) in databases() {
            (1..=1000).for_each(|number| db.set(format!("{}", number * 3).as_bytes(), b"v").unwrap());
            for heading in [ScanDirection::Up, ScanDirection::Down] {
                let mut found = Vec::new();
                let mut see = |number, _: Record<'_>| {
                    found.push(number);
                    ControlFlow::Continue(())
                };
                db.database().walk_numbers(heading, 10..=2000, &mut see).unwrap();
                let mut expected: Vec<u64> = (4..=666).map(|number| number * 3).collect();
                if heading == ScanDirection::Down {
                    expected.reverse();
                }
                assert_eq!(found, expected);
            }
            assert_eq!(db.database().number_of(b"next").unwrap(), Some(3001));
        }
    }
}
