//! Wraps an LMDB environment whose map can grow. LMDB requires its user to ensure that opening and
//! resizing are safe; this module does so.
//!
//! Invariants: the directory of the environment is locked for this process; the map is resized only
//! while no transaction exists, which is counted. Transactions are created only here.

use heed::types::Bytes;
use heed::{
    CommitOrAbort, CompactionOption, Database, Env, EnvFlags, EnvOpenOptions, MdbError, RoTxn, RwTxn,
    WithoutTls,
};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An LMDB database with byte strings as keys and values.
pub(crate) type LmdbTable = Database<'static, Bytes, Bytes>;

/// An open environment.
pub(crate) struct LmdbEnvironment {
    env: Env<WithoutTls>,
    permits: Arc<TransactionCount>,
    // This field follows `env`, so that it is dropped last.
    _lock: Arc<dyn Send + Sync>,
}

/// The number of transactions, or [`GROWING`](TransactionCount::GROWING) while the map is resized.
struct TransactionCount(AtomicUsize);

impl TransactionCount {
    const GROWING: usize = usize::MAX;
}

/// A permit that a transaction holds as long as it exists.
struct TransactionPermit(Arc<TransactionCount>);

impl TransactionPermit {
    /// Counts a transaction. Fails with `WouldBlock` while the map is resized.
    fn new(permits: &Arc<TransactionCount>) -> heed::Result<TransactionPermit> {
        let more = |count| (count != TransactionCount::GROWING).then(|| count + 1);
        match permits.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, more) {
            Ok(_) => Ok(TransactionPermit(Arc::clone(permits))),
            Err(_) => Err(heed::Error::Io(io::ErrorKind::WouldBlock.into())),
        }
    }
}

impl Drop for TransactionPermit {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}

/// A read transaction. It shows one state of the environment, and the pages of that state are not
/// reused while the transaction exists.
pub(crate) struct LmdbSnapshot {
    txn: RoTxn<'static, WithoutTls>,
    _permit: TransactionPermit,
}

impl Deref for LmdbSnapshot {
    type Target = RoTxn<'static, WithoutTls>;

    fn deref(&self) -> &Self::Target {
        &self.txn
    }
}

/// A write transaction. Only one exists at a time. Dropping it undoes it unless it was committed.
pub(crate) struct LmdbWriteTransaction<'e> {
    txn: RwTxn<'e>,
    _permit: TransactionPermit,
}

impl LmdbWriteTransaction<'_> {
    pub(crate) fn commit(self) -> heed::Result<()> {
        self.txn.commit()
    }
}

impl<'e> Deref for LmdbWriteTransaction<'e> {
    type Target = RwTxn<'e>;

    fn deref(&self) -> &Self::Target {
        &self.txn
    }
}

impl DerefMut for LmdbWriteTransaction<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.txn
    }
}

impl LmdbEnvironment {
    /// Opens the environment in a directory, or creates it. `lock` excludes other users of the
    /// directory, in this process and others, and is held until the environment is closed. The
    /// caller must have checked that the file is as long as its meta page says.
    pub(crate) fn open(
        directory: &Path,
        map_bytes: usize,
        readers_max: u32,
        lock: Arc<dyn Send + Sync>,
    ) -> heed::Result<LmdbEnvironment> {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(map_bytes).max_readers(readers_max).max_dbs(2);
        // SAFETY: the behaviour of the map is undefined only if others change the file. `lock`
        // excludes all processes that respect it. LMDB's own lock file, which no flag turns off,
        // excludes all other users of LMDB. The mode of the file excludes other users of the
        // machine. No flag is set, so LMDB's order of writes holds.
        let env = unsafe { options.open(directory)? };
        Ok(LmdbEnvironment { env, permits: Arc::new(TransactionCount(AtomicUsize::new(0))), _lock: lock })
    }

    /// Opens the environment in a directory for reading. Nothing is created or changed, not even
    /// LMDB's lock file. `lock` excludes writers and is held until the environment is closed.
    pub(crate) fn open_read_only(
        directory: &Path,
        map_bytes: usize,
        lock: Arc<dyn Send + Sync>,
    ) -> heed::Result<LmdbEnvironment> {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(map_bytes).max_dbs(2);
        // SAFETY: without LMDB's lock file, LMDB does not keep a writer from reusing pages that are
        // being read. `lock` excludes writers instead, because every writer must hold it. The file
        // is opened and mapped for reading, so nothing is written here.
        let env = unsafe {
            options.flags(EnvFlags::READ_ONLY | EnvFlags::NO_LOCK);
            options.open(directory)?
        };
        Ok(LmdbEnvironment { env, permits: Arc::new(TransactionCount(AtomicUsize::new(0))), _lock: lock })
    }

