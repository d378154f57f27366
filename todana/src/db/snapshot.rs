//! The database as it was at one moment.

use super::Db;
use super::witness::Past;
use crate::database::OnlyLooks;
use crate::records::{living, walk};
use crate::{Records, ScanDirection, get};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Operation, Record, Reply, Result, ScanPosition, Visitor};

/// A database as it was when [`Db::snapshot`] was called, to be read only: by keys, iterators and cursors.
///
/// Others read and write meanwhile. For each record that they change, what it was is kept in memory until the snapshot is dropped. What
/// has expired or been evicted by the engine since is gone here, too. After [`Db::clear`] nothing can be read, and everything fails with
/// `Closed`. Where keys have no order an iterator may show a record twice that has changed meanwhile, the same both times.
pub struct Snapshot {
    db: Db,
    past: Arc<Past>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Snapshot").field(&self.db).finish()
    }
}

impl Db {
    /// A view of the database as it is now, whatever is written later. Waits for a transaction that is open, and for the writes that are
    /// under way; fails with `Busy` if the transaction is this thread's own.
    ///
    /// ```
    /// use todana::{Db, Records};
    ///
    /// let db = Db::open("mem:tree")?;
    /// db.set_many(&[(b"a", b"1"), (b"b", b"2")])?;
    /// let snapshot = db.snapshot()?;
    /// db.set(b"a", b"10")?;
    /// db.remove(b"b")?;
    /// db.set(b"c", b"30")?;
    /// let records: Vec<_> = snapshot.iter().collect::<todana::Result<_>>()?;
    /// assert_eq!(records, [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())]);
    /// assert!(snapshot.set(b"a", b"x").is_err());
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn snapshot(&self) -> Result<Snapshot> {
        let database = self.database();
        let held = database.begin(self.lane())?;
        let past = self.0.witness.open();
        // Whoever has begun to write without knowing of it is turned away before they may go on.
        database.engine().wait_for_visits();
        held.abort();
        Ok(Snapshot { db: self.clone(), past })
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.db.0.witness.close(&self.past);
    }
}

impl Snapshot {
    /// Shows changed and unchanged records in one walk; a place is the key after which the next call goes on.
    fn scan_in_order(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let from = match &from {
            Some(ScanPosition::Key(key)) => Bound::Excluded(&key[..]),
            _ => Bound::Unbounded,
        };
        let mut last = None;
        self.walk(ScanDirection::Up, from, &mut |key, record| {
            let flow = see(key, record);
            if flow.is_break() {
                last = Some(ScanPosition::Key(key.into()));
            }
            flow
        })?;
        Ok(last)
    }

    fn must_be_there(&self) -> Result<()> {
        if self.past.is_lost() {
            let message = format!("database \"{}\" was cleared since the snapshot was taken", self.db.name());
            return Err(Error::new(ErrorKind::Closed, message));
        }
        Ok(())
    }

    fn look(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let database = self.db.database();
        let now = database.now();
        let (mut was, mut found) = (self.past.get(key), false);
        if was.is_none() {
            database.engine().peek(key, &mut |record| {
                // Under the record's lock: either it has not changed, or what it was is there by now.
                was = self.past.get(key);
                found = was.is_none() && record.attributes.expiry.is_live(now);
                if found {
                    see(record);
                }
            })?;
            if !found && was.is_none() {
                // It may have been removed in between.
                was = self.past.get(key);
            }
        }
        if let Some(Some(was)) = &was
            && was.record().attributes.expiry.is_live(now)
        {
            found = true;
            see(was.record());
        }
        self.must_be_there()?;
        Ok(found)
    }
}

impl Records for Snapshot {
    /// Only what reads; all else fails with `Invalid`.
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        let Operation::Get(get) = command else { return Err(read_only()) };
        if get.touch.is_some() || get.vivify.is_some() {
            return Err(read_only());
        }
        let now = self.db.database().now();
        if !self.look(get.key, &mut |record| reply(Reply::Hit(get::unchanged(record, now))))? {
            reply(Reply::Miss);
        }
        Ok(())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let mut looks = OnlyLooks { inner: visitor, has_refused: false };
        let found = self.look(key, &mut |record| {
            looks.visit(Some(record));
        })?;
        if !found {
            looks.visit(None);
        }
        if looks.has_refused { Err(read_only()) } else { Ok(()) }
    }

    fn is_ordered(&self) -> bool {
        self.db.is_ordered()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        if self.is_ordered() {
            return self.scan_in_order(from, see);
        }
        let mut see = living(self.db.database(), see);
        // The unchanged records come first, with numbers as places, then the changed ones, with keys as places.
        let from = match from {
            Some(ScanPosition::Key(key)) => key,
            place => {
                let next = self.db.database().engine().scan(place, &mut |key, record| {
                    if self.past.get(key).is_some() { ControlFlow::Continue(()) } else { see(key, record) }
                })?;
                self.must_be_there()?;
                if next.is_some() {
                    return Ok(next);
                }
                Arc::default()
            }
        };
        let mut from = Bound::Included(from.to_vec());
        while let Some((key, was)) = self.past.next(from.as_ref().map(Vec::as_slice), Bound::Unbounded, true)
        {
            if see(&key, was.record()).is_break() {
                // The next key that there can be.
                return Ok(Some(ScanPosition::Key([&key[..], &[0]].concat().into())));
            }
            from = Bound::Excluded(key.into());
        }
        self.must_be_there()?;
        Ok(None)
    }

    fn walk(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (is_up, mut flow) = (heading == ScanDirection::Up, ControlFlow::Continue(()));
        let mut see = living(self.db.database(), see);
        let mut at = from.map(<[u8]>::to_vec);
        walk(self.db.database().engine(), heading, from, &mut |key, record| {
            // What lies before it and has been removed since.
            while let Some((other, was)) =
                self.past.next(at.as_ref().map(Vec::as_slice), Bound::Excluded(key), is_up)
            {
                flow = see(&other, was.record());
                at = Bound::Excluded(other.into());
                if flow.is_break() {
                    return flow;
                }
            }
            flow = match self.past.get(key) {
                Some(Some(was)) => see(key, was.record()),
                Some(None) => ControlFlow::Continue(()),
                None => see(key, record),
            };
            at = Bound::Excluded(key.to_vec());
            flow
        })?;
        while flow.is_continue()
            && let Some((other, was)) =
                self.past.next(at.as_ref().map(Vec::as_slice), Bound::Unbounded, is_up)
        {
            flow = see(&other, was.record());
            at = Bound::Excluded(other.into());
        }
        self.must_be_there()
    }
}

fn read_only() -> Error {
    Error::new(ErrorKind::Invalid, "a snapshot cannot be written to")
}
