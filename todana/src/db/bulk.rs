//! Many records at once: several atomically, all one after the other, all on many threads.

use super::batch::Batch;
use super::{Db, RecordIter};
use crate::{Record, Records, UpdateAction};
use parking_lot::Mutex;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use todana_core::Result;

impl Db {
    /// Runs `update` on each of these records, and does as it says with all of them at once: nobody changes any of them in between, and
    /// others see all of it or nothing. A key that is named twice is shown the second time as the first has left it. It is a small
    /// [transaction](Db::begin), and fails as that does; `update` must not write to the database otherwise.
    ///
    /// ```
    /// # use todana::{Db, Records, UpdateAction};
    /// let db = Db::open("mem:hash")?;
    /// db.set_many(&[(b"left", b"A"), (b"right", b"B")])?;
    /// // Swaps two values.
    /// let mut last = db.get(b"right")?.unwrap_or_default();
    /// db.visit_many(&[b"left", b"right"], &mut |_, record| match record {
    ///     Some(record) => UpdateAction::Value(std::mem::replace(&mut last, record.value.to_vec())),
    ///     None => UpdateAction::Keep,
    /// })?;
    /// assert_eq!((db.get(b"left")?, db.get(b"right")?), (Some(b"B".to_vec()), Some(b"A".to_vec())));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn visit_many(
        &self,
        keys: &[&[u8]],
        update: &mut dyn FnMut(&[u8], Option<Record<'_>>) -> UpdateAction,
    ) -> Result<()> {
        let transaction = self.begin()?;
        for key in keys {
            // Within a transaction a record is shown once.
            transaction.update(key, &mut |record| update(key, record))?;
        }
        transaction.commit()
    }

    /// Runs `update` on every live record and does as it says, each record atomically by itself; returns how many were changed. Records
    /// that come meanwhile are met or not. `update` may run more than once for a record, under a lock of the engine: it must be brief and
    /// must not call the database.
    ///
    /// ```
    /// # use todana::{Db, Records, UpdateAction};
    /// let db = Db::open("mem:hash")?;
    /// db.set_many(&[(b"a", b"1"), (b"b", b""), (b"c", b"3")])?;
    /// let changed = db.update_each(&mut |_, record| match record.value {
    ///     b"" => UpdateAction::Remove,
    ///     b"3" => UpdateAction::Value(b"30".to_vec()),
    ///     _ => UpdateAction::Keep,
    /// })?;
    /// assert_eq!((changed, db.count()), (2, 2));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn update_each(&self, update: &mut dyn FnMut(&[u8], Record<'_>) -> UpdateAction) -> Result<u64> {
        let mut changed = 0;
        for key in self.iter().keys() {
            let (key, mut is_change) = (key?, false);
            self.update(&key, &mut |record| {
                let decided = record.map_or(UpdateAction::Keep, |record| update(&key, record));
                is_change = decided != UpdateAction::Keep;
                decided
            })?;
            changed += u64::from(is_change);
        }
        Ok(changed)
    }

    /// Shows every live record on many threads at once, as many as there are cores if `threads` is `None`; the first error that `see` returns
    /// ends it. What holds for an iterator ([`Records::iter`]) holds here: the threads take turns in fetching batches, no lock is held while
    /// `see` runs, and it may call the database.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicUsize, Ordering};
    /// # use todana::{Db, Records};
    /// let db = Db::open("mem:hash")?;
    /// db.set_many(&[(b"a", b"one"), (b"b", b"three")])?;
    /// let bytes = AtomicUsize::new(0);
    /// db.scan_parallel(None, &|_, record| {
    ///     bytes.fetch_add(record.value.len(), Ordering::Relaxed);
    ///     Ok(())
    /// })?;
    /// assert_eq!(bytes.into_inner(), 8);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn scan_parallel(
        &self,
        threads: Option<usize>,
        see: &(dyn Fn(&[u8], Record<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        deal(self, threads, &|_, key, record| see(key, record), &|_| (), &|()| Ok(()))
    }
}

/// How many threads are meant.
pub(crate) fn thread_count(threads: Option<usize>) -> usize {
    threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get)).max(1)
}

/// What a thread does with each record that it is dealt, beside what it has of its own.
type See<'s, T> = dyn Fn(&mut T, &[u8], Record<'_>) -> Result<()> + Sync + 's;

/// Deals all records out to so many threads, each of which has something of its own, and gives it to `finish` when no records are left.
pub(crate) fn deal<T>(
    records: &(impl Records + Sync),
    threads: Option<usize>,
    see: &See<'_, T>,
    own: &(dyn Fn(usize) -> T + Sync),
    finish: &(dyn Fn(T) -> Result<()> + Sync),
) -> Result<()> {
    let (source, has_failed) = (Mutex::new(RecordIter::new(records)), AtomicBool::new(false));
    let work = |number: usize| -> Result<()> {
        let (mut mine, mut batch) = (own(number), Batch::default());
        while !has_failed.load(Ordering::Relaxed) && source.lock().fill(&mut batch)? {
            batch.iter().try_for_each(|(key, record)| see(&mut mine, key, record))?;
        }
        finish(mine)
    };
    let work = &|number| {
        let outcome = work(number);
        if outcome.is_err() {
            has_failed.store(true, Ordering::Relaxed);
        }
        outcome
    };
    thread::scope(|scope| {
        let mut outcomes = Vec::new();
        let others: Vec<_> = (1..thread_count(threads))
            .map(|number| thread::Builder::new().spawn_scoped(scope, move || work(number)))
            .collect();
        outcomes.push(work(0));
        for other in others {
            outcomes.push(match other {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // The others do its work.
                Err(_) => Ok(()),
            });
        }
        outcomes.into_iter().collect()
    })
}
