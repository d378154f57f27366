//! The LMDB environment of a tree: opened once its file has been examined, and opened again after a failed write of a meta page.

use super::pages::{self, Meta};
use super::readers::{self, Reading};
use super::unclean::Unclean;
use crate::disk::{Disk, File, SystemDisk, busy};
use crate::raw::{LmdbEnvironment, LmdbTable};
use heed::MdbError;
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// The environment of a directory, which is locked for as long as this is there.
pub(super) struct Environment {
    path: PathBuf,
    /// `None` while it cannot be opened again.
    open: RwLock<Option<OpenEnvironment>>,
    /// Address space to begin with.
    map_bytes: usize,
    // After `open`: what closes comes before what tells of it.
    _unclean: Unclean,
    /// Of one that is only read.
    _reading: Option<Reading>,
    lock: Arc<dyn Send + Sync>,
}

pub(super) struct OpenEnvironment {
    /// Shared by those that only read it.
    pub(super) lmdb: Arc<LmdbEnvironment>,
    pub(super) records: LmdbTable,
    pub(super) state: LmdbTable,
}

/// Up to 64 threads read beside each other, and there are copies and transactions that write.
const READERS_MAX: u32 = 126;

/// Address space is asked for by halves down to this, where the system gives no more.
pub(super) const MAP_BYTES_MIN: usize = 16 << 20;

/// Whether less address space may be had. It is refused as an invalid argument, too: by valgrind, for one.
fn is_too_much(error: io::ErrorKind) -> bool {
    matches!(error, io::ErrorKind::OutOfMemory | io::ErrorKind::InvalidInput)
}

impl Environment {
    /// Opens the environment in a directory, created if need be, once it has been seen that reading it cannot end the process. `names`:
    /// where its lock is; if that is read only, so is the environment, and nothing is created or changed.
    pub(super) fn open(
        path: &Path,
        map_bytes: usize,
        walked_bytes_max: u64,
        names: &dyn Disk,
    ) -> Result<Environment> {
        let unavailable = |what: &str, error: io::Error| {
            Error::new(ErrorKind::Unavailable, format!("\"{}\": {what}: {error}", path.display()))
        };
        let is_read_only = names.is_read_only();
        let disk: &dyn Disk = if is_read_only { names } else { &SystemDisk };
        if is_read_only && !path.join("data.mdb").exists() {
            let message = format!(
                "\"{}\": there is no tree to be read; one is made when it is opened for writing",
                path.display()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        disk.make_directory(path).map_err(|error| unavailable("cannot be made", error))?;
        let lock_path = path.join("lock");
        let lock = disk.lock(&lock_path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Error::new(ErrorKind::Busy, busy(disk, path, &lock_path)),
            _ => unavailable("cannot be locked", error),
        })?;
        let lock: Arc<dyn Send + Sync> = Arc::from(lock);
        let unclean = Unclean::find(path);
        let walked_bytes_max = if unclean.may_lack_pages() { u64::MAX } else { walked_bytes_max };
        examine(path, walked_bytes_max, is_read_only)?;
        let map_bytes = round_up(map_bytes.max(MAP_BYTES_MIN.min(map_bytes)));
        let (open, reading, unclean) = if is_read_only {
            let (lmdb, reading) = readers::open(path, || read_environment(path, map_bytes, &lock))?;
            let tables = lmdb.open_tables(TABLES).map_err(|error| trouble(path, &error))?;
            (OpenEnvironment::new(lmdb, tables), Some(reading), unclean)
        } else {
            let open = open_environment(path, map_bytes, &lock)?;
            let unclean = unclean.begin().map_err(|error| unavailable("cannot be written to", error))?;
            (open, None, unclean)
        };
        let open = RwLock::new(Some(open));
        Ok(Environment { path: path.into(), open, map_bytes, _unclean: unclean, _reading: reading, lock })
    }

    /// Fails with `Unavailable` while it is closed.
    pub(super) fn get(&self) -> Result<MappedRwLockReadGuard<'_, OpenEnvironment>> {
        RwLockReadGuard::try_map(self.open.read(), Option::as_ref).map_err(|_| {
            let why = "its file could not be opened again after a failed write; the next checkpoint tries to";
            self.named(&Error::new(ErrorKind::Unavailable, why))
        })
    }

    /// Returns true if nothing can be read or written before it is opened again.
    pub(super) fn has_failed(&self) -> bool {
        self.open.read().as_ref().is_none_or(|open| open.lmdb.has_failed())
    }

