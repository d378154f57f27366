//! Copies records from one database to others: merges, copies, and text files.

use super::batch::CopiedRecord;
use super::{Db, DbOptions, RecordIter};
use crate::data_directory::{StagedDirectory, refuse_overlap};
use crate::disk::SystemDisk;
use crate::open::{DatabaseName, DatabaseStorage};
use crate::{Records, ScanDirection, tsv};
use std::io::{self, BufRead, Read, Write};
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;
use todana_core::{
    Action, Attributes, Error, ErrorKind, Expiry, Operation, Record, Reply, Result, ScanPosition, Visitor,
};

/// The most records, and the most bytes, that are written together: as one entry of the update log,
/// with one wait for the disk.
const RECORDS_AT_ONCE: usize = 1000;
const BYTES_AT_ONCE: usize = 4 << 20;
/// An upper bound of the length of a line: the longest key and value with each byte escaped.
const LINE_LEN_MAX: u64 = 6 << 30;

/// How to treat an existing record when another database is merged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergePolicy {
    /// Replaces existing records and adds missing ones.
    #[default]
    Set,
    /// Keeps existing records and adds missing ones.
    Add,
    /// Replaces existing records and adds no others.
    Replace,
    /// Appends the value to that of an existing record, which keeps its flags and expiry, and adds
    /// missing records.
    Append,
}

/// The result of [`Db::load`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSummary {
    /// The number of records that were stored.
    pub stored: u64,
    /// The number of records that were skipped because they had expired.
    pub expired: u64,
}

