//! Opens the LMDB environment of a tree after checking its file, and reopens the environment after
//! a failed write of a meta page. LMDB calls an open file an environment; a meta page states where
//! the newest state of the file begins.

use super::DiskTreeOptions;
use super::pages::{self, KeyOrderCheck, MetaPage};
use super::readers::{self, SharedReader};
use super::unclean::UncleanMarker;
use crate::disk::{Disk, File, SystemDisk, busy};
use crate::raw::{LmdbEnvironment, LmdbTable};
use heed::MdbError;
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// The environment of a directory. The directory stays locked while this value exists.
pub(super) struct TreeEnvironment {
    path: PathBuf,
    /// The open environment; `None` if it could not be reopened.
    open: RwLock<Option<OpenEnvironment>>,
    /// The size of the address space with which the environment is first opened.
    map_bytes: usize,
    // This field follows `open`, so that the environment is closed before the marker is removed.
    _unclean: UncleanMarker,
    /// This reader's share of the environment, if the tree is read-only.
    _reading: Option<SharedReader>,
    lock: Arc<dyn Send + Sync>,
}

pub(super) struct OpenEnvironment {
    /// The environment, which all readers of a read-only tree share.
    pub(super) lmdb: Arc<LmdbEnvironment>,
    pub(super) records: LmdbTable,
    pub(super) state: LmdbTable,
}

/// The limit is enough for 64 concurrent readers, the copies and the write transactions.
const READERS_MAX: u32 = 126;

/// The minimum address space. If the system refuses the requested address space, the request is
/// halved, but not below this minimum.
pub(super) const MAP_BYTES_MIN: usize = 16 << 20;

/// Returns true if a request for a smaller address space may succeed. Some systems, such as
/// valgrind, refuse a large request as an invalid argument.
fn is_too_much(error: io::ErrorKind) -> bool {
    matches!(error, io::ErrorKind::OutOfMemory | io::ErrorKind::InvalidInput)
}

impl TreeEnvironment {
    /// Opens the environment in a directory, or creates it. Checks first that a read from the
    /// memory-mapped file cannot end the process (SIGBUS). The directory is locked on the disk of
    /// the options; if that is read-only, so is the environment, and nothing is created or changed.
    pub(super) fn open(
        path: &Path,
        options: &DiskTreeOptions,
        order: KeyOrderCheck,
    ) -> Result<TreeEnvironment> {
        let names = &*options.disk;
        let unavailable = |what: &str, error: io::Error| {
            Error::new(ErrorKind::Unavailable, format!("\"{}\": {what}: {error}", path.display()))
        };
        let is_read_only = names.is_read_only();
        let disk: &dyn Disk = if is_read_only { names } else { &SystemDisk };
        if is_read_only && !path.join("data.mdb").exists() {
            let message =
                format!("\"{}\": no tree to read; open it for writing to create one", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        disk.make_directory(path).map_err(|error| unavailable("cannot create it", error))?;
        let lock_path = path.join("lock");
        let lock = disk.lock(&lock_path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Error::new(ErrorKind::Busy, busy(disk, path, &lock_path)),
            _ => unavailable("cannot lock it", error),
        })?;
        let lock: Arc<dyn Send + Sync> = Arc::from(lock);
        let unclean = UncleanMarker::find(path);
        let walked_bytes_max = if unclean.may_lack_pages() { u64::MAX } else { options.walked_bytes_max };
        examine(path, walked_bytes_max, order, is_read_only)?;
        let map_bytes = round_up(options.map_bytes);
        let (open, reading, unclean) = if is_read_only {
            let (lmdb, reading) = readers::open(path, || read_environment(path, map_bytes, &lock))?;
            let tables = lmdb.open_tables(TABLES).map_err(|error| lmdb_error(path, &error))?;
            (OpenEnvironment::new(lmdb, tables), Some(reading), unclean)
        } else {
            let open = open_environment(path, map_bytes, &lock)?;
            let unclean = unclean.begin().map_err(|error| unavailable("cannot write to it", error))?;
            (open, None, unclean)
        };
        let open = RwLock::new(Some(open));
        Ok(TreeEnvironment { path: path.into(), open, map_bytes, _unclean: unclean, _reading: reading, lock })
    }

    /// Returns the open environment. Fails with `Unavailable` while it is closed.
    pub(super) fn get(&self) -> Result<MappedRwLockReadGuard<'_, OpenEnvironment>> {
        RwLockReadGuard::try_map(self.open.read(), Option::as_ref).map_err(|_| {
            let why = "the file could not be reopened after a failed write; the next checkpoint tries again";
            self.named(&Error::new(ErrorKind::Unavailable, why))
        })
    }

