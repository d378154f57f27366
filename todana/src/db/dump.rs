//! Writes and reads snapshots of Kyoto Cabinet (`.kcss`), as files and as streams.

use super::batch::CopiedRecord;
use super::transfer::{RecordLoader, unwritable};
use super::{Db, LoadSummary, MergePolicy};
use crate::data_directory::cannot;
use crate::kyoto::{DumpFailure, DumpWriter, NEVER, expiry_of, read_dump, time_of};
use crate::{OwnedRecord, Records};
use std::fs::{self, File, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use todana_core::{Attributes, Error, Expiry, Result};
use todana_protocol::kyoto::StoredValue;

/// The longest record in a snapshot: key and value, and their lengths.
const RECORD_LEN_MAX: usize = 2 * ((1 << 30) + 16);

/// The form of values in a snapshot of Kyoto Cabinet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DumpedValues {
    /// Values without an expiry, as Kyoto Cabinet writes them. Records do not expire.
    #[default]
    Bare,
    /// Values after five bytes that hold the expiry, as Kyoto Tycoon writes them.
    Timed,
}

impl DumpedValues {
    fn stored(self, record: &OwnedRecord) -> StoredValue<'_> {
        match self {
            DumpedValues::Bare => StoredValue::raw(&record.value),
            DumpedValues::Timed => {
                StoredValue::with_expiry(time_of(record.expiry).unwrap_or(NEVER), &record.value)
            }
        }
    }

    fn record(self, stored: &StoredValue<'_>) -> Option<OwnedRecord> {
        let (expiry, value) = match self {
            DumpedValues::Bare => (Expiry::Never, stored.as_raw()?),
            DumpedValues::Timed => stored.split().map(|(time, value)| (expiry_of(time), value))?,
        };
        Some(OwnedRecord { value: value.to_vec(), expiry, ..OwnedRecord::default() })
    }
}

impl Db {
    /// Writes all records as a snapshot of Kyoto Cabinet (`.kcss`) and returns their number. The
    /// records are as of one moment, as in a [`snapshot`](Db::snapshot). Client flags and the
    /// values of a key after the first are omitted, and a sliding expiry becomes a fixed one. Fails
    /// with `Unavailable` if writing to `out` fails, and with `Busy` within a transaction of this
    /// thread.
    ///
    /// ```
    /// # use todana::{Db, DumpedValues, Records};
    /// let db = Db::open("mem:tree")?;
    /// db.set(b"japan", b"tokyo")?;
    /// let mut bytes = Vec::new();
    /// db.dump_snapshot(&mut bytes, DumpedValues::Bare)?;
    /// assert_eq!(bytes, b"KCSS\n\0\0\x05\x05japantokyo\xFF");
    /// let other = Db::open("mem:hash")?;
    /// assert_eq!(other.load_snapshot(&mut bytes.as_slice(), DumpedValues::Bare)?.stored, 1);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn dump_snapshot(&self, out: &mut impl Write, values: DumpedValues) -> Result<u64> {
        let snapshot = self.snapshot()?;
        let (mut writer, mut written) = (DumpWriter::begin(out), 0);
        for item in snapshot.iter().records() {
            let (key, record) = item?;
            writer.put(&key, &values.stored(&record)).map_err(|error| unwritable(&error))?;
            written += 1;
        }
        writer.finish().map_err(|error| unwritable(&error))?;
        Ok(written)
    }

    /// Stores the records of such a snapshot. Existing records are replaced, and expired ones are
    /// skipped. Needs memory for a few megabytes and the longest record.
    ///
    /// Fails with `Corrupt` where the snapshot is damaged or cut off. The error states the place,
    /// and the records before it are stored. [`load_snapshot_file`](Db::load_snapshot_file) stores
    /// none in this case.
    pub fn load_snapshot(&self, input: &mut impl Read, values: DumpedValues) -> Result<LoadSummary> {
        let (mut loaded, now) = (LoadSummary::default(), self.database().now());
        let mut loader = RecordLoader::new(self, MergePolicy::Set);
        let outcome = read_records(input, values, &mut |key, record| {
            if !record.expiry.is_live(now) {
                loaded.expired += 1;
                return Ok(());
            }
            let OwnedRecord { value, flags, expiry, .. } = record;
            let attributes = Attributes { flags, expiry, ..Attributes::default() };
            loader.put(CopiedRecord { key: key.to_vec(), value, attributes })
        });
        // The records before a failure are stored, too.
        loaded.stored = loader.finish()?;
        outcome.map(|()| loaded)
    }

    /// Writes a snapshot to a file. An existing file is replaced only when the snapshot is complete
    /// and on disk. Until then, and after a failure, it stays unchanged.
    pub fn dump_snapshot_file(&self, path: &Path, values: DumpedValues) -> Result<u64> {
        let failed = |error| cannot("write to", path, &error);
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            // A pipe or a device cannot be replaced, so it is written directly.
            let mut file = File::options().write(true).open(path).map_err(failed)?;
            return self.dump_snapshot(&mut file, values);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut draft = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(failed)?;
        let written = self.dump_snapshot(draft.as_file_mut(), values)?;
        draft.as_file().sync_all().map_err(failed)?;
        draft.persist(path).map_err(|error| failed(error.error))?;
        Ok(written)
    }

    /// Stores the records of a snapshot file. The complete file is checked before the first record
    /// is stored, so a damaged or cut-off file changes nothing. A pipe can be read only once, so it
    /// is loaded as by [`load_snapshot`](Db::load_snapshot).
    pub fn load_snapshot_file(&self, path: &Path, values: DumpedValues) -> Result<LoadSummary> {
        let failed = |error| cannot("read", path, &error);
        let of_file = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.is_file() {
            read_records(&mut file, values, &mut |_, _| Ok(())).map_err(of_file)?;
            file.rewind().map_err(failed)?;
        }
        self.load_snapshot(&mut file, values).map_err(of_file)
    }
}

/// Calls `see` for each record of a snapshot.
fn read_records(
    input: &mut impl Read,
    values: DumpedValues,
    see: &mut dyn FnMut(&[u8], OwnedRecord) -> Result<()>,
) -> Result<()> {
    read_dump(input, RECORD_LEN_MAX, &mut |offset, key, stored| {
        let what = "a value is too short for the time before it";
        let record = values.record(stored);
        see(key, record.ok_or_else(|| Error::from(DumpFailure::Damaged { offset, what }))?)
    })
    .map(drop)
    .map_err(Error::from)
}