impl Db {
    /// Adds the records of other databases to this one, one database after the other, with flags,
    /// expiry and all values of a key. Returns the number of records added. The others may be
    /// written in the meantime; such writes may or may not be included. Fails with `Invalid` if one
    /// of them is this database, or if a key has several values and this database is no tree;
    /// records added before stay.
    ///
    /// ```
    /// use todana::{Db, MergePolicy, Records};
    ///
    /// let all = Db::open("mem:tree")?;
    /// let (monday, tuesday) = (Db::open("mem:hash")?, Db::open("mem:hash")?);
    /// monday.set_many(&[(b"log", b"started "), (b"a", b"1")])?;
    /// tuesday.set(b"log", b"stopped")?;
    /// assert_eq!(all.merge(&[&monday, &tuesday], MergePolicy::Append)?, 3);
    /// assert_eq!(all.get(b"log")?, Some(b"started stopped".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn merge(&self, sources: &[&Db], mode: MergePolicy) -> Result<u64> {
        if sources.iter().any(|source| Arc::ptr_eq(&source.0, &self.0)) {
            return Err(Error::new(ErrorKind::Invalid, "merge: a database cannot be merged into itself"));
        }
        let mut merged = 0;
        for source in sources {
            // A value must not be appended twice, so the order must be one in which a record that
            // is changed meanwhile keeps its place.
            let is_stable = mode == MergePolicy::Append;
            let records = RecordIter::new(StoredRecords { db: source, is_stable });
            merged += self.load_records(records.copied(), mode)?;
        }
        Ok(merged)
    }

    /// Copies all records, with flags, expiry and all values of a key, into a new database on disk
    /// of any kind. Fails with `Invalid` if a key has several values and that is no tree. Returns
    /// the number of records. The copy is as of one moment and contains no later writes. It is on
    /// disk when this returns.
    ///
    /// Others read and write in the meantime. From one hash on disk to another the files are
    /// copied; otherwise the records of a [snapshot](Db::snapshot) are. Fails with `Invalid` if the
    /// target exists, with `Busy` within a transaction of this thread, and as [`Db::open`] does.
    /// Until it is complete the copy lies next to its target, with `.partial` appended to its name;
    /// a failed copy leaves nothing.
    ///
    /// ```
    /// use todana::{Db, Records};
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let place = folder.path().join("copy.tree");
    /// let place = place.to_str().unwrap();
    /// let db = Db::open("mem:hash")?;
    /// db.set(b"hello", b"world")?;
    /// assert_eq!(db.copy(place)?, 1);
    /// assert_eq!(Db::open(place)?.get(b"hello")?, Some(b"world".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn copy(&self, name: &str) -> Result<u64> {
        let to = DatabaseName::parse(name)?;
        let Some(path) = &to.path else {
            let message =
                format!("database \"{name}\": a copy in memory would be lost; name a database on disk");
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        if path.exists() {
            let message = format!("{}: exists already; existing files are never replaced", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if let (Some(durable), DatabaseStorage::Files) =
            (self.database().engine().durable(), to.kind.storage())
        {
            self.refuse_overlap(path)?;
            let staged = StagedDirectory::create(Arc::new(SystemDisk), path)?;
            durable.copy(staged.place())?;
            staged.finish()?;
            let copy = Db::open(name)?;
            copy.database().meet_limits(&copy.database().worker_counters())?;
            copy.sync()?;
            return Ok(copy.count());
        }
        self.copy_unless(name, &mut |_| ControlFlow::Continue(()))
    }

    /// Copies as [`copy`](Self::copy) does, but always record by record, so that the copy is
    /// compact. `progress` is called regularly with the number of copied records. If `progress`
    /// breaks, fails with `Closed` and leaves no files.
    pub fn copy_unless(&self, name: &str, progress: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<u64> {
        let to = DatabaseName::parse(name)?;
        let Some(path) = &to.path else {
            let message =
                format!("database \"{name}\": a copy in memory would be lost; name a database on disk");
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        self.refuse_overlap(path)?;
        let snapshot = self.snapshot()?;
        let staged = StagedDirectory::create(Arc::new(SystemDisk), path)?;
        let copy = DbOptions::default().open_name(Arc::new(SystemDisk), to.at(staged.place()))?;
        let (mut seen, mut lasting) = (0, 0);
        let records = RecordIter::new(snapshot.with_lists()).copied().map(|item| {
            let item = item?;
            if progress(seen).is_break() {
                return Err(Error::new(ErrorKind::Closed, "copy: cancelled"));
            }
            seen += 1;
            lasting += u64::from(item.attributes.expiry == Expiry::Never);
            Ok(item)
        });
        copy.load_records(records, MergePolicy::Set)?;
        copy.sync()?;
        let copied = copy.count();
        // The copy may lack records that have expired since, and records above a limit. In an
        // unordered database some records may have been counted twice.
        let is_limited = to.tuning.records_max.is_some() || to.tuning.bytes_max.is_some();
        let shows_each_once = self.is_ordered() || self.database().engine().numbered().is_some();
        if copied < lasting && !is_limited && shows_each_once {
            let message = format!("copy: only {copied} of {lasting} records were stored");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        drop(copy);
        staged.finish()?;
        Ok(copied)
    }

    fn refuse_overlap(&self, target: &Path) -> Result<()> {
        let directory = self.0.owner.directory().map(|directory| directory.path());
        let own = self.name().path.as_deref().filter(|_| !self.name().kind.is_in_memory());
        refuse_overlap(directory.or(own), target)
    }

    /// Writes all records as tab-separated text (docs/format/tsv.md), with flags, expiry and all
    /// values of a key, and returns their number. The records are not as of one moment, unlike
    /// those of [`copy`](Db::copy), and a record that is changed meanwhile may be written again,
    /// with its later value. Fails with `Unavailable` if writing to `out` fails.
    ///
    /// ```
    /// # use todana::{Db, Records, Ttl};
    /// let db = Db::open("mem:hash")?;
    /// db.set_with(b"greeting", b"hello\tworld", Ttl::Never, 7)?;
    /// let mut text = Vec::new();
    /// db.dump(&mut text)?;
    /// assert_eq!(text, b"greeting\thello\\tworld\t7\n");
    /// let other = Db::open("mem:tree")?;
    /// assert_eq!(other.load(&mut text.as_slice())?.stored, 1);
    /// assert_eq!(other.get_record(b"greeting")?.unwrap().flags, 7);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn dump(&self, out: &mut impl Write) -> Result<u64> {
        let mut written = 0;
        for item in RecordIter::new(StoredRecords { db: self, is_stable: false }).copied() {
            let copied = item?;
            tsv::put_record(out, &copied.key, copied.record()).map_err(|error| unwritable(&error))?;
            written += 1;
        }
        out.flush().map_err(|error| unwritable(&error))?;
        Ok(written)
    }

    /// Stores the records of such a text. The span of a sliding expiry starts again, and expired
    /// records are skipped. Fails with `Invalid` at the first invalid line; the error states its
    /// number. The lines before it may have been stored.
    pub fn load(&self, input: &mut impl BufRead) -> Result<LoadSummary> {
        let (mut loaded, mut number) = (LoadSummary::default(), 0u64);
        let (mut line, mut failure, now) = (Vec::new(), None, self.database().now());
        let mut pending = tsv::PendingRecord::default();
        let mut is_over = false;
        let records = std::iter::from_fn(|| {
            while !is_over {
                line.clear();
                number += 1;
                let next = match input.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut line) {
                    Ok(0) => Ok(None),
                    Ok(_) => tsv::parse(line.strip_suffix(b"\n").unwrap_or(&line)).map(Some),
                    Err(error) => {
                        is_over = true;
                        return Some(Err(unreadable(&error)));
                    }
                };
                is_over = !matches!(next, Ok(Some(_)));
                let complete = next.and_then(|next| pending.push(next)).unwrap_or_else(|what| {
                    is_over = true;
                    failure = Some(Error::new(ErrorKind::Invalid, format!("line {number}: {what}")));
                    pending.push(None).unwrap_or_default()
                });
                let Some(complete) = complete else { continue };
                let mut copied = complete.into_record();
                if !copied.attributes.expiry.is_live(now) {
                    loaded.expired += 1;
                    continue;
                }
                if let Expiry::Sliding { at, span_s } = &mut copied.attributes.expiry {
                    at.0 = now.0 + u64::from(*span_s);
                }
                return Some(Ok(copied));
            }
            None
        });
        let stored = self.load_records(records, MergePolicy::Set)?;
        match failure {
            Some(error) => Err(error),
            None => Ok(LoadSummary { stored, ..loaded }),
        }
    }

    /// Stores records in batches. Returns the number of stored records.
    fn load_records(
        &self,
        records: impl Iterator<Item = Result<CopiedRecord>>,
        mode: MergePolicy,
    ) -> Result<u64> {
        let mut loader = RecordLoader::new(self, mode);
        for item in records {
            loader.put(item?)?;
        }
        loader.finish()
    }

    fn store_batch(&self, batch: &mut Vec<CopiedRecord>, mode: MergePolicy) -> Result<u64> {
        if batch.is_empty() {
            return Ok(0);
        }
        let transaction = self.begin()?;
        let mut taken = 0;
        for copied in batch.drain(..) {
            // Versions have a meaning only within their own database.
            let attributes = Attributes { version: 0, access: None, ..copied.attributes };
            let new = Record { attributes, ..copied.record() };
            let (list, joined) = (Vec::new(), Vec::new());
            let mut merge = MergeVisitor { mode, new, list, joined, is_stored: false };
            transaction.visit(&copied.key, &mut merge)?;
            taken += u64::from(merge.is_stored);
        }
        transaction.commit()?;
        Ok(taken)
    }
}

/// Merges a record into a database.
struct MergeVisitor<'r> {
    mode: MergePolicy,
    new: Record<'r>,
    /// The first of several values, and the list of them.
    joined: Vec<u8>,
    list: Vec<u8>,
    is_stored: bool,
}

impl Visitor for MergeVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_stored =
            !matches!((self.mode, old), (MergePolicy::Add, Some(_)) | (MergePolicy::Replace, None));
        match old {
            _ if !self.is_stored => Action::Keep,
            Some(old) if self.mode == MergePolicy::Append => {
                let (mut first, mut second) = (old.values(), self.new.values());
                self.joined = [first.next().unwrap_or_default(), second.next().unwrap_or_default()].concat();
                let attributes = Attributes { version: 0, access: None, ..old.attributes };
                let values = std::iter::once(self.joined.as_slice()).chain(first).chain(second);
                Record::of_values(values, attributes, &mut self.list).map_or(Action::Keep, Action::Put)
            }
            _ => Action::Put(self.new),
        }
    }

    fn sees_value_list(&self) -> bool {
        true
    }
}

