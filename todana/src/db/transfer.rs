//! Copies records from one database to others: merges, copies, and text files.

use super::{Db, DbOptions};
use crate::data_directory::{StagedDirectory, refuse_overlap};
use crate::disk::SystemDisk;
use crate::open::{DatabaseName, DatabaseStorage};
use crate::tsv;
use crate::{OwnedRecord, Records, UpdateAction};
use std::io::{self, BufRead, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Expiry, Result, UnixSeconds};

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
    /// Adds the records of other databases to this one, one database after the other, with flags
    /// and expiry. Returns the number of records added. The others may be written in the meantime;
    /// such writes may or may not be included. Fails with `Invalid` if one of them is this
    /// database; records added before stay.
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
            merged += self.load_records(source.iter().records(), mode)?;
        }
        Ok(merged)
    }

    /// Copies all records, with flags and expiry, into a new database on disk of any kind. Returns
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
        let records = snapshot.iter().records().map(|item| {
            let item = item?;
            if progress(seen).is_break() {
                return Err(Error::new(ErrorKind::Closed, "copy: cancelled"));
            }
            seen += 1;
            lasting += u64::from(item.1.expiry == Expiry::Never);
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

    /// Writes all records as tab-separated text (docs/format/tsv.md), with flags and expiry, and
    /// returns their number. The records are not as of one moment, unlike those of
    /// [`copy`](Db::copy). Fails with `Unavailable` if writing to `out` fails.
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
        for item in self.iter().records() {
            let (key, record) = item?;
            let expiry = match record.expiry {
                Expiry::Never => tsv::TsvExpiry::default(),
                Expiry::At(at) => tsv::TsvExpiry { at: at.0, span_s: 0 },
                Expiry::Sliding { at, span_s } => tsv::TsvExpiry { at: at.0, span_s },
            };
            tsv::put(out, &key, &record.value, record.flags, expiry).map_err(|error| unwritable(&error))?;
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
        let (mut line, mut failure) = (Vec::new(), None);
        let now = self.database().now();
        let records = std::iter::from_fn(|| {
            loop {
                line.clear();
                number += 1;
                let read = input.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut line);
                match read {
                    Ok(0) => return None,
                    Ok(_) => {}
                    Err(error) => return Some(Err(unreadable(&error))),
                }
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                let tsv::TsvLine { key, value, flags, expiry } = match tsv::parse(text) {
                    Ok(line) => line,
                    Err(what) => {
                        failure = Some(Error::new(ErrorKind::Invalid, format!("line {number}: {what}")));
                        return None;
                    }
                };
                let expiry = match expiry {
                    tsv::TsvExpiry { at: 0, .. } => Expiry::Never,
                    tsv::TsvExpiry { at, span_s: 0 } => Expiry::At(UnixSeconds(at)),
                    tsv::TsvExpiry { at, span_s } => Expiry::Sliding { at: UnixSeconds(at), span_s },
                };
                if !expiry.is_live(now) {
                    loaded.expired += 1;
                    continue;
                }
                let expiry = match expiry {
                    Expiry::Sliding { span_s, .. } => {
                        Expiry::Sliding { at: UnixSeconds(now.0 + u64::from(span_s)), span_s }
                    }
                    other => other,
                };
                return Some(Ok((key, OwnedRecord { value, flags, expiry, version: 0 })));
            }
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
        records: impl Iterator<Item = Result<(Vec<u8>, OwnedRecord)>>,
        mode: MergePolicy,
    ) -> Result<u64> {
        let mut loader = RecordLoader::new(self, mode);
        for item in records {
            let (key, record) = item?;
            loader.put(key, record)?;
        }
        loader.finish()
    }

    fn store_batch(&self, batch: &mut Vec<(Vec<u8>, OwnedRecord)>, mode: MergePolicy) -> Result<u64> {
        if batch.is_empty() {
            return Ok(0);
        }
        let transaction = self.begin()?;
        let mut taken = 0;
        for (key, record) in batch.drain(..) {
            transaction.update(&key, &mut |old| {
                let update = match (mode, old) {
                    (MergePolicy::Add, Some(_)) | (MergePolicy::Replace, None) => UpdateAction::Keep,
                    (MergePolicy::Append, Some(old)) => {
                        UpdateAction::Value([old.value, &record.value].concat())
                    }
                    _ => UpdateAction::Record(record.clone()),
                };
                taken += u64::from(update != UpdateAction::Keep);
                update
            })?;
        }
        transaction.commit()?;
        Ok(taken)
    }
}

/// Stores records in batches.
pub(super) struct RecordLoader<'d> {
    db: &'d Db,
    mode: MergePolicy,
    batch: Vec<(Vec<u8>, OwnedRecord)>,
    bytes: usize,
    taken: u64,
}

impl<'d> RecordLoader<'d> {
    pub(super) fn new(db: &'d Db, mode: MergePolicy) -> RecordLoader<'d> {
        RecordLoader { db, mode, batch: Vec::new(), bytes: 0, taken: 0 }
    }

    pub(super) fn put(&mut self, key: Vec<u8>, record: OwnedRecord) -> Result<()> {
        self.bytes += key.len() + record.value.len();
        self.batch.push((key, record));
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
