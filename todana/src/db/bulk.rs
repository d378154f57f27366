//! Operations on many records: several records atomically, all records one after another, or all
//! records on many threads.

use super::batch::RecordBatch;
use super::{Db, RecordIter};
use crate::{Record, Records, UpdateAction};
use parking_lot::Mutex;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use todana_core::Result;

impl Db {
    /// Calls `update` for each of these records and applies all its decisions together: no other
    /// thread changes any of them in between, and others see all changes or none. A key that is
    /// given twice is shown the second time as the first call has left it. This is a small
    /// [transaction](Db::begin) and fails as one does; `update` must not write to the database
    /// itself.
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
    /// assert_eq!(db.get(b"left")?, Some(b"B".to_vec()));
    /// assert_eq!(db.get(b"right")?, Some(b"A".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn visit_many(
        &self,
        keys: &[&[u8]],
        update: &mut dyn FnMut(&[u8], Option<Record<'_>>) -> UpdateAction,
    ) -> Result<()> {
        let transaction = self.begin()?;
        for key in keys {
            // A transaction calls the function only once for a record.
            transaction.update(key, &mut |record| update(key, record))?;
        }
        transaction.commit()
    }

    /// Calls `update` for every live record and applies its decision, atomically for each record.
    /// Returns the number of records changed. Records added in the meantime may be shown. `update`
    /// may run more than once for a record, under a lock of the engine: it must be brief and must
    /// not call the database.
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

    /// Calls `see` for every live record, on `threads` threads or on as many as there are cores.
    /// The first error that `see` returns ends the scan. The guarantees of an iterator
    /// ([`Records::iter`]) hold: the threads fetch batches in turn, no lock is held while `see`
    /// runs, and it may call the database.
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
        distribute(self, threads, &|_, key, record| see(key, record), &|_| (), &|()| Ok(()))
    }
}

/// Returns the number of threads to use.
pub(crate) fn thread_count(threads: Option<usize>) -> usize {
    threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get)).max(1)
}

/// Receives a record, together with the state of the thread that runs it.
type RecordHandler<'s, T> = dyn Fn(&mut T, &[u8], Record<'_>) -> Result<()> + Sync + 's;

/// Distributes all records over `threads` threads. Each thread has its own state, which `own`
/// creates. When no records are left, `finish` receives the state.
pub(crate) fn distribute<T>(
    records: &(impl Records + Sync),
    threads: Option<usize>,
    see: &RecordHandler<'_, T>,
    own: &(dyn Fn(usize) -> T + Sync),
    finish: &(dyn Fn(T) -> Result<()> + Sync),
) -> Result<()> {
    let (source, has_failed) = (Mutex::new(RecordIter::new(records)), AtomicBool::new(false));
    let work = |number: usize| -> Result<()> {
        let (mut mine, mut batch) = (own(number), RecordBatch::default());
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
                // If a thread cannot be started, the others do its work.
                Err(_) => Ok(()),
            });
        }
        outcomes.into_iter().collect()
    })
}