    /// Closes it, and opens it again. There must be no transaction.
    pub(super) fn reopen(&self) -> Result<()> {
        let mut open = self.open.write();
        // LMDB allows a process one environment of a file at a time.
        let map_bytes = open.take().map_or(self.map_bytes, |open| open.lmdb.map_bytes());
        examine(&self.path, 0, false)?;
        *open = Some(open_environment(&self.path, map_bytes, &self.lock)?);
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// An error of LMDB's in our words.
    pub(super) fn trouble(&self, error: &heed::Error) -> Error {
        trouble(&self.path, error)
    }

    /// An error with the name of the tree in front.
    pub(super) fn named(&self, error: &Error) -> Error {
        Error::new(error.kind(), format!("\"{}\": {error}", self.path.display()))
    }
}

const TABLES: [&str; 2] = ["records", "state"];

impl OpenEnvironment {
    fn new(lmdb: Arc<LmdbEnvironment>, (records, state): (LmdbTable, LmdbTable)) -> OpenEnvironment {
        OpenEnvironment { lmdb, records, state }
    }
}

fn open_environment(path: &Path, map_bytes: usize, lock: &Arc<dyn Send + Sync>) -> Result<OpenEnvironment> {
    let lmdb = with_room(path, map_bytes, |map_bytes| {
        LmdbEnvironment::open(path, map_bytes, READERS_MAX, Arc::clone(lock))
    })?;
    let tables = lmdb.open_or_create_tables(TABLES).map_err(|error| trouble(path, &error))?;
    Ok(OpenEnvironment::new(Arc::new(lmdb), tables))
}

fn read_environment(path: &Path, map_bytes: usize, lock: &Arc<dyn Send + Sync>) -> Result<LmdbEnvironment> {
    with_room(path, map_bytes, |map_bytes| LmdbEnvironment::open_read_only(path, map_bytes, Arc::clone(lock)))
}

/// Opens an environment with as much address space as there is.
fn with_room(
    path: &Path,
    mut map_bytes: usize,
    open: impl Fn(usize) -> heed::Result<LmdbEnvironment>,
) -> Result<LmdbEnvironment> {
    loop {
        match open(map_bytes) {
            Ok(lmdb) => return Ok(lmdb),
            Err(heed::Error::Io(error)) if is_too_much(error.kind()) && map_bytes / 2 >= MAP_BYTES_MIN => {
                map_bytes = round_up(map_bytes / 2);
            }
            Err(error) => return Err(trouble(path, &error)),
        }
    }
}

fn trouble(path: &Path, error: &heed::Error) -> Error {
    use heed::Error::{Io, Mdb};
    let kind = match error {
        Io(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            ErrorKind::Full
        }
        Mdb(
            MdbError::Corrupted
            | MdbError::PageNotFound
            | MdbError::Invalid
            | MdbError::Incompatible
            | MdbError::NotFound,
        ) => ErrorKind::Corrupt,
        Mdb(MdbError::VersionMismatch) => ErrorKind::Invalid,
        heed::Error::EnvAlreadyOpened => ErrorKind::Busy,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("\"{}\": {error}", path.display()))
}

/// Sees to it that reading the file cannot end the process: it is as long as its meta page says, since a page after its end, once
/// mapped, would; and its pages make sense, which is seen by a walk if it is of up to so many bytes. One that is only read may be short:
/// what is missing is not in use.
fn examine(path: &Path, walked_bytes_max: u64, is_read_only: bool) -> Result<()> {
    let named =
        |error: Error| Error::new(error.kind(), format!("\"{}\": {error}", path.join("data.mdb").display()));
    let unavailable = |error: io::Error| named(Error::new(ErrorKind::Unavailable, error.to_string()));
    let file = match SystemDisk.open(&path.join("data.mdb"), !is_read_only) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unavailable(error)),
    };
    let Some(meta) = Meta::read(&*file).map_err(named)? else { return Ok(()) };
    let file_bytes = file.len().map_err(unavailable)?;
    let is_short = file_bytes < meta.file_bytes();
    if is_short || file_bytes <= walked_bytes_max {
        pages::check(&*file, &meta).map_err(named)?;
    }
    if is_short {
        extend(&*file, (file_bytes, meta.file_bytes()), is_read_only).map_err(named)?;
    }
    Ok(())
}

/// So much may always be missing at the end of a file, if it is not in use.
const MISSING_BYTES: u64 = 1 << 30;

/// Extends a file to the length that its meta page says. What is missing is not in use.
fn extend(file: &dyn File, (file_bytes, wanted): (u64, u64), is_read_only: bool) -> Result<()> {
    if wanted - file_bytes > file_bytes.max(MISSING_BYTES) {
        let message = format!("its meta page says that it has {wanted} bytes, and it has {file_bytes}");
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    if is_read_only {
        return Ok(());
    }
    file.set_len(wanted).map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))
}

/// In whole pages of whatever system.
pub(super) fn round_up(bytes: usize) -> usize {
    const PAGE_MAX: usize = 64 << 10;
    bytes.clamp(PAGE_MAX, usize::MAX / 2).next_multiple_of(PAGE_MAX)
}
