//! Exports functions on entire databases: opening, closing, snapshots, copies, merging, text files.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_OK, answer, found, invalid};
use crate::open_database::{self, CloseBlocker, DatabaseHandle, DatabaseOrSnapshot, RegisteredDatabase};
use crate::raw::CText;
use crate::transactions;
use std::ffi::c_int;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;
use todana::update_log::SyncPolicy;
use todana::{DataOptions, Db, DbOptions, Error, ErrorKind, MergePolicy, Records, Result, WhenFull};

/// Writes are on disk within a second.
pub const TODANA_SYNC_SOON: c_int = 0;
/// Each write is on disk when the call returns.
pub const TODANA_SYNC_ALWAYS: c_int = 1;
/// Writes are on disk within `sync_ms` milliseconds.
pub const TODANA_SYNC_EVERY: c_int = 2;
/// The operating system decides when writes reach the disk.
pub const TODANA_SYNC_NEVER: c_int = 3;

/// Replaces existing records.
pub const TODANA_MERGE_SET: c_int = 0;
/// Keeps existing records.
pub const TODANA_MERGE_ADD: c_int = 1;
/// Replaces existing records and adds no new records.
pub const TODANA_MERGE_REPLACE: c_int = 2;
/// Appends the new value to the existing value.
pub const TODANA_MERGE_APPEND: c_int = 3;

/// Options for opening a database. If all fields are zero, they suit most programs.
#[repr(C)]
pub struct OpenOptions {
    /// The data directory of a database in memory. NULL: the records are not stored on disk.
    data_dir: CText,
    /// The maximum number of bytes of memory of a database in memory. 0: no limit.
    memory_max: u64,
    /// Not 0: a write without room fails. 0: the write evicts other records.
    refuses_when_full: c_int,
    /// The time at which writes reach the disk, for databases that are stored there:
    /// TODANA_SYNC_SOON, ...
    sync: c_int,
    /// The interval of TODANA_SYNC_EVERY, in milliseconds.
    sync_ms: u64,
    /// Not 0: opens the database for reading only. Several processes can read at the same time, but
    /// not while a process writes.
    reads_only: c_int,
    /// Must be 0.
    reserved: [u64; 3],
}

/// Numbers that describe a database.
#[repr(C)]
pub struct DatabaseStatus {
    /// The number of records, including expired records that are not removed yet.
    records: u64,
    /// The bytes of the records as stored.
    record_bytes: u64,
    /// The bytes of memory allocated for the records.
    memory_bytes: u64,
    /// The number of records evicted since the database was opened.
    evictions: u64,
    /// Not 0: the database is ordered.
    is_ordered: c_int,
}

/// Opens a database by its name: "mem:hash", "mem:tree", "PATH.hash", "PATH.tree" and others
/// (docs/embedding.md). `options` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn todana_open(
    name: CText,
    options: Option<&OpenOptions>,
    db: Option<&mut MaybeUninit<*mut DatabaseHandle>>,
) -> c_int {
    answer(|| {
        let place = db.must()?;
        let name = required(&name, "name")?;
        let options = options.map_or_else(|| Ok(DbOptions::default()), OpenOptions::parse)?;
        place.put(RegisteredDatabase::open(DatabaseOrSnapshot::Db(options.open(name)?)));
        Ok(TODANA_OK)
    })
}

/// Closes a database or a snapshot, after the calls in other threads have returned. Aborts a
/// transaction of this thread. Iterators and cursors then fail with TODANA_CLOSED. If the last
/// writes cannot reach the disk, the database is closed and the function returns that error.
/// TODANA_BUSY: the database stays open, because it has open snapshots or searches, or transactions
/// of other threads. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn todana_close(db: *mut DatabaseHandle) -> c_int {
    answer(|| {
        if db.is_null() {
            return Ok(TODANA_OK);
        }
        open_database::with(db, |open_database| {
            transactions::abort_own(open_database.number);
            let outcome = match open_database.close()? {
                DatabaseOrSnapshot::Db(db) => db.sync(),
                DatabaseOrSnapshot::Snapshot { .. } => Ok(()),
            };
            outcome.map(|()| TODANA_OK)
        })
    })
}

/// Opens a snapshot: a view of the database as it is now, which later writes do not change. Read it
/// like a database, and close it by todana_close(). Records that change meanwhile are kept in
/// memory in their old form. TODANA_BUSY: this thread has an open transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_snapshot(
    db: *mut DatabaseHandle,
    snapshot: Option<&mut MaybeUninit<*mut DatabaseHandle>>,
) -> c_int {
    answer(|| {
        let place = snapshot.must()?;
        open_database::with(db, |open_database| {
            open_database.with_db(|db| {
                let snapshot = DatabaseOrSnapshot::Snapshot {
                    snapshot: db.snapshot()?,
                    _of: CloseBlocker::new(open_database),
                };
                place.put(RegisteredDatabase::open(snapshot));
                Ok(TODANA_OK)
            })
        })
    })
}

/// Returns the number of records, including expired records that are not removed yet. The changes
/// of an open transaction do not count. Does not scan.
#[unsafe(no_mangle)]
pub extern "C" fn todana_count(db: *mut DatabaseHandle, count: Option<&mut MaybeUninit<u64>>) -> c_int {
    answer(|| {
        let place = count.must()?;
        place.put(with_db(db, |db| Ok(db.count()))?);
        Ok(TODANA_OK)
    })
}

