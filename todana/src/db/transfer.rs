//! Records on their way from one database to another: merged, copied, as text.

use super::Db;
use super::draft::Draft;
use crate::data_directory::refuse_overlap;
use crate::open::{Name, Storage};
use crate::tsv;
use crate::{OwnedRecord, Records, UpdateAction};
use std::io::{self, BufRead, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Expiry, Result, UnixSeconds};

/// So many records, or bytes of them, are written at once: one entry of the update log, one wait for the disk.
const RECORDS_AT_ONCE: usize = 1000;
const BYTES_AT_ONCE: usize = 4 << 20;
/// No line is longer: what one of the longest key and value can take, with each byte escaped.
const LINE_LEN_MAX: u64 = 6 << 30;

/// What becomes of a record that is there already when another database is merged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergePolicy {
    /// It is replaced.
    #[default]
    Set,
    /// It stays; only what is missing comes in.
    Add,
    /// It is replaced; what is missing does not come in.
    Replace,
    /// What comes in is put behind its value; flags and expiry stay.
    Append,
}

/// What [`Db::load`] has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSummary {
    /// Records stored.
    pub stored: u64,
    /// Records left out, as they had expired.
    pub expired: u64,
}

impl Db {
    /// Brings the records of other databases into this one, one database after the other, with flags and expiry; returns how many records
    /// came in. The others may be written to meanwhile: what is written is taken over or not. Fails with `Invalid` if one of them is
    /// this one; what has come in by then stays.
    ///
    /// ```
    /// use todana::{Db, MergePolicy, Records};
    ///
    /// let (all, monday, tuesday) = (Db::open("mem:tree")?, Db::open("mem:hash")?, Db::open("mem:hash")?);
    /// monday.set_many(&[(b"log", b"started "), (b"a", b"1")])?;
    /// tuesday.set(b"log", b"stopped")?;
    /// assert_eq!(all.merge(&[&monday, &tuesday], MergePolicy::Append)?, 3);
    /// assert_eq!(all.get(b"log")?, Some(b"started stopped".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn merge(&self, sources: &[&Db], mode: MergePolicy) -> Result<u64> {
        if sources.iter().any(|source| Arc::ptr_eq(&source.0, &self.0)) {
            return Err(Error::new(ErrorKind::Invalid, "a database cannot be merged into itself"));
        }
        let mut merged = 0;
        for source in sources {
            merged += self.take_in(source.iter().records(), mode)?;
        }
        Ok(merged)
    }

    /// Makes a copy of all records, with flags and expiry, in a database of any kind on disk that is not there yet, and returns how
    /// many there are. The copy is as of one moment: what is written to this one meanwhile is not in it. It is on disk when this returns.
    ///
    /// Others read and write meanwhile. From a hash on disk to another one the files are copied; otherwise records are, from a
    /// [snapshot](Db::snapshot). Fails with `Invalid` if something lies there, with `Busy` within a transaction of this
    /// thread, and as [`Db::open`] does. Until it is whole the copy lies beside its place, with `.partial` behind its name; nothing stays of
    /// one that fails.
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
        let to = Name::parse(name)?;
        let Some(path) = &to.path else {
            let message = format!("database \"{name}\" is in memory, where a copy would be gone at once");
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        if path.exists() {
            let message = format!("{} is there already", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if let (Some(durable), Storage::Files) = (self.database().engine().durable(), to.kind.storage()) {
            self.refuse_overlap(path)?;
            let draft = Draft::create(path)?;
            durable.copy(draft.place())?;
            draft.finish()?;
            let copy = Db::open(name)?;
            copy.database().meet_limits(&copy.database().lane())?;
            copy.sync()?;
            return Ok(copy.count());
        }
        self.copy_unless(name, &mut |_| ControlFlow::Continue(()))
    }

    /// The same, of records alone: the copy lies close. `progress` is told now and then how many have been copied; when it breaks, the
    /// copy is called off, with `Closed`, and nothing stays of it.
    pub fn copy_unless(&self, name: &str, progress: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<u64> {
        let to = Name::parse(name)?;
        let Some(path) = &to.path else {
            let message = format!("database \"{name}\" is in memory, where a copy would be gone at once");
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        self.refuse_overlap(path)?;
        let snapshot = self.snapshot()?;
        let draft = Draft::create(path)?;
        let copy = Db::open(&draft.name(&to)?)?;
        let (mut seen, mut lasting) = (0, 0);
        let records = snapshot.iter().records().map(|item| {
            let item = item?;
            if progress(seen).is_break() {
                return Err(Error::new(ErrorKind::Closed, "the copy was called off"));
            }
            seen += 1;
            lasting += u64::from(item.1.expiry == Expiry::Never);
            Ok(item)
        });
        copy.take_in(records, MergePolicy::Set)?;
        copy.sync()?;
        let copied = copy.count();
        // What has expired meanwhile may be gone, and whatever a limit leaves no room for; without an order some may have been seen
        // twice.
        let is_limited = to.tuning.records_max.is_some() || to.tuning.bytes_max.is_some();
        if copied < lasting && !is_limited && self.is_ordered() {
            let message = format!("only {copied} of {lasting} records have come into the copy");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        drop(copy);
        draft.finish()?;
        Ok(copied)
    }

    fn refuse_overlap(&self, target: &Path) -> Result<()> {
        let directory = self.0.directory.as_ref().map(|directory| directory.path());
        let own = self.name().path.as_deref().filter(|_| !self.name().kind.is_in_memory());
        refuse_overlap(directory.or(own), target)
    }

    /// Writes all records as tab-separated text (docs/format/tsv.md), with flags and expiry, and returns how many. They are as of no one
    /// moment; [`copy`](Db::copy) is. Fails with `Unavailable` if `out` does.
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

    /// Stores the records of such text. A sliding expiry begins anew; what has expired is left out. Fails with `Invalid` at the first line
    /// that is none, which it names; what came before it may be stored by then.
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
        let stored = self.take_in(records, MergePolicy::Set)?;
        match failure {
            Some(error) => Err(error),
            None => Ok(LoadSummary { stored, ..loaded }),
        }
    }

    /// Stores records, many at once; returns how many came in.
    fn take_in(
        &self,
        records: impl Iterator<Item = Result<(Vec<u8>, OwnedRecord)>>,
        mode: MergePolicy,
    ) -> Result<u64> {
        let mut intake = Intake::new(self, mode);
        for item in records {
            let (key, record) = item?;
            intake.put(key, record)?;
        }
        intake.finish()
    }

    fn put_all(&self, batch: &mut Vec<(Vec<u8>, OwnedRecord)>, mode: MergePolicy) -> Result<u64> {
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

/// Records on their way into a database: many are stored at once.
pub(super) struct Intake<'d> {
    db: &'d Db,
    mode: MergePolicy,
    batch: Vec<(Vec<u8>, OwnedRecord)>,
    bytes: usize,
    taken: u64,
}

impl<'d> Intake<'d> {
    pub(super) fn new(db: &'d Db, mode: MergePolicy) -> Intake<'d> {
        Intake { db, mode, batch: Vec::new(), bytes: 0, taken: 0 }
    }

    pub(super) fn put(&mut self, key: Vec<u8>, record: OwnedRecord) -> Result<()> {
        self.bytes += key.len() + record.value.len();
        self.batch.push((key, record));
        if self.batch.len() >= RECORDS_AT_ONCE || self.bytes >= BYTES_AT_ONCE { self.store() } else { Ok(()) }
    }

    fn store(&mut self) -> Result<()> {
        self.taken += self.db.put_all(&mut self.batch, self.mode)?;
        self.bytes = 0;
        Ok(())
    }

    /// Stores the rest, and returns how many came in.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.store()?;
        Ok(self.taken)
    }
}

pub(super) fn unwritable(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the records cannot be written: {error}"))
}

fn unreadable(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the records cannot be read: {error}"))
}
