//! An LMDB environment whose map can grow: opening and growing are what LMDB leaves to the care of its user.
//!
//! Always true: the environment's directory is locked for this process; the map is replaced only while no transaction is
//! alive, which is counted. Transactions can be had from here only.

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

/// A database of bytes by bytes.
pub(crate) type Table = Database<'static, Bytes, Bytes>;

/// An open environment.
pub(crate) struct Lmdb {
    env: Env<WithoutTls>,
    permits: Arc<Permits>,
    // Behind `env`, so that it goes last.
    _lock: Arc<dyn Send + Sync>,
}

/// How many transactions are alive; [`GROWING`](Permits::GROWING) while the map is replaced.
struct Permits(AtomicUsize);

impl Permits {
    const GROWING: usize = usize::MAX;
}

/// What a transaction holds for as long as it lives.
struct Permit(Arc<Permits>);

impl Permit {
    /// Fails with `WouldBlock` while the map is replaced.
    fn new(permits: &Arc<Permits>) -> heed::Result<Permit> {
        let more = |count| (count != Permits::GROWING).then(|| count + 1);
        match permits.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, more) {
            Ok(_) => Ok(Permit(Arc::clone(permits))),
            Err(_) => Err(heed::Error::Io(io::ErrorKind::WouldBlock.into())),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}

/// A state of the environment to read from; it keeps its pages from being used again.
pub(crate) struct Snapshot {
    txn: RoTxn<'static, WithoutTls>,
    _permit: Permit,
}

impl Deref for Snapshot {
    type Target = RoTxn<'static, WithoutTls>;

    fn deref(&self) -> &Self::Target {
        &self.txn
    }
}

/// A transaction that writes; undone unless it is committed. There is one at a time.
pub(crate) struct Writing<'e> {
    txn: RwTxn<'e>,
    _permit: Permit,
}

impl Writing<'_> {
    pub(crate) fn commit(self) -> heed::Result<()> {
        self.txn.commit()
    }
}

impl<'e> Deref for Writing<'e> {
    type Target = RwTxn<'e>;

    fn deref(&self) -> &Self::Target {
        &self.txn
    }
}

impl DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.txn
    }
}

impl Lmdb {
    /// Opens the environment in a directory, or makes one. `lock` is what keeps all others from it, other processes and
    /// other parts of this one, and is held until it is closed. The caller has seen to it that the file is as long as
    /// its meta page says.
    pub(crate) fn open(
        directory: &Path,
        map_bytes: usize,
        readers_max: u32,
        lock: Arc<dyn Send + Sync>,
    ) -> heed::Result<Lmdb> {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(map_bytes).max_readers(readers_max).max_dbs(2);
        // SAFETY: the map is undefined only if somebody else changes the file: `lock` keeps out all who go by it, LMDB's own
        // lock file (no flag turns it off) all other users of LMDB, and the file's mode other users of the machine. No
        // flag is set, so LMDB's own order of writes holds.
        let env = unsafe { options.open(directory)? };
        Ok(Lmdb { env, permits: Arc::new(Permits(AtomicUsize::new(0))), _lock: lock })
    }

    /// Opens the environment in a directory to read it alone: nothing is created or changed, LMDB's lock file neither. `lock` is what
    /// keeps writers from it, and is held until it is closed.
    pub(crate) fn open_read_only(
        directory: &Path,
        map_bytes: usize,
        lock: Arc<dyn Send + Sync>,
    ) -> heed::Result<Lmdb> {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(map_bytes).max_dbs(2);
        // SAFETY: without LMDB's lock file nothing of LMDB's keeps a writer from using pages again that are being read; `lock` does,
        // whose holders are the only ones that write. Nothing is written here: the file is opened and mapped for reading.
        let env = unsafe {
            options.flags(EnvFlags::READ_ONLY | EnvFlags::NO_LOCK);
            options.open(directory)?
        };
        Ok(Lmdb { env, permits: Arc::new(Permits(AtomicUsize::new(0))), _lock: lock })
    }

    /// The two databases of these names, which are there. Fails with `NotFound` if one is not.
    pub(crate) fn tables_there(&self, names: [&str; 2]) -> heed::Result<(Table, Table)> {
        let _permit = Permit::new(&self.permits)?;
        let opened = self.env.open_databases_and_commit(self.env.read_txn()?, |opener, txn| {
            let found = names.map(|name| opener.open_database::<Bytes, Bytes>(txn, Some(name)));
            let [first, second] =
                found.map(|found| found.and_then(|table| Ok(table.ok_or(MdbError::NotFound)?)));
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit((first?, second?)))
        })?;
        Ok(opened.unwrap_commit())
    }

    /// The two databases of these names, made if need be: both or none. Fails with `NotFound` if only one is there.
    pub(crate) fn tables(&self, names: [&str; 2]) -> heed::Result<(Table, Table)> {
        let _permit = Permit::new(&self.permits)?;
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

    /// Returns true if LMDB refuses everything from now on: a meta page could not be written.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.snapshot(), Err(heed::Error::Mdb(MdbError::Panic)))
    }

    /// The newest state.
    pub(crate) fn snapshot(&self) -> heed::Result<Snapshot> {
        let permit = Permit::new(&self.permits)?;
        Ok(Snapshot { txn: self.env.clone().static_read_txn()?, _permit: permit })
    }

    pub(crate) fn write(&self) -> heed::Result<Writing<'_>> {
        let permit = Permit::new(&self.permits)?;
        Ok(Writing { txn: self.env.write_txn()?, _permit: permit })
    }

    /// How large the file can become.
    pub(crate) fn map_bytes(&self) -> usize {
        self.env.info().map_size
    }

    /// Bytes of the file that are in use, or have been.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.env.real_disk_size().unwrap_or(0)
    }

    /// Lets the file become larger. Fails with `WouldBlock` while there is any transaction.
    pub(crate) fn grow(&self, map_bytes: usize) -> heed::Result<()> {
        let idle = self.permits.0.compare_exchange(0, Permits::GROWING, Ordering::Acquire, Ordering::Relaxed);
        if idle.is_err() {
            return Err(heed::Error::Io(io::ErrorKind::WouldBlock.into()));
        }
        // SAFETY: no transaction is alive, as each holds a permit and there is none, and none begins, as none is given out
        // until the count is 0 again. `env` is not handed out.
        let outcome = unsafe { self.env.resize(map_bytes) };
        self.permits.0.store(0, Ordering::Release);
        outcome
    }

    /// Writes the newest state to an empty file, without what is not in use.
    pub(crate) fn copy(&self, file: &mut File) -> heed::Result<()> {
        let _permit = Permit::new(&self.permits)?;
        self.env.copy_to_file(file, CompactionOption::Enabled)
    }
}

#[cfg(test)]
impl Lmdb {
    /// Has writes of the meta pages of the environment in a directory fail, until it is opened again: the descriptor for them is
    /// replaced by one that cannot be written to.
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
                // SAFETY: the number is LMDB's, which closes whatever it then stands for; both descriptors are open.
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
    fn the_map_grows_only_while_there_is_no_transaction() {
        let directory = tempfile::tempdir().unwrap();
        let lmdb = Lmdb::open(directory.path(), 1 << 20, 8, Arc::new(())).unwrap();
        let (table, _) = lmdb.tables(["one", "two"]).unwrap();
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
