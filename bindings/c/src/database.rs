//! A database as a whole: opened and closed, copied and merged, as text.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{Out, TODANA_OK, answer, found, invalid};
use crate::home::{self, Base, Database, Dependent, Home};
use crate::raw::Text;
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
/// Each write is on disk when it returns.
pub const TODANA_SYNC_ALWAYS: c_int = 1;
/// Within `sync_ms` milliseconds.
pub const TODANA_SYNC_EVERY: c_int = 2;
/// When the system sees fit.
pub const TODANA_SYNC_NEVER: c_int = 3;

/// A record that is there already is replaced.
pub const TODANA_MERGE_SET: c_int = 0;
/// It stays.
pub const TODANA_MERGE_ADD: c_int = 1;
/// It is replaced; what is missing does not come in.
pub const TODANA_MERGE_REPLACE: c_int = 2;
/// What comes in is put behind its value.
pub const TODANA_MERGE_APPEND: c_int = 3;

/// How a database is opened. All zero is right for most.
#[repr(C)]
pub struct Options {
    /// A database in memory keeps its data in this directory. NULL: nowhere.
    data_dir: Text,
    /// A database in memory takes at most so many bytes. 0: no limit.
    memory_max: u64,
    /// Not 0: what has no room is refused. 0: other records go for it.
    refuses_when_full: c_int,
    /// When writes are on disk, where they are kept there: TODANA_SYNC_SOON, ...
    sync: c_int,
    /// For TODANA_SYNC_EVERY.
    sync_ms: u64,
    /// Not 0: it is opened for reading, beside others that read it, and never beside one that writes. Nothing changes.
    reads_only: c_int,
    /// 0.
    reserved: [u64; 3],
}

/// What a database holds.
#[repr(C)]
pub struct Status {
    /// Records, expired ones that nobody has met yet included.
    records: u64,
    /// Bytes of the records as they are stored.
    record_bytes: u64,
    /// Bytes of memory that are held for them.
    memory_bytes: u64,
    /// Records removed to make room, since it was opened.
    evictions: u64,
    /// Not 0: keys have an order.
    is_ordered: c_int,
}

/// Opens a database by its name (docs/embedding.md): "mem:hash", "mem:tree", "PATH.hash", "PATH.tree" and more. `options` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn todana_open(
    name: Text,
    options: Option<&Options>,
    db: Option<&mut MaybeUninit<*mut Database>>,
) -> c_int {
    answer(|| {
        let place = db.must()?;
        let name = required(&name, "name")?;
        let options = options.map_or_else(|| Ok(DbOptions::default()), Options::parse)?;
        place.put(Home::open(Base::Db(options.open(name)?)));
        Ok(TODANA_OK)
    })
}

/// Closes a database, or a snapshot, once calls that are under way in other threads have ended. A transaction of this thread is aborted;
/// iterators and cursors fail with TODANA_CLOSED from now on. It is closed, too, when what was written last cannot be brought to the disk, which
/// this returns. TODANA_BUSY: snapshots of it are open, or transactions of other threads, and it stays open. NULL is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn todana_close(db: *mut Database) -> c_int {
    answer(|| {
        if db.is_null() {
            return Ok(TODANA_OK);
        }
        home::with(db, |home| {
            transactions::abort_own(home.number);
            let outcome = match home.close()? {
                Base::Db(db) => db.sync(),
                Base::Snapshot { .. } => Ok(()),
            };
            outcome.map(|()| TODANA_OK)
        })
    })
}

/// A view of the database as it is now, whatever is written later; to be read like a database, and closed by todana_close(). What is changed
/// meanwhile is kept in memory, as it was. TODANA_BUSY: this thread has a transaction open.
#[unsafe(no_mangle)]
pub extern "C" fn todana_snapshot(
    db: *mut Database,
    snapshot: Option<&mut MaybeUninit<*mut Database>>,
) -> c_int {
    answer(|| {
        let place = snapshot.must()?;
        home::with(db, |home| {
            home.with_db(|db| {
                let snapshot = Base::Snapshot { snapshot: db.snapshot()?, _of: Dependent::new(home) };
                place.put(Home::open(snapshot));
                Ok(TODANA_OK)
            })
        })
    })
}