/// A database whose iterations show all values of a key.
struct StoredRecords<'d> {
    db: &'d Db,
    /// Records that are changed meanwhile keep their places. Otherwise all are read as fast as
    /// possible.
    is_stable: bool,
}

impl Records for StoredRecords<'_> {
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        self.db.execute(command, reply)
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.db.visit(key, visitor)
    }

    fn is_ordered(&self) -> bool {
        self.db.is_ordered()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let database = self.db.database();
        if self.is_stable { database.scan_stored(from, see) } else { database.read_all_stored(from, see) }
    }

    fn walk(
        &self,
        direction: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.db.database().walk_stored(direction, from, see)
    }
}

/// Stores records in batches.
pub(super) struct RecordLoader<'d> {
    db: &'d Db,
    mode: MergePolicy,
    batch: Vec<CopiedRecord>,
    bytes: usize,
    taken: u64,
}

impl<'d> RecordLoader<'d> {
    pub(super) fn new(db: &'d Db, mode: MergePolicy) -> RecordLoader<'d> {
        RecordLoader { db, mode, batch: Vec::new(), bytes: 0, taken: 0 }
    }

    pub(super) fn put(&mut self, copied: CopiedRecord) -> Result<()> {
        self.db.database().expect_storable(&copied.key, &copied.record())?;
        self.bytes += copied.key.len() + copied.value.len();
        self.batch.push(copied);
        if self.batch.len() >= RECORDS_AT_ONCE || self.bytes >= BYTES_AT_ONCE { self.store() } else { Ok(()) }
    }

    fn store(&mut self) -> Result<()> {
        self.taken += self.db.store_batch(&mut self.batch, self.mode)?;
        self.bytes = 0;
        Ok(())
    }

    /// Stores the last batch. Returns the number of stored records.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.store()?;
        Ok(self.taken)
    }
}

pub(super) fn unwritable(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("output: cannot write to it: {error}"))
}

fn unreadable(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("input: cannot read it: {error}"))
}