    /// Opens the two databases of these names. Fails with `NotFound` if either is missing.
    pub(crate) fn open_tables(&self, names: [&str; 2]) -> heed::Result<(LmdbTable, LmdbTable)> {
        let _permit = TransactionPermit::new(&self.permits)?;
        let opened = self.env.open_databases_and_commit(self.env.read_txn()?, |opener, txn| {
            let found = names.map(|name| opener.open_database::<Bytes, Bytes>(txn, Some(name)));
            let [first, second] =
                found.map(|found| found.and_then(|table| Ok(table.ok_or(MdbError::NotFound)?)));
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit((first?, second?)))
        })?;
        Ok(opened.unwrap_commit())
    }

    /// Opens the two databases of these names and creates both if neither exists. Fails with
    /// `NotFound` if only one exists.
    pub(crate) fn open_or_create_tables(&self, names: [&str; 2]) -> heed::Result<(LmdbTable, LmdbTable)> {
        let _permit = TransactionPermit::new(&self.permits)?;
        let made = self.env.create_databases_and_commit(self.env.write_txn()?, |opener, txn| {
            let found = names.map(|name| opener.open_database::<Bytes, Bytes>(txn, Some(name)));
            let tables = match found {
                [Ok(Some(first)), Ok(Some(second))] => (first, second),
                [Ok(None), Ok(None)] => (
                    opener.create_database(txn, Some(names[0]))?,
                    opener.create_database(txn, Some(names[1]))?,
                ),
                [Err(error), _] | [_, Err(error)] => return Err(error),
                _ => return Err(MdbError::NotFound.into()),
            };
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
        })?;
        Ok(made.unwrap_commit())
    }

    /// Returns true if LMDB refuses all operations because a meta page could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.snapshot(), Err(heed::Error::Mdb(MdbError::Panic)))
    }

    /// Returns a snapshot of the newest state.
    pub(crate) fn snapshot(&self) -> heed::Result<LmdbSnapshot> {
        let permit = TransactionPermit::new(&self.permits)?;
        Ok(LmdbSnapshot { txn: self.env.clone().static_read_txn()?, _permit: permit })
    }

    pub(crate) fn write(&self) -> heed::Result<LmdbWriteTransaction<'_>> {
        let permit = TransactionPermit::new(&self.permits)?;
        Ok(LmdbWriteTransaction { txn: self.env.write_txn()?, _permit: permit })
    }

    /// Returns the size to which the file may grow.
    pub(crate) fn map_bytes(&self) -> usize {
        self.env.info().map_size
    }

    /// Returns the number of bytes of the file that are in use or were in use earlier.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.env.real_disk_size().unwrap_or(0)
    }

    /// Resizes the map, so that the file may grow. Fails with `WouldBlock` if there is any
    /// transaction.
    pub(crate) fn grow(&self, map_bytes: usize) -> heed::Result<()> {
        let idle = self.permits.0.compare_exchange(
            0,
            TransactionCount::GROWING,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if idle.is_err() {
            return Err(heed::Error::Io(io::ErrorKind::WouldBlock.into()));
        }
        // SAFETY: no transaction exists, because each transaction holds a permit and the count was
        // 0. No transaction begins, because no permit is given until the count is 0 again. `env` is
        // not handed out.
        let outcome = unsafe { self.env.resize(map_bytes) };
        self.permits.0.store(0, Ordering::Release);
        outcome
    }

    /// Writes the newest state, without unused pages, to an empty file.
    pub(crate) fn copy(&self, file: &mut File) -> heed::Result<()> {
        let _permit = TransactionPermit::new(&self.permits)?;
        self.env.copy_to_file(file, CompactionOption::Enabled)
    }
}

#[cfg(test)]
impl LmdbEnvironment {
    /// Makes writes of the meta pages fail in a directory until the environment is opened again. To
    /// do so, replaces LMDB's file descriptor by a read-only one.
    pub(crate) fn break_meta_writes(directory: &Path) {
        use std::os::fd::AsRawFd;
        let path = directory.canonicalize().unwrap().join("data.mdb");
        let unwritable = File::open(&path).unwrap();
        let mut broken = 0;
        for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let is_it = std::fs::read_link(format!("/proc/self/fd/{name}")).is_ok_and(|at| at == path);
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{name}")).unwrap_or_default();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = flags.map_or(0, |flags| i32::from_str_radix(flags.trim(), 8).unwrap());
            if is_it && flags & libc::O_DSYNC != 0 {
                // SAFETY: the number is LMDB's descriptor, and LMDB closes the descriptor of this
                // number in any case; both descriptors are open.
                let outcome = unsafe { libc::dup2(unwritable.as_raw_fd(), name.parse().unwrap()) };
                broken += i32::from(outcome >= 0);
            }
        }
        assert_eq!(broken, 1, "LMDB writes meta pages by one descriptor");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_grows_only_without_transactions() {
        let directory = tempfile::tempdir().unwrap();
        let lmdb = LmdbEnvironment::open(directory.path(), 1 << 20, 8, Arc::new(())).unwrap();
        let (table, _) = lmdb.open_or_create_tables(["one", "two"]).unwrap();
        let snapshot = lmdb.snapshot().unwrap();
        assert!(lmdb.grow(2 << 20).is_err());
        drop(snapshot);
        let mut writing = lmdb.write().unwrap();
        assert!(lmdb.grow(2 << 20).is_err());
        table.put(&mut writing, b"key", b"value").unwrap();
        writing.commit().unwrap();
        lmdb.grow(2 << 20).unwrap();
        assert_eq!(lmdb.map_bytes(), 2 << 20);
        assert_eq!(table.get(&lmdb.snapshot().unwrap(), b"key").unwrap(), Some(&b"value"[..]));
    }
}