/// How many records there are, expired ones that nobody has met yet included, and not those of a transaction that is open. Costs no scan.
#[unsafe(no_mangle)]
pub extern "C" fn todana_count(db: *mut Database, count: Option<&mut MaybeUninit<u64>>) -> c_int {
    answer(|| {
        let place = count.must()?;
        place.put(with_db(db, |db| Ok(db.count()))?);
        Ok(TODANA_OK)
    })
}

/// What the database holds.
#[unsafe(no_mangle)]
pub extern "C" fn todana_inform(db: *mut Database, status: Option<&mut MaybeUninit<Status>>) -> c_int {
    answer(|| {
        let place = status.must()?;
        place.put(with_db(db, |db| {
            let status = db.status();
            Ok(Status {
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

/// Whether keys have an order: TODANA_OK or TODANA_NONE.
#[unsafe(no_mangle)]
pub extern "C" fn todana_is_ordered(db: *mut Database) -> c_int {
    answer(|| home::with(db, |home| Ok(found(home.is_ordered()))))
}

/// Removes all records. It cannot be part of a transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_clear(db: *mut Database) -> c_int {
    answer(|| with_db(db, |db| db.clear()).map(|()| TODANA_OK))
}

/// Returns once all that was written so far is on disk, where it is kept there.
#[unsafe(no_mangle)]
pub extern "C" fn todana_sync(db: *mut Database) -> c_int {
    answer(|| with_db(db, |db| db.sync()).map(|()| TODANA_OK))
}

/// Makes a checkpoint, where there is an update log: the next opening needs no more of that than what comes after.
#[unsafe(no_mangle)]
pub extern "C" fn todana_checkpoint(db: *mut Database) -> c_int {
    answer(|| with_db(db, |db| db.checkpoint()).map(|()| TODANA_OK))
}

/// Copies all records, as they are at one moment, into a database of any kind on disk that is not there yet, and tells how many there are
/// (unless `copied` is NULL). The copy is on disk when this returns.
#[unsafe(no_mangle)]
pub extern "C" fn todana_copy(db: *mut Database, name: Text, copied: Option<&mut MaybeUninit<u64>>) -> c_int {
    answer(|| {
        copied.put(with_db(db, |db| db.copy(required(&name, "name")?))?);
        Ok(TODANA_OK)
    })
}

/// Brings the records of another database into this one, with their attributes, and tells how many came in (unless `merged` is NULL). `mode`:
/// TODANA_MERGE_SET, ...
#[unsafe(no_mangle)]
pub extern "C" fn todana_merge(
    db: *mut Database,
    source: *mut Database,
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
        // Who closes the source meanwhile waits.
        merged.put(with_db(source, |source| with_db(db, |db| db.merge(&[source], mode)))?);
        Ok(TODANA_OK)
    })
}

/// Writes all records to a file, as tab-separated text with flags and expiry (docs/format/tsv.md), and tells how many (unless `dumped` is
/// NULL). A file of this name is replaced.
#[unsafe(no_mangle)]
pub extern "C" fn todana_dump(db: *mut Database, path: Text, dumped: Option<&mut MaybeUninit<u64>>) -> c_int {
    answer(|| {
        let path = required(&path, "path")?;
        dumped.put(with_db(db, |db| {
            let file = File::create(path).map_err(|error| unavailable("written", path, &error))?;
            db.dump(&mut BufWriter::new(file))
        })?);
        Ok(TODANA_OK)
    })
}

/// Stores the records of such a file, and tells how many (unless `loaded` is NULL). What has expired is left out. TODANA_INVALID: a line is
/// none; the message names it, and what came before it may be stored.
#[unsafe(no_mangle)]
pub extern "C" fn todana_load(db: *mut Database, path: Text, loaded: Option<&mut MaybeUninit<u64>>) -> c_int {
    answer(|| {
        let path = required(&path, "path")?;
        loaded.put(with_db(db, |db| {
            let file = File::open(path).map_err(|error| unavailable("read", path, &error))?;
            Ok(db.load(&mut BufReader::new(file))?.stored)
        })?);
        Ok(TODANA_OK)
    })
}

impl Options {
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

pub(crate) fn with_db<T>(db: *mut Database, run: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
    home::with(db, |home: &Arc<Home>| home.with_db(run))
}

pub(crate) fn required<'t>(text: &'t Text, what: &str) -> Result<&'t str> {
    text.as_str()?.ok_or_else(|| invalid(format!("the {what} is NULL")))
}

fn unavailable(what: &str, path: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{path} cannot be {what}: {error}"))
}