    /// Returns true if no operation is possible until the environment is reopened.
    pub(super) fn has_failed(&self) -> bool {
        self.open.read().as_ref().is_none_or(|open| open.lmdb.has_failed())
    }

    /// Closes and reopens the environment. The caller must ensure that there is no transaction.
    pub(super) fn reopen(&self) -> Result<()> {
        let mut open = self.open.write();
        // The old environment is closed first, because LMDB allows only one environment per file in
        // a process.
        let map_bytes = open.take().map_or(self.map_bytes, |open| open.lmdb.map_bytes());
        examine(&self.path, 0, KeyOrderCheck::Done, false)?;
        *open = Some(open_environment(&self.path, map_bytes, &self.lock)?);
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Converts an LMDB error to an error of the engine.
    pub(super) fn lmdb_error(&self, error: &heed::Error) -> Error {
        lmdb_error(&self.path, error)
    }

    /// Adds the name of the tree to an error.
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
    let tables = lmdb.open_or_create_tables(TABLES).map_err(|error| lmdb_error(path, &error))?;
    Ok(OpenEnvironment::new(Arc::new(lmdb), tables))
}

fn read_environment(path: &Path, map_bytes: usize, lock: &Arc<dyn Send + Sync>) -> Result<LmdbEnvironment> {
    with_room(path, map_bytes, |map_bytes| LmdbEnvironment::open_read_only(path, map_bytes, Arc::clone(lock)))
}

/// Opens an environment with `map_bytes` of address space. If the system refuses that size, tries
/// half of it repeatedly.
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
            Err(error) => return Err(lmdb_error(path, &error)),
        }
    }
}

fn lmdb_error(path: &Path, error: &heed::Error) -> Error {
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

/// Checks that a read from the memory-mapped file cannot end the process. A mapped page beyond the
/// end of the file would do so, so the file must be as long as its meta page says. If the file has
/// at most `walked_bytes_max` bytes, all of its pages must be valid too. A file that lacks only
/// unused pages is extended; a read-only file may stay short.
fn examine(path: &Path, walked_bytes_max: u64, order: KeyOrderCheck, is_read_only: bool) -> Result<()> {
    let named =
        |error: Error| Error::new(error.kind(), format!("\"{}\": {error}", path.join("data.mdb").display()));
    let unavailable = |error: io::Error| named(Error::new(ErrorKind::Unavailable, error.to_string()));
    let file = match SystemDisk.open(&path.join("data.mdb"), !is_read_only) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unavailable(error)),
    };
    let Some(meta) = MetaPage::read(&*file).map_err(named)? else { return Ok(()) };
    let file_bytes = file.len().map_err(unavailable)?;
    let is_short = file_bytes < meta.file_bytes();
    if is_short || file_bytes <= walked_bytes_max {
        pages::check(&*file, &meta, order).map_err(named)?;
    }
    if is_short {
        extend(&*file, (file_bytes, meta.file_bytes()), is_read_only).map_err(named)?;
    }
    Ok(())
}

/// This number of bytes may always be missing at the end of a file, if they are unused.
const MISSING_BYTES: u64 = 1 << 30;

/// Extends a file to the length that its meta page says. The caller has checked that the missing
/// pages are unused. Fails with `Corrupt` if too much is missing. `wanted` is the length that the
/// meta page says.
fn extend(file: &dyn File, (file_bytes, wanted): (u64, u64), is_read_only: bool) -> Result<()> {
    if wanted - file_bytes > file_bytes.max(MISSING_BYTES) {
        let message = format!("the file has {file_bytes} bytes, but its meta page requires {wanted}");
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    if is_read_only {
        return Ok(());
    }
    file.set_len(wanted).map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))
}

/// Rounds up to a multiple of the largest page size of any system.
pub(super) fn round_up(bytes: usize) -> usize {
    const PAGE_MAX: usize = 64 << 10;
    bytes.clamp(PAGE_MAX, usize::MAX / 2).next_multiple_of(PAGE_MAX)
}
