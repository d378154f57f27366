//! Snapshots: read-only views of a database at one moment.

use super::Db;
use super::snapshot_tracker::SnapshotDelta;
use crate::database::{AllowedChanges, RestrictedVisitor};
use crate::records::{live_only, walk};
use crate::{Records, ScanDirection, get};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Operation, Record, Reply, Result, ScanPosition, Visitor};

/// A database as it was when [`Db::snapshot`] was called. It can be read by key, by iterator and by
/// cursor.
///
/// Other threads read and write in the meantime. Before a record changes, its old state is copied
/// to memory, where it stays until the snapshot is dropped. Records that have expired, or that the
/// engine has evicted, disappear from the snapshot too. After [`Db::clear`] all reads fail with
/// `Closed`. In an unordered database, an iterator may yield a record twice if the record was
/// changed or moved during the iteration; both have the same contents.
pub struct Snapshot {
    db: Db,
    delta: Arc<SnapshotDelta>,
    /// True if iterations show all values of a key instead of the first.
    shows_lists: bool,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Snapshot").field(&self.db).finish()
    }
}

impl Db {
    /// Returns a view of the database as it is now, which later writes do not change. Waits for the
    /// end of an open transaction and of writes in progress. Fails with `Busy` if this thread has
    /// the open transaction.
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
        let held = database.begin(self.worker_counters())?;
        let delta = self.0.tracker.open();
        // Visits that began before the snapshot was registered do not copy old records, so they
        // must end first.
        database.engine().wait_for_visits();
        held.abort();
        Ok(Snapshot { db: self.clone(), delta, shows_lists: false })
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.db.0.tracker.close(&self.delta);
    }
}

impl Snapshot {
    /// Returns the database of the snapshot, as it is now.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Returns the snapshot so that iterations show all values of a key instead of the first.
    pub(super) fn with_lists(self) -> Arc<Snapshot> {
        let mut snapshot = self;
        snapshot.shows_lists = true;
        Arc::new(snapshot)
    }

    /// Passes changed and unchanged records to `see` in the order of their keys. A position is the
    /// key after which the next call continues.
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

    fn check_not_cleared(&self) -> Result<()> {
        if self.delta.is_lost() {
            let message =
                format!("snapshot of \"{}\": the database was cleared after the snapshot", self.db.name());
            return Err(Error::new(ErrorKind::Closed, message));
        }
        Ok(())
    }

    fn read(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let database = self.db.database();
        let now = database.now();
        let (mut was, mut found) = (self.delta.get(key), false);
        if was.is_none() {
            database.engine().peek(key, &mut |record| {
                // This runs under the record's lock. Either the record is unchanged, or its old
                // state is already in the delta.
                was = self.delta.get(key);
                found = was.is_none() && record.attributes.expiry.is_live(now);
                if found {
                    see(record);
                }
            })?;
            if !found && was.is_none() {
                // The record may have been removed between the two reads.
                was = self.delta.get(key);
            }
        }
        if let Some(Some(was)) = &was
            && was.record().attributes.expiry.is_live(now)
        {
            found = true;
            see(was.record());
        }
        self.check_not_cleared()?;
        Ok(found)
    }
}

impl Records for Snapshot {
    /// Executes a read. Any other operation fails with `Invalid`.
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        let Operation::Get(get) = command else { return Err(read_only()) };
        if get.touch.is_some() || get.vivify.is_some() {
            return Err(read_only());
        }
        let now = self.db.database().now();
        if !self
            .read(get.key, &mut |record| reply(Reply::Hit(get::unchanged(record.with_first_value(), now))))?
        {
            reply(Reply::Miss);
        }
        Ok(())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let mut reader = RestrictedVisitor::new(visitor, AllowedChanges::ReadsOnly);
        let found = self.read(key, &mut |record| {
            let is_list_seen = reader.sees_value_list();
            reader.visit(Some(if is_list_seen { record } else { record.with_first_value() }));
        })?;
        if !found {
            reader.visit(None);
        }
        if reader.has_refused { Err(read_only()) } else { Ok(()) }
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
        let mut see = live_only(self.db.database(), self.shows_lists, see);
        // Unchanged records come first, at the positions of the engine. Changed records follow, at
        // positions that are keys.
        let from = match from {
            Some(ScanPosition::Key(key)) => key,
            mut place => loop {
                let mut flow = ControlFlow::Continue(());
                place = self.db.database().engine().scan(place, &mut |key, record| {
                    if self.delta.get(key).is_none() {
                        flow = see(key, record);
                    }
                    flow
                })?;
                self.check_not_cleared()?;
                match place {
                    None => break Arc::default(),
                    Some(_) if flow.is_break() => return Ok(place),
                    Some(_) => {}
                }
            },
        };
        let mut from = Bound::Included(from.to_vec());
        while let Some((key, was)) = self.delta.next(from.as_ref().map(Vec::as_slice), Bound::Unbounded, true)
        {
            if see(&key, was.record()).is_break() {
                // This is the least key after `key`.
                return Ok(Some(ScanPosition::Key([&key[..], &[0]].concat().into())));
            }
            from = Bound::Excluded(key.into());
        }
        self.check_not_cleared()?;
        Ok(None)
    }

    fn walk(
        &self,
        direction: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (is_up, mut flow) = (direction == ScanDirection::Up, ControlFlow::Continue(()));
        let mut see = live_only(self.db.database(), self.shows_lists, see);
        let mut at = from.map(<[u8]>::to_vec);
        walk(self.db.database().engine(), direction, from, &mut |key, record| {
            // These records come before the current one and have been removed since the snapshot.
            while let Some((other, was)) =
                self.delta.next(at.as_ref().map(Vec::as_slice), Bound::Excluded(key), is_up)
            {
                flow = see(&other, was.record());
                at = Bound::Excluded(other.into());
                if flow.is_break() {
                    return flow;
                }
            }
            flow = match self.delta.get(key) {
                Some(Some(was)) => see(key, was.record()),
                Some(None) => ControlFlow::Continue(()),
                None => see(key, record),
            };
            at = Bound::Excluded(key.to_vec());
            flow
        })?;
        while flow.is_continue()
            && let Some((other, was)) =
                self.delta.next(at.as_ref().map(Vec::as_slice), Bound::Unbounded, is_up)
        {
            flow = see(&other, was.record());
            at = Bound::Excluded(other.into());
        }
        self.check_not_cleared()
    }
}

fn read_only() -> Error {
    Error::new(ErrorKind::Invalid, "snapshot: is read-only")
}