/// Returns numbers that describe the database.
#[unsafe(no_mangle)]
pub extern "C" fn todana_inform(
    db: *mut DatabaseHandle,
    status: Option<&mut MaybeUninit<DatabaseStatus>>,
) -> c_int {
    answer(|| {
        let place = status.must()?;
        place.put(with_db(db, |db| {
            let status = db.status();
            Ok(DatabaseStatus {
                records: status.records,
                record_bytes: status.live_bytes,
                memory_bytes: status.committed_bytes,
                evictions: status.evictions,
                is_ordered: db.is_ordered().into(),
            })
        })?);
        Ok(TODANA_OK)
    })
}

/// Returns TODANA_OK if the database is ordered, else TODANA_NONE.
#[unsafe(no_mangle)]
pub extern "C" fn todana_is_ordered(db: *mut DatabaseHandle) -> c_int {
    answer(|| open_database::with(db, |open_database| Ok(found(open_database.is_ordered()))))
}

/// Removes all records. Cannot be part of a transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_clear(db: *mut DatabaseHandle) -> c_int {
    answer(|| with_db(db, |db| db.clear()).map(|()| TODANA_OK))
}

/// Returns when all earlier writes are on disk. Has no effect if the database is not stored on
/// disk.
#[unsafe(no_mangle)]
pub extern "C" fn todana_sync(db: *mut DatabaseHandle) -> c_int {
    answer(|| with_db(db, |db| db.sync()).map(|()| TODANA_OK))
}

/// Writes a checkpoint if there is an update log. The next opening then reads only the log after
/// the checkpoint.
#[unsafe(no_mangle)]
pub extern "C" fn todana_checkpoint(db: *mut DatabaseHandle) -> c_int {
    answer(|| with_db(db, |db| db.checkpoint()).map(|()| TODANA_OK))
}

/// Copies all records, as of one moment, into a new database on disk of any kind. Stores their
/// number in `copied`, unless it is NULL. The copy is on disk when the function returns.
#[unsafe(no_mangle)]
pub extern "C" fn todana_copy(
    db: *mut DatabaseHandle,
    name: CText,
    copied: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        copied.put(with_db(db, |db| db.copy(required(&name, "name")?))?);
        Ok(TODANA_OK)
    })
}

/// Copies the records of another database into this database, with their attributes. Stores the
/// number of records that were written in `merged`, unless it is NULL. `mode`: TODANA_MERGE_SET,
/// ...
#[unsafe(no_mangle)]
pub extern "C" fn todana_merge(
    db: *mut DatabaseHandle,
    source: *mut DatabaseHandle,
    mode: c_int,
    merged: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let mode = match mode {
            TODANA_MERGE_SET => MergePolicy::Set,
            TODANA_MERGE_ADD => MergePolicy::Add,
            TODANA_MERGE_REPLACE => MergePolicy::Replace,
            TODANA_MERGE_APPEND => MergePolicy::Append,
            other => return Err(invalid(format!("there is no merging of kind {other}"))),
        };
        // A thread that closes the source meanwhile must wait for this call.
        merged.put(with_db(source, |source| with_db(db, |db| db.merge(&[source], mode)))?);
        Ok(TODANA_OK)
    })
}

/// Writes all records to a file, as tab-separated text with flags and expiry (docs/format/tsv.md).
/// Stores their number in `dumped`, unless it is NULL. Replaces an existing file.
#[unsafe(no_mangle)]
pub extern "C" fn todana_dump(
    db: *mut DatabaseHandle,
    path: CText,
    dumped: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let path = required(&path, "path")?;
        dumped.put(with_db(db, |db| {
            let file = File::create(path).map_err(|error| unavailable("written", path, &error))?;
            db.dump(&mut BufWriter::new(file))
        })?);
        Ok(TODANA_OK)
    })
}

/// Stores the records of a file that todana_dump() wrote. Stores their number in `loaded`, unless
/// it is NULL. Skips expired records. TODANA_INVALID: a line is malformed. The message names the
/// line, and the lines before it may be stored.
#[unsafe(no_mangle)]
pub extern "C" fn todana_load(
    db: *mut DatabaseHandle,
    path: CText,
    loaded: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let path = required(&path, "path")?;
        loaded.put(with_db(db, |db| {
            let file = File::open(path).map_err(|error| unavailable("read", path, &error))?;
            Ok(db.load(&mut BufReader::new(file))?.stored)
        })?);
        Ok(TODANA_OK)
    })
}

impl OpenOptions {
    fn parse(&self) -> Result<DbOptions> {
        if self.reserved != [0; 3] {
            return Err(invalid("what is reserved in the options must be 0"));
        }
        let mut data = DataOptions::default();
        data.log.sync = match self.sync {
            TODANA_SYNC_SOON => data.log.sync,
            TODANA_SYNC_ALWAYS => SyncPolicy::Always,
            TODANA_SYNC_EVERY => SyncPolicy::Every(Duration::from_millis(self.sync_ms)),
            TODANA_SYNC_NEVER => SyncPolicy::Never,
            other => return Err(invalid(format!("there is no sync of kind {other}"))),
        };
        let mut options = DbOptions::default().data_options(data);
        if let Some(directory) = self.data_dir.as_str()? {
            options = options.data_dir(directory);
        }
        if self.memory_max > 0 {
            options = options.memory_max(self.memory_max);
        }
        if self.reads_only != 0 {
            options = options.read_only();
        }
        if self.refuses_when_full != 0 {
            options = options.when_full(WhenFull::Refuse);
        }
        Ok(options)
    }
}

pub(crate) fn with_db<T>(db: *mut DatabaseHandle, run: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
    open_database::with(db, |open_database: &Arc<RegisteredDatabase>| open_database.with_db(run))
}

pub(crate) fn required<'t>(text: &'t CText, what: &str) -> Result<&'t str> {
    text.as_str()?.ok_or_else(|| invalid(format!("the {what} is NULL")))
}

fn unavailable(what: &str, path: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{path} cannot be {what}: {error}"))
}
